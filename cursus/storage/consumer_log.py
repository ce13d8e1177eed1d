"""Consumer groups as records of ``__consumer_offsets``: what is written, and when it counts.

One accepted operation is one record: a registration, a complete snapshot of the
offsets of one (group, topic), or a tombstone. The record is appended to the
partition of its key and is on the disk before memory changes and before the
call returns; a call that changes nothing writes nothing. What is written is
what replay would accept: epochs go up with each life of a group, revisions with
each snapshot of a life, offsets never back.

An append that failed may be on the disk all the same. The next record of that
key would have the same epoch or revision, so it may go only where the failed one
went, to a partition that takes nothing until restart, even when the topic has
grown since and the key belongs elsewhere.

Records of one group lie in different partitions, so more than the key is in doubt. A
registration or a tombstone that may be there would take back what is acknowledged
behind it: such a group takes nothing until restart, and is a reference of its topic.
So are offsets that may be there.

Members, generations and ownership are the coordinator's: it checks them first.
Calls for **one group need a lock of that group**. ``register``, ``delete_group``,
``forget_topic`` and ``grow_if_due`` also need **the broker's group lock**, which
serialises lives of groups; commits of different groups may run at once.

Source: consumer-metadata.md sections 1, 2.5, 7, 11 (7); README.md decisions 6, 7.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Final

from cursus import layout
from cursus.findings import FormatError
from cursus.formats import consumer_metadata as cm
from cursus.formats.canonical_json import INT64, UINT64
from cursus.formats.consumer_metadata import ConsumerRecord, SnapshotWriter
from cursus.formats.record import Record
from cursus.replay.consumer_groups import ConsumerResult, GroupState
from cursus.storage.errors import (
    StoreError,
    UnwritableError,
    WriteFailedError,
    WriteRefusedError,
    reason,
)

#: What may come of a write: refused before it, or failed in it.
_WRITING: Final = (FormatError, StoreError, OSError)
#: Longest name of a group, in bytes of UTF-8.
MAX_GROUP_NAME_BYTES: Final = 1024

#: Append one record to a partition of the internal topic; its offset, when it is on the disk.
Append = Callable[[int, Record], int]
#: Grow the internal topic to a number of partitions, open them, return how many there are.
Grow = Callable[[int], int]
#: Nanoseconds since the zero time (``cursus.formats.timestamps``).
Clock = Callable[[], int]


class ConsumerLog:
    """Live groups and their committed offsets, each change of them durable.

    ``replayed``: what the plan found (copied). ``partitions``: of the internal
    topic, as it is open now.
    """

    def __init__(
        self,
        replayed: ConsumerResult,
        partitions: int,
        append: Append,
        *,
        clock: Clock,
        grow: Grow | None = None,
    ) -> None:
        self._groups = {name: _copy(group) for name, group in replayed.groups.items()}
        #: Highest epoch in any record of a group, snapshots and tombstones included.
        self._epochs = {name: floor - 1 for name, floor in replayed.floors.items()}
        for name, epoch in replayed.epochs.items():
            self._epochs[name] = max(epoch, self._epochs.get(name, 0))
        self._append = append
        self._grow = grow
        self._clock = clock
        self._wanted = partitions
        self._pinned: dict[bytes, int] = {}
        #: Groups whose last registration or tombstone may be there, or not: topic, and code.
        self._doubtful: dict[str, tuple[str, str]] = {}
        #: (group, topic) of offsets that may be there, or not.
        self._doubtful_offsets: set[tuple[str, str]] = set()
        self._writers: dict[tuple[str, str], SnapshotWriter] = {}
        #: Partitions of the internal topic that new records are spread over.
        self.partitions = partitions
        #: Why the internal topic did not grow when it should have; commits go on.
        self.growth_warning: str | None = None

    # -- what there is ---------------------------------------------------------------

    @property
    def groups(self) -> Mapping[str, GroupState]:
        """Live groups by name. Offsets are the next ones to read."""
        return MappingProxyType(self._groups)

    def committed(self, group: str, topic: str, partition: int) -> int | None:
        """The committed offset; ``None`` when nothing was committed there, 0 included.

        Raises :class:`StoreError` ``group_not_found``. The partition is not checked.
        """
        return self._require(group).offsets.get(topic, {}).get(partition)

    def epoch(self, group: str) -> int:
        """Highest epoch that any record of the group has, 0 for an unknown one."""
        return self._epochs.get(group, 0)

    def references(self, topic: str) -> list[str]:
        """Live groups on ``topic``, or with offsets of it; by the bytes of their names.

        Groups and offsets that a restart may find are among them. Commits may run
        meanwhile, so copies are looked at.
        """
        found = {
            group.name
            for group in tuple(self._groups.values())
            if group.topic == topic or group.offsets.get(topic)
        }
        found |= {name for name, (named, _) in tuple(self._doubtful.items()) if named == topic}
        found |= {name for name, named in tuple(self._doubtful_offsets) if named == topic}
        return sorted(found, key=_order)

    # -- lives of groups ---------------------------------------------------------------

    def register(self, topic: str, group: str, partition_count: int) -> bool:
        """Register a group; False when it is registered already, just so (section 7.1).

        Raises :class:`StoreError`; then nothing has changed.
        """
        if not topic or not group:
            raise StoreError("empty_name", "topic and group names must not be empty")
        if not 0 < partition_count <= INT64[1]:
            raise StoreError(
                "invalid_partition_count", f"invalid partition count: {partition_count}"
            )
        self._refuse_in_doubt(group)
        known = self._groups.get(group)
        if known is not None:
            _same(known, topic, partition_count)
            return False
        _check_name(group, MAX_GROUP_NAME_BYTES)
        _check_name(topic, UINT64[1])
        epoch = self._next_epoch(group)
        record = ConsumerRecord(
            cm.REGISTRATION,
            group,
            epoch,
            topic=topic,
            partition_count=partition_count,
            timestamp=self._clock(),
        )
        try:
            self._write_life(record)
        except _WRITING as error:
            code, prefix = "registration_write_failed", "persist group registration: "
            self._note_doubt(error, record, code)
            raise _failed(code, prefix, group, error) from error
        self._epochs[group] = epoch
        self._groups[group] = GroupState(group, topic, partition_count, epoch)
        self.grow_if_due()
        return True

    def delete_group(self, group: str, *, active_members: int = 0) -> bool:
        """Write the tombstone of a group; False when there is no such group (section 7.2).

        Raises :class:`StoreError`; then nothing has changed.
        """
        if not group:
            raise StoreError("empty_name", "group name must not be empty")
        self._refuse_in_doubt(group)
        known = self._groups.get(group)
        if known is None:
            return False
        if active_members:
            raise StoreError(
                "group_has_active_members",
                f"cannot delete group {cm.quoted(group)} with active members",
                group=group,
            )
        epoch = self._next_epoch(group)
        record = ConsumerRecord(
            cm.TOMBSTONE, group, epoch, topic=known.topic, timestamp=self._clock()
        )
        try:
            self._write_life(record)
        except _WRITING as error:
            code, prefix = "tombstone_write_failed", "persist group tombstone: "
            self._note_doubt(error, record, code)
            raise _failed(code, prefix, group, error) from error
        self._epochs[group] = epoch
        del self._groups[group]
        for topic in known.offsets:
            self._writers.pop((group, topic), None)
        # The tombstone is above them, whether they are there or not.
        self._doubtful_offsets.difference_update(
            [item for item in tuple(self._doubtful_offsets) if item[0] == group]
        )
        self.grow_if_due()
        return True

    def forget_topic(self, topic: str) -> list[str]:
        """Delete every group that refers to a deleted or truncated topic (section 7.5).

        Returns their names. Raises :class:`StoreError`; it may be called again.
        """
        found = self.references(topic)
        for group in found:
            self.delete_group(group)
        return found

    def grow_if_due(self) -> None:
        """Grow the internal topic when there are groups enough; a failure is no error."""
        wanted = cm.internal_partitions(len(self._groups))
        if wanted == self._wanted:
            return
        self._wanted = wanted
        if self._grow is None or wanted <= self.partitions:
            return
        try:
            self.partitions = self._grow(wanted)
            self.growth_warning = None
        except (StoreError, FormatError, OSError) as error:
            self.growth_warning = f"{layout.INTERNAL_TOPIC} did not grow: {error}"

    def _next_epoch(self, group: str) -> int:
        epoch = self._epochs.get(group, 0)
        if epoch >= UINT64[1]:
            raise StoreError("group_epoch_overflow", "group lifecycle epoch overflow", group=group)
        return epoch + 1

    # -- offsets ---------------------------------------------------------------------------

    def commit(self, group: str, topic: str, partition: int, offset: int) -> bool:
        """Commit one offset; False when it is committed already (section 7.3).

        Raises :class:`StoreError`; then nothing has changed.
        """
        self._refuse_in_doubt(group)
        known = self._require(group)
        _check_topic(known, topic)
        _check_partition(known, partition)
        now = known.offsets.get(topic, {})
        _check_offset(known, topic, now, partition, offset)
        if now.get(partition) == offset:
            return False
        self._snapshot(known, topic, {**now, partition: offset})
        return True

    def commit_batch(self, group: str, topic: str, offsets: Iterable[tuple[int, int]]) -> bool:
        """Commit (partition, offset) pairs of one topic, all or none (section 7.4).

        False when nothing differs. Raises :class:`StoreError`; then nothing has changed.
        """
        items = list(offsets)
        if not items:
            return False
        self._refuse_in_doubt(group)
        known = self._require(group)
        _check_topic(known, topic)
        now = known.offsets.get(topic, {})
        given: dict[int, int] = {}
        for partition, offset in items:
            if partition in given:
                raise StoreError(
                    "duplicate_partition",
                    f"ERROR: duplicate_partition partition={partition} group={group} topic={topic}",
                    group=group,
                )
            _check_offset(known, topic, now, partition, offset)
            given[partition] = offset
        for partition in given:
            _check_partition(known, partition)
        if all(now.get(partition) == offset for partition, offset in given.items()):
            return False
        self._snapshot(known, topic, {**now, **given})
        return True

    def commit_prepared(
        self, group: str, topic: str, offsets: Mapping[int, int], registration_epoch: int
    ) -> bool:
        """Apply the staged offsets of a commit that is decided (section 7.7).

        An offset below the committed one is left as it is, so a repeat changes
        nothing. ``registration_epoch`` is the life of the group that staged them:
        another life, or none (0), is refused.
        """
        known = self._groups.get(group)
        if known is None or registration_epoch == 0 or registration_epoch != known.epoch:
            raise StoreError(
                "group_incarnation_mismatch",
                f"prepared transaction group incarnation mismatch group={group} "
                f"epoch={registration_epoch}",
                group=group,
                epoch=registration_epoch,
            )
        now = known.offsets.get(topic, {})
        raised = [(p, max(offset, now.get(p, 0))) for p, offset in sorted(offsets.items())]
        return self.commit_batch(group, topic, raised)

    def _snapshot(self, group: GroupState, topic: str, offsets: dict[int, int]) -> None:
        revision = group.revisions.get(topic, 0)
        if revision >= UINT64[1]:
            raise StoreError(
                "offset_revision_overflow", "offset revision overflow", group=group.name
            )
        writer = self._writers.get((group.name, topic))
        if writer is None or writer.epoch != group.epoch:
            writer = SnapshotWriter(group.name, topic, group.epoch)
            self._writers[group.name, topic] = writer
        try:
            payload = writer.encode(revision + 1, offsets, self._clock())
            self._write(writer.key, writer.key_hash, payload)
        except _WRITING as error:
            if _outcome_unknown(error):
                self._doubtful_offsets.add((group.name, topic))
            raise _failed("append_failed", "", group.name, error) from error
        group.offsets[topic] = offsets
        group.revisions[topic] = revision + 1

    # -- the log -----------------------------------------------------------------------------

    def _write_life(self, record: ConsumerRecord) -> None:
        key = record.key().encode()
        self._write(key, cm.fnv1a64(key), cm.encode(record))

    def _write(self, key: bytes, key_hash: int, payload: bytes) -> None:
        partition = self._pinned.get(key)
        if partition is None:
            partition = key_hash % self.partitions
        try:
            self._append(partition, Record(key=key, payload=payload))
        except (FormatError, WriteRefusedError):
            raise  # nothing was written
        except (StoreError, OSError):
            self._pinned[key] = partition
            raise

    def _note_doubt(
        self, error: StoreError | FormatError | OSError, record: ConsumerRecord, code: str
    ) -> None:
        if _outcome_unknown(error):
            self._doubtful[record.group] = (record.topic, code)

    def _refuse_in_doubt(self, group: str) -> None:
        """What is acknowledged behind such a record may not be there after a restart."""
        if group in self._doubtful:
            code = self._doubtful[group][1]
            what = "was registered" if code == "registration_write_failed" else "was deleted"
            text = f'whether group "{group}" {what} is known after a restart'
            raise StoreError(code, text, path=layout.INTERNAL_TOPIC, group=group)

    def _require(self, group: str) -> GroupState:
        known = self._groups.get(group)
        if known is None:
            raise StoreError("group_not_found", f"group '{group}' not found", group=group)
        return known


def _outcome_unknown(error: StoreError | FormatError | OSError) -> bool:
    """May the record be on the disk? A log says so; what fails before it, does not."""
    return isinstance(error, WriteFailedError) and not isinstance(error, UnwritableError)


def _failed(
    code: str, prefix: str, group: str, error: StoreError | FormatError | OSError
) -> StoreError:
    text = reason(error) if isinstance(error, OSError) else error.message
    return StoreError(code, prefix + text, path=layout.INTERNAL_TOPIC, group=group)


def _copy(group: GroupState) -> GroupState:
    offsets = {topic: dict(items) for topic, items in group.offsets.items()}
    return GroupState(
        group.name,
        group.topic,
        group.partition_count,
        group.epoch,
        offsets,
        dict(group.revisions),
    )


def _same(known: GroupState, topic: str, partition_count: int) -> None:
    if known.topic != topic:
        raise StoreError(
            "topic_mismatch",
            f"topic mismatch (existing: {known.topic}, requested: {topic})",
            group=known.name,
        )
    if known.partition_count != partition_count:
        raise StoreError(
            "group_partition_count_mismatch",
            f"partition count mismatch (existing: {known.partition_count}, "
            f"requested: {partition_count})",
            group=known.name,
        )


def _check_name(name: str, limit: int) -> None:
    """The key is made of the name's bytes: they must be those that the payload will hold."""
    try:
        data = name.encode("utf-8")
    except UnicodeEncodeError:
        raise StoreError("invalid_group_name", "a name is not valid UTF-8") from None
    if b"\0" in data or len(data) > limit:
        what = "holds a NUL" if b"\0" in data else f"has more than {limit} bytes"
        raise StoreError("invalid_group_name", f"a name {what}")


def _check_topic(known: GroupState, topic: str) -> None:
    if topic != known.topic:
        if not cm.topic_matches(known.topic, topic):
            raise StoreError(
                "topic_mismatch",
                f"topic mismatch for group={known.name} "
                f"(existing: {known.topic}, requested: {topic})",
                group=known.name,
            )
        if topic not in known.offsets:
            _check_name(topic, UINT64[1])


def _check_partition(known: GroupState, partition: int) -> None:
    if not 0 <= partition < known.partition_count:
        raise StoreError(
            "invalid_partition",
            f"invalid partition {partition} for group={known.name} "
            f"partition_count={known.partition_count}",
            group=known.name,
        )


def _check_offset(
    known: GroupState, topic: str, now: Mapping[int, int], partition: int, offset: int
) -> None:
    current = now.get(partition, 0)
    if offset < current:
        raise StoreError(
            "offset_regression",
            f"offset regression for group={known.name} topic={topic} "
            f"partition={partition}: current={current} attempted={offset}",
            group=known.name,
        )
    if offset > UINT64[1]:
        raise StoreError("invalid_offset", f"offset {offset} is above 2^64-1", group=known.name)


def _order(name: str) -> bytes:
    return name.encode("utf-8", "surrogatepass")
