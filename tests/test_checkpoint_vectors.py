"""Golden vectors of the small files beside a log: high watermarks, producers, aggregates.

Each file stands in a real directory and is judged against a log that is given.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cursus import layout
from cursus.evidence.walk import LogDirectory
from cursus.findings import CATALOGUE, Finding, FormatError
from cursus.formats import aggregate_files as af
from cursus.formats import checkpoints
from cursus.formats.checkpoints import ProducerEntry
from cursus.formats.record import Record
from cursus.layout import FileKind
from cursus.replay import aggregates as aggregates_module
from cursus.replay.aggregates import AggregateFiles, AggregateIndex
from cursus.replay.batches import Batch
from cursus.replay.checkpoints import HwmCheckpoint, judge_hwm
from cursus.replay.interfaces import ScannedRecord, SegmentRef
from cursus.replay.producers import Idempotence, ProducerIndex, ProducerState, rejected
from cursus.replay.segments import PartitionLog

GOLDEN = Path(__file__).resolve().parent.parent / "fixtures" / "golden"
VECTORS: dict[str, Any] = json.loads((GOLDEN / "journal" / "vectors.json").read_text("utf-8"))
OVERRIDES = {
    (item["match"]["decoded"], item["match"]["durable_tail"]): item
    for item in json.loads((GOLDEN / "overrides.json").read_text("utf-8"))["overrides"]
    if item["topic"] == "journal" and item["list"] == "hwm_checkpoints"
}
EVENTS = VECTORS["event_sourcing"]


def log_of(next_offset: int, *, log_start: int = 0, internal: bool = False) -> PartitionLog:
    return PartitionLog(
        topic=layout.INTERNAL_TOPIC if internal else "t",
        partition=0,
        internal=internal,
        log_start=log_start,
        first_offset=log_start if log_start < next_offset else None,
        log_end=next_offset,
        next_offset=next_offset,
        record_count=next_offset - log_start,
        segments=(),
        deleted=(),
        findings=(),
        cut=None,
        readable=True,
        damaged=False,
    )


def codes(findings: Sequence[Finding]) -> list[str]:
    return [item.code for item in findings]


# -- high watermark ----------------------------------------------------------------


def hwm_of(tmp_path: Path, data: bytes | None, log: PartitionLog) -> HwmCheckpoint:
    (tmp_path / log.topic).mkdir()
    if data is not None:
        (tmp_path / log.topic / layout.hwm(0)).write_bytes(data)
    with LogDirectory.at(str(tmp_path)) as evidence:
        return judge_hwm(evidence, log, opens=True)


@pytest.mark.parametrize("vector", VECTORS["hwm_checkpoints"], ids=lambda v: str(v["data_hex"]))
def test_high_watermark(vector: dict[str, Any], tmp_path: Path) -> None:
    data = None if vector["data_hex"] is None else bytes.fromhex(vector["data_hex"])
    stored, tail = vector["decoded"], vector["durable_tail"]
    found = hwm_of(tmp_path, data, log_of(tail))
    assert found.stored == stored
    departs = OVERRIDES.get((stored, tail))
    assert found.effective == (departs["value"] if departs else vector["effective_hwm"])
    expected = vector.get("problem")
    if departs:
        expected = departs["finding"]
    elif data is None:
        expected = "hwm_checkpoint_missing"
    assert codes(found.findings) == ([expected] if expected else [])


def test_every_override_is_met() -> None:
    given = {(v["decoded"], v["durable_tail"]) for v in VECTORS["hwm_checkpoints"]}
    assert OVERRIDES.keys() <= given


def test_internal_topic_above_its_log_is_refused(tmp_path: Path) -> None:
    (found,) = hwm_of(tmp_path, b"42\n", log_of(40, internal=True)).findings
    assert (found.code, found.effect, found.step) == ("internal_metadata_tail_lost", "refuses", 5)
    assert found.lost is not None
    assert (found.lost.records, found.lost.first_offset, found.lost.last_offset) == (2, 40, 41)


def test_a_lead_that_follows_from_a_cut_is_ordinary_recovery(tmp_path: Path) -> None:
    cut = replace(log_of(40), cut=("t/partition_0_segment_00000000000000000000.log", 10, 5))
    (found,) = hwm_of(tmp_path, b"42\n", cut).findings
    assert (found.code, found.effect) == ("hwm_checkpoint_ahead_of_log", "recovers")


def test_what_is_not_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    os.mkfifo(tmp_path / "t" / layout.hwm(0))
    (tmp_path / "t" / layout.producers(0)).mkdir()
    log = log_of(3)
    with LogDirectory.at(str(tmp_path)) as evidence:
        hwm = judge_hwm(evidence, log, opens=True)
        producers = ProducerIndex("t", 0).finish(evidence, log, opens=True)
    for item in (*hwm.findings, *producers.findings):
        assert (item.code, item.effect, item.step) == ("checkpoint_not_regular", "refuses", 5)
    assert len(hwm.findings) == len(producers.findings) == 1
    assert hwm.effective == 3


@pytest.mark.parametrize(
    "data",
    [b"42" + b" " * 300 + b"x", b"1" * 5000, b"\x1c42", "٤٢".encode(), b"\xff42"],
    ids=["long", "digits", "separator", "other digits", "bytes"],
)
def test_numbers_that_are_none(data: bytes) -> None:
    with pytest.raises(FormatError) as error:
        checkpoints.decode_hwm(data)
    assert error.value.code == "hwm_checkpoint_invalid"


def test_written_numbers_are_read() -> None:
    for number in (0, 42, 2**64 - 1):
        assert checkpoints.decode_hwm(checkpoints.encode_hwm(number)) == number
    assert checkpoints.encode_hwm(42) == b"42\n"


# -- producers ---------------------------------------------------------------------


def producer_expectation(vector: dict[str, Any]) -> dict[str, Any]:
    """The reader that belongs to this form (journal.md section 6.2, "Telling them apart")."""
    try:
        value = json.loads(vector["data"])
    except ValueError:
        value = None
    versioned = (
        isinstance(value, dict) and isinstance(value.get("version"), int) and "producers" in value
    )
    if not versioned:
        name = "unversioned_reader"
    else:
        name = "v4_reader" if "v4_reader" in vector else "v2_reader"
    found: dict[str, Any] = vector[name]
    return found


def producers_of(
    tmp_path: Path, data: bytes, log: PartitionLog, records: Sequence[Record] = ()
) -> ProducerState:
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / layout.producers(0)).write_bytes(data)
    index = ProducerIndex("t", 0)
    index.visit(batch_of(records))
    with LogDirectory.at(str(tmp_path)) as evidence:
        return index.finish(evidence, log, opens=True)


def batch_of(records: Sequence[Record], base: int = 0) -> Batch:
    ref = SegmentRef("t/" + layout.segment_log(0, base), "t", 0, base, 0, True, False, True, False)
    scanned = [ScannedRecord(100 * number, 100, item) for number, item in enumerate(records)]
    return Batch(ref, scanned, reachable=True)


@pytest.mark.parametrize(
    "vector", VECTORS["producer_checkpoints"], ids=lambda v: str(v["description"])
)
def test_producer_checkpoint(vector: dict[str, Any], tmp_path: Path) -> None:
    expected = producer_expectation(vector)
    log = log_of(expected.get("log_tail", 100), log_start=expected.get("log_first", 0))
    found = producers_of(tmp_path, vector["data"].encode(), log)
    if expected["outcome"] == "ignored":
        assert codes(found.findings) == [expected["problem"]]
        assert CATALOGUE[expected["problem"]].effect == "recovers"
        assert (found.checkpoint, found.effective) == (None, {})
        return
    assert found.findings == ()
    assert found.checkpoint is not None
    if "form" in expected:
        assert found.checkpoint.form == expected["form"]
    if "covered_offset" in expected:
        assert found.checkpoint.covered_offset == expected["covered_offset"]
    entries = {
        name: ProducerEntry(item["epoch"], item["seq"], item.get("offset"))
        for name, item in expected["producers"].items()
    }
    assert found.effective == entries


def test_the_written_form_byte_for_byte() -> None:
    vector = VECTORS["producer_checkpoints"][0]
    assert vector["unversioned_reader"]["form"] == "epoch_sequence"
    entries = {
        name: ProducerEntry(item["epoch"], item["seq"])
        for name, item in reversed(vector["unversioned_reader"]["producers"].items())
    }
    assert checkpoints.encode_producers(entries) == vector["data"].encode()


def test_the_larger_of_file_and_log_counts(tmp_path: Path) -> None:
    data = b'{"gone":{"epoch":0,"seq":7},"newer":{"epoch":1,"seq":9},"older":{"epoch":1,"seq":2}}\n'
    records = [
        Record(b"t", 0, offset, producer_id=name, epoch=epoch, sequence=sequence)
        for offset, (name, epoch, sequence) in enumerate(
            [(b"newer", 1, 8), (b"older", 1, 2), (b"older", 2, 1), (b"", 0, 5), (b"plain", 0, 0)]
        )
    ]
    found = producers_of(tmp_path, data, log_of(5), records)
    assert found.effective == {
        "gone": ProducerEntry(0, 7),
        "newer": ProducerEntry(1, 9),
        "older": ProducerEntry(2, 1, 2),
    }


def test_runs_count_gaps_and_repeated_sequences(tmp_path: Path) -> None:
    records = [
        Record(b"t", 0, offset, producer_id=b"p", epoch=0, sequence=sequence)
        for offset, sequence in enumerate([1, 2, 2, 5, 4, 6])
    ]
    (run,) = producers_of(tmp_path, b"{}\n", log_of(6), records).runs
    assert (run.records, run.gaps, run.duplicates) == (6, 1, 2)
    assert (run.first_sequence, run.last_sequence) == (1, 6)
    assert (run.first_offset, run.last_offset) == (0, 5)


@pytest.mark.parametrize("vector", VECTORS["idempotence"], ids=lambda v: str(v["name"]))
def test_idempotence(vector: dict[str, Any]) -> None:
    rules = Idempotence()
    active, force = vector["topic_idempotent"], vector["force"]
    for step in vector["steps"]:
        who = (step["producer"], step["epoch"], step["sequence"])
        result = rules.check(*who, active=active, force=force)
        assert (f"reject:{result}" if rejected(result) else result) == step["result"]
        if result == "append":
            rules.appended(*who, active=active, force=force)
    written = {
        name: {"epoch": item.epoch, "seq": item.sequence}
        for name, item in rules.checkpoint().items()
    }
    assert written == vector["checkpointed_state"]


# -- aggregates --------------------------------------------------------------------


@pytest.mark.parametrize(("key", "expected"), EVENTS["key_hash_fnv1a64"].items(), ids=repr)
def test_hash_of_a_key(key: str, expected: str) -> None:
    assert f"{af.fnv1a64(key.encode()):016x}" == expected


@contextmanager
def aggregate_directory(tmp_path: Path, **files: bytes) -> Iterator[LogDirectory]:
    directory = tmp_path / "t" / layout.aggregate_directory(0)
    directory.mkdir(parents=True)
    for name, data in files.items():
        (directory / layout.aggregate_file(0, FileKind[name])).write_bytes(data)
    with LogDirectory.at(str(tmp_path)) as evidence:
        yield evidence


#: What the inspector says of each index vector. The log has the events of "good",
#: but a record without a key is no event (7.2): the entry for the empty key diverges.
DIVERGES = "stream_index_diverges_from_log"
INDEX_FINDINGS = {
    "good": [DIVERGES],
    "index_torn": ["stream_index_entry_torn"],
    "keys_torn_header": ["stream_keys_torn", "stream_index_hash_unknown", DIVERGES],
    "keys_torn_key": ["stream_keys_torn", "stream_index_hash_unknown", DIVERGES],
    "keys_missing": ["stream_index_hash_unknown", DIVERGES],
    "unknown_hash": [DIVERGES, "stream_index_hash_unknown"],
    "empty": [],
    "forged_collision": ["stream_keys_hash_mismatch", DIVERGES],
}


@pytest.mark.parametrize("vector", EVENTS["stream_index"], ids=lambda v: str(v["name"]))
def test_aggregate_index_is_loaded(vector: dict[str, Any]) -> None:
    """The loading rules of journal.md section 7.2, over what the codec gives."""
    entries, _ = af.decode_index(bytes.fromhex(vector["index_hex"]))
    keys, _ = af.decode_keys(bytes.fromhex(vector["keys_hex"]))
    for name, expected in vector["loaded"]["streams"].items():
        hashes = {item.key_hash for item in keys if item.key == name.encode()}
        found = [item for item in entries if item.key_hash in hashes]
        assert max((item.version for item in found), default=0) == expected["current_version"]
        assert [
            {
                "key_hash": f"{item.key_hash:016x}",
                "offset": item.offset,
                "position": item.position,
                "version": item.version,
            }
            for item in found
        ] == expected["entries"]


@pytest.mark.parametrize("vector", EVENTS["stream_index"], ids=lambda v: str(v["name"]))
def test_aggregate_index_is_judged(vector: dict[str, Any], tmp_path: Path) -> None:
    index, keys = bytes.fromhex(vector["index_hex"]), bytes.fromhex(vector["keys_hex"])
    files = {"AGGREGATE_INDEX": index, "AGGREGATE_KEYS": keys}
    with aggregate_directory(tmp_path, **files) as evidence:
        found = events_of_good().finish(evidence, log_of(7), opens=True)
    assert codes(found.findings) == INDEX_FINDINGS[vector["name"]]
    assert all(item.effect == "recovers" for item in found.findings)


def events_of_good() -> AggregateIndex:
    good = next(v for v in EVENTS["stream_index"] if v["name"] == "good")
    events = sorted(
        (entry["offset"], name.encode(), entry["version"])
        for name, stream in good["loaded"]["streams"].items()
        for entry in stream["entries"]
    )
    index = AggregateIndex("t", 0, event_sourcing=True)
    index.visit(batch_of([event(offset, key, version) for offset, key, version in events]))
    return index


def event(offset: int, key: bytes, version: int) -> Record:
    return Record(b"t", 0, offset, key=key, aggregate_version=version)


def test_index_entries_are_written_byte_for_byte() -> None:
    good = next(v for v in EVENTS["stream_index"] if v["name"] == "good")
    data, keys = bytes.fromhex(good["index_hex"]), bytes.fromhex(good["keys_hex"])
    assert b"".join(map(af.encode_index_entry, af.decode_index(data)[0])) == data
    assert b"".join(af.encode_key(item.key) for item in af.decode_keys(keys)[0]) == keys


@pytest.mark.parametrize("vector", EVENTS["snapshot_store"], ids=lambda v: str(v["name"]))
def test_aggregate_snapshots(vector: dict[str, Any], tmp_path: Path) -> None:
    data = bytes.fromhex(vector["hex"])
    assert len(data) == vector["size"]
    with aggregate_directory(tmp_path, AGGREGATE_SNAPSHOTS=data) as evidence:
        found = AggregateIndex("t", 0).finish(evidence, log_of(0), opens=True)
    decoded, end = af.decode_snapshots(data)
    told = [(item.code, item.position) for item in found.findings]
    assert told == ([("snapshot_record_torn", end)] if end < len(data) else [])
    if vector["outcome"] == "refused":
        # An accident of the reference (journal.md 7.3): ours cuts there too.
        assert end == 106
        return
    assert end == vector.get("truncated_to", end)
    probe = af.encode_snapshot(b"probe", 1, b"p")
    assert end + len(probe) == vector["size_after_next_save_of_probe_1_p"]
    counts = [(item.key, item.version) for item in found.snapshots if item.current]
    wanted = [(item["key"].encode(), item["version"]) for item in vector["snapshots"]]
    assert sorted(counts) == sorted(wanted)
    payloads = {item.key: item.payload.decode() for item in decoded}
    assert payloads == {item["key"].encode(): item["payload"] for item in vector["snapshots"]}
    for row, item in zip(found.snapshots, decoded, strict=True):
        assert (row.position, row.length) == (item.at, item.length)
        assert (
            af.encode_snapshot(item.key, item.version, item.payload)
            == data[item.at : item.at + item.length]
        )


def judged(tmp_path: Path, index: AggregateIndex, data: bytes, log: PartitionLog) -> AggregateFiles:
    keys = b"".join(map(af.encode_key, [b"a", b"b"]))
    with aggregate_directory(tmp_path, AGGREGATE_INDEX=data, AGGREGATE_KEYS=keys) as evidence:
        return index.finish(evidence, log, opens=True)


def entry(key: bytes, version: int, offset: int) -> bytes:
    return af.encode_index_entry(af.AggregateIndexEntry(af.fnv1a64(key), version, offset))


def test_an_index_that_ends_early_or_begins_early_is_normal(tmp_path: Path) -> None:
    """It is not synced, so a crash shortens it; retention removes records, not entries."""
    index = AggregateIndex("t", 0, event_sourcing=True)
    index.visit(batch_of([event(5, b"a", 3), event(6, b"b", 1), event(7, b"a", 4)], base=5))
    data = entry(b"a", 1, 0) + entry(b"a", 2, 4) + entry(b"a", 3, 5) + entry(b"b", 1, 6)
    found = judged(tmp_path, index, data, log_of(8, log_start=5))
    assert codes(found.findings) == []
    assert (found.versions, found.events, found.gaps) == ({b"a": 4, b"b": 1}, 3, 0)


@pytest.mark.parametrize(
    "wrong", [entry(b"a", 2, 9), entry(b"a", 3, 1), entry(b"b", 2, 1), entry(b"a", 2, 1) * 2]
)
def test_an_index_that_says_something_else(wrong: bytes, tmp_path: Path) -> None:
    index = AggregateIndex("t", 0, event_sourcing=True)
    index.visit(batch_of([event(0, b"a", 1), event(1, b"a", 2)]))
    (found,) = judged(tmp_path, index, entry(b"a", 1, 0) + wrong, log_of(2)).findings
    assert (found.code, found.effect) == ("stream_index_diverges_from_log", "recovers")
    assert found.position == (32 if len(wrong) == 32 else 64)


def test_a_jump_in_the_log_is_missing_data(tmp_path: Path) -> None:
    index = AggregateIndex("t", 0, event_sourcing=True)
    index.visit(batch_of([event(0, b"a", 1), event(1, b"a", 1), event(2, b"a", 4)]))
    found = judged(tmp_path, index, b"", log_of(3))
    (gap,) = found.findings
    assert (gap.code, gap.severity, gap.effect) == ("stream_index_gap", "error", "data_missing")
    assert (gap.position, gap.detail["expected"], gap.detail["found"]) == (200, 2, 4)


@pytest.mark.parametrize(("base", "gaps"), [(0, 1), (5, 0)])
def test_only_a_log_without_its_beginning_excuses_a_late_first_version(
    base: int, gaps: int, tmp_path: Path
) -> None:
    index = AggregateIndex("t", 0, event_sourcing=True)
    index.visit(batch_of([event(base, b"a", 1)], base=base))
    index.visit(batch_of([event(base + 1, b"b", 3), event(base + 2, b"b", 4)], base=base + 1))
    found = judged(tmp_path, index, b"", log_of(base + 3, log_start=base))
    assert (found.gaps, found.versions) == (gaps, {b"a": 1, b"b": 4})


def test_many_jumps_are_summed_up(tmp_path: Path) -> None:
    index = AggregateIndex("t", 0, event_sourcing=True)
    index.visit(batch_of([event(n, b"a", 2 * n + 2) for n in range(150)]))
    found = judged(tmp_path, index, b"", log_of(150)).findings
    assert len(found) == aggregates_module.MAX_GAPS + 1
    assert found[-1].detail["repeated"] == 50


def test_a_log_that_does_not_open_has_no_jumps(tmp_path: Path) -> None:
    index = AggregateIndex("t", 0, event_sourcing=True)
    index.visit(batch_of([event(0, b"a", 1), event(9, b"a", 9)]))
    with aggregate_directory(tmp_path) as evidence:
        assert index.finish(evidence, log_of(10), opens=False).findings == ()


def test_a_directory_where_an_aggregate_file_should_be(tmp_path: Path) -> None:
    path = tmp_path / "t" / layout.aggregate_directory(0)
    (path / layout.aggregate_file(0, FileKind.AGGREGATE_INDEX)).mkdir(parents=True)
    with LogDirectory.at(str(tmp_path)) as evidence:
        (found,) = AggregateIndex("t", 0).finish(evidence, log_of(0), opens=True).findings
    assert (found.code, found.severity) == ("checkpoint_not_regular", "warning")
