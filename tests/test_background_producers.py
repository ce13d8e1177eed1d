"""Producers that fall silent, and queued appends, in a running store."""

from __future__ import annotations

import errno
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from background_help import (
    CHECKPOINT,
    HOUR,
    SETTINGS,
    SMALL,
    SWEEP,
    World,
    producers_of,
    sent,
    store,
    until,
)

from cursus import layout
from cursus.broker.runtime import Runtime
from cursus.formats import transaction_journal as tj
from cursus.formats.record import Record
from cursus.storage.durable import Operation
from cursus.storage.errors import StoreError

# -- producers ---------------------------------------------------------------------------------


def test_a_producer_that_is_silent_for_long_is_forgotten_in_memory_and_file(tmp_path: Path) -> None:
    world, log_dir = World(), tmp_path / "log"
    with store(log_dir, world) as running:
        storage = running.storage
        storage.create_topic("orders", {"partitions": 1, "idempotent": True})
        storage.publish("orders", 0, [sent("desk", 1), sent("desk", 2), sent("shop", 1)])
        running.after(HOUR - SWEEP)
        storage.publish("orders", 0, [sent("shop", 2)])
        running.after(SWEEP)
        assert {*storage.producers["orders", 0].state} == {"desk", "shop"}, "not yet longer than it"
        running.after(SWEEP)
        assert {*storage.producers["orders", 0].state} == {"shop"}
        assert producers_of(log_dir, "orders") == {"shop": 2}
        assert storage.publish("orders", 0, [sent("shop", 2)]) == range(0), "a duplicate"
        assert storage.publish("orders", 0, [sent("desk", 1)]) == range(4, 5), "it begins anew"
        shutil.copytree(log_dir, tmp_path / "as killed")
    with store(tmp_path / "as killed", World()) as running:
        again = running.storage
        assert again.publish("orders", 0, [sent("desk", 2)]) == range(5, 6), "not a duplicate"


def test_a_producer_that_is_heard_of_while_it_is_forgotten_stays(tmp_path: Path) -> None:
    """By a record, or by a retry, which writes nothing."""
    world = World()
    with Runtime.start(str(tmp_path), SETTINGS, world.machine, background=False) as runtime:
        storage = runtime.storage
        assert storage is not None
        storage.create_topic("orders", {"partitions": 1, "idempotent": True})
        for name in ("new", "again", "gone"):
            storage.publish("orders", 0, [sent(name, 1)])
        storage.checkpoint()

        def meanwhile(operation: Operation) -> None:
            if operation.kind == "rename" and (operation.target or "").endswith(".producers"):
                world.before = lambda _: None
                storage.publish("orders", 0, [sent("new", 2)])
                assert not storage.publish("orders", 0, [sent("again", 1)])

        world.before = meanwhile
        world.now += 2 * HOUR
        assert storage.forget_producers("orders", 0, HOUR) == 1
        assert {*storage.producers["orders", 0].state} == {"new", "again"}
        storage.checkpoint()
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


def test_a_producer_that_any_error_kept_from_being_forgotten_stays_in_the_file(
    tmp_path: Path,
) -> None:
    """The file was replaced without it already when the error came."""
    world = World()
    world.kind = MemoryError
    with Runtime.start(str(tmp_path), SETTINGS, world.machine, background=False) as runtime:
        storage = runtime.storage
        assert storage is not None
        storage.create_topic("orders", {"partitions": 1, "idempotent": True})
        storage.publish("orders", 0, [sent("desk", 1)])
        storage.checkpoint()
        world.now += 2 * HOUR
        topic = str(tmp_path / "orders")
        world.fails = lambda item: item.kind == "sync_directory" and item.path == topic
        with pytest.raises(MemoryError):
            storage.forget_producers("orders", 0, HOUR)
        world.fails = lambda _: False
        assert producers_of(tmp_path, "orders") == {}
        assert not storage.publish("orders", 0, [sent("desk", 1)]), "it is known"
        storage.checkpoint_due()
        assert producers_of(tmp_path, "orders") == {"desk": 1}


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
