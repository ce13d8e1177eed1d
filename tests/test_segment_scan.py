"""The scan of one segment and the judgement of a partition, on logs made for the purpose."""

from __future__ import annotations

import itertools
import struct
import time
import tracemalloc
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cursus.evidence import plain_scan
from cursus.evidence.scan_findings import MAX_FINDINGS
from cursus.evidence.segment_scan import scan_segment
from cursus.evidence.walk import LogDirectory
from cursus.findings import CATALOGUE, Finding, Lost
from cursus.formats import compaction_marker, offset_index
from cursus.formats.record import MAX_RECORD_BYTES, Record, crc32c, encode, encode_frame
from cursus.replay.interfaces import RecordBatch, ScannedRecord, SegmentRef, SegmentScan
from cursus.replay.reduced import MarkerRow, OpenRun
from cursus.replay.segments import PartitionLog, judge_partition
from cursus.replay.topics import judge_topics, replay_manifest

TOPIC = "orders"


class Source:
    """Bytes as a file; counts what is read. ``shrunk``: the file is this long by now."""

    def __init__(self, data: bytes, *, shrunk: int | None = None, piece: int = 1 << 30) -> None:
        self.data = data
        self.size = len(data)
        self.shrunk = len(data) if shrunk is None else shrunk
        self.piece = piece
        self.bytes_read = 0

    def pread(self, length: int, position: int) -> bytes:
        found = self.data[position : min(position + min(length, self.piece), self.shrunk)]
        self.bytes_read += len(found)
        return found


class BrokenSource(Source):
    """The disk fails from byte 1,000 on."""

    def pread(self, length: int, position: int) -> bytes:
        if position + length > 1000:
            raise OSError(5, "Input/output error")
        return super().pread(length, position)


