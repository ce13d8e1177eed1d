"""Golden write paths of ``__consumer_offsets``, on real files, and what may go wrong there."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from store_help import NOW, Tape, files, plan_of
from test_consumer_replay_vectors import VECTORS, as_vector

from cursus import layout
from cursus.findings import CATALOGUE
from cursus.formats import consumer_metadata as cm
from cursus.formats.record import Record
from cursus.replay.startup import Plan
from cursus.storage.consumer_log import MAX_GROUP_NAME_BYTES, ConsumerLog
from cursus.storage.errors import StoreError
from cursus.storage.log_settings import LogSettings
from cursus.storage.manifest_store import ManifestStore, empty_log
from cursus.storage.partition_log import PartitionStore

SETTINGS = LogSettings(log_index_size_bytes=4096)


class Storage:
    """The internal topic on disk, opened as a start opens it."""

    def __init__(self, directory: Path, tape: Tape | None = None) -> None:
        self.directory = directory
        self.files = files(tape)
        self.failing = False
        self.stores: dict[int, PartitionStore] = {}
        self.groups = self.open()

    def open(self) -> ConsumerLog:
        plan = self.judged()
        self.manifest = ManifestStore.from_replay(
            self.files, str(self.directory), plan.manifest, plan.topics
        )
        there = plan.manifest.by_name.get(layout.INTERNAL_TOPIC)
        partitions = range(there.partitions if there else 0)
        for partition in partitions:
            self.open_partition(partition, plan.partitions[layout.INTERNAL_TOPIC, partition])
        opened = self.manifest.ensure_internal_topic()
        for partition in opened.opened:
            self.open_partition(partition, empty_log(layout.INTERNAL_TOPIC, partition))
        count = opened.definition.partitions
        return ConsumerLog(plan.consumers, count, self.append, clock=lambda: NOW, grow=self.grow)

    def judged(self) -> Plan:
        plan = plan_of(self.directory)
        assert plan.verdict == "starts_clean", plan.first_cause
        return plan

    def open_partition(self, partition: int, found: Any) -> None:
        self.stores[partition] = PartitionStore.open(
            self.files,
            str(self.directory),
            layout.INTERNAL_TOPIC,
            partition,
            found,
            settings=SETTINGS,
        )

    def append(self, partition: int, record: Record) -> int:
        if self.failing:
            raise OSError(errno.EIO, "injected append failure")
        return self.stores[partition].append(record)

    def grow(self, partitions: int) -> int:
        change = self.manifest.ensure_internal_topic(partitions)
        for partition in change.opened:
            self.open_partition(partition, empty_log(layout.INTERNAL_TOPIC, partition))
        return change.definition.partitions

    def close(self) -> None:
        for store in self.stores.values():
            store.close()
        self.stores.clear()

    def restart(self) -> None:
        self.close()
        self.groups = self.open()

    def records(self) -> list[tuple[int, int, str, str]]:
        return [
            (partition, item.offset, item.key.decode(), item.payload.decode())
            for partition, store in sorted(self.stores.items())
            for item in store.records()
        ]


# -- vectors -------------------------------------------------------------------------

#: Members, generations and ownership belong to the group coordinator, which is built with the
#: broker's commands. Its operations write nothing; they are not run here:
COORDINATOR_OPERATIONS = {
    "join",
    "sync_or_resume",
    "heartbeat",
    "leave",
    "expire",
    "assignments",
    "transaction_prepare",
}
#: Nor are the refusals of its fence, in operations that are otherwise run without one:
COORDINATOR_CODES = {"generation_mismatch", "member_not_found", "missing_member", "not_owner"}


#: The catalogue has this name for something else.
NAMED_OTHERWISE = {"partition_count_mismatch": "group_partition_count_mismatch"}


def run(storage: Storage, step: dict[str, Any]) -> Any:
    groups, args = storage.groups, step["args"]
    where = (args.get("group"), args.get("topic"))
    items = [(item["partition"], item["offset"]) for item in args.get("offsets") or []]
    match step["op"]:
        case "register_group":
            return groups.register(args["topic"], args["group"], args["partition_count"])
        case "delete_group":
            members = int(step.get("code") == "group_has_active_members")  # the coordinator's
            return groups.delete_group(args["group"], active_members=members)
        case "commit_offset_unfenced" | "commit_offset":
            return groups.commit(*where, args["partition"], args["offset"])
        case "batch_commit":
            return groups.commit_batch(*where, items)
        case "transaction_commit_offsets":
            return groups.commit_prepared(*where, dict(items), args["registration_epoch"])
        case "set_append_failure":
            storage.failing = args["on"]
        case "fetch_offset":
            found = groups.committed(*where, args["partition"])
            assert step["result"] == {"found": found is not None, "offset": found or 0}
        case "restart":
            storage.restart()
            assert storage.judged().consumers.status.as_dict() == step["status"]
        case other:
            raise AssertionError(other)


@pytest.mark.parametrize("vector", VECTORS["write_path"], ids=lambda v: str(v["name"]))
def test_write_path(vector: dict[str, Any], tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    written = 0
    for step in vector["steps"]:
        if step["op"] in COORDINATOR_OPERATIONS or step.get("code") in COORDINATOR_CODES:
            assert not step["appended"]
            continue
        if "code" in step:
            with pytest.raises(StoreError) as error:
                run(storage, step)
            code = NAMED_OTHERWISE.get(step["code"], step["code"])
            assert (error.value.code, error.value.message) == (code, step["error"])
            assert code in CATALOGUE
        else:
            run(storage, step)
        before, written = written, len(storage.records())
        assert written - before == len(step["appended"])
        for item in step["appended"]:
            expected = (item["partition"], item["offset"], item["key"], item["payload"])
            assert expected in storage.records()
    assert as_states(storage.groups.groups) == without_members(vector["final"]["groups"])
    assert storage.groups.partitions == vector["internal_partitions_at_end"]
    storage.restart()
    after = vector["after_restart"]
    assert as_states(storage.groups.groups) == without_members(after["groups"])
    for group, epoch in after["group_epochs"].items():
        assert storage.groups.epoch(group) == epoch
    assert storage.judged().consumers.status.as_dict() == vector["after_restart_status"]
    storage.close()


def as_states(groups: Any) -> Any:
    return without_members({name: as_vector(group) for name, group in groups.items()})


def without_members(groups: Any) -> Any:
    """The durable part of a group state."""
    return {
        name: {key: item for key, item in group.items() if key not in {"members", "generation"}}
        for name, group in groups.items()
    }


def test_what_is_not_run_is_what_the_coordinator_decides() -> None:
    """Every operation and code of the vectors is either run above or named there."""
    steps = [step for vector in VECTORS["write_path"] for step in vector["steps"]]
    left = {step["op"] for step in steps} & COORDINATOR_OPERATIONS
    assert left == COORDINATOR_OPERATIONS
    codes = {step["code"] for step in steps if step["op"] not in left and "code" in step}
    assert codes >= {"generation_mismatch", "not_owner"}
    assert codes - COORDINATOR_CODES >= {"topic_mismatch", "invalid_partition", "group_not_found"}


@pytest.mark.parametrize("vector", VECTORS["internal_partition_count"], ids=str)
def test_when_the_internal_topic_grows(vector: dict[str, Any]) -> None:
    assert cm.internal_partitions(vector["groups"]) == vector["partitions"]


# -- what is refused before it is written ----------------------------------------------


@pytest.fixture
def storage(tmp_path: Path) -> Any:
    found = Storage(tmp_path)
    yield found
    found.close()


@pytest.mark.parametrize(
    "name",
    ["a\0b", "\udcff", "x" * (MAX_GROUP_NAME_BYTES + 1), "é" * (MAX_GROUP_NAME_BYTES // 2 + 1)],
    ids=["NUL", "bytes", "long", "long in bytes"],
)
def test_names_whose_key_would_not_be_that_of_the_payload(storage: Storage, name: str) -> None:
    with pytest.raises(StoreError) as error:
        storage.groups.register("events", name, 1)
    assert error.value.code == "invalid_group_name"
    assert storage.records() == []
    assert storage.groups.register("events", "x" * MAX_GROUP_NAME_BYTES, 1)
    assert storage.groups.register("events", "é" * (MAX_GROUP_NAME_BYTES // 2), 1)


def test_topics_whose_key_would_not_be_that_of_the_payload(storage: Storage) -> None:
    for topic in ("a\0b", "\udcff"):
        with pytest.raises(StoreError):
            storage.groups.register(topic, "g", 1)
    storage.groups.register("*", "g", 1)
    for topic in ("a\0b", "\udcff"):
        with pytest.raises(StoreError) as error:
            storage.groups.commit("g", topic, 0, 1)
        assert error.value.code == "invalid_group_name"
    assert len(storage.records()) == 1


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (lambda g: g.register("t", "g2", 2**63), "invalid_partition_count"),
        (lambda g: g.commit("g", "t", 0, 2**64), "invalid_offset"),
        (lambda g: g.commit("g", "t", 0, -1), "offset_regression"),
        (lambda g: g.commit_batch("g", "t", [(0, 9), (1, -1)]), "offset_regression"),
        (lambda g: g.commit_batch("g", "t", [(0, 9), (7, 1)]), "invalid_partition"),
        (lambda g: g.commit_batch("no", "t", [(0, 9)]), "group_not_found"),
        (lambda g: g.committed("no", "t", 0), "group_not_found"),
    ],
)
def test_numbers_and_names_that_no_record_can_hold(
    storage: Storage, request_: Callable[[ConsumerLog], object], code: str
) -> None:
    storage.groups.register("t", "g", 2)
    with pytest.raises(StoreError) as error:
        request_(storage.groups)
    assert error.value.code == code
    assert len(storage.records()) == 1


def test_the_largest_numbers_are_written_and_read(storage: Storage) -> None:
    storage.groups.register("t", "g", 2**63 - 1)
    storage.groups.commit("g", "t", 2**63 - 2, 2**64 - 1)
    storage.restart()
    assert storage.groups.committed("g", "t", 2**63 - 2) == 2**64 - 1


def test_epochs_go_above_every_record_of_the_group(tmp_path: Path) -> None:
    """Offsets whose registration is lost must not come alive with the next one (11.7)."""
    storage = Storage(tmp_path)
    lost = cm.ConsumerRecord(
        cm.SNAPSHOT, "g", 3, topic="t", revision=1, offsets=(cm.OffsetItem(0, 500),), timestamp=NOW
    )
    key = lost.key()
    storage.append(cm.partition_of(key, 4), Record(key=key.encode(), payload=cm.encode(lost)))
    storage.restart()
    assert not storage.groups.groups
    storage.groups.register("t", "g", 1)
    assert storage.groups.groups["g"].epoch == 4
    storage.groups.commit("g", "t", 0, 1)
    storage.restart()
    assert storage.groups.committed("g", "t", 0) == 1
    storage.close()


# -- failures ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["write", "fsync"])
def test_nothing_counts_that_is_not_on_the_disk(kind: str, tmp_path: Path) -> None:
    tape = Tape()
    storage = Storage(tmp_path, tape)
    storage.groups.register("t", "g", 1)
    storage.groups.commit("g", "t", 0, 5)
    tape.fail_at = len(tape.operations) + (0 if kind == "write" else 1)
    with pytest.raises(StoreError) as error:
        storage.groups.commit("g", "t", 0, 9)
    assert error.value.code == "append_failed"
    assert tape.operations[-1].kind == kind
    assert storage.groups.committed("g", "t", 0) == 5
    with pytest.raises(StoreError):  # that partition takes nothing until a restart
        storage.groups.commit("g", "t", 0, 7)
    for store in storage.stores.values():
        if store.writable:
            store.close()
    # The machine goes on, so that what was written is there: the commit may have happened.
    found = plan_of(tmp_path).consumers
    assert found.groups["g"].offsets["t"][0] == (5 if kind == "write" else 9)
    assert found.failure is None


def test_a_key_whose_append_failed_does_not_move_when_the_topic_grows(storage: Storage) -> None:
    """Its next record would have the same revision with other content: a conflict for ever."""
    for number in range(49):
        storage.groups.register("t", f"g{number}", 1)
    moving = next(
        name
        for name in storage.groups.groups
        if cm.partition_of(cm.offset_key(name, "t"), 4)
        != cm.partition_of(cm.offset_key(name, "t"), 5)
    )
    storage.failing = True
    with pytest.raises(StoreError):
        storage.groups.commit(moving, "t", 0, 9)
    storage.failing = False
    storage.groups.register("t", "fiftieth", 1)
    assert storage.groups.partitions == 5
    storage.groups.commit(moving, "t", 0, 4)
    key = cm.offset_key(moving, "t")
    places = [partition for partition, _, found, _ in storage.records() if found == key]
    assert places == [cm.partition_of(key, 4)]


def test_growth_that_fails_is_no_error(tmp_path: Path) -> None:
    tape = Tape()
    storage = Storage(tmp_path, tape)
    for number in range(49):
        storage.groups.register("t", f"g{number}", 1)
    tape.fail_at = len(tape.operations) + 2  # behind the write and fsync of the registration
    assert storage.groups.register("t", "fiftieth", 1)
    assert tape.failed
    assert storage.groups.growth_warning is not None
    assert (storage.groups.partitions, len(storage.groups.groups)) == (4, 50)
    assert storage.groups.commit("fiftieth", "t", 0, 1)
    storage.restart()
    assert len(storage.groups.groups) == 50
    storage.close()


def test_a_deleted_topic_takes_its_groups_along(storage: Storage) -> None:
    groups = storage.groups
    groups.register("orders", "exact", 1)
    groups.register("ord*", "pattern", 1)
    groups.register("other", "stays", 1)
    assert groups.references("orders") == ["exact"]
    groups.commit("pattern", "orders", 0, 1)
    groups.commit("pattern", "ordinals", 0, 1)
    assert groups.references("orders") == ["exact", "pattern"]
    assert groups.forget_topic("orders") == ["exact", "pattern"]
    assert groups.forget_topic("orders") == []
    storage.restart()
    assert set(storage.groups.groups) == {"stays"}
    types = [json.loads(payload)["type"] for _, _, _, payload in storage.records()]
    assert types.count(cm.TOMBSTONE) == 2


def test_what_the_plan_found_is_not_changed(storage: Storage) -> None:
    storage.groups.register("t", "g", 1)
    storage.close()
    plan = storage.judged()
    log = ConsumerLog(plan.consumers, 4, lambda _partition, _record: 0, clock=lambda: NOW)
    log.commit("g", "t", 0, 1)
    log.delete_group("g")
    assert plan.consumers.groups["g"].offsets == {}
