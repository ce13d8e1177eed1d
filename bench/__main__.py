"""``python -m bench [NAME…]`` measures; ``python -m bench compare A B`` compares two results.

    python -m bench                     everything, at full size
    python -m bench scan                only what begins with "scan"
    python -m bench --json > now.json   for another day
    python -m bench --quick             little data: does it still run?
    python -m bench compare before.json now.json

The exit code is 1 when a goal was missed, except with ``--quick``.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from bench import harness
from bench.harness import Benchmark, Scale
from cursus.evidence.collector import collect_rarely

#: Modules of this package with a ``benchmarks()`` function.
GROUPS: Final = ("scan", "index", "storage", "pages")


def all_benchmarks() -> list[Benchmark]:
    """Of every group, in order."""
    found: list[Benchmark] = []
    for group in GROUPS:
        found += importlib.import_module(f"bench.{group}").benchmarks()
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    collect_rarely()  # as the commands do
    if given[:1] == ["compare"]:
        return _compare(given[1:])
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", help="measure only what begins with one of these")
    parser.add_argument("--quick", action="store_true", help="little data, one run")
    parser.add_argument("--runs", type=int, help="how often each thing is timed (default 5)")
    parser.add_argument("--json", action="store_true", help="the result as JSON")
    parser.add_argument("--in", dest="where", help="directory for the data")
    wanted = parser.parse_args(given)
    chosen = [
        benchmark
        for benchmark in all_benchmarks()
        if not wanted.names or benchmark.name.startswith(tuple(wanted.names))
    ]
    if not chosen:
        parser.error("no benchmark begins with that")
    runs = wanted.runs or (1 if wanted.quick else 5)
    result = harness.run(chosen, Scale(wanted.quick, runs, wanted.where))
    print(json.dumps(result, indent=2) if wanted.json else harness.table(result))
    missed = any(
        not goal["met"] for held in result["benchmarks"].values() for goal in held["goals"].values()
    )
    return 1 if missed and not wanted.quick else 0


def _compare(given: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench compare")
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    wanted = parser.parse_args(given)
    results: list[dict[str, Any]] = [
        json.loads(path.read_text("utf-8")) for path in (wanted.before, wanted.after)
    ]
    print(harness.comparison(*results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
