"""What the plan says of a directory is what a start does with it, whatever stands there.

Small storage is bent in one to three places (bytes, names, kinds of entries),
judged, started, judged again and started again. A start goes exactly when the plan
says so; one that refuses touches nothing; one that goes finds what was foreseen,
and leaves nothing to do for the next one.
"""

from __future__ import annotations

import os
import random
import shutil
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from crash.harness import write_tree
from crash.memory import Tree, replayed
from crash.recording import NOON, SETTINGS, record
from crash.workloads import WORKLOADS

from cursus import layout
from cursus.broker.machine import Machine, this_machine
from cursus.broker.runtime import Runtime
from cursus.evidence.walk import LogDirectory
from cursus.formats import topic_manifest
from cursus.formats.record import Record, encode_frame
from cursus.replay.startup import Plan, plan
from cursus.storage.durable import FileSystem, WritableFile, real_file_system
from cursus.storage.errors import StoreError

STARTS = {"starts_clean", "starts_with_repairs", "starts_with_damage"}
MUTATIONS = 240
KINDS = ("directory", "full directory", "pipe", "dangling link", "link")


class _Unsynced:
    """The real file system without its fsyncs: nothing here loses power."""

    def __init__(self) -> None:
        self._inner = real_file_system()

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    def create(self, path: str) -> WritableFile:
        return _unsynced(self._inner.create(path))

    def open(self, path: str) -> WritableFile:
        return _unsynced(self._inner.open(path))

    def sync_directory(self, path: str) -> None:
        assert os.path.isdir(path)


def _unsynced(file: WritableFile) -> WritableFile:
    file.fsync = lambda: None  # type: ignore[method-assign]
    return file


def machine() -> Machine:
    files: FileSystem = _Unsynced()  # type: ignore[assignment]
    return replace(this_machine(files), now_ns=lambda: NOON + 3600 * 10**9)


