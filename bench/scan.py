"""How fast segments are read, as multiples of the yardstick and of reading the files at all."""

from __future__ import annotations

import json
import os
import random
import statistics
import struct
from functools import partial
from pathlib import Path
from typing import Final

from bench import index_data, yardstick
from bench.harness import Benchmark, Figures, Goal, Scale, in_turns, ratio
from cursus import layout
from cursus.evidence.walk import LogDirectory
from cursus.formats import offset_index
from cursus.formats.offset_index import Prefix
from cursus.layout import FileKind
from cursus.replay.interfaces import Entry, SegmentRef, SegmentScan
from cursus.replay.segments import MAX_INDEX_BYTES
from cursus.replay.startup import plan
from inspect_db.load.digests import BlockDigester

RECORDS: Final = 2_000_000
SMALL_FILES: Final = 20_000
SMALL_RECORDS: Final = 10
TOPIC: Final = "events"


def benchmarks() -> list[Benchmark]:
    """One segment of two million records, many small segments, snapshots of offsets."""
    return [
        Benchmark(
            "scan one segment",
            one_segment,
            (
                Goal("with_index_to_yardstick", at_least=5),
                Goal("without_index_to_yardstick", at_least=3.5),
                Goal("with_digests_to_yardstick", at_least=4),
            ),
        ),
        Benchmark("scan small segments", small_segments, (Goal("scan_to_reading", at_most=3),)),
        Benchmark("scan committed offsets", committed_offsets),
    ]


# -- data ------------------------------------------------------------------------------------


def write_segment(log_dir: Path, partition: int, count: int, seed: int = 1) -> None:
    """A segment and its index: sixteen producers, keys, payloads of 48 to 111 bytes.

    Frames are put together from their parts, which takes a third of the time of
    encoding them: the same bytes every time.
    """
    chance = random.Random(seed)
    noise = chance.randbytes(4096)
    head = b"CDM2" + struct.pack(">H", len(TOPIC)) + TOPIC.encode() + struct.pack(">I", partition)
    sequences = [0] * 16
    entries: list[tuple[int, int]] = []
    position = indexed = 0
    topic = log_dir / TOPIC
    topic.mkdir(parents=True, exist_ok=True)
    with (topic / layout.segment_log(partition, 0)).open("wb") as log:
        for offset in range(count):
            size, producer = 48 + chance.randrange(64), chance.randrange(16)
            sequences[producer] += 1
            at = chance.randrange(3900)
            body = b"".join(
                (
                    head,
                    struct.pack(">Q", offset),
                    b"\0\6app-%02d" % producer,
                    struct.pack(">QQI", sequences[producer], 1, size),
                    noise[at : at + size],
                    bytes(16),
                    b"\0\x10customer-%07d" % chance.randrange(10**6),
                    bytes(22),
                )
            )
            if offset_index.is_due(position, indexed, 0):
                entries.append((offset, position))
                indexed = position
            log.write(struct.pack(">I", len(body)) + body)
            position += 4 + len(body)
    (topic / layout.segment_index(partition, 0)).write_bytes(offset_index.encode(entries))


def _ref(entry: Entry) -> SegmentRef:
    return SegmentRef(
        path=entry.path,
        topic=entry.topic or "",
        partition=entry.partition or 0,
        base=entry.base or 0,
        size=entry.size,
        active=True,
        deleted=False,
        gaps_allowed=False,
        internal=False,
    )


def _logs(evidence: LogDirectory) -> list[SegmentRef]:
    return [_ref(entry) for entry in _log_entries(evidence)]


def _log_entries(evidence: LogDirectory) -> list[Entry]:
    return [entry for entry in evidence.entries if entry.kind is FileKind.SEGMENT_LOG]


# -- one large segment ---------------------------------------------------------------------------


