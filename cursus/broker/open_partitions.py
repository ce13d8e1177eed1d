"""Partitions that are open, and what is written to them: records, and events of aggregates.

The half of the storage (``cursus.broker.open_storage``) that knows of no groups and no
journal. Whatever opens or writes files asks first whether the storage is still open:
with a lock held that closing takes, or before it goes to a partition, which refuses by
itself once it is closed.

Source: segments.md sections 8 and 13; journal.md sections 6.3 and 7; broker.md section 8.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from threading import RLock

from cursus import layout
from cursus.broker.derived_state import DerivedState, Key
from cursus.broker.machine import Machine
from cursus.broker.open_aggregates import OpenAggregates
from cursus.broker.partition_producers import PartitionProducers
from cursus.formats.record import Record
from cursus.formats.topic_manifest import TopicDefinition
from cursus.storage.aggregate_store import AggregateStore
from cursus.storage.compaction import CompactionResult
from cursus.storage.errors import StoreError
from cursus.storage.manifest_store import ManifestStore
from cursus.storage.partition_log import PartitionStore
from cursus.storage.retention import RetentionResult


class OpenPartitions:
    """See the module; the locks and their order are those of the storage."""

    def __init__(self, log_dir: str, machine: Machine) -> None:
        self.log_dir = log_dir
        self.partitions: dict[Key, PartitionStore] = {}
        self._machine = machine
        self._files = machine.files
        self._topic_lock = RLock()
        self._derived = DerivedState(self._files, log_dir, machine.ticks_ns, self._topic_lock)
        #: Producers of each partition that is open.
        self.producers: Mapping[Key, PartitionProducers] = self._derived.producers
        self._manifest: ManifestStore
        self._aggregates = OpenAggregates(self._files, log_dir)
        self._closed = False

    @contextmanager
    def _while_open(self, *locks: RLock) -> Iterator[None]:
        """Hold ``locks``, given in their order, of a storage that is not closed meanwhile.

        One of them is a lock that closing takes. Raises ``StoreError``
        ``storage_closed``.
        """
        with ExitStack() as stack:
            for lock in locks:
                stack.enter_context(lock)
            self._require_open()
            yield

    def _require_open(self) -> None:
        if self._closed:
            raise StoreError("storage_closed", path=self.log_dir)

    def partition(self, topic: str, partition: int) -> PartitionStore:
        """The log of a partition. Raises ``StoreError`` ``topic_not_found``."""
        found = self.partitions.get((topic, partition))
        if found is None:
            text = f'there is no partition {partition} of a topic "{topic}"'
            raise StoreError("topic_not_found", text, path=topic)
        return found

    def _definition(self, topic: str) -> TopicDefinition:
        """What the manifest says; it forgets a topic before its logs are closed."""
        found = self._manifest.definitions.get(topic)
        if found is None:
            raise StoreError("topic_not_found", f'there is no topic "{topic}"', path=topic)
        return found

    # -- records --------------------------------------------------------------------------

    def publish(self, topic: str, partition: int, records: Sequence[Record]) -> range:
        """Append records in one write; returns their offsets when they are on the disk.

        Where the topic is idempotent, or a record names a producer with a
        sequence, the rules of journal.md section 6.3 apply: what is there already
        is not appended again, and a batch that breaks a rule is refused as a whole.
        """
        self._require_open()
        _forbid_internal(topic)
        with self._beside_aggregates(topic, partition, records):
            return self._append(topic, partition, records)

    def enqueue(self, topic: str, partition: int, records: Sequence[Record]) -> range:
        """Accept records that are written and synced later; returns their offsets at once.

        Nothing is promised until the partition's ``hwm`` has passed them. The rules of
        :meth:`publish` apply. Events of an aggregate are durable when this returns: the
        version of the next one depends on them.
        """
        self._require_open()
        _forbid_internal(topic)
        if self._are_events(topic, records):
            return self.publish(topic, partition, records)
        key = (topic, partition)
        log = self.partition(*key)
        if not any(record.producer_id for record in records):
            return log.enqueue(records)
        producers, active = self._producers_of(key)
        offsets = producers.accept(records, log.enqueue, active=active)
        self._derived.settle(key, log, producers)
        return offsets

    def _are_events(self, topic: str, records: Sequence[Record]) -> bool:
        definition = self._manifest.definitions.get(topic)
        events = any(record.key and record.aggregate_version for record in records)
        return events and definition is not None and definition.event_sourcing

    @contextmanager
    def _beside_aggregates(
        self, topic: str, partition: int, records: Sequence[Record]
    ) -> Iterator[None]:
        """Events that do not come by :meth:`append_event`: the aggregates are built anew.

        What is derived from the log may not lag behind it, or the next event would be
        accepted under a version that is taken.
        """
        if not self._are_events(topic, records):
            yield
            return
        with self._while_open(self._aggregates.lock):
            try:
                yield
            finally:
                self._aggregates.drop((topic, partition))

    def _append(self, topic: str, partition: int, records: Sequence[Record]) -> range:
        key = (topic, partition)
        log = self.partition(*key)
        if not any(record.producer_id for record in records):
            return log.append_batch(records)
        producers, active = self._producers_of(key)
        offsets = producers.accept(records, log.write, active=active)
        end = log.flushed
        if len(offsets) < len(records):
            # What is a duplicate may be in the queue, or on its way to the disk: it is
            # acknowledged there too.
            end = _written(log, log.leo)
        log.wait(end)
        self._derived.settle(key, log, producers)
        return offsets

    def _producers_of(self, key: Key) -> tuple[PartitionProducers, bool]:
        """Producers of one life of the topic, and whether it asks for their sequences.

        It may be deleted or emptied while a caller waits for the disk.
        """
        producers = self.producers.get(key)
        active = self._definition(key[0]).idempotent
        if producers is None:
            raise StoreError("topic_not_found", f'there is no topic "{key[0]}"', path=key[0])
        return producers, active

    def append_committed(self, topic: str, partition: int, records: Sequence[Record]) -> None:
        """Records of a commit that is decided, durable when it returns.

        Their producers are noted before anybody can take the records for old ones.
        """
        self._require_open()
        key = (topic, partition)
        log, producers = self.partition(*key), self.producers[key]
        with self._beside_aggregates(topic, partition, records):
            log.wait(producers.commit(records, log.write).stop)
        self._derived.settle(key, log, producers)

    # -- aggregates -----------------------------------------------------------------------------

    def aggregates(self, topic: str, partition: int) -> AggregateStore:
        """The aggregates of a partition, built from its log at first use."""
        with self._while_open(self._aggregates.lock):
            log = self.partition(topic, partition)
            if not self._definition(topic).event_sourcing:
                raise StoreError("event_sourcing_required", path=topic)
            return self._aggregates.of(log)

    def append_event(self, topic: str, partition: int, record: Record) -> int:
        """Append an event whose ``aggregate_version`` is the next one of its key."""
        with self._while_open(self._aggregates.lock):
            aggregates = self.aggregates(topic, partition)
            aggregates.check(record.key, record.aggregate_version)
            offsets = self._append(topic, partition, [record])
            if not offsets:
                text = "its producer has used this sequence before: it is another event"
                raise StoreError("event_sequence_used", text, path=topic)
            offset = offsets[0]
            try:
                aggregates.append(record.key, record.aggregate_version, offset)
            except StoreError:
                # The event is there; only what is derived from the log is not, and is
                # built anew before anybody looks at it again.
                self._aggregates.drop((topic, partition))
            return offset

    def save_aggregate_snapshot(
        self, topic: str, partition: int, key: bytes, version: int, payload: bytes
    ) -> None:
        """Save the state of an aggregate; on the disk when it returns."""
        with self._while_open(self._aggregates.lock):
            self.aggregates(topic, partition).save_snapshot(key, version, payload)

    # -- maintenance ----------------------------------------------------------------------------

    def retain(self, topic: str, partition: int) -> RetentionResult:
        """One retention pass over a partition.

        What its producers have sent is on the disk before the records that say so
        go: a retry that arrives after a crash would be appended twice.
        """
        self._require_open()
        log = self.partition(topic, partition)
        *closed, active = log.segments
        if closed and not self._derived.save_producers((topic, partition)):
            return RetentionResult(skipped_reason="checkpoint_not_written")
        return log.apply_retention(below=active)

    def compact(self, topic: str, partition: int) -> CompactionResult:
        """One compaction pass over a partition."""
        self._require_open()
        return self.partition(topic, partition).compact()


def _forbid_internal(topic: str) -> None:
    if topic == layout.INTERNAL_TOPIC:
        raise StoreError("internal_topic_write_forbidden", f"{topic} cannot be written to")


def _written(log: PartitionStore, end: int) -> int:
    """Write what is queued below ``end``; the end of what is written now."""
    while log.flushed < end and log.write_queued():
        pass
    return log.flushed
