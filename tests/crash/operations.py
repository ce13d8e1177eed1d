"""Operations of a workload: what each one does, and which worlds a crash inside it may leave.

An operation is run against a :class:`cursus.broker.open_storage.OpenStorage` and, on its
own, against a :class:`crash.world.World`. ``stages`` gives the worlds in the
order in which a crash may meet them; the last one is what the acknowledgement
promises. ``refuses`` names the codes of decision 34 that a crash inside this
operation may cause, and no others.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar
from unittest.mock import patch

from crash.world import Group, Log, Topic, World
from cursus.broker.open_storage import OpenStorage
from cursus.formats.record import Record, encoded_size
from cursus.layout import INTERNAL_TOPIC

UNDECLARED = "undeclared_persisted_topic"
OUT_OF_RANGE = "declared_topic_partition_out_of_range"
INTERNAL_TAIL = "internal_metadata_tail_truncated"
NO_MANIFEST = "manifest_missing_with_persisted_topics"

Stages = Iterator[World]


class Operation(ABC):
    """One operation of a workload."""

    refuses: ClassVar[frozenset[str]] = frozenset()

    @abstractmethod
    def run(self, storage: OpenStorage) -> Any:
        """Ask the storage for it."""

    def stages(self, world: World) -> list[World]:
        """The worlds that a crash may leave; ``world`` is the one before and is not changed."""
        return [world, *self.after(world.copy())]

    @abstractmethod
    def after(self, world: World) -> Stages:
        """Change ``world`` step by step and yield a copy of each stage."""


@dataclass(frozen=True)
class Create(Operation):
    """A topic, or more partitions for one."""

    name: str
    given: dict[str, Any]

    refuses: ClassVar[frozenset[str]] = frozenset({UNDECLARED, OUT_OF_RANGE})

    def run(self, storage: OpenStorage) -> Any:
        return storage.create_topic(self.name, self.given)

    def after(self, world: World) -> Stages:
        old = world.topics.get(self.name)
        count = self.given["partitions"]
        if old is None:
            world.topics[self.name] = Topic(
                count,
                idempotent=self.given.get("idempotent", False),
                event_sourcing=self.given.get("event_sourcing", False),
                cleanup=self.given.get("cleanup_policy", "delete"),
            )
        elif old.partitions != count:
            world.topics[self.name] = replace(old, partitions=count, revision=old.revision + 1)
        for partition in range(count):
            _open(world, self.name, partition)
        yield world


def _open(world: World, topic: str, partition: int) -> None:
    key = (topic, partition)
    world.logs.setdefault(key, Log())
    world.producers.setdefault(key, {})
    if world.topics[topic].event_sourcing:
        world.versions.setdefault(key, {})
        world.snapshots.setdefault(key, {})


def _close(world: World, topic: str) -> None:
    for part in (world.logs, world.producers, world.versions, world.snapshots):
        for key in [key for key in part if key[0] == topic]:
            del part[key]  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Delete(Operation):
    """A topic goes, and then, one by one, the groups that name it."""

    name: str

    refuses: ClassVar[frozenset[str]] = frozenset({UNDECLARED, INTERNAL_TAIL})

    def run(self, storage: OpenStorage) -> Any:
        return storage.delete_topic(self.name)

    def after(self, world: World) -> Stages:
        del world.topics[self.name]
        _close(world, self.name)
        yield world.copy()
        yield from forget_groups(world, self.name)


def forget_groups(world: World, topic: str) -> Stages:
    """The groups that name a topic go, one by one."""
    for name in sorted(world.groups, key=str.encode):
        group = world.groups[name]
        if group.topic == topic or topic in group.offsets:
            del world.groups[name]
            world.epochs[name] = group.epoch + 1
            yield world.copy()


@dataclass(frozen=True)
class Truncate(Operation):
    """A topic is emptied; a start after a crash inside it goes on with it."""

    name: str

    refuses: ClassVar[frozenset[str]] = frozenset({INTERNAL_TAIL})

    def run(self, storage: OpenStorage) -> Any:
        known = storage.topics.get(self.name)
        revision = known.revision if known is not None else 1
        # Asked again, one that is decided and not finished carries the revision that it began with.
        pending = self.name in storage._manifest.pending
        return storage.truncate_topic(self.name, revision - pending)

    def after(self, world: World) -> Stages:
        old = world.topics[self.name]
        world.topics[self.name] = replace(old, revision=old.revision + 1, epoch=old.epoch + 1)
        _close(world, self.name)
        for partition in range(old.partitions):
            _open(world, self.name, partition)
        *_, last = [world.copy(), *forget_groups(world, self.name)]
        yield last  # what the manifest has decided, a start carries out


@dataclass(frozen=True)
class Publish(Operation):
    """Records for one partition, acknowledged together. ``batch``: in one write."""

    topic: str
    partition: int
    records: tuple[Record, ...]
    segment_bytes: int
    batch: bool = True

    def run(self, storage: OpenStorage) -> Any:
        return storage.publish(self.topic, self.partition, self.records)

    def after(self, world: World) -> Stages:
        log = world.logs[self.topic, self.partition]
        whole = sum(4 + encoded_size(self._placed(record)) for record in self.records)
        for number, record in enumerate(self.records):
            placed = self._placed(record)
            if number == 0:
                log.add(placed, self.segment_bytes, batch=whole)
            else:
                log.put(placed, 4 + encoded_size(placed))
            if record.producer_id:
                name = record.producer_id.decode()
                producers = world.producers[self.topic, self.partition]
                producers[name] = (record.epoch, record.sequence)
            if record.aggregate_version:
                versions = world.versions[self.topic, self.partition]
                versions[record.key] = record.aggregate_version
            yield world.copy()

    def _placed(self, record: Record) -> Record:
        return replace(record, topic=self.topic.encode(), partition=self.partition)


@dataclass(frozen=True)
class Register(Operation):
    group: str
    topic: str
    partition_count: int

    refuses: ClassVar[frozenset[str]] = frozenset({INTERNAL_TAIL, OUT_OF_RANGE})

    def run(self, storage: OpenStorage) -> Any:
        return storage.register_group(self.group, self.topic, self.partition_count)

    def after(self, world: World) -> Stages:
        epoch = world.epochs.get(self.group, 0) + 1
        world.groups[self.group] = Group(self.topic, self.partition_count, epoch)
        world.epochs[self.group] = epoch
        yield world.copy()
        yield from _grow_internal(world)


def _grow_internal(world: World) -> Stages:
    """consumer-metadata.md section 1: one partition for ten groups, 4 to 50, never fewer."""
    topic = world.topics[INTERNAL_TOPIC]
    want = min(max(len(world.groups) // 10, 4), 50)
    if want > topic.partitions:
        world.topics[INTERNAL_TOPIC] = replace(topic, partitions=want, revision=topic.revision + 1)
        yield world.copy()


@dataclass(frozen=True)
class Commit(Operation):
    group: str
    topic: str
    offsets: dict[int, int]

    refuses: ClassVar[frozenset[str]] = frozenset({INTERNAL_TAIL})

    def run(self, storage: OpenStorage) -> Any:
        return storage.commit_offsets(self.group, self.topic, self.offsets)

    def after(self, world: World) -> Stages:
        group = world.groups[self.group]
        held = group.offsets.setdefault(self.topic, {})
        if any(held.get(partition) != offset for partition, offset in self.offsets.items()):
            held.update(self.offsets)
            group.revisions[self.topic] = group.revisions.get(self.topic, 0) + 1
        yield world


@dataclass(frozen=True)
class Unregister(Operation):
    group: str

    refuses: ClassVar[frozenset[str]] = frozenset({INTERNAL_TAIL})

    def run(self, storage: OpenStorage) -> Any:
        return storage.delete_group(self.group)

    def after(self, world: World) -> Stages:
        world.epochs[self.group] = world.groups.pop(self.group).epoch + 1
        yield world


@dataclass(frozen=True)
class Retain(Operation):
    """A retention pass at ``now_ns``, in which every closed segment has to go, or none."""

    topic: str
    partition: int
    now_ns: int
    expired: bool = True

    def run(self, storage: OpenStorage) -> Any:
        return storage.retain(self.topic, self.partition)

    def after(self, world: World) -> Stages:
        log = world.logs[self.topic, self.partition]
        for base, _ in log.segments[1:] if self.expired else []:
            log.drop_below(base)
            yield world.copy()


@dataclass(frozen=True)
class Compact(Operation):
    """A compaction pass, which has to rewrite something."""

    topic: str
    partition: int

    def run(self, storage: OpenStorage) -> Any:
        return storage.compact(self.topic, self.partition)

    def after(self, world: World) -> Stages:
        if self.topic != INTERNAL_TOPIC:
            world.logs[self.topic, self.partition].supersede()
        yield world


@dataclass(frozen=True)
class Journal(Operation):
    """A state of a transaction, journaled. ``due``: the steps that a decision leaves to do."""

    values: dict[str, Any]
    due: tuple[Callable[[World], None], ...] = ()

    def run(self, storage: OpenStorage) -> Any:
        return storage.journal_append(self.values)

    def after(self, world: World) -> Stages:
        values = self.values
        world.transactions[values["id"]] = (values["state"], values["epoch"])
        if self.due:
            world.due[values["id"]] = self.due
        yield world


@dataclass(frozen=True)
class SaveSnapshot(Operation):
    topic: str
    partition: int
    key: bytes
    version: int
    payload: bytes

    def run(self, storage: OpenStorage) -> Any:
        return storage.save_aggregate_snapshot(
            self.topic, self.partition, self.key, self.version, self.payload
        )

    def after(self, world: World) -> Stages:
        world.snapshots[self.topic, self.partition][self.key] = (self.version, self.payload)
        yield world


@dataclass(frozen=True)
class PublishUnderCheckpoint(Publish):
    """Records that are written when a checkpoint comes, and not on the disk yet."""

    def run(self, storage: OpenStorage) -> Any:
        log = storage.partition(self.topic, self.partition)
        wait = log.wait

        def checkpoint_first(end: int) -> None:
            with patch.object(log, "wait", wait):
                storage.checkpoint()
            wait(end)

        with patch.object(log, "wait", checkpoint_first):
            return storage.publish(self.topic, self.partition, self.records)


@dataclass(frozen=True)
class FlushQueued(Publish):
    """Queued records, written in two goes; nothing is promised before the flush returns."""

    def run(self, storage: OpenStorage) -> Any:
        log = storage.partition(self.topic, self.partition)
        half = len(self.records) // 2
        storage.enqueue(self.topic, self.partition, self.records[:half])
        log.write_queued()
        storage.enqueue(self.topic, self.partition, self.records[half:])
        log.flush()
        return log.hwm


@dataclass(frozen=True)
class AppendBehindQueue(Publish):
    """Queued records and one that is not: when that one is acknowledged, all of them are."""

    def run(self, storage: OpenStorage) -> Any:
        storage.enqueue(self.topic, self.partition, self.records[:-1])
        return storage.publish(self.topic, self.partition, self.records[-1:])


@dataclass(frozen=True)
class DropTail(Operation):
    """A log is cut at an offset. On the way it is shorter and shorter, and never has a hole."""

    topic: str
    partition: int
    offset: int

    def run(self, storage: OpenStorage) -> Any:
        return storage.partition(self.topic, self.partition).truncate(self.offset)

    def after(self, world: World) -> Stages:
        log = world.logs[self.topic, self.partition]
        for end in range(log.end - 1, self.offset - 1, -1):
            log.end = end
            log.records = {offset: item for offset, item in log.records.items() if offset < end}
            log.segments = [item for item in log.segments if item[0] <= end]
            yield world.copy()


def records(
    *payloads: str, key: str = "", producer: str = "", first: int = 1
) -> tuple[Record, ...]:
    """Ordinary records; with a producer, their sequences go up from ``first``."""
    return tuple(
        Record(
            key=key.encode(),
            payload=payload.encode(),
            producer_id=producer.encode(),
            sequence=first + number if producer else 0,
        )
        for number, payload in enumerate(payloads)
    )


def events(key: str, first: int, payloads: Sequence[str]) -> tuple[Record, ...]:
    """Events of one aggregate, versions from ``first`` on."""
    return tuple(
        Record(
            key=key.encode(),
            payload=payload.encode(),
            event_type=b"changed",
            schema_version=1,
            aggregate_version=first + number,
        )
        for number, payload in enumerate(payloads)
    )


@dataclass(frozen=True)
class Checkpoint(Operation):
    """Write the derived files; no client notices."""

    def run(self, storage: OpenStorage) -> Any:
        return storage.checkpoint()

    def after(self, world: World) -> Stages:
        yield world


@dataclass(frozen=True)
class ForgetProducers(Operation):
    """Everybody was silent for long. A start learns of them again, from their records."""

    topic: str
    partition: int

    def run(self, storage: OpenStorage) -> Any:
        # The clock stands still: longer than before now is everybody.
        return storage.forget_producers(self.topic, self.partition, ttl_ns=-1)

    def after(self, world: World) -> Stages:
        yield world


@dataclass(frozen=True)
class CompactJournal(Operation):
    """The journal without its superseded frames: it says the same."""

    def run(self, storage: OpenStorage) -> Any:
        return storage.compact_journal()

    def after(self, world: World) -> Stages:
        yield world


@dataclass(frozen=True)
class FinishTransaction(Operation):
    """Carry a decided commit out, step by step. A start would do the steps that are left."""

    name: str

    refuses: ClassVar[frozenset[str]] = frozenset({INTERNAL_TAIL})

    def run(self, storage: OpenStorage) -> Any:
        return storage.finish_transaction(self.name)

    def after(self, world: World) -> Stages:
        while world.due[self.name]:
            step, *rest = world.due[self.name]
            step(world)
            world.due[self.name] = tuple(rest)
            yield world.copy()
        del world.due[self.name]
        yield world


@dataclass(frozen=True)
class AppendEvents(Publish):
    """Events of one aggregate, each acknowledged by itself, with the index beside the log."""

    def run(self, storage: OpenStorage) -> Any:
        for record in self.records:
            storage.append_event(self.topic, self.partition, record)

    def after(self, world: World) -> Stages:
        for record in self.records:
            yield from Publish(self.topic, self.partition, (record,), self.segment_bytes).after(
                world
            )
