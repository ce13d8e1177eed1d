"""Step 3: replay ``__consumer_offsets`` into groups, epochs and committed offsets.

The replay keeps two views at once. The *broker's* view stops at the first
record that it does not accept and freezes there: phase, counters and failure
text are exactly a broker's. The *inspector's* view goes on with the next
record, so that all of the damage is seen, and gives every record of the log a
disposition.

Epochs order the lives of a group, revisions order the snapshots of one (group,
topic) within a life; neither the order in the log nor the partition decides
anything, but for one case: which of two stale lifecycle records is compared.
Records are therefore met in broker order: partition ascending, then offset.

Source: consumer-metadata.md sections 5 and 6.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from cursus.findings import Finding, FormatError, finding
from cursus.formats import consumer_metadata as cm
from cursus.formats.consumer_metadata import (
    ConsumerRecord,
    LaterRecord,
    UnversionedRecord,
    quoted,
)
from cursus.layout import INTERNAL_TOPIC
from cursus.replay.interfaces import RecordBatch, ScannedRecord, SegmentRef

Phase = Literal[
    "internal_topic_validation",
    "consumer_metadata_scan",
    "group_registration_replay",
    "committed_offset_replay",
    "ready",
]
Disposition = Literal[
    "lifecycle_current",
    "lifecycle_superseded",
    "lifecycle_stale",
    "lifecycle_duplicate",
    "snapshot_current",
    "snapshot_superseded",
    "snapshot_duplicate",
    "snapshot_no_lifecycle",
    "snapshot_fenced_deleted",
    "snapshot_fenced_epoch",
    "snapshot_stale_revision",
    "snapshot_equals_initial",
    "rejected",
    "evidence",
]
#: Dispositions that the orphan counter does not count.
NOT_ORPHANS: Final = frozenset(
    {"lifecycle_current", "snapshot_current", "snapshot_superseded", "rejected", "evidence"}
)
RecordState = Literal["live", "deleted", "unreachable"]

_PREFIX: Final = f'replay internal consumer metadata from "{INTERNAL_TOPIC}": '
_LAST_OFFSET: Final = 2**64 - 1
_KEPT_PAYLOAD: Final = 4096
#: Findings of one code for one file; after that one more says how many there were.
MAX_FINDINGS: Final = 1000
#: No partition count above this is tried when the place of a record is judged.
_MOST_PARTITIONS: Final = 10_000

#: Failures of the storage below the replay: text, phase, and whether it counts as corrupt.
_INFRASTRUCTURE: Final[Mapping[str, tuple[str, Phase, int]]] = {
    "internal_topic_discovery_failed": (
        "discover internal consumer metadata partitions: {error}",
        "internal_topic_validation",
        0,
    ),
    "internal_topic_invalid": (
        f'validate internal consumer metadata topic "{INTERNAL_TOPIC}": {{error}}',
        "internal_topic_validation",
        0,
    ),
    "log_start_unavailable": (
        _PREFIX + "inspect internal metadata log start partition={partition}: {error}",
        "consumer_metadata_scan",
        0,
    ),
    "log_read_failed": (
        _PREFIX + "read internal metadata partition={partition} offset={offset}: {error}",
        "consumer_metadata_scan",
        1,
    ),
}


@dataclass(slots=True)
class ConsumerRow:
    """One record of the internal topic and what became of it.

    ``record`` is ``None`` when the payload was not accepted. ``state`` says
    where it stands: in the log, in a deleted segment, or behind damage; only
    live records have a disposition other than ``evidence``. A payload that was
    not accepted is kept up to 4 KiB, and as ``unversioned`` or ``later`` where
    another release wrote it.
    """

    path: str
    position: int
    length: int
    segment_base: int
    log_partition: int
    log_offset: int
    state: RecordState
    key: bytes
    record: ConsumerRecord | None
    disposition: Disposition = "evidence"
    code: str | None = None
    unversioned: UnversionedRecord | None = None
    later: LaterRecord | None = None
    payload: bytes = b""

    @property
    def shape(self) -> str | None:
        """Shape of a record without a version."""
        return self.unversioned.shape if self.unversioned else None

    @property
    def newer_version(self) -> int | None:
        """Version of a record of a later release."""
        return self.later.version if self.later else None


@dataclass(slots=True)
class GroupState:
    """A live group after replay. Offsets are the next ones to read."""

    name: str
    topic: str
    partition_count: int
    epoch: int
    offsets: dict[str, dict[int, int]] = field(default_factory=dict)
    revisions: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class RecoveryStatus:
    """What a broker says of its recovery (section 5.6), in the order of its JSON."""

    phase: Phase = "internal_topic_validation"
    ready: bool = False
    failure: str = ""
    restored_groups: int = 0
    restored_offsets: int = 0
    replayed_records: int = 0
    registration_records: int = 0
    offset_records: int = 0
    orphan_records: int = 0
    corrupt_records: int = 0

    def as_dict(self) -> dict[str, object]:
        """Members in order; ``failure`` only when there is one."""
        found: dict[str, object] = {"phase": self.phase, "ready": self.ready}
        if self.failure:
            found["failure"] = self.failure
        for name in (
            "restored_groups",
            "restored_offsets",
            "replayed_records",
            "registration_records",
            "offset_records",
            "orphan_records",
            "corrupt_records",
        ):
            found[name] = getattr(self, name)
        return found


@dataclass(frozen=True, slots=True)
class Failure:
    """The first failure in broker order."""

    code: str
    phase: Phase
    text: str


@dataclass(frozen=True, slots=True)
class ConsumerResult:
    """What the internal topic says.

    ``groups`` are live groups (as far as the inspector can tell, also behind a
    failure), ``epochs`` the remembered epoch of every group with a lifecycle
    record, ``deleted`` the groups whose tombstone is current. ``floors``: the
    lowest epoch that a new registration of the group may take. ``historical``:
    highest offset of each (group, topic, partition) in unversioned records;
    never state.
    """

    groups: dict[str, GroupState]
    epochs: dict[str, int]
    deleted: dict[str, int]
    floors: dict[str, int]
    rows: tuple[ConsumerRow, ...]
    status: RecoveryStatus
    failure: Failure | None
    findings: tuple[Finding, ...]
    historical: dict[tuple[str, str, int], int]


def infrastructure_failure(
    code: str,
    error: str,
    *,
    partition: int = 0,
    offset: int = 0,
    reached: RecoveryStatus | None = None,
) -> tuple[RecoveryStatus, Failure]:
    """What a broker says when the storage below the replay fails (section 5.6).

    ``reached``: status of the replay at that moment, whose counters stay; the
    replay has none before it has begun to scan. Raises ``KeyError`` for a code
    that is not one of these.
    """
    form, phase, corrupt = _INFRASTRUCTURE[code]
    text = form.format(error=error, partition=partition, offset=offset)
    status = RecoveryStatus() if reached is None else replace(reached)
    status.phase, status.ready, status.failure = phase, False, text
    status.corrupt_records += corrupt
    status.restored_groups = status.restored_offsets = 0
    return status, Failure(code, phase, text.removeprefix(_PREFIX))


class ConsumerReplay:
    """Feed it the batches of ``__consumer_offsets`` in broker order, then :meth:`finish`."""

    def __init__(self, partitions: int) -> None:
        self.partitions = partitions
        self.rows: list[ConsumerRow] = []
        self.findings: list[Finding] = []
        self.status = RecoveryStatus(phase="consumer_metadata_scan")
        self.failure: Failure | None = None
        self._expected: dict[int, int] = {}
        self._first: dict[int, int] = {}
        self._lifecycles: dict[str, ConsumerRow] = {}
        self._snapshots: dict[tuple[str, str, int, int], ConsumerRow] = {}
        self._identity: dict[int, bytes] = {}
        self._historical: dict[tuple[str, str, int], int] = {}
        self._told: dict[tuple[str, str], int] = {}
        self._hashes: dict[bytes, int] = {}

    # -- scan ----------------------------------------------------------------------

    def visit(self, batch: RecordBatch) -> None:
        """Take the records of one batch; evidence of dead files is kept, never replayed."""
        segment = batch.segment
        state: RecordState = "live"
        if segment.deleted:
            state = "deleted"
        elif not batch.reachable:
            state = "unreachable"
        for item in batch:
            row = self._row(segment, item, state)
            self.rows.append(row)
            if state == "live":
                self._scan(row, item)
            else:
                self._look_at(row, item.record.payload)
                if state == "unreachable" and row.code == "unversioned_record":
                    # A record of an older build in a frame of an older build: the scan
                    # stopped before it, yet what it is should be said.
                    self._tell(
                        row,
                        "unversioned_record",
                        f"offsets of an older build ({row.shape}), not reached by a broker",
                        shape=row.shape,
                    )

    def _row(self, segment: SegmentRef, item: ScannedRecord, state: RecordState) -> ConsumerRow:
        return ConsumerRow(
            path=segment.path,
            position=item.position,
            length=item.length,
            segment_base=segment.base,
            log_partition=segment.partition,
            log_offset=item.record.offset,
            state=state,
            key=item.record.key,
            record=None,
        )

    def _look_at(self, row: ConsumerRow, payload: bytes) -> None:
        """Decode as evidence, without a finding."""
        try:
            row.record = cm.decode(payload)
        except FormatError as error:
            row.code = error.code
            self._keep_foreign(row, error, payload)

    def _scan(self, row: ConsumerRow, item: ScannedRecord) -> None:
        partition, offset = row.log_partition, row.log_offset
        self._first.setdefault(partition, offset)
        expected = self._expected.get(partition, offset)
        if offset < expected:
            self._reject(
                row,
                "record_offset_not_increasing",
                f"internal metadata partition {partition} returned offset {offset} "
                f"before {expected}",
            )
            return
        self._expected[partition] = offset + 1
        self._count("replayed_records")
        payload = item.record.payload
        try:
            record = cm.decode(payload)
        except FormatError as error:
            self._undecodable(row, error, payload)
            return
        if row.key != record.key().encode():
            self._reject(
                row,
                "record_key_mismatch",
                f"internal metadata key mismatch partition={partition} offset={offset}",
                group=record.group,
                expected=record.key(),
            )
            row.payload = payload[:_KEPT_PAYLOAD]
            return
        row.record = record
        if not self._expected_partition(row.key, partition):
            self._tell(row, "unexpected_partition", "no partition count puts this key here")
        if record.type == cm.SNAPSHOT:
            self._snapshot(row, record)
        else:
            self._lifecycle(row, record)
        if offset == _LAST_OFFSET:
            self._fail(
                "log_reader_no_progress",
                f"internal metadata reader made no progress partition={partition} offset={offset}",
            )
            self._tell(row, "log_reader_no_progress", None)

    def _undecodable(self, row: ConsumerRow, error: FormatError, payload: bytes) -> None:
        self._keep_foreign(row, error, payload)
        facts: dict[str, object] = {}
        if row.shape is not None:
            facts["shape"] = row.shape
        self._reject(
            row,
            error.code,
            f"decode internal metadata partition={row.log_partition} "
            f"offset={row.log_offset}: {error.message}",
            **facts,
        )
        if row.later is not None:
            self._tell(
                row,
                "newer_record_version",
                f"record of version {row.later.version}, type {quoted(row.later.type)}",
                version=row.later.version,
                type=row.later.type,
                group=row.later.group,
            )

    def _keep_foreign(self, row: ConsumerRow, error: FormatError, payload: bytes) -> None:
        row.payload = payload[:_KEPT_PAYLOAD]
        later, old = error.detail.get("later"), error.detail.get("unversioned")
        if isinstance(later, LaterRecord):
            row.later = later
        if isinstance(old, UnversionedRecord):
            row.unversioned = old
            for item in old.offsets:
                key = (old.group, old.topic, item.partition)
                self._historical[key] = max(self._historical.get(key, 0), item.offset)

    def _expected_partition(self, key: bytes, partition: int) -> bool:
        value = self._hashes.get(key)
        if value is None:
            value = self._hashes[key] = cm.fnv1a64(key)
        most = max(self.partitions, 4)
        if value % most == partition:
            return True
        # A declared count is a number out of a file: it must not become the length of a loop.
        counts = range(max(4, partition + 1), min(most, _MOST_PARTITIONS) + 1)
        return any(value % count == partition for count in counts)

    # -- candidates ------------------------------------------------------------------

    def _same(self, one: ConsumerRow, other: ConsumerRow) -> bool:
        return self._identity_of(one) == self._identity_of(other)

    def _identity_of(self, row: ConsumerRow) -> bytes:
        found = self._identity.get(id(row))
        if found is None:
            assert row.record is not None
            found = self._identity[id(row)] = row.record.identity()
        return found

    def _lifecycle(self, row: ConsumerRow, record: ConsumerRecord) -> None:
        self._count("registration_records")
        held = self._lifecycles.get(record.group)
        if held is None or held.record is None:
            self._lifecycles[record.group] = row
            row.disposition = "lifecycle_current"
        elif record.epoch > held.record.epoch:
            self._count("orphan_records")
            held.disposition = "lifecycle_superseded"
            self._lifecycles[record.group] = row
            row.disposition = "lifecycle_current"
        elif record.epoch < held.record.epoch:
            self._count("orphan_records")
            row.disposition = "lifecycle_stale"
        elif self._same(row, held):
            self._count("orphan_records")
            row.disposition = "lifecycle_duplicate"
        else:
            self._reject(
                row,
                "lifecycle_conflict",
                f"conflicting lifecycle records group={record.group} epoch={record.epoch}",
                group=record.group,
                epoch=record.epoch,
            )

    def _snapshot(self, row: ConsumerRow, record: ConsumerRecord) -> None:
        self._count("offset_records")
        identity = (record.group, record.topic, record.epoch, record.revision)
        held = self._snapshots.get(identity)
        if held is None:
            self._snapshots[identity] = row
        elif self._same(row, held):
            self._count("orphan_records")
            row.disposition = "snapshot_duplicate"
        else:
            self._reject(
                row,
                "offset_snapshot_conflict",
                f"conflicting offset snapshots group={record.group} topic={record.topic} "
                f"epoch={record.epoch} revision={record.revision}",
                group=record.group,
                topic=record.topic,
                epoch=record.epoch,
                revision=record.revision,
            )

    # -- the two views ---------------------------------------------------------------

    def _count(self, counter: str) -> None:
        if self.failure is None:
            setattr(self.status, counter, getattr(self.status, counter) + 1)

    def _fail(self, code: str, text: str) -> None:
        if self.failure is None:
            self.status.corrupt_records += 1
            self.failure = Failure(code, self.status.phase, text)

    def _reject(self, row: ConsumerRow, code: str, text: str, **facts: object) -> None:
        self._fail(code, text)
        row.disposition = "rejected"
        row.code = code
        self._tell(row, code, text, **facts)

    def _tell(self, row: ConsumerRow, code: str, text: str | None, **facts: object) -> None:
        told = self._told[row.path, code] = self._told.get((row.path, code), 0) + 1
        if told <= MAX_FINDINGS:
            self.findings.append(self._at(row, code, text, **facts))

    def _summarise(self) -> None:
        for (path, code), told in self._told.items():
            if told > MAX_FINDINGS:
                more = told - MAX_FINDINGS
                text = f"{more} more of these follow in this file"
                self.findings.append(finding(code, path, message=text, step=3, repeated=more))

    def _at(self, row: ConsumerRow, code: str, text: str | None, **facts: object) -> Finding:
        detail: dict[str, object] = {
            "log_partition": row.log_partition,
            "offset": row.log_offset,
            **facts,
        }
        return finding(
            code,
            row.path,
            position=row.position,
            length=row.length,
            message=text,
            step=3,
            **detail,  # type: ignore[arg-type]
        )

    # -- materialise -------------------------------------------------------------------

    def finish(
        self,
        *,
        declared: Mapping[str, int] | None = None,
        bounds: Mapping[tuple[str, int], tuple[int, int]] | None = None,
        storage_failure: str | None = None,
    ) -> ConsumerResult:
        """Groups, offsets, status and findings.

        ``declared``: partition count of each declared topic, ``None`` when the
        manifest cannot be read. ``bounds``: (log start, log end) of every
        partition that could be read to its end. ``storage_failure``: why a
        broker could not even open the internal topic; then its status says so
        and its counters stay at zero.
        """
        self._enter("group_registration_replay")
        groups, deleted = self._groups()
        self._enter("committed_offset_replay")
        by_group = self._offsets(groups)
        epochs = {name: row.record.epoch for name, row in self._lifecycles.items() if row.record}
        if self.failure is None:
            self.status.phase = "ready"
            self.status.ready = True
            self.status.restored_groups = len(groups)
            self.status.restored_offsets = sum(
                len(offsets) for group in groups.values() for offsets in group.offsets.values()
            )
        else:
            self.status.phase = self.failure.phase
            self.status.failure = _PREFIX + self.failure.text
        if storage_failure is not None:
            self.status, self.failure = infrastructure_failure(
                "internal_topic_invalid", storage_failure
            )
        self._summarise()
        self._about_groups(groups, by_group, declared, bounds or {})
        return ConsumerResult(
            groups=groups,
            epochs=dict(sorted(epochs.items(), key=lambda item: _order(item[0]))),
            deleted=deleted,
            floors=self._floors(),
            rows=tuple(self.rows),
            status=self.status,
            failure=self.failure,
            findings=tuple(self.findings),
            historical=self._historical,
        )

    def _enter(self, phase: Phase) -> None:
        if self.failure is None:
            self.status.phase = phase

    def _groups(self) -> tuple[dict[str, GroupState], dict[str, int]]:
        groups: dict[str, GroupState] = {}
        deleted: dict[str, int] = {}
        for name in sorted(self._lifecycles, key=_order):
            record = self._lifecycles[name].record
            assert record is not None
            if record.type == cm.TOMBSTONE:
                deleted[name] = record.epoch
                continue
            group = GroupState(name, record.topic, record.partition_count, record.epoch)
            for item in record.initial_offsets:
                group.revisions[item.topic] = item.revision
                group.offsets[item.topic] = {o.partition: o.offset for o in item.offsets}
            groups[name] = group
        return groups, deleted

    def _offsets(self, groups: dict[str, GroupState]) -> set[tuple[str, str]]:
        """Apply held snapshots in order; returns (group, topic) without any lifecycle record."""
        orphans: set[tuple[str, str]] = set()
        current: dict[tuple[str, str], ConsumerRow] = {}
        ordered = sorted(
            self._snapshots.items(),
            key=lambda item: (_order(item[0][0]), _order(item[0][1]), item[0][2], item[0][3]),
        )
        for (name, topic, epoch, _), row in ordered:
            group = groups.get(name)
            if group is None:
                self._count("orphan_records")
                if name in self._lifecycles:
                    row.disposition = "snapshot_fenced_deleted"
                else:
                    row.disposition = "snapshot_no_lifecycle"
                    orphans.add((name, topic))
            elif epoch != group.epoch:
                self._count("orphan_records")
                row.disposition = "snapshot_fenced_epoch"
            elif self._apply(group, row):
                before = current.get((name, topic))
                if before is not None:
                    before.disposition = "snapshot_superseded"
                current[name, topic] = row
                row.disposition = "snapshot_current"
        return orphans

    def _apply(self, group: GroupState, row: ConsumerRow) -> bool:
        record = row.record
        assert record is not None
        topic, revision = record.topic, record.revision
        facts: dict[str, object] = {
            "group": group.name,
            "topic": topic,
            "epoch": record.epoch,
            "revision": revision,
        }
        if not cm.topic_matches(group.topic, topic):
            text = (
                f"offset snapshot topic {quoted(topic)} does not match "
                f"group {quoted(group.name)} topic {quoted(group.topic)}"
            )
            self._reject(row, "snapshot_topic_mismatch", text, **facts)
            return False
        known = group.revisions.get(topic, 0)
        if revision < known:
            self._count("orphan_records")
            row.disposition = "snapshot_stale_revision"
            return False
        for item in record.offsets:
            if item.partition >= group.partition_count:
                text = (
                    f"offset snapshot partition {item.partition} exceeds "
                    f"group {quoted(group.name)} partition count {group.partition_count}"
                )
                facts["partition"] = item.partition
                self._reject(row, "snapshot_partition_out_of_range", text, **facts)
                return False
        now = group.offsets.get(topic, {})
        new = {item.partition: item.offset for item in record.offsets}
        if revision == known:
            if new == now:
                self._count("orphan_records")
                row.disposition = "snapshot_equals_initial"
                return False
            text = (
                f"conflicting offset snapshots during replay group={group.name} "
                f"topic={topic} revision={revision}"
            )
            self._reject(row, "initial_offset_revision_conflict", text, **facts)
            return False
        if not self._moves_on(row, now, new, facts):
            return False
        group.offsets[topic] = new
        group.revisions[topic] = revision
        return True

    def _moves_on(
        self,
        row: ConsumerRow,
        now: Mapping[int, int],
        new: Mapping[int, int],
        facts: dict[str, object],
    ) -> bool:
        """Nothing committed may disappear or go back; the lowest such partition is named."""
        for partition in sorted(now):
            where = f"group={facts['group']} topic={facts['topic']} partition={partition}"
            if partition not in new:
                text = f"offset snapshot dropped committed key during replay {where}"
                self._reject(row, "snapshot_dropped_partition", text, **facts, partition=partition)
                return False
            if new[partition] < now[partition]:
                text = (
                    f"offset regression during replay {where} "
                    f"current={now[partition]} recovered={new[partition]}"
                )
                self._reject(
                    row,
                    "snapshot_offset_regression",
                    text,
                    **facts,
                    partition=partition,
                    current=now[partition],
                    recovered=new[partition],
                )
                return False
        return True

    def _floors(self) -> dict[str, int]:
        highest: dict[str, int] = {}
        for row in self.rows:
            if row.state == "live" and row.record is not None:
                name = row.record.group
                highest[name] = max(highest.get(name, 0), row.record.epoch)
        return {name: epoch + 1 for name, epoch in highest.items()}

    # -- what an operator should know ----------------------------------------------------

    def _about_groups(
        self,
        groups: Mapping[str, GroupState],
        orphans: Iterable[tuple[str, str]],
        declared: Mapping[str, int] | None,
        bounds: Mapping[tuple[str, int], tuple[int, int]],
    ) -> None:
        for partition in sorted(self._first):
            if self._first[partition] > 0:
                self._note(
                    "log_starts_at",
                    f"partition {partition} begins at offset {self._first[partition]}",
                    partition=partition,
                    offset=self._first[partition],
                )
        floors = self._floors()
        for name, topic in sorted(orphans, key=lambda pair: (_order(pair[0]), _order(pair[1]))):
            self._note(
                "offsets_without_registration",
                f"offsets of group {quoted(name)} on {quoted(topic)}, but no registration: the "
                f"group is gone at start; registered below epoch {floors[name]}, they come back",
                group=name,
                topic=topic,
                floor=floors[name],
            )
        for group in groups.values():
            if declared is not None:
                self._about_topic(group, declared)
            self._about_offsets(group, bounds)

    def _about_topic(self, group: GroupState, declared: Mapping[str, int]) -> None:
        if "*" in group.topic or "?" in group.topic:
            return
        count = declared.get(group.topic)
        if count is None:
            self._note(
                "group_topic_missing",
                f"group {quoted(group.name)} consumes {quoted(group.topic)}, which is not declared",
                group=group.name,
                topic=group.topic,
            )
        elif count != group.partition_count:
            self._note(
                "group_partition_count_differs",
                f"group {quoted(group.name)} was registered with {group.partition_count} "
                f"partitions of {quoted(group.topic)}, which has {count}",
                group=group.name,
                topic=group.topic,
                registered=group.partition_count,
                declared=count,
            )

    def _about_offsets(
        self, group: GroupState, bounds: Mapping[tuple[str, int], tuple[int, int]]
    ) -> None:
        for topic in sorted(group.offsets, key=_order):
            for partition, offset in sorted(group.offsets[topic].items()):
                limits = bounds.get((topic, partition))
                if limits is None or limits[0] <= offset <= limits[1]:
                    continue
                self._note(
                    "committed_offset_out_of_range",
                    f"group {quoted(group.name)} committed offset {offset} of {topic}/{partition}, "
                    f"whose log runs from {limits[0]} to {limits[1]}",
                    group=group.name,
                    topic=topic,
                    partition=partition,
                    offset=offset,
                    log_start=limits[0],
                    log_end=limits[1],
                )

    def _note(self, code: str, text: str, **facts: object) -> None:
        self.findings.append(
            finding(code, INTERNAL_TOPIC, message=text, step=3, **facts)  # type: ignore[arg-type]
        )


def _order(name: str) -> bytes:
    return name.encode("utf-8", "surrogatepass")


def range_assignment(members: Sequence[str], partitions: int) -> dict[str, list[int]]:
    """Partitions of each member: members by byte order, contiguous runs, the first ones longer."""
    ordered = sorted(members, key=_order)
    if not ordered:
        return {}
    each, more = divmod(partitions, len(ordered))
    assigned: dict[str, list[int]] = {}
    at = 0
    for number, member in enumerate(ordered):
        count = each + (1 if number < more else 0)
        assigned[member] = list(range(at, at + count))
        at += count
    return assigned
