"""Golden scenarios of the replay of ``__consumer_offsets``, status and all."""

from __future__ import annotations

import base64
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from cursus.formats.record import Record
from cursus.replay import consumer_groups as cg
from cursus.replay.batches import Batch
from cursus.replay.interfaces import ScannedRecord, SegmentRef

GOLDEN = Path(__file__).resolve().parent.parent / "fixtures" / "golden"
VECTORS: dict[str, Any] = json.loads(
    (GOLDEN / "consumer-metadata" / "vectors.json").read_text("utf-8")
)


def replay(records: list[dict[str, Any]], partitions: int) -> cg.ConsumerResult:
    return fed(records, partitions).finish()


def fed(records: list[dict[str, Any]], partitions: int) -> cg.ConsumerReplay:
    state = cg.ConsumerReplay(partitions)
    feed(state, records, partitions)
    return state


def feed(state: cg.ConsumerReplay, records: list[dict[str, Any]], partitions: int) -> None:
    for partition in range(partitions):
        batch = []
        for number, item in enumerate(r for r in records if r["partition"] == partition):
            payload = (
                base64.b64decode(item["payload_base64"])
                if "payload_base64" in item
                else item["payload"].encode()
            )
            record = Record(
                b"__consumer_offsets",
                partition,
                item["offset"],
                key=item["key"].encode(),
                payload=payload,
            )
            batch.append(ScannedRecord(number, 100, record))
        ref = SegmentRef(
            f"p{partition}", "__consumer_offsets", partition, 0, 0, True, False, True, True
        )
        state.visit(Batch(ref, batch, reachable=True))


def as_vector(group: cg.GroupState) -> dict[str, Any]:
    return {
        "epoch": group.epoch,
        "generation": 0,
        "members": 0,
        "offsets": {
            topic: {str(p): o for p, o in offsets.items()}
            for topic, offsets in group.offsets.items()
        },
        "partition_count": group.partition_count,
        "revisions": group.revisions,
        "topic": group.topic,
    }


@pytest.mark.parametrize("vector", VECTORS["replay"], ids=lambda v: str(v["name"]))
def test_scenario(vector: dict[str, Any]) -> None:
    expect = vector["expect"]
    partitions = max(4, vector["existing_partition_count"])
    result = replay(vector["records"], partitions)
    status = result.status.as_dict()
    if not expect["ok"] and expect.get("error_text_normative") is False:
        status.pop("failure")
        expect["status"].pop("failure")
    assert status == expect["status"]
    if expect["ok"]:
        assert result.failure is None
        assert {name: as_vector(g) for name, g in result.groups.items()} == expect["groups"]
        assert result.epochs == expect["group_epochs"]
        assert not [f for f in result.findings if f.effect == "refuses"]
    else:
        assert result.failure is not None
        assert result.failure.code == expect["code"]
        refusing = [f for f in result.findings if f.effect == "refuses"]
        assert refusing[0].code == expect["code"]


@pytest.mark.parametrize("vector", VECTORS["replay"], ids=lambda v: str(v["name"]))
def test_every_record_has_a_disposition_and_the_counters_are_their_sums(
    vector: dict[str, Any],
) -> None:
    result = replay(vector["records"], max(4, vector["existing_partition_count"]))
    assert len(result.rows) == len(vector["records"])
    kinds = Counter(row.disposition for row in result.rows)
    assert "evidence" not in kinds
    if vector["expect"]["ok"]:
        status = vector["expect"]["status"]
        orphans = sum(count for kind, count in kinds.items() if kind not in cg.NOT_ORPHANS)
        assert orphans == status["orphan_records"]
        assert kinds["rejected"] == status["corrupt_records"] == 0


