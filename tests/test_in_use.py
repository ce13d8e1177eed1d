"""The inspector on a directory that a running store is writing to."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cursus.evidence.walk import LogDirectory

HERE = Path(__file__).resolve().parent


class Running:
    """A store under load; what it has acknowledged so far."""

    def __init__(self, log_dir: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "crash.load", str(log_dir), "1", "steady"],
            stdout=subprocess.PIPE,
            cwd=HERE,
            text=True,
        )
        self._ready = threading.Event()
        self._lock = threading.Lock()
        self._ends: dict[tuple[str, int], int] = {}
        self._commits: dict[tuple[str, int], tuple[int, int]] = {}
        self._decided: dict[str, int] = {}
        self.failures: list[str] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        self._ready.wait()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if not line.endswith("\n"):
                break  # cut off by the kill
            words = json.loads(line)
            with self._lock:
                self._take(words)
        self._ready.set()

    def _take(self, words: list[Any]) -> None:
        if words[0] in {"failed", "refused"}:
            self.failures.append(str(words))
        elif words[0] == "ready":
            self._ready.set()
        elif words[1] == "publish":
            topic, partition, first, found = words[2:]
            self._ends[topic, partition] = first + len(found)
        elif words[1] == "commit":
            name, epoch, partition, offset = words[2:]
            self._commits[name, partition] = (epoch, offset)
        elif words[1] == "decide":
            self._decided[words[2]] = words[3]

    def acknowledged(
        self,
    ) -> tuple[dict[tuple[str, int], int], dict[tuple[str, int], tuple[int, int]], dict[str, int]]:
        """Log ends, committed offsets with their group's epoch, decided transactions: so far."""
        with self._lock:
            return dict(self._ends), dict(self._commits), dict(self._decided)

    def until_records(self, number: int) -> None:
        """Return when more than ``number`` records were acknowledged."""
        while sum(self.acknowledged()[0].values()) <= number and self._reader.is_alive():
            self._reader.join(0.01)

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join()
        if self.process.stdout is not None:
            self.process.stdout.close()


@contextmanager
def running(log_dir: Path) -> Iterator[Running]:
    store = Running(log_dir)
    try:
        yield store
    finally:
        store.stop()
    assert not store.failures


def inspect(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "inspect_db", *words], capture_output=True, text=True, check=False
    )


def locks_are_listed(log_dir: Path) -> bool:
    """Can it be known here at all whether a directory is in use? (Decision 15.)"""
    with LogDirectory.at(str(log_dir)) as evidence:
        return evidence.in_use is not None


def test_a_verdict_on_a_directory_in_use_says_so_and_is_right(tmp_path: Path) -> None:
    with running(tmp_path) as store:
        known = locks_are_listed(tmp_path)
        for look in range(4):
            store.until_records(200 * look)
            run = inspect("verdict", str(tmp_path), "--json")
            document = json.loads(run.stdout)
            assert document["in_use"] is (True if known else None)
            said = {item["code"] for item in document["findings"]}
            assert ("storage_in_use" in said) == known
            # What is being written is no damage, and there is none.
            assert document["verdict"] == "starts_clean", document["findings"]
            assert run.returncode == 0
        assert ("A BROKER IS USING IT" in inspect("verdict", str(tmp_path)).stdout) == known
    if known:
        after = json.loads(inspect("verdict", str(tmp_path), "--json").stdout)
        assert after["in_use"] is False


def agrees(index: Path, told: tuple[Any, Any, Any]) -> bool:
    """Does the index hold everything that was acknowledged?

    False when a segment was taken away by retention or compaction before it was
    read, so that the index says itself that it cannot know.
    """
    ends, commits, decided = told
    with sqlite3.connect(f"file:{index}?mode=ro", uri=True) as database:
        closed = "select count(*) from partitions where readable = 0"
        if database.execute(closed).fetchone()[0]:
            return False
        for (topic, partition), end in ends.items():
            row = database.execute(
                "select next_offset from partitions where topic = ? and partition = ?",
                (topic, partition),
            ).fetchone()
            assert row is not None
            assert row[0] >= end
        rows = database.execute(
            "select group_name, partition, epoch, committed_offset from committed_offsets"
        ).fetchall()
        found = {(name, partition): (epoch, offset) for name, partition, epoch, offset in rows}
        for key, (epoch, offset) in commits.items():
            if key in found:
                assert found[key] >= (epoch, offset)
            else:
                live = database.execute(
                    "select epoch from consumer_groups where group_name = ? and state = 'live'",
                    (key[0],),
                ).fetchone()
                assert live is None or live[0] > epoch, f"{key} was committed and is not there"
        for name, epoch in decided.items():
            state, at = database.execute(
                "select state, epoch from transactions where transactional_id = ?", (name,)
            ).fetchone()
            assert at > epoch or (at == epoch and state in {"committing", "committed"})
    return True


def test_an_index_that_is_updated_holds_what_was_acknowledged_before(tmp_path: Path) -> None:
    log_dir, index = tmp_path / "log_dir", tmp_path / "index.db"
    whole = 0
    with running(log_dir) as store:
        for look in range(8):
            store.until_records(300 * look)
            told = store.acknowledged()
            run = inspect("build", str(log_dir), "-o", str(index), "--update")
            assert run.returncode in {0, 1}, run.stderr
            assert index.exists(), run.stderr
            whole += agrees(index, told)
            if whole >= 4:
                break
    assert whole >= 2, "every look was overtaken"


def test_a_watched_index_comes_up_to_what_was_acknowledged(tmp_path: Path) -> None:
    log_dir, index = tmp_path / "log_dir", tmp_path / "index.db"
    with running(log_dir) as store:
        words = ["watch", str(log_dir), "-o", str(index), "--interval", "0.2"]
        watch = subprocess.Popen(
            [sys.executable, "-u", "-m", "inspect_db", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        # Without changes a watch says nothing for ever: a store that died must not hang us.
        guard = threading.Timer(300, watch.kill)
        guard.start()
        try:
            assert watch.stdout is not None
            lines = iter(watch.stdout.readline, "")
            for _ in range(3):
                told = store.acknowledged()
                # A look that begins after this line was printed has seen all of that.
                for _ in range(200):
                    assert next(lines, None) is not None, store.failures
                    if _reached(index, told):
                        break
                else:
                    pytest.fail("the index never came up to what was acknowledged")
        finally:
            guard.cancel()
            watch.kill()
            watch.communicate()


def _reached(index: Path, told: tuple[Any, Any, Any]) -> bool:
    try:
        return index.exists() and agrees(index, told)
    except AssertionError:
        return False
