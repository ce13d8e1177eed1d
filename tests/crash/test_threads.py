"""Many callers and one fsync, crashed into: the group commit under the same crash model.

Threads publish at once, so the order in a log is the engine's and there is no
list of stages. The law is about sets: what was acknowledged is there, in the
place that was acknowledged; what is there was asked for, whole and without a hole.
"""

from __future__ import annotations

import random
import threading
import time
from typing import Any

from crash.memory import ROOT, MemoryFileSystem
from crash.model import State, crash_states
from crash.recording import NOON, SETTINGS, machine
from cursus.broker.runtime import Runtime
from cursus.formats.record import Record
from cursus.storage.durable import FileSystem, WritableFile

THREADS, EACH = 6, 8
STATES = 150


class SlowDisk:
    """A file system whose fsyncs take a moment, so that callers gather behind one."""

    def __init__(self, inner: FileSystem) -> None:
        self._inner = inner
        self.fsyncs = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def create(self, path: str) -> WritableFile:
        return self._slow(self._inner.create(path))

    def open(self, path: str) -> WritableFile:
        return self._slow(self._inner.open(path))

    def _slow(self, file: WritableFile) -> WritableFile:
        inner = file.fsync

        def fsync() -> None:
            time.sleep(0.001)
            self.fsyncs += 1
            inner()

        file.fsync = fsync  # type: ignore[method-assign]
        return file


def recorded() -> tuple[MemoryFileSystem, SlowDisk, int]:
    system = MemoryFileSystem(clock=NOON)
    disk = SlowDisk(system)
    with Runtime.start(ROOT, SETTINGS, machine(system, disk), background=False) as runtime:  # type: ignore[arg-type]
        storage = runtime.storage
        assert storage is not None
        storage.create_topic("orders", {"partitions": 1, "idempotent": True})
        storage.register_group("g", "orders", 1)
        begun, disk.fsyncs = len(system.trace), 0
        system.mark(("ready",))

        def work(number: int) -> None:
            for sequence in range(1, EACH + 1):
                payload = f"{number}.{sequence}".encode()
                system.mark(("begin", payload))
                record = Record(
                    payload=payload, producer_id=f"p{number}".encode(), sequence=sequence
                )
                offsets = storage.publish("orders", 0, [record])
                system.mark(("did", payload, offsets[0]))

        threads = [threading.Thread(target=work, args=(n,)) for n in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return system, disk, begun


def examine(state: State, system: MemoryFileSystem) -> int:
    """Start on a state and hold it to the law; how many records were acknowledged in it."""
    marks = [(at, event.mark) for at, event in enumerate(system.trace) if event.mark]
    asked = {mark[1] for at, mark in marks if mark[0] == "begin" and at < state.first}
    told = {mark[2]: mark[1] for at, mark in marks if mark[0] == "did" and at < state.last}
    disk = MemoryFileSystem(state.tree, clock=NOON)
    with Runtime.start(ROOT, SETTINGS, machine(disk), background=False) as runtime:
        assert runtime.storage is not None, runtime.diagnostics
        log = runtime.storage.partition("orders", 0)
        found = [(record.offset, record.payload) for record in log.records()]
        assert [offset for offset, _ in found] == list(range(log.leo))
        assert {payload for _, payload in found} <= asked
        assert len({payload for _, payload in found}) == len(found), "a record stands twice"
        there = dict(found)
        for offset, payload in told.items():
            assert there.get(offset) == payload, f"{payload!r} was acknowledged at {offset}"
        last: dict[bytes, int] = {}
        for _, payload in found:
            producer, _, sequence = payload.partition(b".")
            assert int(sequence) == last.get(producer, 0) + 1, "a producer's order is broken"
            last[producer] = int(sequence)
    return len(told)


def test_callers_that_share_an_fsync_are_acknowledged_behind_it() -> None:
    system, disk, begun = recorded()
    assert disk.fsyncs < THREADS * EACH, "nobody shared an fsync: the test shows nothing"
    states = [state for state in crash_states(system.trace, seed=5) if state.first > begun]
    sample = random.Random(5).sample(states, min(STATES, len(states)))
    assert max(examine(state, system) for state in sample) > THREADS * EACH // 2
