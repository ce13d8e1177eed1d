"""What the storage engine costs above the file operations that it cannot avoid.

Every figure is taken beside the raw operations of the same bytes in the same run,
in turns, so that a disk that is busy for a while is busy for both. Commits are those
of consumer groups and take the whole path of a broker: the snapshot is encoded,
appended to ``__consumer_offsets`` and on the disk when the call returns.
"""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from bench.harness import Benchmark, Figures, Goal, Scale, in_turns, ratio, seconds
from cursus import layout
from cursus.broker.machine import this_machine
from cursus.broker.open_storage import OpenStorage
from cursus.broker.runtime import Runtime
from cursus.evidence.walk import LogDirectory
from cursus.formats.record import Record, encode_frame
from cursus.replay.startup import plan
from cursus.storage.durable import Durable, Operation

TOPIC = "orders"
CALLERS = 64
#: Added to each fsync, at the durable door and in the raw loop: a slower disk.
ADDED_SECONDS = 0.002
BATCH = 1000
PAYLOAD = bytes(200)


def benchmarks() -> list[Benchmark]:
    """Commits, appends, start-up."""
    return [
        Benchmark("storage commits of one", commits_of_one, [Goal("above_raw_us", at_most=60)]),
        Benchmark("storage commits of 64", commits_of_many, [Goal("times_raw", at_least=1.3)]),
        Benchmark(
            "storage commits of 64, slow disk",
            partial(commits_of_many, added=ADDED_SECONDS),
            [Goal("times_raw", at_least=10)],
        ),
        Benchmark("storage appends", appends, [Goal("of_encoder", at_least=0.6)]),
        Benchmark("storage start", start_up, [Goal("of_verdict", at_most=1.3)]),
    ]


class RawFile:
    """Appends and syncs as plainly as it can be done."""

    def __init__(self, path: Path, added: float = 0.0) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        self._position = 0
        self._added = added

    def write(self, data: bytes) -> None:
        """One write and one fsync."""
        os.pwrite(self._descriptor, data, self._position)
        self._position += len(data)
        if self._added:
            time.sleep(self._added)
        os.fsync(self._descriptor)

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


@contextmanager
def _storage(place: Path, added: float = 0.0) -> Iterator[OpenStorage]:
    """A broker's storage with one topic; ``added`` seconds before each fsync."""

    def observer(operation: Operation) -> None:
        if operation.kind == "fsync":
            time.sleep(added)

    log_dir = str(place / "log_dir")
    files = Durable(observer) if added else Durable()
    with Runtime.start(log_dir, machine=this_machine(files), background=False) as runtime:
        assert runtime.storage is not None
        runtime.storage.create_topic(TOPIC, {"partitions": 8})
        yield runtime.storage


def _registered(storage: OpenStorage, count: int) -> bytes:
    """Register groups; return the frame of one commit, for the raw operations."""
    for number in range(count):
        storage.register_group(f"group-{number}", TOPIC, 8)
    _commit(storage, 0, 1)
    logs = [log for (topic, _), log in storage.partitions.items() if topic == layout.INTERNAL_TOPIC]
    latest = [record for log in logs for record in log.records() if b"snapshot" in record.payload]
    return encode_frame(latest[-1])


def _commit(storage: OpenStorage, group: int, offset: int) -> None:
    assert storage.commit_offsets(f"group-{group}", TOPIC, {3: offset})


# -- commits ---------------------------------------------------------------------------------------


def commits_of_one(scale: Scale) -> Figures:
    """One caller, one commit after the other: medians, and what is above the raw operations.

    ``above_raw_us`` is the median of the differences of neighbours.
    """
    with scale.place() as place, _storage(place) as storage:
        frame = _registered(storage, 1)
        raw = RawFile(place / "raw")
        offsets = iter(range(2, 1 << 30))
        spent = in_turns(
            50 if scale.quick else 200 * scale.runs,
            raw=lambda: raw.write(frame),
            commit=lambda: _commit(storage, 0, next(offsets)),
        )
        raw.close()
    above = [ours - bare for ours, bare in zip(spent["commit"], spent["raw"], strict=True)]
    return {
        "raw_us": statistics.median(spent["raw"]) * 1e6,
        "commit_us": statistics.median(spent["commit"]) * 1e6,
        "above_raw_us": statistics.median(above) * 1e6,
    }


