"""What carrying out a commit means: its records, its markers, and whether it can be done.

In this era the records of a transaction wait in the journal (profile A). The
same records are made here for the start that writes them and for the plan that
says beforehand whether it could: a commit that is decided and cannot be carried
out refuses a start, with the code of its cause.

Source: journal.md sections 3.1, 4, 6.3; consumer-metadata.md section 7.7;
README.md decisions 7 and 32.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cursus.findings import FormatError
from cursus.formats import consumer_metadata as cm
from cursus.formats import record as record_format
from cursus.formats.canonical_json import shorten
from cursus.formats.checkpoints import ProducerEntry
from cursus.formats.record import Record
from cursus.formats.transaction_journal import Transaction
from cursus.replay.consumer_groups import GroupState
from cursus.replay.producers import Idempotence, rejected
from cursus.replay.transactions import MARKER_PAYLOAD, marker_control

PartitionKey = tuple[str, int]


def staged_records(state: Transaction) -> dict[PartitionKey, list[Record]]:
    """The staged records as they stand in the logs (offset 0), by partition, in staging order."""
    found: dict[PartitionKey, list[Record]] = {}
    for item in state.messages:
        key = (str(item["Topic"]), int(item["Partition"]))
        found.setdefault(key, []).append(_record(state, *key, item["Message"]))
    return found


def _record(state: Transaction, topic: str, partition: int, message: Mapping[str, Any]) -> Record:
    return Record(
        topic=_bytes(topic),
        partition=partition,
        producer_id=_bytes(message["ProducerID"]),
        sequence=message["SeqNum"],
        epoch=message["Epoch"],
        payload=_bytes(message["Payload"]),
        event_type=_bytes(message["EventType"]),
        schema_version=message["SchemaVersion"],
        aggregate_version=message["AggregateVersion"],
        metadata=_bytes(message["Metadata"]),
        key=_bytes(message["Key"]),
        transactional_id=_bytes(state.id),
        transaction_state=b"open",
    )


def marker_producer(transactional_id: str) -> str:
    """The producer of the commit markers of a transactional id."""
    return f"txn-marker:{transactional_id}:commit"


def commit_marker(state: Transaction, topic: str, partition: int) -> Record:
    """The marker that makes the records of ``state`` visible (offset 0).

    Raises :class:`FormatError` ``txn_marker_invalid`` for an epoch that no marker
    can carry.
    """
    try:
        key, value = marker_control("commit", state.epoch)
    except ValueError as error:
        raise FormatError("txn_marker_invalid", str(error)) from None
    return Record(
        topic=_bytes(topic),
        partition=partition,
        producer_id=_bytes(marker_producer(state.id)),
        sequence=1,
        epoch=state.epoch,
        payload=MARKER_PAYLOAD,
        transactional_id=_bytes(state.id),
        transaction_state=b"committed",
        transaction_marker=b"commit",
        control_type=b"transaction",
        control_version=2,
        control_coordinator_epoch=state.epoch,
        control_key=key,
        control_value=value,
    )


def staged_offsets(state: Transaction) -> dict[tuple[str, str, int], dict[int, int]]:
    """Offset of each partition by (group, topic, registration epoch that staged it)."""
    found: dict[tuple[str, str, int], dict[int, int]] = {}
    for item in state.offsets:
        key = (str(item["Group"]), str(item["Topic"]), int(item["registration_epoch"]))
        offsets = found.setdefault(key, {})
        partition, offset = int(item["Partition"]), int(item["Offset"])
        offsets[partition] = max(offset, offsets.get(partition, 0))
    return found


def due_records(records: Sequence[Record], known: Idempotence) -> list[Record]:
    """Those of ``records`` that the partition does not have yet; ``known`` takes note of them.

    Raises :class:`FormatError` with the code of the rejection.
    """
    due = []
    for item in records:
        name = item.producer_id.decode("utf-8", "surrogateescape")
        result = known.check(name, item.epoch, item.sequence, active=True, force=True)
        if rejected(result):
            raise FormatError(
                result,
                f"partition {item.partition} of {item.topic.decode('utf-8', 'replace')} refuses "
                f'producer "{shorten(name)}" epoch {item.epoch} sequence {item.sequence}',
            )
        if result == "append":
            known.appended(name, item.epoch, item.sequence, active=True, force=True)
            due.append(item)
    return due


class CommitJudge:
    """Can decided commits be carried out? Asked in the order in which a start does it.

    ``groups``: live groups; ``producers``: what each partition knows of its
    producers. Either is ``None`` where it cannot be told.
    """

    def __init__(
        self,
        groups: Mapping[str, GroupState] | None,
        producers: Mapping[PartitionKey, Mapping[str, ProducerEntry]] | None,
    ) -> None:
        self._groups = groups
        self._producers = producers
        self._known: dict[PartitionKey, Idempotence] = {}

    def __call__(self, state: Transaction) -> tuple[str, str] | None:
        """Code and text of the first thing that cannot be done, or ``None``."""
        try:
            self._records(state)
            self._offsets(state)
        except FormatError as error:
            return error.code, error.message
        return None

    def _records(self, state: Transaction) -> None:
        for key, records in staged_records(state).items():
            for item in (*records, commit_marker(state, *key)):
                record_format.encode(item)
            known = self._of(key)
            if known is not None:
                due_records(records, known)
                due_records([commit_marker(state, *key)], known)

    def _of(self, key: PartitionKey) -> Idempotence | None:
        if self._producers is None or key not in self._producers:
            return None
        return self._known.setdefault(key, Idempotence(dict(self._producers[key])))

    def _offsets(self, state: Transaction) -> None:
        if self._groups is None:
            return
        for (name, topic, epoch), offsets in staged_offsets(state).items():
            group = self._groups.get(name)
            shown = shorten(name)
            if group is None or epoch == 0 or epoch != group.epoch:
                life = f"life {epoch}" if epoch else "a life that it does not name"
                raise FormatError(
                    "group_incarnation_mismatch",
                    f'offsets were staged in {life} of group "{shown}", '
                    f"which is {f'in life {group.epoch}' if group else 'gone'}",
                )
            if not cm.topic_matches(group.topic, topic):
                raise FormatError(
                    "topic_mismatch",
                    f'group "{shown}" consumes "{shorten(group.topic)}", not "{shorten(topic)}"',
                )
            for partition in offsets:
                if not 0 <= partition < group.partition_count:
                    raise FormatError(
                        "invalid_partition",
                        f'group "{shown}" has {group.partition_count} partitions, '
                        f"not partition {partition}",
                    )


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
