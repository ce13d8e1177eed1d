"""The harness against engines that are broken on purpose: every one has to be caught."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from crash.harness import Examination, Report
from crash.model import crash_states
from crash.mutants import MUTANTS, Mutant
from crash.recording import record
from crash.workloads import WORKLOADS


def caught(mutant: Mutant) -> Report:
    """Examine states in random order until one breaks a law."""
    with mutant.patched():
        recording = record(WORKLOADS[mutant.workload](), mutant.wrap)
        examination = Examination(recording, wrap=mutant.wrap, real_remedies=0, stop_at=1)
        if mutant.killed:
            for moment in range(len(recording.trace), 0, -1):
                if examination.killed([moment]).laws:
                    break
            return examination.report
        states = crash_states(recording.trace, seed=3, disk=recording.disk())
        random.Random(3).shuffle(states)
        return examination.examine(states)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_broken_engine_is_caught_by_the_law_that_it_breaks(name: str) -> None:
    mutant = MUTANTS[name]
    report = caught(mutant)
    assert report.laws, f"nobody noticed that {mutant.broken}"
    assert set(report.laws) <= mutant.law | {"goes on"}, report.violations


def test_there_are_more_than_twelve_of_them_and_each_breaks_something_else() -> None:
    assert len({mutant.broken for mutant in MUTANTS.values()}) == len(MUTANTS) >= 12


def test_the_page_lists_every_broken_engine_and_its_law() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "durability.md").read_text("utf-8")
    rows = [f"| {mutant.broken} | {', '.join(sorted(mutant.law))} |" for mutant in MUTANTS.values()]
    assert "| Broken engine | Caught by |\n|---|---|\n" + "\n".join(rows) in page
