"""What a running store does by itself: real files, real threads, a clock that the test moves."""

from __future__ import annotations

import errno
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from cursus import layout
from cursus.broker.background import SWEEP_INTERVAL_MS, Background, BackgroundSettings
from cursus.broker.machine import Machine, this_machine
from cursus.broker.open_storage import OpenStorage
from cursus.broker.runtime import Runtime, Settings
from cursus.evidence.walk import LogDirectory
from cursus.formats import checkpoints
from cursus.formats import transaction_journal as tj
from cursus.formats.record import Record
from cursus.replay.startup import plan
from cursus.storage.durable import Operation, real_file_system
from cursus.storage.errors import StoreError
from cursus.storage.log_settings import LogSettings

#: Seconds to wait for what must happen.
DEADLINE = 60
CHECKPOINT, MINUTE, HOUR = 250 * 10**6, 60 * 10**9, 3600 * 10**9
#: Segments of a few records; whatever is closed is too much.
SMALL = LogSettings(log_segment_bytes=1024, log_index_size_bytes=4096)
SETTINGS = Settings(
    log=SMALL,
    background=BackgroundSettings(
        log_retention_check_interval_ms=60_000,
        log_compaction_check_interval_ms=120_000,
        producer_state_ttl_ms=3_600_000,
    ),
)
DELETES = {"partitions": 1, "retention_bytes": 1}
COMPACTS = {"partitions": 1, "cleanup_policy": "compact"}


class World:
    """A machine whose clocks the test moves, and whose disk fails where the test wants it."""

    def __init__(self) -> None:
        self.now = time.time_ns()  # files have the times of this machine
        self.fails: Callable[[Operation], bool] = lambda _: False
        self.code = errno.EIO
        self.kind: Callable[[int, str, str], Exception] = OSError
        self.operations: list[Operation] = []
        self.before: Callable[[Operation], None] = lambda _: None

    def observe(self, operation: Operation) -> None:
        self.before(operation)
        if self.fails(operation):
            raise self.kind(self.code, "injected", operation.path)
        self.operations.append(operation)

    @property
    def machine(self) -> Machine:
        machine = this_machine(real_file_system(self.observe))
        return replace(machine, now_ns=lambda: self.now, ticks_ns=lambda: self.now)


class Store:
    """Storage that is open, with its background work."""

    def __init__(self, runtime: Runtime, world: World) -> None:
        assert runtime.storage is not None, runtime.diagnostics
        assert runtime.background is not None
        self.runtime = runtime
        self.storage: OpenStorage = runtime.storage
        self.background: Background = runtime.background
        self.world = world

    def after(self, nanoseconds: int) -> None:
        """Let time go by; what is due by then is done when this returns."""
        self.world.now += nanoseconds
        self.background.run_due()

    def fill(self, topic: str, count: int = 12, key: bytes = b"") -> None:
        """Records that do not fit one segment."""
        for number in range(count):
            self.storage.publish(topic, 0, [Record(key=key, payload=b"%d" % number + b"x" * 300)])


@contextmanager
def store(log_dir: Path, world: World, settings: Settings = SETTINGS) -> Iterator[Store]:
    with Runtime.start(str(log_dir), settings, world.machine) as runtime:
        yield Store(runtime, world)


def until(holds: Callable[[], bool]) -> None:
    """Return when something that must happen has happened."""
    for _ in range(DEADLINE * 1000):
        if holds():
            return
        threading.Event().wait(0.001)
    pytest.fail("it never came")


def hwm_of(log_dir: Path, topic: str) -> int | None:
    path = log_dir / topic / layout.hwm(0)
    return checkpoints.decode_hwm(path.read_bytes()) if path.exists() else None


def producers_of(log_dir: Path, topic: str) -> dict[str, int]:
    path = log_dir / topic / layout.producers(0)
    if not path.exists():
        return {}
    found = checkpoints.decode_producers(path.read_bytes()).producers
    return {name: entry.sequence for name, entry in found.items()}


