"""What a running store does by itself, and how that ends."""

from __future__ import annotations

import errno
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from background_help import (
    CHECKPOINT,
    COMPACTS,
    DEADLINE,
    DELETES,
    HOUR,
    MINUTE,
    SETTINGS,
    SMALL,
    SWEEP,
    World,
    ends_clean,
    hwm_of,
    producers_of,
    sent,
    store,
    until,
)

from cursus import layout
from cursus.broker.background import BackgroundSettings
from cursus.formats.record import Record
from cursus.storage.durable import Operation
from cursus.storage.errors import StoreError

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


@pytest.mark.parametrize("file", [".hwm", ".producers"])
def test_a_checkpoint_that_any_error_ended_comes_again(tmp_path: Path, file: str) -> None:
    """Not only an error of the disk: nothing else would remind the store of it."""
    world = World()
    world.kind = MemoryError
    with store(tmp_path, world) as running:
        for name in ("orders", "other"):
            running.storage.create_topic(name, {"partitions": 1})
            running.storage.publish(name, 0, [sent("desk", 1)])
        world.fails = lambda item: "orders" in item.path and file in item.path
        running.after(CHECKPOINT)
        assert [item.work for item in running.background.failures.values()] == ["checkpoint"]
        world.fails = lambda _: False
        for _ in range(2):  # the others may have been left to the next pass
            running.after(CHECKPOINT)
        assert running.background.failures == {}
        for name in ("orders", "other"):
            assert (hwm_of(tmp_path, name), producers_of(tmp_path, name)) == (1, {"desk": 1})


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
