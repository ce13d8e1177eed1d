"""Retention: closed segments that are too old, or too many, leave the log from its start.

A segment is out of the log the moment its log is renamed to ``.deleted``; what
follows only frees space, and the next opening does it if we do not get there.
Segments go from the lowest up and the pass stops at the first one that stays,
so that unordered modification times cannot punch a hole.

The compaction marker goes after the rename is durable, not before: a compacted
log that came back without its marker could not be read any more.

Source: segments.md sections 2 and 12.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from cursus import layout
from cursus.layout import FileKind
from cursus.storage.durable import FILE_MODE, FileSystem
from cursus.storage.log_settings import DELETE, LogSettings
from cursus.storage.segment_files import PartitionPaths

_HOUR_NS: Final = 3600 * 1_000_000_000
#: Mode of a closed segment; 0444 is that of older builds and stays.
CLOSED_MODE: Final = 0o400
_OLDER_CLOSED_MODE: Final = 0o444


@dataclass(frozen=True, slots=True)
class RetentionResult:
    """``removed``: bases of the segments that left the log.

    ``skipped_reason``: ``""``, ``policy_disabled``, ``active_readers``,
    ``no_closed_segments`` or ``checkpoint_not_written``. ``failure``: the error
    that ended the pass early; what had been removed by then is out of the log, its
    space perhaps not free.
    """

    removed: tuple[int, ...] = ()
    skipped_reason: str = ""
    failure: OSError | None = None


def retain(
    fs: FileSystem,
    paths: PartitionPaths,
    bases: Sequence[int],
    settings: LogSettings,
    now_ns: int,
    removed: Callable[[int], None],
    *,
    below: int | None = None,
) -> RetentionResult:
    """One pass over ``bases`` (ascending, the last one is active).

    ``removed`` is told each base as soon as it is out of the log. ``below``: the
    first base that stays in any case.
    """
    if DELETE not in settings.policies or paths.topic == layout.INTERNAL_TOPIC:
        return RetentionResult(skipped_reason="policy_disabled")
    if len(bases) < 2:
        return RetentionResult(skipped_reason="no_closed_segments")
    gone: list[int] = []

    def tell(base: int) -> None:
        gone.append(base)
        removed(base)

    try:
        total = sum(_size(fs, paths.log(base)) for base in bases)
        for base in bases[:-1]:
            _close_mode(fs, paths, base)
            status = fs.status(paths.log(base))
            size = status.size if status is not None else 0
            age_ns = now_ns - status.mtime_ns if status is not None else 0
            stays = below is not None and base >= below
            if stays or not _has_to_go(settings, age_ns, total):
                # The others only lose the right to be written.
                for other in bases[bases.index(base) + 1 : -1]:
                    _close_mode(fs, paths, other)
                break
            remove_segment(fs, paths, base, tell)
            total -= size
    except OSError as error:
        return RetentionResult(tuple(gone), failure=error)
    return RetentionResult(tuple(gone))


def _has_to_go(settings: LogSettings, age_ns: int, total: int) -> bool:
    hours, limit = settings.log_retention_hours, settings.log_retention_bytes
    return (hours > 0 and age_ns > hours * _HOUR_NS) or (limit > 0 and total > limit)


def remove_segment(
    fs: FileSystem, paths: PartitionPaths, base: int, removed: Callable[[int], None]
) -> None:
    """Take one segment out of the log, then free its space. Raises ``OSError``."""
    log, index = paths.log(base), paths.index(base)
    for path in (log, index):
        if fs.status(path) is not None:
            fs.change_mode(path, FILE_MODE)
    moved = fs.status(index) is not None
    if moved:
        fs.rename(index, layout.deleted(index))
    try:
        fs.rename(log, layout.deleted(log))
    except OSError:
        if moved:
            fs.rename(layout.deleted(index), index)
        raise
    removed(base)
    fs.sync_directory(paths.directory)
    for name in markers_of(fs, paths, base):
        fs.unlink(paths.file(name))
    if moved:
        fs.unlink(layout.deleted(index))
    fs.unlink(layout.deleted(log))
    fs.sync_directory(paths.directory)


def markers_of(fs: FileSystem, paths: PartitionPaths, base: int) -> list[str]:
    """Names of the compaction markers of one segment, of whatever generation."""
    prefix = layout.segment_log(paths.partition, base)
    return [
        name
        for name in fs.list_directory(paths.directory)
        if name.startswith(prefix)
        and layout.classify((paths.topic, name), directory=False).kind is FileKind.COMPACTION_MARKER
    ]


def _close_mode(fs: FileSystem, paths: PartitionPaths, base: int) -> None:
    status = fs.status(paths.log(base))
    if status is None or status.mode in {CLOSED_MODE, _OLDER_CLOSED_MODE}:
        return
    for path in (paths.log(base), paths.index(base)):
        if fs.status(path) is not None:
            fs.change_mode(path, CLOSED_MODE)


def _size(fs: FileSystem, path: str) -> int:
    status = fs.status(path)
    return status.size if status is not None else 0
