"""A real process under load, killed at random moments, again and again on one directory.

A killed process loses nothing that the kernel holds, so this does not show what a
power failure takes (``tests/crash`` does). It shows the real thing: threads, real
files, real fsyncs, starts on what a start before has repaired, and an inspector
that says the same as the broker each time.
"""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from crash.load import SETTINGS, TOPICS

from cursus import layout
from cursus.broker.open_storage import OpenStorage
from cursus.broker.runtime import Runtime
from cursus.cli import storage as storage_cli
from cursus.evidence.walk import LogDirectory
from cursus.formats import timestamps
from cursus.replay.startup import Plan, plan

HERE = Path(__file__).resolve().parent
#: Seconds of load before the kill, at most: a choice of moments, not a measure.
LONGEST = 0.6
#: Bytes of a batch of the load, at most; it may stand in a segment beyond its limit.
LARGEST_BATCH = 60 * 400
#: A kill inside these operations may lead to a refusal with a remedy (decision 34).
REMEDIES = {"undeclared_persisted_topic", "declared_topic_partition_out_of_range"}


class Ledger:
    """What was acknowledged, over all rounds."""

    def __init__(self) -> None:
        self.records: dict[tuple[str, int], dict[int, tuple[str, str]]] = {}
        self.background: Counter[str] = Counter()
        self.commits: dict[tuple[str, int, int], int] = {}
        self.epochs: dict[str, int] = {}
        self.deleting: set[str] = set()
        self.decided: dict[tuple[str, int], int] = {}
        self.versions: dict[str, int] = {}
        self.snapshots: dict[str, set[tuple[int, str]]] = {}
        self.saved: set[str] = set()
        self.topics: set[str] = set(TOPICS)
        self.counts: Counter[str] = Counter()

    def take(self, words: list[Any]) -> None:
        """One line of the process."""
        word, what, *rest = words
        assert word in {"will", "did"}, words
        self.counts[f"{word} {what}"] += 1
        getattr(self, f"_{word}_{what}")(*rest)

    def _did_publish(self, topic: str, partition: int, first: int, found: list[list[str]]) -> None:
        held = self.records.setdefault((topic, partition), {})
        held.update({first + n: (key, payload) for n, (key, payload) in enumerate(found)})

    def _did_event(self, key: str, version: int) -> None:
        self.versions[key] = version

    def _will_snapshot(self, key: str, version: int, payload: str) -> None:
        self.snapshots.setdefault(key, set()).add((version, payload))

    def _did_snapshot(self, key: str, version: int, payload: str) -> None:
        self.snapshots[key] = {(version, payload)}
        self.saved.add(key)

    def _did_register(self, name: str, epoch: int) -> None:
        self.epochs[name] = epoch
        self.deleting.discard(name)

    def _will_unregister(self, name: str) -> None:
        self.deleting.add(name)

    def _did_unregister(self, name: str, epoch: int) -> None:
        self.epochs[name] = epoch

    def _did_commit(self, name: str, epoch: int, partition: int, offset: int) -> None:
        self.commits[name, epoch, partition] = offset

    def _did_decide(self, name: str, epoch: int, partition: int) -> None:
        self.decided[name, epoch] = partition

    def _did_create(self, name: str) -> None:
        self.topics.add(name)

    def _will_delete(self, name: str) -> None:
        self.topics.discard(name)

    def _did_background(self, counts: dict[str, int]) -> None:
        for what, number in counts.items():
            self.background[what] = max(self.background[what], number)

    # -- what has to be there -----------------------------------------------------------

    def check(self, storage: OpenStorage) -> None:
        assert self.topics <= storage.topics.keys()
        for key, held in self.records.items():
            self._check_log(storage, key, held)
        for name, epoch in self.epochs.items():
            assert storage.group_epoch(name) >= epoch
        for (name, epoch, partition), offset in self.commits.items():
            group = storage.groups.get(name)
            if group is None:
                assert name in self.deleting, f"group {name} is gone"
            elif group.epoch == epoch:
                assert group.offsets["orders"][partition] >= offset
        for name, epoch in self.decided:
            state = storage.transactions[name]
            assert state.epoch >= epoch
            assert state.epoch > epoch or state.state == "committed"
        aggregates = storage.aggregates("carts", 0)
        for key_, version in self.versions.items():
            assert aggregates.version(key_.encode()) >= version
        for key_, allowed in self.snapshots.items():
            found = aggregates.snapshot(key_.encode())
            if found is None:
                assert key_ not in self.saved
            else:
                assert (found[0], found[1].hex()) in allowed

    def _check_log(
        self, storage: OpenStorage, key: tuple[str, int], held: dict[int, tuple[str, str]]
    ) -> None:
        log = storage.partition(*key)
        if log.log_start:
            # The lowest segment that stays was there when more than the limit was.
            logs = Path(storage.log_dir, key[0]).glob(f"partition_{key[1]}_segment_*.log")
            left = sum(path.stat().st_size for path in logs)
            most = SETTINGS.log.log_retention_bytes - SETTINGS.log.log_segment_bytes
            assert left >= most - LARGEST_BATCH, "more than retention may take"
        records = {record.offset: record for record in log.records()}
        latest = {record.key: record.offset for record in records.values() if record.key}
        for offset in [offset for offset in held if offset < log.log_start]:
            del held[offset]
        for offset, (name, payload) in held.items():
            record = records.get(offset)
            if record is None:
                assert TOPICS[key[0]].get("cleanup_policy") == "compact"
                assert latest[name.encode()] > offset, f"{key} lost offset {offset}"
            else:
                assert (record.key.decode(), record.payload.decode()) == (name, payload)


