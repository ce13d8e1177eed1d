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

from collections import ChainMap
from collections.abc import Mapping, Sequence
from typing import Protocol

from cursus.findings import FormatError
from cursus.formats.record import Record
from cursus.formats.transaction_journal import Transaction
from cursus.replay.commit import (
    PartitionKey,
    commit_marker,
    due_records,
    staged_offsets,
    staged_records,
)
from cursus.replay.producers import Idempotence
from cursus.storage.errors import StoreError
from cursus.storage.journal_store import Clock, JournalStore


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
    markers = {key: commit_marker(state, *key) for key in state.partitions()}
    for key, staged in records.items():
        _publish(port, key, staged)
    for key, marker in markers.items():
        _publish(port, key, [marker])
    for (group, topic, epoch), offsets in staged_offsets(state).items():
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


def _publish(port: CommitPort, key: PartitionKey, records: Sequence[Record]) -> None:
    """Append what is not there yet, in order, as one durable batch."""
    producers = port.producers(*key)
    try:
        due = due_records(records, Idempotence(ChainMap({}, producers.state)))
    except FormatError as error:
        raise StoreError(error.code, error.message, path=key[0]) from error
    if due:
        port.append(*key, due)
        due_records(due, producers)
