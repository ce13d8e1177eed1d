"""What every benchmark is, and how results are shown and compared.

A benchmark is a function that takes a :class:`Scale` and gives named figures.
Figures that matter are ratios inside one run; a :class:`Goal` says what one should
be. A group is a module of this package with a ``benchmarks()`` function that gives
a list of :class:`Benchmark`; ``__main__`` names the groups.
"""

from __future__ import annotations

import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Figures = dict[str, float]


@dataclass(frozen=True)
class Scale:
    """How much is measured. ``quick``: little data, so that a test can run it in seconds.

    ``runs``: how often each thing is timed; ``where``: directory for the data,
    ``None`` for the usual place of temporary files.
    """

    quick: bool = False
    runs: int = 5
    where: str | None = None

    @contextmanager
    def place(self) -> Iterator[Path]:
        """A directory that goes away afterwards."""
        found = Path(tempfile.mkdtemp(prefix="cursus-bench-", dir=self.where))
        try:
            yield found
        finally:
            shutil.rmtree(found, ignore_errors=True)


@dataclass(frozen=True)
class Goal:
    """What a figure should be: at least, or at most."""

    figure: str
    at_least: float | None = None
    at_most: float | None = None

    def met(self, value: float) -> bool:
        """Is it?"""
        return (self.at_least is None or value >= self.at_least) and (
            self.at_most is None or value <= self.at_most
        )

    def __str__(self) -> str:
        sign, value = (">=", self.at_least) if self.at_most is None else ("<=", self.at_most)
        return f"{sign} {value:g}"


@dataclass(frozen=True)
class Benchmark:
    """``name`` is what a command line and a result call it."""

    name: str
    measure: Callable[[Scale], Mapping[str, float]]
    goals: Sequence[Goal] = ()


def seconds(work: Callable[[], object]) -> float:
    """Wall time of one call."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def in_turns(runs: int, **works: Callable[[], object]) -> dict[str, list[float]]:
    """Seconds of each work, one run of all after the other: what disturbs, disturbs all."""
    spent: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(runs):
        for name, work in works.items():
            spent[name].append(seconds(work))
    return spent


def ratio(spent: Mapping[str, Sequence[float]], slow: str, fast: str) -> float:
    """How many times ``fast`` is as fast as ``slow``: median of the ratios of each turn."""
    return statistics.median(a / b for a, b in zip(spent[slow], spent[fast], strict=True))


def machine() -> dict[str, Any]:
    """Where figures come from."""
    model = ""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as cpuinfo:
            model = next(
                (line.split(":")[1].strip() for line in cpuinfo if "model name" in line), ""
            )
    except OSError:
        model = platform.processor()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "processor": model,
        "cores": len(os.sched_getaffinity(0)),
        "memory_mib": memory >> 20,
        "python": sys.version.split()[0],
        "system": platform.release(),
    }


def run(benchmarks: Sequence[Benchmark], scale: Scale) -> dict[str, Any]:
    """Measure; the result is what ``--json`` prints."""
    found: dict[str, Any] = {"machine": machine(), "quick": scale.quick, "runs": scale.runs}
    results: dict[str, Any] = {}
    for benchmark in benchmarks:
        print(f"{benchmark.name} …", file=sys.stderr, flush=True)
        figures = dict(benchmark.measure(scale))
        goals = {
            goal.figure: {"goal": str(goal), "met": goal.met(figures[goal.figure])}
            for goal in benchmark.goals
        }
        results[benchmark.name] = {"figures": figures, "goals": goals}
    found["benchmarks"] = results
    return found


def table(result: Mapping[str, Any]) -> str:
    """One table of all figures, those with a goal marked."""
    rows = [("benchmark", "figure", "value", "goal", "")]
    for name, held in result["benchmarks"].items():
        for figure, value in held["figures"].items():
            goal = held["goals"].get(figure)
            verdict = "" if goal is None else ("ok" if goal["met"] else "MISSED")
            rows.append((name, figure, shown(value), goal["goal"] if goal else "", verdict))
    head = ", ".join(f"{name} {value}" for name, value in result["machine"].items())
    scale = "quick: too little data for a judgement" if result["quick"] else "full size"
    return f"{head}\n{scale}, {result['runs']} runs\n\n{_aligned(rows)}"


def comparison(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """Figures of two results beside each other."""
    rows = [("benchmark", "figure", "before", "after", "after/before")]
    for name, held in after["benchmarks"].items():
        old = before["benchmarks"].get(name, {"figures": {}})["figures"]
        for figure, value in held["figures"].items():
            if figure in old:
                times = f"{value / old[figure]:.2f}" if old[figure] else "-"
                rows.append((name, figure, shown(old[figure]), shown(value), times))
            else:
                rows.append((name, figure, "-", shown(value), "-"))
    warning = ""
    if before["machine"] != after["machine"]:
        warning = "The machines differ: compare ratios only.\n\n"
    return warning + _aligned(rows)


def shown(value: float) -> str:
    """A number as people read it."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    right = {at for at in range(len(widths)) if at >= 2}
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if at in right else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
