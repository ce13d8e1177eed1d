"""Storage that is closed: it writes nothing and opens nothing, whoever still has it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from cursus import layout
from cursus.broker.machine import this_machine
from cursus.broker.open_storage import OpenStorage
from cursus.broker.runtime import Runtime, Settings
from cursus.formats import timestamps
from cursus.formats.record import Record
from cursus.storage.aggregate_store import AggregateStore
from cursus.storage.errors import StoreError
from cursus.storage.locks import lock_log_directory, lock_partition
from cursus.storage.log_settings import LogSettings

#: Every operation that writes files or opens them.
OPERATIONS: Final[dict[str, Callable[[OpenStorage, Runtime], object]]] = {
    "open": lambda storage, runtime: storage.open(runtime.plan),
    "create_topic": lambda storage, _: storage.create_topic("new", {"partitions": 2}),
    "create_topic, grown": lambda storage, _: storage.create_topic("orders", {"partitions": 3}),
    "delete_topic": lambda storage, _: storage.delete_topic("other"),
    "truncate_topic": lambda storage, _: storage.truncate_topic(
        "other", storage.topics["other"].revision
    ),
    "publish": lambda storage, _: storage.publish("orders", 0, [Record(payload=b"x")]),
    "publish, an event": lambda storage, _: storage.publish(
        "carts", 0, [Record(key=b"c", aggregate_version=2)]
    ),
    "enqueue": lambda storage, _: storage.enqueue("orders", 0, [Record(payload=b"x")]),
    "append_committed": lambda storage, _: storage.append_committed(
        "orders", 0, [Record(payload=b"x", producer_id=b"desk", sequence=9)]
    ),
    "register_group": lambda storage, _: storage.register_group("h", "orders", 2),
    "register_group, again": lambda storage, _: storage.register_group("g", "orders", 2),
    "delete_group": lambda storage, _: storage.delete_group("g"),
    "commit_offsets": lambda storage, _: storage.commit_offsets("g", "orders", {0: 2}),
    "commit_prepared": lambda storage, _: storage.commit_prepared("g", "orders", {0: 2}, 0),
    "journal_append": lambda storage, _: storage.journal_append(transaction("two")),
    "compact_journal": lambda storage, _: storage.compact_journal(),
    "finish_transaction": lambda storage, _: storage.finish_transaction("one"),
    "retain": lambda storage, _: storage.retain("orders", 0),
    "compact": lambda storage, _: storage.compact("compacted", 0),
    "forget_producers": lambda storage, _: storage.forget_producers("orders", 0, -(10**9)),
    "aggregates": lambda storage, _: storage.aggregates("carts", 0),
    "aggregates, opened now": lambda storage, _: storage.aggregates("carts", 1),
    "append_event": lambda storage, _: storage.append_event(
        "carts", 0, Record(key=b"c", aggregate_version=2)
    ),
    "save_aggregate_snapshot": lambda storage, _: storage.save_aggregate_snapshot(
        "carts", 0, b"c", 1, b"state"
    ),
    "checkpoint": lambda storage, _: storage.checkpoint(),
    "checkpoint_due": lambda storage, _: storage.checkpoint_due(),
}
#: What looks at memory only, and what ends a storage.
HARMLESS: Final = {
    "topics",
    "groups",
    "group_epoch",
    "transactions",
    "partition",
    "watch",
    "close",
    "abandon",
}
ROUNDS: Final = 6


def transaction(name: str) -> dict[str, object]:
    moment = timestamps.parse("2026-09-01T00:00:00Z")
    return {
        "id": name,
        "producer": f"txn-{name}",
        "state": "open",
        "revision": 1,
        "created_at": moment,
        "updated_at": moment,
    }


def filled(storage: OpenStorage) -> None:
    """Something for every operation to work on."""
    storage.create_topic("orders", {"partitions": 2, "retention_bytes": 1})
    storage.create_topic("other", {"partitions": 1})
    storage.create_topic("compacted", {"partitions": 1, "cleanup_policy": "compact"})
    storage.create_topic("carts", {"partitions": 2, "event_sourcing": True})
    for number in range(1, 4):
        record = Record(payload=b"x" * 64, producer_id=b"desk", sequence=number)
        storage.publish("orders", 0, [record])
        storage.publish("compacted", 0, [Record(key=b"k", payload=b"%d" % number)])
        storage.partition("orders", 0).roll()
        storage.partition("compacted", 0).roll()
    storage.register_group("g", "orders", 2)
    storage.commit_offsets("g", "orders", {0: 1})
    storage.append_event("carts", 0, Record(key=b"c", aggregate_version=1))
    storage.save_aggregate_snapshot("carts", 0, b"c", 1, b"first")
    storage.journal_append(transaction("one"))
    storage.journal_append({**transaction("one"), "state": "committing", "revision": 2})


def everything(log_dir: Path) -> dict[str, tuple[object, ...]]:
    """Names, moments and bytes of all that stands there."""
    return {
        str(path): (path.lstat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path in sorted(log_dir.rglob("*"))
    }


def open_files(log_dir: Path) -> list[str]:
    """What this process holds open below ``log_dir``; nothing where the system does not say."""
    table = Path("/proc/self/fd")
    found: list[str] = []
    for name in os.listdir(table) if table.is_dir() else ():
        try:
            target = os.readlink(table / name)
        except FileNotFoundError:
            continue  # the listing itself
        if target.startswith(f"{log_dir}/"):
            found.append(target)
    return sorted(found)


def closed(log_dir: Path) -> tuple[OpenStorage, Runtime, AggregateStore]:
    runtime = Runtime.start(
        str(log_dir), Settings(log=LogSettings(log_segment_bytes=4096)), background=False
    )
    storage = runtime.storage
    assert storage is not None, runtime.diagnostics
    filled(storage)
    aggregates = storage.aggregates("carts", 0)
    runtime.close()
    assert not open_files(log_dir)
    return storage, runtime, aggregates


def test_every_operation_of_a_storage_is_known_here() -> None:
    public = {name for name in dir(OpenStorage) if not name.startswith("_")}
    assert public == {name.split(",")[0] for name in OPERATIONS} | HARMLESS


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_closed_storage_refuses_and_touches_no_file(tmp_path: Path, name: str) -> None:
    storage, runtime, _ = closed(tmp_path)
    before = everything(tmp_path)
    with pytest.raises(StoreError) as told:
        OPERATIONS[name](storage, runtime)
    assert told.value.code == "storage_closed"
    assert everything(tmp_path) == before
    assert not open_files(tmp_path)
    with Runtime.start(str(tmp_path)) as after:
        assert after.storage is not None, after.diagnostics


def test_a_closed_storage_leaves_the_one_that_came_behind_it_alone(tmp_path: Path) -> None:
    storage, runtime, _ = closed(tmp_path)
    with Runtime.start(str(tmp_path), background=False) as behind:
        assert behind.storage is not None, behind.diagnostics
        before, held = everything(tmp_path), open_files(tmp_path)
        for act in OPERATIONS.values():
            with pytest.raises(StoreError):
                act(storage, runtime)
        storage.close()
        storage.abandon()
        runtime.close()
        assert everything(tmp_path) == before
        assert open_files(tmp_path) == held
        behind.storage.create_topic("later", {"partitions": 1})
    with Runtime.start(str(tmp_path)) as after:
        assert after.storage is not None, after.diagnostics
        assert "later" in after.storage.topics


@pytest.mark.parametrize("how", ["closed", "rebuilt"])
def test_aggregates_that_are_closed_write_and_read_nothing(tmp_path: Path, how: str) -> None:
    """Whoever kept them: their files belong to somebody else by now."""
    if how == "closed":
        _, _, aggregates = closed(tmp_path)
        runtime = None
    else:
        runtime = Runtime.start(str(tmp_path), background=False)
        assert runtime.storage is not None
        filled(runtime.storage)
        aggregates = runtime.storage.aggregates("carts", 0)
        runtime.storage.publish("carts", 0, [Record(key=b"c", aggregate_version=2)])
    before = everything(tmp_path)
    for act in (
        lambda: aggregates.append(b"c", 2, 1),
        lambda: aggregates.rebuild([]),
        lambda: aggregates.save_snapshot(b"c", 1, b"second"),
        lambda: aggregates.snapshot(b"c"),
    ):
        with pytest.raises(StoreError) as told:
            act()
        assert told.value.code == "aggregate_write_failed"
    assert everything(tmp_path) == before
    if runtime is not None:
        assert runtime.storage is not None
        assert runtime.storage.aggregates("carts", 0).snapshot(b"c") == (1, b"first")
        runtime.close()


def test_a_storage_that_was_abandoned_refuses_as_a_closed_one(tmp_path: Path) -> None:
    runtime = Runtime.start(str(tmp_path), background=False)
    runtime.close()
    storage = OpenStorage(str(tmp_path), Settings(), this_machine())
    storage.abandon()
    for act in OPERATIONS.values():
        if act is not OPERATIONS["truncate_topic"]:  # asks for the topics, and has none
            with pytest.raises(StoreError) as told:
                act(storage, runtime)
            assert told.value.code == "storage_closed"
    assert not open_files(tmp_path)


class Asking:
    """Threads that ask a storage for one thing after the other, until it is closed."""

    def __init__(self, storage: OpenStorage) -> None:
        self.storage = storage
        self.begun = threading.Barrier(5)
        self.created: list[str] = []
        self.codes: list[str] = []
        self.events = 0
        asked = [
            lambda number: self._create(f"a{number}"),
            lambda number: self._create(f"b{number}"),
            self._event,
            self._other,
        ]
        self._threads = [threading.Thread(target=self._run, args=(ask,)) for ask in asked]
        for thread in self._threads:
            thread.start()

    def _create(self, name: str) -> None:
        self.storage.create_topic(name, {"partitions": 3})
        self.created.append(name)

    def _event(self, number: int) -> None:
        record = Record(key=b"c", aggregate_version=number + 1)
        if number % 2:
            self.storage.append_event("carts", 0, record)
        else:  # closes the aggregates: the next event opens them anew
            self.storage.publish("carts", 0, [record])
        self.events = number + 1

    def _other(self, number: int) -> None:
        self.storage.register_group(f"g{number}", "carts", 1)
        self.storage.journal_append({**transaction("one"), "revision": number + 1})
        self.storage.compact_journal()
        self.storage.checkpoint()

    def _run(self, ask: Callable[[int], None]) -> None:
        for number in range(300):
            try:
                ask(number)
            except StoreError as error:
                self.codes.append(error.code)
                return
            finally:
                if number == 0:
                    self.begun.wait()

    def end(self) -> None:
        for thread in self._threads:
            thread.join()


def test_what_runs_into_the_closing_is_done_or_refused_and_leaves_nothing_open(
    tmp_path: Path,
) -> None:
    for number in range(ROUNDS):
        log_dir = tmp_path / str(number)
        runtime = Runtime.start(str(log_dir), background=bool(number % 2))
        assert runtime.storage is not None
        runtime.storage.create_topic("carts", {"partitions": 1, "event_sourcing": True})
        asking = Asking(runtime.storage)
        asking.begun.wait()
        runtime.close()
        asking.end()
        # An append may meet its partition, or the internal one, in the moment of its closing.
        assert set(asking.codes) <= {"storage_closed", "partition_write_unavailable"}
        assert not open_files(log_dir)
        for path in log_dir.glob("*/*.lock"):
            topic, partition = path.parent.name, int("".join(filter(str.isdigit, path.stem)))
            assert path.name == os.path.basename(layout.partition_lock(partition))
            lock_partition(str(log_dir), topic, partition).close()
        with Runtime.start(str(log_dir)) as after:
            assert after.storage is not None, after.diagnostics
            assert set(asking.created) <= set(after.storage.topics)
            declared = after.storage.topics.values()
            wanted = {(item.name, part) for item in declared for part in range(item.partitions)}
            assert after.storage.partitions.keys() == wanted
            assert after.storage.aggregates("carts", 0).version(b"c") >= asking.events


def test_who_closes_second_comes_back_when_it_is_closed(tmp_path: Path) -> None:
    runtime = Runtime.start(str(tmp_path))
    storage = runtime.storage
    assert storage is not None
    storage.create_topic("orders", {"partitions": 1})
    log = storage.partition("orders", 0)
    close = log.close
    taken: list[str] = []

    def close_second() -> None:
        runtime.close()
        with lock_log_directory(str(tmp_path)):
            taken.append(str(open_files(tmp_path)))

    second = threading.Thread(target=close_second)

    def close_slowly() -> None:
        second.start()
        second.join(0.2)  # long enough to come back too early
        close()

    log.close = close_slowly
    runtime.close()
    second.join()
    assert taken == [str([str(tmp_path / layout.LOG_DIR_LOCK)])] or not Path("/proc").is_dir()
