"""An index that follows a directory that really changes, by the real command."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import index_help
import pytest
from test_index_update import append, roll, tear

from inspect_db import fixtures
from inspect_db.watch import State, differences

NAME = "small-healthy"


class Watching:
    def __init__(self, log_dir: Path, index: Path) -> None:
        hearing = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
        program = f"{hearing}from inspect_db.cli import main; main()"
        words = [sys.executable, "-u", "-c", program, "watch", str(log_dir), "-o", str(index)]
        self.child = subprocess.Popen(
            [*words, "--interval", "0.05"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def line(self) -> str:
        """The next line, without its time."""
        assert self.child.stdout is not None
        said = self.child.stdout.readline()
        moment, _, text = said.rstrip("\n").partition("  ")
        assert time.strptime(moment, "%Y-%m-%dT%H:%M:%SZ"), said
        return text

    def until(self, wanted: str) -> list[str]:
        lines = [self.line()]
        while lines[-1] != wanted:
            lines.append(self.line())
        return lines

    def until_more(self, topic: str, count: int) -> None:
        """So many records more, in one look or in several."""
        while count > 0:
            found = re.fullmatch(rf"records: {topic} \+(\d+)", self.line())
            count -= int(found[1]) if found else 0
        assert count == 0

    def end(self, number: int) -> tuple[int, str, str]:
        self.child.send_signal(number)
        out, err = self.child.communicate(timeout=30)
        return self.child.returncode, out, err


@contextmanager
def watching(log_dir: Path, index: Path) -> Iterator[Watching]:
    found = Watching(log_dir, index)
    try:
        yield found
    finally:
        found.child.kill()
        found.child.communicate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_every_change_gives_a_line_and_it_ends_cleanly(number: int, tmp_path: Path) -> None:
    log_dir = fixtures.materialise(index_help.FIXTURES[NAME], tmp_path / "evidence")
    (tmp_path / "out").mkdir()
    index = tmp_path / "out" / "index.db"
    log = sorted((log_dir / "orders").glob("partition_0_segment_*.log"))[-1]
    with watching(log_dir, index) as watcher:
        assert watcher.line() == "verdict: starts_clean; 2,708 records"
        append(log, 5)
        assert watcher.line() == "records: orders +5"
        roll(log)
        watcher.until_more("orders", 5)
        active = sorted((log_dir / "orders").glob("partition_0_segment_*.log"))[-1]
        tear(active)
        watcher.until("verdict: starts_clean → starts_with_repairs")
        code, _, said = watcher.end(number)
    assert (code, said) == (0, "index.db stays as it is\n")
    assert os.listdir(index.parent) == ["index.db"]
    assert index_help.rows(index, "select verdict from build") == [("starts_with_repairs",)]


def test_a_directory_that_goes_and_comes_back(tmp_path: Path) -> None:
    log_dir = fixtures.materialise(index_help.FIXTURES[NAME], tmp_path / "evidence")
    with watching(log_dir, tmp_path / "index.db") as watcher:
        watcher.line()
        log_dir.rename(tmp_path / "moved")
        assert watcher.line().startswith("trouble: ")
        (tmp_path / "moved").rename(log_dir)
        log = sorted((log_dir / "orders").glob("partition_0_segment_*.log"))[-1]
        append(log, 1)
        watcher.until("records: orders +1")
        assert watcher.end(signal.SIGINT)[0] == 0


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    with watching(tmp_path / "nowhere", tmp_path / "index.db") as watcher:
        out, err = watcher.child.communicate(timeout=30)
    assert (watcher.child.returncode, out) == (1, "")
    assert err.count("\n") == 1


def test_lines_are_few() -> None:
    before = State("starts_clean")
    after = State("refuses")
    for at in range(9):
        after.findings[f"code at file:{at}"] += 1
        after.records[f"topic-{at}"] += 1000
    assert list(differences(before, after)) == [
        "verdict: starts_clean → refuses",
        "found: code at file:0",
        "found: code at file:1",
        "found: code at file:2",
        "found: 6 more findings",
        "records: topic-0 +1,000, topic-1 +1,000, topic-2 +1,000 and 6 more topics",
    ]
    assert list(differences(after, after)) == []
