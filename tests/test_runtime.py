"""Storage on real directories: captures, cases, two processes, refusals that touch nothing."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cursus import layout
from cursus.broker.commit_port import StorageCommitPort
from cursus.broker.machine import Machine, this_machine
from cursus.broker.open_storage import OpenStorage
from cursus.broker.runtime import Runtime, Settings
from cursus.evidence.walk import LogDirectory
from cursus.formats import timestamps
from cursus.formats import transaction_journal as tj
from cursus.formats.record import Record, encode_frame
from cursus.replay.startup import Plan, StartupConfig, plan
from cursus.storage.durable import Operation, real_file_system
from cursus.storage.errors import StoreError
from cursus.storage.locks import StorageLockedError
from cursus.storage.log_settings import LogSettings
from inspect_db import fixtures

ROOT = Path(__file__).resolve().parent.parent / "fixtures"
FIXTURES = {item.name: item for item in fixtures.find(ROOT)}
NOBODY = 65534
#: What the cases call a start, in the words of the verdict.
EFFECTS = {"starts": "starts_clean"}

HOLD = """
import sys
from cursus.broker.runtime import Runtime
runtime = Runtime.start(sys.argv[1])
print(runtime.diagnostics.code if runtime.diagnostics else "running", flush=True)
sys.stdin.read()
runtime.close()
"""


def at_the_time_of(case: Mapping[str, Any]) -> Machine:
    """This machine, with the clock of the case."""
    now = timestamps.parse(case["as_of"]) - timestamps.from_unix_ns(0) if "as_of" in case else 0
    machine = this_machine()
    return replace(machine, now_ns=lambda: now) if now else machine


def settings_of(case: Mapping[str, Any]) -> Settings:
    known = {key: value for key, value in case.get("settings", {}).items() if hasattr(_LOG, key)}
    return Settings(log=LogSettings(**known))


_LOG = LogSettings()


def tree(log_dir: Path) -> dict[str, tuple[object, ...]]:
    """Every entry as it stands, the lock file of the directory left out."""
    found: dict[str, tuple[object, ...]] = {}
    for folder, folders, files in os.walk(log_dir):
        for name in [*folders, *files]:
            path = Path(folder, name)
            status = path.lstat()
            where = str(path.relative_to(log_dir))
            if where == layout.LOG_DIR_LOCK:
                continue
            if stat.S_ISREG(status.st_mode):
                # The index of an active segment is cut and filled up at each opening.
                moment = 0 if name.endswith(".index") else status.st_mtime_ns
                found[where] = (status.st_mode, moment, path.read_bytes())
            else:
                found[where] = (status.st_mode,)
    return found


def judged(log_dir: Path, machine: Machine) -> Plan:
    with LogDirectory.at(str(log_dir), held=True) as evidence:
        return plan(evidence, StartupConfig(), machine.moment())


@pytest.fixture
def log_dir(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    return fixtures.materialise(FIXTURES[request.param], tmp_path)


def cases(*wanted: str) -> list[Any]:
    """Fixtures whose ground truth is one of these effects."""
    return [
        pytest.param(name, name, id=name)
        for name, item in FIXTURES.items()
        if item.case["broker"]["effect"] in wanted
    ]


# -- cases and captures ----------------------------------------------------------------------


@pytest.mark.parametrize(("log_dir", "name"), cases("refuses"), indirect=["log_dir"])
def test_a_directory_that_refuses_is_left_as_it_was(log_dir: Path, name: str) -> None:
    case = FIXTURES[name].case
    foreseen = judged(log_dir, at_the_time_of(case))
    before, truth = tree(log_dir), case["broker"]
    with Runtime.start(str(log_dir), settings_of(case), at_the_time_of(case)) as runtime:
        assert not runtime.ready
        told = runtime.diagnostics
        assert told is not None
        assert (told.step, told.path) == (truth["step"], truth["path"])
        # The plan is held to codes and positions of the ground truth by test_fixtures.
        first = foreseen.first_refusal
        assert first is not None
        assert (told.code, told.position) == (first.code, first.position)
        assert told.reason
        assert told.action
        with pytest.raises(StorageLockedError):
            Runtime.start(str(log_dir))
    assert tree(log_dir) == before


@pytest.mark.parametrize(
    ("log_dir", "name"),
    cases("starts", "starts_with_repairs", "starts_with_damage"),
    indirect=["log_dir"],
)
def test_a_directory_that_starts_does_what_was_foreseen_and_then_nothing(
    log_dir: Path, name: str
) -> None:
    case = FIXTURES[name].case
    machine, settings = at_the_time_of(case), settings_of(case)
    foreseen = judged(log_dir, machine)
    before, effect = tree(log_dir), case["broker"]["effect"]
    with Runtime.start(str(log_dir), settings, machine) as runtime:
        assert runtime.diagnostics is None
        assert runtime.plan.verdict == foreseen.verdict == EFFECTS.get(effect, effect)
        assert runtime.plan.actions == foreseen.actions
    for repair in case["broker"].get("repairs", ()):
        whole, at = before[repair["path"]][2], repair["position"]
        repaired = (log_dir / repair["path"]).read_bytes()
        assert isinstance(whole, bytes)
        assert repaired[:at] == whole[:at]
        assert not repaired[at:].startswith(whole[at:]), "the torn tail is still there"
    after = tree(log_dir)
    gone = {path for path in before.keys() - after.keys() if path.endswith(".log")}
    assert not gone, "a start removed a log"
    again = judged(log_dir, machine)
    assert again.actions == ()
    assert again.verdict in {"starts_clean", "starts_with_damage"}
    with Runtime.start(str(log_dir), settings, machine) as runtime:
        assert runtime.ready
    assert tree(log_dir) == after, "the second start changed something"


@pytest.mark.parametrize(
    ("log_dir", "name"),
    [(name, name) for name in ("small-healthy", "shop-healthy", "shop-killed")],
    indirect=["log_dir"],
)
def test_a_capture_is_read_back_whole(log_dir: Path, name: str) -> None:
    """Every record byte for byte; groups, offsets, transactions, producers, aggregates."""
    case = FIXTURES[name].case
    expected = json.loads((ROOT / name / "expected.json").read_text("utf-8"))
    logs = {path: path.read_bytes() for path in log_dir.rglob("*.log")}
    with Runtime.start(str(log_dir), settings_of(case), at_the_time_of(case)) as runtime:
        storage = runtime.storage
        assert storage is not None, runtime.diagnostics
        assert storage.topics.keys() == expected["topics"].keys()
        committing = {
            key for key, item in expected["transactions"].items() if item["state"] == "committing"
        }
        for topic, facts in expected["topics"].items():
            definition = storage.topics[topic]
            assert definition.partitions == len(facts["partitions"])
            for field in ("revision", "lifecycle_epoch", "idempotent", "event_sourcing"):
                assert getattr(definition, field) == facts["definition"][field]
            for truth in facts["partitions"]:
                _read_back(storage, topic, truth, log_dir, logs, committing)
        _groups(storage, expected)
        _transactions(storage, expected)


def _read_back(
    storage: OpenStorage,
    topic: str,
    truth: Mapping[str, Any],
    log_dir: Path,
    logs: Mapping[Path, bytes],
    committing: set[str],
) -> None:
    partition = truth["partition"]
    log = storage.partition(topic, partition)
    assert log.log_start == truth["log_start_base"]
    found = list(log.records())
    there = [record for record in found if record.offset < truth["log_end"]]
    assert len(there) == truth["records"]
    files = [
        logs[log_dir / topic / layout.segment_log(partition, item["base_offset"])][: item["bytes"]]
        for item in truth["segments"]
    ]
    assert b"".join(map(encode_frame, there)) == b"".join(files)
    for record in found[len(there) :]:  # what this start has finished
        assert record.transactional_id.decode() in committing
    if not found[len(there) :]:
        assert log.leo == log.hwm == truth["log_end"]
    states = storage.producers[topic, partition].state
    for producer, item in truth["producers_after_start"].items():
        assert (states[producer].epoch, states[producer].sequence) == (item["epoch"], item["seq"])
    if truth.get("stream_files"):
        aggregates = storage.aggregates(topic, partition)
        for key, version in truth["streams"].items():
            assert aggregates.version(key.encode()) == version
            assert len(aggregates.offsets(key.encode(), 1)) == version
        for key, item in truth["latest_snapshots"].items():
            snapshot = aggregates.snapshot(key.encode())
            assert snapshot is not None
            assert (snapshot[0], len(snapshot[1])) == (item["version"], item["payload_bytes"])


def _groups(storage: OpenStorage, expected: Mapping[str, Any]) -> None:
    live = {k: v for k, v in expected["consumer_groups"].items() if v["state"] == "live"}
    assert storage.groups.keys() == live.keys()
    for name, truth in expected["consumer_groups"].items():
        assert storage.group_epoch(name) == truth["epoch"]
    for name, truth in live.items():
        group = storage.groups[name]
        assert (group.topic, group.partition_count) == (truth["topic"], truth["partition_count"])
        committed = {
            topic: {int(p): offset for p, offset in items.items()}
            for topic, items in truth["committed"].items()
        }
        assert group.offsets == committed
        assert group.revisions == truth["revisions"]


def _transactions(storage: OpenStorage, expected: Mapping[str, Any]) -> None:
    assert storage.transactions.keys() == expected["transactions"].keys()
    for name, truth in expected["transactions"].items():
        state = storage.transactions[name]
        assert (state.epoch, state.producer, state.expired) == (
            truth["epoch"],
            truth["producer"],
            truth["expired"],
        )
        if truth["state"] == "committing":
            assert (state.state, state.revision) == ("committed", truth["revision"] + 1)
        else:
            assert (state.state, state.revision) == (truth["state"], truth["revision"])


@pytest.mark.parametrize("name", [case.values[1] for case in cases("undetermined")])
def test_what_may_not_be_read_is_not_opened(name: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("this account cannot become another one; as root everything may be read")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        log_dir = fixtures.materialise(FIXTURES[name], Path(folder))
        for path in [log_dir, *log_dir.rglob("*")]:
            if path.is_dir() or path.stat().st_mode & 0o400:  # what is closed stays closed
                os.chown(path, NOBODY, NOBODY)
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            try:
                runtime = Runtime.start(str(log_dir))
                told = runtime.diagnostics.code if runtime.diagnostics else "running"
            except BaseException as error:
                told = repr(error)
            os.write(writing, told.encode())
            os._exit(0)
        os.close(writing)
        with open(reading, encoding="utf-8") as pipe:
            assert pipe.read() == FIXTURES[name].case["broker"]["code"]
        os.waitpid(child, 0)


# -- two processes ---------------------------------------------------------------------------


def _hold(log_dir: Path) -> tuple[subprocess.Popen[str], str]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(log_dir)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


@pytest.mark.parametrize(
    ("log_dir", "says"),
    [("small-healthy", "running"), ("empty-manifest", "manifest_json_invalid")],
    indirect=["log_dir"],
)
def test_a_second_process_is_refused_at_once(log_dir: Path, says: str) -> None:
    first, word = _hold(log_dir)
    try:
        assert word == says
        before = tree(log_dir)
        with pytest.raises(StorageLockedError) as refused:
            Runtime.start(str(log_dir))
        assert refused.value.code == "storage_locked"
        second = subprocess.run(
            [sys.executable, "-c", HOLD, str(log_dir)], capture_output=True, text=True, check=False
        )
        assert second.returncode != 0
        assert "StorageLockedError" in second.stderr
        assert tree(log_dir) == before
    finally:
        first.communicate("")
    assert first.returncode == 0
    with Runtime.start(str(log_dir)) as runtime:
        assert runtime.ready == (says == "running")


@pytest.mark.parametrize("log_dir", ["small-healthy"], indirect=True)
def test_the_lock_of_a_killed_process_is_free(log_dir: Path) -> None:
    first, word = _hold(log_dir)
    assert word == "running"
    first.kill()
    first.communicate()
    with Runtime.start(str(log_dir)) as runtime:
        assert runtime.ready


# -- what goes wrong while a start acts ---------------------------------------------------------


@pytest.mark.parametrize("log_dir", ["shop-killed"], indirect=True)
def test_a_start_whose_repair_fails_ends_in_diagnostics_and_the_next_one_goes_on(
    log_dir: Path,
) -> None:
    """The cut of a torn tail meets an error; nothing of the log is lost by that."""

    def full(operation: Operation) -> None:
        if operation.kind == "truncate" and operation.path.endswith(".log"):
            raise OSError(28, os.strerror(28), operation.path)

    case = FIXTURES["shop-killed"].case
    machine = at_the_time_of(case)
    logs = {path: path.read_bytes() for path in log_dir.rglob("*.log")}
    failing = replace(machine, files=real_file_system(full))
    with Runtime.start(str(log_dir), settings_of(case), failing) as runtime:
        assert runtime.diagnostics is not None
        assert runtime.diagnostics.step == 2
        assert "No space left" in runtime.diagnostics.reason
    assert {path: path.read_bytes() for path in log_dir.rglob("*.log")} == logs
    with Runtime.start(str(log_dir), settings_of(case), machine) as runtime:
        assert runtime.ready


def test_a_fresh_directory_has_the_internal_topic_and_an_empty_journal(tmp_path: Path) -> None:
    log_dir = tmp_path / "not" / "there"
    with Runtime.start(str(log_dir)) as runtime:
        assert runtime.storage is not None
        assert runtime.storage.topics.keys() == {layout.INTERNAL_TOPIC}
    assert stat.S_IMODE(log_dir.stat().st_mode) & 0o777 == 0o750 & ~_umask()
    assert (log_dir / layout.JOURNAL).stat().st_size == 0
    assert judged(log_dir, this_machine()).verdict == "starts_clean"


def test_a_lock_that_is_no_file_refuses_before_everything_else(tmp_path: Path) -> None:
    (tmp_path / layout.LOG_DIR_LOCK).mkdir()
    with Runtime.start(str(tmp_path)) as runtime:
        assert runtime.diagnostics is not None
        assert (runtime.diagnostics.step, runtime.diagnostics.code) == (1, "not_regular_file")
    assert [path.name for path in tmp_path.iterdir()] == [layout.LOG_DIR_LOCK]


def test_an_internal_topic_of_two_partitions_is_grown_as_foreseen(tmp_path: Path) -> None:
    Runtime.start(str(tmp_path)).close()
    manifest = tmp_path / layout.MANIFEST
    manifest.write_text(manifest.read_text().replace('"partitions": 4', '"partitions": 2'))
    for path in (tmp_path / layout.INTERNAL_TOPIC).glob("partition_[23]*"):
        path.unlink()
    foreseen = judged(tmp_path, this_machine())
    assert [action.kind for action in foreseen.actions] == ["grow_internal_topic"]
    with Runtime.start(str(tmp_path)) as runtime:
        assert runtime.storage is not None
        assert runtime.storage.topics[layout.INTERNAL_TOPIC].partitions == 4
    assert judged(tmp_path, this_machine()).actions == ()


def test_a_link_to_the_directory_is_accepted(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "there")
    with Runtime.start(str(tmp_path / "link")) as runtime:
        assert runtime.ready
        with pytest.raises(StorageLockedError):
            Runtime.start(str(tmp_path / "there"))


def _umask() -> int:
    value = os.umask(0)
    os.umask(value)
    return value


def test_operations_that_are_refused_change_nothing(tmp_path: Path) -> None:
    with Runtime.start(str(tmp_path), background=False) as runtime:
        storage = runtime.storage
        assert storage is not None
        storage.create_topic("orders", {"partitions": 1})
        storage.register_group("g", "orders", 1)
        storage.commit_offsets("g", "orders", {0: 4})
        refused = {
            "internal_topic_write_forbidden": lambda: storage.publish(
                layout.INTERNAL_TOPIC, 0, [Record()]
            ),
            "internal_topic_delete_forbidden": lambda: storage.delete_topic(layout.INTERNAL_TOPIC),
            "topic_not_found": lambda: storage.publish("nothing", 0, [Record()]),
            "offset_regression": lambda: storage.commit_offsets("g", "orders", {0: 3}),
            "topic_mismatch": lambda: storage.register_group("g", "other", 1),
            "event_sourcing_required": lambda: storage.aggregates("orders", 0),
            "first_sequence_not_one": lambda: storage.publish(
                "orders", 0, [Record(producer_id=b"p", sequence=2)]
            ),
        }
        before = tree(tmp_path)
        for code, act in refused.items():
            with pytest.raises(StoreError) as told:
                act()
            assert told.value.code == code
        assert tree(tmp_path) == before


def test_a_group_that_outlived_its_topic_blocks_a_new_one_of_that_name(tmp_path: Path) -> None:
    """A crash between the manifest and the tombstones leaves such a group."""
    with Runtime.start(str(tmp_path)) as runtime:
        assert runtime.storage is not None
        runtime.storage.create_topic("orders", {"partitions": 1})
        runtime.storage.register_group("g", "orders", 1)
        runtime.storage.create_topic("other", {"partitions": 1})
        runtime.storage._manifest.delete("other")
        runtime.storage._manifest.delete("orders", release=lambda: None)
    with Runtime.start(str(tmp_path)) as runtime:
        storage = runtime.storage
        assert storage is not None
        with pytest.raises(StoreError) as told:
            storage.create_topic("orders", {"partitions": 1})
        assert told.value.code == "topic_lifecycle_cleanup_pending"
        storage.delete_group("g")
        storage.create_topic("orders", {"partitions": 1})


def decide(storage: OpenStorage, epoch: int) -> None:
    """A transaction with one record for ``orders``, decided and not carried out."""
    moment = timestamps.parse("2026-09-01T00:00:00Z")
    message = tj.message(ProducerID="txn-pay", SeqNum=1, Epoch=epoch, TransactionalID="pay")
    values = {
        "id": "pay",
        "producer": "txn-pay",
        "epoch": epoch,
        "messages": [{"Topic": "orders", "Partition": 0, "Message": message}],
        "created_at": moment,
        "updated_at": moment,
    }
    storage.journal_append({**values, "state": "open", "revision": 3 * epoch + 1})
    storage.journal_append({**values, "state": "committing", "revision": 3 * epoch + 2})


def decide_offsets(storage: OpenStorage, group: str, topic: str) -> None:
    """A transaction with one offset of a group, decided and not carried out."""
    moment = timestamps.parse("2026-09-01T00:00:00Z")
    item = {
        "Topic": topic,
        "Group": group,
        "Member": "",
        "Generation": 0,
        "Partition": 0,
        "Offset": 7,
        "registration_epoch": storage.groups[group].epoch,
    }
    values = {
        "id": "pay",
        "producer": "txn-pay",
        "offsets": [item],
        "created_at": moment,
        "updated_at": moment,
    }
    storage.journal_append({**values, "state": "open", "revision": 1})
    storage.journal_append({**values, "state": "committing", "revision": 2})


@pytest.mark.parametrize("how", ["group", "deleted", "truncated"])
def test_a_group_of_a_decided_commit_is_not_deleted(how: str, tmp_path: Path) -> None:
    """Its life would be over, and every later start refuse to carry the commit out."""
    with Runtime.start(str(tmp_path)) as runtime:
        storage = runtime.storage
        assert storage is not None
        for topic in ("orders", "ordinary", "others"):
            storage.create_topic(topic, {"partitions": 1})
        storage.register_group("all", "ord*", 1)
        storage.register_group("unconcerned", "others", 1)
        storage.commit_offsets("all", "ordinary", {0: 1})
        decide_offsets(storage, "all", "orders")

        def end() -> object:
            if how == "group":
                return storage.delete_group("all")
            if how == "deleted":
                return storage.delete_topic("ordinary")
            return storage.truncate_topic("ordinary", storage.topics["ordinary"].revision)

        with pytest.raises(StoreError) as told:
            end()
        code, path = told.value.code, told.value.path
        if how == "group":
            assert (code, path) == ("group_referenced", layout.INTERNAL_TOPIC)
        else:
            assert (code, path) == ("topic_referenced", "ordinary")
        assert {"all", "unconcerned"} <= set(storage.groups)
        assert "ordinary" in storage.topics
        storage.delete_group("unconcerned")
        storage.delete_topic("others")
    with Runtime.start(str(tmp_path)) as runtime:
        storage = runtime.storage
        assert storage is not None, runtime.diagnostics
        assert storage.groups["all"].offsets["orders"] == {0: 7}
        assert storage.transactions["pay"].state == "committed"


def test_a_commit_beside_another_producer_is_not_forgotten(tmp_path: Path) -> None:
    """A commit is carried out while a batch of somebody else is about to be written."""
    with Runtime.start(str(tmp_path)) as runtime:
        storage = runtime.storage
        assert storage is not None
        storage.create_topic("orders", {"partitions": 1, "idempotent": True})
        decide(storage, 0)
        storage.finish_transaction("pay")
        decide(storage, 1)
        log = storage.partition("orders", 0)
        write = log.write

        def write_behind_the_commit(records: Sequence[Record]) -> range:
            log.write = write
            storage.finish_transaction("pay")
            return write(records)

        log.write = write_behind_the_commit
        storage.publish("orders", 0, [Record(payload=b"x", producer_id=b"desk", sequence=1)])
        found = [record.producer_id[:4] for record in log.records()]
        assert found == [b"txn-"] * 4 + [b"desk"]
        again = Record(producer_id=b"txn-pay", sequence=1, epoch=1)
        assert not storage.publish("orders", 0, [again])
        assert log.leo == 5


@pytest.mark.parametrize("how", ["truncated", "deleted"])
def test_records_of_a_topic_that_is_gone_are_no_state_of_the_next_one(
    tmp_path: Path, how: str
) -> None:
    """The topic goes between the write of a batch and its acknowledgement."""
    given = {"partitions": 1, "idempotent": True}
    record = Record(payload=b"x", producer_id=b"desk", sequence=1)
    with Runtime.start(str(tmp_path)) as runtime:
        storage = runtime.storage
        assert storage is not None
        revision = storage.create_topic("orders", given).definition.revision
        log = storage.partition("orders", 0)
        wait = log.wait

        def wait_behind(end: int) -> None:
            if how == "truncated":
                storage.truncate_topic("orders", revision)
            else:
                storage.delete_topic("orders")
                storage.create_topic("orders", given)
            wait(end)

        log.wait = wait_behind
        assert storage.publish("orders", 0, [record]) == range(1)
    with Runtime.start(str(tmp_path)) as runtime:
        assert runtime.storage is not None
        assert runtime.storage.publish("orders", 0, [record]) == range(1), "not a duplicate"


@pytest.mark.parametrize("name", ["publish", "aggregates"])
def test_a_topic_that_is_about_to_go_is_not_found(tmp_path: Path, name: str) -> None:
    """Between the manifest, which has forgotten it, and its logs, which are open still."""
    told: list[str] = []
    with Runtime.start(str(tmp_path)) as runtime:
        storage = runtime.storage
        assert storage is not None
        storage.create_topic("carts", {"partitions": 1, "event_sourcing": True})
        record = Record(producer_id=b"desk", sequence=1)
        asked = {
            "publish": lambda: storage.publish("carts", 0, [record]),
            "aggregates": lambda: storage.aggregates("carts", 0),
        }

        def ask() -> None:
            with pytest.raises(StoreError) as refused:
                asked[name]()
            told.append(refused.value.code)

        storage._manifest.delete("carts", release=ask)
    assert told == ["topic_not_found"]


def test_an_event_that_is_published_counts_in_its_aggregate(tmp_path: Path) -> None:
    """By an ordinary publish, and by the commit of a transaction: the log is the truth."""
    with Runtime.start(str(tmp_path)) as runtime:
        storage = runtime.storage
        assert storage is not None
        storage.create_topic("carts", {"partitions": 1, "event_sourcing": True})
        assert storage.append_event("carts", 0, Record(key=b"c", aggregate_version=1)) == 0
        storage.publish("carts", 0, [Record(key=b"c", aggregate_version=2)])
        with pytest.raises(StoreError) as refused:
            storage.append_event("carts", 0, Record(key=b"c", aggregate_version=2))
        assert refused.value.code == "version_conflict"
        port = StorageCommitPort(storage)
        port.append("carts", 0, [Record(key=b"c", aggregate_version=3)])
        assert storage.append_event("carts", 0, Record(key=b"c", aggregate_version=4)) == 3
        assert storage.aggregates("carts", 0).version(b"c") == 4
    with Runtime.start(str(tmp_path)) as runtime:
        assert runtime.storage is not None
        assert runtime.storage.aggregates("carts", 0).version(b"c") == 4


def test_an_event_under_a_sequence_that_was_used_is_refused(tmp_path: Path) -> None:
    with Runtime.start(str(tmp_path)) as runtime:
        storage = runtime.storage
        assert storage is not None
        storage.create_topic("carts", {"partitions": 1, "event_sourcing": True})
        first = Record(key=b"c", aggregate_version=1, producer_id=b"desk", sequence=1)
        assert storage.append_event("carts", 0, first) == 0
        with pytest.raises(StoreError) as refused:
            storage.append_event("carts", 0, replace(first, aggregate_version=2))
        assert refused.value.code == "event_sequence_used"
        assert storage.aggregates("carts", 0).version(b"c") == 1
        assert storage.partition("carts", 0).leo == 1


def test_a_producer_is_remembered_when_retention_takes_its_records(tmp_path: Path) -> None:
    """A process that is killed right after a retention pass has written no other checkpoint."""
    given = {"partitions": 1, "idempotent": True, "retention_bytes": 1}
    record = Record(payload=b"x", producer_id=b"desk", sequence=1)
    with Runtime.start(str(tmp_path / "log"), background=False) as runtime:
        storage = runtime.storage
        assert storage is not None
        storage.create_topic("orders", given)
        assert storage.publish("orders", 0, [record]) == range(1)
        storage.partition("orders", 0).roll()
        storage.publish("orders", 0, [Record(producer_id=b"other", sequence=1)])
        assert storage.retain("orders", 0).removed == (0,)
        shutil.copytree(tmp_path / "log", tmp_path / "as killed")
    with Runtime.start(str(tmp_path / "as killed")) as runtime:
        assert runtime.storage is not None
        assert not runtime.storage.publish("orders", 0, [record]), "it was there before"


def test_retention_waits_for_a_checkpoint_that_cannot_be_written(tmp_path: Path) -> None:
    refused = False

    def observer(operation: Operation) -> None:
        if refused and ".producers" in operation.path:
            raise OSError(28, "no space", operation.path)

    machine = this_machine(real_file_system(observer))
    with Runtime.start(str(tmp_path), machine=machine, background=False) as runtime:
        storage = runtime.storage
        assert storage is not None
        storage.create_topic("orders", {"partitions": 1, "retention_bytes": 1})
        storage.publish("orders", 0, [Record(producer_id=b"desk", sequence=1)])
        storage.partition("orders", 0).roll()
        refused = True
        assert storage.retain("orders", 0).skipped_reason == "checkpoint_not_written"
        refused = False
        assert storage.retain("orders", 0).removed == (0,)


def test_events_of_aggregates_are_kept_whatever_the_broker_keeps(tmp_path: Path) -> None:
    """manifest.md section 2.4: an aggregate is built from all of its events."""
    log = LogSettings(log_segment_bytes=1024, log_retention_hours=1, log_retention_bytes=1)
    years = replace(this_machine(), now_ns=lambda: time.time_ns() + 10**17)
    with Runtime.start(str(tmp_path), Settings(log=log), years, background=False) as runtime:
        storage = runtime.storage
        assert storage is not None
        for name, events in (("carts", True), ("orders", False)):
            storage.create_topic(name, {"partitions": 1, "event_sourcing": events})
            for version in range(1, 13):
                event = Record(key=b"c", aggregate_version=version, payload=bytes(300))
                storage.publish(name, 0, [event])
        assert storage.retain("orders", 0).removed
        assert storage.retain("carts", 0).removed == ()
        assert len(list(storage.partition("carts", 0).records())) == 12
