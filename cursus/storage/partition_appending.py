"""Appending to a partition: durable at once, or queued; rolling; and what an error ends.

An append encodes under the append lock and waits for the disk without it, so that
many of them share one write and one fsync (``group_commit``); a batch is written
under the lock. Queued records have their offsets at once and are written before
anything that comes behind them. Where the disk fails, the partition takes no more writes.

Source: segments.md sections 6 to 8 and 16.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Condition, Lock
from typing import Final, NoReturn

from cursus import layout
from cursus.formats.offset_index import ENTRY_BYTES
from cursus.formats.record import FrameEncoder, Record
from cursus.storage.durable import FileSystem
from cursus.storage.errors import UnwritableError, WriteRefusedError
from cursus.storage.free_space import FreeSpaceGuard
from cursus.storage.log_settings import LogSettings
from cursus.storage.partition_open import OpenedLog
from cursus.storage.partition_reading import OnDurable, ReadablePartition
from cursus.storage.segment_files import IndexShape, PartitionPaths, create_segment

#: Nanoseconds since 1970. Injected, so that a test decides what time it is.
Clock = Callable[[], int]
#: Told that records were queued; see :mod:`cursus.storage.background`.
OnQueued = Callable[[], None]

_MS: Final = 1_000_000


def shape_of(settings: LogSettings) -> IndexShape:
    """Size and interval of the indexes."""
    return IndexShape(settings.log_index_size_bytes, settings.log_index_interval_bytes)


class WritablePartition(ReadablePartition):
    """The appending half of a partition. Threads may share it."""

    def __init__(
        self,
        fs: FileSystem,
        paths: PartitionPaths,
        opened: OpenedLog,
        settings: LogSettings,
        clock: Clock,
        on_durable: OnDurable | None,
        open_segments: int,
    ) -> None:
        super().__init__(fs, paths, opened, on_durable, open_segments)
        self.settings = settings
        self._clock = clock
        self._shape = shape_of(settings)
        topic = paths.topic.encode("utf-8", "surrogateescape")
        self._encoder = FrameEncoder(topic, paths.partition)
        self._space = FreeSpaceGuard(
            fs, paths.log_dir, clock, settings.min_free_bytes, settings.min_free_percent
        )
        self._next = opened.next_offset
        self._append_lock = Lock()
        self._room = Condition(self._append_lock)
        self._queue: deque[bytes] = deque()
        self._queued_ns = self._synced_ns = clock()
        self._background: OnQueued | None = None

    # -- durable at once -------------------------------------------------------------

    def append(self, record: Record) -> int:
        """Append one record and return its offset when it is on the disk.

        Topic, partition and offset are the log's, whatever ``record`` says.
        Raises ``FormatError``, :class:`WriteRefusedError` and
        :class:`UnwritableError` (nothing was written, no offset was used) and
        :class:`WriteFailedError` (whether the record is on the disk is not known).
        """
        with self._append_lock:
            self._must_be_writable()
            offset = self._next
            self._refuse_past_the_end(1)
            frame = self._encoder.frame(record, offset)
            self._space.grant(len(frame) + ENTRY_BYTES)
            if self._queue:
                self._drain()
            try:
                if self._active.is_full_for(len(frame), self.settings.log_segment_bytes):
                    self._roll()
                self._active.add(frame, offset)
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

    # -- queued ----------------------------------------------------------------------

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
            wake()
        return range(first, first + len(batch))

    def write_queued(self) -> int:
        """Write one batch of queued records, without an fsync; return how many are left.

        Raises :class:`UnwritableError` also where none are: records of a write that
        failed are not in the queue any more, and nowhere else.
        """
        with self._append_lock:
            self._must_be_writable()
            if self._queue:
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
            lingered = not 0 <= now - self._queued_ns < settings.linger_ms * _MS
            if self._queue and (self.has_full_batch or lingered) and self.writable:
                self._drain()
            unsynced = self._written > self._commit.durable
        # A clock that was set back must not keep anything from the disk.
        if unsynced and not 0 <= now - self._synced_ns < settings.disk_flush_interval_ms * _MS:
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

    # -- rolling -------------------------------------------------------------------------

    def roll(self) -> bool:
        """Close the active segment and begin another one; False when it is empty."""
        with self._append_lock:
            self._must_be_writable()
            self._drain()
            if self._active.is_empty or self._written > layout.MAX_OFFSET:
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

    # -- with the append lock held ---------------------------------------------------------

    def _encode(self, records: Sequence[Record]) -> list[bytes]:
        """Frames of records from the next offset on, granted by the free-space guard."""
        self._refuse_past_the_end(len(records))
        batch = self._encoder.frames(records, self._next)
        if batch:
            size = sum(map(len, batch))
            entries = size // self._shape.step + 1
            self._space.grant(size + ENTRY_BYTES * entries)
        return batch

    def _refuse_past_the_end(self, count: int) -> None:
        """The last offset stays unused: the end of the log is an offset too, and a base."""
        if self._next + count > layout.MAX_OFFSET:
            text = f"{count} records from offset {self._next} on would pass the last offset"
            raise WriteRefusedError("offset_space_exhausted", text, path=self.topic)

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
        """With the append lock held: write everything that is queued or gathered."""
        while self._queue:
            self._write_some()
        with self._failing():
            self._active.write_out()

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
            old.sync_log()
            self._commit.advance(base)
            old.index.fsync()
            new = create_segment(self._fs, self._paths, base, self._shape, self._clock())
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
        active.sync_log()
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
            raise self._unavailable(UnwritableError)
