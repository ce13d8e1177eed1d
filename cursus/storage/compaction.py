"""Compaction: of the values that share a key, the closed segments keep the latest one.

    survey    every closed segment is read once: which records are superseded, and
              how many bytes of which segment are theirs
    rewrite   a segment with superseded records is copied without them, beside it
    replace   the marker, then the log, then the index are renamed into place

Survivors keep their offsets and their bytes, so a rewritten log has holes; the
marker of exactly its size, durable before the log takes its place, is the proof
that they may be there. There are no tombstones at this level: an empty payload
is a value. The latest record of each producer stays as well, for its sequence.

Source: segments.md section 13.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from cursus import layout
from cursus.formats import compaction_marker, offset_index
from cursus.formats.record import Record
from cursus.storage.durable import FILE_MODE, FileSystem, WritableFile
from cursus.storage.segment_files import IndexShape, PartitionPaths
from cursus.storage.segment_reader import Frame

#: Survivors are written in pieces of this size.
_PIECE: Final = 1 << 20

#: Frames of a closed segment, by its base.
Read = Callable[[int], Iterable[Frame]]


@dataclass(frozen=True, slots=True)
class CompactionResult:
    """What a pass did. Bytes are those of the frames in closed segments.

    ``skipped_reason``: ``""``, ``policy_disabled``, ``active_readers``,
    ``no_closed_segments``, ``no_superseded_records`` or ``dirty_ratio``.
    ``warning``: a directory that could not be synced after a rename, so that
    the old generation may come back after a crash.
    """

    skipped_reason: str = ""
    segments_scanned: int = 0
    records_scanned: int = 0
    segments_rewritten: int = 0
    records_removed: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    warning: str | None = None


@dataclass(slots=True)
class _Latest:
    """The latest record of a producer: where it stands, and its key if it is ordinary keyed."""

    offset: int
    base: int
    size: int
    key: bytes | None


@dataclass(slots=True)
class Survey:
    """What one reading of the closed segments found.

    ``size``: bytes of all frames; ``removable``: superseded bytes of each segment.
    """

    records: int = 0
    size: int = 0
    removable: dict[int, int] = field(default_factory=dict)
    _keys: dict[bytes, tuple[int, int, int]] = field(default_factory=dict)
    _producers: dict[bytes, _Latest] = field(default_factory=dict)

    def add(self, base: int, frame: Frame) -> None:
        """The next record, in the order of the log."""
        record, size = frame.record, len(frame.data)
        self.records += 1
        self.size += size
        key = record.key if is_ordinary_keyed(record) else None
        if key is not None:
            before = self._keys.get(key)
            if before is None or record.offset > before[0]:
                self._supersede(before)
                self._keys[key] = (record.offset, base, size)
            else:  # segments that overlap: the higher offset is the later one
                self._supersede((record.offset, base, size))
        if record.producer_id:
            latest = self._producers.get(record.producer_id)
            if latest is None or record.offset > latest.offset:
                self._producers[record.producer_id] = _Latest(record.offset, base, size, key)

    def _supersede(self, place: tuple[int, int, int] | None) -> None:
        if place is not None:
            self.removable[place[1]] = self.removable.get(place[1], 0) + place[2]

    def finish(self) -> None:
        """Take out what is superseded, but the latest of its producer."""
        for latest in self._producers.values():
            if latest.key is not None and self._keys[latest.key][0] != latest.offset:
                self.removable[latest.base] -= latest.size
        self.removable = {base: size for base, size in self.removable.items() if size}

    def is_removable(self, record: Record) -> bool:
        """Is there a later value of its key, and a later record of its producer?"""
        if not is_ordinary_keyed(record) or self._keys[record.key][0] == record.offset:
            return False
        if not record.producer_id:
            return True
        return self._producers[record.producer_id].offset != record.offset


def is_ordinary_keyed(record: Record) -> bool:
    """A value of a key: no part of a transaction, no control record."""
    return bool(record.key) and not (
        record.transactional_id
        or record.transaction_state
        or record.transaction_marker
        or record.control_type
        or record.control_version
        or record.control_coordinator_epoch
        or record.control_key
        or record.control_value
    )


def survey(bases: Sequence[int], read: Read) -> Survey:
    """Read all closed segments once, ascending. Raises ``ReadError``, ``OSError``."""
    found = Survey()
    for base in bases:
        for frame in read(base):
            found.add(base, frame)
    found.finish()
    return found


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A copy that is complete and durable, under its temporary names."""

    base: int
    size: int
    removed: int
    mode: int


