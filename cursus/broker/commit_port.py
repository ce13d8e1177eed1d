"""What the commit of a transaction writes to, in storage that is open.

Source: journal.md section 4; fits ``cursus.storage.transaction_finish.CommitPort``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from cursus.formats.record import Record
from cursus.replay.producers import Idempotence

if TYPE_CHECKING:
    from cursus.broker.open_storage import OpenStorage


class StorageCommitPort:
    """Needs the journal lock of ``storage``."""

    def __init__(self, storage: OpenStorage) -> None:
        self._storage = storage

    def producers(self, topic: str, partition: int) -> Idempotence:
        """See ``CommitPort``."""
        self._storage.partition(topic, partition)
        return self._storage.producers[topic, partition]

    def append(self, topic: str, partition: int, records: Sequence[Record]) -> None:
        """See ``CommitPort``."""
        self._storage.append_committed(topic, partition, records)

    def commit_offsets(
        self, group: str, topic: str, offsets: Mapping[int, int], registration_epoch: int
    ) -> None:
        """See ``CommitPort``."""
        self._storage.commit_prepared(group, topic, offsets, registration_epoch)
