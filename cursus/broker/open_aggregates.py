"""The aggregates of the partitions that are open, each built from its log at first use.

They are derived from the log and may not lag behind it, or the next event would be
accepted under a version that is taken: whoever cannot say that they are up to date
drops them, and the next use builds them anew.

Source: journal.md section 7; broker.md section 2.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from threading import RLock

from cursus.broker.derived_state import Key
from cursus.storage.aggregate_store import AggregateStore
from cursus.storage.durable import FileSystem
from cursus.storage.partition_log import PartitionStore


class OpenAggregates:
    """Every method needs :attr:`lock`."""

    def __init__(self, files: FileSystem, log_dir: str) -> None:
        self.lock = RLock()
        self._files = files
        self._log_dir = log_dir
        self._stores: dict[Key, AggregateStore] = {}

    def of(self, log: PartitionStore) -> AggregateStore:
        """Those of one partition. Raises ``StoreError`` where they cannot be built."""
        key = (log.topic, log.partition)
        found = self._stores.get(key)
        if found is None:
            found = self._stores[key] = AggregateStore.open(
                self._files, self._log_dir, *key, _events(log), log_start=log.log_start
            )
        return found

    def drop(self, key: Key) -> None:
        """Close those of one partition, if they are open."""
        known = self._stores.pop(key, None)
        if known is not None:
            known.close()

    def close(self) -> None:
        """Close all of them. Raises the first error; the others are closed all the same."""
        with ExitStack() as stack:
            for key in tuple(self._stores):
                stack.callback(self.drop, key)


def _events(log: PartitionStore) -> Iterator[tuple[bytes, int, int]]:
    for record in log.records(log.log_start):
        if record.key and record.aggregate_version:
            yield record.key, record.aggregate_version, record.offset
