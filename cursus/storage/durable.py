"""The one door for durable writes.

Everything that a store makes durable goes through a :class:`Durable`: whole
operations on names (create, replace, unlink, make and remove directories, sync
a directory) and an :class:`AppendFile` for what grows. An observer sees each
:class:`Operation` **before** it happens and may delay it or refuse it with
``OSError``: that is how a test records a trace, counts the fsyncs, or plays a
full disk, without another code path than the one that runs in earnest.

Two rules hold here and nowhere else:

* An fsync that failed is never tried again on the same file. The kernel may
  have dropped the pages and marked them clean, so a second fsync that succeeds
  proves nothing. After any error of write, truncate or fsync a file answers
  ``WriteUnavailableError`` until it is opened again (segments.md section 8, 3).
* A name is durable only when its directory is synced. Operations on names do
  not sync on their own, except :meth:`Durable.replace_file`, whose sequence is
  fixed: write beside, fsync, rename, sync the directory.

Stores are written against the protocols :class:`FileSystem`, :class:`WritableFile`
and :class:`ReadableFile`; :class:`Durable` is the real file system. A crash
harness gives them one in memory, whose crash states it can enumerate.

Source: segments.md sections 2, 7 and 8; design, principle 5.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Literal, Protocol, Self

Kind = Literal[
    "create",
    "write",
    "truncate",
    "fsync",
    "rename",
    "unlink",
    "mkdir",
    "rmdir",
    "chmod",
    "utime",
    "sync_directory",
]
FileType = Literal["file", "directory", "symlink", "other"]

#: Modes that segments.md section 2 gives to what a broker creates.
FILE_MODE: Final = 0o600
DIRECTORY_MODE: Final = 0o750
_TYPES: Final[dict[int, FileType]] = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "directory",
    stat.S_IFLNK: "symlink",
}


@dataclass(frozen=True, slots=True)
class Operation:
    """One durable effect that is about to happen.

    ``position`` is where ``data`` goes, the new size of a truncation, the mode
    of a ``chmod`` or the nanoseconds of a ``utime``; ``target`` the new name of a
    rename. Paths are as the caller gave them.
    """

    kind: Kind
    path: str
    position: int | None = None
    data: bytes = b""
    target: str | None = None


Observer = Callable[[Operation], None]


class WriteUnavailableError(OSError):
    """An earlier write, truncation or fsync of this file failed; open it again.

    Whether what was written before is on the disk is not known.
    """

    code: Final = "partition_write_unavailable"

    def __init__(self, path: str) -> None:
        super().__init__(errno.EIO, "an earlier write failed; open the file again", path)


@dataclass(frozen=True, slots=True)
class FileStatus:
    """What ``lstat`` says: no link is followed."""

    type: FileType
    size: int
    mtime_ns: int
    mode: int


class ReadableFile(Protocol):
    """An open regular file: positioned reads only. ``pread`` may return fewer bytes at the end."""

    @property
    def size(self) -> int: ...

    def pread(self, length: int, position: int) -> bytes: ...

    def close(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_exception: object) -> None: ...


class WritableFile(Protocol):
    """A file open for writing; see :class:`AppendFile`."""

    path: str
    size: int
    durable: int

    def append(self, data: bytes) -> int: ...

    def overwrite(self, position: int, data: bytes) -> None: ...

    def truncate(self, size: int) -> None: ...

    def fsync(self) -> None: ...

    def close(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_exception: object) -> None: ...


class FileSystem(Protocol):
    """What a store needs of a file system; see :class:`Durable`.

    The reading half serves a store that reads its own files; evidence is read
    through ``cursus.evidence`` only.
    """

    def create(self, path: str) -> WritableFile: ...

    def open(self, path: str) -> WritableFile: ...

    def replace_file(self, path: str, temporary: str, content: bytes) -> None: ...

    def rename(self, path: str, target: str) -> None: ...

    def unlink(self, path: str) -> None: ...

    def make_directory(self, path: str) -> None: ...

    def remove_directory(self, path: str) -> None: ...

    def change_mode(self, path: str, mode: int) -> None: ...

    def set_modified(self, path: str, mtime_ns: int) -> None: ...

    def sync_directory(self, path: str) -> None: ...

    def open_read(self, path: str) -> ReadableFile: ...

    def list_directory(self, path: str) -> list[str]: ...

    def status(self, path: str) -> FileStatus | None: ...

    def free_bytes(self, path: str) -> int: ...

    def total_bytes(self, path: str) -> int: ...


def _nobody(_operation: Operation) -> None:
    """The observer of a store that nobody observes."""


class AppendFile:
    """A file that grows at its end.

    One thread may write while another one calls :meth:`fsync` (a group commit
    does); apart from that it is not safe for two threads at once.

    ``size`` counts the bytes that were handed over completely; ``durable`` is
    the size at the last fsync that succeeded.
    """

    def __init__(self, path: str, descriptor: int, observer: Observer) -> None:
        self.path = path
        self.size = os.fstat(descriptor).st_size
        self.durable = 0
        self._descriptor = descriptor
        self._observer = observer
        self._failed = False

    def append(self, data: bytes) -> int:
        """Write ``data`` at the end; return the position at which it begins.

        Raises ``OSError``; the file is closed for writing then. What a full disk
        let in of the data is cut off again where that can be done: a torn tail in
        ``__consumer_offsets`` would refuse the next start.
        """
        position = self.size
        self._begin("write", position, data)
        with self._failing():
            try:
                self._write(position, data)
            except OSError:
                self._take_back(position)
                raise
        self.size += len(data)
        return position

    def overwrite(self, position: int, data: bytes) -> None:
        """Write ``data`` over bytes that stand in the file; its size stays.

        Raises ``ValueError`` past the end, and ``OSError`` as :meth:`append` does.
        """
        if position < 0 or position + len(data) > self.size:
            raise ValueError(f"{self.path}: {len(data)} bytes at {position} pass the end")
        self._begin("write", position, data)
        with self._failing():
            self._write(position, data)

    def truncate(self, size: int) -> None:
        """Set the size in bytes; what is added reads as zeros. Raises ``OSError``."""
        self._begin("truncate", size)
        with self._failing():
            os.ftruncate(self._descriptor, size)
        self.size = size
        self.durable = min(self.durable, size)

    def fsync(self) -> None:
        """Return when every byte is on the disk. Raises ``OSError``, and never tries again."""
        size = self.size
        self._begin("fsync")
        with self._failing():
            os.fsync(self._descriptor)
        self.durable = size

    def close(self) -> None:
        """Close without an fsync; closing twice is allowed."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def _write(self, position: int, data: bytes) -> None:
        view = memoryview(data)
        while view:
            written = os.pwrite(self._descriptor, view, position + len(data) - len(view))
            view = view[written:]

    def _take_back(self, size: int) -> None:
        """After a write that failed: nothing behind ``size`` was promised to anybody."""
        with suppress(OSError):
            if os.fstat(self._descriptor).st_size > size:
                self._observer(Operation("truncate", self.path, size))
                os.ftruncate(self._descriptor, size)

    def _begin(self, kind: Kind, position: int | None = None, data: bytes = b"") -> None:
        if self._failed:
            raise WriteUnavailableError(self.path)
        if self._observer is not _nobody:
            with self._failing():
                self._observer(Operation(kind, self.path, position, data))

    def _failing(self) -> _Failing:
        return _Failing(self)

    def _fail(self) -> None:
        self._failed = True


