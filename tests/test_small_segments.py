"""Small segments read together say what each of them says by itself.

Directories of hundreds of small segments, many of them damaged in every way that
a single log is damaged elsewhere, are scanned both ways: with what comes next
told beforehand, and record by record.
"""

from __future__ import annotations

import gc
import os
import random
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from test_column_scan import Plainly, entries_of, log_of, mutations, prefix_of, records

from cursus import layout
from cursus.evidence import small_segments
from cursus.evidence.segment_scan import DEFAULT
from cursus.evidence.small_segments import SmallSegments
from cursus.evidence.walk import LogDirectory
from cursus.formats.offset_index import Prefix
from cursus.formats.record import encode_frame
from cursus.layout import FileKind
from cursus.replay.interfaces import Entry, RecordBatch, SegmentRef, SegmentScan

TOPIC = "orders"
Answer = tuple[SegmentScan, list[tuple[object, ...]]]


def write(log_dir: Path, partition: int, data: bytes, base: int = 0) -> Path:
    path = log_dir / TOPIC / layout.segment_log(partition, base)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    return path


def good_log(partition: int, count: int, chance: random.Random, base: int = 0) -> bytes:
    made = records(count, chance, partition=partition)
    return log_of(replace(record, offset=base + record.offset) for record in made)


def logs(evidence: LogDirectory) -> list[Entry]:
    kinds = {FileKind.SEGMENT_LOG, FileKind.DELETED_LOG}
    return [entry for entry in evidence.entries if entry.kind in kinds]


def ref_of(entry: Entry, **changes: bool) -> SegmentRef:
    return SegmentRef(
        path=entry.path,
        topic=entry.topic or "",
        partition=entry.partition or 0,
        base=entry.base or 0,
        size=entry.size,
        active=changes.get("active", True),
        deleted=entry.kind is FileKind.DELETED_LOG,
        gaps_allowed=changes.get("gaps_allowed", False),
        internal=changes.get("internal", False),
    )


def scanned(
    evidence: LogDirectory, index: Callable[[Entry], Prefix | None], *, expected: bool
) -> list[Answer]:
    """Every segment, as somebody judges it who walks over the records and over the columns."""
    answers: list[Answer] = []
    entries = logs(evidence)
    if expected:
        evidence.expect(entries)
    for number, entry in enumerate(entries):
        seen: list[tuple[object, ...]] = []

        def visit(batch: RecordBatch, seen: list[tuple[object, ...]] = seen) -> None:
            items = list(batch)
            columns = batch.columns()
            assert [columns.record(row) for row in range(len(columns))] == [
                item.record for item in items
            ]
            assert columns.position.tolist() == [item.position for item in items]
            assert columns.length.tolist() == [item.length for item in items]
            seen += [(batch.reachable, batch.segment, item) for item in items]

        ref = ref_of(
            entry,
            active=number % 3 > 0,
            gaps_allowed=number % 5 == 0,
            internal=number % 7 == 0,
        )
        answers.append((evidence.scan(ref, visit, index(entry)), seen))
    return answers


def compare(log_dir: Path, index: Callable[[Entry], Prefix | None] = lambda _: None) -> list[str]:
    """Both ways; returns how the scans ended."""
    with LogDirectory.at(str(log_dir)) as together, Plainly.at(str(log_dir)) as alone:
        found = scanned(together, index, expected=True)
        assert found == scanned(alone, index, expected=False)
    return [scan.end for scan, _ in found]


