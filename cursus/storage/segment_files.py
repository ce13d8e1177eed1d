"""The files of one partition, and the segment that grows.

A closed segment is only read. The active one is a log and an index: frames go
to the end of the log, and before a record that lies one interval behind the
last entry, an entry goes into the index, whose file has its full size from the
start and is filled from the front.

Source: segments.md sections 2, 5 to 7.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from threading import Lock
from typing import Final

from cursus import layout
from cursus.formats import offset_index
from cursus.storage.durable import FileSystem, WritableFile, WriteUnavailableError

#: An index is read in pieces of this size: most have few entries and many zeros.
_INDEX_PIECE: Final = 64 << 10


@dataclass(frozen=True, slots=True)
class PartitionPaths:
    """Where the files of one partition lie."""

    log_dir: str
    topic: str
    partition: int

    @property
    def directory(self) -> str:
        """The topic's directory."""
        return os.path.join(self.log_dir, self.topic)

    def file(self, name: str) -> str:
        """A file of the topic's directory."""
        return os.path.join(self.directory, name)

    def log(self, base: int) -> str:
        """The log of a segment."""
        return self.file(layout.segment_log(self.partition, base))

    def index(self, base: int) -> str:
        """The index of a segment."""
        return self.file(layout.segment_index(self.partition, base))

    def marker(self, base: int, size: int) -> str:
        """The compaction marker of a segment whose log has ``size`` bytes."""
        name = layout.segment_log(self.partition, base)
        return self.file(layout.compaction_marker(name, size))


@dataclass(frozen=True, slots=True)
class IndexShape:
    """Size of an index and distance of its entries, in bytes."""

    size: int
    interval: int

    @property
    def step(self) -> int:
        """The interval; 0 or less means 4096."""
        return self.interval if self.interval > 0 else offset_index.DEFAULT_INTERVAL


class ActiveSegment:
    """The segment that takes appends.

    Single frames are gathered (:meth:`add`) and written by whoever makes them durable,
    for all that wait in one write; between two writes of a file a thread that has to
    wait costs more than the write. :meth:`add`, :meth:`write_batch` and what asks whether
    it is full are guarded by the append lock of the partition, the rest of it is not.

    ``index_used``: bytes of entries. ``created_ns``: where its age counts from.
    ``unwritten``: offset of the first frame that is not in the file, ``None`` where all are.
    Every method raises ``OSError``.
    """

    def __init__(
        self,
        base: int,
        log: WritableFile,
        index: WritableFile,
        shape: IndexShape,
        *,
        created_ns: int,
        index_used: int = 0,
        last_entry: tuple[int, int] = (0, 0),
    ) -> None:
        self.base = base
        self.log = log
        self.index = index
        self.created_ns = created_ns
        self.index_used = index_used
        self.index_dirty = False
        self._last_offset, self._last_indexed = last_entry
        self._shape = shape
        self._end = log.size
        self._gathered: list[bytes] = []
        self._first_gathered = 0
        self.unwritten: int | None = None
        self._gathering = Lock()
        self._writing = Lock()
        self._broken = False

    @property
    def size(self) -> int:
        """Bytes of the log, as far as they are written."""
        return self.log.size

    @property
    def is_empty(self) -> bool:
        """Has it no frame, neither written nor gathered?"""
        return not self._end

    def is_full_for(self, frame: int, limit: int) -> bool:
        """Must it roll before a single frame of ``frame`` bytes?"""
        if not self._end:
            return False
        if self._end + frame > limit:
            return True
        due = self._end - self._last_indexed >= self._shape.step
        return due and self.index_used + offset_index.ENTRY_BYTES > self._shape.size

    def is_full_for_batch(self, frames: int, limit: int) -> bool:
        """Must it roll before a batch whose frames have ``frames`` bytes together?"""
        if not self._end:
            return False
        if self._end + frames > limit:
            return True
        entries = frames // self._shape.step + 1
        return self.index_used + offset_index.ENTRY_BYTES * entries > self._shape.size

    def add(self, frame: bytes, offset: int) -> None:
        """One frame behind the others; :meth:`write_out` writes it."""
        with self._gathering:
            if not self._gathered:
                self._first_gathered = offset
            if self.unwritten is None:
                self.unwritten = offset
            self._gathered.append(frame)
            self._end += len(frame)

    def write_out(self) -> None:
        """Write what was gathered, in one write, and the index entries that are due."""
        with self._writing:
            self._begin()
            with self._gathering:
                frames, self._gathered = self._gathered, []
                first = self._first_gathered
            if frames:
                self._write(frames, first)
                with self._gathering:
                    self.unwritten = self._first_gathered if self._gathered else None
            self._broken = False

    def write_batch(self, frames: list[bytes], offset: int) -> None:
        """Frames of consecutive offsets from ``offset`` on, in one write, behind the others."""
        self.write_out()
        with self._writing:
            self._begin()
            self._write(frames, offset)
            self._end = self.log.size
            self._broken = False

    def _begin(self) -> None:
        """Until it is over, whatever ends a write may leave a hole: nothing may come behind it."""
        if self._broken:
            raise WriteUnavailableError(self.log.path)
        self._broken = True

    def _write(self, frames: list[bytes], offset: int) -> None:
        position = self.log.append(b"".join(frames))
        self._index(frames, offset, position)

    def _index(self, frames: list[bytes], offset: int, position: int) -> None:
        """Entries for frames that stand from ``position`` on, where they are due."""
        due = self._last_indexed + self._shape.step
        if len(frames) == 1:  # as nearly always when a single caller waits
            if position >= due:
                self._write_entries([(offset, position)])
            return
        entries = []
        for frame in frames:
            if position >= due:
                entries.append((offset, position))
                due = position + self._shape.step
            position += len(frame)
            offset += 1
        if entries:
            self._write_entries(entries)

    def _write_entries(self, entries: list[tuple[int, int]]) -> None:
        """Entries that do not fit are left out: a reader scans, the next append rolls.

        So are those that would not ascend. A crash may tear the last entry into
        one that ascends and names a record that was cut; its offset comes again.
        """
        if entries[0][0] <= self._last_offset:
            entries = [entry for entry in entries if entry[0] > self._last_offset]
        room = (self._shape.size - self.index_used) // offset_index.ENTRY_BYTES
        if room < len(entries):
            entries = entries[: max(room, 0)]
        if entries:
            data = offset_index.encode(entries)
            self.index.overwrite(self.index_used, data)
            self.index_used += len(data)
            self.index_dirty = True
            self._last_offset, self._last_indexed = entries[-1]

    def sync_log(self) -> None:
        """Everything that was added or written before is durable when this returns."""
        self.write_out()
        self.log.fsync()

    def sync_index(self) -> None:
        """Make the entries durable, if there are new ones."""
        if self.index_dirty:
            self.index_dirty = False
            self.index.fsync()

    def close(self) -> None:
        """Close both files without an fsync."""
        try:
            self.log.close()
        finally:
            self.index.close()


