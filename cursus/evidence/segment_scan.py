"""Scan one segment by columns: tens of thousands of records in one operation.

The file passes once, from its start to its end, through a buffer that is read
into again and again. In each window the frames are found (``frame_walk``), their
fields decoded (``record_columns``), and what a scan checks is checked on whole
arrays: lengths, ranges, trailing bytes, topic and partition, offsets.

What is not good to the last byte is left to the plain scan (``plain_scan``),
which goes on from the first frame in doubt. So every code, position and message
about damage comes from one place, and what the columns deliver is what the plain
scan would have delivered, in larger batches.

Source: segments.md sections 10, 11, 18; design, principles 6 and 9.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from cursus.evidence.frame_walk import LANES, Walked, walk
from cursus.evidence.plain_scan import KEPT_TOPIC, Scan, Visit, VisitError
from cursus.evidence.window import FrameWindow, OnBytes, OnHole, ScanBuffer
from cursus.formats.offset_index import Prefix
from cursus.formats.record import MAX_RECORD_BYTES, MIN_RECORD_BYTES
from cursus.formats.record_columns import Int64s, Mask, RecordColumns, UInt64s, decode_frames
from cursus.replay.batches import ColumnBatch
from cursus.replay.interfaces import ByteSource, SegmentRef, SegmentScan


@dataclass(frozen=True, slots=True)
class Tuning:
    """Sizes that decide how fast a scan is, and nothing else.

    ``window``: bytes read at a time (or one record, when that is larger).
    ``records``: most records of one batch. ``lanes``: chains of frames that are
    followed at once. ``plain_below``: files smaller than this are read plainly,
    since arrays of a few records cost more than they save.
    """

    window: int = 4 << 20
    records: int = 32_768
    lanes: int = LANES
    plain_below: int = 32 << 10


DEFAULT: Final = Tuning()

Rows = NDArray[np.intp]
NO_ROWS: Final[Rows] = np.empty(0, np.intp)
_JUMP: Final = "record_offset_not_contiguous"


def scan_segment(
    source: ByteSource,
    ref: SegmentRef,
    visit: Visit | None = None,
    index: Prefix | None = None,
    *,
    on_bytes: OnBytes | None = None,
    on_hole: OnHole | None = None,
    tuning: Tuning = DEFAULT,
    after: SegmentScan | None = None,
) -> SegmentScan:
    """Scan ``ref`` from byte 0 and hand its records to ``visit`` in batches.

    ``ref.size`` bytes are read, not more: what is appended meanwhile belongs to
    another look. Never raises for what stands in the file; a file that shrinks
    ends in ``file_changed_while_reading``, one that fails to read in
    ``file_unreadable`` (both with ``end`` = ``unreadable``).

    ``index``: the sparse index beside the segment; it helps to find the frames and
    is compared with them. ``on_bytes`` is called with (position, bytes) for all
    bytes of the file that can be read, in order, each byte once, also those behind
    damage; the bytes are valid during the call only. ``on_hole`` is
    called in its place for holes behind damage, which are not read then.

    ``after``: a scan of this file when it was shorter, which found nothing wrong
    before its ``end_position``. This one begins there, and says what a scan of the
    whole file would say; whoever passes it answers for the bytes before, and for
    the entries of the index that point to them.
    """
    return _ColumnScan(source, ref, visit, index, on_bytes, on_hole, tuning, after).run()


class _ColumnScan(Scan):
    def __init__(
        self,
        source: ByteSource,
        ref: SegmentRef,
        visit: Visit | None,
        index: Prefix | None,
        on_bytes: OnBytes | None,
        on_hole: OnHole | None,
        tuning: Tuning,
        after: SegmentScan | None,
    ) -> None:
        super().__init__(source, ref, visit, index, after)
        self.on_bytes = on_bytes
        self.on_hole = on_hole
        self.tuning = tuning
        self.frame_bytes = 0  # of the last window, about

    def run(self) -> SegmentScan:
        if self.ref.size < self.tuning.plain_below and self.on_bytes is None:
            return super().run()
        self.frames = FrameWindow(
            self.source,
            self.ref.size,
            ScanBuffer(),
            self.tuning.window,
            self._take_bytes if self.on_bytes is not None else None,
            start=self.position,
        )
        try:
            found = super().run()
            if self.on_bytes is not None:
                try:
                    self.frames.drain(self.on_hole)
                except VisitError as error:
                    raise error.error from None
            return found
        finally:
            del self.frames  # it calls back here: a cycle that would keep its memory

    def _take_bytes(self, position: int, part: memoryview) -> None:
        assert self.on_bytes is not None
        try:
            self.on_bytes(position, part)
        except OSError as error:
            raise VisitError(error) from None

    def walk(self) -> None:
        """Take good frames by columns as far as they go, and what is left plainly."""
        if self.ref.size >= self.tuning.plain_below:
            self._by_columns()
        if self.position < self.ref.size:
            super().walk()

    def _by_columns(self) -> None:
        frames = self.frames
        used = need = 0
        while frames.advance(used, need):
            walked = self._walk_window()
            taken = self._take_window(walked)
            if taken < walked.stop or walked.invalid or frames.at_end:
                return
            used, need = walked.stop, 4
            left = frames.filled - used
            if left >= 4:
                length = int.from_bytes(frames.buffer.raw[used : used + 4], "big")
                if not MIN_RECORD_BYTES <= length <= MAX_RECORD_BYTES:
                    return
                need = 4 + length
                if frames.start + used + need > self.ref.size:
                    return

    def _walk_window(self) -> Walked:
        frames = self.frames
        guesses: Int64s | None = None
        if self.index is not None:
            start, end = frames.start, frames.start + frames.filled - 4 - MIN_RECORD_BYTES
            guesses = self.index.between(start + 1, end) - start
        return walk(
            frames.buffer.raw,
            frames.buffer.data,
            frames.filled,
            needle=self.needle,
            guesses=guesses,
            frame_bytes=self.frame_bytes,
            lanes=self.tuning.lanes,
        )

    def _take_window(self, walked: Walked) -> int:
        """Decode the frames and deliver them; returns where in the buffer the good ones end."""
        starts = walked.starts
        if not len(starts):
            return walked.stop
        self.frame_bytes = walked.stop // len(starts)
        lengths = np.append(starts[1:], walked.stop) - starts
        for begin in range(0, len(starts), self.tuning.records):
            part = slice(begin, begin + self.tuning.records)
            start, length = starts[part], lengths[part]
            data = self.frames.buffer.data
            columns, alike = decode_frames(
                data, start, length, start + self.frames.start, self.needle
            )
            count = len(columns)
            if count:
                self._settle_columns(columns, int(start[0]), alike=alike)
            if count < len(start):
                return int(start[count])
        return walked.stop

    # -- the checks of a chunk -------------------------------------------------------------

    def _settle_columns(self, columns: RecordColumns, start: int, *, alike: bool) -> None:
        self._judge(columns, alike=alike)
        end = int(columns.position[-1]) + int(columns.length[-1])
        if self.first is None:
            self.first = int(columns.offset[0])
        self.position = end
        self.count += len(columns)
        self.last = int(columns.offset[-1])
        if self.index is not None and self.index.wants(end):
            self.index.records(columns.position, columns.offset, end)
        if self.visit is not None:
            self.hand_over(ColumnBatch(self.ref, columns, start, reachable=True))

    def _judge(self, columns: RecordColumns, *, alike: bool) -> None:
        """Findings about records that are good in themselves, in the order of the file."""
        strange = self._strangers(columns, alike=alike)
        jumps = self._jumps(columns.offset)
        if not strange.size and not jumps.size:
            return
        # The first record of a segment is judged by the name of its file, under another code.
        first = self.last is None and jumps.size and not jumps[0]
        hidden: list[tuple[int, str, int]] = []
        told: list[set[int]] = []
        for code, rows in (("record_identity_mismatch", strange), (_JUMP, jumps[bool(first) :])):
            room = self.findings.room(code)
            told.append(set(rows[:room].tolist()))
            if len(rows) > room:
                hidden.append((int(rows[room]), code, len(rows) - room))
        strangers, jumping = told
        if first:
            jumping.add(0)
        before = np.append(np.uint64(self.last or 0), columns.offset[:-1])
        for row in sorted(strangers | jumping):
            place = int(columns.position[row]), int(columns.length[row])
            offset = int(columns.offset[row])
            if row in strangers:
                topic = columns.topic.at(row)[:KEPT_TOPIC]
                self.findings.identity(*place, topic, int(columns.partition[row]), offset)
            if row in jumping:
                last = -1 if first and row == 0 else int(before[row])
                self.findings.contiguity(*place, last, offset)
        for row, code, count in sorted(hidden):
            self.findings.hide(code, count, int(columns.position[row]))

    def _strangers(self, columns: RecordColumns, *, alike: bool) -> Rows:
        """Rows of another topic or partition."""
        if alike:
            return NO_ROWS
        ours: Mask = columns.topic.equals(self.topic)
        ours &= columns.partition == self.ref.partition
        return np.flatnonzero(~ours)

    def _jumps(self, offset: UInt64s) -> Rows:
        """Rows whose offset does not follow the one before."""
        before, base, gaps = self.last, self.ref.base, self.ref.gaps_allowed
        jumps = np.zeros(len(offset), np.bool_)
        jumps[1:] = offset[1:] <= offset[:-1]
        if not gaps:
            # Unsigned: what wraps does not ascend.
            jumps[1:] |= offset[1:] != offset[:-1] + np.uint64(1)
        first = int(offset[0])
        if before is None:
            jumps[0] = first < base or (first != base and not gaps)
        else:
            jumps[0] = first <= before or (first != before + 1 and not gaps)
        return np.flatnonzero(jumps)