def sent(name: str, sequence: int) -> Record:
    return Record(payload=b"x", producer_id=name.encode(), sequence=sequence)


def ends_clean(log_dir: Path) -> None:
    with LogDirectory.at(str(log_dir)) as evidence:
        found = plan(evidence)
    assert (found.verdict, found.actions) == ("starts_clean", ())


# -- checkpoints -------------------------------------------------------------------------------


def test_a_checkpoint_is_written_by_a_thread_when_its_time_has_come(tmp_path: Path) -> None:
    world = World()
    with store(tmp_path, world) as running:
        running.storage.create_topic("orders", {"partitions": 1})
        running.storage.publish("orders", 0, [sent("desk", 1), sent("desk", 2)])
        running.background.run_due()
        assert hwm_of(tmp_path, "orders") is None, "not before its time"
        world.now += CHECKPOINT
        running.background.wake()
        until(
            lambda: (
                (hwm_of(tmp_path, "orders"), producers_of(tmp_path, "orders")) == (2, {"desk": 2})
            )
        )


def test_a_store_that_stands_still_writes_nothing(tmp_path: Path) -> None:
    world = World()
    with store(tmp_path, world) as running:
        running.storage.create_topic("orders", {"partitions": 3})
        running.storage.publish("orders", 1, [sent("desk", 1)])
        running.after(CHECKPOINT)
        seen = len(world.operations)
        for _ in range(5):
            running.after(CHECKPOINT)
        assert len(world.operations) == seen
        running.storage.publish("orders", 2, [sent("desk", 1)])
        seen = len(world.operations)
        running.after(CHECKPOINT)
        touched = {Path(item.path).name.split(".")[0] for item in world.operations[seen:]}
        assert touched == {"partition_2", "orders"}


def test_checkpoints_under_load_are_never_ahead_of_the_log(tmp_path: Path) -> None:
    """Threads publish; after each pass, the files say no more than the log holds."""
    world, stopping, problems = World(), threading.Event(), []
    with store(tmp_path, world) as running:
        storage = running.storage
        storage.create_topic("orders", {"partitions": 1, "idempotent": True})
        log = storage.partition("orders", 0)
        done = dict.fromkeys(("a", "b", "c"), 0)

        def publish(name: str) -> None:
            try:
                while not stopping.is_set():
                    storage.publish("orders", 0, [sent(name, done[name] + 1)])
                    done[name] += 1
            except BaseException as error:
                problems.append(error)

        threads = [threading.Thread(target=publish, args=(name,)) for name in done]
        for thread in threads:
            thread.start()
        for _ in range(40):
            acknowledged = dict(done)
            running.after(CHECKPOINT)
            hwm, known = hwm_of(tmp_path, "orders"), producers_of(tmp_path, "orders")
            there = {record.producer_id.decode(): record.sequence for record in log.records()}
            assert hwm is not None
            assert sum(acknowledged.values()) <= hwm <= log.hwm
            for name, sequence in acknowledged.items():
                assert sequence <= known.get(name, 0) <= there.get(name, 0)
        until(lambda: min(done.values()) > 3)
        stopping.set()
        for thread in threads:
            thread.join(DEADLINE)
        assert problems == []
        assert running.background.failures == {}
    assert producers_of(tmp_path, "orders") == done
    ends_clean(tmp_path)


def test_a_checkpoint_that_cannot_be_written_is_known_and_comes_again(tmp_path: Path) -> None:
    world = World()
    world.code = errno.ENOSPC
    with store(tmp_path, world) as running:
        for name in ("orders", "other"):
            running.storage.create_topic(name, {"partitions": 1})
            running.storage.publish(name, 0, [sent("desk", 1)])
        world.fails = lambda item: "orders" in item.path and ".hwm" in item.path
        running.after(CHECKPOINT)
        (failure,) = running.background.failures.values()
        assert (failure.work, failure.topic, failure.partition) == ("checkpoint", "orders", 0)
        assert "injected" in failure.message
        assert (hwm_of(tmp_path, "orders"), hwm_of(tmp_path, "other")) == (None, 1)
        assert running.storage.partition("orders", 0).writable, "only derived state is missing"
        running.after(CHECKPOINT)
        (failure,) = running.background.failures.values()
        assert failure.count == 2
        world.fails = lambda _: False
        running.after(CHECKPOINT)
        assert running.background.failures == {}
        assert hwm_of(tmp_path, "orders") == 1
        assert running.background.counts["checkpoint", "failed"] == 2


