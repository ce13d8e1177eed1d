"""Scanning by columns and scanning record by record give the same, to the byte.

Every log of the fixtures, and mutations of made ones, are scanned both ways: the
same findings, positions and values, the same records in the same order. Windows
and batches are made so small that every boundary is met, and indexes lie.
"""

from __future__ import annotations

import itertools
import random
import shutil
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cursus.evidence import frame_walk
from cursus.evidence.plain_scan import scan_plain
from cursus.evidence.segment_scan import Tuning, scan_segment
from cursus.evidence.walk import LogDirectory
from cursus.evidence.window import OnBytes
from cursus.formats import offset_index
from cursus.formats.offset_index import Prefix
from cursus.formats.record import MAX_RECORD_BYTES, Record, encode_frame
from cursus.formats.record_columns import SLACK, decode_frames, needle
from cursus.layout import FileKind
from cursus.replay.interfaces import RecordBatch, ScannedRecord, SegmentRef, SegmentScan
from cursus.replay.startup import plan
from inspect_db import fixtures

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"
#: Each makes other boundaries. The first leaves the sizes as they are.
TUNINGS = [
    Tuning(plain_below=0),
    Tuning(window=1, records=1, plain_below=0),
    Tuning(window=700, records=3, plain_below=0),
    Tuning(window=4096, records=7, lanes=5, plain_below=0),
    Tuning(window=20_000, records=64, lanes=40, plain_below=0),
]
#: Those with which larger files take no minutes.
LARGER = [TUNINGS[0], *TUNINGS[3:]]


class Source:
    """Bytes as a file, with and without the quick way of reading; counts what is read."""

    def __init__(self, data: bytes, piece: int = 1 << 30) -> None:
        self.data = data
        self.size = len(data)
        self.piece = piece

    def pread(self, length: int, position: int) -> bytes:
        return self.data[position : position + min(length, self.piece)]


class IntoSource(Source):
    def pread_into(self, buffer: memoryview, position: int) -> int:
        data = self.pread(len(buffer), position)
        buffer[: len(data)] = data
        return len(data)


def ref(size: int, **changes: Any) -> SegmentRef:
    values: dict[str, Any] = {
        "path": "orders/partition_0_segment_00000000000000000000.log",
        "topic": "orders",
        "partition": 0,
        "base": 0,
        "size": size,
        "active": True,
        "deleted": False,
        "gaps_allowed": False,
        "internal": False,
        "in_use": False,
    }
    return SegmentRef(**(values | changes))


Seen = list[tuple[bool, ScannedRecord]]


def by_plain(data: bytes, segment: SegmentRef, index: Prefix | None) -> tuple[SegmentScan, Seen]:
    seen: Seen = []
    found = scan_plain(
        Source(data), segment, lambda b: seen.extend((b.reachable, item) for item in b), index
    )
    return found, seen


def by_columns(
    data: bytes, segment: SegmentRef, index: Prefix | None, tuning: Tuning
) -> tuple[SegmentScan, Seen]:
    """The records both ways: walked over, and out of the columns."""
    seen: Seen = []
    passed = bytearray()

    def visit(batch: RecordBatch) -> None:
        items = list(batch)
        columns = batch.columns()
        assert len(batch) == len(items) == len(columns) <= max(tuning.records, 4096)
        assert [columns.record(row) for row in range(len(columns))] == [i.record for i in items]
        assert columns.position.tolist() == [item.position for item in items]
        assert columns.length.tolist() == [item.length for item in items]
        seen.extend((batch.reachable, item) for item in items)

    def on_bytes(position: int, part: memoryview) -> None:
        assert position == len(passed)
        passed.extend(part)

    source = IntoSource(data) if tuning.records % 2 else Source(data, piece=1000)
    found = scan_segment(source, segment, visit, index, on_bytes=on_bytes, tuning=tuning)
    assert passed == data[: segment.size]
    return found, seen


def compare(data: bytes, segment: SegmentRef, index: Prefix | None, tuning: Tuning) -> SegmentScan:
    expected = by_plain(data, segment, index)
    found = by_columns(data, segment, index, tuning)
    assert found == expected
    return found[0]


