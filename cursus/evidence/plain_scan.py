"""Scan one segment, frame by frame, in bounded memory: the definition of truth.

``segment_scan`` reads the same by columns, and hands over to this scan at the
first frame that it does not like. This one starts at byte 0 and believes
nothing: not the index, not a length prefix, not the name of the file. It answers
three questions: which records are there, where does the run of good frames end,
and is what stands there an honest torn tail (a crash inside an append) or damage
(everything else).

A tail counts as torn only when

* rule B0: the frame itself is cut, that is, its fields run past the end of the
  file by their own lengths too (otherwise ``record_length_corrupt``), and
* rule B: no complete frame of this partition with a higher offset stands
  behind it (otherwise ``corrupt_non_tail``).

Behind damage the scan looks for ``CDM2`` again. A hit counts when the length
prefix before it is plausible and complete and the record decodes with the
topic and partition of the path. Such records are delivered as unreachable:
evidence of what a wrong repair would lose, never state.

Source: segments.md sections 10, 11, 18; README.md decisions 2, 10, 13, 22.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Final, Literal

import numpy as np

from cursus.evidence.index_comparison import IndexComparison
from cursus.evidence.scan_findings import ScanFindings
from cursus.evidence.window import ShortReadError, Window
from cursus.findings import FormatError, Lost
from cursus.formats.offset_index import Prefix
from cursus.formats.record import (
    MAX_RECORD_BYTES,
    MIN_RECORD_BYTES,
    Record,
    decode,
    decode_any,
    record_length,
)
from cursus.formats.record_columns import needle
from cursus.replay.batches import Batch
from cursus.replay.interfaces import (
    ByteSource,
    RecordBatch,
    ScannedRecord,
    SegmentRef,
    SegmentScan,
    UnreachableRun,
)

#: A batch ends at this many records or bytes, whichever comes first.
BATCH_RECORDS: Final = 4096
BATCH_BYTES: Final = 4 << 20
#: Runs of frames behind damage that are told apart; what follows counts for the last one.
MAX_RUNS: Final = 10_000

_U32 = struct.Struct(">I")

#: A topic name has at most 249 bytes; what is longer is none, and is not kept whole.
KEPT_TOPIC: Final = 256

Visit = Callable[[RecordBatch], None]
End = Literal["clean", "torn", "in_progress", "damaged", "unreadable"]


def scan_plain(
    source: ByteSource,
    ref: SegmentRef,
    visit: Visit | None = None,
    index: Prefix | None = None,
) -> SegmentScan:
    """Scan ``ref`` from byte 0, one record after the other.

    The same as :func:`cursus.evidence.segment_scan.scan_segment`, slowly.
    """
    return Scan(source, ref, visit, index).run()


class VisitError(Exception):
    """An ``OSError`` of a visitor: a closed pipe, a full disk."""

    def __init__(self, error: OSError) -> None:
        super().__init__(str(error))
        self.error = error


class Scan:
    """The state of one scan. ``position``: end of the good frames so far."""

    def __init__(
        self,
        source: ByteSource,
        ref: SegmentRef,
        visit: Visit | None,
        index: Prefix | None,
        after: SegmentScan | None = None,
    ) -> None:
        self.source = source
        self.ref = ref
        self.visit = visit
        self.window = Window(source, ref.size)
        self.findings = ScanFindings(ref)
        self.index = IndexComparison(index) if index is not None else None
        self.topic = ref.topic.encode("utf-8", "surrogateescape")
        # How every record of this partition begins: behind damage, the search looks for this.
        self.needle = needle(self.topic, ref.partition)
        self.position = 0
        self.count = 0
        self.first: int | None = None
        self.last: int | None = None
        self.runs: list[UnreachableRun] = []
        if after is not None:
            self._go_on(after)

    def _go_on(self, after: SegmentScan) -> None:
        """Stand where another scan found the end of the good frames."""
        self.position, self.count = after.end_position, after.record_count
        self.first, self.last = after.first_offset, after.last_offset
        if self.index is not None:
            self.index.skip(after.end_position)

    @property
    def expected(self) -> int:
        return self.ref.base if self.last is None else self.last + 1

    def run(self) -> SegmentScan:
        end: End
        try:
            self.walk()
            end = "clean" if self.position == self.ref.size else self._judge_end()
        except VisitError as error:
            raise error.error from None
        except ShortReadError as error:
            self.findings.add("file_changed_while_reading", error.position, str(error))
            end = "unreadable"
        except OSError as error:
            self.findings.add(
                "file_unreadable",
                self.position,
                f"cannot be read at byte {self.position}: {error.strerror or error}",
                effect="refuses",
            )
            end = "unreadable"
        return SegmentScan(
            segment=self.ref,
            end=end,
            end_position=self.position,
            first_offset=self.first,
            last_offset=self.last,
            record_count=self.count,
            expected_next=self.expected,
            findings=self.findings.close(),
            unreachable=tuple(self.runs),
            index=self.index.result() if self.index is not None else None,
        )

    def hand_over(self, batch: RecordBatch) -> None:
        """Hand a batch to the visitor, whose errors say nothing about this file."""
        assert self.visit is not None
        try:
            self.visit(batch)
        except OSError as error:
            raise VisitError(error) from None

    # -- the run of good frames ----------------------------------------------

    def walk(self) -> None:
        """Take good frames from ``position`` on, up to the first that is not one."""
        size = self.ref.size
        window = self.window
        unpack = _U32.unpack_from
        topic, partition = self.topic, self.ref.partition
        batch: list[ScannedRecord] = []
        batch_bytes = 0
        buffer, start = b"", 0
        position = self.position
        last = -1 if self.last is None else self.last
        try:
            while True:
                left = size - position
                if left < 4:
                    break
                at = position - start
                if at + 4 > len(buffer):
                    buffer, start = window.fill(position, 4)
                    at = 0
                (length,) = unpack(buffer, at)
                if not 0 < length <= MAX_RECORD_BYTES or length + 4 > left:
                    break
                if at + 4 + length > len(buffer):
                    buffer = b""  # may be large: let go of it before the next one comes
                    buffer, start = window.fill(position, 4 + length)
                    at = 0
                try:
                    record = decode(buffer, at + 4, at + 4 + length)
                except FormatError:
                    break
                offset = record.offset
                if record.topic != topic or record.partition != partition:
                    found = record.topic[:KEPT_TOPIC]
                    self.findings.identity(position, 4 + length, found, record.partition, offset)
                if offset != last + 1 or last < 0:
                    self.findings.contiguity(position, 4 + length, last, offset)
                if last < 0:
                    self.first = offset
                last = offset
                batch.append(ScannedRecord(position, 4 + length, record))
                batch_bytes += length
                position += 4 + length
                if len(batch) >= BATCH_RECORDS or batch_bytes >= BATCH_BYTES:
                    self._settle(batch, position, last)
                    batch, batch_bytes = [], 0
        finally:
            self._settle(batch, position, last)

    def _settle(self, batch: list[ScannedRecord], position: int, last: int) -> None:
        self.position = position
        self.count += len(batch)
        if last >= 0:
            self.last = last
        if self.index is not None and self.index.wants(position):
            self.index.records(
                np.fromiter((item.position for item in batch), np.int64, len(batch)),
                np.fromiter((item.record.offset for item in batch), np.uint64, len(batch)),
                position,
            )
        if batch and self.visit is not None:
            self.hand_over(Batch(self.ref, batch, reachable=True))

    # -- what stands where the good frames end ---------------------------------

    def _judge_end(self) -> End:
        position, left = self.position, self.ref.size - self.position
        if left < 4:
            return self._torn("torn_record_length", f"{left} bytes where a length should be")
        head = self.window.get(position, min(left, 16))
        (length,) = _U32.unpack_from(head, 0)
        if not 0 < length <= MAX_RECORD_BYTES:
            text = _as_text(head)
            shown = f' (the bytes read "{text}")' if text else ""
            return self._damaged(
                "record_length_invalid",
                f"length {length} is not between 1 and {MAX_RECORD_BYTES}{shown}",
                {"found_length": length},
            )
        if length + 4 > left:
            return self._past_the_end(length, left)
        data = self.window.get(position + 4, length)
        try:
            decode(data)
        except FormatError as error:
            return self._undecodable(error, data)
        raise AssertionError("the walk stopped at a good frame")

    def _past_the_end(self, length: int, left: int) -> End:
        """A frame that runs past the end: torn, or a corrupt length prefix."""
        position = self.position
        own = record_length(self.window.get, position + 4, self.ref.size)
        message = f"frame of {length + 4} bytes, but {left} are left in the file"
        self._resynchronise()
        if any(run.last_offset > self.expected for run in self.runs):
            lost = self._lost()
            self.findings.add(
                "corrupt_non_tail",
                position,
                f"{message}; yet {lost.records} complete frames stand behind it",
                length=left,
                lost=lost,
                detail={"expected": self.expected},
            )
            self.findings.add(
                "torn_record_body",
                position,
                message,
                length=left,
                effect="refuses",
                severity="error",
                detail={"found_length": length},
            )
            return "damaged"
        if own is not None:
            return self._report_damage(
                "record_length_corrupt",
                f"length prefix says {length}, the fields of the record end after {own}",
                {"found_length": length, "record_length": own},
            )
        return self._torn("torn_record_body", message, searched=True)

    def _torn(self, code: str, message: str, *, searched: bool = False) -> End:
        ref = self.ref
        position, left = self.position, ref.size - self.position
        if not searched:
            self._resynchronise()
        lost = Lost(bytes=left, records=None, first_offset=self.expected)
        if ref.active and ref.in_use and not ref.deleted:
            self.findings.add(
                "write_in_progress",
                position,
                f"{message}; a broker is using the directory and may be writing it right now",
                length=left,
            )
            return "in_progress"
        if not ref.active:
            self.findings.add(
                code,
                position,
                f"{message}, in a closed segment",
                length=left,
                effect="refuses",
                severity="error",
                lost=lost,
            )
            return "damaged"
        if ref.internal:
            self.findings.add(
                "internal_metadata_tail_truncated", position, message, length=left, lost=lost
            )
            self.findings.add(
                code, position, message, length=left, effect="refuses", severity="error"
            )
            return "damaged"
        self.findings.add(code, position, message, length=left, lost=lost)
        return "torn"

    def _damaged(self, code: str, message: str, detail: Mapping[str, object]) -> End:
        self._resynchronise()
        return self._report_damage(code, message, detail)

    def _report_damage(self, code: str, message: str, detail: Mapping[str, object]) -> End:
        lost = self._lost()
        if lost.records:
            message += f"; {lost.records} complete records stand behind it"
        self.findings.add(
            code,
            self.position,
            message,
            length=self.ref.size - self.position,
            lost=lost,
            detail=detail,
        )
        return "damaged"

    def _undecodable(self, error: FormatError, data: bytes) -> End:
        """Report the first record that does not decode, and say of which generation it is."""
        detail: dict[str, object] = dict(error.detail)
        message = error.message
        if error.code == "unsupported_record_format":
            try:
                foreign = decode_any(data, self.topic, self.ref.partition)
            except FormatError as other:
                if data[:3] == b"CDM":
                    message = f"{data[:4].decode('ascii', 'replace')} record: {other.message}"
                    detail |= {"record_format": data[:4].decode("latin-1"), "reason": other.code}
            else:
                name = foreign.generation
                age = "an older" if name == "unversioned" else "a newer"
                message = f"{name} record of {age} build"
                detail |= {
                    "record_format": name,
                    "reason": "unversioned_record" if name == "unversioned" else name,
                }
                self._resynchronise(self._other_generations())
                return self._report_damage(error.code, message, detail)
        return self._damaged(error.code, message, detail)

    def _lost(self) -> Lost:
        records = sum(run.records for run in self.runs)
        last = max((run.last_offset for run in self.runs), default=None)
        return Lost(
            bytes=self.ref.size - self.position,
            records=records,
            first_offset=self.expected,
            last_offset=last,
        )

    # -- behind damage ---------------------------------------------------------

    def _other_generations(self) -> int:
        """Walk frames of older or newer builds from the end of the good ones, as evidence.

        Frames follow each other as in a log of ours, so that no search is
        needed. Returns the position of the first frame that is not one.
        """
        size = self.ref.size
        position = self.position
        behind = _Behind(self)
        while position + 4 <= size:
            (length,) = _U32.unpack_from(self.window.get(position, 4), 0)
            if not 0 < length <= MAX_RECORD_BYTES or position + 4 + length > size:
                break
            try:
                record = decode_any(
                    self.window.get(position + 4, length), self.topic, self.ref.partition
                ).record
            except FormatError:
                break
            if record is not None:
                behind.take(position, 4 + length, record)
            position += 4 + length
        behind.close()
        return position

    def _resynchronise(self, position: int | None = None) -> None:
        """Find complete frames of this partition behind the end of the good ones.

        A record begins with ``CDM2``, its topic and its partition, so the search
        is for all of that at once.
        """
        size = self.ref.size
        if position is None:
            position = self.position + 1
        behind = _Behind(self)
        while position + 4 + MIN_RECORD_BYTES <= size:
            length = self._frame_at(position)
            if length is None:
                behind.end_run()
                found = self.window.find(self.needle, position + 5)
                if found is None:
                    break
                position = found - 4
                continue
            behind.take(position, 4 + length, decode(self.window.get(position + 4, length)))
            position += 4 + length
        behind.close()

    def _frame_at(self, position: int) -> int | None:
        """Length of the record whose frame stands complete at ``position``, or ``None``.

        Cheap checks come first, without copying: a file full of false hits must
        not cost more than a walk.
        """
        size = self.ref.size
        need = 4 + len(self.needle)
        if position + need > size:
            return None
        head = self.window.get(position, need)
        (length,) = _U32.unpack_from(head, 0)
        if not MIN_RECORD_BYTES <= length <= MAX_RECORD_BYTES or position + 4 + length > size:
            return None
        if head[4:] != self.needle:
            return None
        own = record_length(self.window.probe, position + 4, position + 4 + length)
        return length if own == length else None


class _Behind:
    """Delivers frames found behind damage, and tells the runs of them apart."""

    def __init__(self, scan: Scan) -> None:
        self.scan = scan
        self._batch: list[ScannedRecord] = []
        self._bytes = 0
        self._run: list[int] | None = None  # start, end, records, first and highest offset

    def take(self, position: int, length: int, record: Record) -> None:
        """The next frame; it belongs to the run that is open, or begins one."""
        self._batch.append(ScannedRecord(position, length, record))
        self._bytes += length
        run, offset = self._run, record.offset
        if run is None:
            run = self._run = [position, 0, 0, offset, offset]
        run[1] = position + length
        run[2] += 1
        run[4] = max(run[4], offset)
        if len(self._batch) >= BATCH_RECORDS or self._bytes >= BATCH_BYTES:
            self._deliver()

    def end_run(self) -> None:
        """What comes next does not follow what came last."""
        if self._run is None:
            return
        start, end, records, first, last = self._run
        self._run = None
        runs = self.scan.runs
        if len(runs) == MAX_RUNS:
            # A file made of nothing but such runs must not cost memory without end.
            before = runs.pop()
            start, first = before.position, before.first_offset
            records += before.records
            last = max(last, before.last_offset)
        runs.append(UnreachableRun(start, end - start, records, first, last))

    def close(self) -> None:
        """No more frames."""
        self.end_run()
        self._deliver()

    def _deliver(self) -> None:
        if self._batch and self.scan.visit is not None:
            self.scan.hand_over(Batch(self.scan.ref, self._batch, reachable=False))
        self._batch, self._bytes = [], 0


def _as_text(head: bytes) -> str:
    """The bytes as text where all of them print: a log line in a log says itself what it is."""
    return head.decode("ascii") if head and all(32 <= byte < 127 for byte in head) else ""