def commits_of_many(scale: Scale, added: float = 0.0) -> Figures:
    """64 callers, each with its group, against the raw operations one after the other."""
    each = 2 if scale.quick else 20
    loop = CALLERS if added else CALLERS * each // 4
    with scale.place() as place, _storage(place, added) as storage:
        frame = _registered(storage, CALLERS)
        raw = RawFile(place / "raw", added)
        firsts = iter(range(2, 1 << 30, each))
        spent = in_turns(
            scale.runs,
            raw=lambda: [raw.write(frame) for _ in range(loop)],
            commits=lambda: _together(storage, next(firsts), each),
        )
        raw.close()
    commits = CALLERS * each
    return {
        "raw_per_s": loop / statistics.median(spent["raw"]),
        "commits_per_s": commits / statistics.median(spent["commits"]),
        "times_raw": ratio(spent, "raw", "commits") * commits / loop,
    }


def _together(storage: OpenStorage, first: int, each: int) -> None:
    """Every caller commits ``each`` offsets from ``first`` on."""

    def work(group: int) -> None:
        for offset in range(first, first + each):
            _commit(storage, group, offset)

    threads = [threading.Thread(target=work, args=(group,)) for group in range(CALLERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


# -- appends ---------------------------------------------------------------------------------------


def _batch() -> list[Record]:
    return [
        Record(
            topic=TOPIC.encode(),
            offset=number,
            producer_id=b"bench",
            payload=PAYLOAD,
            key=b"key-%04d" % number,
        )
        for number in range(BATCH)
    ]


def appends(scale: Scale) -> Figures:
    """Records of 200 bytes in batches of 1,000, against the bare encoder.

    The encoder makes the same frames one by one and keeps nothing. ``of_encoder``:
    every batch is on the disk before the next one begins, and the raw write and
    fsync of its bytes count. ``of_encoder_and_raw``: against encoder and raw operations
    together. ``queued_of_encoder``: through the queue, each batch with its share of the
    one flush at the end.
    """
    records = _batch()
    data = b"".join(encode_frame(record) for record in records)
    with scale.place() as place, _storage(place) as storage:
        raw = RawFile(place / "raw")
        log, queue = storage.partition(TOPIC, 0), storage.partition(TOPIC, 1)

        spent = in_turns(
            30 if scale.quick else 10 * scale.runs,
            encoder=lambda: [encode_frame(record) for record in records],
            raw=lambda: raw.write(data),
            append=lambda: log.append_batch(records),
            queued=lambda: queue.enqueue(records),
        )
        flush = seconds(queue.flush) / len(spent["queued"])
        raw.close()
    encoder, bare, append = (statistics.median(spent[n]) for n in ("encoder", "raw", "append"))
    queued = statistics.median(spent["queued"]) + flush
    return {
        "encoder_records_per_s": BATCH / encoder,
        "raw_batch_ms": bare * 1e3,
        "append_records_per_s": BATCH / append,
        "of_encoder": ratio(spent, "encoder", "append"),
        "of_encoder_and_raw": (encoder + bare) / append,
        "queued_records_per_s": BATCH / queued,
        "queued_of_encoder": encoder / queued,
    }


# -- start-up --------------------------------------------------------------------------------------


def start_up(scale: Scale) -> Figures:
    """A start on two million records, against the judgement alone (``inspect-db verdict``)."""
    count = 20_000 if scale.quick else 2_000_000
    records = _batch()
    with scale.place() as place:
        with _storage(place) as storage:
            log = storage.partition(TOPIC, 0)
            for _ in range(count // BATCH):
                log.append_batch(records)
        log_dir = str(place / "log_dir")
        starts: list[float] = []
        spent = in_turns(
            scale.runs,
            verdict=lambda: _judge(log_dir),
            start=lambda: starts.append(_start(log_dir)),
        )
    ratios = [start / judged for start, judged in zip(starts, spent["verdict"], strict=True)]
    return {
        "records": count,
        "verdict_s": statistics.median(spent["verdict"]),
        "start_s": statistics.median(starts),
        "of_verdict": statistics.median(ratios),
    }


def _judge(log_dir: str) -> None:
    with LogDirectory.at(log_dir) as evidence:
        assert plan(evidence, as_of=this_machine().moment()).first_refusal is None


def _start(log_dir: str) -> float:
    """Seconds until storage is open; closing it does not count."""
    found: list[Runtime] = []
    spent = seconds(lambda: found.append(Runtime.start(log_dir, background=False)))
    with found[0] as runtime:
        assert runtime.ready
    return spent
