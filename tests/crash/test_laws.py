"""Crash states of every workload against the laws: a sample here, all of them in ``make crash``."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from crash.dice import mixed
from crash.harness import Examination, Report
from crash.model import State, crash_states
from crash.recording import Recording, record
from crash.workloads import WORKLOADS

#: States of one workload that are examined here, at least; growth is slow, others are small.
QUOTAS = (
    dict.fromkeys(WORKLOADS, 320)
    | dict.fromkeys(
        ("growth", "checkpoints", "queued", "compacted-retention", "silent-producers"), 160
    )
    | {"decided-and-deleted": 120}
    | {"journal-threshold": 30, "expiry": 60}
)
#: Random workloads, and states of each.
SEEDS, MIXED_QUOTA = range(4), 100


def sample(recording: Recording, states: Sequence[State], quota: int, seed: int) -> list[State]:
    """Every moment of the trace is covered by a state; the rest is drawn."""
    rng = random.Random(seed)
    chosen: dict[int, State] = {}
    covered: set[int] = set()
    for state in states:
        if not covered.issuperset(range(state.first, state.last + 1)):
            chosen[id(state)] = state
            covered.update(range(state.first, state.last + 1))
    assert covered == set(range(len(recording.trace) + 1)), "a prefix without a state"
    for state in rng.sample(states, len(states)):
        if len(chosen) >= quota:
            break
        chosen[id(state)] = state
    return list(chosen.values())


def examined(recording: Recording, quota: int, seed: int = 0, nested: int = 2) -> Report:
    states = crash_states(recording.trace, seed=seed, disk=recording.disk())
    examination = Examination(recording, nested=nested)
    return examination.examine(sample(recording, states, quota, seed))


@pytest.mark.parametrize("name", WORKLOADS)
def test_no_state_of_a_workload_breaks_a_law(name: str) -> None:
    report = examined(record(WORKLOADS[name]()), QUOTAS[name])
    assert not report.violations, "\n".join(report.violations)
    assert report.states - report.nested >= QUOTAS[name]
    assert report.verdicts["starts_clean"], "no crash at all would start: the laws prove nothing"


@pytest.mark.parametrize("seed", SEEDS)
def test_no_state_of_a_random_workload_breaks_a_law(seed: int) -> None:
    report = examined(record(mixed(seed)), MIXED_QUOTA, seed)
    assert not report.violations, "\n".join(report.violations)
    assert report.states - report.nested >= MIXED_QUOTA


@pytest.mark.parametrize("name", ["produce", "topics", "truncation", "transactions"])
def test_a_start_after_a_kill_builds_on_nothing_that_power_loss_could_take(name: str) -> None:
    recording = record(WORKLOADS[name]())
    moments = random.Random(name).sample(range(1, len(recording.trace)), 6)
    report = Examination(recording).killed(sorted(moments))
    assert not report.violations, "\n".join(report.violations)
    assert report.states > 20


def test_the_samples_are_three_thousand_states_together() -> None:
    assert sum(QUOTAS.values()) + len(SEEDS) * MIXED_QUOTA >= 3000


def test_workloads_do_what_their_names_say() -> None:
    """A workload in which nothing rolls, compacts or expires would prove nothing."""
    rolled = record(WORKLOADS["produce"]()).steps[-1].stages[-1].logs["orders", 0]
    assert len(rolled.segments) > 3
    compacted = [note for note in record(WORKLOADS["compaction"]()).notes if note is not None]
    assert sum(getattr(note, "segments_rewritten", 0) for note in compacted) > 2
    inside = record(WORKLOADS["internal-compaction"]()).notes
    assert any(getattr(note, "segments_rewritten", 0) for note in inside)
    removed = [getattr(note, "removed", ()) for note in record(WORKLOADS["retention"]()).notes]
    assert sum(map(len, removed)) > 4
    grown = record(WORKLOADS["growth"]()).steps[-1].stages[-1]
    assert grown.topics["__consumer_offsets"].partitions == 5
    threshold = record(WORKLOADS["journal-threshold"]())
    assert any(event.kind == "rename" for event in threshold.trace)


def test_compaction_leaves_what_it_may_and_retention_no_more() -> None:
    world = record(WORKLOADS["compaction"]()).steps[-1].stages[-1]
    log = world.logs["prices", 0]
    assert log.optional, "nothing was superseded"
    assert log.records.keys() - log.optional, "everything was"
