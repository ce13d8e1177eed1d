"""What a running broker answers behind an error of the disk, so that a restart takes nothing back.

``tests/crash/faults.py`` looks for such cases at every operation of the durable
door; the ones that it has found stand here, each by itself.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from crash.memory import ROOT, MemoryFileSystem
from crash.operations import events
from crash.recording import NOON, machine
from crash.workloads import state_of

from cursus.broker.open_storage import OpenStorage
from cursus.broker.runtime import Runtime, Settings
from cursus.formats import consumer_metadata as cm
from cursus.formats import transaction_journal as tj
from cursus.layout import INTERNAL_TOPIC, JOURNAL
from cursus.storage.durable import Operation
from cursus.storage.errors import StoreError
from cursus.storage.log_settings import LogSettings

SETTINGS = Settings(log=LogSettings(log_index_size_bytes=4096))


@dataclass
class Disk:
    """A directory in memory; the next ``times`` effects of a kind on a path that matches fail."""

    kind: str = ""
    path: str = ""
    times: int = 0
    system: MemoryFileSystem = field(init=False)

    def __post_init__(self) -> None:
        self.system = MemoryFileSystem(observer=self._observe, clock=NOON)

    def fail(self, kind: str, path: str, times: int = 1) -> None:
        self.kind, self.path, self.times = kind, path, times

    def _observe(self, effect: Operation) -> None:
        if self.times and effect.kind == self.kind and re.search(self.path, effect.path):
            self.times -= 1
            raise OSError(errno.EIO, os.strerror(errno.EIO), effect.path)

    def start(self) -> OpenStorage:
        runtime = Runtime.start(ROOT, SETTINGS, machine(self.system), background=False)
        assert runtime.storage is not None, runtime.diagnostics
        return runtime.storage

    def restart(self, storage: OpenStorage) -> OpenStorage:
        """A process that ends, and another one: what the kernel holds stays."""
        storage.abandon()
        return self.start()

    def log_of(self, key: str) -> str:
        """The log of ``__consumer_offsets`` in which records of a key stand."""
        return f"{INTERNAL_TOPIC}/partition_{cm.partition_of(key, 4)}_segment_"


def apart(topic: str) -> str:
    """A group whose offsets stand in another partition than its life."""
    places = ((f"g{n}", cm.group_key(f"g{n}"), cm.offset_key(f"g{n}", topic)) for n in range(99))
    return next(
        name for name, life, key in places if cm.partition_of(life, 4) != cm.partition_of(key, 4)
    )


G = apart("orders")


def refused(ask: Callable[[], object]) -> str:
    with pytest.raises(StoreError) as error:
        ask()
    return error.value.code


def with_group(disk: Disk) -> OpenStorage:
    storage = disk.start()
    storage.create_topic("orders", {"partitions": 2})
    storage.register_group(G, "orders", 2)
    storage.commit_offsets(G, "orders", {0: 1})
    return storage


# -- groups --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["write", "fsync"])
def test_a_group_whose_tombstone_may_be_there_takes_nothing_until_a_restart(kind: str) -> None:
    """A commit stands in another partition: it would be acknowledged, and then taken back."""
    disk = Disk()
    storage = with_group(disk)
    disk.fail(kind, disk.log_of(cm.group_key(G)))
    assert refused(lambda: storage.delete_group(G)) == "tombstone_write_failed"
    trace = len(disk.system.trace)
    for ask in (
        lambda: storage.commit_offsets(G, "orders", {0: 2}),
        lambda: storage.commit_offsets(G, "orders", {0: 1}),
        lambda: storage.register_group(G, "orders", 2),
        lambda: storage.delete_group(G),
    ):
        assert refused(ask) == "tombstone_write_failed"
    assert len(disk.system.trace) == trace, "something was written"
    assert storage.groups[G].offsets == {"orders": {0: 1}}
    storage = disk.restart(storage)
    assert (G in storage.groups) == (kind == "write")
    if kind == "fsync":
        storage.register_group(G, "orders", 2)
    assert storage.commit_offsets(G, "orders", {0: 2})


@pytest.mark.parametrize("kind", ["write", "fsync"])
def test_nobody_says_that_there_is_no_group_whose_registration_may_be_there(kind: str) -> None:
    disk = Disk()
    storage = with_group(disk)
    disk.fail(kind, disk.log_of(cm.group_key("h")))
    code = "registration_write_failed"
    assert refused(lambda: storage.register_group("h", "orders", 2)) == code
    assert refused(lambda: storage.delete_group("h")) == code
    # Its topic does not go without it, and no other one takes that name.
    assert refused(lambda: storage.delete_topic("orders")) == code
    pending = "topic_lifecycle_cleanup_pending"
    assert refused(lambda: storage.create_topic("orders", {"partitions": 1})) == pending
    storage = disk.restart(storage)
    assert ("h" in storage.groups) == (kind == "fsync")


def test_offsets_that_may_be_there_are_a_reference_of_their_topic() -> None:
    disk = Disk()
    storage = disk.start()
    storage.create_topic("orders", {"partitions": 1})
    storage.register_group(G, "or*", 1)
    disk.fail("fsync", disk.log_of(cm.offset_key(G, "orders")))
    assert refused(lambda: storage.commit_offsets(G, "orders", {0: 7})) == "append_failed"
    assert storage.delete_topic("orders")
    assert G not in storage.groups
    storage.create_topic("orders", {"partitions": 1})
    storage = disk.restart(storage)
    assert G not in storage.groups


def test_a_group_whose_tombstone_was_refused_goes_on() -> None:
    """The partition had failed before: nothing was written, and that is certain."""
    disk = Disk()
    storage = with_group(disk)
    name = next(
        f"other-{n}"
        for n in range(99)
        if disk.log_of(cm.group_key(f"other-{n}")) == disk.log_of(cm.group_key(G))
    )
    disk.fail("fsync", disk.log_of(cm.group_key(G)))
    refused(lambda: storage.register_group(name, "orders", 2))
    assert refused(lambda: storage.delete_group(G)) == "tombstone_write_failed"
    assert storage.commit_offsets(G, "orders", {0: 2})
    assert disk.restart(storage).groups[G].offsets == {"orders": {0: 2}}


def test_groups_of_a_topic_whose_truncation_is_pending_take_nothing() -> None:
    """A start goes on with the truncation and deletes them."""
    disk = Disk()
    storage = with_group(disk)
    disk.fail("unlink", "orders/partition_0_segment_")
    pending = "topic_lifecycle_pending"
    assert refused(lambda: storage.truncate_topic("orders", 1)) == pending
    assert refused(lambda: storage.commit_offsets(G, "orders", {0: 2})) == pending
    assert refused(lambda: storage.register_group(G, "orders", 2)) == pending
    assert refused(lambda: storage.register_group("h", "orders", 2)) == pending
    storage.truncate_topic("orders", 1)
    assert storage.register_group("h", "orders", 2)
    assert disk.restart(storage).groups.keys() == {"h"}


def test_groups_stay_as_long_as_the_deletion_of_their_topic_may_be_lost() -> None:
    """The manifest is renamed and not synced: a crash would leave the topic without them."""
    disk = Disk()
    storage = with_group(disk)
    disk.fail("sync_directory", f"^{ROOT}$")
    assert not storage.delete_topic("orders")
    assert storage.groups[G].offsets == {"orders": {0: 1}}
    pending = "topic_lifecycle_cleanup_pending"
    assert refused(lambda: storage.create_topic("orders", {"partitions": 1})) == pending
    assert storage.delete_topic("orders"), "asked again, it is carried to its end"
    assert not storage.groups
    storage.create_topic("orders", {"partitions": 1})
    assert not disk.restart(storage).groups


# -- transactions --------------------------------------------------------------------------


def test_a_topic_is_not_deleted_while_a_frame_that_names_it_may_be_in_the_journal() -> None:
    """A decision that was refused, and is on the disk, would be carried out into nothing."""
    disk = Disk()
    storage = with_group(disk)
    staged = {
        "Topic": "orders",
        "Partition": 0,
        "Message": tj.message(ProducerID="txn-t", SeqNum=1, Payload="x", TransactionalID="t"),
    }
    disk.fail("fsync", JOURNAL)
    decided = state_of("t", "committing", 0, 2, messages=[staged])
    assert refused(lambda: storage.journal_append(decided)) == "journal_write_unavailable"
    storage.delete_topic("orders")
    assert "t" not in disk.restart(storage).transactions


# -- aggregates ----------------------------------------------------------------------------


def test_an_aggregate_whose_index_cannot_be_written_keeps_its_version() -> None:
    disk = Disk()
    storage = disk.start()
    storage.create_topic("carts", {"partitions": 1, "event_sourcing": True})
    first, second, third = events("cart", 1, ["made", "filled", "paid"])
    storage.append_event("carts", 0, first)
    disk.fail("write", ".idx", times=2)
    assert storage.append_event("carts", 0, second) == 1
    disk.fail("", "", times=0)
    assert refused(lambda: storage.append_event("carts", 0, first)) == "version_conflict"
    assert storage.append_event("carts", 0, third) == 2