@cache
def recorded(name: str) -> tuple[Tree, ...]:
    """Trees of one workload, at moments in the middle and at its end."""
    recording = record(WORKLOADS[name]())
    count = len(recording.trace)
    moments = (count // 3, count // 2, count)
    return tuple(
        replayed(recording.base, recording.trace[:moment], clock=NOON).tree() for moment in moments
    )


def judged(log_dir: Path) -> Plan:
    with LogDirectory.at(str(log_dir), held=True) as evidence:
        return plan(evidence, SETTINGS.startup, machine().moment())


def entries(log_dir: Path, *, times: bool = True) -> dict[str, tuple[object, ...]]:
    """Everything that stands there, the lock file of the directory left out."""
    found: dict[str, tuple[object, ...]] = {}
    for folder, folders, files in os.walk(log_dir):
        for name in [*folders, *files]:
            path = Path(folder, name)
            status = path.lstat()
            where = str(path.relative_to(log_dir))
            if where == layout.LOG_DIR_LOCK:
                continue
            found[where] = (status.st_mode,)
            if stat.S_ISREG(status.st_mode):
                moment = status.st_mtime_ns if times else 0
                found[where] = (status.st_mode, moment, path.read_bytes())
            elif stat.S_ISLNK(status.st_mode):
                found[where] = (os.readlink(path),)
    return found


def place(path: Path, kind: str) -> None:
    """Put something else than a file under a name."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    elif os.path.lexists(path):
        path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif "link" in kind:
        path.symlink_to("nowhere" if kind == "dangling link" else os.path.dirname(path))
    else:
        path.mkdir()
        if kind == "full directory":
            (path / "x").write_bytes(b"")


def hold(log_dir: Path, told: str) -> Plan:
    """Judge, start, judge, start: each must follow from the one before."""
    before, foreseen = entries(log_dir), judged(log_dir)
    assert entries(log_dir) == before, f"{told}: the plan wrote"
    try:
        runtime = Runtime.start(str(log_dir), SETTINGS, machine(), background=False)
    except OSError:
        # Only the lock of the directory, which cannot be taken where no file can be.
        assert not stat.S_ISREG(os.lstat(log_dir / layout.LOG_DIR_LOCK).st_mode), told
        assert foreseen.verdict == "refuses", told
        return foreseen
    with runtime:
        if foreseen.verdict not in STARTS:
            assert not runtime.ready, f"{told}: {foreseen.verdict}, yet it started"
            assert entries(log_dir) == before, f"{told}: it refused, and touched something"
            return foreseen
        assert runtime.ready, f"{told}: {foreseen.verdict}, and then {runtime.diagnostics}"
        _read_back(runtime, foreseen, told)
    second = judged(log_dir)
    assert second.verdict in STARTS - {"starts_with_repairs"}, f"{told}: {second.first_cause}"
    assert not second.actions or _blocked(log_dir), f"{told}: left to do: {second.actions}"
    damage = "starts_with_damage"
    assert (second.verdict == damage) <= (foreseen.verdict == damage), f"{told}: told too late"
    after = entries(log_dir, times=False)
    with Runtime.start(str(log_dir), SETTINGS, machine(), background=False) as again:
        assert again.ready, told
    assert entries(log_dir, times=False) == after or _blocked(log_dir), f"{told}: written again"
    return foreseen


def _blocked(log_dir: Path) -> bool:
    """Does a directory stand where a derived file has to be made? It is tried at each start."""
    inside = [path for path in log_dir.glob("*/partition_*") if path.suffix == ".tmp"]
    inside += log_dir.glob("*/partition_*/*")
    inside += log_dir.glob("*/partition_?")
    return any(not path.is_file() or path.is_symlink() for path in inside)


def _read_back(runtime: Runtime, foreseen: Plan, told: str) -> None:
    storage = runtime.storage
    assert storage is not None
    more = {item.kind for item in foreseen.actions} & {"finish_transaction", "resume_truncation"}
    overlap = any(item.code == "segment_offsets_overlap" for item in foreseen.findings)
    for key, log in storage.partitions.items():
        count = sum(1 for _ in log.records(log.log_start))
        planned = foreseen.partitions.get(key)
        if planned is not None and not more and not overlap:
            assert (log.leo, count) == (planned.next_offset, planned.record_count), told
        if storage.topics[key[0]].event_sourcing:
            with suppress(StoreError):  # derived: what cannot be built stops its commands only
                storage.aggregates(*key)
    if not more:
        groups = {name: (g.epoch, g.offsets, g.revisions) for name, g in storage.groups.items()}
        planned_groups = foreseen.consumers.groups.items()
        assert groups == {n: (g.epoch, g.offsets, g.revisions) for n, g in planned_groups}, told


# -- kinds of entries under every name that an opening removes or makes ---------------------

BASE = "partition_0_segment_00000000000000000000"
NAMES = [
    *(f"{topic}/{BASE}{end}" for topic in ("orders", layout.INTERNAL_TOPIC) for end in (
        ".index", ".log.deleted", ".index.deleted", ".log.compacting", ".index.compacting",
        ".log.compacted-7", ".log.compacted-7.compacting", ".log.compacted-x",
    )),
    *(f"orders/{name}" for name in (
        "partition_0.hwm", "partition_0.hwm.tmp", "partition_0.producers", "partition_0.lock",
        "partition_0", layout.LIFECYCLE_EPOCH_TEMP, f"partition_7{BASE[11:]}.log.deleted",
        f"partition_7{BASE[11:]}.log.compacting",
    )),
    layout.MANIFEST_TEMP, f"{layout.JOURNAL}.compact-0", layout.LOG_DIR_LOCK, layout.RAFT,
]  # fmt: skip
STREAMS = [
    f"carts/partition_0{name}"
    for name in (
        "",
        "/partition_0_stream.idx",
        "/partition_0_stream_keys.dat",
        "/partition_0_snapshots.dat",
    )
]


def _both() -> Iterator[tuple[str, str]]:
    yield from (("produce", name) for name in NAMES)
    yield from (("event-streams", name) for name in STREAMS)


@pytest.mark.parametrize(("workload", "name"), list(_both()))
def test_whatever_stands_under_a_name_the_plan_foresees_the_start(
    tmp_path: Path, workload: str, name: str
) -> None:
    for number, kind in enumerate(KINDS):
        log_dir = tmp_path / str(number)
        log_dir.mkdir()
        write_tree(recorded(workload)[-1], log_dir)
        place(log_dir / name, kind)
        hold(log_dir, f"{kind} {name}")


@pytest.mark.parametrize("kind", [*KINDS, "file"])
def test_what_stands_where_the_internal_topic_has_to_be_made_refuses(
    tmp_path: Path, kind: str
) -> None:
    if kind == "file":
        (tmp_path / layout.INTERNAL_TOPIC).write_bytes(b"")
    else:
        place(tmp_path / layout.INTERNAL_TOPIC, kind)
    found = hold(tmp_path, kind)
    assert (found.verdict == "starts_clean") == (kind == "directory")


# -- what nobody opens is left alone, and the plan says so ------------------------------------


def test_leftovers_of_a_partition_that_is_not_declared_stay_and_are_no_action(
    tmp_path: Path,
) -> None:
    write_tree(recorded("produce")[-1], tmp_path)
    left = tmp_path / "orders" / "partition_7_segment_00000000000000000003.log.compacting"
    left.write_bytes(b"x")
    found = hold(tmp_path, "leftover")
    assert left.exists()
    assert not found.actions


def test_records_missing_before_a_torn_empty_segment_are_told_before_the_cut(
    tmp_path: Path,
) -> None:
    (tmp_path / "t").mkdir()
    definition, _ = topic_manifest.patch(None, "t", {"partitions": 1})
    (tmp_path / layout.MANIFEST).write_bytes(topic_manifest.encode([definition]))
    whole = encode_frame(Record(topic=b"t", partition=0, offset=0, payload=b"a"))
    (tmp_path / "t" / layout.segment_log(0, 0)).write_bytes(whole)
    (tmp_path / "t" / layout.segment_log(0, 9)).write_bytes(b"\0\0\0")
    assert hold(tmp_path, "torn and empty").verdict == "starts_with_damage"


# -- mutations ---------------------------------------------------------------------------------


def _name(rng: random.Random) -> str:
    partition, base = rng.choice([0, 0, 1, 2, 7]), rng.choice([0, 0, 1, 3, 9, 2**63, 2**64 - 1])
    segment = f"partition_{partition}_segment_{base:020d}"
    ends = [".log", ".index", ".log.deleted", ".index.deleted", ".log.compacting"]
    ends += [".index.compacting", ".log.compacted-0", ".log.compacted-9.compacting"]
    names = [segment + end for end in ends]
    names += [f"partition_{partition}{end}" for end in (".hwm", ".hwm.tmp", ".producers", ".lock")]
    names += [layout.LIFECYCLE_EPOCH, layout.LIFECYCLE_EPOCH_TEMP, "partition_0", "junk"]
    return rng.choice(names)


def bend(rng: random.Random, log_dir: Path) -> str:
    """One random change; what it was, in words."""
    files = sorted(path for path in log_dir.rglob("*") if path.is_file() and not path.is_symlink())
    folders = sorted(path for path in log_dir.iterdir() if path.is_dir() and not path.is_symlink())
    what = rng.choice(["flip", "cut", "extend", "remove", "copy", "move", "place", "make"])
    if not files or not folders:
        return "nothing"
    path = rng.choice(files)
    path.chmod(0o600)
    if what == "flip" and path.stat().st_size:
        data = bytearray(path.read_bytes())
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        path.write_bytes(data)
    elif what == "cut":
        os.truncate(path, rng.randrange(path.stat().st_size + 1))
    elif what == "extend":
        path.write_bytes(path.read_bytes() + rng.choice([bytes(3), bytes(4), b"\xff" * 9, b"CDM2"]))
    elif what == "remove":
        path.unlink()
    elif what == "copy":
        path.write_bytes(rng.choice(files).read_bytes())
    elif what == "place":
        place(path, rng.choice(KINDS))
    else:
        target = rng.choice(folders) / _name(rng)
        if target.is_dir() and not target.is_symlink():
            return "nothing"
        if what == "move":
            path.rename(target)
        else:
            place(target, rng.choice(KINDS))
        return f"{what} {path.relative_to(log_dir)} {target.relative_to(log_dir)}"
    return f"{what} {path.relative_to(log_dir)}"


@pytest.mark.parametrize("part", range(4))
def test_bent_directories_start_as_foreseen(tmp_path: Path, part: int) -> None:
    verdicts = set()
    for number in range(MUTATIONS // 4):
        rng = random.Random(f"{part}-{number}")
        log_dir = tmp_path / "log_dir"
        log_dir.mkdir()
        write_tree(rng.choice(recorded(rng.choice(sorted(_QUICK)))), log_dir)
        told = [bend(rng, log_dir) for _ in range(rng.choice([1, 1, 2, 3]))]
        verdicts.add(hold(log_dir, f"{part}-{number}: {told}").verdict)
        shutil.rmtree(log_dir)
    assert {"refuses", "starts_clean"} <= verdicts


_QUICK = (
    "produce",
    "groups",
    "topics",
    "truncation",
    "compaction",
    "transactions",
    "event-streams",
)
