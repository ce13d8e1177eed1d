"""Carry out a commit that is decided: records, markers, offsets, and the last frame.

In this era the records of a transaction wait in the journal (profile A). Once
``committing`` is durable, they are written to their partitions, then one commit
marker to each partition, then the staged offsets, and ``committed`` to the
journal last. A crash anywhere in between leaves ``committing``, and a start does
all of it again: what is there already is recognised as a duplicate by producer,
epoch and sequence, and an offset never goes back.

Needs the broker's journal lock; the port takes whatever its partitions need.

Source: journal.md sections 3.1 and 4; consumer-metadata.md section 7.7;
README.md decisions 7 and 32.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from cursus.findings import FormatError
from cursus.formats.record import Record
from cursus.formats.transaction_journal import Transaction
from cursus.replay.producers import Idempotence, rejected
from cursus.replay.transactions import MARKER_PAYLOAD, marker_control
from cursus.storage.errors import StoreError
from cursus.storage.journal_store import Clock, JournalStore

PartitionKey = tuple[str, int]


class CommitPort(Protocol):
    """What a commit writes to: partitions and consumer groups."""

    def producers(self, topic: str, partition: int) -> Idempotence:
        """Producer state of a partition. Raises :class:`StoreError` when there is none."""

    def append(self, topic: str, partition: int, records: Sequence[Record]) -> None:
        """Append in this order, offsets given by the log; durable when it returns."""

    def commit_offsets(
        self, group: str, topic: str, offsets: Mapping[int, int], registration_epoch: int
    ) -> None:
        """Commit the larger of given and committed; durable when it returns.

        ``registration_epoch``: life of the group that staged them, 0 when not known.
        """


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


def commit_marker(state: Transaction, topic: str, partition: int) -> Record:
    """The marker that makes the records of ``state`` visible (offset 0).

    Raises ``ValueError`` for an epoch that no marker can carry.
    """
    key, value = marker_control("commit", state.epoch)
    return Record(
        topic=_bytes(topic),
        partition=partition,
        producer_id=_bytes(f"txn-marker:{state.id}:commit"),
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


def finish_commit(
    journal: JournalStore, transactional_id: str, port: CommitPort, *, clock: Clock
) -> Transaction:
    """Carry out the commit of an id that is ``committing``; returns its last state.

    Also for one that was carried out in part. Raises :class:`StoreError` with the
    code of the cause, :class:`FormatError` for a record that cannot be written,
    and ``OSError``; the transaction is then still ``committing``, and this may be
    called again.
    """
    state = journal.transactions.get(transactional_id)
    if state is None or state.expired or state.state != "committing":
        found = state.state if state is not None else "not known"
        raise StoreError(
            "txn_state_invalid",
            f'transaction "{transactional_id}" is {found}, not committing',
            transactional_id=transactional_id,
        )
    records = staged_records(state)
    for key, staged in records.items():
        _publish(state, port, key, staged)
    for key in state.partitions():
        _publish(state, port, key, [_marker(state, *key)])
    for (group, topic, epoch), offsets in _staged_offsets(state).items():
        port.commit_offsets(group, topic, offsets, epoch)
    # A clock that went back must not make a frame that a start refuses.
    moment = max(clock(), state.updated_at)
    done = Transaction(
        {
            **state.values,
            "state": "committed",
            "revision": state.revision + 1,
            "updated_at": moment,
        }
    )
    journal.append(done)
    return done


def _marker(state: Transaction, topic: str, partition: int) -> Record:
    try:
        return commit_marker(state, topic, partition)
    except ValueError as error:
        raise FormatError("txn_marker_invalid", str(error)) from None


def _publish(
    state: Transaction, port: CommitPort, key: PartitionKey, records: Sequence[Record]
) -> None:
    """Append what is not there yet, in order, as one durable batch."""
    producers = port.producers(*key)
    known = Idempotence(dict(producers.state))
    due = []
    for record in records:
        who = (record.producer_id.decode("utf-8", "surrogateescape"), record.epoch, record.sequence)
        result = known.check(*who, active=True, force=True)
        if rejected(result):
            raise StoreError(
                result,
                f'transaction "{state.id}": producer "{who[0]}" epoch {who[1]} sequence {who[2]} '
                f"is refused by partition {key[1]} of {key[0]}",
                path=key[0],
                transactional_id=state.id,
            )
        if result == "append":
            known.appended(*who, active=True, force=True)
            due.append(record)
    if due:
        port.append(*key, due)
        for record in due:
            name = record.producer_id.decode("utf-8", "surrogateescape")
            producers.appended(name, record.epoch, record.sequence, active=True, force=True)


def _staged_offsets(state: Transaction) -> dict[tuple[str, str, int], dict[int, int]]:
    found: dict[tuple[str, str, int], dict[int, int]] = {}
    for item in state.offsets:
        key = (str(item["Group"]), str(item["Topic"]), int(item.get("registration_epoch", 0)))
        offsets = found.setdefault(key, {})
        partition, offset = int(item["Partition"]), int(item["Offset"])
        offsets[partition] = max(offset, offsets.get(partition, 0))
    return found


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
