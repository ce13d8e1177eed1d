"""Every disk state of a recorded workload, held to the laws.

1. *acknowledged*: what was acknowledged before the crash is there after a start.
2. *whole*: what was not acknowledged is there as one of its stages, or not at all.
3. *starts*: a start succeeds, or refuses with a code that the operation under
   way may cause (decision 34), leaves every byte as it was, and after the
   documented remedy it starts and the first two laws hold.
4. *foreseen*: the inspector's verdict before the start is what the start did,
   and every file that changed is named by an action or is a derived one.
5. *settled*: a second start finds nothing to do and changes nothing.
6. *goes on*: what started takes operations of every kind, and after a clean
   shutdown all of them are there, beside everything that was recovered.

Laws 1 and 2 are one comparison: the recovered world must be one of the stages of
the operation that was under way, for every moment at which a crash leaves this
state. Law 6 is tried on a part of the states.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterable
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass, field
from io import BytesIO, TextIOWrapper
from pathlib import Path

from crash.evidence import MemoryEvidence
from crash.going_on import go_on
from crash.memory import ROOT, Event, Leaf, MemoryFileSystem, Tree, replayed
from crash.model import Disk, State, crash_states, fingerprint
from crash.operations import INTERNAL_TAIL, NO_MANIFEST, OUT_OF_RANGE, UNDECLARED
from crash.recording import NOON, SETTINGS, Recording, Wrap, machine
from crash.world import Fact, Group, Seen, Topic, difference, fact
from cursus import layout
from cursus.broker.runtime import Runtime
from cursus.cli import storage as storage_cli
from cursus.layout import INTERNAL_TOPIC, FileClass, FileKind
from cursus.replay.startup import Plan, plan
from cursus.storage.errors import StoreError

#: One state in so many has to go on (law 6).
CONTINUED = 5
#: One state in so many is judged by an inspector of its own beside the start's judgement.
INSPECTED = 4

# -- observing -------------------------------------------------------------------------------


def observe(runtime: Runtime, names: Iterable[str]) -> Seen:
    """Read everything back through the engine that has started.

    ``names``: groups whose last lifecycle epoch is asked for.
    """
    storage = runtime.storage
    assert storage is not None
    logs: dict[tuple[str, int], tuple[int, int, dict[int, Fact]]] = {}
    producers: dict[tuple[str, int], dict[str, tuple[int, int]]] = {}
    versions: dict[tuple[str, int], dict[bytes, int]] = {}
    snapshots: dict[tuple[str, int], dict[bytes, tuple[int, bytes]]] = {}
    for key, log in storage.partitions.items():
        if key[0] == INTERNAL_TOPIC:
            continue
        found = {item.offset: fact(item) for item in log.records(log.log_start)}
        logs[key] = (log.log_start, log.leo, found)
        states = storage.producers[key].state
        producers[key] = {name: (item.epoch, item.sequence) for name, item in states.items()}
        if storage.topics[key[0]].event_sourcing:
            aggregates = storage.aggregates(*key)
            keys = {item[0] for item in found.values() if item[7]}
            versions[key] = {name: aggregates.version(name) for name in keys}
            saved = {name: aggregates.snapshot(name) for name in keys}
            snapshots[key] = {name: item for name, item in saved.items() if item is not None}
    return Seen(
        topics={
            name: Topic(
                item.partitions,
                item.revision,
                item.lifecycle_epoch,
                item.idempotent,
                item.event_sourcing,
                item.policy.cleanup_policy,
            )
            for name, item in storage.topics.items()
        },
        logs=logs,
        groups={
            name: Group(
                item.topic,
                item.partition_count,
                item.epoch,
                {topic: dict(offsets) for topic, offsets in item.offsets.items()},
                dict(item.revisions),
            )
            for name, item in storage.groups.items()
        },
        epochs={name: epoch for name in names if (epoch := storage.group_epoch(name))},
        transactions={
            name: (item.state, item.epoch) for name, item in storage.transactions.items()
        },
        producers=producers,
        versions=versions,
        snapshots=snapshots,
    )


# -- laws ------------------------------------------------------------------------------------


@dataclass(slots=True)
class Report:
    """What an examination found."""

    states: int = 0
    nested: int = 0
    refusals: Counter[str] = field(default_factory=Counter)
    verdicts: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    laws: Counter[str] = field(default_factory=Counter)
    remedies: int = 0

    def violate(self, law: str, text: str) -> None:
        self.laws[law] += 1
        if len(self.violations) < 20:
            self.violations.append(f"{law}: {text}")

    def add(self, other: Report) -> None:
        self.states += other.states
        self.nested += other.nested
        self.refusals += other.refusals
        self.verdicts += other.verdicts
        self.violations += other.violations
        self.laws += other.laws
        self.remedies += other.remedies


class Examination:
    """Holds states of one recording to the laws.

    ``wrap`` is how a broken engine is made for the starts too. ``nested``: how
    many starts that changed something are crashed into themselves.
    """

    def __init__(
        self,
        recording: Recording,
        *,
        wrap: Wrap = lambda system: system,
        nested: int = 0,
        real_remedies: int = 3,
        stop_at: int | None = None,
    ) -> None:
        self.recording = recording
        self.report = Report()
        self._wrap = wrap
        self._nested = nested
        self._real_remedies = real_remedies
        self._stop_at = stop_at
        self._also_refuses = frozenset[str]()
        self._settled: set[bytes] = set()

    def examine(self, states: Iterable[State]) -> Report:
        for state in states:
            self._examine(state, nested=False)
            if self._stop_at is not None and len(self.report.violations) >= self._stop_at:
                break
        return self.report

    def _examine(self, state: State, *, nested: bool) -> None:
        report = self.report
        if nested:
            report.nested += 1
        report.states += 1
        try:
            self._judge(state, nested)
        except Exception as error:  # whatever an engine raises here is a violation
            report.violate("starts", f"{self._where(state)}: {type(error).__name__}: {error}")

    def _judge(self, state: State, nested: bool) -> None:
        report = self.report
        system = MemoryFileSystem(state.tree, clock=NOON + 3600 * 10**9)
        base = system.tree()
        with Runtime.start(
            ROOT, SETTINGS, machine(system, self._wrap(system)), background=False
        ) as runtime:
            verdict = runtime.plan
            report.verdicts[verdict.verdict] += 1
            if report.states % INSPECTED == 0:
                self._inspect(state, base, verdict, machine(system).moment())
            if runtime.diagnostics is not None:
                self._refused(state, runtime, base, system.tree())
                return
            if verdict.verdict in {"refuses", "undetermined"}:
                report.violate(
                    "foreseen", f"{self._where(state)}: {verdict.verdict}, yet it started"
                )
            after, trace = system.tree(), list(system.trace)
            seen = observe(runtime, self.recording.groups)
            self._compare(state, seen)
            self._explain(state, verdict, base, after)
        self._again(state, after)
        if report.states % CONTINUED == 0:
            self._go_on(state, after, seen)
        if self._nested and not nested and verdict.actions:
            self._nested -= 1
            self._inside(state, trace, {item.kind for item in verdict.actions})

    def _inspect(self, state: State, tree: Tree, started: Plan, moment: int) -> None:
        """The inspector judges by the same function, but by itself: it must say the same."""
        verdict = plan(MemoryEvidence(tree), SETTINGS.startup, moment)
        if (verdict.verdict, verdict.actions, verdict.findings) != (
            started.verdict,
            started.actions,
            started.findings,
        ):
            self.report.violate("foreseen", f"{self._where(state)}: two judgements of one tree")

    def _phases(self, state: State) -> list[int]:
        """One moment of each phase (inside an operation, or behind it) that leaves this state."""
        phases = {self.recording.phase(moment): moment for moment in state.moments}
        return list(phases.values())

    def _compare(self, state: State, seen: Seen) -> None:
        for moment in self._phases(state):
            worlds, _ = self.recording.allowed(moment)
            told = [difference(world.started(), seen) for world in worlds]
            if all(text is not None for text in told):
                law = "acknowledged" if len(worlds) == 1 else "whole"
                self.report.violate(law, f"{self._where(state)}: {told[-1]}; before it: {told[0]}")
                return

    def _explain(self, state: State, verdict: Plan, before: Tree, after: Tree) -> None:
        changed = {path for path in {*before, *after} if before.get(path) != after.get(path)}
        if (
            verdict.verdict == "starts_clean"
            and not verdict.actions
            and changed - _derived(changed)
        ):
            names = sorted(changed - _derived(changed))
            self.report.violate("foreseen", f"{self._where(state)}: clean, yet changed {names}")
            return
        loose = changed - _derived(changed) - _named(verdict, changed)
        if loose:
            self.report.violate("foreseen", f"{self._where(state)}: changed {sorted(loose)}")

    def _again(self, state: State, tree: Tree) -> None:
        key = fingerprint(tree)
        if key in self._settled:
            return  # most starts end in a tree that an earlier one ended in
        self._settled.add(key)
        system = MemoryFileSystem(tree, clock=NOON + 3600 * 10**9)
        with Runtime.start(
            ROOT, SETTINGS, machine(system, self._wrap(system)), background=False
        ) as runtime:
            found, actions = runtime.plan.verdict, [item.kind for item in runtime.plan.actions]
            if runtime.diagnostics is not None:
                text = f"the second start refuses: {runtime.diagnostics.code}"
                self.report.violate("settled", f"{self._where(state)}: {text}")
            elif found == "starts_with_repairs" or actions:
                text = f"the second start finds {found} {actions}"
                self.report.violate("settled", f"{self._where(state)}: {text}")
            elif system.tree() != tree:
                self.report.violate("settled", f"{self._where(state)}: the second start wrote")

    def _go_on(self, state: State, tree: Tree, before: Seen) -> None:
        """Law 6. Begins where the start ended, since a shutdown would tidy up."""
        system = MemoryFileSystem(tree, clock=NOON + 3600 * 10**9)
        files = machine(system, self._wrap(system))
        gone = sorted(self.recording.groups - before.groups.keys())
        try:
            with Runtime.start(ROOT, SETTINGS, files, background=False) as runtime:
                assert runtime.storage is not None, runtime.diagnostics
                promised = go_on(runtime.storage, before, gone)
            with Runtime.start(ROOT, SETTINGS, files, background=False) as runtime:
                assert runtime.storage is not None, runtime.diagnostics
                assert runtime.plan.verdict == "starts_clean", runtime.plan.first_cause
                # A segment compacted twice keeps its older marker until the next opening.
                left = [item for item in runtime.plan.actions if item.kind != "remove_stale_marker"]
                assert not left, left
                told = promised.broken_in(runtime.storage, before)
        except Exception as error:  # whatever an engine raises here is a violation
            told = f"{type(error).__name__}: {error}"
        if told is not None:
            self.report.violate("goes on", f"{self._where(state)}: {told}")

    def inside(self, actions: set[str]) -> None:
        """What is examined next was left by a start with these actions that did not end."""
        self._also_refuses = frozenset[str]()
        if "create_internal_topic" in actions:
            self._also_refuses |= {NO_MANIFEST, UNDECLARED}
        if actions & {"finish_transaction", "resume_truncation"}:
            self._also_refuses |= {INTERNAL_TAIL}  # a start that writes to groups

    def _inside(
        self, state: State, trace: list[Event], actions: set[str], disk: Disk | None = None
    ) -> None:
        """Crash inside this start: its states answer to the same promises."""
        self.inside(actions)
        if disk is None:
            disk = Disk(MemoryFileSystem(state.tree).root)
        states = crash_states(trace, seed=7, disk=disk, tears=1, mixtures=1)
        seen = {fingerprint(state.tree)}
        for inner in states:
            if fingerprint(inner.tree) not in seen:
                self._examine(State(inner.tree, state.moments), nested=True)
        self._also_refuses = frozenset()

    def killed(self, moments: Iterable[int]) -> Report:
        """Kill the process after so many events, start, and lose power inside or behind the start.

        The start reads what the kernel still holds and no disk does: what it builds
        upon must not be able to go away any more.
        """
        recording = self.recording
        for moment in moments:
            trace = recording.trace[:moment]
            system = replayed(recording.base, trace, clock=NOON + 3600 * 10**9)
            runtime = Runtime.start(
                ROOT, SETTINGS, machine(system, self._wrap(system)), background=False
            )
            disk = recording.disk()
            for event in trace:
                disk.take(event)
            actions = {item.kind for item in runtime.plan.actions}
            self._inside(State({}, [moment]), system.trace, actions, disk)
            with suppress(StoreError, OSError):
                runtime.close()
        return self.report

    # -- refusals ----------------------------------------------------------------------

    def _refused(self, state: State, runtime: Runtime, before: Tree, after: Tree) -> None:
        assert runtime.diagnostics is not None
        code, path = runtime.diagnostics.code, runtime.diagnostics.path
        self.report.refusals[code] += 1
        if before != after:
            self.report.violate("starts", f"{self._where(state)}: {code}, and the tree changed")
        for moment in self._phases(state):
            if code not in self.recording.allowed(moment)[1] | self._also_refuses:
                text = (
                    f"{self._where(state)}: refuses {code} at {path}: {runtime.diagnostics.reason}"
                )
                self.report.violate("starts", text)
                return
        self._remedy(state, code, path)

    def _remedy(self, state: State, code: str, path: str) -> None:
        """Do what the catalogue says for this code, and start again."""
        self.report.remedies += 1
        if code == INTERNAL_TAIL:
            tree: Tree = {}  # clean bootstrap: the complete unit goes
        elif code == OUT_OF_RANGE:
            tree = _without_undeclared_partitions(state.tree)
        else:
            topic = path if code == UNDECLARED else INTERNAL_TOPIC
            tree = {p: leaf for p, leaf in state.tree.items() if p.split("/")[0] != topic}
            if self._real_remedies:
                self._real_remedies -= 1
                moved = fingerprint(_archived(state.tree, topic))
                assert moved == fingerprint(tree), "the archive moved something else"
        system = MemoryFileSystem(tree, clock=NOON + 3600 * 10**9)
        with Runtime.start(
            ROOT, SETTINGS, machine(system, self._wrap(system)), background=False
        ) as runtime:
            if runtime.diagnostics is not None:
                second = runtime.diagnostics
                if code in {UNDECLARED, OUT_OF_RANGE} and second.code in {UNDECLARED, OUT_OF_RANGE}:
                    self._remedy(State(tree, state.moments), second.code, second.path)
                    return
                text = f"after the remedy of {code} it refuses {second.code}: {second.reason}"
                self.report.violate("starts", f"{self._where(state)}: {text}")
            elif code != INTERNAL_TAIL:
                self._compare(state, observe(runtime, self.recording.groups))

    def _where(self, state: State) -> str:
        name = "the start"
        for step in self.recording.steps:
            if step.begun <= state.first:
                name = repr(step.operation)[:120]
        return f"{self.recording.name}, moments {state.first} to {state.last}, in {name}"


def _derived(changed: set[str]) -> set[str]:
    """Files that opening may bring in order without a word: indexes, and an empty journal."""
    found = set()
    for path in changed:
        kind = layout.classify(tuple(path.split("/")), directory=False).kind
        if kind in {FileKind.SEGMENT_INDEX, FileKind.JOURNAL}:
            found.add(path)
    return found


def _named(verdict: Plan, changed: set[str]) -> set[str]:
    """Files that the actions of a plan speak of."""
    named: set[str] = set()
    for action in verdict.actions:
        named |= {action.path, layout.temporary(action.path)}
        if action.kind in {"rebuild_aggregate_index", "cut_aggregate_snapshots"}:
            # Opening aggregates builds their index anew, both files of it.
            folder = action.path.rpartition("/")[0]
            named |= {path for path in changed if path.startswith(f"{folder}/")}
        topics: set[str] = set()
        if action.kind in {"resume_truncation", "create_internal_topic"}:
            topics = {action.path.split("/")[0]}
        if action.kind in {"resume_truncation", "finish_transaction"}:
            topics.add(INTERNAL_TOPIC)
        if action.kind == "finish_transaction":
            topics |= {topic for topic, _ in verdict.partitions}
        if action.kind == "create_internal_topic":
            named |= {layout.MANIFEST, layout.MANIFEST_TEMP}
        named |= {path for path in changed if path.split("/")[0] in topics}
    return named


def _without_undeclared_partitions(tree: Tree) -> Tree:
    """Remove the empty files of partitions that nobody declares; they have to be empty."""
    manifest = plan(MemoryEvidence(tree)).manifest
    kept: dict[str, Leaf | None] = {}
    for path, leaf in tree.items():
        name = layout.classify(tuple(path.split("/")), directory=leaf is None)
        definition = manifest.by_name.get(name.topic or "")
        count = definition.partitions if definition is not None else None
        if count is not None and name.partition is not None and name.partition >= count:
            if name.kind is FileKind.SEGMENT_LOG:
                assert leaf is not None
                assert not leaf.data, "a growth that was cut off leaves empty logs"
            continue
        kept[path] = leaf
    return kept


def _archived(tree: Tree, topic: str) -> Tree:
    """What ``cursus-storage orphan archive`` leaves of a real directory with this tree."""
    with tempfile.TemporaryDirectory(prefix="cursus-crash-") as folder:
        log_dir = Path(folder, "log_dir")
        log_dir.mkdir()
        write_tree(tree, log_dir)
        words = ["orphan", "archive", "--log-dir", str(log_dir), "--topic", topic]
        with redirect_stdout(TextIOWrapper(BytesIO())):
            code = storage_cli.main([*words, "--archive-dir", str(Path(folder, "archive"))])
        assert code == 0, f"the archive of {topic} failed"
        return read_tree(log_dir)


def write_tree(tree: Tree, log_dir: Path) -> None:
    """Put a tree on a real disk."""
    for path in sorted(tree):
        leaf = tree[path]
        if leaf is None:
            (log_dir / path).mkdir()
        else:
            (log_dir / path).write_bytes(leaf.data)
            (log_dir / path).chmod(leaf.mode)


def read_tree(log_dir: Path, *, locks: bool = False) -> dict[str, Leaf | None]:
    """A real tree, its lock files left out unless asked for."""
    found: dict[str, Leaf | None] = {}
    for path in log_dir.rglob("*"):
        name = str(path.relative_to(log_dir))
        kind = layout.classify(tuple(name.split("/")), directory=path.is_dir()).kind
        if not locks and layout.file_class(kind) is FileClass.LOCK:
            continue
        found[name] = (
            None if path.is_dir() else Leaf(path.read_bytes(), path.stat().st_mode & 0o777)
        )
    return found