def judged(log_dir: Path) -> Plan:
    """As the inspector does it."""
    with LogDirectory.at(str(log_dir)) as evidence:
        return plan(evidence, SETTINGS.startup, timestamps.from_unix_ns(time.time_ns()))


def remedy(log_dir: Path, found: Plan, archive: Path) -> None:
    """What the catalogue says about the refusals that a kill may cause."""
    refusal = found.first_refusal
    assert refusal is not None
    assert refusal.code in REMEDIES, f"{refusal.code} at {refusal.path}: {refusal.message}"
    if refusal.code == "undeclared_persisted_topic":
        shutil.rmtree(archive, ignore_errors=True)
        words = ["--log-dir", str(log_dir), "--archive-dir", str(archive), "--topic", refusal.path]
        assert storage_cli.main(["orphan", "archive", *words]) == 0
        return
    count = found.manifest.by_name[refusal.path.split("/")[0]].partitions
    for path in (log_dir / refusal.path).parent.iterdir():
        name = layout.classify((path.parent.name, path.name), directory=path.is_dir())
        if name.partition is not None and name.partition >= count:
            assert name.kind is not layout.FileKind.SEGMENT_LOG or not path.stat().st_size
            path.unlink()


def round_of_load(log_dir: Path, number: int, ledger: Ledger, rng: random.Random) -> list[str]:
    """Start the process, kill it at a random moment, take what it said; its failures."""
    process = subprocess.Popen(
        [sys.executable, "-m", "crash.load", str(log_dir), str(number)],
        stdout=subprocess.PIPE,
        cwd=HERE,
        text=True,
    )
    assert process.stdout is not None
    ready = threading.Event()
    lines: list[str] = []

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            if line.startswith('["ready"'):
                ready.set()
        ready.set()

    reader = threading.Thread(target=read)
    reader.start()
    ready.wait()
    # A kill inside the first topics of a fresh directory is a matter of tests/crash.
    threading.Event().wait(rng.uniform(0, LONGEST))
    process.send_signal(signal.SIGKILL)
    process.wait()
    reader.join()
    process.stdout.close()
    failures = []
    for line in lines:
        if not line.endswith("\n"):
            continue
        words = json.loads(line)
        if words[0] in {"failed", "refused"}:
            failures.append(line)
        elif words[0] != "ready":
            ledger.take(words)
    return failures


def test_a_killed_store_has_everything_that_it_acknowledged(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    rounds = request.config.getoption("--kill-rounds")
    log_dir, ledger, rng = tmp_path / "log_dir", Ledger(), random.Random(rounds)
    verdicts: Counter[str] = Counter()
    for number in range(rounds):
        failures = round_of_load(log_dir, number, ledger, rng)
        assert not failures, failures
        found = judged(log_dir)
        verdicts[found.verdict] += 1
        while found.verdict == "refuses":
            remedy(log_dir, found, tmp_path / "archive")
            found = judged(log_dir)
        with Runtime.start(str(log_dir), SETTINGS, background=False) as runtime:
            assert runtime.storage is not None, runtime.diagnostics
            assert runtime.plan.verdict == found.verdict
            assert [(item.kind, item.path) for item in runtime.plan.actions] == [
                (item.kind, item.path) for item in found.actions
            ]
            ledger.check(runtime.storage)
        assert judged(log_dir).actions == ()
    print(f"{rounds} kills: {dict(verdicts)}, {dict(ledger.counts)}")
    print(f"background work of one round, at most: {dict(ledger.background)}")
    assert ledger.counts["did publish"] > rounds
    assert ledger.counts["did commit"], "no group committed anything"
    assert ledger.background, "no background work was seen"