# -- retention, compaction, rolling ------------------------------------------------------------


def test_retention_and_compaction_come_at_their_intervals(tmp_path: Path) -> None:
    world = World()
    with store(tmp_path, world) as running:
        storage = running.storage
        storage.create_topic("orders", DELETES)
        storage.create_topic("prices", COMPACTS)
        running.fill("orders")
        running.fill("prices", key=b"k")
        orders, prices = storage.partition("orders", 0), storage.partition("prices", 0)
        before = len(list(prices.records()))
        running.after(MINUTE - 1)
        assert orders.log_start == 0, "the first run is one interval after the opening"
        running.after(1)
        assert orders.log_start == orders.segments[0] > 0
        assert len(orders.segments) == 1
        assert len(list(prices.records())) == before
        running.after(MINUTE)
        assert len(list(prices.records())) < before
        counts = running.background.counts
        assert counts["retention", "removed"] == 1
        assert counts["compaction", "rewritten"] == 1
        assert running.background.failures == {}


def test_a_partition_that_is_made_later_has_intervals_of_its_own(tmp_path: Path) -> None:
    world = World()
    with store(tmp_path, world) as running:
        running.after(MINUTE - 1)
        running.storage.create_topic("orders", DELETES)
        running.fill("orders")
        log = running.storage.partition("orders", 0)
        running.after(1)
        assert log.log_start == 0
        running.after(MINUTE - 1)
        assert log.log_start > 0


def test_retention_writes_the_producers_down_first(tmp_path: Path) -> None:
    world = World()
    with store(tmp_path, world) as running:
        running.storage.create_topic("orders", DELETES)
        running.storage.publish("orders", 0, [sent("desk", 1)])
        running.fill("orders")
        seen = len(world.operations)
        running.after(MINUTE)
        renames = [
            Path(item.target or "").name
            for item in world.operations[seen:]
            if item.kind == "rename"
        ]
        saved = renames.index(layout.producers(0))
        first_gone = next(at for at, name in enumerate(renames) if name.endswith(".deleted"))
        assert saved < first_gone


def test_retention_waits_for_a_checkpoint_and_says_so(tmp_path: Path) -> None:
    world = World()
    with store(tmp_path, world) as running:
        running.storage.create_topic("orders", DELETES)
        running.storage.publish("orders", 0, [sent("desk", 1)])
        running.fill("orders")
        log = running.storage.partition("orders", 0)
        world.fails = lambda item: ".producers" in item.path
        running.after(MINUTE)
        assert log.log_start == 0
        assert ("retention", "orders", 0) in running.background.failures
        world.fails = lambda _: False
        running.after(MINUTE)
        assert log.log_start > 0
        assert running.background.failures == {}


@pytest.mark.parametrize("kind", ["rename", "unlink", "sync_directory"])
def test_a_retention_that_fails_leaves_a_log_that_is_whole_and_comes_again(
    tmp_path: Path, kind: str
) -> None:
    world = World()
    with store(tmp_path, world) as running:
        running.storage.create_topic("orders", DELETES)
        running.fill("orders")
        running.after(CHECKPOINT)
        log = running.storage.partition("orders", 0)
        world.fails = lambda item: (
            item.kind == kind and item.path.startswith(str(tmp_path / "orders"))
        )
        running.after(MINUTE)
        failure = running.background.failures["retention", "orders", 0]
        assert failure.count == 1
        assert running.background.counts["retention", "failed"] == 1
        assert log.writable
        offsets = [record.offset for record in log.records()]
        assert offsets == list(range(log.log_start, 12))
        world.fails = lambda _: False
        running.after(MINUTE)
        assert running.background.failures == {}
        assert len(log.segments) == 1
    with store(tmp_path, World()) as running:
        assert running.storage.partition("orders", 0).leo == 12