@pytest.fixture(autouse=True)
def few_chains(monkeypatch: pytest.MonkeyPatch) -> None:
    """Follow chains in lockstep also where that is not worth it."""
    monkeypatch.setattr(frame_walk, "_FEW", 1)
    monkeypatch.setattr(frame_walk, "_FRAMES_A_LANE", 1)


# -- every log that there is ---------------------------------------------------------------

LOG_DIRS = sorted({path.parent.parent for path in FIXTURES.rglob("*.log*") if path.is_file()})


@pytest.mark.parametrize("tuning", TUNINGS, ids=str)
def test_every_log_of_the_fixtures(tuning: Tuning) -> None:
    assert sum(compare_logs(log_dir, itertools.repeat(tuning)) for log_dir in LOG_DIRS) > 250


def compare_logs(log_dir: Path, tunings: Iterator[Tuning]) -> int:
    """Scan every log both ways, with the index beside it; returns how many there are."""
    kinds = {FileKind.SEGMENT_LOG, FileKind.DELETED_LOG}
    count = 0
    with LogDirectory.at(str(log_dir)) as evidence:
        for entry in evidence.entries:
            if entry.kind not in kinds or entry.type != "file" or not entry.topic:
                continue
            count += 1
            data = evidence.read(entry.path, 1 << 26)
            beside = log_dir / entry.path.replace(".log", ".index")
            content = beside.read_bytes() if beside.is_file() else b""
            segment = ref(
                len(data),
                topic=entry.topic,
                partition=entry.partition or 0,
                base=entry.base or 0,
                active=bool(len(data) & 1),
                internal=bool(len(data) & 2),
                gaps_allowed=bool(len(data) & 4),
            )
            compare(data, segment, offset_index.valid_prefix(content), next(tunings))
    return count


CAPTURES = [
    fixture
    for fixture in fixtures.find(FIXTURES)
    if (fixture.folder / "log_dir.tar.xz").is_file() and "ten-thousand" not in fixture.name
]


@pytest.mark.parametrize("capture", CAPTURES, ids=lambda fixture: str(fixture.name))
def test_every_capture(capture: fixtures.Fixture, tmp_path: Path) -> None:
    """Directories that brokers left behind, healthy, killed and damaged."""
    log_dir = fixtures.materialise(capture, tmp_path)
    assert compare_logs(log_dir, itertools.cycle(LARGER)) > 0
    plainly = judged_by(Plainly, log_dir)
    assert plainly == judged_by(ByColumns, log_dir)
    assert plainly == judged_by(LogDirectory, log_dir)


def judged_by(kind: type[LogDirectory], log_dir: Path, as_of: int = 0) -> Any:
    with kind.at(str(log_dir)) as evidence:
        return plain(plan(evidence, as_of=as_of))


