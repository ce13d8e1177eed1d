"""Errors of the disk in every workload: a part of them here, all in ``make crash FAULTS=8``."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from crash.fault_mutants import FAULT_MUTANTS
from crash.faults import FaultExamination, faults
from crash.harness import Examination, Report
from crash.model import crash_states
from crash.mutants import Mutant
from crash.recording import record
from crash.workloads import WORKLOADS

#: One fault of so many is tried here; another number in each workload to begin with.
STRIDE = 24


@pytest.mark.parametrize("name", WORKLOADS)
def test_no_error_of_the_disk_breaks_a_law(name: str) -> None:
    examination = FaultExamination(WORKLOADS[name]())
    first = list(WORKLOADS).index(name)
    for fault in faults(examination.effects, every=STRIDE, first=first):
        examination.examine(fault)
    examination.examine_starts(first, count=1, every=6)
    report = examination.report
    assert not report.violations, "\n".join(report.violations)
    assert report.states > examination.runs > len(examination.effects) // STRIDE


def test_every_effect_fails_in_every_way() -> None:
    """One that passes and one that lasts at each; what is written in part, too."""
    effects = FaultExamination(WORKLOADS["produce"]()).effects
    told = list(faults(effects))
    assert {fault.at for fault in told} == set(range(1, len(effects) + 1))
    assert Counter(fault.at for fault in told if fault.lasting and fault.part is None) == Counter(
        range(1, len(effects) + 1)
    )
    kinds = {effects[fault.at - 1].kind for fault in told if fault.part is not None}
    assert kinds == {"write"}
    share = [list(faults(effects, every=STRIDE, first=first)) for first in range(STRIDE)]
    assert sorted(map(str, told)) == sorted(str(fault) for part in share for fault in part)


def caught(mutant: Mutant) -> Report:
    """Faults until one breaks a law: those that pass first, fsyncs among them, in random order."""
    with mutant.patched():
        examination = FaultExamination(WORKLOADS[mutant.workload](), wrap=mutant.wrap, inside=True)
        found = list(faults(examination.effects))
        random.Random(3).shuffle(found)
        found.sort(
            key=lambda f: (f.lasting, f.again, examination.effects[f.at - 1].kind != "fsync")
        )
        for fault in found:
            examination.examine(fault)
            if examination.report.laws:
                break
        return examination.report


@pytest.mark.parametrize("name", FAULT_MUTANTS)
def test_a_broken_engine_is_caught_by_the_law_that_it_breaks(name: str) -> None:
    mutant = FAULT_MUTANTS[name]
    report = caught(mutant)
    assert report.laws, f"nobody noticed that {mutant.broken}"
    assert set(report.laws) <= mutant.law | {"goes on"}, report.violations


@pytest.mark.parametrize("name", FAULT_MUTANTS)
def test_no_crash_without_an_error_tells_these_engines_from_a_whole_one(name: str) -> None:
    mutant = FAULT_MUTANTS[name]
    with mutant.patched():
        recording = record(WORKLOADS[mutant.workload](), mutant.wrap)
        states = crash_states(recording.trace, seed=3, disk=recording.disk())
        random.Random(3).shuffle(states)
        examination = Examination(recording, wrap=mutant.wrap, real_remedies=0)
        assert not examination.examine(states[:25]).violations


def test_the_page_lists_every_one_of_them_and_its_law() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "durability.md").read_text("utf-8")
    mutants = FAULT_MUTANTS.values()
    rows = [f"| {mutant.broken} | {', '.join(sorted(mutant.law))} |" for mutant in mutants]
    assert "| Broken engine | Caught by |\n|---|---|\n" + "\n".join(rows) in page
