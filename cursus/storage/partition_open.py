"""Opening a partition: what the plan decided, done step by step.

The judgement (``cursus.replay.segments``) has read every segment and decided
what stands. Nothing is decided again here, but nothing is believed blindly
either: the names and the size of the active log must be those that were judged,
and whatever refuses there refuses here, before anything is changed.

Source: segments.md sections 8 (2), 9 and 10; README.md decisions 5 and 22.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from cursus import layout
from cursus.layout import FileKind, Name
from cursus.replay.segments import MAX_INDEX_BYTES, PartitionLog
from cursus.storage.durable import FILE_MODE, FileSystem
from cursus.storage.errors import RefusedError
from cursus.storage.segment_files import (
    ActiveSegment,
    IndexShape,
    PartitionPaths,
    create_segment,
    open_segment,
)

_DELETED: Final = frozenset({FileKind.DELETED_LOG, FileKind.DELETED_INDEX})
_REMOVED: Final = _DELETED | {FileKind.COMPACTION_TEMP, FileKind.COMPACTION_MARKER}
#: What the judgement says of an index whose bytes an opening has to change.
_OUT_OF_ORDER: Final = {
    "index_entry_not_increasing",
    "index_entry_beyond_log",
    "index_stray_entry",
    "index_size_unaligned",
}


@dataclass(slots=True)
class OpenedLog:
    """What is open. ``gaps``: bases of closed segments whose marker allows holes."""

    bases: list[int]
    gaps: set[int]
    active: ActiveSegment
    next_offset: int


@dataclass(slots=True)
class _Names:
    """Names of one partition in its topic's directory."""

    logs: list[int]
    deleted: list[str]
    temporaries: list[str]
    markers: list[tuple[str, Name]]


def make_topic_directory(fs: FileSystem, paths: PartitionPaths) -> None:
    """The topic's directory; its name is synced when the partition has been opened."""
    if fs.status(paths.directory) is None:
        fs.make_directory(paths.directory)


def refuse_if_damaged(paths: PartitionPaths, found: PartitionLog | None) -> None:
    """Raise :class:`RefusedError` with the first finding that refuses."""
    if found is None:
        return
    for item in found.findings:
        if item.effect in {"refuses", "unknown"}:
            raise RefusedError(
                item.code, item.message, path=item.path, position=item.position, **item.detail
            )
    active = found.active
    if found.internal and found.cut is not None:
        raise RefusedError("internal_metadata_tail_truncated", path=found.cut[0])
    if active is not None and active.end not in {"clean", "torn"}:
        # An unfinished frame of a directory in use: whoever opens it holds the lock himself.
        raise _changed(active.segment.path, "the end of the active segment was not judged")


def apply_opening(
    fs: FileSystem,
    paths: PartitionPaths,
    found: PartitionLog | None,
    shape: IndexShape,
    now_ns: int,
    names: Sequence[str] | None = None,
    *,
    sync_names: bool = True,
) -> OpenedLog:
    """Steps 3 to 11 of segments.md section 9.

    ``names``: what stands in the topic's directory, for callers who open many
    partitions of it. Raises :class:`RefusedError`, and ``OSError``.
    """
    refuse_if_damaged(paths, found)
    here = _names(fs, paths, fs.list_directory(paths.directory) if names is None else names)
    judged = [scan.segment.base for scan in found.segments] if found else []
    if here.logs != judged:
        raise _changed(paths.topic, "other segments stand there than were judged")
    if paths.topic == layout.INTERNAL_TOPIC and here.deleted:
        raise RefusedError("internal_deleted_segment", path=here.deleted[0])
    if found is not None and found.active is not None:
        size = found.active.segment.size
        status = fs.status(paths.log(judged[-1]))
        if status is None or status.type != "file" or status.size != size:
            raise _changed(found.active.segment.path, "the active log changed since it was judged")
    _remove(fs, paths, here.deleted)
    _remove(fs, paths, here.temporaries)
    _remove(fs, paths, _stale_markers(fs, paths, here))
    if found is None or not judged:
        active = create_segment(fs, paths, 0, shape, now_ns)
        bases, next_offset = [0], 0
    else:
        active = _recover(fs, paths, found, shape)
        bases, next_offset = judged, found.next_offset
    try:
        # After a process was killed its last writes may be in memory only: what is
        # read back as recovered must not be able to go away once more.
        active.log.fsync()
        if sync_names:
            fs.sync_directory(paths.directory)
            fs.sync_directory(paths.log_dir)
    except BaseException:
        active.close()
        raise
    gaps = {s.segment.base for s in found.segments if s.segment.gaps_allowed} if found else set()
    return OpenedLog(bases, gaps, active, next_offset)


