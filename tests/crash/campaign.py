"""``make crash``: workloads, named and random, until enough distinct states were examined.

    python -m crash.campaign --states 100000 --jobs 2

Each task records one workload, enumerates its crash states and holds them to the
laws (``harness.py``); a start that repairs something is crashed into as well.
States are counted once by their content, over all tasks. The exit status is 0
when no law was violated.

    python -m crash.campaign --faults 8 --jobs 2

makes the disk fail instead (``faults.py``): at every operation of the named
workloads and of so many random ones, in every way, and in starts after crashes.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections.abc import Iterator
from itertools import islice

from crash.dice import mixed
from crash.faults import FaultExamination, faults
from crash.harness import Examination, Report
from crash.model import State, crash_states, fingerprint
from crash.recording import Workload, record
from crash.workloads import WORKLOADS

#: Starts of one task that are crashed into themselves.
NESTED = 40
#: Starts of one workload that meet failing disks.
FAULTY_STARTS = 6
Task = tuple[str, int]


def tasks() -> Iterator[Task]:
    """The named workloads first, then random ones for ever."""
    for name in WORKLOADS:
        yield name, 0
    seed = 0
    while True:
        yield "mixed", seed
        seed += 1


def workload(task: Task) -> Workload:
    name, seed = task
    return mixed(seed) if name == "mixed" else WORKLOADS[name]()


class _Counting(Examination):
    """Notes the content of every state that was examined."""

    def __init__(self, task: Task) -> None:
        recording = record(workload(task))
        super().__init__(recording, nested=NESTED)
        self.seen: set[bytes] = set()
        states = crash_states(
            recording.trace, seed=task[1], disk=recording.disk(), tears=4, mixtures=6
        )
        self.examine(states)

    def _examine(self, state: State, *, nested: bool) -> None:
        key = fingerprint(state.tree)
        if key not in self.seen:
            self.seen.add(key)
            super()._examine(state, nested=nested)


def run(task: Task) -> tuple[Task, Report, set[bytes]]:
    """One task, in a process of its own."""
    try:
        examination = _Counting(task)
    except Exception as error:  # the workload itself failed: that is a finding too
        report = Report()
        report.violate("workload", f"{task}: {type(error).__name__}: {error}")
        return task, report, set()
    return task, examination.report, examination.seen


def run_faults(task: Task) -> tuple[Task, Report, int]:
    """One workload on failing disks, in a process of its own."""
    try:
        examination = FaultExamination(workload(task), mixtures=2, inside=True)
        for fault in faults(examination.effects):
            examination.examine(fault)
        examination.examine_starts(task[1], FAULTY_STARTS)
    except Exception as error:  # the workload itself failed: that is a finding too
        report = Report()
        report.violate("workload", f"{task}: {type(error).__name__}: {error}")
        return task, report, 0
    return task, examination.report, examination.runs


def fail(count: int, jobs: int) -> Report:
    """The named workloads and ``count`` random ones on failing disks."""
    total, runs, begun = Report(), 0, time.monotonic()
    coming = islice(tasks(), len(WORKLOADS) + count)
    with multiprocessing.Pool(jobs) as pool:
        for task, report, errors in pool.imap_unordered(run_faults, coming):
            total.add(report)
            runs += errors
            _tell(task, report, f"{errors:>6} errors", sum(total.laws.values()))
    print()
    print(f"{runs} errors, {total.states} states, {time.monotonic() - begun:.0f} s")
    return total


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make crash")
    parser.add_argument("--states", type=int, default=100_000)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--faults", type=int, metavar="N", help="failing disks; N random workloads")
    given = parser.parse_args(argv)
    if given.faults is not None:
        total = fail(given.faults, given.jobs)
    else:
        total = crash(given.states, given.jobs)
    print("verdicts: " + ", ".join(f"{k} {v}" for k, v in sorted(total.verdicts.items())))
    print("refusals: " + ", ".join(f"{k} {v}" for k, v in sorted(total.refusals.items())))
    print(f"remedies carried out: {total.remedies}")
    print(f"violations: {sum(total.laws.values())} {dict(total.laws)}")
    return 1 if total.laws else 0


def crash(states: int, jobs: int) -> Report:
    """Workloads until so many distinct states were examined."""
    total, seen, begun, number = Report(), set[bytes](), time.monotonic(), 0
    coming = tasks()
    with multiprocessing.Pool(jobs) as pool:
        running = [pool.apply_async(run, (next(coming),)) for _ in range(jobs)]
        while running:
            running[0].wait(0.05)
            for done in [item for item in running if item.ready()]:
                running.remove(done)
                task, report, keys = done.get()
                seen |= keys
                total.add(report)
                number += 1
                if len(seen) < states or number < len(WORKLOADS):
                    running.append(pool.apply_async(run, (next(coming),)))
                _tell(task, report, f"{len(seen):>9} distinct", sum(total.laws.values()))
    print()
    print(f"{len(seen)} distinct states of {number} workloads, {time.monotonic() - begun:.0f} s")
    print(f"{total.nested} of the examined ones are crashes inside a start")
    return total


def _tell(task: Task, report: Report, counted: str, violations: int) -> None:
    text = f"{task[0]} {task[1]}: {report.states} states"
    print(f"{text:<40}{counted}, {violations} violations", flush=True)
    for line in report.violations:
        print(f"    {line}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
