"""What a scan leaves for the judgement: kept in the index, read back by the plan.

A build scans first and judges afterwards, from what the scans left: findings,
and of each batch of records what the replay needs (``ReplayBatch``). A later
``build --update`` judges from the same, for every log that has not changed, so
the judgement of an update is that of a full build.

Nothing here is pickled: an index may come from anywhere, and reading one must
not run anything. ``kept_scans.state`` is JSON. ``kept_batches.data`` is::

    1    kind: 0 plain, 1 compressed (zlib) from here on
    4    u32 big-endian: bytes of the JSON that follows
    n    JSON: counts, names (as latin-1), rows of transactions
    m    arrays, little-endian, 8 bytes an element, in the order of ARRAYS
    k    the frames of records, in batches of __consumer_offsets
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, get_args, get_type_hints

import apsw
import numpy as np
from numpy.typing import NDArray

from cursus.findings import Finding, Lost
from cursus.formats.record import Record
from cursus.replay.batches import Frames, ReplayBatch
from cursus.replay.interfaces import (
    Evidence,
    RecordBatch,
    ScannedRecord,
    SegmentRef,
    SegmentScan,
    UnreachableRun,
)
from cursus.replay.reduced import AggregateEvents, MarkerRow, OpenRun, ProducerRuns, TransactionRow
from cursus.replay.segments import Compared, SegmentFiles, SegmentJudgement, Visit, judge_segment

#: Arrays of a batch, in order: name and type.
_PRODUCER_ARRAYS: Final = (
    ("producer", "<i8"),
    ("epoch", "<i8"),
    ("first_sequence", "<u8"),
    ("last_sequence", "<u8"),
    ("first_offset", "<u8"),
    ("last_offset", "<u8"),
    ("last_row", "<i8"),
)
_EVENT_ARRAYS: Final = (
    ("key", "<i8"),
    ("version", "<u8"),
    ("offset", "<u8"),
    ("position", "<i8"),
    ("length", "<i8"),
)
_FIELDS: Final = Record.__slots__
_ENDS: Final = frozenset(get_args(get_type_hints(SegmentScan)["end"]))
#: What a kept batch may unpack to: a window or the largest record, its arrays, its names as JSON.
_MAX_UNPACKED: Final = 512 << 20
#: Smaller than this is not worth compressing.
_COMPRESSED_FROM: Final = 512


class KeptError(ValueError):
    """What was kept cannot be read; the log has to be scanned."""


# -- batches -------------------------------------------------------------------------------


def encode_batch(batch: RecordBatch) -> bytes | None:
    """Bytes of a reduced batch; ``None`` for one that the replay takes nothing from."""
    assert isinstance(batch, ReplayBatch)
    nothing = not (batch.transactions or len(batch.producers) or len(batch.aggregates))
    if batch.records is None and nothing:
        return None
    head: dict[str, Any] = {"count": batch.count, "reachable": batch.reachable}
    parts: list[bytes] = []
    if batch.transactions:
        head["transactions"] = [_transaction(row) for row in batch.transactions]
    if len(batch.producers):
        head["producers"] = [value.decode("latin-1") for value in batch.producers.producers]
        head["runs"] = len(batch.producers)
        parts += _arrays(batch.producers, _PRODUCER_ARRAYS)
    if len(batch.aggregates):
        head["keys"] = [value.decode("latin-1") for value in batch.aggregates.keys]
        head["events"] = len(batch.aggregates)
        parts += _arrays(batch.aggregates, _EVENT_ARRAYS)
    if batch.records is not None:
        parts += _records(head, batch.records)
    text = json.dumps(head, separators=(",", ":")).encode("ascii")
    data = b"".join((len(text).to_bytes(4, "big"), text, *parts))
    if len(data) >= _COMPRESSED_FROM:
        return b"\1" + zlib.compress(data, 1)
    return b"\0" + data


def _arrays(rows: object, names: Sequence[tuple[str, str]]) -> list[bytes]:
    return [np.asarray(getattr(rows, name)).astype(kind).tobytes() for name, kind in names]


def _transaction(row: TransactionRow) -> list[Any]:
    key = [row.transactional_id.decode("latin-1"), row.epoch]
    if isinstance(row, MarkerRow):
        kind = row.kind.decode("latin-1")
        return ["marker", *key, kind, row.offset, row.coordinator_epoch, row.position]
    return ["open", *key, row.first_offset, row.count, row.addresses]


def _records(head: dict[str, Any], records: Frames | Sequence[ScannedRecord]) -> list[bytes]:
    if isinstance(records, Frames):
        head["position"] = records.position
        head["frames"] = len(records)
        return [np.array(records.lengths, "<i8").tobytes(), records.data]
    # Records of other builds are among these: no codec of ours need be able to write them.
    head["records"] = [
        [item.position, item.length, [_field(getattr(item.record, name)) for name in _FIELDS]]
        for item in records
    ]
    return []


def _field(value: int | bytes) -> int | str:
    return value.decode("latin-1") if isinstance(value, bytes) else value


def decode_batch(segment: SegmentRef, data: bytes) -> ReplayBatch:
    """The batch again. Raises :class:`KeptError`."""
    try:
        return _decode(segment, data)
    except (ValueError, KeyError, TypeError, IndexError, zlib.error) as error:
        raise KeptError(f"a kept batch cannot be read: {error}") from None


def _decode(segment: SegmentRef, data: bytes) -> ReplayBatch:
    body = _unpacked(data[1:]) if data[:1] == b"\1" else data[1:]
    size = int.from_bytes(body[:4], "big")
    head = json.loads(body[4 : 4 + size])
    reader = _Reader(body, 4 + size)
    runs = reader.arrays(_PRODUCER_ARRAYS, head.get("runs", 0))
    producers = tuple(value.encode("latin-1") for value in head.get("producers", ()))
    events = reader.arrays(_EVENT_ARRAYS, head.get("events", 0))
    keys = tuple(value.encode("latin-1") for value in head.get("keys", ()))
    records: Frames | tuple[ScannedRecord, ...] | None = None
    if "frames" in head:
        lengths = reader.array("<i8", head["frames"])
        records = Frames(head["position"], reader.rest(), tuple(lengths.tolist()))
    elif "records" in head:
        records = tuple(
            ScannedRecord(position, length, _record(fields))
            for position, length, fields in head["records"]
        )
    return ReplayBatch(
        segment,
        bool(head["reachable"]),
        int(head["count"]),
        records,
        tuple(_transaction_row(row) for row in head.get("transactions", ())),
        ProducerRuns(producers, **runs),
        AggregateEvents(keys, **events),
    )


def _unpacked(data: bytes) -> bytes:
    inflater = zlib.decompressobj()
    body = inflater.decompress(data, _MAX_UNPACKED)
    if not inflater.eof:
        raise ValueError("it does not end, or is larger than any batch")
    return body


def _record(fields: Sequence[int | str]) -> Record:
    values: dict[str, Any] = {
        name: value.encode("latin-1") if isinstance(value, str) else value
        for name, value in zip(_FIELDS, fields, strict=True)
    }
    return Record(**values)


def _transaction_row(row: Sequence[Any]) -> TransactionRow:
    kind, name, epoch, *rest = row
    key = (name.encode("latin-1"), epoch)
    if kind == "marker":
        marker, offset, coordinator, position = rest
        return MarkerRow(*key, marker.encode("latin-1"), offset, coordinator, position)
    first, count, addresses = rest
    return OpenRun(*key, first, count, [(at, length, offset) for at, length, offset in addresses])


class _Reader:
    def __init__(self, data: bytes, position: int) -> None:
        self.data = data
        self.position = position

    def take(self, length: int) -> bytes:
        found = self.data[self.position : self.position + length]
        if len(found) != length:
            raise ValueError("it ends early")
        self.position += length
        return found

    def rest(self) -> bytes:
        return self.take(len(self.data) - self.position)

    def array(self, kind: str, count: int) -> NDArray[Any]:
        found = np.frombuffer(self.take(8 * count), kind)
        return found.astype(found.dtype.newbyteorder("="))

    def arrays(self, names: Sequence[tuple[str, str]], count: int) -> dict[str, NDArray[Any]]:
        return {name: self.array(kind, count) for name, kind in names}


# -- scans ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class KeptScan:
    """A segment as it was scanned.

    ``indexed``: was there an index to look at? ``aggregates``: were events kept?
    ``largest``: (length, position, offset, payload bytes) of its largest records.
    """

    ref: SegmentRef
    judged: SegmentJudgement
    indexed: bool
    aggregates: bool
    largest: list[tuple[int, int, int, int]]


def encode_scan(kept: KeptScan) -> str | None:
    """JSON of a scan; ``None`` when it would not come back as it was.

    How the index fared is in the findings about it; the entries are not kept.
    """
    scan = replace(kept.judged.scan, index=None)
    kept = replace(kept, judged=replace(kept.judged, scan=scan))
    text = json.dumps(_scan(kept), separators=(",", ":"))
    try:
        same = decode_scan(text) == kept
    except KeptError:
        return None
    return text if same else None


def _scan(kept: KeptScan) -> dict[str, Any]:
    scan = kept.judged.scan
    return {
        "ref": asdict(kept.ref),
        "end": scan.end,
        "end_position": scan.end_position,
        "first_offset": scan.first_offset,
        "last_offset": scan.last_offset,
        "record_count": scan.record_count,
        "expected_next": scan.expected_next,
        "findings": [_finding(item) for item in scan.findings],
        "unreachable": [asdict(run) for run in scan.unreachable],
        "index": [_finding(item) for item in kept.judged.index],
        "compared": asdict(kept.judged.compared) if kept.judged.compared else None,
        "indexed": kept.indexed,
        "aggregates": kept.aggregates,
        "largest": kept.largest,
    }


def _finding(item: Finding) -> dict[str, Any]:
    return {
        "code": item.code,
        "path": item.path,
        "severity": item.severity,
        "effect": item.effect,
        "step": item.step,
        "message": item.message,
        "action": item.action,
        "position": item.position,
        "length": item.length,
        "lost": asdict(item.lost) if item.lost else None,
        "detail": {name: _value(value) for name, value in item.detail.items()},
    }


def _value(value: object) -> object:
    if isinstance(value, bytes):
        return {"bytes": value.decode("latin-1")}
    return value if isinstance(value, (str, int, bool, type(None))) else repr(value)


def decode_scan(text: str) -> KeptScan:
    """The scan again. Raises :class:`KeptError`."""
    try:
        state = json.loads(text)
        ref = SegmentRef(**state["ref"])
        if state["end"] not in _ENDS:
            raise ValueError("it ends in a way that nobody knows")
        scan = SegmentScan(
            segment=ref,
            end=state["end"],
            end_position=state["end_position"],
            first_offset=state["first_offset"],
            last_offset=state["last_offset"],
            record_count=state["record_count"],
            expected_next=state["expected_next"],
            findings=tuple(map(_finding_again, state["findings"])),
            unreachable=tuple(UnreachableRun(**run) for run in state["unreachable"]),
        )
        index = tuple(map(_finding_again, state["index"]))
        largest = [(a, b, c, d) for a, b, c, d in state["largest"]]
        compared = Compared(**state["compared"]) if state["compared"] else None
        judged = SegmentJudgement(scan, index, compared)
        return KeptScan(ref, judged, state["indexed"], state["aggregates"], largest)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise KeptError(f"a kept scan cannot be read: {error}") from None


def _finding_again(state: Mapping[str, Any]) -> Finding:
    values = dict(state)
    lost = values.pop("lost")
    detail = {
        name: value["bytes"].encode("latin-1") if isinstance(value, dict) else value
        for name, value in values.pop("detail").items()
    }
    return Finding(**values, lost=Lost(**lost) if lost else None, detail=detail)


# -- the judge -----------------------------------------------------------------------------


class KnownSegments:
    """Answers for segments whose scans are known (a ``JudgeSegment`` of the plan)."""

    def __init__(self, connection: apsw.Connection) -> None:
        self.connection = connection
        #: Segments that were not known as they were asked for, and had to be scanned again.
        self.missed: list[str] = []
        self._known: dict[str, tuple[int, SegmentFiles, SegmentJudgement]] = {}

    def add(self, file_id: int, files: SegmentFiles, judged: SegmentJudgement) -> None:
        """Know the answer for ``files``."""
        if judged.scan.segment != files.ref:
            judged = replace(judged, scan=replace(judged.scan, segment=files.ref))
        self._known[files.ref.path] = (file_id, files, judged)

    def judge(
        self, evidence: Evidence, files: SegmentFiles, visit: Visit | None
    ) -> SegmentJudgement:
        """What the scan found; its batches go to ``visit``. Raises :class:`KeptError`."""
        known = self._known.get(files.ref.path)
        if known is None or known[1] != files:
            self.missed.append(files.ref.path)
            return judge_segment(evidence, files, visit)
        file_id, _, judged = known
        if visit is not None:
            self._replay(file_id, files.ref, visit)
        return judged

    def _replay(self, file_id: int, ref: SegmentRef, visit: Callable[[RecordBatch], None]) -> None:
        rows = self.connection.execute(
            "select data from kept_batches where file_id = ? order by batch", (file_id,)
        )
        for (data,) in rows:
            if not isinstance(data, bytes):
                raise KeptError("a kept batch is not bytes")
            visit(decode_batch(ref, data))

    def scan_for_inventory(
        self, evidence: Evidence
    ) -> Callable[[SegmentRef, Callable[[RecordBatch], None]], SegmentScan]:
        """A scan that answers for clean segments, of which an inventory has nothing to say.

        Records are handed over of ``__consumer_offsets`` only, where it lists them.
        """

        def scan(ref: SegmentRef, visit: Callable[[RecordBatch], None]) -> SegmentScan:
            known = self._known.get(ref.path)
            if known is None:
                return evidence.scan(ref, visit)
            file_id, files, judged = known
            clean = judged.scan.end == "clean" and not judged.scan.findings
            alike = (ref.size, ref.deleted) == (files.ref.size, files.ref.deleted)
            if not (clean and alike) or (files.ref.gaps_allowed and not ref.gaps_allowed):
                return evidence.scan(ref, visit)
            if ref.internal:
                self._replay(file_id, ref, visit)
            return replace(judged.scan, segment=ref)

        return scan