def one_segment(scale: Scale) -> Figures:
    """Every check, one process; the file is in the page cache."""
    count = 20_000 if scale.quick else RECORDS
    with scale.place() as place:
        write_segment(place, 0, count)
        with LogDirectory.at(str(place)) as evidence:
            (segment,) = _logs(evidence)
            path = str(place / segment.path)
            index = place / TOPIC / layout.segment_index(0, 0)
            assert yardstick.walk(path) == (count, count * (count - 1) // 2)

            def scan(with_index: bool, digests: bool) -> None:
                prefix = _prefix(evidence, index.name) if with_index else None
                taken = BlockDigester(whole=False)
                found = evidence.scan(
                    segment,
                    None,
                    prefix,
                    on_bytes=(lambda _, part: taken.update(part)) if digests else None,
                )
                _check(found, count)
                assert taken.position == (segment.size if digests else 0)

            spent = in_turns(
                scale.runs,
                yardstick=lambda: yardstick.walk(path),
                with_index=lambda: scan(True, False),
                without_index=lambda: scan(False, False),
                with_digests=lambda: scan(True, True),
            )
    figures: Figures = {
        f"{name}_records_per_s": count / statistics.median(times) for name, times in spent.items()
    }
    for name in ("with_index", "without_index", "with_digests"):
        figures[f"{name}_to_yardstick"] = ratio(spent, "yardstick", name)
    return figures


def _prefix(evidence: LogDirectory, name: str) -> Prefix:
    return offset_index.valid_prefix(evidence.read(f"{TOPIC}/{name}", MAX_INDEX_BYTES))


def _check(found: SegmentScan, count: int) -> None:
    assert (found.end, found.record_count, found.findings) == ("clean", count, ())


# -- many small ones -----------------------------------------------------------------------------


def small_segments(scale: Scale) -> Figures:
    """A directory of small segments, walked and scanned: every entry looked at, every record
    checked. Times of a plain walk that opens and reads each file, and of one that decodes
    what is in it.
    """
    count = 300 if scale.quick else SMALL_FILES
    with scale.place() as place:
        write_segment(place, 0, SMALL_RECORDS)
        first = place / TOPIC / layout.segment_log(0, 0)
        data = first.read_bytes()
        (place / TOPIC / layout.segment_index(0, 0)).unlink()
        at = 4 + 4 + 2 + len(TOPIC)
        frame = 0
        places = []
        while frame < len(data):
            places.append(frame + at)
            frame += 4 + int.from_bytes(data[frame : frame + 4], "big")
        for partition in range(1, count):
            changed = bytearray(data)
            for place_of in places:
                changed[place_of : place_of + 4] = partition.to_bytes(4, "big")
            (place / TOPIC / layout.segment_log(partition, 0)).write_bytes(changed)
        spent = in_turns(
            scale.runs,
            reading=partial(_read_all, place, count),
            yardstick=partial(_walk_all, place, count),
            scan=partial(_scan_all, place, count),
        )
    return {
        "reading_files_per_s": count / statistics.median(spent["reading"]),
        "yardstick_files_per_s": count / statistics.median(spent["yardstick"]),
        "scanned_files_per_s": count / statistics.median(spent["scan"]),
        "scan_to_reading": ratio(spent, "scan", "reading"),
        "scan_to_yardstick": ratio(spent, "scan", "yardstick"),
    }


def _read_all(place: Path, count: int) -> None:
    seen = 0
    for directory, _, names in os.walk(place):
        for name in names:
            with open(os.path.join(directory, name), "rb", buffering=0) as file:
                file.read()
            seen += 1
    assert seen == count


def _walk_all(place: Path, count: int) -> None:
    found = [
        yardstick.walk(os.path.join(directory, name))
        for directory, _, names in os.walk(place)
        for name in names
    ]
    assert len(found) == count
    assert {records for records, _ in found} == {SMALL_RECORDS}


def _scan_all(place: Path, count: int) -> None:
    with LogDirectory.at(str(place)) as evidence:
        evidence.expect(_log_entries(evidence))
        found = [evidence.scan(segment) for segment in _logs(evidence)]
    assert len(found) == count
    for scan in found:
        _check(scan, SMALL_RECORDS)


# -- snapshots of offsets --------------------------------------------------------------------------


def committed_offsets(scale: Scale) -> Figures:
    """A verdict on a directory that holds snapshots of a thousand groups and little else.

    Times of the yardstick and of reading each payload as JSON, without any check.
    """
    groups, snapshots = (50, 4) if scale.quick else (1000, 100)
    with scale.place() as place:
        log_dir = place / "logs"
        index_data.make(log_dir, index_data.Shape(8000))
        index_data.make_consumers(log_dir, groups, snapshots)
        paths = sorted((log_dir / layout.INTERNAL_TOPIC).glob("*.log"))
        count = groups * (snapshots + 1)
        spent = in_turns(
            scale.runs,
            yardstick=lambda: _payloads_as_json(paths, count),
            verdict=lambda: _judge(log_dir),
        )
    return {
        "yardstick_records_per_s": count / statistics.median(spent["yardstick"]),
        "verdict_records_per_s": count / statistics.median(spent["verdict"]),
        "verdict_to_yardstick": ratio(spent, "yardstick", "verdict"),
    }


def _payloads_as_json(paths: list[Path], count: int) -> None:
    seen = 0
    for path in paths:
        data, at = path.read_bytes(), 0
        while at < len(data):
            json.loads(yardstick.decode(data, at + 4)[6])
            at += 4 + int.from_bytes(data[at : at + 4], "big")
            seen += 1
    assert seen == count


def _judge(log_dir: Path) -> None:
    with LogDirectory.at(str(log_dir)) as evidence:
        assert plan(evidence).verdict == "starts_clean"
