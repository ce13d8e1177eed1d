"""What a running store does by itself, by the clock.

    upkeep        checkpoints that changed, every 250 ms; rolling by age; producers
                  that have sent nothing for long
    maintenance   retention and compaction of each partition, at their intervals
    queue         appends that were queued: written, synced at intervals

Each line is one thread, so a compaction that reads for a minute delays neither a
checkpoint nor a queue. The work itself is an operation of the storage each time, which
a harness without threads calls by itself.

An error ends the piece of work that met it and nothing else. It is kept in
:attr:`Background.failures` until that work succeeds, and the work comes again one
interval later. What an error means for the partition is the partition's to say: a
roll or a queue whose disk fails leaves it unwritable, a checkpoint, a retention or a
compaction leaves data as they are.

Source: broker.md sections 8.2, 8.3, 8.7 and 9; segments.md sections 6, 7, 12 and 13.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields
from threading import Lock
from typing import Any, Final, Literal, Self, cast

from cursus import layout
from cursus.broker.derived_state import Key
from cursus.broker.machine import Machine
from cursus.broker.open_storage import OpenStorage
from cursus.broker.scheduler import Scheduler
from cursus.storage.background import BackgroundWriter
from cursus.storage.checkpoint_store import INTERVAL_NS
from cursus.storage.partition_log import PartitionStore

Work = Literal["checkpoint", "roll", "producers", "retention", "compaction", "queue"]
#: What is done, and to which partition.
Name = tuple[Work, str, int]

_MS: Final = 1_000_000
#: The age of a segment is looked at this often, unless it may not even get that old.
ROLL_CHECK_MS: Final = 60_000
SWEEP_INTERVAL_MS: Final = 300_000
#: All checkpoints are one piece of work: only those that changed cost anything.
_CHECKPOINTS: Final[Name] = ("checkpoint", "", 0)


@dataclass(frozen=True, slots=True)
class BackgroundSettings:
    """Intervals and times in milliseconds, by their names in a configuration."""

    log_retention_check_interval_ms: int = 300_000
    log_compaction_check_interval_ms: int = 300_000
    producer_state_ttl_ms: int = 1_800_000

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Self:
        """Pick them out of a broker's configuration; what is not above 0 is the default."""
        known = {item.name for item in fields(cls)} & set(settings)
        return cls(**{name: settings[name] for name in known if settings[name] > 0})


@dataclass(frozen=True, slots=True)
class Failure:
    """How the last run of some work ended. ``count``: runs in a row that ended so.

    ``code``: from the catalogue, ``None`` for an error of the system. ``queue``: its
    records are not durable, and the partition takes no writes until it is opened again.
    """

    work: Work
    topic: str
    partition: int
    code: str | None
    message: str
    count: int = 1

    @classmethod
    def of(cls, name: Name, error: Exception, count: int = 1) -> Self:
        """What an error says."""
        return cls(*name, getattr(error, "code", None), str(error) or repr(error), count)


class _NotDoneError(Exception):
    """Work that has not done what it should, and says so in its result."""