@pytest.mark.parametrize("share", [0.0, 0.02, 0.3, 1.0])
@pytest.mark.parametrize("chunk", [1, 3000, 2 << 20])
def test_damaged_ones_among_good_ones(
    share: float, chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(small_segments, "CHUNK_BYTES", chunk)
    chance = random.Random(f"{share} {chunk}")
    for partition in range(250):
        base = chance.choice((0, 0, 7, 2**63 - 2, 2**63, 2**64 - 30))
        data = good_log(partition, chance.choice((1, 3, 10, 70)), chance)
        if base:
            data = good_log(partition, 5, chance, base=base)
        if chance.random() < share:
            (data,) = mutations(data, 1, chance)
        write(tmp_path, partition, data, base)
    ends = compare(tmp_path)
    assert ends.count("clean") == 250 if not share else "damaged" in ends


def test_every_bit_and_every_length_of_a_small_log(tmp_path: Path) -> None:
    chance = random.Random(1)
    data = log_of(records(3, chance, producer_id=b"p", transactional_id=b"t"))
    changed = [data[:at] for at in range(len(data))]
    for at in range(len(data)):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[at] ^= 1 << bit
            changed.append(bytes(flipped))
    # All in one partition: each base is that of its first record, or would be.
    for number, each in enumerate(changed):
        write(tmp_path, 0, each, base=number)
    compare(tmp_path)
    for path in (tmp_path / TOPIC).iterdir():
        path.unlink()
    for number, each in enumerate(changed):
        partition = number.to_bytes(4, "big")
        at = 4 + 4 + 2 + len(TOPIC)
        kept = each[at : at + 4] == bytes(4)
        write(tmp_path, number, each[:at] + partition + each[at + 4 :] if kept else each)
    compare(tmp_path)


def test_records_of_other_topics_and_partitions(tmp_path: Path) -> None:
    chance = random.Random(2)
    for partition in range(40):
        made = records(4, chance, partition=partition)
        if partition % 2:
            row = chance.randrange(4)
            other = {"topic": b"others"} if partition % 4 == 1 else {"partition": partition + 1}
            made[row] = replace(made[row], **other)  # type: ignore[arg-type]
        write(tmp_path, partition, b"".join(map(encode_frame, made)))
    compare(tmp_path)


def test_gaps_and_repeated_offsets(tmp_path: Path) -> None:
    chance = random.Random(3)
    for partition in range(60):
        made = records(6, chance, partition=partition)
        row = chance.randrange(6)
        made[row] = replace(made[row], offset=chance.choice((0, 1, 4, 9, 2**64 - 1)))
        write(tmp_path, partition, log_of(made))
    compare(tmp_path)


def test_indexes_beside_them(tmp_path: Path) -> None:
    chance = random.Random(4)
    prefixes: dict[str, Prefix] = {}
    for partition in range(60):
        data = good_log(partition, 12, chance)
        path = write(tmp_path, partition, data)
        entries = entries_of(data)
        if partition % 3 == 1:
            at = chance.randrange(len(entries))
            entries[at] = (entries[at][0], entries[at][1] + 1)
        if partition % 3 == 2:
            entries.append((entries[-1][0] + 1, len(data) + chance.randrange(3)))
        prefixes[f"{TOPIC}/{path.name}"] = prefix_of(entries)
    compare(tmp_path, lambda entry: prefixes[entry.path])


# -- it is used, and for good ones only --------------------------------------------------------


def test_good_ones_are_answered_without_a_scan_of_their_own(tmp_path: Path) -> None:
    chance = random.Random(5)
    for partition in range(100):
        data = good_log(partition, 5, chance)
        write(tmp_path, partition, data[:-1] if partition == 50 else data)
    with LogDirectory.at(str(tmp_path)) as evidence:
        small = SmallSegments(DEFAULT.plain_below)
        entries = logs(evidence)
        small.expect(entries)
        answered = [
            entry.partition
            for entry in entries
            if small.scan(evidence.open, ref_of(entry), None, None) is not None
        ]
        # What was not announced, or not in this order, is left to its scan.
        assert small.scan(evidence.open, ref_of(entries[0]), None, None) is None
        small.expect(entries)
        assert small.scan(evidence.open, ref_of(entries[1]), None, None) is None
        assert small.scan(evidence.open, ref_of(entries[0]), None, None) is not None
        # So is what is asked for under another name than that of the walk.
        assert (
            small.scan(evidence.open, replace(ref_of(entries[1]), partition=7), None, None) is None
        )
    assert sorted(answered) == [number for number in range(100) if number != 50]


def test_a_directory_is_let_go_without_the_collector_of_cycles(tmp_path: Path) -> None:
    write(tmp_path, 0, good_log(0, 5, random.Random(7)))
    with LogDirectory.at(str(tmp_path)) as evidence:
        evidence.expect(logs(evidence))
        assert evidence.scan(ref_of(logs(evidence)[0])).end == "clean"
        watched = weakref.ref(evidence._small)
    gc.disable()
    try:
        del evidence
        assert watched() is None
    finally:
        gc.enable()


def test_what_became_of_a_file_since_the_walk_is_told_as_ever(tmp_path: Path) -> None:
    chance = random.Random(6)
    paths = [write(tmp_path, number, good_log(number, 5, chance)) for number in range(6)]
    with LogDirectory.at(str(tmp_path)) as together, Plainly.at(str(tmp_path)) as alone:
        paths[1].write_bytes(paths[1].read_bytes()[:-3])
        paths[2].unlink()
        paths[3].unlink()
        os.mkfifo(paths[3])
        paths[4].unlink()
        paths[4].symlink_to(paths[0])
        entries = logs(together)
        together.expect(entries)
        found = [together.scan(ref_of(entry)) for entry in entries]
        alone.expect(entries)
        other = [LogDirectory.scan(alone, ref_of(entry)) for entry in entries[::-1]][::-1]
        assert found == other
    ends = [scan.end for scan in found]
    assert ends == ["clean", "unreadable", "unreadable", "unreadable", "unreadable", "clean"]
    codes = [scan.findings[0].code for scan in found if scan.findings]
    assert codes[0] == codes[2] == "file_changed_while_reading"