class _Failing:
    """Remembers in the file that something went wrong inside the block."""

    def __init__(self, file: AppendFile) -> None:
        self._file = file

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self._file._fail()


class _Reader:
    """A regular file, open for reading."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @property
    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def pread(self, length: int, position: int) -> bytes:
        return os.pread(self._descriptor, length, position)

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()


class Durable:
    """Durable effects on one file system, each shown to ``observer`` first.

    Every method raises ``OSError``. No symbolic link is followed at the end of
    a path.
    """

    def __init__(self, observer: Observer = _nobody) -> None:
        self._observer = observer

    def create(self, path: str) -> WritableFile:
        """A new empty file (0600); ``FileExistsError`` when the name is taken."""
        self._observer(Operation("create", path))
        return self._open(path, os.O_CREAT | os.O_EXCL)

    def open(self, path: str) -> WritableFile:
        """An existing file, to append to it."""
        return self._open(path, 0)

    def replace_file(self, path: str, temporary: str, content: bytes) -> None:
        """Put ``content`` under ``path`` in one step that a crash cannot halve.

        ``temporary`` stands in the same directory; a leftover of that name is
        removed first. When the rename has happened and the sync of the
        directory fails, the error is raised and the new content is in place.
        """
        if os.path.lexists(temporary):
            self.unlink(temporary)
        with self.create(temporary) as file:
            file.append(content)
            file.fsync()
        self.rename(temporary, path)
        self.sync_directory(os.path.dirname(path) or ".")

    def rename(self, path: str, target: str) -> None:
        """Rename; what stood under ``target`` is replaced."""
        self._observer(Operation("rename", path, target=target))
        os.rename(path, target)

    def unlink(self, path: str) -> None:
        """Remove a name."""
        self._observer(Operation("unlink", path))
        os.unlink(path)

    def make_directory(self, path: str) -> None:
        """A new directory (0750)."""
        self._observer(Operation("mkdir", path))
        os.mkdir(path, DIRECTORY_MODE)

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory."""
        self._observer(Operation("rmdir", path))
        os.rmdir(path)

    def change_mode(self, path: str, mode: int) -> None:
        """Set the permission bits."""
        self._observer(Operation("chmod", path, position=mode))
        os.chmod(path, mode)

    def set_modified(self, path: str, mtime_ns: int) -> None:
        """Set the modification time, nanoseconds since 1970; the access time stays."""
        self._observer(Operation("utime", path, position=mtime_ns))
        accessed = os.stat(path, follow_symlinks=False).st_atime_ns
        os.utime(path, ns=(accessed, mtime_ns), follow_symlinks=False)

    def sync_directory(self, path: str) -> None:
        """Make the names in a directory durable."""
        self._observer(Operation("sync_directory", path))
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    # -- reading -------------------------------------------------------------------

    def open_read(self, path: str) -> ReadableFile:
        """A regular file, to read it; no link is followed. Never blocks on a pipe."""
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(path, flags)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise OSError(errno.EINVAL, "not a regular file", path)
        return _Reader(descriptor)

    def list_directory(self, path: str) -> list[str]:
        """Names in a directory, sorted by their bytes."""
        return sorted(os.listdir(path), key=os.fsencode)

    def status(self, path: str) -> FileStatus | None:
        """What stands under a name; ``None`` when nothing does."""
        try:
            found = os.lstat(path)
        except FileNotFoundError:
            return None
        return FileStatus(
            _TYPES.get(stat.S_IFMT(found.st_mode), "other"),
            found.st_size,
            found.st_mtime_ns,
            stat.S_IMODE(found.st_mode),
        )

    def free_bytes(self, path: str) -> int:
        """Bytes that a process without privilege may still write there."""
        space = os.statvfs(path)
        return space.f_bavail * space.f_frsize

    def total_bytes(self, path: str) -> int:
        """Size in bytes of the file system that holds ``path``."""
        space = os.statvfs(path)
        return space.f_blocks * space.f_frsize

    def _open(self, path: str, flags: int) -> AppendFile:
        flags |= os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
        return AppendFile(path, os.open(path, flags, FILE_MODE), self._observer)


def real_file_system(observer: Observer = _nobody) -> FileSystem:
    """The file system of this machine, each durable effect shown to ``observer`` first."""
    return Durable(observer)
