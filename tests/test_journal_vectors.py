"""Golden vectors of the transaction journal: replay, import, later releases, visibility.

``journal_compaction_trace`` is about writing: it runs in ``test_journal_store.py``.
"""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cursus import layout
from cursus.evidence.walk import LogDirectory
from cursus.findings import CATALOGUE, FormatError
from cursus.formats import canonical_json, timestamps
from cursus.formats import transaction_journal as tj
from cursus.formats.record import Record
from cursus.replay import transactions as tx
from cursus.replay.batches import Batch
from cursus.replay.interfaces import ScannedRecord, SegmentRef

GOLDEN = Path(__file__).resolve().parent.parent / "fixtures" / "golden"
VECTORS: dict[str, Any] = json.loads((GOLDEN / "journal" / "vectors.json").read_text("utf-8"))
JOURNALS = VECTORS["journal"]
OVERRIDES = {
    item["name"]: item["value"]
    for item in json.loads((GOLDEN / "overrides.json").read_text("utf-8"))["overrides"]
    if item["topic"] == "journal" and item["list"] == "journal"
}
#: Refused by decisions 16 and 30 wherever they stand, so no reader of ours accepts them.
STRICTER = {"payload_duplicate_member", "payload_key_case"}

each_journal = pytest.mark.parametrize("vector", JOURNALS, ids=lambda v: str(v["name"]))