@pytest.mark.parametrize("vector", VECTORS["write_path"], ids=lambda v: str(v["name"]))
def test_state_after_restart_of_what_a_broker_wrote(vector: dict[str, Any]) -> None:
    """How the records are written is told by ``test_consumer_log.py``; here they are read again."""
    records = [record for step in vector["steps"] for record in step.get("appended", [])]
    result = replay(records, max(4, vector["internal_partitions_at_end"]))
    assert {name: as_vector(g) for name, g in result.groups.items()} == vector["after_restart"][
        "groups"
    ]
    assert result.epochs == vector["after_restart"]["group_epochs"]
    assert result.status.as_dict() == vector["after_restart_status"]


@pytest.mark.parametrize(
    "vector", VECTORS["range_assignment"], ids=lambda v: f"{v['members']}x{v['partitions']}"
)
def test_range_assignment(vector: dict[str, Any]) -> None:
    members = [f"m{number}" for number in range(vector["members"])]
    found = cg.range_assignment(members, vector["partitions"])
    assert found == {name: list(parts or []) for name, parts in vector["assignments"].items()}


@pytest.mark.parametrize("vector", VECTORS["infrastructure_failures"], ids=lambda v: str(v["name"]))
def test_failure_of_the_storage_below_the_replay(vector: dict[str, Any]) -> None:
    """Which of these happens is for whoever opens the files; what is said of it is told here."""
    places = re.search(r"partition=(\d+)(?: offset=(\d+))?", vector["error"])
    partition, offset = (int(n or 0) for n in places.groups()) if places else (0, 0)
    status, failure = cg.infrastructure_failure(
        vector["code"],
        "injected " + vector["error"].split("injected ")[1],
        partition=partition,
        offset=offset,
    )
    assert status.as_dict() == vector["status"]
    assert failure.code == vector["code"]
    assert vector["error"].endswith(failure.text)


def test_storage_that_cannot_be_opened_hides_the_replay_from_a_broker_not_from_us() -> None:
    vector = next(v for v in VECTORS["replay"] if v["name"] == "registration_only")
    state = fed(vector["records"], 4)
    result = state.finish(storage_failure="torn tail")
    assert result.status.phase == "internal_topic_validation"
    assert result.status.replayed_records == 0
    assert result.groups


def test_a_huge_partition_count_costs_nothing() -> None:
    vector = next(v for v in VECTORS["replay"] if v["name"] == "registration_only")
    records = [{**record, "partition": 0} for record in vector["records"]]
    state = cg.ConsumerReplay(2**62)
    feed(state, records, 1)
    assert state.finish().groups


def test_many_findings_of_one_kind_in_one_file_end_in_a_sum() -> None:
    records = [
        {"partition": 0, "offset": offset, "key": "g-t-0", "payload": '{"group":"g","topic":"t"}'}
        for offset in range(cg.MAX_FINDINGS + 5)
    ]
    result = replay(records, 4)
    found = [item for item in result.findings if item.code == "unversioned_record"]
    assert len(found) == cg.MAX_FINDINGS + 1
    assert found[-1].detail["repeated"] == 5
    assert len(result.rows) == cg.MAX_FINDINGS + 5
    assert result.status.replayed_records == result.status.corrupt_records == 1
    assert result.historical == {("g", "t", 0): 0}


def test_floor_is_above_the_epoch_of_every_accepted_record() -> None:
    vector = next(v for v in VECTORS["replay"] if v["name"] == "snapshot_without_any_lifecycle")
    result = replay(vector["records"], 4)
    highest = max(json.loads(record["payload"])["epoch"] for record in vector["records"])
    assert set(result.floors.values()) == {highest + 1}
    warned = [item for item in result.findings if item.severity == "warning"]
    assert [item.code for item in warned] == ["offsets_without_registration"]


def test_a_later_version_is_named_behind_the_code_of_the_reference() -> None:
    payload = '{"version":3,"type":"transactional_offset_snapshot","group":"g","epoch":1}'
    result = replay([{"partition": 0, "offset": 0, "key": "k", "payload": payload}], 4)
    assert [item.code for item in result.findings] == [
        "unsupported_record_version",
        "newer_record_version",
    ]
    assert result.rows[0].later is not None
    assert result.rows[0].newer_version == 3