def create_segment(
    fs: FileSystem, paths: PartitionPaths, base: int, shape: IndexShape, now_ns: int
) -> ActiveSegment:
    """A new empty segment. Its names are durable when the directory is synced, by the caller."""
    log = fs.create(paths.log(base))
    try:
        index = _empty_index(fs, paths.index(base), shape)
    except BaseException:
        log.close()
        raise
    return ActiveSegment(base, log, index, shape, created_ns=now_ns)


def open_segment(
    fs: FileSystem,
    paths: PartitionPaths,
    base: int,
    shape: IndexShape,
    *,
    index_in_order: bool = False,
) -> ActiveSegment:
    """The active segment as its log leaves it; its index is brought in order.

    ``index_in_order``: somebody has looked, and there are zeros behind its entries.
    """
    path = paths.log(base)
    status = fs.status(path)
    log = fs.open(path)
    try:
        index, used, last_entry = _open_index(
            fs, paths.index(base), log.size, shape, in_order=index_in_order
        )
    except BaseException:
        log.close()
        raise
    return ActiveSegment(
        base,
        log,
        index,
        shape,
        created_ns=status.mtime_ns if status else 0,
        index_used=used,
        last_entry=last_entry,
    )


def _empty_index(fs: FileSystem, path: str, shape: IndexShape) -> WritableFile:
    """A zero-filled index. One without its log may stand there: a crash left it."""
    if fs.status(path) is None:
        index = fs.create(path)
    else:
        index = fs.open(path)
        index.truncate(0)
    index.truncate(shape.size)
    return index


def _open_index(
    fs: FileSystem, path: str, log_bytes: int, shape: IndexShape, *, in_order: bool
) -> tuple[WritableFile, int, tuple[int, int]]:
    """The index, the bytes of its valid entries, and the last one of them."""
    if fs.status(path) is None:
        return _empty_index(fs, path, shape), 0, (0, 0)
    used, last = _valid_entries(fs, path, log_bytes, shape)
    index = fs.open(path)
    try:
        if index.size > used and not (in_order and index.size == shape.size):
            index.truncate(used)
        if index.size != shape.size:
            index.truncate(shape.size)
    except BaseException:
        index.close()
        raise
    return index, used, last


def _valid_entries(
    fs: FileSystem, path: str, log_bytes: int, shape: IndexShape
) -> tuple[int, tuple[int, int]]:
    """Bytes of the valid prefix (rules 1 to 3 of segments.md section 5), and its last entry."""
    with fs.open_read(path) as file:
        whole = min(file.size, shape.size)
        whole -= whole % offset_index.ENTRY_BYTES
        pieces, at = [], 0
        while at < whole:
            piece = file.pread(min(_INDEX_PIECE, whole - at), at)
            pieces.append(piece)
            at += len(piece)
            if not piece.strip(b"\0"):
                break  # zeros end the list; so does a file that has become shorter
    prefix = offset_index.valid_prefix(b"".join(pieces))
    positions = prefix.positions
    count = len(positions)
    while count and positions[count - 1] >= log_bytes:
        count -= 1
    last = (prefix.offsets[count - 1], positions[count - 1]) if count else (0, 0)
    return count * offset_index.ENTRY_BYTES, last
