"""What a partition's log holds, and reading it.

The list of segments and the active one change under the meta lock; a read takes
it for a moment, counts itself as a reader, and goes on with what it saw. While
there are readers no segment is removed or replaced.

Source: segments.md sections 11 and 12.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Final

from cursus import layout
from cursus.formats.record import Record
from cursus.storage.durable import FileSystem
from cursus.storage.errors import ReadError, WriteFailedError
from cursus.storage.group_commit import GroupCommit
from cursus.storage.partition_open import OpenedLog
from cursus.storage.segment_files import PartitionPaths
from cursus.storage.segment_reader import (
    Frame,
    OpenSegment,
    SegmentCache,
    SegmentView,
    frames,
    locate,
)

#: Told the offset below which everything is durable, in ascending order.
OnDurable = Callable[[int], None]

OPEN_SEGMENTS: Final = 16


class ReadablePartition:
    """The state that all share who work on an open partition, and its readers."""

    def __init__(
        self,
        fs: FileSystem,
        paths: PartitionPaths,
        opened: OpenedLog,
        on_durable: OnDurable | None,
        open_segments: int,
    ) -> None:
        self.topic = paths.topic
        self.partition = paths.partition
        self.internal = paths.topic == layout.INTERNAL_TOPIC
        self._fs = fs
        self._paths = paths
        self._bases = opened.bases
        self._gaps = opened.gaps
        self._active = opened.active
        #: Ends of what the active segment has, gathered or in the file, and of the queue.
        self._written = self._accepted = opened.next_offset
        self._commit = GroupCommit(opened.next_offset, on_durable)
        self._cache = SegmentCache(fs, paths, open_segments)
        self._meta_lock = Lock()
        self._readers = 0
        self._closed = False

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
        # In this order: a frame that is added in between is in neither of the answers.
        written = self._written
        unwritten = self._active.unwritten
        return written if unwritten is None else min(written, unwritten)

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

    def _unavailable(self, kind: type[WriteFailedError] = WriteFailedError) -> WriteFailedError:
        cause = self._commit.failure
        text = f"an earlier operation failed: {cause}" if cause else "the partition is closed"
        path = layout.topic_file(self.topic, layout.segment_log(self.partition, self._active.base))
        error = kind("partition_write_unavailable", text, path=path)
        error.__cause__ = cause
        return error