def test_a_compaction_that_fails_leaves_data_as_they_are_and_others_go_on(tmp_path: Path) -> None:
    world = World()
    with store(tmp_path, world) as running:
        for name in ("prices", "rates"):
            running.storage.create_topic(name, COMPACTS)
            running.fill(name, key=b"k")
        logs = {name: running.storage.partition(name, 0) for name in ("prices", "rates")}
        world.fails = lambda item: "prices" in item.path and item.path.endswith(".compacting")
        running.after(2 * MINUTE)
        assert len(list(logs["prices"].records())) == 12
        assert len(list(logs["rates"].records())) < 12
        assert set(running.background.failures) == {("compaction", "prices", 0)}
        world.fails = lambda _: False
        running.after(2 * MINUTE)
        assert len(list(logs["prices"].records())) < 12
        assert running.background.failures == {}


def test_a_segment_that_is_old_is_rolled_and_an_empty_one_is_not(tmp_path: Path) -> None:
    world = World()
    settings = replace(SETTINGS, log=replace(SMALL, log_segment_roll_ms=90_000))
    with store(tmp_path, world, settings) as running:
        running.storage.create_topic("orders", {"partitions": 1})
        running.storage.publish("orders", 0, [Record(payload=b"x")])
        log = running.storage.partition("orders", 0)
        running.after(MINUTE)
        assert log.segments == (0,), "it is not old enough"
        running.after(MINUTE)
        assert log.segments == (0, 1)
        running.after(10 * MINUTE)
        assert log.segments == (0, 1), "nothing stands in it"


def test_a_roll_whose_disk_fails_ends_the_writing_of_one_partition(tmp_path: Path) -> None:
    world = World()
    world.code = errno.ENOSPC
    settings = replace(SETTINGS, log=replace(SMALL, log_segment_roll_ms=1000))
    with store(tmp_path, world, settings) as running:
        for name in ("orders", "other"):
            running.storage.create_topic(name, {"partitions": 1})
            running.storage.publish(name, 0, [Record(payload=b"x")])
        world.fails = lambda item: item.kind == "create" and "orders" in item.path
        running.after(2000 * 10**6)
        world.fails = lambda _: False
        running.after(5000 * 10**6)
        (failure,) = running.background.failures.values()
        assert (failure.work, failure.topic) == ("roll", "orders")
        assert failure.code == "partition_write_unavailable"
        orders, other = (running.storage.partition(name, 0) for name in ("orders", "other"))
        assert (orders.writable, other.writable, len(other.segments)) == (False, True, 2)
        with pytest.raises(StoreError) as refused:
            running.storage.publish("orders", 0, [Record(payload=b"y")])
        assert refused.value.code == "partition_write_unavailable"
        assert [record.payload for record in orders.records()] == [b"x"], "reads go on"
        running.storage.delete_topic("orders")
        assert running.background.failures == {}, "a partition that is gone is no failure"


# -- producers ---------------------------------------------------------------------------------

SWEEP = SWEEP_INTERVAL_MS * 10**6


def test_a_producer_that_is_silent_for_long_is_forgotten_in_memory_and_file(tmp_path: Path) -> None:
    world = World()
    with store(tmp_path, world) as running:
        storage = running.storage
        storage.create_topic("orders", {"partitions": 1, "idempotent": True})
        storage.publish("orders", 0, [sent("desk", 1), sent("desk", 2), sent("shop", 1)])
        running.after(HOUR - SWEEP)
        storage.publish("orders", 0, [sent("shop", 2)])
        running.after(SWEEP)
        assert {*storage.producers["orders", 0].state} == {"desk", "shop"}, "not yet longer than it"
        running.after(SWEEP)
        assert {*storage.producers["orders", 0].state} == {"shop"}
        assert producers_of(tmp_path, "orders") == {"shop": 2}
        assert storage.publish("orders", 0, [sent("shop", 2)]) == range(0), "a duplicate"
        assert storage.publish("orders", 0, [sent("desk", 1)]) == range(4, 5), "it begins anew"
        shutil.copytree(tmp_path, tmp_path.parent / "as killed")
    with store(tmp_path.parent / "as killed", World()) as running:
        again = running.storage
        assert again.publish("orders", 0, [sent("desk", 2)]) == range(5, 6), "not a duplicate"


