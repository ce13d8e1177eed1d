"""Truncation to an offset: the tail of a log is dropped.

The files above go from the highest down, each durably before the next one, so
that a crash leaves a shorter log and never one with a hole. For the same reason
no segment from the target up may be compacted: on the way each of them is the
active one for a moment, and an active segment may have no holes.

Source: segments.md section 15.
"""

from __future__ import annotations

from collections.abc import Callable

from cursus.storage.durable import FileSystem
from cursus.storage.partition_open import make_writable
from cursus.storage.retention import markers_of
from cursus.storage.segment_files import PartitionPaths


def drop_tail(
    fs: FileSystem,
    paths: PartitionPaths,
    above: list[int],
    target: int,
    size: int,
    removed: Callable[[int], None],
) -> None:
    """Remove the segments ``above`` (ascending) and cut the log of ``target`` to ``size``.

    ``removed`` is told each base that is gone. The target's index and markers go too.
    Raises ``OSError``; the log then is shorter than before and whole.
    """
    for base in reversed(above):
        log, index = paths.log(base), paths.index(base)
        fs.unlink(log)
        removed(base)
        if fs.status(index) is not None:
            fs.unlink(index)
        for name in markers_of(fs, paths, base):
            fs.unlink(paths.file(name))
        fs.sync_directory(paths.directory)
    index = paths.index(target)
    if fs.status(index) is not None:
        fs.unlink(index)
    # All of them are stale; one of them could match the size that the log will have.
    for name in markers_of(fs, paths, target):
        fs.unlink(paths.file(name))
    make_writable(fs, paths.log(target))
    with fs.open(paths.log(target)) as log_file:
        log_file.truncate(size)
        log_file.fsync()
    fs.sync_directory(paths.directory)
