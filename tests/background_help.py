"""A store with its background work: real files, real threads, a clock that the test moves."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from cursus import layout
from cursus.broker.background import SWEEP_INTERVAL_MS, Background, BackgroundSettings
from cursus.broker.machine import Machine, this_machine
from cursus.broker.open_storage import OpenStorage
from cursus.broker.runtime import Runtime, Settings
from cursus.evidence.walk import LogDirectory
from cursus.formats import checkpoints
from cursus.formats.record import Record
from cursus.replay.startup import plan
from cursus.storage.durable import Operation, real_file_system
from cursus.storage.log_settings import LogSettings

#: Seconds to wait for what must happen.
DEADLINE = 60
CHECKPOINT, MINUTE, HOUR = 250 * 10**6, 60 * 10**9, 3600 * 10**9
SWEEP = SWEEP_INTERVAL_MS * 10**6
#: Segments of a few records; whatever is closed is too much.
SMALL = LogSettings(log_segment_bytes=1024, log_index_size_bytes=4096)
SETTINGS = Settings(
    log=SMALL,
    background=BackgroundSettings(
        log_retention_check_interval_ms=60_000,
        log_compaction_check_interval_ms=120_000,
        producer_state_ttl_ms=3_600_000,
    ),
)
DELETES = {"partitions": 1, "retention_bytes": 1}
COMPACTS = {"partitions": 1, "cleanup_policy": "compact"}


class World:
    """A machine whose clocks the test moves, and whose disk fails where the test wants it."""

    def __init__(self) -> None:
        self.now = time.time_ns()  # files have the times of this machine
        self.fails: Callable[[Operation], bool] = lambda _: False
        self.code = errno.EIO
        self.kind: Callable[[int, str, str], Exception] = OSError
        self.operations: list[Operation] = []
        self.before: Callable[[Operation], None] = lambda _: None

    def observe(self, operation: Operation) -> None:
        self.before(operation)
        if self.fails(operation):
            raise self.kind(self.code, "injected", operation.path)
        self.operations.append(operation)

    @property
    def machine(self) -> Machine:
        machine = this_machine(real_file_system(self.observe))
        return replace(machine, now_ns=lambda: self.now, ticks_ns=lambda: self.now)


class Store:
    """Storage that is open, with its background work."""

    def __init__(self, runtime: Runtime, world: World) -> None:
        assert runtime.storage is not None, runtime.diagnostics
        assert runtime.background is not None
        self.runtime = runtime
        self.storage: OpenStorage = runtime.storage
        self.background: Background = runtime.background
        self.world = world

    def after(self, nanoseconds: int) -> None:
        """Let time go by; what is due by then is done when this returns."""
        self.world.now += nanoseconds
        self.background.run_due()

    def fill(self, topic: str, count: int = 12, key: bytes = b"") -> None:
        """Records that do not fit one segment."""
        for number in range(count):
            self.storage.publish(topic, 0, [Record(key=key, payload=b"%d" % number + b"x" * 300)])


@contextmanager
def store(log_dir: Path, world: World, settings: Settings = SETTINGS) -> Iterator[Store]:
    with Runtime.start(str(log_dir), settings, world.machine) as runtime:
        yield Store(runtime, world)


def until(holds: Callable[[], bool]) -> None:
    """Return when something that must happen has happened."""
    for _ in range(DEADLINE * 1000):
        if holds():
            return
        threading.Event().wait(0.001)
    pytest.fail("it never came")


def hwm_of(log_dir: Path, topic: str) -> int | None:
    path = log_dir / topic / layout.hwm(0)
    return checkpoints.decode_hwm(path.read_bytes()) if path.exists() else None


def producers_of(log_dir: Path, topic: str) -> dict[str, int]:
    path = log_dir / topic / layout.producers(0)
    if not path.exists():
        return {}
    found = checkpoints.decode_producers(path.read_bytes()).producers
    return {name: entry.sequence for name, entry in found.items()}


def sent(name: str, sequence: int) -> Record:
    return Record(payload=b"x", producer_id=name.encode(), sequence=sequence)


def ends_clean(log_dir: Path) -> None:
    with LogDirectory.at(str(log_dir)) as evidence:
        found = plan(evidence)
    assert (found.verdict, found.actions) == ("starts_clean", ())
