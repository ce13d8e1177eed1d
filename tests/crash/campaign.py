"""``make crash``: workloads, named and random, until enough distinct states were examined.

    python -m crash.campaign --states 100000 --jobs 2

Each task records one workload, enumerates its crash states and holds them to the
laws (``harness.py``); a start that repairs something is crashed into as well.
States are counted once by their content, over all tasks. The exit status is 0
when no law was violated.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections.abc import Iterator

from crash.dice import mixed
from crash.harness import Examination, Report
from crash.model import State, crash_states, fingerprint
from crash.recording import Workload, record
from crash.workloads import WORKLOADS

#: Starts of one task that are crashed into themselves.
NESTED = 40
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


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make crash")
    parser.add_argument("--states", type=int, default=100_000)
    parser.add_argument("--jobs", type=int, default=2)
    given = parser.parse_args(argv)
    total, seen, begun, number = Report(), set[bytes](), time.monotonic(), 0
    coming = tasks()
    with multiprocessing.Pool(given.jobs) as pool:
        running = [pool.apply_async(run, (next(coming),)) for _ in range(given.jobs)]
        while running:
            running[0].wait(0.05)
            for done in [item for item in running if item.ready()]:
                running.remove(done)
                task, report, keys = done.get()
                seen |= keys
                total.add(report)
                number += 1
                if len(seen) < given.states or number < len(WORKLOADS):
                    running.append(pool.apply_async(run, (next(coming),)))
                _tell(task, report, len(seen), sum(total.laws.values()))
    print()
    print(f"{len(seen)} distinct states of {number} workloads, {time.monotonic() - begun:.0f} s")
    print(f"{total.nested} of the examined ones are crashes inside a start")
    print("verdicts: " + ", ".join(f"{k} {v}" for k, v in sorted(total.verdicts.items())))
    print("refusals: " + ", ".join(f"{k} {v}" for k, v in sorted(total.refusals.items())))
    print(f"remedies carried out: {total.remedies}")
    print(f"violations: {sum(total.laws.values())} {dict(total.laws)}")
    return 1 if total.laws else 0


def _tell(task: Task, report: Report, distinct: int, violations: int) -> None:
    text = f"{task[0]} {task[1]}: {report.states} states"
    print(f"{text:<40}{distinct:>9} distinct, {violations} violations", flush=True)
    for line in report.violations:
        print(f"    {line}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
