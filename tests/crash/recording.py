"""Workloads, run on a file system in memory: what happened, and what is expected of a crash.

A :class:`Recording` has the trace of every durable effect, and for each operation
the worlds that a crash inside it may leave (``operations.py``).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from crash.evidence import MemoryEvidence
from crash.memory import ROOT, Event, MemoryFileSystem, Tree
from crash.model import Disk
from crash.operations import NO_MANIFEST, UNDECLARED, Operation, Retain, Stages
from crash.world import Topic, World
from cursus.broker.machine import Machine
from cursus.broker.open_storage import OpenStorage
from cursus.broker.runtime import Runtime, Settings
from cursus.layout import INTERNAL_TOPIC
from cursus.storage.durable import FileSystem, Observer
from cursus.storage.log_settings import LogSettings

#: 2026-09-01T12:00:00Z, in nanoseconds since 1970.
NOON = 1_788_264_000 * 10**9
SEGMENT_BYTES = 600
SETTINGS = Settings(
    log=LogSettings(
        log_segment_bytes=SEGMENT_BYTES,
        log_index_size_bytes=256,
        log_index_interval_bytes=128,
        log_retention_hours=1,
        log_min_cleanable_dirty_ratio=0.01,
    )
)


Wrap = Callable[[FileSystem], FileSystem]


class _Unlocked:
    """No other process sees memory."""

    def close(self) -> None:
        """Nothing is held."""


def machine(system: MemoryFileSystem, files: FileSystem | None = None) -> Machine:
    """A machine in memory. ``files``: what the engine sees of ``system``."""
    return Machine(
        files=system if files is None else files,
        make_log_dir=lambda _: None,
        lock_log_dir=lambda _: _Unlocked(),
        lock_partition=None,
        evidence=lambda _: MemoryEvidence(system.tree()),
        now_ns=lambda: system.clock,
        ticks_ns=lambda: system.clock,
    )


# -- recording ---------------------------------------------------------------------------


@dataclass(slots=True)
class Step:
    """One operation of a recording: its stages and the moments that bound it.

    ``outcome``: worlds that are possible behind it, the last stage if not given; more
    than one where an error left it unknown. ``left``: refusals that it may cause later.
    """

    operation: Operation
    stages: list[World]
    begun: int
    acknowledged: int
    outcome: list[World] | None = None
    left: frozenset[str] = frozenset()


@dataclass(slots=True)
class Recording:
    """A workload that ran to its end: trace, steps, and where the trace begins."""

    name: str
    trace: list[Event]
    steps: list[Step]
    start: World
    base: Tree
    notes: list[object] = field(default_factory=list)

    def disk(self) -> Disk:
        """The disk on which the trace begins."""
        return Disk(MemoryFileSystem(self.base).root)

    @property
    def groups(self) -> set[str]:
        """Every group that there ever was."""
        return {name for step in self.steps for world in step.stages for name in world.epochs}

    def phase(self, moment: int) -> int:
        """Equal for moments of which the same is promised."""
        bounds = [bound for step in self.steps for bound in (step.begun, step.acknowledged)]
        return bisect_right(bounds, moment)

    def allowed(self, moment: int) -> tuple[list[World], frozenset[str]]:
        """Worlds that a crash after ``moment`` events may leave, and refusals that it may cause."""
        worlds, refuses = [self.start], frozenset[str]()
        for step in self.steps:
            if step.acknowledged <= moment:
                worlds = [step.stages[-1]] if step.outcome is None else step.outcome
                refuses = step.left
            elif step.begun <= moment:
                worlds, refuses = step.stages, step.operation.refuses | refuses
        return worlds, refuses


@dataclass(frozen=True, slots=True)
class Workload:
    """Operations on an empty directory; those of ``before`` are not crashed into."""

    name: str
    operations: Sequence[Operation]
    before: Sequence[Operation] = ()


@dataclass(slots=True)
class Begun:
    """A workload whose first operation comes next: what runs, and what has been so far."""

    system: MemoryFileSystem
    runtime: Runtime
    base: Tree
    start: World
    current: World
    steps: list[Step]

    def next(self, operation: Operation) -> int:
        """Let time go by before an operation; the moment at which it begins."""
        self.system.clock += 10**9
        if isinstance(operation, Retain):
            self.system.clock = max(self.system.clock, operation.now_ns)
        self.system.mark("begin")
        return len(self.system.trace)


def prepared(workload: Workload, wrap: Wrap = lambda system: system) -> tuple[Tree, World]:
    """What stands where a workload begins, shut down in order, and what it promises."""
    world = _fresh_world()
    if not workload.before:
        return {}, World()
    system = MemoryFileSystem(clock=NOON)
    with Runtime.start(ROOT, SETTINGS, machine(system, wrap(system)), background=False) as runtime:
        assert runtime.storage is not None, runtime.diagnostics
        for operation in workload.before:
            operation.run(runtime.storage)
            world = operation.stages(world)[-1]
    return system.tree(), world


def begin(
    tree: Tree,
    world: World,
    wrap: Wrap = lambda system: system,
    observer: Observer = lambda _: None,
) -> Begun:
    """Start on what :func:`prepared` left.

    The first start on an empty directory belongs to the trace, unless the
    workload has operations that come before it.
    """
    system = MemoryFileSystem(tree, observer, clock=NOON)
    runtime = Runtime.start(ROOT, SETTINGS, machine(system, wrap(system)), background=False)
    assert runtime.storage is not None, runtime.diagnostics
    if tree:
        return Begun(system, runtime, tree, world, world, [])
    fresh = _fresh_world()
    opened = Step(_Start(), [world, fresh], 0, len(system.trace))
    return Begun(system, runtime, tree, world, fresh, [opened])


def record(workload: Workload, wrap: Wrap = lambda system: system) -> Recording:
    """Run a workload on a file system in memory and note everything."""
    begun = begin(*prepared(workload, wrap), wrap)
    system, runtime = begun.system, begun.runtime
    assert runtime.storage is not None
    steps, current, notes = begun.steps, begun.current, []
    for operation in workload.operations:
        stages = operation.stages(current)
        moment = begun.next(operation)
        notes.append(operation.run(runtime.storage))
        system.mark("acknowledged")
        steps.append(Step(operation, stages, moment, len(system.trace)))
        current = stages[-1]
    runtime.close()
    return Recording(workload.name, system.trace, steps, begun.start, begun.base, notes)


class _Start(Operation):
    """The first start: nothing is acknowledged, and the internal topic may be cut off."""

    refuses = frozenset({NO_MANIFEST, UNDECLARED})

    def run(self, storage: OpenStorage) -> None:
        """Nothing: that storage is open says that it has happened."""

    def after(self, world: World) -> Stages:
        yield _fresh_world()


def _fresh_world() -> World:
    return World(topics={INTERNAL_TOPIC: Topic(4, cleanup="compact")})