def ref(size: int, **changes: Any) -> SegmentRef:
    values: dict[str, Any] = {
        "path": "orders/partition_0_segment_00000000000000000000.log",
        "topic": TOPIC,
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


def scan(data: bytes, **changes: Any) -> SegmentScan:
    return scan_segment(Source(data), ref(len(data), **changes))


def frame(offset: int, **fields: Any) -> bytes:
    values: dict[str, Any] = {"topic": TOPIC.encode(), "offset": offset}
    return encode_frame(Record(**(values | fields)))


def frames(offsets: Iterable[int], **fields: Any) -> list[bytes]:
    return [frame(offset, **({"payload": b"p%d" % offset} | fields)) for offset in offsets]


def log(count: int) -> bytes:
    return b"".join(frames(range(count)))


def codes(found: Iterable[Finding]) -> list[str]:
    return [item.code for item in found]


# -- the good run ------------------------------------------------------------------------------


def test_an_empty_segment_is_clean() -> None:
    found = scan(b"", base=7)
    assert (found.end, found.record_count, found.expected_next) == ("clean", 0, 7)
    assert (found.first_offset, found.last_offset, found.findings) == (None, None, ())


@pytest.mark.parametrize("piece", [1 << 30, 7])
def test_records_come_in_order_with_their_addresses(piece: int) -> None:
    data = log(40_000)
    batches: list[RecordBatch] = []
    found = scan_segment(Source(data, piece=max(piece, 1 << 12)), ref(len(data)), batches.append)
    assert (found.end, found.end_position, found.record_count) == ("clean", len(data), 40_000)
    assert (found.first_offset, found.last_offset, found.expected_next) == (0, 39_999, 40_000)
    position = 0
    for offset, item in enumerate(itertools.chain(*batches)):
        assert (item.position, item.record.offset) == (position, offset)
        assert data[position : position + item.length] == encode_frame(item.record)
        position += item.length
    assert position == len(data)
    assert all(batch.reachable and len(batch) for batch in batches)
    assert len(batches) > 1


def test_views_of_a_batch() -> None:
    items = [
        frame(0),
        frame(1, transactional_id=b"t", transaction_state=b"open", producer_id=b"p", sequence=1),
        frame(2, control_type=b"transaction"),
        frame(3, producer_id=b"p", sequence=0),
        frame(4, key=b"k", aggregate_version=1),
        frame(5, transaction_marker=b"commit"),
    ]
    batches: list[RecordBatch] = []
    data = b"".join(items)
    scan_segment(Source(data), ref(len(data)), batches.append)
    (batch,) = batches

    assert [row.offset for row in batch.transaction_rows() if isinstance(row, MarkerRow)] == [5]
    (run,) = [row for row in batch.transaction_rows() if isinstance(row, OpenRun)]
    assert (run.transactional_id, run.count, run.first_offset) == (b"t", 1, 1)
    assert batch.producer_runs().first_offset.tolist() == [1]
    assert batch.aggregate_events().offset.tolist() == [4]


def test_offsets_and_identity_are_judged_record_by_record() -> None:
    data = b"".join(
        [frame(0), frame(1, topic=b"other"), frame(2, partition=3), frame(4), frame(4), frame(2)]
    )
    found = scan(data)
    assert found.end == "clean"
    assert found.record_count == 6
    size = len(frame(0))
    at_third = size + len(frame(1, topic=b"other"))
    assert [(item.code, item.position) for item in found.findings] == [
        ("record_identity_mismatch", size),
        ("record_identity_mismatch", at_third),
        ("record_offset_not_contiguous", at_third + size),
        ("record_offset_not_contiguous", at_third + 2 * size),
        ("record_offset_not_contiguous", at_third + 3 * size),
    ]
    assert {item.effect for item in found.findings} == {"refuses"}
    assert 'topic "other" partition 0' in found.findings[0].message
    assert found.findings[1].detail["found_partition"] == 3


def test_gaps_that_a_marker_allows() -> None:
    data = b"".join(frames([3, 7, 8]))
    assert scan(data, active=False, gaps_allowed=True).findings == ()
    assert codes(scan(data, active=False).findings) == [
        "segment_first_offset_mismatch",
        "record_offset_not_contiguous",
    ]
    # Neither below the base nor backwards, marker or not.
    assert codes(scan(data, active=False, gaps_allowed=True, base=4).findings) == [
        "segment_first_offset_mismatch"
    ]
    back = b"".join(frames([3, 7, 7]))
    assert codes(scan(back, active=False, gaps_allowed=True).findings) == [
        "record_offset_not_contiguous"
    ]


def test_another_base_is_one_finding_and_the_scan_goes_on() -> None:
    found = scan(log(50), base=100)
    assert codes(found.findings) == ["segment_first_offset_mismatch"]
    assert found.findings[0].position == 0
    assert "record_offset_not_contiguous" in CATALOGUE[found.findings[0].code].also_named
    assert (found.record_count, found.expected_next) == (50, 50)


def test_findings_of_one_code_end_in_a_summary() -> None:
    data = frame(0) * (MAX_FINDINGS + 500)
    found = scan(data).findings
    assert len(found) == MAX_FINDINGS + 1
    assert found[-1].detail["repeated"] == 499
    assert found[-1].position == (MAX_FINDINGS + 1) * len(frame(0))


# -- torn tails --------------------------------------------------------------------------------


def test_every_honest_cut_is_a_torn_tail_and_nothing_else() -> None:
    whole = log(3) + frame(3, payload=b"x" * 300, key=b"key", event_type=b"E", metadata=b"{}")
    start = len(log(3))
    for size in range(start + 1, len(whole)):
        found = scan(whole[:size])
        (item,) = found.findings
        code = "torn_record_length" if size - start < 4 else "torn_record_body"
        assert (found.end, found.end_position) == ("torn", start)
        assert (item.code, item.effect, item.step, item.severity) == (code, "repairs", 2, "warning")
        assert (item.position, item.length) == (start, size - start)
        assert item.lost is not None
        assert (item.lost.bytes, item.lost.first_offset) == (size - start, 3)
        assert found.expected_next == 3


@pytest.mark.parametrize("left", [2, 60])
def test_who_may_cut_a_torn_tail(left: int) -> None:
    data = log(3) + frame(3)[:left]
    code = "torn_record_length" if left < 4 else "torn_record_body"

    closed = scan(data, active=False)
    assert (closed.end, codes(closed.findings)) == ("damaged", [code])
    assert (closed.findings[0].effect, closed.findings[0].step) == ("refuses", 2)

    internal = scan(data, internal=True)
    assert internal.end == "damaged"
    assert codes(internal.findings) == ["internal_metadata_tail_truncated", code]
    assert {(item.effect, item.step) for item in internal.findings} == {("refuses", 3)}

    busy = scan(data, in_use=True)
    assert (busy.end, codes(busy.findings)) == ("in_progress", ["write_in_progress"])
    assert (busy.findings[0].effect, busy.findings[0].severity) == ("ignores", "info")
    assert scan(data, in_use=True, internal=True).end == "in_progress"
    assert scan(data, in_use=True, active=False).end == "damaged"
    assert scan(data, in_use=None).end == "torn"

    deleted = scan(data, active=False, deleted=True)
    assert {(item.effect, item.severity) for item in deleted.findings} == {("ignores", "info")}


# -- damage ------------------------------------------------------------------------------------


@pytest.mark.parametrize("bit", range(32))
def test_no_flipped_bit_of_the_last_length_is_taken_for_a_torn_tail(bit: int) -> None:
    start = len(log(3))
    data = bytearray(log(4))
    data[start + bit // 8] ^= 0x80 >> bit % 8
    found = scan(bytes(data))
    assert found.end == "damaged"
    assert {item.effect for item in found.findings} == {"refuses"}
    (length,) = struct.unpack_from(">I", data, start)
    if len(frame(3, payload=b"p3")) < length + 4 and length <= MAX_RECORD_BYTES:
        assert codes(found.findings) == ["record_length_corrupt"]
        assert found.findings[0].detail["record_length"] == len(frame(3, payload=b"p3")) - 4


@pytest.mark.parametrize("bit", range(32))
def test_no_flipped_bit_of_a_middle_length_costs_what_stands_behind(bit: int) -> None:
    start = len(log(3))
    data = bytearray(log(8))
    data[start + bit // 8] ^= 0x80 >> bit % 8
    batches: list[RecordBatch] = []
    found = scan_segment(Source(bytes(data)), ref(len(data)), batches.append)
    assert found.end == "damaged"
    first = found.findings[0]
    assert (first.effect, first.position) == ("refuses", start)
    assert first.lost is not None
    assert (first.lost.records, first.lost.first_offset, first.lost.last_offset) == (4, 3, 7)
    assert first.lost.bytes == len(data) - start
    behind = [item.record.offset for batch in batches if not batch.reachable for item in batch]
    assert behind == [4, 5, 6, 7]
    (run,) = found.unreachable
    assert (run.records, run.first_offset, run.last_offset) == (4, 4, 7)
    assert run.position + run.length == len(data)
    if first.code == "corrupt_non_tail":
        second = found.findings[1]
        assert (second.code, second.position, second.effect) == (
            "torn_record_body",
            start,
            "refuses",
        )


def test_one_higher_offset_behind_is_enough_whatever_follows_it() -> None:
    data = log(3) + struct.pack(">I", 9000) + b"CDM2" + bytes(5) + frame(9) + frame(1)
    found = scan(data)
    assert codes(found.findings) == ["corrupt_non_tail", "torn_record_body"]


def test_stale_frames_behind_a_torn_tail_do_not_make_it_damage() -> None:
    """A producer may carry whole frames in its payload; rule B asks for higher offsets."""
    carried = frame(3, payload=frame(1) + frame(2) + b"x" * 100)
    found = scan(log(3) + carried[:-150])
    assert (found.end, codes(found.findings)) == ("torn", ["torn_record_body"])


def test_a_zeroed_block_leaves_the_frames_behind_it() -> None:
    items = frames(range(20))
    start = len(items[0]) * 5
    data = bytearray(b"".join(items))
    size = len(items[0])
    data[start : start + 3 * size] = bytes(3 * size)
    found = scan(bytes(data))
    (item,) = found.findings
    assert (item.code, item.position, item.effect) == ("record_length_invalid", start, "refuses")
    assert item.detail["found_length"] == 0
    assert item.lost is not None
    assert (item.lost.records, item.lost.first_offset, item.lost.last_offset) == (12, 5, 19)
    assert found.unreachable[0].position == start + 3 * size


def test_text_in_a_log_is_shown() -> None:
    found = scan(log(2) + b"2026-08-01 12:00:00 INFO started\n" + frame(2))
    (item,) = found.findings
    assert item.code == "record_length_invalid"
    assert "2026-08-01 12:00" in item.message
    unprintable = scan(log(2) + b"\xff\x1b[31m" + bytes(40))
    assert "\x1b" not in unprintable.findings[0].message


def test_frames_of_another_partition_behind_damage_are_not_ours() -> None:
    data = log(2) + bytes(8) + frame(2, partition=1) + frame(3, topic=b"orders2")
    found = scan(data)
    assert found.unreachable == ()
    assert found.findings[0].lost is not None
    assert found.findings[0].lost.records == 0


# -- other generations -------------------------------------------------------------------------


def framed(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body


def cdm4(offset: int) -> bytes:
    body = b"CDM4" + encode(Record(topic=b"orders", offset=offset))[4:] + bytes(4)
    return body + struct.pack(">I", crc32c(body))


def unversioned(offset: int) -> bytes:
    text = b"".join(
        (b"\0\6orders", bytes(4), struct.pack(">Q", offset), b"\0\1p", bytes(16), b"\0\0\0\2hi")
    )
    return framed(text)


def test_records_of_other_builds_are_named_once_and_kept_as_evidence() -> None:
    for other, name, reason in (
        ([framed(cdm4(offset)) for offset in range(2, 6)], "CDM4", "CDM4"),
        ([unversioned(offset) for offset in range(2, 6)], "unversioned", "unversioned_record"),
    ):
        data = log(2) + b"".join(other) + frame(6)
        batches: list[RecordBatch] = []
        found = scan_segment(Source(data), ref(len(data)), batches.append)
        (item,) = found.findings
        assert (item.code, item.effect) == ("unsupported_record_format", "refuses")
        assert item.position == len(log(2))
        assert (item.detail["record_format"], item.detail["reason"]) == (name, reason)
        behind = [item.record.offset for batch in batches if not batch.reachable for item in batch]
        assert behind == [2, 3, 4, 5, 6]


def test_a_record_of_a_newer_build_with_a_bad_checksum() -> None:
    data = log(2) + framed(cdm4(2)[:-1] + b"?")
    (item,) = scan(data).findings
    assert item.code == "unsupported_record_format"
    assert item.detail["reason"] == "record_checksum_mismatch"


# -- evidence that does not hold still ---------------------------------------------------------


def test_a_file_that_shrinks_is_a_finding() -> None:
    data = log(100)
    whole = log(60)
    found = scan_segment(Source(data, shrunk=len(whole) + 10), ref(len(data)))
    assert found.end == "unreadable"
    assert codes(found.findings) == ["file_changed_while_reading"]
    assert found.findings[0].effect == "unknown"
    assert scan_segment(Source(data, shrunk=0), ref(len(data))).end == "unreadable"


def test_a_disk_that_fails_is_a_finding() -> None:
    data = log(100)
    found = scan_segment(BrokenSource(data), ref(len(data)))
    assert (found.end, codes(found.findings)) == ("unreadable", ["file_unreadable"])
    assert (found.findings[0].effect, found.findings[0].step) == ("refuses", 2)


def test_what_is_appended_meanwhile_is_not_looked_at() -> None:
    data = log(10)
    found = scan_segment(Source(data + b"more"), ref(len(data)))
    assert (found.end, found.record_count) == ("clean", 10)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_no_bytes_escape_as_an_exception(data: st.DataObject) -> None:
    content = bytearray(log(data.draw(st.integers(0, 6))))
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.integers(0, len(content)))
        patch = data.draw(
            st.binary(max_size=12)
            | st.sampled_from([b"CDM2", b"CDM4", bytes(16), b"\0\0\0\x60CDM2\0\6orders", frame(3)])
        )
        content[at : at + data.draw(st.integers(0, 30))] = patch
    seen: list[ScannedRecord] = []
    found = scan_segment(
        Source(bytes(content)),
        ref(len(content), active=data.draw(st.booleans()), internal=data.draw(st.booleans())),
        lambda batch: seen.extend(batch) if batch.reachable else None,
    )
    assert found.record_count == len(seen)
    assert found.end_position == sum(item.length for item in seen)
    assert (found.end == "clean") == (found.end_position == len(content))
    if found.end != "clean":
        assert {item.effect for item in found.findings} & {"refuses", "repairs"}


# -- cost --------------------------------------------------------------------------------------

HEAD = b"CDM2\0\6orders" + bytes(4)
HOSTILE = {
    "magic": b"CDM2",
    "false frames": struct.pack(">I", 0x10000) + HEAD,
    "payloads far ahead": struct.pack(">I", 0x200000) + HEAD + bytes(26) + b"\0\x1f\0\0",
    "lonely frames": frame(5) + b"x",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_the_search_behind_damage_is_linear(name: str) -> None:
    unit = HOSTILE[name]

    def cost(size: int) -> tuple[int, float]:
        source = Source(bytes(4) + unit * (size // len(unit)))
        start = time.process_time()
        found = scan_segment(source, ref(source.size))
        assert found.end == "damaged"
        return source.bytes_read, time.process_time() - start

    small, _ = cost(1 << 20)
    large, seconds = cost(4 << 20)
    assert large <= 5 * small + (1 << 20)
    assert large <= 6 * (4 << 20)
    assert seconds < 20


def test_runs_behind_damage_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_scan, "MAX_RUNS", 10)
    data = bytes(8) + b"x".join(frames(range(1, 101)))
    found = scan(data)
    assert len(found.unreachable) == 10
    assert sum(run.records for run in found.unreachable) == 100
    assert found.unreachable[-1].last_offset == 100
    assert found.findings[0].lost is not None
    assert found.findings[0].lost.records == 100
    ends = [run.position + run.length for run in found.unreachable]
    assert ends[-1] == len(data)
    assert ends == sorted(ends)


def test_nothing_is_allocated_by_an_unchecked_length() -> None:
    for length in (MAX_RECORD_BYTES, MAX_RECORD_BYTES + 1, 2**32 - 1):
        data = log(2) + struct.pack(">I", length) + b"CDM2\0\6orders"
        tracemalloc.start()
        scan(data)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 2 << 20


def test_memory_is_bounded_by_the_window_not_by_the_file() -> None:
    class Endless:
        """A log of 40 MiB that never exists as a whole."""

        step = encode_frame(Record(topic=b"orders", payload=bytes(4096)))
        size = 10_000 * len(step)

        def pread(self, length: int, position: int) -> bytes:
            step = len(self.step)
            first = position // step
            parts = [
                encode_frame(Record(topic=b"orders", offset=offset, payload=bytes(4096)))
                for offset in range(first, (position + length - 1) // step + 1)
            ]
            at = position - first * step
            return b"".join(parts)[at : at + length]

    source = Endless()
    seen = 0

    def visit(batch: RecordBatch) -> None:
        nonlocal seen
        seen += len(batch)

    tracemalloc.start()
    found = scan_segment(source, ref(source.size), visit)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (found.end, seen) == ("clean", 10_000)
    assert peak < 20 << 20


def test_large_records_are_held_one_at_a_time() -> None:
    size = 8 << 20
    data = b"".join(frame(offset, payload=bytes(size)) for offset in range(4))
    source = Source(data)
    tracemalloc.start()
    found = scan_segment(source, ref(len(data)), lambda batch: None)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.record_count == 4
    # The window, the record before it and the one that is being decoded.
    assert peak < 3 * size + (2 << 20)


# -- the files of a partition ------------------------------------------------------------------


def write(log_dir: Path, logs: dict[int, bytes], topic: str = TOPIC) -> Path:
    directory = log_dir / topic
    directory.mkdir()
    for base, data in logs.items():
        (directory / f"partition_0_segment_{base:020d}.log").write_bytes(data)
        (directory / f"partition_0_segment_{base:020d}.index").write_bytes(bytes(256))
    return directory


def judge(log_dir: Path, topic: str = TOPIC) -> PartitionLog:
    with LogDirectory.at(str(log_dir)) as evidence:
        storage = judge_topics(evidence, replay_manifest(evidence)).topics[topic]
        return judge_partition(
            evidence, topic, 0, storage.partitions[0], internal=topic == "__consumer_offsets"
        )


def test_a_partition_of_three_segments(tmp_path: Path) -> None:
    logs = {base: b"".join(frames(range(base, base + 4))) for base in (0, 4, 8)}
    write(tmp_path, logs)
    found = judge(tmp_path)
    assert found.findings == ()
    assert [scan.segment.active for scan in found.segments] == [False, False, True]
    assert (found.log_start, found.first_offset, found.log_end, found.next_offset) == (0, 0, 12, 12)
    assert (found.record_count, found.cut, found.readable, found.damaged) == (12, None, True, False)


@pytest.mark.parametrize(
    ("second", "code"),
    [(6, "segment_offsets_gap"), (3, "segment_offsets_overlap")],
)
def test_seams_lose_data_and_refuse_for_offsets_of_consumers(
    tmp_path: Path, second: int, code: str
) -> None:
    for topic, effect, step in ((TOPIC, "data_missing", 2), ("__consumer_offsets", "refuses", 3)):
        name = topic.encode()
        logs = {
            0: b"".join(frames(range(4), topic=name)),
            second: b"".join(frames(range(second, second + 2), topic=name)),
        }
        write(tmp_path, logs, topic)
        (item,) = judge(tmp_path, topic).findings
        assert (item.code, item.effect, item.step) == (code, effect, step)
        if code == "segment_offsets_gap":
            assert item.lost is not None
            assert (item.lost.records, item.lost.first_offset, item.lost.last_offset) == (2, 4, 5)


@pytest.mark.parametrize(
    ("topic", "effect"), [(TOPIC, "data_missing"), ("__consumer_offsets", "refuses")]
)
def test_an_empty_active_segment_below_the_end_repeats_offsets(
    tmp_path: Path, topic: str, effect: str
) -> None:
    data = b"".join(frames(range(4), topic=topic.encode()))
    write(tmp_path, {0: data, 2: b""}, topic)
    (item,) = judge(tmp_path, topic).findings
    assert (item.code, item.effect) == ("segment_offsets_overlap", effect)


def test_an_error_of_the_visitor_is_not_one_of_the_file() -> None:
    def visit(_batch: object) -> None:
        raise BrokenPipeError

    data = log(4)
    with pytest.raises(BrokenPipeError):
        scan_segment(Source(data), ref(len(data)), visit)


@pytest.mark.parametrize(
    ("topic", "effect"), [(TOPIC, "data_missing"), ("__consumer_offsets", "refuses")]
)
def test_an_empty_active_segment_above_the_end_says_what_is_gone(
    tmp_path: Path, topic: str, effect: str
) -> None:
    data = b"".join(frames(range(4), topic=topic.encode()))
    write(tmp_path, {0: data, 9: b""}, topic)
    found = judge(tmp_path, topic)
    (item,) = found.findings
    assert (item.code, item.effect) == ("segment_offsets_gap", effect)
    assert item.lost == Lost(records=5, first_offset=4, last_offset=8)
    assert (found.log_end, found.next_offset) == (4, 9)


def test_a_compaction_may_have_emptied_the_end_before_an_empty_active_segment(
    tmp_path: Path,
) -> None:
    compacted = log(4)
    directory = write(tmp_path, {0: compacted, 9: b""})
    name = f"partition_0_segment_{0:020d}.log.compacted-{len(compacted)}"
    (directory / name).write_bytes(compaction_marker.encode())
    assert judge(tmp_path).findings == ()


def test_a_log_without_records_ends_at_its_lowest_base(tmp_path: Path) -> None:
    write(tmp_path, {5: b"", 9: b""})
    found = judge(tmp_path)
    assert (found.log_start, found.first_offset, found.log_end, found.next_offset) == (
        5,
        None,
        5,
        9,
    )
    # Something made the broker begin a segment at 9: what stood from 5 on is gone.
    (item,) = found.findings
    assert (item.code, item.lost) == (
        "segment_offsets_gap",
        Lost(records=4, first_offset=5, last_offset=8),
    )


def test_markers_allow_gaps_only_for_their_own_size(tmp_path: Path) -> None:
    compacted = b"".join(frames([1, 3]))
    directory = write(tmp_path, {0: compacted, 4: frame(4)})
    name = "partition_0_segment_00000000000000000000.log.compacted-"
    marker = directory / f"{name}{len(compacted)}"
    marker.write_bytes(compaction_marker.encode())
    assert judge(tmp_path).findings == ()
    stale = directory / f"{name}1"
    stale.write_bytes(b"")
    assert codes(judge(tmp_path).findings) == ["compaction_marker_stale"]
    stale.unlink()
    marker.write_bytes(b"cursus-compaction-v2\n")
    found = judge(tmp_path).findings
    assert found[0].code == "compaction_marker_invalid"
    assert found[0].path == f"{TOPIC}/{marker.name}"
    assert "segment_first_offset_mismatch" in codes(found)


def test_a_marker_of_the_active_segment_has_no_effect(tmp_path: Path) -> None:
    data = b"".join(frames([0, 2]))
    directory = write(tmp_path, {0: data})
    marker = directory / f"partition_0_segment_{0:020d}.log.compacted-{len(data)}"
    marker.write_bytes(compaction_marker.encode())
    assert codes(judge(tmp_path).findings) == ["record_offset_not_contiguous"]


def test_an_index_is_compared_with_the_records_it_points_to(tmp_path: Path) -> None:
    items = frames(range(8))
    step = len(items[0])
    for data, content, expected in (
        (b"".join(items), [(2, 2 * step), (4, 4 * step)], []),
        (b"".join(items), [(2, 2 * step), (3, 4 * step)], [("index_entry_mismatch", 16)]),
        (b"".join(items), [(2, 2 * step + 1)], [("index_entry_mismatch", 0)]),
        (b"".join(items), [(2, 2 * step), (9, 9 * step)], [("index_entry_beyond_log", 16)]),
        # Behind a cut, an entry is beyond the log that is left.
        (b"".join(items)[:-3], [(7, 7 * step)], [("index_entry_beyond_log", 0)]),
        # Behind damage nothing can be compared.
        (b"".join(items[:4]) + bytes(step) + b"".join(items[5:]), [(7, 7 * step)], []),
    ):
        directory = tmp_path / f"{len(list(tmp_path.iterdir()))}"
        directory.mkdir()
        topic = write(directory, {0: data})
        index = topic / f"partition_0_segment_{0:020d}.index"
        index.write_bytes(offset_index.encode(content).ljust(256, b"\0"))
        found = [item for item in judge(directory).findings if item.code.startswith("index_")]
        assert [(item.code, item.position) for item in found] == expected
        assert all(item.severity == "info" for item in found)


def test_deleted_segments_are_evidence_of_nothing_wrong(tmp_path: Path) -> None:
    directory = write(tmp_path, {4: b"".join(frames(range(4, 8)))})
    gone = directory / f"partition_0_segment_{0:020d}.log.deleted"
    gone.write_bytes(b"".join(frames([1, 3])))
    found = judge(tmp_path)
    assert codes(found.findings)[0] == "deleted_segment_leftover"
    assert {item.effect for item in found.findings} == {"recovers", "ignores"}
    assert (found.log_start, found.record_count) == (4, 4)
    assert [scan.record_count for scan in found.deleted] == [2]
