"""The one door for evidence: walk a log directory and read it without touching it.

Directories are opened component by component from the log directory with
``openat`` and ``O_NOFOLLOW``; nothing is followed, created, locked, renamed or
touched. A file is looked at (``lstat``, by the walk) before it is opened, opened
without blocking, and looked at again (``fstat``) afterwards: a pipe never hangs
the walk, and a file that was exchanged in between is a finding. ``O_NOATIME`` is
used where the kernel permits it.

Source: README.md decisions 15 and 24; journal.md section 8.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from types import TracebackType
from typing import Final, Self

from cursus import layout
from cursus.evidence.segment_scan import DEFAULT, scan_segment
from cursus.evidence.small_segments import SmallSegments
from cursus.evidence.window import OnBytes, OnHole
from cursus.findings import Effect, Finding, Step, finding
from cursus.formats.offset_index import Prefix
from cursus.layout import FileClass, FileKind, Name
from cursus.replay.interfaces import (
    Entry,
    EntryType,
    RecordBatch,
    SegmentRef,
    SegmentScan,
    UnreadableError,
)

_PATH: Final = attrgetter("path")
#: Unknown directories are listed down to this depth; nothing of a broker stands deeper than 3.
MAX_DEPTH: Final = 16
_DIRECTORY_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_NOATIME: Final = getattr(os, "O_NOATIME", 0)
#: Inode of the first PID namespace (linux/proc_ns.h); elsewhere foreign locks are not listed.
_INITIAL_PID_NAMESPACE: Final = 0xEFFFFFFC
_PROC_LOCKS: Final = "/proc/locks"
_PROC_PID_NAMESPACE: Final = "/proc/self/ns/pid"

#: Findings of one code about entries; after that one more says how many there were.
MAX_FINDINGS: Final = 1000
_NOT_PERMITTED: Final = {errno.EACCES, errno.EPERM}
#: A start never reads these, so it does not matter that they cannot be read.
_NOT_READ: Final = {FileClass.FOREIGN, FileClass.LOCK, FileClass.TEMPORARY}
#: The step that needs an entry; 2 for everything else, 3 inside ``__consumer_offsets``.
_STEPS: Final[dict[FileKind, Step]] = {
    FileKind.TOPIC_MANIFEST: 1,
    FileKind.JOURNAL: 4,
    FileKind.JOURNAL_MANIFEST: 4,
    FileKind.HWM: 5,
    FileKind.PRODUCERS: 5,
    FileKind.AGGREGATE_DIRECTORY: 5,
    FileKind.AGGREGATE_INDEX: 5,
    FileKind.AGGREGATE_KEYS: 5,
    FileKind.AGGREGATE_SNAPSHOTS: 5,
}
#: What a broker at work replaces as a whole, by something that says the same or more. The
#: newer file is as good as the one that was listed; logs, indexes and the manifest are not here.
_REPLACED_AT_WORK: Final = {FileKind.HWM, FileKind.PRODUCERS, FileKind.JOURNAL}
#: Kinds whose mere presence is worth a word: code and message.
_TOLD: Final[dict[FileKind, tuple[str, str]]] = {
    FileKind.TOPIC_MANIFEST_TEMP: ("stale_temporary_file", "a save of the manifest was cut off"),
    FileKind.JOURNAL_COMPACTION_TEMP: (
        "stale_temporary_file",
        "a compaction of the journal was cut off",
    ),
    FileKind.HWM_TEMP: ("stale_temporary_file", "a write of the checkpoint was cut off"),
    FileKind.PRODUCERS_TEMP: ("stale_temporary_file", "a write of the checkpoint was cut off"),
    FileKind.LIFECYCLE_EPOCH_TEMP: (
        "stale_temporary_file",
        "a write of the lifecycle marker was cut off",
    ),
    FileKind.MIGRATION_AUTHORITY: (
        "obsolete_migration_file",
        "the migration authority of the August builds; nothing reads it any more",
    ),
    FileKind.MANIFEST_MIGRATION_TEMP: (
        "older_storage",
        "a temporary file of a removed tool that created manifests",
    ),
    FileKind.COMPACTED_RANGE: ("newer_storage", "a file of later distributed builds"),
    FileKind.RAFT_DIRECTORY: (
        "distributed_internal_metadata",
        "the state of a distributed broker: __consumer_offsets is not authoritative here",
    ),
}


class LogDirectoryError(Exception):
    """The log directory itself cannot be examined.

    ``code``: ``log_dir_blank``, ``log_dir_unreadable`` or
    ``log_dir_not_real_directory`` (manifest.md section 3.2).
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class EvidenceFile:
    """An open regular file; positioned reads only. ``size`` is that of the moment it was opened."""

    __slots__ = ("_fd", "size")

    def __init__(self, fd: int, size: int) -> None:
        self._fd = fd
        self.size = size

    def pread(self, length: int, position: int) -> bytes:
        """At most ``length`` bytes at ``position``; fewer only at the end of the file."""
        return os.pread(self._fd, length, position)

    def stat(self) -> os.stat_result:
        """What the kernel says of the open file now."""
        return os.fstat(self._fd)

    def pread_into(self, buffer: memoryview, position: int) -> int:
        """As :meth:`pread`, into memory of the caller; how many bytes were read."""
        return os.preadv(self._fd, [buffer], position)

    def data_from(self, position: int) -> int:
        """The first byte at or behind ``position`` that stands in no hole.

        A hole reads as zeros and costs no disk: a file may have terabytes of it.
        ``size`` when nothing else follows; ``position`` where nothing is known.
        """
        try:
            return min(os.lseek(self._fd, position, os.SEEK_DATA), self.size)
        except OSError as error:
            # ENXIO: only a hole follows, or the file has become shorter.
            whole = error.errno == errno.ENXIO and self.stat().st_size >= self.size
            return self.size if whole else position

    def close(self) -> None:
        """Close the descriptor; a second call does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> EvidenceFile:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _leads_down(path: str) -> bool:
    """Can it be a path below the log directory? That of an entry of the walk is one."""
    return "\0" not in path and all(part not in {"", ".", ".."} for part in path.split("/"))


def _entry_type(mode: int) -> EntryType:
    if stat.S_ISREG(mode):
        return "file"
    if stat.S_ISDIR(mode):
        return "directory"
    if stat.S_ISLNK(mode):
        return "symlink"
    if stat.S_ISFIFO(mode):
        return "fifo"
    if stat.S_ISSOCK(mode):
        return "socket"
    return "device"


def _open(name: str, flags: int, dir_fd: int | None) -> int:
    """``openat`` that leaves the access time alone where the kernel permits it."""
    try:
        return os.open(name, flags | _NOATIME, dir_fd=dir_fd)
    except PermissionError as error:
        if error.errno != errno.EPERM:
            raise
    # O_NOATIME is for the owner of the file only.
    return os.open(name, flags, dir_fd=dir_fd)


def unreadable(path: str, error: OSError, kind: FileKind | None = None) -> Finding:
    """``file_unreadable`` with the effect of decision 24, at the step that needs the entry."""
    parts = tuple(path.split("/"))
    if kind is None or (kind is FileKind.UNKNOWN and len(parts) == 1):
        kind = layout.classify(parts, directory=True).kind
    needed = layout.file_class(kind)
    effect: Effect = "refuses"
    if kind is not FileKind.RAFT_DIRECTORY and needed in _NOT_READ:
        effect = "ignores"
    elif error.errno in _NOT_PERMITTED:
        effect = "unknown"
    elif needed in {FileClass.DERIVED, FileClass.CLIENT_DATA}:
        effect = "recovers"
    return finding(
        "file_unreadable",
        path,
        message=f"cannot be read: {error.strerror or error}",
        effect=effect,
        severity="error" if effect in {"refuses", "unknown"} else "info",
        step=3 if parts[0] == layout.INTERNAL_TOPIC and len(parts) > 1 else _STEPS.get(kind, 2),
        errno=errno.errorcode.get(error.errno or 0, str(error.errno)),
    )


def _changed(path: str, what: str) -> UnreadableError:
    message = f"was {what} while the directory was being read"
    return UnreadableError(message, finding("file_changed_while_reading", path, message=message))


class _EntryFindings:
    """What the names alone say: leftovers, other builds, names that nobody knows."""

    def __init__(self) -> None:
        self.items: list[Finding] = []
        self._counts: dict[str, int] = {}

    def add(self, code: str, path: str, message: str) -> None:
        count = self._counts[code] = self._counts.get(code, 0) + 1
        if count <= MAX_FINDINGS:
            self.items.append(finding(code, path, message=message))

    def look(self, entry: Entry, parent: FileKind | None) -> None:
        told = _TOLD.get(entry.kind)
        if told is not None:
            self.add(told[0], entry.path, told[1])
        elif entry.kind is FileKind.UNKNOWN and parent is not FileKind.UNKNOWN:
            if entry.type == "symlink" and layout.is_topic_name(entry.path):
                return  # where a topic may stand: a matter of the manifest and the directories
            what = "name" if entry.type == "file" else entry.type
            self.add("unknown_file", entry.path, f"a {what} that no broker writes here")

    def close(self) -> list[Finding]:
        for code, count in self._counts.items():
            if count > MAX_FINDINGS:
                more = f"{count - MAX_FINDINGS} more of these"
                self.items.append(finding(code, "", message=more, repeated=count - MAX_FINDINGS))
        return self.items


def entry_at(
    path: str,
    name: Name,
    *,
    type: EntryType,
    size: int,
    mtime_ns: int,
    ctime_ns: int,
    mode: int,
    dev: int = 0,
    ino: int = 0,
) -> Entry:
    """The entry at ``path``: what its ``name`` says, and what stands there."""
    return Entry(
        path=path,
        kind=name.kind,
        type=type,
        size=size,
        mtime_ns=mtime_ns,
        ctime_ns=ctime_ns,
        mode=mode,
        dev=dev,
        ino=ino,
        topic=name.topic,
        partition=name.partition,
        base=name.base,
        number=name.number,
    )


def _in_byte_order(entries: Iterable[Entry]) -> list[Entry]:
    """By the bytes of their paths."""
    found = list(entries)
    # Names of ASCII are in the order of their bytes as they are.
    if all(map(str.isascii, map(_PATH, found))):
        found.sort(key=_PATH)
    else:
        found.sort(key=lambda entry: os.fsencode(entry.path))
    return found


def told_by_names(by_path: Mapping[str, Entry], in_use: bool | None) -> list[Finding]:
    """What the names of the entries alone say, in the order of ``by_path``."""
    told = _EntryFindings()
    if in_use:
        told.add("storage_in_use", layout.LOG_DIR_LOCK, "a broker holds this lock")
    for path, entry in by_path.items():
        if entry.kind is FileKind.UNKNOWN or entry.kind in _TOLD:
            parent = by_path.get(path.rpartition("/")[0])
            told.look(entry, parent.kind if parent else None)
    return told.close()


class LogDirectory:
    """A log directory as evidence (fits ``cursus.replay.interfaces.Evidence``)."""

    def __init__(self, log_dir: str, fd: int, *, walk: bool = True, held: bool = False) -> None:
        self.log_dir = log_dir
        self._fd = fd
        self._by_path: dict[str, Entry] = {}
        self._children: dict[str, list[Entry]] = {"": []}
        self._findings: list[Finding] = []
        self._open_directory: tuple[str, int] | None = None
        self._held = held
        self._small = SmallSegments(DEFAULT.plain_below)
        self.in_use: bool | None = None
        self.entries: Sequence[Entry] = ()
        if walk:
            self._take_stock()

    def _take_stock(self) -> None:
        """Everything that a whole walk says."""
        self._walk()
        self.entries = _in_byte_order(self._by_path.values())
        for path, children in self._children.items():
            self._children[path] = _in_byte_order(children)
        self.in_use = False if self._held else self._look_for_lock()
        self._findings.extend(
            told_by_names({entry.path: entry for entry in self.entries}, self.in_use)
        )

    @classmethod
    def at(cls, log_dir: str, *, walk: bool = True, held: bool = False) -> Self:
        """Open and walk ``log_dir``. Raises :class:`LogDirectoryError`.

        Without ``walk`` nothing is listed: the door alone, for whoever knows
        what stands behind it and only wants to read files by their paths.
        ``held``: the caller holds the lock of the directory himself, so nobody
        else is using it.
        """
        if not log_dir.strip():
            raise LogDirectoryError("log_dir_blank", "the log directory is not given")
        path = log_dir
        try:
            path = layout.absolute(log_dir)
            found = os.lstat(path)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise LogDirectoryError("log_dir_unreadable", f"{path}: {reason}") from None
        if not stat.S_ISDIR(found.st_mode):
            what = "a symbolic link" if stat.S_ISLNK(found.st_mode) else "not a directory"
            raise LogDirectoryError("log_dir_not_real_directory", f"{path} is {what}")
        try:
            fd = _open(path, _DIRECTORY_FLAGS, None)
        except OSError as error:
            raise LogDirectoryError(
                "log_dir_unreadable", f"{path}: {error.strerror or error}"
            ) from None
        try:
            if walk:
                os.listdir(fd)
            return cls(path, fd, walk=walk, held=held)
        except OSError as error:
            os.close(fd)
            raise LogDirectoryError(
                "log_dir_unreadable", f"{path}: {error.strerror or error}"
            ) from None
        except BaseException:
            os.close(fd)
            raise

    def close(self) -> None:
        """Close the descriptors of the walk; a second call does nothing."""
        self._drop_directory()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def know(self, entries: Iterable[Entry]) -> None:
        """Take over entries of another walk, so that a file that was exchanged since shows."""
        self._by_path.update((entry.path, entry) for entry in entries)

    def release(self) -> None:
        """Close the directory that was kept open: the next path is followed from the top."""
        self._drop_directory()

    def stands_at(self, log_dir: str) -> bool:
        """Is the directory that is open still the one that stands at ``log_dir``?"""
        try:
            found, own = os.lstat(log_dir), os.fstat(self._fd)
        except (OSError, ValueError):
            return False
        return (found.st_dev, found.st_ino) == (own.st_dev, own.st_ino)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # -- walking ---------------------------------------------------------------

    def _walk(self) -> None:
        waiting: list[tuple[str, ...]] = [()]
        while waiting:
            parts = waiting.pop()
            path = "/".join(parts)
            try:
                fd = self._directory_at(path)
            except OSError as error:
                self._findings.append(unreadable(path, error, self._kind_of(path)))
                continue
            try:
                names = os.listdir(fd)
            except OSError as error:
                self._findings.append(unreadable(path, error, self._kind_of(path)))
                continue
            self._children.setdefault(path, [])
            before = f"{path}/" if path else ""
            for name in names:
                entry = self._look(fd, before + name, (*parts, name))
                if entry is None:
                    continue
                self._by_path[entry.path] = entry
                self._children[path].append(entry)
                if entry.type == "directory":
                    if len(parts) + 1 < MAX_DEPTH:
                        waiting.append((*parts, name))
                    else:
                        self._findings.append(
                            finding(
                                "unknown_file",
                                entry.path,
                                message=f"directory at depth {MAX_DEPTH}; not examined further",
                            )
                        )
        self._drop_directory()

    def _look(self, directory: int, path: str, parts: tuple[str, ...]) -> Entry | None:
        try:
            found = os.lstat(parts[-1], dir_fd=directory)
        except FileNotFoundError:
            return None  # removed between listing and looking: it was not there
        except OSError as error:
            self._findings.append(unreadable(path, error))
            return None
        kind = _entry_type(found.st_mode)
        name = layout.classify(parts, directory=kind == "directory")
        return Entry(
            path=path,
            kind=name.kind,
            type=kind,
            size=found.st_size,
            mtime_ns=found.st_mtime_ns,
            ctime_ns=found.st_ctime_ns,
            mode=stat.S_IMODE(found.st_mode),
            dev=found.st_dev,
            ino=found.st_ino,
            topic=name.topic,
            partition=name.partition,
            base=name.base,
            number=name.number,
        )

    def _kind_of(self, path: str) -> FileKind | None:
        entry = self._by_path.get(path)
        return entry.kind if entry else None

    def _directory_at(self, path: str) -> int:
        """Descriptor of a directory below the log directory, opened step by step.

        The last one is kept, since files are read directory by directory.
        """
        if not path:
            return self._fd
        if self._open_directory is not None and self._open_directory[0] == path:
            return self._open_directory[1]
        fd = self._fd
        for part in path.split("/"):
            try:
                inner = _open(part, _DIRECTORY_FLAGS, fd)
            finally:
                if fd != self._fd:
                    os.close(fd)
            fd = inner
        self._drop_directory()
        self._open_directory = (path, fd)
        return fd

    def _drop_directory(self) -> None:
        if self._open_directory is not None:
            os.close(self._open_directory[1])
            self._open_directory = None

    # -- reading ---------------------------------------------------------------

    @property
    def walk_findings(self) -> Sequence[Finding]:
        """What could not be looked at, and what the names alone say."""
        return tuple(self._findings)

    def get(self, path: str) -> Entry | None:
        """The entry of this path, as the walk saw it."""
        return self._by_path.get(path)

    def children(self, directory: str) -> Sequence[Entry]:
        """Entries directly below ``directory``, sorted by name bytes; none if not listed."""
        return self._children.get(directory, [])

    def listed(self, directory: str) -> bool:
        """Could this directory be listed?"""
        return directory in self._children

    def open(self, path: str) -> EvidenceFile:
        """Open a regular file of the walk for positioned reads.

        Raises :class:`UnreadableError` when it is gone, not regular, exchanged
        since the walk, or not readable, and for a path that leads elsewhere.
        """
        entry = self._by_path.get(path)
        kind = entry.kind if entry else None
        above, _, name = path.rpartition("/")
        try:
            if entry is None and not _leads_down(path):
                raise OSError(errno.EINVAL, "not a path below the log directory")
            directory = self._directory_at(above)
            if entry is None or entry.type != "file":
                # What the walk saw as a file has been looked at.
                found = os.lstat(name, dir_fd=directory)
                if not stat.S_ISREG(found.st_mode):
                    raise OSError(errno.EINVAL, "not a regular file")
            fd = _open(name, _FILE_FLAGS, directory)
        except FileNotFoundError as error:
            if entry is not None and self.in_use is not False:
                raise _changed(path, "removed") from None
            raise UnreadableError(str(error), unreadable(path, error, kind)) from None
        except OSError as error:
            raise UnreadableError(str(error), unreadable(path, error, kind)) from None
        after = os.fstat(fd)
        if entry is not None and entry.type == "file":
            seen, at_work = (entry.dev, entry.ino), self._replaced_at_work(kind)
        else:
            seen, at_work = (found.st_dev, found.st_ino), False
        same = (after.st_dev, after.st_ino) == seen or at_work
        # Numbers of inodes are used again: what has this one now may be a pipe.
        if not same or not stat.S_ISREG(after.st_mode):
            os.close(fd)
            raise _changed(path, "replaced by another file")
        return EvidenceFile(fd, after.st_size)

    def _replaced_at_work(self, kind: FileKind | None) -> bool:
        return self.in_use is not False and kind in _REPLACED_AT_WORK

    def read(self, path: str, limit: int) -> bytes:
        """At most ``limit`` + 1 bytes from the start of a regular file.

        Raises :class:`UnreadableError`.
        """
        with self.open(path) as source:
            parts: list[bytes] = []
            position = 0
            want = min(limit + 1, source.size)
            try:
                while position < want:
                    data = source.pread(min(want - position, 1 << 20), position)
                    if not data:
                        break
                    parts.append(data)
                    position += len(data)
            except OSError as error:
                raise UnreadableError(
                    str(error), unreadable(path, error, self._kind_of(path))
                ) from None
        return b"".join(parts)

    def expect(self, segments: Iterable[Entry]) -> None:
        """These segments of one topic are scanned next, in this order.

        A hint that changes no answer: small ones are then read many at a time.
        """
        self._small.expect(segments)

    def scan(
        self,
        segment: SegmentRef,
        visit: Callable[[RecordBatch], None] | None = None,
        index: Prefix | None = None,
        *,
        on_bytes: OnBytes | None = None,
        on_hole: OnHole | None = None,
        after: SegmentScan | None = None,
    ) -> SegmentScan:
        """Scan one segment; a file that cannot be opened gives ``end`` = ``unreadable``.

        ``index``, ``on_bytes``, ``on_hole``, ``after``:
        see :func:`cursus.evidence.segment_scan.scan_segment`.
        """
        if on_bytes is None and after is None:
            good = self._small.scan(self.open, segment, visit, index)
            if good is not None:
                return good
        try:
            source = self.open(segment.path)
        except UnreadableError as error:
            return SegmentScan(
                segment=segment,
                end="unreadable",
                end_position=0,
                first_offset=None,
                last_offset=None,
                record_count=0,
                expected_next=segment.base,
                findings=(replace(error.finding, step=3 if segment.internal else 2),),
            )
        with source:
            return scan_segment(
                source,
                segment,
                visit,
                index,
                on_bytes=on_bytes,
                on_hole=on_hole,
                after=after,
            )

    # -- is a broker using it? -------------------------------------------------

    def _look_for_lock(self) -> bool | None:
        """Decision 15: is the lock file in the kernel's list of locks?

        Not knowing is an answer: without ``/proc/locks``, in a PID namespace
        of our own (foreign locks are not listed there), and where a lock on
        the same inode number stands under another device (some file systems
        show another device number to ``stat`` than to the list).
        """
        entry = self._by_path.get(layout.LOG_DIR_LOCK)
        if entry is None:
            return False
        if entry.type != "file":
            return None if entry.type == "symlink" else False
        device = f"{os.major(entry.dev):02x}:{os.minor(entry.dev):02x}"
        try:
            with open(_PROC_LOCKS, encoding="ascii", errors="replace") as locks:
                lines = locks.read().splitlines()
            namespace = os.stat(_PROC_PID_NAMESPACE).st_ino
        except OSError:
            return None
        doubtful = namespace != _INITIAL_PID_NAMESPACE
        for line in lines:
            # "1: FLOCK  ADVISORY  WRITE 1234 08:01:5678 0 EOF"; a waiter has "->" in front.
            if "->" in line:
                continue
            fields = line.split()
            if len(fields) < 6 or fields[1] != "FLOCK":
                continue
            held_device, _, inode = fields[5].rpartition(":")
            if inode != str(entry.ino):
                continue
            if held_device == device:
                return True
            doubtful = True
        return None if doubtful else False
