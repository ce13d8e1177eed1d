"""Operations of every kind on storage that has just started, and what they promise.

A start may recover the right world and still stand on something rotten: a torn
entry that a later one is written behind, a revision that is given twice, a name
that is taken. That shows when work goes on, and at the start after it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from crash.world import Seen
from cursus.broker.open_storage import OpenStorage
from cursus.formats.record import Record
from cursus.layout import INTERNAL_TOPIC

_TOPIC = "goes-on"
_PAYLOAD = b"after the start"


@dataclass
class Promised:
    """``records``: where the new one of each partition stands; the rest by name."""

    records: dict[tuple[str, int], int] = field(default_factory=dict)
    offsets: dict[str, dict[str, dict[int, int]]] = field(default_factory=dict)
    epochs: dict[str, int] = field(default_factory=dict)
    snapshots: dict[tuple[str, int, bytes], tuple[int, bytes]] = field(default_factory=dict)
    transaction: tuple[str, int] = ("", 0)

    def broken_in(self, storage: OpenStorage, before: Seen) -> str | None:
        """The first promise that storage does not keep, in words."""
        for (topic, partition), offset in self.records.items():
            log = storage.partition(topic, partition)
            found = log.read(offset, max_records=1)
            if not found or (found[0].offset, found[0].payload) != (offset, _PAYLOAD):
                return f"record {offset} of {topic} {partition} is {found}"
            if log.leo != offset + 1:
                return f"{topic} {partition} ends at {log.leo}, not at {offset + 1}"
        for group, expected in self.offsets.items():
            known = storage.groups.get(group)
            if known is None or known.offsets != expected:
                return f"offsets of {group}: {known and known.offsets}, not {expected}"
        for group, epoch in self.epochs.items():
            if storage.groups[group].epoch != epoch:
                return f"epoch of {group}: {storage.groups[group].epoch}, not {epoch}"
        for (topic, partition, key), saved in self.snapshots.items():
            if storage.aggregates(topic, partition).snapshot(key) != saved:
                return f"snapshot of {key!r} is not {saved}"
        transactions = {**before.transactions, _TOPIC: self.transaction}
        states = {name: (item.state, item.epoch) for name, item in storage.transactions.items()}
        return None if states == transactions else f"transactions: {states}, not {transactions}"


def go_on(storage: OpenStorage, before: Seen, deleted: Iterable[str]) -> Promised:
    """Do something of everything. ``deleted``: groups that are gone, or never were there."""
    done = Promised()
    storage.create_topic(_TOPIC, {"partitions": 1, "cleanup_policy": "delete,compact"})
    for key in list(storage.partitions):
        if key[0] == INTERNAL_TOPIC:
            continue
        end = storage.partition(*key).leo
        offsets = storage.publish(*key, [Record(key=b"goes on", payload=_PAYLOAD)])
        assert offsets == range(end, end + 1), f"{key}: {offsets} behind {end}"
        done.records[key] = end
    _groups(storage, before, deleted, done)
    for (topic, partition), versions in before.versions.items():
        for name, version in versions.items():
            saved = (version, _PAYLOAD + name)
            storage.save_aggregate_snapshot(topic, partition, name, *saved)
            done.snapshots[topic, partition, name] = saved
    done.transaction = ("aborted", 0)
    values = {"id": _TOPIC, "producer": "p", "epoch": 0, "revision": 1, "ready": True}
    moment = storage._machine.moment()
    times = {"created_at": moment, "updated_at": moment}
    storage.journal_append({**values, **times, "state": "aborted"})
    for key, log in list(storage.partitions.items()):
        log.roll()
        storage.compact(*key)
    storage.compact_journal()
    return done


def _groups(storage: OpenStorage, before: Seen, deleted: Iterable[str], done: Promised) -> None:
    """Everybody commits once more; who is deleted comes back, in a life of its own."""
    for name, group in before.groups.items():
        held = {topic: dict(items) for topic, items in group.offsets.items()}
        mine = held.setdefault(group.topic, {})
        mine[0] = mine.get(0, 0) + 1
        storage.commit_offsets(name, group.topic, {0: mine[0]})
        done.offsets[name] = held
    for name in [*deleted, _TOPIC]:
        storage.register_group(name, _TOPIC, 1)
        storage.commit_offsets(name, _TOPIC, {0: 7})
        done.offsets[name] = {_TOPIC: {0: 7}}
        done.epochs[name] = before.epochs.get(name, 0) + 1