def plain(value: Any) -> Any:
    """A value without identities, so that two judgements can be compared."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if is_dataclass(value) and not isinstance(value, type):
        return {item.name: plain(getattr(value, item.name)) for item in fields(value)}
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if hasattr(value, "__dict__"):
        return plain(vars(value))
    return value


class Plainly(LogDirectory):
    """Scans record by record."""

    def scan(
        self,
        segment: SegmentRef,
        visit: Callable[[RecordBatch], None] | None = None,
        index: Prefix | None = None,
        *,
        on_bytes: OnBytes | None = None,
    ) -> SegmentScan:
        with self.open(segment.path) as source:
            return scan_plain(source, segment, visit, index)


class ByColumns(LogDirectory):
    """Scans by columns, small files too, and reduces every batch before it is visited."""

    def scan(
        self,
        segment: SegmentRef,
        visit: Callable[[RecordBatch], None] | None = None,
        index: Prefix | None = None,
        *,
        on_bytes: OnBytes | None = None,
    ) -> SegmentScan:
        def reduced(batch: RecordBatch) -> None:
            assert visit is not None
            visit(batch.for_replay())

        with self.open(segment.path) as source:
            several = TUNINGS if segment.size < 10_000 else LARGER
            chosen = several[segment.size % len(several)]
            return scan_segment(source, segment, visit and reduced, index, tuning=chosen)


JUDGED = sorted(
    path
    for path in {*LOG_DIRS, *(path.parent for path in FIXTURES.rglob("__topic_metadata.json"))}
    if "unreadable" not in str(path)
)


@pytest.mark.parametrize("part", range(4))
def test_every_directory_is_judged_the_same(part: int) -> None:
    for log_dir in JUDGED[part::4]:
        judged = []
        for kind in (Plainly, ByColumns, LogDirectory):
            try:
                with kind.at(str(log_dir)) as evidence:
                    judged.append(plain(plan(evidence)))
            except OSError as error:
                judged.append(str(error))
        assert judged[0] == judged[1] == judged[2], log_dir


SAMPLED = [
    "group-names-hostile",
    "values-at-the-edge",
    "recreated-group-wrong-order",
    "index-of-another-segment",
]


@pytest.mark.parametrize("name", SAMPLED)
def test_damaged_directories_are_judged_the_same(name: str, tmp_path: Path) -> None:
    """Mutations of logs and indexes of whole directories, as the fuzzing of hostile input has."""
    log_dir = Path(shutil.copytree(FIXTURES / name / "log_dir", tmp_path / "log_dir"))
    chance = random.Random(name)
    files = [
        path
        for path in sorted(log_dir.rglob("*"))
        if path.suffix in {".log", ".index"} and path.stat().st_size
    ]
    for _ in range(40):
        path = chance.choice(files)
        data = path.read_bytes()
        (changed,) = mutations(data, 1, chance)
        path.write_bytes(
            changed[: chance.randrange(len(changed) + 1)] if chance.random() < 0.2 else changed
        )
        plainly = judged_by(Plainly, log_dir)
        assert plainly == judged_by(ByColumns, log_dir)
        assert plainly == judged_by(LogDirectory, log_dir)
        path.write_bytes(data)


# -- mutations -------------------------------------------------------------------------------


def records(count: int, chance: random.Random, **changes: Any) -> list[Record]:
    """Records of all shapes; offsets ascend."""
    found = []
    for offset in range(count):
        kind = chance.randrange(8)
        values: dict[str, Any] = {
            "topic": b"orders",
            "offset": offset,
            "payload": chance.randbytes(chance.randrange(60)),
        }
        if kind > 2:
            values |= {"producer_id": b"p%d" % (kind % 3), "sequence": offset + 1, "epoch": kind}
        if kind == 5:
            values |= {"key": b"customer", "aggregate_version": offset, "event_type": b"Paid"}
        if kind == 6:
            values |= {"transactional_id": b"t", "transaction_state": b"open", "metadata": b"{}"}
        if kind == 7:
            values |= {
                "transaction_marker": b"commit",
                "control_type": b"transaction",
                "control_version": -2,
                "control_coordinator_epoch": -7,
                "control_key": b"\0\0\0\1",
                "control_value": b"v",
            }
        found.append(Record(**(values | changes)))
    return found


def log_of(found: Iterable[Record]) -> bytes:
    return b"".join(map(encode_frame, found))


def entries_of(data: bytes, every: int = 3) -> list[tuple[int, int]]:
    """Honest entries of an undamaged log, for every third record."""
    found, at, offset = [], 0, 0
    while at + 4 <= len(data):
        if offset % every == every - 1:
            found.append((offset, at))
        at += 4 + int.from_bytes(data[at : at + 4], "big")
        offset += 1
    return found


def prefix_of(entries: Iterable[tuple[int, int]]) -> Prefix:
    return offset_index.valid_prefix(offset_index.encode(entries))


def mutations(data: bytes, count: int, chance: random.Random) -> Iterator[bytes]:
    for _ in range(count):
        changed = bytearray(data)
        for _ in range(chance.choice((1, 1, 1, 2, 5))):
            at = chance.randrange(len(changed))
            what = chance.randrange(6)
            if what == 0:
                changed[at] ^= 1 << chance.randrange(8)
            elif what == 1:
                changed[at] = chance.choice((0, 1, 0x7F, 0x80, 0xFF))
            elif what == 2:
                del changed[at : at + chance.randrange(1, 200)]
            elif what == 3:
                changed[at:at] = chance.randbytes(chance.randrange(1, 40))
            elif what == 4:
                changed[at : at + 4] = struct.pack(
                    ">I", chance.randrange(1 << chance.randrange(1, 33))
                )
            else:
                other = chance.randrange(len(changed))
                changed[at : at + 300] = changed[other : other + 300]
            if not changed:
                break
        yield bytes(changed)


@pytest.mark.parametrize("part", range(8))
def test_mutations_of_a_log(part: int) -> None:
    chance = random.Random(part)
    data = log_of(records(chance.choice((5, 30, 120)), chance))
    index = prefix_of(entries_of(data))
    ends = set()
    for number, changed in enumerate(mutations(data, 60, chance)):
        segment = ref(
            len(changed),
            active=bool(number & 1),
            gaps_allowed=bool(number & 2),
            internal=bool(number & 4),
            in_use=bool(number & 8),
            base=number % 2,
        )
        found = compare(
            changed, segment, index if number % 3 else None, TUNINGS[number % len(TUNINGS)]
        )
        ends.add(found.end)
    assert len(ends) > 1


def test_every_bit_and_every_length_of_a_small_log() -> None:
    chance = random.Random(1)
    data = log_of(records(3, chance, producer_id=b"p", transactional_id=b"t"))
    for at in range(len(data)):
        for changed in (data[:at], *(flip(data, at, bit) for bit in range(8))):
            compare(changed, ref(len(changed)), None, TUNINGS[0])


def flip(data: bytes, at: int, bit: int) -> bytes:
    changed = bytearray(data)
    changed[at] ^= 1 << bit
    return bytes(changed)


@settings(max_examples=200, deadline=None)
@given(
    offsets=st.lists(
        st.one_of(st.integers(0, 6), st.integers(2**64 - 3, 2**64 - 1)), min_size=1, max_size=12
    ),
    base=st.sampled_from([0, 3, 2**64 - 2]),
    gaps=st.booleans(),
    tuning=st.sampled_from(TUNINGS),
)
def test_offsets_up_to_the_end_of_the_numbers(
    offsets: list[int], base: int, gaps: bool, tuning: Tuning
) -> None:
    data = log_of(Record(b"orders", 0, offset) for offset in offsets)
    compare(data, ref(len(data), base=base, gaps_allowed=gaps), None, tuning)


@pytest.mark.parametrize("tuning", TUNINGS, ids=str)
def test_foreign_records_among_ours_in_great_number(tuning: Tuning) -> None:
    """More findings than are told one by one, of two codes, in the order of the file."""
    chance = random.Random(7)
    topics = [b"orders", b"orders", b"other", b"order", b"x" * 300, b""]
    found = [
        Record(chance.choice(topics), chance.choice((0, 0, 1)), chance.randrange(2600) // 2)
        for _ in range(2600)
    ]
    data = log_of(found)
    scan = compare(data, ref(len(data)), None, tuning)
    assert sum("repeated" in item.detail for item in scan.findings) == 2


@pytest.mark.parametrize("field", ["partition", "epoch"])
def test_numbers_out_of_range_end_the_scan(field: str) -> None:
    data = bytearray(log_of(records(40, random.Random(3), producer_id=b"p")))
    at = 0
    for _ in range(30):
        at += 4 + int.from_bytes(data[at : at + 4], "big")
    place = {"partition": 4 + 4 + 8, "epoch": 4 + 4 + 8 + 12 + 3 + 8}[field]
    data[at + place] |= 0x80
    for tuning in TUNINGS:
        scan = compare(bytes(data), ref(len(data)), None, tuning)
        assert [item.code for item in scan.findings] == [f"record_{field}_out_of_range"]
        assert scan.findings[0].position == at


# -- finding frames ---------------------------------------------------------------------------


def hostile_indexes(data: bytes, chance: random.Random) -> Iterator[list[tuple[int, int]]]:
    honest = entries_of(data)
    size = len(data)
    yield []
    yield honest
    yield [(offset, position + 1) for offset, position in honest]
    yield [(offset + 1, position) for offset, position in honest]
    yield [(at + 1, at + 1) for at in range(size)]  # everywhere
    yield [(at + 1, at + 1) for at in range(300)] + honest[-1:]
    yield [(at, size + at) for at in range(1, 50)]
    yield [(at, 2**64 - 60 + at) for at in range(1, 50)]
    for _ in range(20):
        positions = sorted(chance.sample(range(1, size), 40))
        yield [(number + 1, position) for number, position in enumerate(positions)]


@pytest.mark.parametrize("tuning", TUNINGS, ids=str)
def test_no_entry_of_an_index_is_believed(tuning: Tuning) -> None:
    chance = random.Random(11)
    data = log_of(records(120, chance))
    for number, entries in enumerate(hostile_indexes(data, chance)):
        found = compare(data, ref(len(data)), prefix_of(entries), tuning)
        assert found.end == "clean"
        assert found.index is not None
        if number in (0, 1):
            assert found.index.mismatch_count == 0


def test_frames_carried_in_payloads_are_not_mistaken_for_frames() -> None:
    """Whole logs in a payload, frames that point into each other, needles everywhere."""
    chance = random.Random(5)
    inner = log_of(records(30, chance))
    begin = needle(b"orders", 0)
    traps = [inner, inner[1:], begin * 40, (struct.pack(">I", 200) + begin) * 40, bytes(900)]
    outer = [
        Record(b"orders", 0, offset, payload=chance.choice(traps)[: chance.randrange(4000)])
        for offset in range(200)
    ]
    data = log_of(outer)
    for tuning in TUNINGS:
        for index in (None, prefix_of(entries_of(data))):
            assert compare(data, ref(len(data)), index, tuning).end == "clean"


@settings(max_examples=300, deadline=None)
@given(
    sizes=st.lists(st.integers(80, 400), max_size=80),
    guesses=st.sets(st.integers(0, 20_000), max_size=60),
    cut=st.integers(0, 400),
    wrong=st.one_of(st.none(), st.tuples(st.integers(0, 79), st.integers(0, 2**32 - 1))),
    lanes=st.integers(2, 60),
    few=st.sampled_from([1, 4, 8]),
)
def test_the_walk_is_the_plain_walk(
    sizes: list[int],
    guesses: set[int],
    cut: int,
    wrong: tuple[int, int] | None,
    lanes: int,
    few: int,
) -> None:
    """Prefixes followed by hand, whatever is guessed."""
    parts = [struct.pack(">I", size) + b"CDM2".ljust(size, b"\1") for size in sizes]
    if wrong is not None and parts:
        at = wrong[0] % len(parts)
        parts[at] = struct.pack(">I", wrong[1]) + parts[at][4:]
    data = b"".join(parts)
    data = data[: max(len(data) - cut, 0)]
    expected, at, invalid = [], 0, False
    while at + 4 <= len(data):
        length = int.from_bytes(data[at : at + 4], "big")
        invalid = not 80 <= length <= MAX_RECORD_BYTES
        if invalid or at + 4 + length > len(data):
            break
        expected.append(at)
        at += 4 + length
    buffer = bytearray(data + bytes(SLACK))
    places = np.array(sorted(g for g in guesses if 0 < g < len(data) - 4), np.int64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frame_walk, "_FEW", few)
        found = frame_walk.walk(
            buffer,
            np.frombuffer(buffer, np.uint8),
            len(data),
            needle=b"CDM2",
            guesses=places if guesses else None,
            lanes=lanes,
        )
    assert (found.starts.tolist(), found.stop, found.invalid) == (expected, at, invalid)


def test_frames_outside_of_the_window_are_not_decoded() -> None:
    data = np.frombuffer(encode_frame(Record(b"orders")) + bytes(SLACK - 1), np.uint8)
    one = np.zeros(1, np.int64)
    with pytest.raises(ValueError):
        decode_frames(data, one, one + 90, one, needle(b"orders", 0))


# -- windows --------------------------------------------------------------------------------


def test_batches_that_are_kept_stay_as_they_are() -> None:
    data = log_of(records(3000, random.Random(2)))
    kept: list[RecordBatch] = []
    tuning = Tuning(window=20_000, plain_below=0)
    scan_segment(IntoSource(data), ref(len(data)), kept.append, tuning=tuning)
    assert len(kept) > 5
    again = b"".join(encode_frame(item.record) for item in itertools.chain(*kept))
    assert again == data


def test_the_largest_record_and_small_ones_around_it() -> None:
    small = records(20, random.Random(4))
    large = Record(b"orders", 0, 20, payload=bytes(MAX_RECORD_BYTES - 86))
    after = [Record(b"orders", 0, offset) for offset in range(21, 30)]
    data = log_of([*small, large, *after])
    seen: list[int] = []
    found = scan_segment(
        IntoSource(data), ref(len(data)), lambda b: seen.extend(b.columns().offset.tolist())
    )
    assert (found.end, seen) == ("clean", list(range(30)))


def test_a_sparse_file_costs_what_is_in_it(tmp_path: Path) -> None:
    """A terabyte of nothing between records: holes are not read, what stands behind is found."""
    head, behind = log_of(records(2000, random.Random(8))), log_of(records(3, random.Random(9)))
    size = 1 << 40
    directory = tmp_path / "orders"
    directory.mkdir()
    path = directory / "partition_0_segment_00000000000000000000.log"
    with path.open("wb") as log:
        log.write(head)
        try:
            log.truncate(size)
        except OSError:
            pytest.skip("the file system has no files of this size")
        log.seek(size - (1 << 30))
        log.write(behind)
    with LogDirectory.at(str(tmp_path)) as evidence:
        found = evidence.scan(ref(size))
    path.unlink()
    assert (found.end, found.end_position, found.record_count) == ("damaged", len(head), 2000)
    assert [item.code for item in found.findings] == ["record_length_invalid"]
    assert [(run.position, run.records) for run in found.unreachable] == [(size - (1 << 30), 3)]


def test_an_error_of_who_takes_the_bytes_is_not_one_of_the_file() -> None:
    def on_bytes(_position: int, _part: memoryview) -> None:
        raise BrokenPipeError

    data = log_of(records(3, random.Random(0)))
    with pytest.raises(BrokenPipeError):
        scan_segment(Source(data), ref(len(data)), None, on_bytes=on_bytes)


class Failing(IntoSource):
    """The disk fails from one byte on, or the file ends there."""

    def __init__(self, data: bytes, end: int, *, error: bool) -> None:
        super().__init__(data)
        self.end = end
        self.error = error

    def pread(self, length: int, position: int) -> bytes:
        if position >= self.end and self.error:
            raise OSError(5, "Input/output error")
        return self.data[position : min(position + length, self.end)]


@pytest.mark.parametrize("error", [True, False])
def test_a_file_is_used_up_to_the_byte_where_it_fails(error: bool) -> None:
    data = log_of(records(60, random.Random(6)))
    for end in range(0, len(data), 197):
        whole = by_plain(data[:end], ref(end), None)[0]
        results = []
        for tuning in (None, *TUNINGS):
            source = Failing(data, end, error=error)
            segment = ref(len(data))
            seen: list[ScannedRecord] = []
            passed = bytearray()
            if tuning is None:
                results.append((scan_plain(source, segment, seen.extend), seen))
                continue

            def on_bytes(_position: int, part: memoryview, passed: bytearray = passed) -> None:
                passed.extend(part)

            scan = scan_segment(source, segment, seen.extend, on_bytes=on_bytes, tuning=tuning)
            results.append((scan, seen))
            assert passed == data[:end]
        assert all(result == results[0] for result in results)
        assert results[0][0].end == "unreadable"
        assert results[0][0].record_count == whole.record_count
