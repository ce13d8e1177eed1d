"""Scan one segment, frame by frame, in bounded memory.

This is the plain scan and the definition of truth. It starts at byte 0 and
believes nothing: not the index, not a length prefix, not the name of the file.
It answers three questions: which records are there, where does the run of good
frames end, and is what stands there an honest torn tail (a crash inside an
append) or damage (everything else).

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
from dataclasses import replace
from typing import Final, Literal

from cursus.evidence.window import ShortReadError, Window
from cursus.findings import Effect, Finding, FormatError, Lost, Severity, Step, finding
from cursus.formats.record import (
    MAGIC,
    MAX_RECORD_BYTES,
    MIN_RECORD_BYTES,
    Record,
    decode,
    decode_any,
    record_length,
)
from cursus.replay.batches import Batch
from cursus.replay.interfaces import (
    ByteSource,
    RecordBatch,
    ScannedRecord,
    SegmentRef,
    SegmentScan,
    UnreachableRun,
)

#: Findings of one code for one file; after that one more says how many there were.
MAX_FINDINGS: Final = 1000
#: A batch ends at this many records or bytes, whichever comes first.
BATCH_RECORDS: Final = 4096
BATCH_BYTES: Final = 4 << 20
#: Runs of frames behind damage that are told apart; what follows counts for the last one.
MAX_RUNS: Final = 10_000

_U32 = struct.Struct(">I")

_NOT_CUT: Final = "Keep the directory and do not cut the file. Then clean bootstrap."

End = Literal["clean", "torn", "in_progress", "damaged", "unreadable"]


class _Findings:
    """Findings of one file, at most :data:`MAX_FINDINGS` of each code."""

    def __init__(self, ref: SegmentRef) -> None:
        self.ref = ref
        self.items: list[Finding] = []
        self._counts: dict[str, int] = {}
        self._hidden_from: dict[str, int] = {}

    def add(
        self,
        code: str,
        position: int,
        message: str,
        *,
        length: int | None = None,
        lost: Lost | None = None,
        effect: Effect | None = None,
        severity: Severity | None = None,
        detail: Mapping[str, object] | None = None,
    ) -> None:
        count = self._counts.get(code, 0) + 1
        self._counts[code] = count
        if count > MAX_FINDINGS:
            self._hidden_from.setdefault(code, position)
            return
        self._append(code, position, message, length, lost, effect, severity, detail or {})

    def _append(
        self,
        code: str,
        position: int,
        message: str,
        length: int | None,
        lost: Lost | None,
        effect: Effect | None,
        severity: Severity | None,
        detail: Mapping[str, object],
    ) -> None:
        ref = self.ref
        step: Step = 3 if ref.internal else 2
        if ref.deleted:
            # Out of the log for good: evidence, not a reason to refuse.
            effect, severity = "ignores", "info"
            message = f"in a deleted segment: {message}"
        found = finding(
            code,
            ref.path,
            position=position,
            length=length,
            message=message,
            effect=effect,
            severity=severity,
            step=step,
            lost=lost,
            topic=ref.topic,
            partition=ref.partition,
            **detail,
        )
        if code.startswith("torn_") and found.effect == "refuses":
            # The catalogue speaks of the tail of an active log, which a start cuts.
            found = replace(found, action=_NOT_CUT)
        self.items.append(found)

    def close(self) -> tuple[Finding, ...]:
        for code, position in self._hidden_from.items():
            hidden = self._counts[code] - MAX_FINDINGS
            self._append(
                code,
                position,
                f"{hidden} more of these follow in this file, from byte {position} on",
                None,
                None,
                None,
                None,
                {"repeated": hidden},
            )
        return tuple(self.items)


def scan_segment(
    source: ByteSource, ref: SegmentRef, visit: Callable[[RecordBatch], None] | None = None
) -> SegmentScan:
    """Scan ``ref`` from byte 0 and hand its records to ``visit`` in batches.

    ``ref.size`` bytes are read, not more: what is appended meanwhile belongs to
    another look. Never raises for what stands in the file; a file that shrinks
    ends in ``file_changed_while_reading``, one that fails to read in
    ``file_unreadable`` (both with ``end`` = ``unreadable``).
    """
    return _Scan(source, ref, visit).run()


class _VisitError(Exception):
    """An ``OSError`` of the visitor: a closed pipe, a full disk."""

    def __init__(self, error: OSError) -> None:
        super().__init__(str(error))
        self.error = error


class _Scan:
    def __init__(
        self, source: ByteSource, ref: SegmentRef, visit: Callable[[RecordBatch], None] | None
    ) -> None:
        self.ref = ref
        self.visit = visit
        self.window = Window(source, ref.size)
        self.findings = _Findings(ref)
        self.topic = ref.topic.encode("utf-8", "surrogateescape")
        # How every record of this partition begins: behind damage, the search looks for this.
        self.needle = (
            MAGIC
            + len(self.topic).to_bytes(2, "big")
            + self.topic
            + ref.partition.to_bytes(4, "big")
        )
        self.position = 0
        self.count = 0
        self.first: int | None = None
        self.last: int | None = None
        self.runs: list[UnreachableRun] = []

    @property
    def expected(self) -> int:
        return self.ref.base if self.last is None else self.last + 1

    def run(self) -> SegmentScan:
        end: End
        try:
            end = self._walk()
        except _VisitError as error:
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
        )

    def _hand_over(self, batch: Batch) -> None:
        """Hand a batch to the visitor, whose errors say nothing about this file."""
        assert self.visit is not None
        try:
            self.visit(batch)
        except OSError as error:
            raise _VisitError(error) from None

    # -- the run of good frames ----------------------------------------------

    def _walk(self) -> End:
        size = self.ref.size
        window = self.window
        unpack = _U32.unpack_from
        topic, partition = self.topic, self.ref.partition
        gaps = self.ref.gaps_allowed
        batch: list[ScannedRecord] = []
        batch_bytes = 0
        buffer, start = b"", 0
        position = 0
        last = -1
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
                    self._identity(position, 4 + length, record)
                if last < 0:
                    if offset != self.ref.base and (not gaps or offset < self.ref.base):
                        self._first_offset(position, 4 + length, offset)
                    self.first = offset
                elif offset <= last or (offset != last + 1 and not gaps):
                    self._not_contiguous(position, 4 + length, last, offset)
                last = offset
                batch.append(ScannedRecord(position, 4 + length, record))
                batch_bytes += length
                position += 4 + length
                if len(batch) >= BATCH_RECORDS or batch_bytes >= BATCH_BYTES:
                    self._settle(batch, position, last)
                    batch, batch_bytes = [], 0
        finally:
            self._settle(batch, position, last)
        if position == size:
            return "clean"
        return self._judge_end()

    def _settle(self, batch: list[ScannedRecord], position: int, last: int) -> None:
        self.position = position
        self.count += len(batch)
        if last >= 0:
            self.last = last
        if batch and self.visit is not None:
            self._hand_over(Batch(self.ref, batch, reachable=True))

    def _identity(self, position: int, length: int, record: Record) -> None:
        # A topic name has at most 249 bytes; what is longer is none, and is not kept whole.
        found = record.topic[:256].decode("utf-8", "surrogateescape")
        self.findings.add(
            "record_identity_mismatch",
            position,
            f'record belongs to topic "{found}" partition {record.partition}',
            length=length,
            detail={
                "found_topic": found,
                "found_partition": record.partition,
                "offset": record.offset,
            },
        )

    def _first_offset(self, position: int, length: int, offset: int) -> None:
        self.findings.add(
            "segment_first_offset_mismatch",
            position,
            f"first record has offset {offset}; the name says base {self.ref.base}",
            length=length,
            detail={"base": self.ref.base, "found": offset},
        )

    def _not_contiguous(self, position: int, length: int, last: int, offset: int) -> None:
        self.findings.add(
            "record_offset_not_contiguous",
            position,
            f"offset {offset} follows offset {last}",
            length=length,
            detail={"previous": last, "expected": last + 1, "found": offset},
        )

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
        batch: list[ScannedRecord] = []
        batch_bytes = 0
        run: list[int] | None = None
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
                batch.append(ScannedRecord(position, 4 + length, record))
                batch_bytes += length
                if run is None:
                    run = [position, 0, 0, record.offset, record.offset]
                run[1] = position + 4 + length
                run[2] += 1
                run[4] = max(run[4], record.offset)
            position += 4 + length
            if len(batch) >= BATCH_RECORDS or batch_bytes >= BATCH_BYTES:
                self._deliver(batch)
                batch, batch_bytes = [], 0
        if run is not None:
            self._close_run(run)
        self._deliver(batch)
        return position

    def _resynchronise(self, position: int | None = None) -> None:
        """Find complete frames of this partition behind the end of the good ones.

        A record begins with ``CDM2``, its topic and its partition, so the search
        is for all of that at once.
        """
        size = self.ref.size
        if position is None:
            position = self.position + 1
        batch: list[ScannedRecord] = []
        batch_bytes = 0
        run: list[int] | None = None  # start, end, records, first and highest offset
        while position + 4 + MIN_RECORD_BYTES <= size:
            length = self._frame_at(position)
            if length is None:
                if run is not None:
                    self._close_run(run)
                    run = None
                found = self.window.find(self.needle, position + 5)
                if found is None:
                    break
                position = found - 4
                continue
            record = decode(self.window.get(position + 4, length))
            batch.append(ScannedRecord(position, 4 + length, record))
            batch_bytes += length
            if run is None:
                run = [position, 0, 0, record.offset, record.offset]
            run[1] = position + 4 + length
            run[2] += 1
            run[4] = max(run[4], record.offset)
            position += 4 + length
            if len(batch) >= BATCH_RECORDS or batch_bytes >= BATCH_BYTES:
                self._deliver(batch)
                batch, batch_bytes = [], 0
        if run is not None:
            self._close_run(run)
        self._deliver(batch)

    def _deliver(self, batch: list[ScannedRecord]) -> None:
        if batch and self.visit is not None:
            self._hand_over(Batch(self.ref, batch, reachable=False))

    def _close_run(self, run: list[int]) -> None:
        start, end, records, first, last = run
        if len(self.runs) == MAX_RUNS:
            # A file made of nothing but such runs must not cost memory without end.
            before = self.runs.pop()
            start, first = before.position, before.first_offset
            records += before.records
            last = max(last, before.last_offset)
        self.runs.append(UnreachableRun(start, end - start, records, first, last))

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


def _as_text(head: bytes) -> str:
    """The bytes as text where all of them print: a log line in a log says itself what it is."""
    return head.decode("ascii") if head and all(32 <= byte < 127 for byte in head) else ""
