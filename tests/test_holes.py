"""Holes: a sparse file of a terabyte costs what stands in it, not what it claims."""

from __future__ import annotations

import os
import random
from pathlib import Path

import index_help
import pytest
import test_column_scan as scans

from cursus import layout
from cursus.evidence.plain_scan import scan_plain
from cursus.evidence.segment_scan import scan_segment
from cursus.evidence.walk import LogDirectory
from cursus.replay import aggregates
from cursus.replay.startup import plan
from cursus.replay.transactions import scan_journal
from inspect_db import fixtures, load
from inspect_db.load.digests import BLOCK_BYTES, BlockDigester

TERABYTE = 1 << 40
NAME = "small-healthy"


class Sparse:
    """A file that is a hole but for some parts, and counts what is read of it."""

    def __init__(self, size: int, parts: dict[int, bytes]) -> None:
        self.size = size
        self.parts = parts
        self.read = 0

    def pread(self, length: int, position: int) -> bytes:
        length = max(min(length, self.size - position), 0)
        self.read += length
        assert self.read < 64 << 20, "holes are read"
        data = bytearray(length)
        for begin, part in self.parts.items():
            first, last = max(begin, position), min(begin + len(part), position + length)
            if first < last:
                data[first - position : last - position] = part[first - begin : last - begin]
        return bytes(data)

    def data_from(self, position: int) -> int:
        ends = [
            max(begin, position)
            for begin, part in self.parts.items()
            if position < begin + len(part)
        ]
        return min(ends, default=self.size)


@pytest.mark.parametrize("begin", [0, TERABYTE // 2 + 77])
def test_a_log_with_a_hole_is_searched_without_reading_it(begin: int) -> None:
    frames = scans.log_of(scans.records(30, random.Random(1)))
    source = Sparse(TERABYTE, {0: frames, begin: frames} if begin else {0: frames})
    found = [
        scan_plain(source, scans.ref(TERABYTE)),
        scan_segment(source, scans.ref(TERABYTE)),
    ]
    assert found[0] == found[1]
    assert [(item.code, item.position) for item in found[0].findings] == [
        ("record_length_invalid", len(frames))
    ]
    assert [run.position for run in found[0].unreachable] == ([begin] if begin else [])


def test_all_bytes_of_a_log_are_told_the_holes_as_such() -> None:
    frames = scans.log_of(scans.records(30, random.Random(1)))
    source = Sparse(TERABYTE, {0: frames, TERABYTE - 5: b"ends."})
    at = 0
    parts = []

    def on_bytes(position: int, part: memoryview) -> None:
        nonlocal at
        assert position == at
        at += len(part)
        parts.append(bytes(part))

    def on_hole(position: int, length: int) -> None:
        nonlocal at
        assert position == at
        at += length

    scan_segment(source, scans.ref(TERABYTE), on_bytes=on_bytes, on_hole=on_hole)
    assert at == TERABYTE
    assert b"".join(parts).startswith(frames)
    assert parts[-1] == b"ends."


def test_a_file_that_shrinks_is_no_hole(tmp_path: Path) -> None:
    (tmp_path / "orders").mkdir()
    path = tmp_path / "orders" / layout.segment_log(0, 0)
    path.write_bytes(bytes(5_000_000))
    with LogDirectory.at(str(tmp_path)) as evidence, evidence.open(f"orders/{path.name}") as source:
        os.truncate(path, 1_000_000)
        found = scan_segment(source, scans.ref(source.size))
    assert (found.end, found.findings[-1].code) == ("unreadable", "file_changed_while_reading")


def test_a_journal_with_a_hole() -> None:
    source = Sparse(TERABYTE, {})
    scan = scan_journal(source, TERABYTE)
    assert scan.problem is not None
    assert (scan.problem.code, scan.searched) == ("journal_frame_length_invalid", True)


def test_keys_are_counted_however_few_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    """Zeros are records of one empty key each."""
    monkeypatch.setattr(aggregates, "MAX_KEYS", 10)
    file = aggregates._File("keys", scans.Source(bytes(1005)))
    assert aggregates._keys(file, []) is None


@pytest.mark.parametrize("whole", [False, True])
def test_zeros_are_digested_as_if_they_had_been_read(whole: bool) -> None:
    chance = random.Random(3)
    for _ in range(20):
        one, other = BlockDigester(whole=whole), BlockDigester(whole=whole)
        for _ in range(4):
            data = chance.randbytes(chance.choice([0, 1, BLOCK_BYTES - 1, BLOCK_BYTES]))
            size = chance.choice([0, 1, 77, BLOCK_BYTES - 1, BLOCK_BYTES, 3 * BLOCK_BYTES + 5])
            one.update(data + bytes(size))
            other.update(data)
            other.zeros(size)
        assert one.close() == other.close()


LARGE = {
    "orders/partition_0_segment_00000000000000000000.log": "record_length_invalid",
    "orders/partition_0_segment_00000000000000000501.log": "record_length_invalid",
    "__transaction_state.journal": "journal_frame_length_invalid",
    "quotes/partition_0/partition_0_stream.idx": "stream_index_diverges_from_log",
    "orders/partition_0_segment_00000000000000000501.index": "index_size_unaligned",
    "orders/partition_0.hwm": "hwm_checkpoint_invalid",
    "notes.txt": "unknown_file",
}


@pytest.mark.parametrize("name", LARGE)
def test_a_terabyte_in_a_directory(name: str, tmp_path: Path) -> None:
    fixture = index_help.FIXTURES[NAME]
    log_dir = fixtures.materialise(fixture, tmp_path)
    with (log_dir / name).open("ab") as file:
        try:
            os.truncate(file.fileno(), TERABYTE - 3)
        except OSError:
            pytest.skip("files of this size cannot be made here")
    with LogDirectory.at(str(log_dir)) as evidence:
        judged = plan(evidence, as_of=fixture.as_of)
    assert LARGE[name] in {item.code for item in judged.findings if item.path == name}
    index = tmp_path / "index.db"
    result = load.build(str(log_dir), str(index), load.BuildOptions(fixture.as_of, records="none"))
    assert result.verdict == judged.verdict


def test_a_hole_and_its_zeros_have_the_same_digest(tmp_path: Path) -> None:
    """Copying may fill holes or make them: nothing in the index shows it."""
    fixture = index_help.FIXTURES[NAME]
    digests = []
    for sparse in (True, False):
        place = tmp_path / str(sparse)
        place.mkdir()
        log_dir = fixtures.materialise(fixture, place)
        for name in LARGE:
            with (log_dir / name).open("ab") as file:
                size = file.seek(0, os.SEEK_END)
                if sparse:
                    os.truncate(file.fileno(), size + 5_000_000)
                else:
                    file.write(bytes(5_000_000))
        load.build(str(log_dir), str(place / "index.db"), load.BuildOptions(fixture.as_of))
        listing = "select path, content from files order by path"
        digests.append(index_help.rows(place / "index.db", listing))
    assert digests[0] == digests[1]