def _names(fs: FileSystem, paths: PartitionPaths, names: Sequence[str]) -> _Names:
    prefix = layout.segment_prefix(paths.partition)
    found = _Names([], [], [], [])
    for text in names:
        if not text.startswith(prefix):
            continue
        name = layout.classify((paths.topic, text), directory=False)
        if name.kind is FileKind.SEGMENT_LOG:
            found.logs.append(name.base or 0)
        elif name.kind in _REMOVED and _is_directory(fs, paths.file(text)):
            # No broker makes one under such a name, so none removes it.
            if paths.topic == layout.INTERNAL_TOPIC and name.kind in _DELETED:
                found.deleted.append(text)
        elif name.kind in _DELETED:
            found.deleted.append(text)
        elif name.kind is FileKind.COMPACTION_TEMP:
            found.temporaries.append(text)
        elif name.kind is FileKind.COMPACTION_MARKER:
            found.markers.append((text, name))
        elif name.kind is FileKind.NONCANONICAL_LOG:
            path = layout.topic_file(paths.topic, text)
            raise RefusedError("segment_name_not_canonical", path=path)
    found.logs.sort()
    return found


def _is_directory(fs: FileSystem, path: str) -> bool:
    status = fs.status(path)
    return status is not None and status.type == "directory"


def _stale_markers(fs: FileSystem, paths: PartitionPaths, names: _Names) -> list[str]:
    """Markers whose log is absent or has another size."""
    sizes: dict[int, int | None] = {}
    stale = []
    for text, name in names.markers:
        base = name.base
        if base is None:
            stale.append(text)
            continue
        if base not in sizes:
            status = fs.status(paths.log(base))
            sizes[base] = status.size if status is not None else None
        if sizes[base] != name.number:
            stale.append(text)
    return stale


def _remove(fs: FileSystem, paths: PartitionPaths, names: Sequence[str]) -> None:
    """Unlink files of the topic's directory and make that durable."""
    for name in names:
        fs.unlink(paths.file(name))
    if names:
        fs.sync_directory(paths.directory)


def _recover(
    fs: FileSystem, paths: PartitionPaths, found: PartitionLog, shape: IndexShape
) -> ActiveSegment:
    assert found.active is not None
    base = found.active.segment.base
    index = layout.topic_file(paths.topic, layout.segment_index(paths.partition, base))
    make_writable(fs, paths.log(base))
    make_writable(fs, paths.index(base))
    if found.cut is not None:
        with fs.open(paths.log(base)) as log:
            log.truncate(found.cut[1])
            log.fsync()
        fs.sync_directory(paths.directory)
    in_order = shape.size <= MAX_INDEX_BYTES and not any(
        item.code in _OUT_OF_ORDER and item.path == index for item in found.findings
    )
    return open_segment(fs, paths, base, shape, index_in_order=in_order)


def make_writable(fs: FileSystem, path: str) -> None:
    """A retention pass takes the right to write from closed segments; give it back."""
    status = fs.status(path)
    if status is not None and not status.mode & 0o200:
        fs.change_mode(path, FILE_MODE)


def _changed(path: str, message: str) -> RefusedError:
    return RefusedError("file_changed_while_reading", message, path=path.replace(os.sep, "/"))
