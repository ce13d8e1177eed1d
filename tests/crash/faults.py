"""A disk that fails: an error at the N-th operation of the durable door, and then life goes on.

A workload runs on a file system in memory that refuses one operation (``EIO``,
``ENOSPC``), lets in a part of a write before it does, or refuses everything from
there on. Nobody stops: the rest of the workload is asked for, as a caller would.
Then the runtime is closed in order, or power is lost, and a start on what is there
is held to the laws of ``harness.py``. What is expected:

* acknowledged, before the error or behind it: there;
* raised, and something was written: of no known outcome; one of its stages, whole;
* raised, and nothing was written (refused): not there.

So behind an error more than one world is possible. An acknowledgement that could
not have been given in one of them rules that one out: whoever acknowledges a commit
to a group says that the tombstone before it is not there.

Where the manifest was renamed and its directory could not be synced, the change is
acknowledged and may be lost (a durability warning, manifest.md section 6), until the
next complete save.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice

from crash.harness import Examination, Report
from crash.memory import ROOT, Event, MemoryFileSystem, ShortWriteError, Tree
from crash.model import Disk, State, crash_states, fingerprint
from crash.operations import (
    NO_MANIFEST,
    OUT_OF_RANGE,
    UNDECLARED,
    Commit,
    Create,
    Delete,
    FinishTransaction,
    Operation,
    Publish,
    Register,
    Retain,
    Truncate,
    Unregister,
    forget_groups,
)
from crash.recording import (
    NOON,
    SETTINGS,
    Begun,
    Recording,
    Step,
    Workload,
    Wrap,
    begin,
    machine,
    prepared,
    record,
)
from crash.world import Fact, Seen, World, fact
from cursus.broker.open_storage import OpenStorage
from cursus.broker.runtime import Runtime
from cursus.findings import FormatError
from cursus.layout import INTERNAL_TOPIC
from cursus.storage.durable import Operation as Effect
from cursus.storage.errors import StoreError
from cursus.storage.retention import RetentionResult

#: What an operation may raise. Anything else is a fault of the engine.
RAISED = (StoreError, FormatError, OSError)


@dataclass(frozen=True, slots=True)
class Fault:
    """The ``at``-th durable effect of a workload, from 1 on, fails with ``code`` (errno).

    ``part``: of 256, how much of a write arrives before. ``lasting``: nothing works
    from there on, until the restart. ``again``: what raised is asked for once more.
    """

    at: int
    code: int = errno.EIO
    part: int | None = None
    lasting: bool = False
    again: bool = False

    def __str__(self) -> str:
        how = "" if self.part is None else f", {self.part}/256 written"
        how += ", and everything behind it" if self.lasting else ""
        how += ", asked for again" if self.again else ""
        return f"{errno.errorcode[self.code]} at {self.at}{how}"


class FailingDisk:
    """Observes effects and refuses one. Counts only while it is ``armed``."""

    def __init__(self, fault: Fault | None) -> None:
        self.fault = fault
        self.armed = False
        self.effects: list[Effect] = []
        self.trace: Sequence[Event] = ()
        #: Events that had happened when the fault came.
        self.met: int | None = None

    def __call__(self, effect: Effect) -> None:
        if not self.armed:
            return
        self.effects.append(effect)
        fault, count = self.fault, len(self.effects)
        if fault is None or count < fault.at or (count > fault.at and not fault.lasting):
            return
        if self.met is None:
            self.met = len(self.trace)
        if effect.kind == "write" and fault.part is not None and count == fault.at:
            written = max(1, len(effect.data) * fault.part // 256)
            raise ShortWriteError(fault.code, effect.path, written)
        raise OSError(fault.code, os.strerror(fault.code), effect.path)


@dataclass(slots=True)
class Expected:
    """What may be there. ``lost``: the same without changes of an unsynced manifest.

    ``left``: codes with which a start may refuse, by the topic that left the reason.
    """

    worlds: list[World]
    lost: list[World] = field(default_factory=list)
    left: dict[str, frozenset[str]] = field(default_factory=dict)

    @property
    def outcome(self) -> list[World]:
        return [*self.worlds, *self.lost]

    def acknowledged(self, operation: Operation, note: object, storage: OpenStorage) -> None:
        """``operation`` returned ``note``: it is there, in every world in which that can be."""
        before = self.worlds
        found = [_acknowledged(operation, world, note, storage) for world in before]
        self.worlds = _distinct([world for worlds in found for world in worlds])
        self.lost = [
            (_acknowledged(operation, world, note, storage) or [world])[-1] for world in self.lost
        ]
        if isinstance(operation, Create | Delete):  # what stood in its way is away
            self.left.pop(operation.name, None)
        if isinstance(operation, Delete) and note is False:
            self._leave(operation, {UNDECLARED})
        if storage._consumers.growth_warning is not None:
            self._leave(operation, {OUT_OF_RANGE})
        self._warned(operation, before, storage)

    def raised(self, operation: Operation, storage: OpenStorage) -> None:
        """``operation`` failed and has written something: any of its stages may be there."""
        before = self.worlds
        found = [world for old in before for world in _stages(operation, old) or [old]]
        self.worlds = _distinct([*found, *_rolled(operation, before)])
        self._leave(operation, operation.refuses)
        self._warned(operation, before, storage)

    def _leave(self, operation: Operation, codes: AbstractSet[str]) -> None:
        name = operation.name if isinstance(operation, Create | Delete | Truncate) else ""
        self.left[name] = self.left.get(name, frozenset()) | codes

    @property
    def refuses(self) -> frozenset[str]:
        return frozenset().union(*self.left.values())

    def _warned(self, operation: Operation, before: list[World], storage: OpenStorage) -> None:
        if storage._manifest.durability_warning is None:
            self.lost = []
        elif isinstance(operation, Create | Delete | Truncate | Register | Unregister):
            stages = [world for old in before for world in _stages(operation, old) or [old]]
            self.lost = _distinct([*self.lost, *stages])
            self._leave(operation, {UNDECLARED, OUT_OF_RANGE, NO_MANIFEST})


def _rolled(operation: Operation, before: list[World]) -> list[World]:
    """Nothing of a publish is there but the segment that was begun for it."""
    found = []
    for world in before if isinstance(operation, Publish) else []:
        key = (operation.topic, operation.partition)
        if key in world.logs and world.logs[key].segments[-1][1]:
            world = world.copy()
            world.logs[key].segments.append([world.logs[key].end, 0])
            found.append(world)
    return found


def _stages(operation: Operation, world: World) -> list[World] | None:
    """``None`` where the operation could not have been accepted."""
    if isinstance(operation, Register) and operation.group in world.groups:
        return None
    if isinstance(operation, Delete | Truncate) and world.due:
        return None  # a commit that is decided holds its topics
    if isinstance(operation, Delete) and operation.name not in world.topics:
        return [world, *forget_groups(world.copy(), operation.name)]  # what was left of it
    if isinstance(operation, FinishTransaction) and operation.name not in world.due:
        return [world]  # the last frame of it was there all the same
    try:
        return operation.stages(world)
    except KeyError:
        return None


def _acknowledged(
    operation: Operation, world: World, note: object, storage: OpenStorage
) -> list[World]:
    """Worlds behind an acknowledgement in this one; none where it could not have been given."""
    if note is False and isinstance(operation, Register | Unregister | Commit):
        return [world] if _is_so(operation, world) else []
    if isinstance(operation, Publish) and isinstance(note, range) and not note:
        return [world] if _was_sent(operation, world) else []
    if isinstance(note, RetentionResult):
        return _retained(operation, world, note)
    stages = _stages(operation, world)
    if isinstance(operation, Truncate):  # one that is asked for again may be decided already
        known = storage.topics[operation.name].revision
        found = [world, *(stages or [])[-1:]]
        return [w for w in found if operation.name in w.topics and _revision(operation, w) == known]
    if stages is None:
        return []
    if isinstance(operation, Delete) and storage._manifest.durability_warning is not None:
        return stages[:2][-1:]  # its groups wait until it is durable
    if isinstance(operation, Register):
        # The registration holds, whatever the growth behind it did.
        count = storage.topics[INTERNAL_TOPIC].partitions
        return [w for w in stages[1:] if w.topics[INTERNAL_TOPIC].partitions == count]
    return stages[-1:]


def _revision(operation: Truncate, world: World) -> int:
    return world.topics[operation.name].revision


def _retained(operation: Operation, world: World, note: RetentionResult) -> list[World]:
    """A pass that failed has removed what it says; the last of it may come back."""
    assert isinstance(operation, Retain)
    if (operation.topic, operation.partition) not in world.logs:
        return []
    found = []
    counts = range(len(note.removed) + 1)
    for count in counts if note.failure is not None else counts[-1:]:
        after = world.copy()
        log = after.logs[operation.topic, operation.partition]
        for base in note.removed[:count]:
            above = (item[0] for item in log.segments if item[0] > base)
            log.drop_below(min(above, default=log.end))
            log.segments = log.segments or [[log.end, 0]]
        found.append(after)
    return found


def _was_sent(operation: Publish, world: World) -> bool:
    """Every record is a duplicate: its producer was not forgotten, since that failed."""
    known = world.producers.get((operation.topic, operation.partition), {})
    return all(
        known.get(record.producer_id.decode(), (0, 0)) >= (record.epoch, record.sequence)
        for record in operation.records
    )


def _is_so(operation: Operation, world: World) -> bool:
    """Nothing had to be written: is it so already?"""
    if isinstance(operation, Unregister):
        return operation.group not in world.groups
    assert isinstance(operation, Register | Commit)
    group = world.groups.get(operation.group)
    if group is None:
        return False
    if isinstance(operation, Register):
        return (group.topic, group.partition_count) == (operation.topic, operation.partition_count)
    held = group.offsets.get(operation.topic, {})
    return all(held.get(partition) == offset for partition, offset in operation.offsets.items())


def _distinct(worlds: Sequence[World]) -> list[World]:
    found: list[World] = []
    for world in worlds:
        if world not in found:
            found.append(world)
    return found


# -- what was shown ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Shown:
    """What could be read before the end; ``lives``: epochs of the topics and groups it is of."""

    lives: dict[str, int]
    logs: dict[tuple[str, int], dict[int, Fact]]
    offsets: dict[tuple[str, str, int], int]

    def taken_back(self, seen: Seen) -> str | None:
        """The first thing that somebody has read and that is not there after a start."""
        for (topic, partition), records in self.logs.items():
            if topic in seen.topics and seen.topics[topic].epoch == self.lives[topic]:
                start, _, found = seen.logs[topic, partition]
                for offset, item in records.items():
                    if offset >= start and found.get(offset) != item:
                        return f"offset {offset} of {topic} {partition} was read, and is gone"
        for (name, topic, partition), offset in self.offsets.items():
            group = seen.groups.get(name)
            if group is not None and group.epoch == self.lives[f"group {name}"]:
                held = group.offsets.get(topic, {}).get(partition, 0)
                if held < offset:
                    return f"offset {offset} of group {name} was read, and is {held}"
        return None


def _shown(runtime: Runtime) -> Shown:
    """Read what consumers can read; a partition that cannot be read shows nothing."""
    storage = runtime.storage
    assert storage is not None
    shown = Shown({name: item.lifecycle_epoch for name, item in storage.topics.items()}, {}, {})
    for key, log in storage.partitions.items():
        if key[0] != INTERNAL_TOPIC:
            with suppress(StoreError, OSError):
                shown.logs[key] = {item.offset: fact(item) for item in log.records(log.log_start)}
    for name, group in storage.groups.items():
        shown.lives[f"group {name}"] = group.epoch
        for topic, held in group.offsets.items():
            shown.offsets.update({(name, topic, p): offset for p, offset in held.items()})
    return shown


class _Examination(Examination):
    """Adds: what was read is there, from the moment ``read`` on."""

    shown: Shown
    read: int = 0

    def _compare(self, state: State, seen: Seen) -> None:
        super()._compare(state, seen)
        told = self.shown.taken_back(seen) if state.last >= self.read else None
        if told is not None:
            self.report.violate("whole", f"{self._where(state)}: {told}")


# -- running -------------------------------------------------------------------------------


@dataclass(slots=True)
class Failed:
    """A workload on a failing disk.

    ``moments``: before it was closed, and behind that. ``inside``: those between the
    fault and the end of the operation that met it.
    """

    recording: Recording
    moments: tuple[int, int]
    inside: range
    tree: Tree
    effects: list[Effect]
    shown: Shown
    broken: list[str]


def run(
    workload: Workload,
    base: tuple[Tree, World],
    fault: Fault | None,
    wrap: Wrap = lambda system: system,
) -> Failed:
    """Run a workload to its end, whatever fails, and close it. ``base``: see ``prepared``."""
    disk = FailingDisk(fault)
    begun = begin(*base, wrap, disk)
    disk.armed, disk.trace = True, begun.system.trace
    expected, broken = Expected([begun.current]), list[str]()
    for operation in workload.operations:
        told, done = _step(begun, operation, expected)
        if told is None and not done and fault is not None and fault.again:
            told, _ = _step(begun, operation, expected)
        if told is not None:
            broken.append(f"{workload.name} with {fault}, in {operation!r:.120}: {told}")
            break
    end = len(begun.system.trace)
    shown = _shown(begun.runtime)
    try:
        begun.runtime.close()
    except RAISED:
        pass
    except Exception as error:
        broken.append(f"{workload.name} with {fault}, closing: {type(error).__name__}: {error}")
    system = begun.system
    name = f"{workload.name} with {fault}"
    recording = Recording(name, system.trace, begun.steps, begun.start, begun.base)
    moments = (end, len(system.trace))
    met = moments[1] if disk.met is None else disk.met
    over = min((s.acknowledged for s in begun.steps if s.acknowledged > met), default=met)
    return Failed(recording, moments, range(met, over), system.tree(), disk.effects, shown, broken)


def _step(begun: Begun, operation: Operation, expected: Expected) -> tuple[str | None, bool]:
    """One operation, and what is expected behind it: in words what cannot be; is it done?"""
    system, storage = begun.system, begun.runtime.storage
    assert storage is not None
    before = expected.outcome
    moment = begun.next(operation)
    raised, told, note = None, None, None
    try:
        note = operation.run(storage)
    except RAISED as error:
        raised = error
        if len(system.trace) > moment:
            expected.raised(operation, storage)
    except Exception as error:
        return f"{type(error).__name__}: {error}", False
    else:
        expected.acknowledged(operation, note, storage)
        if not expected.worlds:
            told = "acknowledged, though it may not be so after a restart"
    system.mark("acknowledged" if raised is None else "raised")
    stages = [stage for world in before for stage in _stages(operation, world) or [world]]
    step = Step(operation, stages, moment, len(system.trace), expected.outcome, expected.refuses)
    begun.steps.append(step)
    unfinished = isinstance(operation, Delete) and note is False
    return told, raised is None and not unfinished


def faults(effects: Sequence[Effect], *, every: int = 1, first: int = 0) -> Iterator[Fault]:
    """Errors at each effect of a workload that ran without one; every so many, from ``first`` on.

    Every kind of error at each place: one that passes, one that lasts, a full disk, and
    in a write three lengths of what arrives before.
    """
    rng = random.Random(len(effects))
    count = 0
    for at, effect in enumerate(effects, 1):
        kinds = [Fault(at), Fault(at, lasting=True), Fault(at, again=True)]
        if effect.kind == "write" and len(effect.data) > 1:
            kinds += [Fault(at, errno.ENOSPC, 0), Fault(at, errno.ENOSPC, 255, lasting=True)]
            kinds += [Fault(at, errno.EIO, rng.randrange(256))]
        elif effect.kind in {"create", "mkdir", "truncate"}:
            kinds += [Fault(at, errno.ENOSPC)]
        for fault in kinds:
            if count % every == first % every:
                yield fault
            count += 1


class FaultExamination:
    """Runs a workload with one fault after the other and holds what is left to the laws.

    ``mixtures``: states of a loss of power that are looked at beside the one in which
    everything is kept and the one in which everything unsynced is lost. ``inside``:
    power is lost inside the operation that met the fault, too.
    """

    def __init__(
        self,
        workload: Workload,
        *,
        wrap: Wrap = lambda system: system,
        mixtures: int = 0,
        inside: bool = False,
    ) -> None:
        self.workload = workload
        self.base = prepared(workload, wrap)
        self.effects = run(workload, self.base, None, wrap).effects
        self.report = Report()
        self.runs = 0
        self._wrap = wrap
        self._mixtures = mixtures
        self._inside = inside
        self._settled: set[bytes] = set()

    def examine(self, fault: Fault) -> None:
        """One run, and the states that it leaves."""
        failed = run(self.workload, self.base, fault, self._wrap)
        self.runs += 1
        for told in failed.broken:
            self.report.violate("acknowledged", told)
        if not failed.broken:
            examination = self._examination(failed.recording, failed.shown)
            examination.read = failed.moments[0]
            examination.examine(self._states(failed))

    def _examination(self, recording: Recording, shown: Shown) -> _Examination:
        examination = _Examination(recording, wrap=self._wrap, real_remedies=0)
        examination.shown = shown
        examination.report, examination._settled = self.report, self._settled
        return examination

    def _states(self, failed: Failed) -> list[State]:
        """Shut down in order; and power lost before that, and behind it."""
        rng = random.Random(failed.moments[0])
        end, closed = failed.moments
        disk, trace = failed.recording.disk(), failed.recording.trace
        found: dict[bytes, State] = {}
        for moment, event in enumerate([*trace, None]):
            if moment in {end, closed} or (self._inside and moment in failed.inside):
                for tree in [*self._lost(disk, rng), *([failed.tree] if event is None else [])]:
                    state = found.setdefault(fingerprint(tree), State(tree, []))
                    if moment not in state.moments:
                        state.moments.append(moment)
            if event is not None:
                disk.take(event)
        return list(found.values())

    def _lost(self, disk: Disk, rng: random.Random) -> list[Tree]:
        return list(islice(disk.states(rng, tears=1, mixtures=1), 2 + self._mixtures))

    # -- starts ------------------------------------------------------------------------

    def examine_starts(self, seed: int, count: int, every: int = 1) -> None:
        """Crash at ``count`` moments, and let every so-manieth effect of the starts fail."""
        rng = random.Random(seed)
        recording = record(self.workload, self._wrap)
        states = crash_states(recording.trace, seed=seed, disk=recording.disk())
        for state in rng.sample(states, min(count, len(states))):
            effects = self._start(recording, state, None)
            for at in range(1 + rng.randrange(every), len(effects) + 1, every):
                for lasting in (False, True):
                    self._start(recording, state, Fault(at, lasting=lasting))

    def _start(self, recording: Recording, state: State, fault: Fault | None) -> list[Effect]:
        """A start on a failing disk, and another one, on what is there or a crash leaves."""
        disk = FailingDisk(fault)
        disk.armed = True
        system = MemoryFileSystem(state.tree, disk, clock=NOON + 3600 * 10**9)
        examination = self._examination(recording, Shown({}, {}, {}))
        where = f"{examination._where(state)}, a start with {fault}"
        try:
            runtime = Runtime.start(
                ROOT, SETTINGS, machine(system, self._wrap(system)), background=False
            )
        except Exception as error:
            self.report.violate("starts", f"{where}: {type(error).__name__}: {error}")
            return disk.effects
        shown = _shown(runtime) if runtime.storage is not None else Shown({}, {}, {})
        with suppress(*RAISED):
            runtime.close()
        if fault is not None:
            self.runs += 1
            after = Disk(MemoryFileSystem(state.tree).root)
            for event in system.trace:
                after.take(event)
            trees = [system.tree(), *self._lost(after, random.Random(fault.at))]
            examination.shown = shown
            examination.inside({item.kind for item in runtime.plan.actions})
            found = {fingerprint(tree): State(tree, state.moments) for tree in trees}
            examination.examine(found.values())
        return disk.effects
