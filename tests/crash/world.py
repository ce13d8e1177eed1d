"""What a workload has been told, kept by the test itself.

A :class:`World` is the state that clients know of: topics, records, groups,
offsets, transactions, aggregates. Each operation of a workload says, without
asking the engine, which worlds a crash inside it may leave (its *stages*; the
first is the world before, the last the world that its acknowledgement promises).
The harness compares what a start recovers with these, so the expected value
never comes from the code under test.

Records that compaction may take (a later record of the same key is there) are
*optional*: they may be gone, and nothing else may be.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from cursus.formats.record import Record, encoded_size

#: What a client knows of a record: everything but its address.
Fact = tuple[Any, ...]


def fact(record: Record) -> Fact:
    """A record without its address, as something to compare."""
    return (
        record.key,
        record.payload,
        record.producer_id,
        record.epoch,
        record.sequence,
        record.event_type,
        record.schema_version,
        record.aggregate_version,
        record.metadata,
        record.transactional_id,
        record.transaction_state,
        record.transaction_marker,
        record.control_type,
        record.control_version,
        record.control_coordinator_epoch,
        record.control_key,
        record.control_value,
    )


@dataclass(slots=True)
class Log:
    """Records of one partition. ``segments``: base and bytes of each, by the rolling rule."""

    records: dict[int, Fact] = field(default_factory=dict)
    optional: set[int] = field(default_factory=set)
    start: int = 0
    end: int = 0
    segments: list[list[int]] = field(default_factory=lambda: [[0, 0]])

    def add(self, record: Record, segment_bytes: int, *, batch: int | None = None) -> None:
        """Append one record; ``batch`` is the size of the batch that begins with it."""
        size = 4 + encoded_size(record)
        need = size if batch is None else batch
        if self.segments[-1][1] and self.segments[-1][1] + need > segment_bytes:
            self.segments.append([self.end, 0])
        self.put(record, size)

    def put(self, record: Record, size: int) -> None:
        self.records[self.end] = fact(record)
        self.end += 1
        self.segments[-1][1] += size

    def supersede(self) -> None:
        """Mark what compaction may remove: superseded keys, but the last of each producer not."""
        closed = self.segments[-1][0]
        latest: dict[bytes, int] = {}
        producers: dict[bytes, int] = {}
        for offset, item in self.records.items():
            if offset >= closed:
                continue
            if _ordinary(item):
                latest[item[0]] = offset
            if item[2]:
                producers[item[2]] = offset
        kept = set(producers.values())
        for offset, item in self.records.items():
            superseded = _ordinary(item) and offset < latest.get(item[0], -1)
            if offset < closed and superseded and offset not in kept:
                self.optional.add(offset)

    def drop_below(self, base: int) -> None:
        """Retention has taken every segment below ``base``."""
        self.segments = [item for item in self.segments if item[0] >= base]
        self.records = {o: item for o, item in self.records.items() if o >= base}
        self.optional = {o for o in self.optional if o >= base}
        self.start = base


def _ordinary(item: Fact) -> bool:
    return bool(item[0]) and not any(item[9:])


@dataclass(slots=True)
class Topic:
    """A definition as clients see it."""

    partitions: int
    revision: int = 1
    epoch: int = 1
    idempotent: bool = False
    event_sourcing: bool = False
    cleanup: str = "delete"


@dataclass(slots=True)
class Group:
    topic: str
    partition_count: int
    epoch: int
    offsets: dict[str, dict[int, int]] = field(default_factory=dict)
    revisions: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class World:
    """Everything. ``epochs``: the last lifecycle epoch of every group that ever was.

    ``transactions``: (state, epoch) of each id. ``snapshots``: version
    and payload of each key's aggregate snapshot, by (topic, partition). ``due``: what
    is left to do of each commit that is decided, step by step; a start does it.
    """

    topics: dict[str, Topic] = field(default_factory=dict)
    logs: dict[tuple[str, int], Log] = field(default_factory=dict)
    groups: dict[str, Group] = field(default_factory=dict)
    epochs: dict[str, int] = field(default_factory=dict)
    transactions: dict[str, tuple[str, int]] = field(default_factory=dict)
    producers: dict[tuple[str, int], dict[str, tuple[int, int]]] = field(default_factory=dict)
    versions: dict[tuple[str, int], dict[bytes, int]] = field(default_factory=dict)
    snapshots: dict[tuple[str, int], dict[bytes, tuple[int, bytes]]] = field(default_factory=dict)
    due: dict[str, tuple[Callable[[World], None], ...]] = field(default_factory=dict)

    def copy(self) -> World:
        return copy.deepcopy(self)

    def started(self) -> World:
        """What a start makes of it: commits that are decided are carried out, by their ids."""
        if not self.due:
            return self
        world = self.copy()
        for name in sorted(world.due, key=str.encode):
            for step in world.due.pop(name):
                step(world)
        return world


@dataclass(frozen=True, slots=True)
class Seen:
    """A world as a start recovered it: logs are what was read back, record by record."""

    topics: dict[str, Topic]
    logs: dict[tuple[str, int], tuple[int, int, dict[int, Fact]]]
    groups: dict[str, Group]
    epochs: dict[str, int]
    transactions: dict[str, tuple[str, int]]
    producers: dict[tuple[str, int], dict[str, tuple[int, int]]]
    versions: dict[tuple[str, int], dict[bytes, int]]
    snapshots: dict[tuple[str, int], dict[bytes, tuple[int, bytes]]]


def difference(world: World, seen: Seen) -> str | None:
    """The first thing in which ``seen`` is not ``world``, in words; ``None`` when it is."""
    for name in ("topics", "groups", "epochs", "transactions", "versions", "snapshots"):
        expected, found = getattr(world, name), getattr(seen, name)
        if expected != found:
            return f"{name}: {_first_difference(expected, found)}"
    if world.logs.keys() != seen.logs.keys():
        return f"logs: {sorted(world.logs)} expected, {sorted(seen.logs)} found"
    for key, log in world.logs.items():
        text = _log_difference(log, *seen.logs[key])
        if text is not None:
            return f"log of {key}: {text}"
    for key, producers in world.producers.items():
        if producers != seen.producers.get(key, {}):
            return f"producers of {key}: {_first_difference(producers, seen.producers.get(key))}"
    return None


def _first_difference(expected: Any, found: Any) -> str:
    if isinstance(expected, dict) and isinstance(found, dict):
        for key in [*expected, *found]:
            if expected.get(key) != found.get(key):
                return f"{key!r}: {expected.get(key)!r} expected, {found.get(key)!r} found"
    return f"{expected!r} expected, {found!r} found"


def _log_difference(log: Log, start: int, end: int, records: dict[int, Fact]) -> str | None:
    if (start, end) != (log.start, log.end):
        return f"offsets {log.start} to {log.end} expected, {start} to {end} found"
    for offset, item in records.items():
        expected = log.records.get(offset)
        if expected != item:
            return f"offset {offset}: {expected!r} expected, {item!r} found"
    missing = log.records.keys() - records.keys() - log.optional
    if missing:
        return f"acknowledged records are gone: offsets {sorted(missing)[:5]}"
    return None
