"""The log of one partition, open for writing.

    append        ──► append lock: offset, encode, roll if due ──► the group's write
                      and fsync ──► acknowledged
    append_batch  ──► append lock: offsets, encode, roll if due, write ──► the group's
                      fsync ──► acknowledged
    enqueue       ──► append lock: offset, encode, queue ──► (later) one write for many,
                      one fsync at intervals, then ``on_durable``
    read          ──► segments from the one that holds the offset, forward

Four offsets, in this order::

    log_start <= hwm <= flushed,  hwm <= leo

``log_start`` is the base of the lowest segment. ``hwm`` is the offset below
which everything is on the disk: a consumer never sees what a crash could take
back. ``flushed`` is the end of what is written to the file. ``leo`` is the end
of what was accepted: synchronous appends when they are durable, queued ones
when they are queued.

Locks, in the order in which they are taken: maintenance (retention,
compaction, truncation, close: one at a time), append, then the right to sync
(``group_commit``) and meta (list of segments, number of readers), which only a
holder of the append lock takes together; the active segment has two of its own
below these. An append does not hold the append lock while it waits for the disk.

After any error of write, flush or fsync the log takes no writes until it is
opened again. Nothing here starts a thread or looks at a clock of its own:
:meth:`PartitionStore.service` does what is due, whoever calls it.

Source: segments.md sections 6 to 9, 11 to 17.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from threading import Lock
from typing import Final, Self

from cursus import layout
from cursus.replay.segments import PartitionLog
from cursus.storage.compaction import (
    CompactionResult,
    Rewritten,
    Survey,
    remove_temporaries,
    replace_segment,
    rewrite,
    survey,
)
from cursus.storage.durable import FileSystem
from cursus.storage.errors import RefusedError, WriteRefusedError
from cursus.storage.locks import HeldLock, StorageLockedError, TakeLock, lock_partition
from cursus.storage.log_settings import COMPACT, LogSettings, dirty_ratio
from cursus.storage.partition_appending import Clock, WritablePartition, shape_of
from cursus.storage.partition_open import (
    OpenedLog,
    apply_opening,
    make_topic_directory,
    refuse_if_damaged,
)
from cursus.storage.partition_reading import OPEN_SEGMENTS, OnDurable
from cursus.storage.retention import RetentionResult, retain
from cursus.storage.segment_files import PartitionPaths, open_segment
from cursus.storage.segment_reader import Frame
from cursus.storage.truncation import drop_tail

_DEFAULTS = LogSettings()
#: Base and size of the active segment, where all that are read are closed.
_NOBODY: Final = (-1, 0)


class _ClosingError(Exception):
    """A compaction that stops because its partition is being closed."""


class PartitionStore(WritablePartition):
    """One partition: made by :meth:`open`, ended by :meth:`close`. Threads may share it.

    Here are its opening, its maintenance and its end. What it appends and reads
    is in :mod:`cursus.storage.partition_appending` and ``partition_reading``.
    """

    def __init__(
        self,
        fs: FileSystem,
        paths: PartitionPaths,
        opened: OpenedLog,
        settings: LogSettings,
        clock: Clock,
        lock: HeldLock | None,
        on_durable: OnDurable | None,
        open_segments: int,
    ) -> None:
        super().__init__(fs, paths, opened, settings, clock, on_durable, open_segments)
        self._held = lock
        self._maintenance = Lock()
        self._closing = False

    @classmethod
    def open(
        cls,
        fs: FileSystem,
        log_dir: str,
        topic: str,
        partition: int,
        found: PartitionLog | None = None,
        *,
        settings: LogSettings = _DEFAULTS,
        clock: Clock = time.time_ns,
        lock: TakeLock | None = lock_partition,
        on_durable: OnDurable | None = None,
        names: Sequence[str] | None = None,
        sync_names: bool = True,
        open_segments: int = OPEN_SEGMENTS,
    ) -> Self:
        """Open what the plan found; ``found`` is ``None`` for a partition that is new.

        The caller holds the lock of ``log_dir`` since before the plan was made.
        ``names``: the names in the topic's directory, where the caller has them.
        ``sync_names``: False for a caller who opens many partitions of a topic and
        syncs its directory and ``log_dir`` afterwards, before anything is written.
        ``lock``: how the partition's lock is taken; ``None`` where no other
        process can be (a file system in memory).

        Raises :class:`RefusedError` (code of the finding, ``storage_locked``), with
        every file as it was, and ``OSError``.
        """
        paths = PartitionPaths(log_dir, topic, partition)
        refuse_if_damaged(paths, found)
        make_topic_directory(fs, paths)
        held = _take(lock, paths)
        try:
            opened = apply_opening(
                fs, paths, found, shape_of(settings), clock(), names, sync_names=sync_names
            )
            return cls(fs, paths, opened, settings, clock, held, on_durable, open_segments)
        except BaseException:
            if held is not None:
                held.close()
            raise

    # -- maintenance -----------------------------------------------------------------

    def apply_retention(self, *, below: int | None = None) -> RetentionResult:
        """One retention pass by the settings and the clock. See :mod:`cursus.storage.retention`.

        ``below``: segments with this base or a higher one stay, whatever their age.
        """
        with self._maintenance, self._meta_lock:
            if self._closed or self._readers:
                return RetentionResult(skipped_reason="active_readers")
            return retain(
                self._fs,
                self._paths,
                tuple(self._bases),
                self.settings,
                self._clock(),
                self._dropped,
                below=below,
            )

    def compact(self) -> CompactionResult:
        """One compaction pass. See :mod:`cursus.storage.compaction`.

        Raises :class:`ReadError` when a closed segment is damaged, and ``OSError``;
        segments that are rewritten by then are whole, the others as they were.
        """
        with self._maintenance:
            policies = {COMPACT} if self.internal else self.settings.policies
            if COMPACT not in policies or self.settings.event_sourcing:
                return CompactionResult("policy_disabled")
            with self._meta_lock:
                closed = self._bases[:-1]
                if self._readers or self._closing:
                    return CompactionResult("active_readers")
            if not closed:
                return CompactionResult("no_closed_segments")
            try:
                return self._compact(closed)
            except _ClosingError:
                return CompactionResult("active_readers")

    def _compact(self, closed: list[int]) -> CompactionResult:
        found = survey(closed, lambda base: self._unless_closing(base, _NOBODY))
        same = CompactionResult(
            segments_scanned=len(closed),
            records_scanned=found.records,
            bytes_before=found.size,
            bytes_after=found.size,
        )
        superseded = sum(found.removable.values())
        if not superseded:
            return replace(same, skipped_reason="no_superseded_records")
        if superseded / found.size < dirty_ratio(self.settings.log_min_cleanable_dirty_ratio):
            return replace(same, skipped_reason="dirty_ratio")
        result = same
        for base in sorted(found.removable):
            new = self._rewritten(base, found)
            if not new.removed:  # overlapping segments may count what is there twice
                remove_temporaries(self._fs, self._paths, base)
                continue
            with self._meta_lock:
                if self._readers:
                    remove_temporaries(self._fs, self._paths, base)
                    return replace(result, skipped_reason="active_readers")
                self._cache.forget(base)
                replaced = partial(self._gaps.add, base)
                warning = replace_segment(self._fs, self._paths, new, replaced)
            result = replace(
                result,
                segments_rewritten=result.segments_rewritten + 1,
                records_removed=result.records_removed + new.removed,
                bytes_after=result.bytes_after - found.removable[base],
                warning=warning or result.warning,
            )
        return result

    def _rewritten(self, base: int, found: Survey) -> Rewritten:
        left = self._unless_closing(base, _NOBODY)
        try:
            return rewrite(self._fs, self._paths, base, left, found, self._shape)
        except (OSError, _ClosingError):
            with suppress(OSError):  # the next opening does it, where we cannot
                remove_temporaries(self._fs, self._paths, base)
            raise

    def _unless_closing(self, base: int, active: tuple[int, int]) -> Iterator[Frame]:
        """Frames of a whole segment; a broker that stops does not wait for a compaction."""
        for frame in self._frames(base, active, base):
            if self._closing:
                raise _ClosingError
            yield frame

    def truncate(self, offset: int) -> bool:
        """Drop every record from ``offset`` on; False when there is none.

        A checkpoint of the high watermark above ``offset`` is the caller's to
        lower, before. Raises :class:`WriteRefusedError` (``truncate_beyond_log_end``,
        ``truncate_before_log_start``, ``truncate_compacted_segment``,
        ``active_readers``) with everything as it was, and :class:`WriteFailedError`.
        """
        with self._maintenance, self._append_lock:
            self._must_be_writable()
            self._drain()
            if offset > self._next:
                text = f"offset {offset} is behind the log end {self._next}"
                raise WriteRefusedError("truncate_beyond_log_end", text)
            if offset == self._next:
                return False
            if offset < self._bases[0]:
                text = f"offset {offset} is before the log start {self._bases[0]}"
                raise WriteRefusedError("truncate_before_log_start", text)
            with self._meta_lock:
                if self._readers:
                    raise WriteRefusedError("active_readers")
                self._truncate(offset)
            return True

    def _truncate(self, offset: int) -> None:
        at = bisect_right(self._bases, offset) - 1
        target, above = self._bases[at], self._bases[at + 1 :]
        for base in (target, *above):
            if base in self._gaps:
                raise WriteRefusedError(
                    "truncate_compacted_segment",
                    f"the segment at base {base} is compacted",
                    path=layout.topic_file(self.topic, layout.segment_log(self.partition, base)),
                )
        size = self._end_before(target, offset)
        with self._commit.exclusive(), self._failing():
            self._active.sync_log()
            self._active.index.fsync()
            self._active.close()
            self._cache.close()
            drop_tail(self._fs, self._paths, above, target, size, self._dropped)
            self._active = open_segment(self._fs, self._paths, target, self._shape)
            self._fs.sync_directory(self._paths.directory)
            self._next = self._written = self._accepted = offset
            self._commit.reset(offset)

    def _end_before(self, base: int, offset: int) -> int:
        """Bytes of the records below ``offset`` in a segment."""
        size = 0
        for frame in self._frames(base, (self._active.base, self._active.size), base):
            if frame.record.offset >= offset:
                break
            size = frame.position + len(frame.data)
        return size

    def _dropped(self, base: int) -> None:
        """With the meta lock held: this segment is not part of the log any more."""
        self._bases.remove(base)
        self._gaps.discard(base)
        self._cache.forget(base)

    # -- the end ---------------------------------------------------------------------

    def end_maintenance(self) -> None:
        """Begin no compaction any more; one that runs stops, with every segment whole."""
        self._closing = True

    def close(self) -> None:
        """Make everything durable and let go of files and lock. Closing twice is allowed.

        Raises :class:`WriteFailedError` when the last fsync fails; everything is
        closed all the same.
        """
        self._closing = True
        with self._maintenance, self._append_lock:
            if self._closed:
                return
            try:
                if self._commit.failure is None:
                    self._drain()
            finally:
                self._let_go()

    def _let_go(self) -> None:
        self._closed = True
        try:
            with self._commit.exclusive():
                if self._commit.failure is None:
                    self._finish()
        finally:
            self._active.close()
            self._cache.close()
            if self._held is not None:
                self._held.close()

    def _finish(self) -> None:
        with self._failing():
            if self._written > self._commit.durable:
                self._active.sync_log()
                self._commit.advance(self._written)
            self._active.sync_index()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()


def _take(lock: TakeLock | None, paths: PartitionPaths) -> HeldLock | None:
    if lock is None:
        return None
    try:
        return lock(paths.log_dir, paths.topic, paths.partition)
    except StorageLockedError as error:
        raise RefusedError("storage_locked", str(error), path=error.path) from None