class Bytes:
    """A journal in memory."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.size = len(data)

    def pread(self, length: int, position: int) -> bytes:
        return self.data[position : position + length]


def journal_of(vector: dict[str, Any]) -> bytes:
    return Path(GOLDEN, "journal", str(vector["file"])).read_bytes()


def scan_of(vector: dict[str, Any], profile: tx.Profile) -> tx.JournalScan:
    data = journal_of(vector)
    return tx.scan_journal(Bytes(data), len(data), profile)


def with_instants(value: Any) -> Any:
    """Times as instants, so that a zone does not matter."""
    if isinstance(value, dict):
        return {
            key: timestamps.parse(item)
            if key in {"created_at", "updated_at", "deadline"}
            else with_instants(item)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [with_instants(item) for item in value]
    return value


def states_of(scan: tx.JournalScan, *, later: bool) -> Any:
    written = [tj.written(scan.latest[name], later=later) for name in sorted(scan.latest)]
    return with_instants(json.loads(canonical_json.compact(written)))


def outcome_of(scan: tx.JournalScan, profile: tx.Profile) -> dict[str, Any]:
    """The scan in the words of the vectors."""
    problem = scan.problem
    if problem is not None and not problem.repair:
        return {"outcome": "refused", "problem": problem.code, "offset": problem.position}
    if problem is not None and profile == "B" and problem.position == 0:
        return {"outcome": "refused", "problem": "journal_first_record_incomplete"}
    for name in sorted(scan.latest):
        wrong = tx.import_problem(scan.latest[name], profile)
        if wrong is not None:
            return {"outcome": "refused", "problem": wrong[0]}
    if problem is not None:
        return {
            "outcome": "repaired",
            "truncated_to": problem.position,
            "discarded_bytes": scan.size - problem.position,
        }
    return {"outcome": "ok"}


@each_journal
def test_start_of_this_broker(vector: dict[str, Any]) -> None:
    scan = scan_of(vector, "A")
    expected = OVERRIDES.get(vector["name"], vector["v1_broker"])
    found = outcome_of(scan, "A")
    keys = {"outcome", "problem", "offset", "truncated_to", "discarded_bytes"}
    for key in keys & set(expected) & set(found):
        assert found[key] == expected[key], key
    assert found["outcome"] == expected["outcome"]
    if found["outcome"] == "refused":
        assert found["problem"] in CATALOGUE
    if "state" in expected:
        assert states_of(scan, later=False) == with_instants(expected["state"])


@each_journal
def test_frames(vector: dict[str, Any]) -> None:
    """Every good frame of every version is found at its place."""
    if vector["name"] in STRICTER:
        pytest.skip("refused by decisions 16 and 30")
    scan = scan_of(vector, "B")
    found = [(f.position, f.length, f.version, f.kind) for f in scan.frames]
    good = []
    for frame in vector["frames"]:
        if scan.problem is not None and frame["offset"] >= scan.problem.position:
            break
        good.append(
            (
                frame["offset"],
                frame["next_offset"] - frame["offset"],
                frame["version"],
                frame["kind"],
            )
        )
    assert found == good


@each_journal
def test_start_of_a_later_release_as_evidence(vector: dict[str, Any]) -> None:
    if vector["name"] in STRICTER:
        pytest.skip("refused by decisions 16 and 30")
    scan = scan_of(vector, "B")
    expected = vector["v3_broker"]
    found = outcome_of(scan, "B")
    for key in {"problem", "offset", "truncated_to"} & set(expected):
        assert found[key] == expected[key], key
    assert found["outcome"] == expected["outcome"]
    if "state" in expected:
        assert states_of(scan, later=True) == with_instants(expected["state"])
        assert scan.next_epoch == expected["next_producer_epoch"]
        assert (scan.watermark is not None) == expected["has_producer_epoch_watermark"]
        assert len(scan.frames) == expected["record_count"]


@each_journal
@pytest.mark.parametrize("profile", ["A", "B"])
def test_inspection(vector: dict[str, Any], profile: tx.Profile) -> None:
    """The walk itself, before any repair is considered and without import validation."""
    if vector["name"] in STRICTER:
        pytest.skip("refused by decisions 16 and 30")
    expected = vector["v1_inspector" if profile == "A" else "v3_inspector"]
    scan = scan_of(vector, profile)
    if expected["outcome"] == "ok":
        assert scan.problem is None
        assert len(scan.frames) == expected["record_count"]
        assert len(scan.latest) == expected["latest_transactions"]
        if "manifest" in expected:
            check_manifest(vector, scan, expected["manifest"])
    else:
        assert scan.problem is not None
        assert scan.problem.position == expected["offset"]
        code = scan.problem.code
        if vector["name"] in OVERRIDES and code == "journal_corrupt_non_tail":
            code = "journal_frame_truncated"  # what the walk meets; decision 10 says why it refuses
        assert code == expected["problem"]


def check_manifest(vector: dict[str, Any], scan: tx.JournalScan, expected: dict[str, Any]) -> None:
    if "manifest_file" not in vector:
        assert expected["problem"] == "journal_manifest_missing"
        return
    data = (GOLDEN / "journal" / vector["manifest_file"]).read_bytes()
    if expected.get("problem") == "journal_manifest_json_invalid":
        with pytest.raises(FormatError) as error:
            tj.decode_manifest(data)
        assert error.value.code == expected["problem"]
        return
    manifest = tj.decode_manifest(data)
    assert tx.judge_manifest(manifest, scan) == expected.get("problem")
    if expected["outcome"] == "ok":
        assert manifest.state == expected["state"]


def test_version_1_frames_are_written_byte_for_byte() -> None:
    vector = next(v for v in JOURNALS if v["name"] == "v1_states")
    data = journal_of(vector)
    position = 0
    while position < len(data):
        (length,) = struct.unpack_from(">I", data, position)
        envelope = tj.decode(data[position + 4 : position + 4 + length])
        assert envelope.transaction is not None
        frame = tj.encode_frame(envelope.transaction)
        assert frame == data[position : position + 8 + length]
        position += 8 + length


def test_good_frames_behind_damage_are_listed() -> None:
    vector = next(v for v in JOURNALS if v["name"] == "v1_middle_length_beyond_end")
    scan = scan_of(vector, "A")
    whole = scan_of(next(v for v in JOURNALS if v["name"] == "v1_states"), "A")
    behind = [f.position for f in whole.frames if f.position > 430]
    assert [f.position for f in scan.salvage] == behind


@pytest.mark.parametrize("vector", VECTORS["visibility"], ids=lambda v: str(v["name"]))
def test_visibility(vector: dict[str, Any]) -> None:
    index = tx.TransactionIndex("t", 0)
    ref = SegmentRef("p", "t", 0, 0, 0, True, False, True, False)
    records = [
        Record(
            b"t",
            0,
            item["offset"],
            epoch=item["epoch"],
            transactional_id=item["transactional_id"].encode(),
            transaction_state=item["state"].encode(),
            transaction_marker=item["marker"].encode(),
            control_coordinator_epoch=item["coordinator_epoch"],
        )
        for item in vector["records"]
    ]
    batch = [ScannedRecord(number, 1, record) for number, record in enumerate(records)]
    index.visit(Batch(ref, batch, reachable=True))
    decisions = {
        (item["transactional_id"].encode(), item["epoch"]): (
            item["state"],
            item["coordinator_epoch"],
        )
        for item in vector["decisions"]
    }

    def decide(name: bytes, epoch: int) -> tuple[str, int] | None:
        return decisions.get((name, epoch)) if vector["resolver_present"] else None

    high = vector["hwm"]
    stable = tx.last_stable_offset(index, decide, first_offset=vector["first_offset"], high=high)
    assert stable == vector["last_stable_offset"]
    visible = [
        record.offset
        for record in records
        if record.offset < stable
        and tx.is_visible(
            index,
            decide,
            key=(record.transactional_id, record.epoch),
            state=record.transaction_state,
            marker=record.transaction_marker,
            offset=record.offset,
            high=high,
        )
    ]
    assert visible == vector["read_committed_offsets"]
    assert [r.offset for r in records if r.offset < high] == vector["below_hwm_offsets"]


@pytest.mark.parametrize("vector", VECTORS["marker_control_bytes"], ids=str)
def test_marker_bytes(vector: dict[str, Any]) -> None:
    key, value = tx.marker_control(vector["marker"], vector["coordinator_epoch"])
    assert (key.hex(), value.hex()) == (vector["key_hex"], vector["value_hex"])


def test_searching_behind_damage_takes_linear_time() -> None:
    """Millions of false beginnings cost a walk, not a read of the file for each of them."""

    class Counting(Bytes):
        got = 0

        def pread(self, length: int, position: int) -> bytes:
            data = super().pread(length, position)
            self.got += len(data)
            return data

    data = bytes(4) + b"x" + (struct.pack(">I", 11) + tj.PAYLOAD_START) * 200_000
    source = Counting(data)
    scan = tx.scan_journal(source, len(data))
    assert (scan.searched, scan.salvage) == (True, [])
    assert source.got < 5 * len(data)


def test_a_tail_that_cannot_be_searched_through_is_not_cut() -> None:
    """Overlapping false frames use up the search: what was not proven is not repaired."""
    false = struct.pack(">I", 20_000_000) + tj.PAYLOAD_START
    data = struct.pack(">I", tj.MAX_PAYLOAD_BYTES) + tj.PAYLOAD_START + b"1" + false * 2_000_000
    scan = tx.scan_journal(Bytes(data), len(data))
    assert scan.problem is not None
    assert (scan.searched, scan.problem.code) == (False, "journal_corrupt_non_tail")


def transactional(offset: int, marker: bytes = b"") -> ScannedRecord:
    state = b"committed" if marker else b"open"
    return ScannedRecord(
        100 * offset,
        100,
        Record(
            b"t",
            0,
            offset,
            epoch=1,
            transactional_id=b"tx",
            transaction_state=state,
            transaction_marker=marker,
        ),
    )


def journal_with(state: str | None) -> tx.JournalReplay:
    states = {} if state is None else {"tx": tj.transaction(id="tx", epoch=1, state=state)}
    return tx.JournalReplay(True, True, 0, (), (), states, (), None, (), ())


@pytest.mark.parametrize(
    ("marker", "state", "expected"),
    [
        ("", None, ["txn_record_unresolved"] * 2),
        ("", "open", []),
        ("", "committing", []),
        ("", "committed", ["txn_record_unresolved"] * 2),
        ("", "aborted", ["txn_record_unresolved"] * 2),
        ("commit", None, []),
        ("commit", "committing", []),
        ("commit", "committed", []),
        ("commit", "open", ["txn_marker_decision_conflict"]),
        ("commit", "aborted", ["txn_marker_decision_conflict"]),
        ("abort", "aborted", []),
        ("abort", "committed", ["txn_marker_decision_conflict"]),
        ("abort", "committing", ["txn_marker_decision_conflict"]),
    ],
)
def test_logs_against_the_journal(marker: str, state: str | None, expected: list[str]) -> None:
    """journal.md section 4: what the inspector reports and never repairs."""
    index = tx.TransactionIndex("t", 0)
    ref = SegmentRef("t/log", "t", 0, 0, 0, True, False, True, False)
    records = [transactional(0), transactional(1)]
    if marker:
        records.append(transactional(2, marker.encode()))
    index.visit(Batch(ref, records, reachable=True))
    found = list(index.findings(journal_with(state)))
    assert [item.code for item in found] == expected
    if expected == ["txn_record_unresolved"] * 2:
        assert [(item.position, item.detail["offset"]) for item in found] == [(0, 0), (100, 1)]


def test_a_marker_may_have_come_while_the_directory_was_read() -> None:
    """The logs are read before the journal: in a live directory this is no alarm."""
    index = tx.TransactionIndex("t", 0)
    ref = SegmentRef("t/log", "t", 0, 0, 0, True, False, True, False)
    index.visit(Batch(ref, [transactional(0)], reachable=True))
    (found,) = index.findings(replace(journal_with("committed"), live=True))
    assert (found.code, found.severity) == ("txn_record_unresolved", "info")


def test_a_frame_that_is_being_written_is_not_torn(tmp_path: Path) -> None:
    whole = journal_of(next(v for v in JOURNALS if v["name"] == "v1_states"))
    (tmp_path / layout.JOURNAL).write_bytes(whole[:-3])
    with LogDirectory.at(str(tmp_path)) as evidence:
        still = tx.replay_journal(evidence, 0, declared=None)
    with LogDirectory.at(str(tmp_path)) as evidence:
        evidence.in_use = True
        live = tx.replay_journal(evidence, 0, declared=None)
    torn = next(item for item in still.findings if item.code == "journal_frame_truncated")
    writing = next(item for item in live.findings if item.code == "write_in_progress")
    assert (torn.effect, writing.effect, writing.step) == ("repairs", "ignores", 4)
    assert (torn.position, torn.length) == (writing.position, writing.length)
    assert still.cut == (torn.position, torn.length)
    assert live.cut is None


def test_records_of_a_decided_transaction_are_not_kept() -> None:
    index = tx.TransactionIndex("t", 0)
    ref = SegmentRef("t/log", "t", 0, 0, 0, True, False, True, False)
    records = [transactional(offset) for offset in range(1500)]
    index.visit(Batch(ref, records, reachable=True))
    (held,) = index.open.values()
    assert (held.count, len(held.addresses)) == (1500, tx.MAX_ADDRESSES)
    assert list(index.findings(journal_with(None)))[-1].detail["repeated"] == 500
    index.visit(Batch(ref, [transactional(1500, b"commit")], reachable=True))
    assert (held.count, held.addresses) == (1500, [])