def test_a_producer_that_is_heard_of_while_it_is_forgotten_stays(tmp_path: Path) -> None:
    """By a record, or by a retry, which writes nothing."""
    world = World()
    with store(tmp_path, world) as running:
        storage = running.storage
        storage.create_topic("orders", {"partitions": 1, "idempotent": True})
        for name in ("new", "again", "gone"):
            storage.publish("orders", 0, [sent(name, 1)])
        running.after(CHECKPOINT)

        def meanwhile(operation: Operation) -> None:
            if operation.kind == "rename" and (operation.target or "").endswith(".producers"):
                world.before = lambda _: None
                storage.publish("orders", 0, [sent("new", 2)])
                assert not storage.publish("orders", 0, [sent("again", 1)])

        world.before = meanwhile
        world.now += 2 * HOUR
        assert storage.forget_producers("orders", 0, HOUR) == 1
        assert {*storage.producers["orders", 0].state} == {"new", "again"}
        running.after(CHECKPOINT)
        assert producers_of(tmp_path, "orders") == {"new": 2, "again": 1}


def test_nobody_is_forgotten_whose_file_cannot_be_written(tmp_path: Path) -> None:
    world = World()
    with store(tmp_path, world) as running:
        storage = running.storage
        storage.create_topic("orders", {"partitions": 1, "idempotent": True})
        storage.publish("orders", 0, [sent("desk", 1)])
        running.after(CHECKPOINT)
        world.fails = lambda item: ".producers" in item.path
        running.after(2 * HOUR)
        assert ("producers", "orders", 0) in running.background.failures
        assert not storage.publish("orders", 0, [sent("desk", 1)]), "it is known"
        world.fails = lambda _: False
        running.after(CHECKPOINT)
        assert producers_of(tmp_path, "orders") == {"desk": 1}
        running.after(2 * HOUR)
        assert running.background.failures == {}
        assert producers_of(tmp_path, "orders") == {}


def test_a_commit_that_is_carried_out_late_finds_what_it_wrote_already(tmp_path: Path) -> None:
    """The disk of the journal failed behind the records; hours later it is asked again."""
    world = World()
    with store(tmp_path, world) as running:
        storage = running.storage
        storage.create_topic("orders", {"partitions": 1})
        message = tj.message(ProducerID="txn-pay", SeqNum=1, TransactionalID="pay")
        values = {
            "id": "pay",
            "producer": "txn-pay",
            "messages": [{"Topic": "orders", "Partition": 0, "Message": message}],
            "created_at": storage._machine.moment(),
            "updated_at": storage._machine.moment(),
        }
        storage.journal_append({**values, "state": "open", "revision": 1})
        storage.journal_append({**values, "state": "committing", "revision": 2})
        world.fails = lambda item: item.path.endswith(layout.JOURNAL)
        with pytest.raises(StoreError):
            storage.finish_transaction("pay")
        world.fails = lambda _: False
        log = storage.partition("orders", 0)
        assert log.leo == 2, "record and marker"
        running.after(3 * HOUR)
        assert storage.finish_transaction("pay").state == "committed"
        assert log.leo == 2
        running.after(3 * HOUR)
        assert {*storage.producers["orders", 0].state} == set()


# -- queued appends ----------------------------------------------------------------------------


