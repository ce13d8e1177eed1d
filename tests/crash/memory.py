"""A file system in memory that fits ``cursus.storage.durable.FileSystem``.

It does what :class:`cursus.storage.durable.Durable` does on a real one, with
the same errors, and writes down every durable effect in a :class:`Trace`: which
inode, which name in which directory, which bytes. Paths are not enough for
that: a file that was renamed is still written to through its open handle. From
the trace ``tests/crash/model.py`` rebuilds what a crash could have left.

``test_memory_file_system.py`` runs the same operations on both file systems and
compares the trees, so that nothing proven here is proven about a file system
that does not exist.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, Literal, Self

from cursus.storage.durable import (
    DIRECTORY_MODE,
    FILE_MODE,
    FileStatus,
    Observer,
    Operation,
    WritableFile,
    WriteUnavailableError,
)

ROOT: Final = "/memory"
#: Inode of the root directory.
ROOT_INODE: Final = 1

EventKind = Literal[
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
    "fsync_failed",
    "mark",
]


class ShortWriteError(OSError):
    """An observer that raises this lets ``written`` bytes of a write in before it fails."""

    def __init__(self, code: int, path: str, written: int) -> None:
        super().__init__(code, os.strerror(code), path)
        self.written = written


@dataclass(frozen=True, slots=True)
class Event:
    """One durable effect that has happened, or a mark of the workload.

    ``inode`` is the file that is changed, or the directory whose names change;
    ``child`` the inode behind ``name``. ``mark`` carries what the workload noted.
    """

    kind: EventKind
    inode: int = 0
    name: str = ""
    position: int = 0
    data: bytes = b""
    target: str = ""
    child: int = 0
    mark: Any = None


@dataclass(frozen=True, slots=True)
class Leaf:
    """A regular file of a tree at rest."""

    data: bytes
    mode: int = FILE_MODE
    mtime_ns: int = 0


#: Relative path to a file, or to ``None`` for a directory. The root is not in it.
Tree = Mapping[str, Leaf | None]


@dataclass(slots=True)
class File:
    number: int
    data: bytearray
    mode: int = FILE_MODE
    mtime_ns: int = 0


@dataclass(slots=True)
class Directory:
    number: int
    mode: int = DIRECTORY_MODE
    entries: dict[str, File | Directory] = field(default_factory=dict)


def _nobody(_operation: Operation) -> None:
    """Nobody observes."""


class MemoryFileSystem:
    """See the module. ``trace`` grows by one event for each durable effect.

    ``clock`` gives the nanoseconds that a write stamps on a file. ``free`` is
    what :meth:`free_bytes` answers.
    """

    def __init__(
        self, tree: Tree | None = None, observer: Observer = _nobody, *, clock: int = 0
    ) -> None:
        self.root = Directory(ROOT_INODE)
        self.trace: list[Event] = []
        self.clock = clock
        self.free = 1 << 40
        self._next = ROOT_INODE + 1
        self._observer = observer
        self._lock = threading.RLock()
        for path in sorted(tree or ()):
            self._plant(path, (tree or {})[path])

    def mark(self, mark: Any) -> None:
        """Note a moment of the workload: something begins, something was acknowledged."""
        with self._lock:
            self.trace.append(Event("mark", mark=mark))

    def tree(self) -> dict[str, Leaf | None]:
        """What stands here now, below :data:`ROOT`."""
        with self._lock:
            return dict(_walk(self.root, ""))

    # -- FileSystem ------------------------------------------------------------------

    def create(self, path: str) -> WritableFile:
        with self._lock:
            self._observer(Operation("create", path))
            directory, name = self._parent(path)
            if name in directory.entries:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
            file = File(self._number(), bytearray(), FILE_MODE, self.clock)
            directory.entries[name] = file
            self._note("create", directory.number, name, child=file.number)
            return MemoryFile(self, path, file)

    def open(self, path: str) -> WritableFile:
        with self._lock:
            return MemoryFile(self, path, self._file(path))

    def replace_file(self, path: str, temporary: str, content: bytes) -> None:
        if self.status(temporary) is not None:
            self.unlink(temporary)
        with self.create(temporary) as file:
            file.append(content)
            file.fsync()
        self.rename(temporary, path)
        self.sync_directory(os.path.dirname(path) or ".")

    def rename(self, path: str, target: str) -> None:
        with self._lock:
            self._observer(Operation("rename", path, target=target))
            directory, name = self._parent(path)
            other, new = self._parent(target)
            if directory is not other:
                raise NotImplementedError("the model of a crash knows renames in one directory")
            moved = self._entry(directory, name, path)
            there = directory.entries.get(new)
            if isinstance(there, Directory) and not isinstance(moved, Directory):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), target)
            if isinstance(moved, Directory) and isinstance(there, File):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), target)
            if isinstance(there, Directory) and there is not moved and there.entries:
                raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), target)
            del directory.entries[name]
            directory.entries[new] = moved
            self._note("rename", directory.number, name, target=new, child=moved.number)

    def unlink(self, path: str) -> None:
        with self._lock:
            self._observer(Operation("unlink", path))
            directory, name = self._parent(path)
            if isinstance(self._entry(directory, name, path), Directory):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
            del directory.entries[name]
            self._note("unlink", directory.number, name)

    def make_directory(self, path: str) -> None:
        with self._lock:
            self._observer(Operation("mkdir", path))
            directory, name = self._parent(path)
            if name in directory.entries:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
            made = Directory(self._number())
            directory.entries[name] = made
            self._note("mkdir", directory.number, name, child=made.number)

    def remove_directory(self, path: str) -> None:
        with self._lock:
            self._observer(Operation("rmdir", path))
            directory, name = self._parent(path)
            found = self._entry(directory, name, path)
            if not isinstance(found, Directory):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
            if found.entries:
                raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path)
            del directory.entries[name]
            self._note("rmdir", directory.number, name)

    def change_mode(self, path: str, mode: int) -> None:
        with self._lock:
            self._observer(Operation("chmod", path, position=mode))
            found = self._find(path)
            found.mode = mode
            if isinstance(found, File):
                self._note("chmod", found.number, position=mode)

    def set_modified(self, path: str, mtime_ns: int) -> None:
        with self._lock:
            self._observer(Operation("utime", path, position=mtime_ns))
            found = self._file(path)
            found.mtime_ns = mtime_ns
            self._note("utime", found.number, position=mtime_ns)

    def sync_directory(self, path: str) -> None:
        with self._lock:
            self._observer(Operation("sync_directory", path))
            found = self._find(path)
            if not isinstance(found, Directory):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
            self._note("sync_directory", found.number)

    def open_read(self, path: str) -> MemoryReader:
        with self._lock:
            found = self._find(path)
            if not isinstance(found, File):
                raise OSError(errno.EINVAL, "not a regular file", path)
            return MemoryReader(found)

    def list_directory(self, path: str) -> list[str]:
        with self._lock:
            found = self._find(path)
            if not isinstance(found, Directory):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
            return sorted(found.entries, key=os.fsencode)

    def status(self, path: str) -> FileStatus | None:
        with self._lock:
            try:
                found = self._find(path)
            except FileNotFoundError:
                return None
            if isinstance(found, Directory):
                return FileStatus("directory", 0, 0, found.mode)
            return FileStatus("file", len(found.data), found.mtime_ns, found.mode)

    def free_bytes(self, path: str) -> int:
        with self._lock:
            self._find(path)
            return self.free

    def total_bytes(self, path: str) -> int:
        with self._lock:
            self._find(path)
            return 1 << 41

    # -- inside ------------------------------------------------------------------------

    def _number(self) -> int:
        self._next += 1
        return self._next - 1

    def _note(
        self,
        kind: EventKind,
        inode: int,
        name: str = "",
        *,
        position: int = 0,
        data: bytes = b"",
        target: str = "",
        child: int = 0,
    ) -> None:
        self.trace.append(Event(kind, inode, name, position, data, target, child))

    def _plant(self, path: str, leaf: Leaf | None) -> None:
        """Put something there that stood before the trace begins."""
        directory, name = self._parent(f"{ROOT}/{path}")
        if leaf is None:
            directory.entries.setdefault(name, Directory(self._number()))
        else:
            directory.entries[name] = File(
                self._number(), bytearray(leaf.data), leaf.mode, leaf.mtime_ns
            )

    def _find(self, path: str) -> File | Directory:
        found: File | Directory = self.root
        for part in _parts(path):
            if not isinstance(found, Directory):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
            found = self._entry(found, part, path)
        return found

    def _file(self, path: str) -> File:
        found = self._find(path)
        if isinstance(found, Directory):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        return found

    def _parent(self, path: str) -> tuple[Directory, str]:
        parts = _parts(path)
        found: File | Directory = self.root
        for part in parts[:-1]:
            if not isinstance(found, Directory):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
            found = self._entry(found, part, path)
        if not isinstance(found, Directory):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        return found, parts[-1]

    @staticmethod
    def _entry(directory: Directory, name: str, path: str) -> File | Directory:
        found = directory.entries.get(name)
        if found is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return found


def replayed(tree: Tree, trace: Iterable[Event], *, clock: int = 0) -> MemoryFileSystem:
    """The file system that ``trace`` leaves, begun on ``tree``: same names, bytes and inodes.

    That is what a killed process leaves: the kernel still holds what was not synced.
    """
    system = MemoryFileSystem(tree, clock=clock)
    inodes: dict[int, File | Directory] = {}
    waiting: list[File | Directory] = [system.root]
    while waiting:
        found = waiting.pop()
        inodes[found.number] = found
        if isinstance(found, Directory):
            waiting.extend(found.entries.values())
    for event in trace:
        _replay(inodes, event, clock)
    system._next = max(inodes) + 1
    return system


def _replay(inodes: dict[int, File | Directory], event: Event, clock: int) -> None:
    if event.kind in {"fsync", "fsync_failed", "sync_directory", "mark"}:
        return
    found = inodes[event.inode]
    if isinstance(found, Directory):
        if event.kind == "create":
            inodes[event.child] = File(event.child, bytearray(), FILE_MODE, clock)
        elif event.kind == "mkdir":
            inodes[event.child] = Directory(event.child)
        if event.kind in {"rename", "unlink", "rmdir"}:
            found.entries.pop(event.name, None)
        if event.kind in {"create", "mkdir", "rename"}:
            found.entries[event.target or event.name] = inodes[event.child]
    elif event.kind == "write":
        end = event.position + len(event.data)
        found.data.extend(bytes(max(0, event.position - len(found.data))))
        found.data[event.position : end] = event.data
    elif event.kind == "truncate":
        found.data.extend(bytes(max(0, event.position - len(found.data))))
        del found.data[event.position :]
    elif event.kind == "chmod":
        found.mode = event.position
    elif event.kind == "utime":
        found.mtime_ns = event.position


class MemoryFile:
    """A handle on a file; see ``cursus.storage.durable.AppendFile``."""

    def __init__(self, system: MemoryFileSystem, path: str, file: File) -> None:
        self.path = path
        self.size = len(file.data)
        self.durable = 0
        self._system = system
        self._file = file
        self._failed = False
        self._closed = False

    def append(self, data: bytes) -> int:
        position = self.size
        try:
            self._write(position, data)
        except ShortWriteError:
            self._take_back(position)
            raise
        self.size += len(data)
        return position

    def overwrite(self, position: int, data: bytes) -> None:
        if position < 0 or position + len(data) > self.size:
            raise ValueError(f"{self.path}: {len(data)} bytes at {position} pass the end")
        self._write(position, data)

    def truncate(self, size: int) -> None:
        with self._system._lock:
            self._begin(Operation("truncate", self.path, size))
            data = self._file.data
            if size < len(data):
                del data[size:]
            else:
                data.extend(bytes(size - len(data)))
            self._file.mtime_ns = self._system.clock
            self._system._note("truncate", self._file.number, position=size)
        self.size = size
        self.durable = min(self.durable, size)

    def fsync(self) -> None:
        size = self.size
        with self._system._lock:
            try:
                self._begin(Operation("fsync", self.path))
            except WriteUnavailableError:
                raise
            except OSError:
                self._system._note("fsync_failed", self._file.number)
                raise
            self._system._note("fsync", self._file.number)
        self.durable = size

    def close(self) -> None:
        self._closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def _write(self, position: int, data: bytes) -> None:
        data = bytes(data)
        with self._system._lock:
            try:
                self._begin(Operation("write", self.path, position, data))
            except ShortWriteError as error:
                self._put(position, data[: error.written])
                raise
            self._put(position, data)

    def _put(self, position: int, data: bytes) -> None:
        there = self._file.data
        if position > len(there):
            there.extend(bytes(position - len(there)))
        there[position : position + len(data)] = data
        self._file.mtime_ns = self._system.clock
        self._system._note("write", self._file.number, position=position, data=data)

    def _take_back(self, size: int) -> None:
        with suppress(OSError), self._system._lock:
            self._system._observer(Operation("truncate", self.path, size))
            del self._file.data[size:]
            self._system._note("truncate", self._file.number, position=size)

    def _begin(self, operation: Operation) -> None:
        if self._failed:
            raise WriteUnavailableError(self.path)
        try:
            if self._closed:
                raise OSError(errno.EBADF, os.strerror(errno.EBADF), self.path)
            self._system._observer(operation)
        except BaseException:
            self._failed = True
            raise


class MemoryReader:
    """Positioned reads of a file as it is now, also after its name is gone."""

    def __init__(self, file: File) -> None:
        self._file = file

    @property
    def size(self) -> int:
        return len(self._file.data)

    def pread(self, length: int, position: int) -> bytes:
        return bytes(self._file.data[position : position + length])

    def close(self) -> None:
        """Nothing is held."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()


@lru_cache(maxsize=1 << 14)
def _parts(path: str) -> tuple[str, ...]:
    """The components of a path below :data:`ROOT`."""
    if path != ROOT and not path.startswith(f"{ROOT}/"):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    return tuple(part for part in path[len(ROOT) :].split("/") if part not in {"", "."})


def _walk(directory: Directory, prefix: str) -> Iterator[tuple[str, Leaf | None]]:
    for name in sorted(directory.entries, key=os.fsencode):
        found = directory.entries[name]
        path = f"{prefix}{name}"
        if isinstance(found, Directory):
            yield path, None
            yield from _walk(found, f"{path}/")
        else:
            yield path, Leaf(bytes(found.data), found.mode, found.mtime_ns)
