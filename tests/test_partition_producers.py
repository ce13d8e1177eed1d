"""Producers of a partition: what is accepted, what is on the disk, and what it costs."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from cursus.broker.commit_port import StorageCommitPort
from cursus.broker.open_storage import OpenStorage
from cursus.broker.partition_producers import PartitionProducers
from cursus.broker.runtime import Runtime
from cursus.formats import transaction_journal as tj
from cursus.formats.checkpoints import ProducerEntry
from cursus.formats.record import Record
from cursus.storage.errors import WriteRefusedError


def sent(name: str, sequence: int, epoch: int = 0) -> Record:
    return Record(payload=b"x", producer_id=name.encode(), sequence=sequence, epoch=epoch)


class Log:
    """Gives offsets, from 0 on."""

    def __init__(self) -> None:
        self.records: list[Record] = []

    def write(self, records: Sequence[Record]) -> range:
        first = len(self.records)
        self.records += records
        return range(first, len(self.records))


class Looked(dict[str, ProducerEntry]):
    """A table that lets nobody go through all of it."""

    def __iter__(self) -> Iterator[str]:
        raise AssertionError("somebody went through all producers")

    keys = items = values = copy = __iter__  # type: ignore[assignment]


def no_time() -> int:
    return 0


def test_a_batch_looks_at_its_own_producers_only() -> None:
    log = Log()
    known = {f"p{number}": ProducerEntry(0, 1) for number in range(100)}
    producers = PartitionProducers("orders", no_time, known)
    producers.state = Looked(known)
    producers._durable = Looked(known)
    records = [sent("p1", 2), sent("new", 1), sent("p1", 3), sent("p1", 2)]
    assert producers.accept(records, log.write, active=True) == range(3)
    assert producers.settle(3)
    assert (producers.state["p1"].sequence, producers._durable["p1"].sequence) == (3, 3)


def test_the_commit_of_a_transaction_looks_at_its_own_producers_only(tmp_path: Path) -> None:
    with Runtime.start(str(tmp_path)) as runtime:
        storage = runtime.storage
        assert storage is not None
        storage.create_topic("orders", {"partitions": 1})
        message = tj.message(ProducerID="txn-pay", SeqNum=1, TransactionalID="pay")
        values: dict[str, Any] = {
            "id": "pay",
            "producer": "txn-pay",
            "messages": [{"Topic": "orders", "Partition": 0, "Message": message}],
            "created_at": 1,
            "updated_at": 1,
        }
        storage.journal_append({**values, "state": "open", "revision": 1})
        storage.journal_append({**values, "state": "committing", "revision": 2})
        producers = storage.producers["orders", 0]
        producers.state = Looked(producers.state)
        storage.finish_transaction("pay")
        producers.state = dict(dict.items(producers.state))
        assert storage.partition("orders", 0).leo == 2


def test_what_a_broken_batch_or_a_failed_write_brought_advances_nothing() -> None:
    producers = PartitionProducers("orders", no_time, {"p": ProducerEntry(0, 1)})

    def fail(records: Sequence[Record]) -> range:
        raise OSError(5, "injected")

    with pytest.raises(OSError, match="injected"):
        producers.accept([sent("p", 2), sent("q", 1)], fail, active=True)
    with pytest.raises(WriteRefusedError) as refused:
        producers.accept([sent("p", 2), sent("q", 7)], Log().write, active=True)
    assert (refused.value.code, refused.value.path) == ("first_sequence_not_one", "orders")
    assert not producers.settle(100)
    assert producers.state == producers.durable() == {"p": ProducerEntry(0, 1)}


def test_only_what_the_disk_holds_is_for_the_checkpoint() -> None:
    log, producers = Log(), PartitionProducers("orders", no_time)
    producers.accept([sent("p", 1), sent("q", 1), sent("p", 2)], log.write, active=True)
    assert (producers.settle(0), producers.durable()) == (False, {})
    assert producers.settle(2)
    assert producers.durable() == {"p": ProducerEntry(0, 1), "q": ProducerEntry(0, 1)}
    assert producers.settle(3)
    assert producers.durable()["p"] == ProducerEntry(0, 2)


def retained_before_it_was_noted(storage: OpenStorage, log_dir: Path, copy: Path) -> None:
    """The next append is durable and retained, and then all ends, before its caller goes on."""
    log = storage.partition("orders", 0)
    wait = log.wait

    def wait_behind(end: int) -> None:
        log.wait = wait
        log.roll()
        log.append(Record(payload=b"active"))
        assert storage.retain("orders", 0).removed
        shutil.copytree(log_dir, copy)
        wait(end)

    log.wait = wait_behind


@pytest.mark.parametrize("way", ["publish", "commit"])
def test_a_producer_whose_records_are_retained_at_once_is_remembered(
    tmp_path: Path, way: str
) -> None:
    """Its retry after a crash would be appended twice; a decided commit would be, too."""
    record, killed = sent("desk", 1), tmp_path / "as killed"
    with Runtime.start(str(tmp_path / "log"), background=False) as runtime:
        storage = runtime.storage
        assert storage is not None
        storage.create_topic("orders", {"partitions": 1, "idempotent": True, "retention_bytes": 1})
        retained_before_it_was_noted(storage, tmp_path / "log", killed)
        if way == "publish":
            storage.publish("orders", 0, [record])
        else:
            StorageCommitPort(storage).append("orders", 0, [record])
    with Runtime.start(str(killed)) as runtime:
        assert runtime.storage is not None, runtime.diagnostics
        assert not runtime.storage.publish("orders", 0, [record]), "it was there before"
