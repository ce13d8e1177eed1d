"""Every log directory of the segment vectors: what is read, reported, and whether a start refuses.

What the vectors say about writing (appends, compaction, truncation, retention,
the files after opening) is the matter of the engine's tests; :data:`WRITING`
names those members, and a member that nobody names fails here.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from cursus import layout
from cursus.evidence.walk import LogDirectory
from cursus.findings import CATALOGUE, Finding
from cursus.formats import offset_index
from cursus.layout import FileKind
from cursus.replay.interfaces import RecordBatch, ScannedRecord, SegmentScan
from cursus.replay.segments import PartitionLog, judge_partition
from cursus.replay.topics import judge_topics, persisted_topics, replay_manifest

GOLDEN = Path(__file__).resolve().parent.parent / "fixtures" / "golden"
SEGMENTS = GOLDEN / "segments"
LOGS: list[dict[str, Any]] = json.loads((SEGMENTS / "vectors.json").read_text("utf-8"))["logs"]
OVERRIDES = {
    (item["name"], item["field"]): item["value"]
    for item in json.loads((GOLDEN / "overrides.json").read_text("utf-8"))["overrides"]
    if item["topic"] == "segments"
}

#: Members of a case that this file reads.
READING = {
    "name",
    "description",
    "dir",
    "topic",
    "partition",
    "files_before",
    "inspect",
    "broker_open",
    "recommended_open",
    "recommended_inspect_codes",
}
#: Members that say what a writer does, with the reason why they are not judged here.
WRITING = {
    "config": "writing: settings of the broker that wrote the files",
    "files_after": "writing: files after opening, an action and closing",
    "after_dir": "writing: the directory of files_after",
    "append": "writing",
    "compaction": "writing",
    "truncate": "writing",
    "retention": "writing",
}

#: Codes that the reference inspector has too (segments.md section 18, last column "yes").
REFERENCE_CODES = {
    "topic_entry_symlink",
    "segment_name_not_canonical",
    "not_regular_file",
    "segment_id_out_of_range",
    "record_length_invalid",
    "torn_record_length",
    "torn_record_body",
    "unsupported_record_format",
    "record_field_truncated",
    "record_partition_out_of_range",
    "record_epoch_out_of_range",
    "record_trailing_bytes",
    "record_identity_mismatch",
    "segment_first_offset_mismatch",
    "record_offset_not_contiguous",
    "segment_offsets_overlap",
    "segment_offsets_gap",
    "compaction_marker_invalid",
}

#: What is reported beyond the reference, by the descriptions of the cases and section 18.
BEYOND_THE_REFERENCE: dict[str, set[str]] = {
    "sidecar_stale": {"compaction_marker_stale"},
    "crash_before_log_replace": {"compaction_marker_stale", "compaction_temp_leftover"},
    "crash_before_index_replace": {
        "compaction_temp_leftover",
        "index_entry_mismatch",
        "index_entry_beyond_log",
    },
    "leftovers": {"compaction_temp_leftover", "deleted_segment_leftover"},
    "internal_torn_tail": {"internal_metadata_tail_truncated"},
    "internal_deleted_leftover": {"internal_deleted_segment"},
    "flip_length_beyond_end": {"corrupt_non_tail"},
    "index_missing": {"index_missing"},
    "index_stray_entry": {"index_stray_entry"},
    "index_not_increasing": {"index_entry_not_increasing"},
    "index_beyond_log": {"index_entry_beyond_log"},
    "index_wrong_position": {"index_entry_mismatch"},
    "index_partial_entry": {"index_size_unaligned"},
    "index_larger_than_config": {"index_size_unaligned"},
    # Made by hand from the record codec, without an index beside the log.
    "legacy_unversioned_log": {"index_missing"},
    "first_offset_active": {"index_missing"},
    "gap_closed_no_sidecar": {"index_missing"},
    "missing_middle_segment": {"index_missing"},
    "overlapping_segments": {"index_missing"},
    "starts_above_zero": {"index_missing"},
    "wrong_topic": {"index_missing"},
    "wrong_partition": {"index_missing"},
    "name_not_numeric": {"index_missing"},
    "truncate_before_start": {"index_missing"},
}


@dataclass
class Judged:
    """One directory as the replay sees it."""

    candidates: set[str]
    names: tuple[Finding, ...]
    logs: dict[int, PartitionLog] = field(default_factory=dict)
    reachable: dict[str, list[ScannedRecord]] = field(default_factory=dict)
    unreachable: dict[str, list[ScannedRecord]] = field(default_factory=dict)

    @property
    def findings(self) -> list[Finding]:
        return [*self.names, *(item for log in self.logs.values() for item in log.findings)]


def judge(case: dict[str, Any]) -> Judged:
    directory = SEGMENTS / case["dir"]
    with LogDirectory.at(str(directory)) as evidence:
        topics = judge_topics(evidence, replay_manifest(evidence))
        found = Judged(set(persisted_topics(evidence)), topics.findings)

        def visit(batch: RecordBatch) -> None:
            where = found.reachable if batch.reachable else found.unreachable
            where.setdefault(batch.segment.path, []).extend(batch)

        storage = topics.topics.get(case["topic"])
        for partition, files in sorted(storage.partitions.items()) if storage else ():
            found.logs[partition] = judge_partition(
                evidence,
                case["topic"],
                partition,
                files,
                internal=case["topic"] == layout.INTERNAL_TOPIC,
                visit=visit,
            )
    return found


@pytest.fixture(params=[pytest.param(case, id=case["name"]) for case in LOGS], scope="module")
def case(request: pytest.FixtureRequest) -> dict[str, Any]:
    return dict(request.param)


@pytest.fixture(scope="module")
def judged(case: dict[str, Any]) -> Judged:
    return judge(case)


def test_every_member_of_a_case_is_judged_somewhere(case: dict[str, Any]) -> None:
    assert set(case) <= READING | set(WRITING)
    assert all(reason.startswith("writing") for reason in WRITING.values())


def test_copies_are_those_of_the_vectors(case: dict[str, Any]) -> None:
    for item in case["files_before"]:
        data = (SEGMENTS / case["dir"] / item["path"]).read_bytes()
        assert len(data) == item["size"]
        assert hashlib.sha256(data).hexdigest() == item["sha256"]


# -- reading -------------------------------------------------------------------------------


def test_frames(case: dict[str, Any], judged: Judged) -> None:
    """Good frames up to the first bad one; those behind it are found, but as unreachable."""
    for item in case["files_before"]:
        if "frames" not in item:
            continue
        frames = item["frames"]
        if kind_of(item["path"]) is FileKind.NONCANONICAL_LOG:
            assert item["path"] not in judged.reachable  # reported by its name only
            continue
        bad = [at for at, frame in enumerate(frames) if "offset" not in frame]
        end = bad[0] if bad else len(frames)
        before = judged.reachable.get(item["path"], [])
        assert [shown(record) for record in before] == [wanted(frame) for frame in frames[:end]]
        behind = [shown(record) for record in judged.unreachable.get(item["path"], [])]
        for frame in frames[end:]:
            if "offset" in frame:
                assert wanted(frame) in behind
        scan = scan_of(judged, item["path"])
        assert scan.end_position == sum(4 + frame["length"] for frame in frames[:end])
        if bad and "error_code" in frames[end]:
            first = next(found for found in scan.findings if found.position == scan.end_position)
            assert first.code == frames[end]["error_code"]
            for name, value in frames[end].get("detail", {}).items():
                assert first.detail[name] == value


def kind_of(path: str) -> FileKind:
    return layout.classify(tuple(path.split("/")), directory=False).kind


def wanted(frame: dict[str, Any]) -> dict[str, Any]:
    assert frame["complete"]
    empty = dict.fromkeys(
        ("transactional_id", "transaction_state", "transaction_marker", "control_type"), ""
    )
    return empty | frame


def shown(item: ScannedRecord) -> dict[str, Any]:
    record = item.record
    return {
        "complete": True,
        "position": item.position,
        "length": item.length - 4,
        "topic": record.topic.decode(),
        "partition": record.partition,
        "offset": record.offset,
        "producer_id": record.producer_id.decode(),
        "payload_sha256": hashlib.sha256(record.payload).hexdigest(),
        "key_hex": record.key.hex(),
        "transactional_id": record.transactional_id.decode(),
        "transaction_state": record.transaction_state.decode(),
        "transaction_marker": record.transaction_marker.decode(),
        "control_type": record.control_type.decode(),
    }


def scan_of(judged: Judged, path: str) -> SegmentScan:
    for log in judged.logs.values():
        for scan in (*log.segments, *log.deleted):
            if scan.segment.path == path:
                return scan
    raise AssertionError(f"{path} was not scanned")


def test_index_entries(case: dict[str, Any]) -> None:
    """``leading_entries`` go up to the first entry that is all zero."""
    for item in case["files_before"]:
        if "leading_entries" not in item:
            continue
        entries = [tuple(entry) for entry in item["leading_entries"]]
        data = (SEGMENTS / case["dir"] / item["path"]).read_bytes()
        assert data.startswith(offset_index.encode(entries))
        prefix = offset_index.valid_prefix(data)
        usable = list(zip(prefix.offsets, prefix.positions, strict=True))
        assert usable == entries[: len(usable)]
        if len(usable) < len(entries):
            assert prefix.not_increasing == len(usable) * offset_index.ENTRY_BYTES


# -- the inspector ---------------------------------------------------------------------------


def test_inspect_problems(case: dict[str, Any], judged: Judged) -> None:
    expected = {(item["code"], item["path"]) for item in case["inspect"]["problems"]}
    if "recommended_inspect_codes" in case:
        paths = {item["path"] for item in case["inspect"]["problems"]}
        assert len(paths) == 1
        expected = {(code, path) for code in case["recommended_inspect_codes"] for path in paths}
    found = {
        # The reference names the log that a compaction marker stands beside.
        (item.code, item.path.partition(".compacted-")[0])
        for item in judged.findings
        if item.code in REFERENCE_CODES
    }
    assert found == expected
    if "recommended_inspect_codes" in case:
        return
    for problem in case["inspect"]["problems"]:
        item = next(
            item
            for item in judged.findings
            if item.code == problem["code"] and item.path.startswith(problem["path"])
        )
        assert facts(item, problem.get("detail", {})) == problem.get("detail", {})


def facts(item: Finding, names: dict[str, Any]) -> dict[str, Any]:
    """Our facts under the names of the vectors: ``got``, ``expected``, ``field``, ``position``."""
    known: dict[str, Any] = dict(item.detail) | {"position": item.position}
    known["got"] = known.get("found", known.get("found_length"))
    known.setdefault("expected", known.get("base"))
    return {name: known[name] for name in names}


def test_what_is_reported_beyond_the_reference(case: dict[str, Any], judged: Judged) -> None:
    beyond = {item.code for item in judged.findings} - REFERENCE_CODES
    assert beyond == BEYOND_THE_REFERENCE.get(case["name"], set())
    for item in judged.findings:
        if item.code.startswith("index_"):
            assert item.severity == "info", "an index can never make data invalid"


def test_inspect_partitions(case: dict[str, Any], judged: Judged) -> None:
    inspect = case["inspect"]
    assert (case["topic"] in judged.candidates) == inspect["is_topic_candidate"]
    found = []
    for partition, log in judged.logs.items():
        start = log.log_start if log.first_offset is None else log.first_offset
        found.append(
            {
                "id": partition,
                "log_start": start,
                "log_end": log.log_end,
                "segments": [segment(scan) for scan in log.segments],
                "deleted_segments": [segment(scan) for scan in log.deleted],
            }
        )
    assert found == inspect["partitions"]


def segment(scan: SegmentScan) -> dict[str, Any]:
    ref = scan.segment
    return {
        "active": ref.active,
        "base_offset": ref.base,
        "first_offset": scan.first_offset or 0,
        "last_offset": scan.last_offset or 0,
        "path": ref.path,
        "record_count": scan.record_count,
        "size": ref.size,
        "state": "deleted" if ref.deleted else "active",
    }


# -- the broker --------------------------------------------------------------------------------


def test_judgement_of_opening(case: dict[str, Any], judged: Judged) -> None:
    reference = case["broker_open"]
    expected = OVERRIDES.get((case["name"], "broker_open"), case.get("recommended_open", reference))
    log = judged.logs.get(case["partition"])
    found = [*judged.names, *(log.findings if log else ())]
    refusing = [item for item in found if item.effect == "refuses"]
    if not expected["opens"]:
        first = refusing[0]
        assert expected["error_code"] in {first.code, *CATALOGUE[first.code].also_named}
        assert first.severity == "error"
        assert first.step == (3 if case["topic"] == layout.INTERNAL_TOPIC else 2)
        detail = expected.get("detail", {})
        assert facts(first, detail) == detail
        read = reference.get("read_all_from_first", {})
        if "error_code" in read:
            # Where the reference refuses the read only, the cause is the same.
            assert read["error_code"] == first.code
            assert facts(first, read.get("detail", {})) == read.get("detail", {})
        return
    assert refusing == []
    if log is None:  # a partition that a start would create
        assert (reference["segments"], reference["next_offset"]) == ([0], 0)
        assert case["inspect"]["partitions"] == []
        return
    active = log.segments[-1]
    assert {
        "opens": True,
        "active_bytes": log.cut[1] if log.cut else active.segment.size,
        "active_segment": active.segment.base,
        "first_offset": log.log_start,
        "next_offset": log.next_offset,
        "segments": [scan.segment.base for scan in log.segments],
        "read_all_from_first": {"offsets": read_forward(judged, log)},
    } == reference


def read_forward(judged: Judged, log: PartitionLog) -> list[int]:
    """Offsets that a reader gets: it asks for the next one and skips what lies below it."""
    offsets: list[int] = []
    for scan in log.segments:
        for item in judged.reachable.get(scan.segment.path, []):
            if not offsets or item.record.offset > offsets[-1]:
                offsets.append(item.record.offset)
    return offsets


def test_a_torn_tail_is_cut_where_the_good_frames_end(case: dict[str, Any], judged: Judged) -> None:
    for log in judged.logs.values():
        torn = [item for item in log.findings if item.effect == "repairs"]
        assert (log.cut is not None) == bool(torn)
        if log.cut is not None:
            path, position, length = log.cut
            assert position + length == scan_of(judged, path).segment.size
            assert [(item.path, item.position, item.length) for item in torn] == [log.cut]


def test_overrides_and_tables_name_existing_cases() -> None:
    names = {case["name"] for case in LOGS}
    assert {name for name, _ in OVERRIDES} <= names
    assert set(BEYOND_THE_REFERENCE) <= names
    assert {name for _, name in OVERRIDES} == {"broker_open"}
