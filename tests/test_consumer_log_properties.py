"""Whatever is asked of the consumer log and however appends fail, every later start accepts it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from store_help import NOW
from test_consumer_log import Storage
from test_consumer_replay_vectors import as_vector, fed

from cursus.formats.record import Record
from cursus.replay import consumer_groups as cg
from cursus.storage.consumer_log import ConsumerLog
from cursus.storage.errors import (
    StoreError,
    UnwritableError,
    WriteFailedError,
    WriteRefusedError,
)


class Topic:
    """``__consumer_offsets`` in memory; an append that fails leaves its record, or does not."""

    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []
        self.partitions = 4
        self.broken: set[int] = set()
        self.next = "works"
        #: Groups of appends that failed and whose record is there all the same.
        self.doubtful: set[str] = set()
        self.log = self.start()

    def start(self) -> ConsumerLog:
        self.broken.clear()
        self.doubtful.clear()
        return ConsumerLog(self.replayed(), self.partitions, self.append, clock=lambda: NOW)

    def replayed(self) -> cg.ConsumerResult:
        return fed(self.records, self.partitions).finish()

    def append(self, partition: int, record: Record) -> int:
        outcome, self.next = self.next, "works"
        if partition in self.broken:
            raise UnwritableError("partition_write_unavailable")
        if outcome == "refused":
            raise WriteRefusedError("record_too_large")
        offset = sum(item["partition"] == partition for item in self.records)
        if outcome != "lost":
            self.records.append(
                {
                    "partition": partition,
                    "offset": offset,
                    "key": record.key.decode(),
                    "payload": record.payload.decode(),
                }
            )
        if outcome != "works":
            self.broken.add(partition)
            raise WriteFailedError("partition_write_unavailable")
        return offset


GROUPS, TOPICS = ("a", "b"), ("t", "u1", "u2", "u*")
#: Operations, as often as they should come.
WEIGHTS = {
    "register": 4,
    "delete": 1,
    "commit": 12,
    "batch": 5,
    "prepared": 4,
    "forget": 1,
    "grow": 1,
    "restart": 3,
    "fail": 3,
}


def steps(seed: int) -> Iterator[tuple[Any, ...]]:
    """Sixty operations of one life of a broker or several."""
    random = Random(seed)
    kinds = random.choices(list(WEIGHTS), list(WEIGHTS.values()), k=60)
    for kind in kinds:
        group, topic = random.choice(GROUPS), random.choice(TOPICS)
        partition, offset = random.randrange(3), random.randrange(40)
        pairs = [(random.randrange(3), random.randrange(40)) for _ in range(random.randrange(4))]
        match kind:
            case "register":
                yield kind, group, random.choice(("t", "t", "u*")), random.choice((2, 3))
            case "delete":
                yield kind, group
            case "commit":
                yield kind, group, topic, partition, offset
            case "batch":
                yield kind, group, topic, pairs
            case "prepared":
                yield kind, group, topic, dict(pairs), random.randrange(1, 4)
            case "forget":
                yield kind, topic
            case "fail":
                yield kind, random.choice(("lost", "kept", "kept", "refused"))
            case _:
                yield (kind,)


def run(topic: Topic, step: tuple[Any, ...]) -> None:
    log, args = topic.log, step[1:]
    match step[0]:
        case "register":
            log.register(args[1], args[0], args[2])
        case "delete":
            log.delete_group(*args)
        case "commit":
            log.commit(*args)
        case "batch":
            log.commit_batch(*args)
        case "prepared":
            log.commit_prepared(*args)
        case "forget":
            log.forget_topic(*args)
        case "grow":
            topic.partitions = log.partitions = log.partitions + 1
        case "restart":
            topic.log = topic.start()
        case "fail":
            topic.next = args[0]


@pytest.mark.parametrize("block", range(8))
def test_every_start_accepts_what_was_written(block: int) -> None:
    written = doubtful = 0
    for seed in range(40 * block, 40 * block + 40):
        topic = Topic()
        for step in steps(seed):
            before = len(topic.records)
            failed = False
            try:
                run(topic, step)
            except StoreError:
                failed = True
            if failed and len(topic.records) > before:
                topic.doubtful |= {str(step[1])} if step[0] != "forget" else set(GROUPS)
                doubtful += 1
            check(topic)
        written += len(topic.records)
    assert written > 180  # a group in doubt takes nothing until the next restart
    assert doubtful > 20


def check(topic: Topic) -> None:
    """A start finds no fault, and every acknowledged operation."""
    found = topic.replayed()
    assert found.failure is None, found.failure
    assert not [item for item in found.findings if item.effect == "refuses"]
    memory = {name: as_vector(group) for name, group in topic.log.groups.items()}
    disk = {name: as_vector(group) for name, group in found.groups.items()}
    for name in set(GROUPS) - topic.doubtful:
        assert memory.get(name) == disk.get(name)
    for name in topic.doubtful & memory.keys() & disk.keys():
        if memory[name]["epoch"] == disk[name]["epoch"]:
            for where, offsets in memory[name]["offsets"].items():
                for partition, offset in offsets.items():
                    assert disk[name]["offsets"][where][partition] >= offset


def test_commits_of_different_groups_may_run_at_once(tmp_path: Path) -> None:
    """From many threads at once, as long as one group is one thread's."""
    storage = Storage(tmp_path)
    names = [f"g{number}" for number in range(16)]
    for name in names:
        storage.groups.register("t", name, 2)

    def commit(name: str) -> None:
        for number in range(1, 26):
            storage.groups.commit(name, "t", number % 2, number)

    threads = [threading.Thread(target=commit, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    storage.restart()
    for name in names:
        group = storage.groups.groups[name]
        assert group.offsets == {"t": {0: 24, 1: 25}}
        assert group.revisions == {"t": 25}
    storage.close()