class Background:
    """The background work of an open storage, from :meth:`start` to :meth:`stop`.

    ``counts``: how often which work ended how: ``("retention", "removed")``,
    ``("compaction", "dirty_ratio")``, ``("checkpoint", "failed")``, …
    """

    def __init__(
        self, storage: OpenStorage, settings: BackgroundSettings, machine: Machine
    ) -> None:
        self.counts: Counter[tuple[Work, str]] = Counter()
        self._storage = storage
        self._settings = settings
        self._lock = Lock()
        self._logs: dict[Key, PartitionStore] = {}
        self._failures: dict[Name, Failure] = {}
        self._upkeep = Scheduler[Name]("upkeep", machine.ticks_ns, self._report)
        self._maintenance = Scheduler[Name]("maintenance", machine.ticks_ns, self._report)
        self._writer = BackgroundWriter()

    @property
    def failures(self) -> Mapping[Name, Failure]:
        """What does not work at the moment. Partitions that are closed are left out."""
        with self._lock:
            found = dict(self._failures)
        for key, error in self._writer.failures.items():
            name: Name = ("queue", *key)
            found[name] = Failure.of(name, error)
        return found

    def start(self) -> None:
        """Begin; the first run of everything is one interval away."""
        self._storage.watch(self)
        self._upkeep.every(INTERVAL_NS, _CHECKPOINTS, self._storage.checkpoint_due)
        self._upkeep.start()
        self._maintenance.start()
        self._writer.start()

    def run_due(self) -> int:
        """Do now, on this thread, what is due and not queued; how many pieces that was."""
        return self._upkeep.run_due() + self._maintenance.run_due()

    def wake(self) -> None:
        """Look at the clock now: whoever controls it has moved it."""
        self._upkeep.wake()
        self._maintenance.wake()

    def stop(self) -> None:
        """End all of it, before the storage is closed; what runs is waited for.

        A compaction stops where it is. Nothing is flushed: that is for the closing.
        """
        self._storage.watch(None)
        with self._lock:
            logs = list(self._logs.values())
        for log in logs:
            log.end_maintenance()
        self._maintenance.stop()
        self._upkeep.stop()
        self._writer.stop()

    # -- partitions that come and go (fits ``open_storage.Watcher``) ------------------------

    def opened(self, key: Key, log: PartitionStore) -> None:
        """Serve this partition; its first runs are one interval away."""
        with self._lock:
            self._logs[key] = log
        storage, settings = self._storage, self._settings
        ttl_ns = settings.producer_state_ttl_ms * _MS
        self._writer.add(log)
        if log.settings.log_segment_roll_ms > 0:
            period = min(log.settings.log_segment_roll_ms, ROLL_CHECK_MS)
            self._upkeep.every(period * _MS, ("roll", *key), lambda: _roll(log))
        compaction = settings.log_compaction_check_interval_ms * _MS
        self._maintenance.every(compaction, ("compaction", *key), lambda: _compact(storage, key))
        if key[0] == layout.INTERNAL_TOPIC:
            return
        self._upkeep.every(
            SWEEP_INTERVAL_MS * _MS, ("producers", *key), lambda: _sweep(storage, key, ttl_ns)
        )
        retention = settings.log_retention_check_interval_ms * _MS
        self._maintenance.every(retention, ("retention", *key), lambda: _retain(storage, key))

    def closing(self, key: Key, log: PartitionStore) -> None:
        """Let go of a partition that is about to be closed; what it queued is its own again."""
        with self._lock:
            self._logs.pop(key, None)
        self._upkeep.drop(("roll", *key))
        self._upkeep.drop(("producers", *key))
        self._maintenance.drop(("retention", *key))
        self._maintenance.drop(("compaction", *key))
        self._writer.remove(log)
        with self._lock:
            for name in [name for name in self._failures if name[1:] == key]:
                del self._failures[name]

    # -- how it went ---------------------------------------------------------------------

    def _report(self, name: Name, result: object, error: Exception | None) -> None:
        if name == _CHECKPOINTS and error is None:
            with self._lock:
                self._failures.pop(name, None)
            for key, warning in cast(Mapping[Key, str | None], result).items():
                problem = _NotDoneError(warning) if warning else None
                self._take(("checkpoint", *key), "written", problem)
        elif result is not None or error is not None:
            self._take(name, str(result), error)

    def _take(self, name: Name, outcome: str, error: Exception | None) -> None:
        with self._lock:
            self.counts[name[0], outcome if error is None else "failed"] += 1
            if error is None:
                self._failures.pop(name, None)
            elif name == _CHECKPOINTS or name[1:] in self._logs:
                known = self._failures.get(name)
                self._failures[name] = Failure.of(name, error, known.count + 1 if known else 1)


def _roll(log: PartitionStore) -> str | None:
    """``None`` where the partition is not writable: how that came about stays known."""
    if not log.writable:
        return None
    return "rolled" if log.tick() else "young"


def _sweep(storage: OpenStorage, key: Key, ttl_ns: int) -> str:
    count = storage.forget_producers(*key, ttl_ns)
    if count is None:
        raise _NotDoneError("the checkpoint without them cannot be written; nobody is forgotten")
    return "forgotten" if count else "kept"


def _retain(storage: OpenStorage, key: Key) -> str:
    result = storage.retain(*key)
    if result.failure is not None:
        raise result.failure
    if result.skipped_reason == "checkpoint_not_written":
        raise _NotDoneError("the checkpoint of its producers cannot be written; nothing is removed")
    return "removed" if result.removed else result.skipped_reason or "kept"


def _compact(storage: OpenStorage, key: Key) -> str:
    result = storage.compact(*key)
    if result.warning is not None:
        raise _NotDoneError(result.warning)
    return result.skipped_reason or "rewritten"