def _temporaries(paths: PartitionPaths, base: int, size: int) -> tuple[str, str, str]:
    return (
        layout.compacting(paths.log(base)),
        layout.compacting(paths.index(base)),
        layout.compacting(paths.marker(base, size)),
    )


def rewrite(
    fs: FileSystem,
    paths: PartitionPaths,
    base: int,
    frames: Iterable[Frame],
    found: Survey,
    shape: IndexShape,
) -> Rewritten:
    """Copy the survivors of a segment beside it (steps 1 to 4)."""
    status = fs.status(paths.log(base))
    if status is None:
        raise FileNotFoundError(paths.log(base))
    remove_temporaries(fs, paths, base)
    log_path, index_path, _ = _temporaries(paths, base, 0)
    with fs.create(log_path) as log, fs.create(index_path) as index:
        removed = _copy(log, index, frames, found, shape)
        log.fsync()
        index.fsync()
        size = log.size
    fs.set_modified(log_path, status.mtime_ns)
    with fs.create(_temporaries(paths, base, size)[2]) as marker:
        marker.append(compaction_marker.encode())
        marker.fsync()
    return Rewritten(base, size, removed, status.mode)


def _copy(
    log: WritableFile,
    index: WritableFile,
    frames: Iterable[Frame],
    found: Survey,
    shape: IndexShape,
) -> int:
    """Write survivors and index entries; return how many records were left out."""
    removed = position = last = 0
    piece: list[bytes] = []
    waiting = 0
    entries: list[tuple[int, int]] = []
    for frame in frames:
        if found.is_removable(frame.record):
            removed += 1
            continue
        if position - last >= shape.step:
            entries.append((frame.record.offset, position))
            last = position
        piece.append(frame.data)
        position += len(frame.data)
        waiting += len(frame.data)
        if waiting >= _PIECE:
            log.append(b"".join(piece))
            piece, waiting = [], 0
    if piece:
        log.append(b"".join(piece))
    if entries:
        index.append(offset_index.encode(entries))
    return removed


def replace_segment(
    fs: FileSystem, paths: PartitionPaths, new: Rewritten, replaced: Callable[[], None]
) -> str | None:
    """Put a copy in the place of its segment (steps 6 to 9).

    ``replaced`` is told when the new log has taken its place. Returns the
    warning when the directory could not be synced at the end.
    """
    log, index = paths.log(new.base), paths.index(new.base)
    new_log, new_index, new_marker = _temporaries(paths, new.base, new.size)
    fs.rename(new_marker, paths.marker(new.base, new.size))
    fs.sync_directory(paths.directory)
    for path in (log, index):
        if fs.status(path) is not None:
            fs.change_mode(path, FILE_MODE)
    fs.rename(new_log, log)
    replaced()
    fs.rename(new_index, index)
    for path in (log, index):
        fs.change_mode(path, new.mode)
    try:
        fs.sync_directory(paths.directory)
    except OSError as error:
        return f"{log}: compacted, but its directory could not be synced: {error}"
    return None


def remove_temporaries(fs: FileSystem, paths: PartitionPaths, base: int) -> None:
    """Unlink what an unfinished compaction of this segment left."""
    log = layout.segment_log(paths.partition, base)
    index = layout.compacting(layout.segment_index(paths.partition, base))
    for name in fs.list_directory(paths.directory):
        if name == index or (name.startswith(log) and name.endswith(layout.compacting(""))):
            fs.unlink(paths.file(name))