def test_queued_records_become_durable_without_anybody_waiting(tmp_path: Path) -> None:
    world = World()
    settings = replace(SETTINGS, log=replace(SMALL, linger_ms=0, disk_flush_interval_ms=1))
    with store(tmp_path, world, settings) as running:
        storage = running.storage
        storage.create_topic("orders", {"partitions": 1, "idempotent": True})
        log = storage.partition("orders", 0)
        assert storage.enqueue("orders", 0, [sent("desk", 1), sent("desk", 2)]) == range(2)
        assert storage.enqueue("orders", 0, [sent("desk", 2), sent("desk", 3)]) == range(2, 3)
        with pytest.raises(StoreError) as refused:
            storage.enqueue("orders", 0, [sent("desk", 9)])
        assert refused.value.code == "sequence_gap"
        world.now += 10**9
        until(lambda: log.hwm == 3)

        def written() -> bool:
            running.after(CHECKPOINT)
            return producers_of(tmp_path, "orders") == {"desk": 3}

        until(written)
        with pytest.raises(StoreError) as forbidden:
            storage.enqueue(layout.INTERNAL_TOPIC, 0, [Record()])
        assert forbidden.value.code == "internal_topic_write_forbidden"


def test_a_duplicate_of_a_queued_record_is_acknowledged_when_that_is_durable(
    tmp_path: Path,
) -> None:
    with Runtime.start(str(tmp_path), SETTINGS, background=False) as runtime:
        storage = runtime.storage
        assert storage is not None
        storage.create_topic("orders", {"partitions": 1, "idempotent": True})
        storage.enqueue("orders", 0, [sent("desk", 1)])
        log = storage.partition("orders", 0)
        storage.checkpoint()
        assert (log.hwm, producers_of(tmp_path, "orders")) == (0, {}), "nothing is durable yet"
        assert not storage.publish("orders", 0, [sent("desk", 1)])
        assert log.hwm == 1
        storage.checkpoint()
        assert producers_of(tmp_path, "orders") == {"desk": 1}


def test_an_event_is_never_queued(tmp_path: Path) -> None:
    with Runtime.start(str(tmp_path), SETTINGS, background=False) as runtime:
        storage = runtime.storage
        assert storage is not None
        storage.create_topic("carts", {"partitions": 1, "event_sourcing": True})
        storage.enqueue("carts", 0, [Record(key=b"c", aggregate_version=1)])
        assert storage.partition("carts", 0).hwm == 1
        assert storage.append_event("carts", 0, Record(key=b"c", aggregate_version=2)) == 1


@pytest.mark.parametrize("kind", [OSError, MemoryError])
def test_a_queue_whose_disk_fails_ends_the_writing_of_one_partition(
    tmp_path: Path, kind: type[Exception]
) -> None:
    """Whatever the error is: nothing ends the thread that serves the others."""
    world = World()
    world.code, world.kind = errno.ENOSPC, kind
    settings = replace(SETTINGS, log=replace(SMALL, linger_ms=0, disk_flush_interval_ms=1))
    with store(tmp_path, world, settings) as running:
        storage = running.storage
        for name in ("orders", "other"):
            storage.create_topic(name, {"partitions": 1, "idempotent": True})
        world.fails = lambda item: (
            item.kind == "write" and item.path.endswith(".log") and ("orders" in item.path)
        )
        for name in ("orders", "other"):
            storage.enqueue(name, 0, [sent("desk", 1)])
        world.now += 10**9
        until(lambda: ("queue", "orders", 0) in running.background.failures)
        until(lambda: storage.partition("other", 0).hwm == 1)
        assert set(running.background.failures) == {("queue", "orders", 0)}
        assert not storage.partition("orders", 0).writable
        with pytest.raises(StoreError):
            storage.publish("orders", 0, [sent("desk", 1)])  # what is lost is no duplicate
        world.fails = lambda _: False
        running.after(CHECKPOINT)
        assert producers_of(tmp_path, "orders") == {}, "never ahead of its log"
    with store(tmp_path, World()) as running:
        assert running.storage.publish("orders", 0, [sent("desk", 1)]) == range(1)


