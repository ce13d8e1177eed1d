"""Random workloads: every operation is legal in the world that the ones before have made."""

from __future__ import annotations

import random
from typing import Any

from crash.operations import (
    AppendEvents,
    Checkpoint,
    Commit,
    Compact,
    CompactJournal,
    Create,
    Delete,
    Journal,
    Operation,
    Register,
    Retain,
    SaveSnapshot,
    Truncate,
    Unregister,
    events,
)
from crash.recording import NOON, SEGMENT_BYTES, Workload
from crash.workloads import HOUR, publish, state_of
from crash.world import Topic, World
from cursus.layout import INTERNAL_TOPIC


class _Dice:
    """Random operations that are legal in the world that the ones before have made."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.world = World(topics={INTERNAL_TOPIC: Topic(4, cleanup="compact")})
        self.sequences: dict[tuple[str, int, str], int] = {}
        self.clock = NOON

    def throw(self) -> Operation:
        """One operation; the world is the one after it."""
        while True:
            makers = [self._publish] * 5 + [self._commit] * 3
            makers += [self._create, self._grow, self._register, self._unregister, self._compact]
            makers += [self._retain, self._event, self._snapshot, self._checkpoint, self._journal]
            if self.rng.random() < 0.25:
                makers += [self._delete, self._truncate, self._compact_journal]
            operation = self.rng.choice(makers)()
            if operation is not None:
                self.world = operation.stages(self.world)[-1]
                return operation

    def _topic(self, events: bool = False) -> str | None:
        names = [
            name
            for name, item in self.world.topics.items()
            if name != INTERNAL_TOPIC and item.event_sourcing == events
        ]
        return self.rng.choice(names) if names else None

    def _create(self) -> Operation | None:
        name = self.rng.choice(["a", "b", "c", "e"])
        named = any(name in (g.topic, *g.offsets) for g in self.world.groups.values())
        if name in self.world.topics or named:
            return None
        given: dict[str, Any] = {"partitions": self.rng.randint(1, 2)}
        if name == "e":
            given["event_sourcing"] = True
        elif name == "b":
            given["cleanup_policy"] = "compact"
        elif name == "c":
            given["cleanup_policy"] = "delete,compact"
        return Create(name, given)

    def _grow(self) -> Operation | None:
        name = self._topic()
        if name is None or self.world.topics[name].partitions > 3:
            return None
        return Create(name, {"partitions": self.world.topics[name].partitions + 1})

    def _delete(self) -> Operation | None:
        name = self._topic(self.rng.random() < 0.2)
        return Delete(name) if name else None

    def _truncate(self) -> Operation | None:
        name = self._topic(self.rng.random() < 0.2)
        return Truncate(name) if name else None

    def _publish(self) -> Operation | None:
        name = self._topic()
        if name is None:
            return None
        partition = self.rng.randrange(self.world.topics[name].partitions)
        size = self.rng.choice([1, 10, 60, 150, 700])
        payloads = [
            f"{self.rng.randrange(10**6)}" + "x" * size for _ in range(self.rng.randint(1, 4))
        ]
        more: dict[str, Any] = {"key": self.rng.choice(["", "", "k1", "k2", "k3"])}
        if self.rng.random() < 0.3:
            producer = self.rng.choice(["p", "q"])
            known = self.world.producers[name, partition].get(producer, (0, 0))
            more |= {"producer": producer, "first": known[1] + 1}
        return publish(name, partition, *payloads, **more)

    def _event(self) -> Operation | None:
        name = self._topic(events=True)
        if name is None:
            return None
        partition = self.rng.randrange(self.world.topics[name].partitions)
        key = self.rng.choice(["cart-1", "cart-2"])
        version = self.world.versions[name, partition].get(key.encode(), 0)
        payloads = ["e" * self.rng.choice([1, 90, 300])] * self.rng.randint(1, 2)
        return AppendEvents(name, partition, events(key, version + 1, payloads), SEGMENT_BYTES)

    def _snapshot(self) -> Operation | None:
        name = self._topic(events=True)
        if name is None:
            return None
        partition = self.rng.randrange(self.world.topics[name].partitions)
        versions = self.world.versions[name, partition]
        if not versions:
            return None
        key = self.rng.choice(sorted(versions))
        payload = bytes(self.rng.randrange(256) for _ in range(self.rng.randint(1, 40)))
        return SaveSnapshot(name, partition, key, self.rng.randint(1, versions[key]), payload)

    def _register(self) -> Operation | None:
        name, topic = self.rng.choice(["g", "h", "i"]), self._topic()
        if topic is None or name in self.world.groups:
            return None
        return Register(name, topic, self.world.topics[topic].partitions)

    def _unregister(self) -> Operation | None:
        names = sorted(self.world.groups)
        return Unregister(self.rng.choice(names)) if names else None

    def _commit(self) -> Operation | None:
        names = sorted(self.world.groups)
        if not names:
            return None
        group = self.world.groups[name := self.rng.choice(names)]
        held = group.offsets.get(group.topic, {})
        partitions = self.rng.sample(
            range(group.partition_count), self.rng.randint(1, group.partition_count)
        )
        offsets = {p: held.get(p, 0) + self.rng.randrange(5) for p in partitions}
        return Commit(name, group.topic, offsets)

    def _retain(self) -> Operation | None:
        keys = [key for key in self.world.logs if "delete" in self.world.topics[key[0]].cleanup]
        keys = [key for key in keys if not self.world.topics[key[0]].event_sourcing]
        if not keys:
            return None
        self.clock += 3 * HOUR
        return Retain(*self.rng.choice(sorted(keys)), now_ns=self.clock)

    def _compact(self) -> Operation | None:
        keys = [key for key in self.world.logs if "compact" in self.world.topics[key[0]].cleanup]
        keys += [(INTERNAL_TOPIC, p) for p in range(4)]
        return Compact(*self.rng.choice(sorted(keys)))

    def _checkpoint(self) -> Operation:
        return Checkpoint()

    def _journal(self) -> Operation:
        name = self.rng.choice(["t", "u"])
        state, epoch = self.world.transactions.get(name, ("aborted", -1))
        if state == "open":
            return Journal(state_of(name, "aborted", epoch, 9))
        return Journal(
            state_of(name, self.rng.choice(["aborted", "open"]), epoch + 1, 9, ready=True)
        )

    def _compact_journal(self) -> Operation:
        return CompactJournal()


def mixed(seed: int, length: int = 24) -> Workload:
    """``length`` random operations, legal in the order in which they come."""
    dice = _Dice(seed)
    return Workload(f"mixed-{seed}", tuple(dice.throw() for _ in range(length)))
