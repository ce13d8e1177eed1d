"""Queued appends, written and synced while nobody waits.

One thread serves all partitions of a broker. It sleeps until something is
queued, then lets each partition that has work do what is due by its own clock:
a write when a batch is full or has lingered, an fsync at intervals. A partition
whose disk fails drops out; the others go on.

Source: segments.md section 6, "asynchronous append".
"""

from __future__ import annotations

from functools import partial
from threading import Condition, Thread
from typing import Final

from cursus.storage.partition_log import PartitionStore

#: How often partitions with work are looked at, in seconds.
_SHORTEST: Final = 0.001
_LONGEST: Final = 0.050


class BackgroundWriter:
    """Serves the partitions that are added, from :meth:`start` to :meth:`stop`.

    A partition whose disk fails drops out, and refuses writes since.
    """

    def __init__(self) -> None:
        self._failures: dict[PartitionStore, Exception] = {}
        self._changed = Condition()
        self._busy: set[PartitionStore] = set()
        self._stores: set[PartitionStore] = set()
        self._stopping = False
        self._thread: Thread | None = None

    def add(self, store: PartitionStore) -> None:
        """Serve this partition from now on."""
        with self._changed:
            self._stores.add(store)
        store.attach(partial(self._wake, store))

    def remove(self, store: PartitionStore) -> None:
        """Serve it no longer; what it has queued is its own again (``close`` writes it)."""
        store.attach(None)
        with self._changed:
            self._stores.discard(store)
            self._busy.discard(store)
            if not self._stopping:
                self._failures.pop(store, None)

    @property
    def failures(self) -> dict[tuple[str, int], Exception]:
        """Why the last service of a partition failed, by topic and partition."""
        with self._changed:
            return {(log.topic, log.partition): error for log, error in self._failures.items()}

    def start(self) -> None:
        """Begin to serve."""
        thread = Thread(target=self._run, name="background writer", daemon=True)
        thread.start()
        self._thread = thread

    def stop(self) -> None:
        """End the thread, after what it is doing; nothing is flushed."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        for store in list(self._stores):
            self.remove(store)

    def _wake(self, store: PartitionStore) -> None:
        with self._changed:
            if store not in self._stores:
                return
            if store not in self._busy or store.has_full_batch:
                self._busy.add(store)
                self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._busy and not self._stopping:
                    self._changed.wait()
                if self._stopping:
                    return
                stores = list(self._busy)
            for store in stores:
                self._serve(store)
            with self._changed:
                if not self._stopping and self._busy:
                    self._changed.wait(_pause(self._busy))

    def _serve(self, store: PartitionStore) -> None:
        failure: Exception | None = None
        try:
            store.service()
        except Exception as error:  # whatever it is: the others are served
            failure = error
        with self._changed:
            if failure is not None and store in self._stores:
                self._failures[store] = failure
            elif store.writable:
                self._failures.pop(store, None)
            # Looked at under the lock: whoever queues next is seen, here or by his call.
            if not store.has_work:
                self._busy.discard(store)


def _pause(stores: set[PartitionStore]) -> float:
    """Until the shortest of their lingers is over, in seconds."""
    shortest = min(store.settings.linger_ms for store in stores) / 1000
    return min(max(shortest, _SHORTEST), _LONGEST)