def test_a_clock_that_is_set_back_keeps_nothing_in_the_queue(tmp_path: Path) -> None:
    world = World()
    with Runtime.start(str(tmp_path), SETTINGS, world.machine, background=False) as runtime:
        assert runtime.storage is not None
        runtime.storage.create_topic("orders", {"partitions": 1})
        log = runtime.storage.partition("orders", 0)
        log.enqueue([Record(payload=b"x")])
        world.now -= 24 * HOUR
        log.service()
        assert log.hwm == 1


# -- the end -----------------------------------------------------------------------------------


def test_nothing_runs_any_more_when_storage_closes(tmp_path: Path) -> None:
    """Everything is due when the end comes; threads are gone before the first file closes."""
    world, told = World(), []
    with store(tmp_path, world) as running:
        running.storage.create_topic("orders", DELETES)
        running.fill("orders")
        running.storage.enqueue("orders", 0, [Record(payload=b"last")])
        log, close = running.storage.partition("orders", 0), running.storage.close
        mine = {"upkeep", "maintenance", "background writer"}
        assert mine <= {thread.name for thread in threading.enumerate()}

        def closing() -> None:
            told.append(mine & {thread.name for thread in threading.enumerate()})
            close()

        running.storage.close = closing  # type: ignore[method-assign]
        world.now += 10 * HOUR
    assert told == [set()]
    assert log.hwm == 13
    assert hwm_of(tmp_path, "orders") == 13
    with store(tmp_path, World()) as running:
        assert running.storage.partition("orders", 0).leo == 13


def test_the_end_does_not_wait_for_a_long_compaction(tmp_path: Path) -> None:
    """It stops where it is: every key is there, and the next start finds it clean."""
    world = World()
    begun, go_on = threading.Event(), threading.Event()
    with store(tmp_path, world) as running:
        running.storage.create_topic("prices", COMPACTS)
        running.fill("prices", key=b"k")
        log = running.storage.partition("prices", 0)

        def hold(operation: Operation) -> None:
            if operation.path.endswith(".log.compacting"):
                begun.set()
                assert go_on.wait(DEADLINE)

        world.before = hold
        world.now += 2 * MINUTE
        running.background.wake()
        assert begun.wait(DEADLINE)
        closer = threading.Thread(target=running.runtime.close)
        closer.start()
        until(lambda: log._closing)
        assert log.writable, "it is closed only behind its maintenance"
        go_on.set()
        closer.join(DEADLINE)
        assert not closer.is_alive()
        assert not log.writable
    ends_clean(tmp_path)
    with store(tmp_path, World()) as running:
        records = list(running.storage.partition("prices", 0).records())
        assert [record.offset for record in records] == list(range(12)), "nothing was replaced"


def test_topics_come_and_go_under_background_work(tmp_path: Path) -> None:
    """Every piece of work is due all the time; none of it fails, and none is left over."""
    world, stopping = World(), threading.Event()
    settings = replace(
        SETTINGS,
        log=replace(SMALL, log_segment_roll_ms=1, linger_ms=0, disk_flush_interval_ms=1),
        background=BackgroundSettings(1, 1, 1),
    )
    with store(tmp_path, world, settings) as running:
        problems: list[BaseException] = []

        def work() -> None:
            try:
                while not stopping.is_set():
                    running.after(SWEEP)
            except BaseException as error:
                problems.append(error)

        worker = threading.Thread(target=work)
        worker.start()
        storage = running.storage
        for number in range(12):
            given = DELETES if number % 2 else COMPACTS
            revision = storage.create_topic("churn", given).definition.revision
            running.fill("churn", 6, key=b"k")
            storage.enqueue("churn", 0, [Record(key=b"k", payload=b"queued")])
            if number % 3 == 0:
                storage.truncate_topic("churn", revision)
                running.fill("churn", 2, key=b"k")
            assert storage.delete_topic("churn")
        stopping.set()
        worker.join(DEADLINE)
        assert problems == []
        assert running.background.failures == {}
        assert not (tmp_path / "churn").exists()
        assert {key[0] for key in running.background._logs} == {layout.INTERNAL_TOPIC}
    ends_clean(tmp_path)
