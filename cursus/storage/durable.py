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

Source: segments.md sections 2, 7 and 8; docs in brief: design principle 5.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Literal, Self

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
    "sync_directory",
]

#: Modes that segments.md section 2 gives to what a broker creates.
FILE_MODE: Final = 0o600
DIRECTORY_MODE: Final = 0o750


@dataclass(frozen=True, slots=True)
class Operation:
    """One durable effect that is about to happen.

    ``position`` is where ``data`` goes, or the new size of a truncation;
    ``target`` the new name of a rename. Paths are as the caller gave them.
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


def _nobody(_operation: Operation) -> None:
    """The observer of a store that nobody observes."""


class AppendFile:
    """A file that grows at its end. Not safe for two threads at once.

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

        Raises ``OSError``; part of the data may then stand in the file, and the
        file is closed for writing.
        """
        position = self.size
        self._begin(Operation("write", self.path, position, data))
        with self._failing():
            view = memoryview(data)
            while view:
                written = os.pwrite(self._descriptor, view, position + len(data) - len(view))
                view = view[written:]
        self.size += len(data)
        return position

    def truncate(self, size: int) -> None:
        """Set the size in bytes; what is added reads as zeros. Raises ``OSError``."""
        self._begin(Operation("truncate", self.path, size))
        with self._failing():
            os.ftruncate(self._descriptor, size)
        self.size = size
        self.durable = min(self.durable, size)

    def fsync(self) -> None:
        """Return when every byte is on the disk. Raises ``OSError``, and never tries again."""
        size = self.size
        self._begin(Operation("fsync", self.path))
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

    def _begin(self, operation: Operation) -> None:
        if self._failed:
            raise WriteUnavailableError(self.path)
        with self._failing():
            self._observer(operation)

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


class Durable:
    """Durable effects on one file system, each shown to ``observer`` first.

    Every method raises ``OSError``. No symbolic link is followed at the end of
    a path.
    """

    def __init__(self, observer: Observer = _nobody) -> None:
        self._observer = observer

    def create(self, path: str) -> AppendFile:
        """A new empty file (0600); ``FileExistsError`` when the name is taken."""
        self._observer(Operation("create", path))
        return self._open(path, os.O_CREAT | os.O_EXCL)

    def open(self, path: str) -> AppendFile:
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

    def sync_directory(self, path: str) -> None:
        """Make the names in a directory durable."""
        self._observer(Operation("sync_directory", path))
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _open(self, path: str, flags: int) -> AppendFile:
        flags |= os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
        return AppendFile(path, os.open(path, flags, FILE_MODE), self._observer)
