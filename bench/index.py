"""How fast an index is made, brought up to date and asked.

    python -m bench index                             all of them, at full size
    python -m bench.index build   --records 1000000   one of them, at any size
    python -m bench.index growth  --records 1000000 20000000

Every number is compared with another one of the same run on the same machine:
builds with raw insertion of the same rows, an update with a full build, twenty
million records with one. Times are of whole commands, start of Python included.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final

from bench.harness import Benchmark, Figures, Goal, Scale, in_turns, machine, ratio, seconds
from bench.index_data import Shape, append, make, make_consumers
from cursus.evidence.walk import LogDirectory
from cursus.replay.startup import plan, segments_to_judge
from inspect_db import queries_catalogue
from inspect_db.index import open_index
from inspect_db.load.writer import open_for_writing

Result = dict[str, Any]
#: What a parameter of a query is given when it has no default.
_GIVEN: Final = {"topic": "events", "partition": "0", "key": "customer-0007919", "group": "group-7"}


# -- measuring -----------------------------------------------------------------------------


class Command:
    """One run of ``inspect-db``: seconds, and the peak of the memory of all its processes."""

    def __init__(self, *words: str) -> None:
        start = time.perf_counter()
        self.child = subprocess.Popen(
            [sys.executable, "-m", "inspect_db", *words],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.peak_kib = self.peak_rss_kib = 0
        watcher = threading.Thread(target=self._watch, daemon=True)
        watcher.start()
        _, self.said = self.child.communicate()
        self.seconds = time.perf_counter() - start
        watcher.join()
        if self.child.returncode != 0:
            raise SystemExit(f"{' '.join(words)} failed: {self.said}")

    def _watch(self) -> None:
        while self.child.poll() is None:
            shared, own = 0, 0
            for process in _family(self.child.pid):
                rss, pss = _memory(process)
                own += rss
                shared += pss
            self.peak_kib = max(self.peak_kib, shared)
            self.peak_rss_kib = max(self.peak_rss_kib, own)
            time.sleep(0.05)


def _family(process: int) -> list[int]:
    found, waiting = [], [process]
    while waiting:
        at = waiting.pop()
        found.append(at)
        try:
            children = Path(f"/proc/{at}/task/{at}/children").read_text("ascii").split()
        except OSError:
            continue
        waiting += map(int, children)
    return found


def _memory(process: int) -> tuple[int, int]:
    """Resident and proportional KiB: pages that several share count once in the second."""
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text("ascii").splitlines()
    except OSError:
        return 0, 0
    sizes = {line.split(":")[0]: line.split()[1] for line in lines[1:]}
    return int(sizes.get("Rss", 0)), int(sizes.get("Pss", 0))


def place(where: str | None) -> AbstractContextManager[Path]:
    """A directory that goes away afterwards."""
    return Scale(where=where).place()


def built(log_dir: Path, index: Path, *options: str) -> Command:
    """One build of an index."""
    return Command("build", str(log_dir), "-o", str(index), *options)


# -- building against raw insertion -----------------------------------------------------


def raw_insertion(index: Path, folder: Path, at_a_time: int = 200_000) -> float:
    """Seconds of ``executemany`` of the rows of an index into the same table, alone."""
    source = open_index(str(index))
    ((statement,),) = source.execute("select sql from sqlite_schema where name = 'record_rows'")
    other = folder / "raw.db"
    other.unlink(missing_ok=True)
    target = open_for_writing(str(other))
    target.execute(str(statement))
    target.execute("begin")
    cursor = source.execute("select * from record_rows order by file_id, position")
    spent = 0.0
    insert = "insert into record_rows values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
    while rows := [row for _, row in zip(range(at_a_time), cursor, strict=False)]:
        spent += seconds(lambda rows=rows: target.executemany(insert, rows))  # type: ignore[misc]
    spent += seconds(lambda: target.execute("commit"))
    target.close()
    source.close()
    other.unlink()
    return spent


def build_against_insertion(records: int, runs: int, where: str | None) -> Result:
    """Rows a second of a build with two jobs, of raw insertion; verdict and scan.

    Times are of whole commands, of which half a second is the start of Python, twice.
    """
    with place(where) as folder:
        log_dir, index = folder / "logs", folder / "index.db"
        make(log_dir, Shape(records))
        made: dict[str, list[Command]] = {"1": [], "2": []}
        raw: list[float] = []
        for _ in range(runs):  # in turns: what disturbs, disturbs all
            for jobs, builds in made.items():
                builds.append(built(log_dir, index, "--jobs", jobs))
            raw.append(raw_insertion(index, folder))
        found: Result = {"records": records}
        for jobs, builds in made.items():
            found[f"build_{jobs}_seconds"] = statistics.median(run.seconds for run in builds)
            found[f"build_{jobs}_best"] = min(run.seconds for run in builds)
            found[f"build_{jobs}_peak_mib"] = max(run.peak_kib for run in builds) // 1024
        found["raw_seconds"] = statistics.median(raw)
        found["two_jobs_to_one"] = found["build_1_best"] / found["build_2_best"]
        found["build_to_raw"] = statistics.median(
            plain / run.seconds for plain, run in zip(raw, made["2"], strict=True)
        )
        found["bytes_per_record"] = index.stat().st_size / records
        # The scan alone: every check and digest, no rows of records, so nothing to join.
        scans: dict[str, list[float]] = {"1": [], "2": []}
        for _ in range(runs):
            for jobs, taken in scans.items():
                run = built(log_dir, index, "--records", "none", "--jobs", jobs)
                taken.append(run.seconds)
        found["scan_two_jobs_to_one"] = min(scans["1"]) / min(scans["2"])
        spent = in_turns(runs, scan=lambda: _scan(log_dir), verdict=lambda: _verdict(log_dir))
        found["scan_seconds"] = statistics.median(spent["scan"])
        found["verdict_seconds"] = statistics.median(spent["verdict"])
        found["verdict_to_scan"] = ratio(spent, "verdict", "scan")
        return found


def _scan(log_dir: Path) -> None:
    """All checks, nobody who listens."""
    with LogDirectory.at(str(log_dir)) as evidence:
        for files, _ in segments_to_judge(evidence):
            evidence.scan(files.ref)


def _verdict(log_dir: Path) -> None:
    with LogDirectory.at(str(log_dir)) as evidence:
        plan(evidence)


# -- updating ---------------------------------------------------------------------------


def update_against_build(records: int, runs: int, where: str | None) -> Result:
    """An update after one segment of many has grown."""
    with place(where) as folder:
        log_dir, index, full = folder / "logs", folder / "index.db", folder / "full.db"
        # Nine segments a partition, the last one nearly full: it holds 2.4 % of all bytes.
        each = records // Shape(records).partitions
        shape = Shape(records, segment_records=each // 9 + each // 500 + runs * 1000 // 8)
        make(log_dir, shape)
        first = built(log_dir, index)
        spent, share = [], 0.0
        for at in range(runs):
            start = each + at * 1000
            append(log_dir, 0, start, 1000, shape)
            grown = sorted((log_dir / "events").glob("partition_0_segment_*.log"))[-1]
            whole = sum(path.stat().st_size for path in log_dir.rglob("*.log"))
            share = max(share, grown.stat().st_size / whole)
            spent.append(built(log_dir, index, "--update").seconds)
        again = built(log_dir, full)
        same = _digest(index) == _digest(full)
        fastest = min(first.seconds, again.seconds)
        return {
            "records": records,
            "full_seconds": fastest,
            "update_seconds": statistics.median(spent),
            "update_to_full": statistics.median(spent) / fastest,
            "share_of_bytes_that_grew": share,
            "same_digest": same,
        }


def _digest(index: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "inspect_db", "digest", str(index)],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


# -- growth -----------------------------------------------------------------------------


def growth(sizes: Sequence[int], where: str | None) -> Result:
    """Time, size and memory from the smallest number of records to the largest."""
    found: list[Result] = []
    for records in sizes:
        with place(where) as folder:
            log_dir, index = folder / "logs", folder / "index.db"
            make(log_dir, Shape(records))
            run = built(log_dir, index, "--jobs", "2")
            found.append(
                {
                    "records": records,
                    "seconds": run.seconds,
                    "bytes": index.stat().st_size,
                    "peak_mib": run.peak_kib // 1024,
                    "peak_rss_mib": run.peak_rss_kib // 1024,
                }
            )
    first, last = found[0], found[-1]
    return {
        "sizes": found,
        "time_ratio": last["seconds"] / first["seconds"],
        "size_ratio": last["bytes"] / first["bytes"],
        "peak_mib": last["peak_mib"],
    }


def one_segment(size: int, where: str | None) -> Result:
    """The memory that one very large segment takes."""
    with place(where) as folder:
        log_dir, index = folder / "logs", folder / "index.db"
        records = size // 213
        make(log_dir, Shape(records, partitions=1, segment_records=records))
        run = built(log_dir, index, "--jobs", "2")
        log = next((log_dir / "events").glob("*.log"))
        return {
            "bytes": log.stat().st_size,
            "records": records,
            "seconds": run.seconds,
            "peak_mib": run.peak_kib // 1024,
            "peak_rss_mib": run.peak_rss_kib // 1024,
        }


# -- asking -----------------------------------------------------------------------------


def queries(records: int, runs: int, where: str | None) -> Result:
    """Milliseconds of every named query, median; those that read all records apart."""
    with place(where) as folder:
        log_dir, index = folder / "logs", folder / "index.db"
        make(log_dir, Shape(records))
        make_consumers(log_dir, groups=1000, snapshots=20)
        built(log_dir, index, "--jobs", "2")
        connection = open_index(str(index))
        spent: dict[str, float] = {}
        for name, query in queries_catalogue.named_queries().items():
            given = {p.name: _GIVEN[p.name] for p in query.parameters if p.required}

            def ask(query: Any = query, given: dict[str, str] = given) -> float:
                return seconds(lambda: list(queries_catalogue.run(connection, query, given)[1]))

            spent[name] = 1000 * statistics.median(ask() for _ in range(runs))
        connection.close()
        scanning = {n for n, q in queries_catalogue.named_queries().items() if q.scans}
        return {
            "records": records,
            "milliseconds": spent,
            "slowest": max(value for name, value in spent.items() if name not in scanning),
            "slowest_that_scans": max(spent[name] for name in scanning),
        }


# -- as a group of ``python -m bench`` -----------------------------------------------------


def benchmarks() -> list[Benchmark]:
    """Builds, updates, growth, one very large segment, and questions."""
    return [
        Benchmark(
            "index build",
            lambda scale: _figures(
                build_against_insertion(_size(scale, 10_000_000), *_runs(scale))
            ),
            (
                Goal("build_to_raw", at_least=0.7),
                Goal("scan_two_jobs_to_one", at_least=1.4),
                Goal("verdict_to_scan", at_most=1.3),
                Goal("bytes_per_record", at_most=60),
            ),
        ),
        Benchmark(
            "index update",
            lambda scale: _figures(update_against_build(_size(scale, 20_000_000), *_runs(scale))),
            (Goal("update_to_full", at_most=0.07), Goal("same_digest", at_least=1)),
        ),
        Benchmark(
            "index growth",
            lambda scale: _figures(
                growth([_size(scale, 1_000_000), _size(scale, 20_000_000)], scale.where)
            ),
            (
                Goal("time_ratio", at_most=25),
                Goal("size_ratio", at_most=20.5),
                Goal("peak_mib", at_most=700),
            ),
        ),
        Benchmark(
            "index one segment",
            lambda scale: _figures(one_segment(_size(scale, 4 << 30), scale.where)),
            (Goal("peak_mib", at_most=700),),
        ),
        Benchmark(
            "index queries",
            lambda scale: _figures(queries(_size(scale, 10_000_000), *_runs(scale))),
            (Goal("slowest", at_most=300), Goal("slowest_that_scans", at_most=3000)),
        ),
    ]


def _size(scale: Scale, full: int) -> int:
    return max(full // 1000, 8000) if scale.quick else full


def _runs(scale: Scale) -> tuple[int, str | None]:
    return scale.runs, scale.where


def _figures(found: Result) -> Figures:
    return {name: float(value) for name, value in found.items() if isinstance(value, (int, float))}


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument(
        "what", choices=["build", "update", "growth", "one-segment", "queries", "all"]
    )
    parser.add_argument("--records", type=int, nargs="+", default=[10_000_000])
    parser.add_argument("--bytes", type=int, default=4 << 30, help="of one segment")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--in", dest="where", help="where the data is made")
    given = parser.parse_args(arguments)
    most, runs, where = max(given.records), given.runs, given.where
    steps: dict[str, Callable[[], Result]] = {
        "build": lambda: build_against_insertion(most, runs, where),
        "update": lambda: update_against_build(most, runs, where),
        "growth": lambda: growth(sorted(given.records), where),
        "one-segment": lambda: one_segment(given.bytes, where),
        "queries": lambda: queries(most, runs, where),
    }
    chosen = steps if given.what == "all" else {given.what: steps[given.what]}
    found = {"machine": machine()} | {name: step() for name, step in chosen.items()}
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
