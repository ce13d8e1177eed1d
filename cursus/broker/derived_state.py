"""High watermarks and producer state of the partitions that are open, and their checkpoints.

Everything here is derived from the logs and never ahead of them: it moves with what
the disk holds. Its files are written for the partitions that have something new, and
only for those, so a pass over a store that stands still costs nothing.

No file may appear in the directory of a topic that is being emptied, so each one is
written under the lock of the topics; ``settle`` and ``moved`` need no lock.

Source: journal.md sections 6.1 to 6.3; broker.md sections 8.2 and 8.3.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from threading import RLock

from cursus.broker.partition_producers import Clock, PartitionProducers
from cursus.formats.checkpoints import ProducerEntry
from cursus.storage.checkpoint_store import PartitionCheckpoints
from cursus.storage.durable import FileSystem
from cursus.storage.partition_log import PartitionStore

#: Topic and partition.
Key = tuple[str, int]


class DerivedState:
    """``lock`` is that of the topics; ``clock`` one that does not go back."""

    def __init__(self, files: FileSystem, log_dir: str, clock: Clock, lock: RLock) -> None:
        self.producers: dict[Key, PartitionProducers] = {}
        self._logs: dict[Key, PartitionStore] = {}
        self._checkpoints: dict[Key, PartitionCheckpoints] = {}
        #: Partitions with something new for their checkpoints.
        self._moved: set[Key] = set()
        self._files = files
        self._log_dir = log_dir
        self._clock = clock
        self._lock = lock

    def opened(self, key: Key, log: PartitionStore, known: Mapping[str, ProducerEntry]) -> None:
        """A partition is open; ``known`` are its producers."""
        self._logs[key] = log
        self.producers[key] = PartitionProducers(key[0], self._clock, known)

    def write_files(self, key: Key, *, stored_hwm: int | None, rebuild: bool = False) -> None:
        """From now on the partition has checkpoints; a start finishes commits before.

        ``stored_hwm`` as in :class:`PartitionCheckpoints`. ``rebuild``: the producers
        are to be written whether or not they change.
        """
        self._checkpoints[key] = item = PartitionCheckpoints(
            self._files,
            self._log_dir,
            *key,
            stored_hwm=stored_hwm,
            hwm=self._logs[key].hwm,
            producers=self.producers[key].durable,
            clock=self._clock,
        )
        if rebuild:
            item.note_producers()
        self._moved.add(key)

    def closing(self, key: Key) -> None:
        """The partition is about to be closed: its files are not ours any more."""
        for table in (self._logs, self.producers, self._checkpoints):
            table.pop(key, None)

    def write_no_more(self) -> None:
        """Whatever is closed from now on, its files stay as they are."""
        self._checkpoints.clear()

    # -- what the disk holds -------------------------------------------------------------

    def moved(self, key: Key, _end: int = 0) -> None:
        """The durable end of a partition has moved."""
        self._moved.add(key)

    def settle(self, key: Key, log: PartitionStore, producers: PartitionProducers) -> None:
        """Producers of records that are on the disk by now go into the next checkpoint.

        ``log`` and ``producers`` are those of the life that the records belong to.
        """
        more = producers.settle(log.hwm)
        item = self._checkpoints.get(key)
        if more and item is not None:
            item.note_producers()
            self._moved.add(key)

    # -- files -------------------------------------------------------------------------------

    def checkpoint(self) -> None:
        """Write what changed. A write that fails leaves the file that was there, and a warning."""
        with self._lock:
            for key, item in self._checkpoints.items():
                self._note(key, item)
                item.flush()
                if item.dirty:
                    self._moved.add(key)

    def checkpoint_due(self) -> dict[Key, str | None]:
        """Write what changed, each at most every 250 ms; for each its warning, or ``None``.

        The lock is taken for each partition anew: nobody waits for the files of all.
        """
        found: dict[Key, str | None] = {}
        for key in sorted(self._moved.copy()):
            with self._lock:
                self._moved.discard(key)
                item = self._checkpoints.get(key)
                if item is None:
                    continue
                try:
                    self._note(key, item)
                    if item.flush_if_due() or item.warning is not None:
                        found[key] = item.warning
                finally:
                    if item.dirty:  # not due, or not written
                        self._moved.add(key)
        return found

    def _note(self, key: Key, item: PartitionCheckpoints) -> None:
        log = self._logs[key]
        self.settle(key, log, self.producers[key])
        item.note_hwm(log.hwm)

    def save_producers(self, key: Key) -> bool:
        """Write the producers of everything that is durable; False when that is not possible."""
        with self._lock:
            item = self._checkpoints.get(key)
            if item is None:
                return True
            # Also of an append that is durable, and whose caller has not noted it yet.
            self.settle(key, self._logs[key], self.producers[key])
            return item.save_producers()

    def forget(self, key: Key, ttl_ns: int, under_way: Callable[[], set[str]]) -> int | None:
        """Forget producers that sent nothing for ``ttl_ns``; how many.

        Those that ``under_way`` names stay. ``None`` when the checkpoint without them
        cannot be written: then nobody is forgotten.
        """
        since = self._clock() - ttl_ns
        with self._lock:
            producers, item = self.producers.get(key), self._checkpoints.get(key)
            silent = producers.silent(since) if producers is not None else set()
            if silent:
                silent -= under_way()
            if producers is None or item is None or not silent:
                return 0
            item.note_producers()
            self._moved.add(key)  # whatever comes of it: the next pass looks again
            gone = producers.forget(silent, since, item.save_producers)
            if gone != silent:  # not written, or somebody was heard of meanwhile
                item.note_producers()
            return None if gone is None else len(gone)
