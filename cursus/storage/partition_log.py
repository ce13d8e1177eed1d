"""The log of one partition, open for writing.

    append        ──► append lock: offset, encode, roll if due, write ──► wait for the
                      group's fsync ──► acknowledged
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
holder of the append lock takes together. An append does not hold the append
lock while it waits for the disk.

After any error of write, flush or fsync the log takes no writes until it is
opened again. Nothing here starts a thread or looks at a clock of its own:
:meth:`PartitionStore.service` does what is due, whoever calls it.

Source: segments.md sections 6 to 9, 11 to 17.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from threading import Condition, Lock
from typing import Final, NoReturn, Self

from cursus import layout
from cursus.formats.offset_index import ENTRY_BYTES
from cursus.formats.record import FrameEncoder, Record
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
from cursus.storage.errors import ReadError, RefusedError, WriteFailedError, WriteRefusedError
from cursus.storage.free_space import FreeSpaceGuard
from cursus.storage.group_commit import GroupCommit
from cursus.storage.locks import HeldLock, StorageLockedError, TakeLock, lock_partition
from cursus.storage.log_settings import COMPACT, LogSettings, dirty_ratio
from cursus.storage.partition_open import (
    OpenedLog,
    apply_opening,
    make_topic_directory,
    refuse_if_damaged,
)
from cursus.storage.retention import RetentionResult, retain
from cursus.storage.segment_files import (
    IndexShape,
    PartitionPaths,
    create_segment,
    open_segment,
)
from cursus.storage.segment_reader import (
    Frame,
    OpenSegment,
    SegmentCache,
    SegmentView,
    frames,
    locate,
)
from cursus.storage.truncation import drop_tail

#: Nanoseconds since 1970. Injected, so that a test decides what time it is.
Clock = Callable[[], int]
#: Told the offset below which everything is durable, in ascending order.
OnDurable = Callable[[int], None]
#: Told that records were queued; see :mod:`cursus.storage.background`.
OnQueued = Callable[["PartitionStore"], None]

_DEFAULTS = LogSettings()
_OPEN_SEGMENTS: Final = 16
_MS: Final = 1_000_000
#: Base and size of the active segment, where all that are read are closed.
_NOBODY: Final = (-1, 0)


class _ClosingError(Exception):
    """A compaction that stops because its partition is being closed."""


class PartitionStore:
    """One partition: made by :meth:`open`, ended by :meth:`close`. Threads may share it."""

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
        self.topic = paths.topic
        self.partition = paths.partition
        self.internal = paths.topic == layout.INTERNAL_TOPIC
        self.settings = settings
        self._fs = fs
        self._paths = paths
        self._clock = clock
        self._held = lock
        self._encoder = FrameEncoder(
            paths.topic.encode("utf-8", "surrogateescape"), paths.partition
        )
        self._bases = opened.bases
        self._gaps = opened.gaps
        self._active = opened.active
        self._next = opened.next_offset
        self._written = opened.next_offset
        self._accepted = opened.next_offset
        self._commit = GroupCommit(opened.next_offset, on_durable)
        self._cache = SegmentCache(fs, paths, open_segments)
        self._space = FreeSpaceGuard(
            fs, paths.log_dir, clock, settings.min_free_bytes, settings.min_free_percent
        )
        self._maintenance = Lock()
        self._append_lock = Lock()
        self._room = Condition(self._append_lock)
        self._queue: deque[bytes] = deque()
        self._queued_ns = self._synced_ns = clock()
        self._background: OnQueued | None = None
        self._meta_lock = Lock()
        self._readers = 0
        self._closing = self._closed = False

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
        open_segments: int = _OPEN_SEGMENTS,
    ) -> Self:
        """Open what the plan found; ``found`` is ``None`` for a partition that is new.

        The caller holds the lock of ``log_dir`` since before the plan was made.
        ``names``: the names in the topic's directory, where the caller has them.
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
            shape = _shape(settings)
            opened = apply_opening(fs, paths, found, shape, clock(), names)
            return cls(fs, paths, opened, settings, clock, held, on_durable, open_segments)
        except BaseException:
            if held is not None:
                held.close()
            raise

    # -- offsets ---------------------------------------------------------------------

    @property
    def log_start(self) -> int:
        """Base of the lowest segment."""
        return self._bases[0]

    @property
    def leo(self) -> int:
        """Log end offset: behind the last record that was accepted."""
        return max(self._commit.durable, self._accepted)

    @property
    def flushed(self) -> int:
        """Behind the last record that is written to the file."""
        return self._written

    @property
    def hwm(self) -> int:
        """High watermark: everything below it is on the disk."""
        return self._commit.durable

    @property
    def segments(self) -> tuple[int, ...]:
        """Bases, ascending; the last one is active."""
        return tuple(self._bases)

    @property
    def active_bytes(self) -> int:
        """Bytes of the active log."""
        return self._active.size

    @property
    def writable(self) -> bool:
        """False after an error of write, flush or fsync, and after closing."""
        return self._commit.failure is None and not self._closed

    # -- appending -------------------------------------------------------------------

    def append(self, record: Record) -> int:
        """Append one record and return its offset when it is on the disk.

        Topic, partition and offset are the log's, whatever ``record`` says.
        Raises ``FormatError`` and :class:`WriteRefusedError` (nothing was
        written, no offset was used) and :class:`WriteFailedError` (whether the
        record is on the disk is not known).
        """
        with self._append_lock:
            self._must_be_writable()
            offset = self._next
            frame = self._encoder.frame(record, offset)
            self._space.grant(len(frame) + ENTRY_BYTES)
            if self._queue:
                self._drain()
            try:
                if self._active.is_full_for(len(frame), self.settings.log_segment_bytes):
                    self._roll()
                self._active.write(frame, offset)
            except BaseException as error:
                self._break(error)
            self._next = self._written = offset + 1
        self.wait(offset + 1)
        return offset

    def append_batch(self, records: Sequence[Record]) -> range:
        """Append records with consecutive offsets, in one write of one segment.

        Returns their offsets when all of them are on the disk. Raises as
        :meth:`append` does, for all of them or none.
        """
        offsets = self.write(records)
        if offsets:
            self.wait(offsets.stop)
        return offsets

    def write(self, records: Sequence[Record]) -> range:
        """The first half of :meth:`append_batch`: written, promised to nobody yet.

        For callers with a lock of their own: they write inside it, and :meth:`wait`
        outside, so that many of them share one fsync.
        """
        with self._append_lock:
            self._must_be_writable()
            first = self._next
            batch = self._encode(records)
            if not batch:
                return range(first, first)
            if self._queue:
                self._drain()
            self._write_batch(batch)
            self._next = self._written
            return range(first, self._next)

    def wait(self, end: int) -> None:
        """Return when every record below ``end`` is on the disk.

        Raises :class:`WriteFailedError` when an fsync fails, ours or another's.
        """
        if not self._commit.wait(end, self._sync):
            raise self._unavailable()

    def enqueue(self, records: Sequence[Record]) -> range:
        """Accept records with consecutive offsets; they are written and synced later.

        Nothing is promised until ``on_durable`` was called with their end (or
        ``hwm`` has reached it). A full queue is waited for, ``disk_write_timeout_ms``
        at most, where something empties it in the background, and written here
        otherwise. Raises as :meth:`append_batch` does, and :class:`WriteRefusedError`
        ``append_queue_full``.
        """
        with self._append_lock:
            self._must_be_writable()
            self._make_room(len(records))
            first = self._next
            batch = self._encode(records)
            if not self._queue:
                self._queued_ns = self._clock()
            self._queue.extend(batch)
            self._next = self._accepted = first + len(batch)
            ready, wake = len(self._queue), self._background
        if wake is not None and ready:
            wake(self)
        return range(first, first + len(batch))

    def write_queued(self) -> int:
        """Write one batch of queued records, without an fsync; return how many are left."""
        with self._append_lock:
            if self._queue:
                self._must_be_writable()
                self._write_some()
            return len(self._queue)

    def flush(self) -> None:
        """Return when everything that was accepted is on the disk, index included."""
        with self._append_lock:
            self._must_be_writable()
            self._drain()
            end = self._written
            self._synced_ns = self._clock()
        self.wait(end)
        with self._append_lock, self._failing(), self._commit.exclusive():
            self._active.sync_index()

    def service(self) -> None:
        """Do what is due by the clock: write what is queued, sync what is written, roll.

        Raises as :meth:`flush` does.
        """
        settings, now = self.settings, self._clock()
        with self._append_lock:
            lingered = now - self._queued_ns >= settings.linger_ms * _MS
            if self._queue and (self.has_full_batch or lingered) and self.writable:
                self._drain()
            unsynced = self._written > self._commit.durable
        if unsynced and now - self._synced_ns >= settings.disk_flush_interval_ms * _MS:
            self.flush()
        self.tick()

    def attach(self, on_queued: OnQueued | None) -> None:
        """Somebody empties the queue in the background and wants to be told of work."""
        self._background = on_queued

    @property
    def has_full_batch(self) -> bool:
        """Is there enough in the queue for a write?"""
        return len(self._queue) >= self.settings.disk_flush_batch_size

    @property
    def has_work(self) -> bool:
        """Is something queued, or written and not yet synced?"""
        return self.writable and (bool(self._queue) or self._written > self._commit.durable)

    def roll(self) -> bool:
        """Close the active segment and begin another one; False when it is empty."""
        with self._append_lock:
            self._must_be_writable()
            self._drain()
            if not self._active.size:
                return False
            with self._failing():
                self._roll()
            return True

    def tick(self) -> bool:
        """The roll timer: roll when the active segment has reached its age."""
        period = self.settings.log_segment_roll_ms * _MS
        if period <= 0 or self._clock() - self._active.created_ns < period or not self.writable:
            return False
        return self.roll()

    def _encode(self, records: Sequence[Record]) -> list[bytes]:
        """Frames of records from the next offset on, granted by the free-space guard."""
        batch = self._encoder.frames(records, self._next)
        if batch:
            size = sum(map(len, batch))
            entries = size // _shape(self.settings).step + 1
            self._space.grant(size + ENTRY_BYTES * entries)
        return batch

    def _make_room(self, count: int) -> None:
        limit, deadline = self.settings.channel_buffer_size, None
        while self._queue and len(self._queue) + count > limit:
            if self._background is None:
                self._write_some()
                continue
            now = time.monotonic()
            deadline = deadline or now + self.settings.disk_write_timeout_ms / 1000
            if now >= deadline:
                text = f"{len(self._queue)} records wait to be written; the limit is {limit}"
                raise WriteRefusedError("append_queue_full", text)
            self._room.wait(deadline - now)
            self._must_be_writable()

    def _drain(self) -> None:
        """With the append lock held: write everything that is queued."""
        while self._queue:
            self._write_some()

    def _write_some(self) -> None:
        """One batch of the queue, one write."""
        count = min(len(self._queue), max(self.settings.disk_flush_batch_size, 1))
        self._write_batch([self._queue.popleft() for _ in range(count)])
        self._room.notify_all()

    def _write_batch(self, batch: list[bytes]) -> None:
        """Frames whose offsets follow on what is written."""
        first, size = self._written, sum(map(len, batch))
        with self._failing():
            if self._active.is_full_for_batch(size, self.settings.log_segment_bytes):
                self._roll()
            self._active.write_batch(batch, first)
        self._written = first + len(batch)

    def _roll(self) -> None:
        """With the append lock held: everything written is durable, then a new segment."""
        base = self._written
        with self._commit.exclusive():
            old = self._active
            old.log.fsync()
            self._commit.advance(base)
            old.index.fsync()
            new = create_segment(self._fs, self._paths, base, _shape(self.settings), self._clock())
            try:
                self._fs.sync_directory(self._paths.directory)
            except BaseException:
                new.close()
                raise
            with self._meta_lock:
                self._active = new
                self._bases.append(base)
            old.close()

    def _sync(self) -> int:
        """With the right to sync: fsync what is written, give its end."""
        active, end = self._active, self._written
        active.log.fsync()
        if self.internal:
            active.sync_index()
        return end

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """An error inside the block ends all writing."""
        try:
            yield
        except BaseException as error:
            self._break(error)

    def _break(self, error: BaseException) -> NoReturn:
        """Take no more writes; raise what the caller has to know."""
        self._commit.fail(error)
        if isinstance(error, OSError):
            raise self._unavailable() from error
        raise error

    def _must_be_writable(self) -> None:
        if self._commit.failure is not None or self._closed:
            raise self._unavailable()

    def _unavailable(self) -> WriteFailedError:
        cause = self._commit.failure
        text = f"an earlier operation failed: {cause}" if cause else "the partition is closed"
        path = layout.topic_file(self.topic, layout.segment_log(self.partition, self._active.base))
        error = WriteFailedError("partition_write_unavailable", text, path=path)
        error.__cause__ = cause
        return error

    # -- reading ---------------------------------------------------------------------

    def read(
        self,
        offset: int,
        *,
        max_records: int = 1 << 30,
        max_bytes: int = 1 << 20,
        end: int | None = None,
    ) -> list[Record]:
        """Records from ``offset`` on, below ``end`` (the high watermark if not given).

        At most ``max_records``, and at most ``max_bytes`` of frames, but one
        record at least where there is one. Where compaction left holes, the
        records behind them follow. Raises :class:`ReadError`: ``offset_out_of_range``
        with ``requested``, ``earliest`` and ``latest``, or the code of the damage
        that the read met.
        """
        limit = self.hwm if end is None else min(end, self.flushed)
        found: list[Record] = []
        room, at = max_bytes, offset
        with self._reading() as (bases, active):
            if not bases[0] <= offset <= self.leo:
                raise ReadError(
                    "offset_out_of_range",
                    f"offset {offset} is not between {bases[0]} and {self.leo}",
                    requested=offset,
                    earliest=bases[0],
                    latest=self.leo,
                )
            for base in bases[bisect_right(bases, offset) - 1 :]:
                if base >= limit or len(found) >= max_records or room <= 0:
                    break
                for frame in self._frames(base, active, at):
                    record = frame.record
                    if record.offset < at:
                        continue  # before what was asked for, or an overlap of segments
                    if record.offset >= limit or len(found) >= max_records:
                        return found
                    room -= len(frame.data)
                    if room < 0 and found:
                        return found
                    found.append(record)
                    at = record.offset + 1
        return found

    def records(self, offset: int | None = None, *, end: int | None = None) -> Iterator[Record]:
        """Every record from ``offset`` (``log_start``) to ``end``, read in pages of 1 MiB."""
        limit = self.hwm if end is None else min(end, self.flushed)
        at = self.log_start if offset is None else offset
        while at < limit:
            page = self.read(at, end=limit)
            if not page:
                return
            yield from page
            at = page[-1].offset + 1

    def _frames(self, base: int, active: tuple[int, int], offset: int) -> Iterator[Frame]:
        segment = self._cache.acquire(base)
        try:
            view = self._view(segment, active)
            if view.size:
                yield from frames(segment, view, locate(segment, view, offset))
        finally:
            self._cache.release(segment)

    def _view(self, segment: OpenSegment, active: tuple[int, int]) -> SegmentView:
        base, size = active
        if segment.base == base:
            return SegmentView(base, size, False, True)
        return SegmentView(segment.base, segment.log.size, segment.base in self._gaps, False)

    @contextmanager
    def _reading(self) -> Iterator[tuple[list[int], tuple[int, int]]]:
        """Bases, and base and size of the active log; nothing is removed inside the block."""
        with self._meta_lock:
            if self._closed:
                raise self._unavailable()
            self._readers += 1
            found = list(self._bases), (self._active.base, self._active.size)
        try:
            yield found
        finally:
            with self._meta_lock:
                self._readers -= 1

    # -- maintenance -----------------------------------------------------------------

    def apply_retention(self) -> RetentionResult:
        """One retention pass by the settings and the clock. See :mod:`cursus.storage.retention`."""
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
                # What is unfinished stands under temporary names; the next opening removes it.
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
            return rewrite(self._fs, self._paths, base, left, found, _shape(self.settings))
        except OSError:
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
            self._active.log.fsync()
            self._active.index.fsync()
            self._active.close()
            self._cache.close()
            drop_tail(self._fs, self._paths, above, target, size, self._dropped)
            self._active = open_segment(self._fs, self._paths, target, _shape(self.settings))
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
                self._active.log.fsync()
                self._commit.advance(self._written)
            self._active.sync_index()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()


def _shape(settings: LogSettings) -> IndexShape:
    return IndexShape(settings.log_index_size_bytes, settings.log_index_interval_bytes)


def _take(lock: TakeLock | None, paths: PartitionPaths) -> HeldLock | None:
    if lock is None:
        return None
    try:
        return lock(paths.log_dir, paths.topic, paths.partition)
    except StorageLockedError as error:
        raise RefusedError("storage_locked", str(error), path=error.path) from None
