"""What the storage engine costs above the file operations that it cannot avoid.

Every figure is taken beside the raw operations of the same bytes in the same run,
in turns, so that a disk that is busy for a while is busy for both. Commits are
those of consumer groups, through the whole path: the snapshot is encoded, appended
to ``__consumer_offsets`` and on the disk when the call returns.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from cursus import layout
from cursus.evidence.walk import LogDirectory
from cursus.formats import timestamps
from cursus.formats.record import FrameEncoder, Record, encode_frame
from cursus.replay.startup import plan
from cursus.storage.consumer_log import ConsumerLog
from cursus.storage.durable import Durable, Operation
from cursus.storage.partition_log import PartitionStore

Figures = dict[str, float]

#: Commits one after the other; callers at once, and commits of each.
SINGLE, CALLERS, EACH = 300, 64, 20
ROUNDS = 5
BATCHES, BATCH = 40, 1000
START_RECORDS = 2_000_000
ADDED_SECONDS = 0.002


class RawFile:
    """Appends and syncs as plainly as it can be done."""

    def __init__(self, place: Path, added: float = 0.0) -> None:
        self._descriptor = os.open(place / "raw", os.O_RDWR | os.O_CREAT, 0o600)
        self._position = 0
        self._added = added

    def write(self, data: bytes) -> None:
        os.pwrite(self._descriptor, data, self._position)
        self._position += len(data)
        if self._added:
            time.sleep(self._added)
        os.fsync(self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)


class Groups:
    """A consumer log over one partition of the internal topic, and its raw counterpart."""

    def __init__(self, place: Path, count: int, added: float = 0.0) -> None:
        def observer(operation: Operation) -> None:
            if added and self.ready and operation.kind == "fsync":
                time.sleep(added)

        self.ready = False
        (place / "log").mkdir()
        self.store = PartitionStore.open(
            Durable(observer), str(place / "log"), layout.INTERNAL_TOPIC, 0
        )
        self.frames: list[bytes] = []
        encoder = FrameEncoder(layout.INTERNAL_TOPIC.encode(), 0)

        def append(_partition: int, record: Record) -> int:
            if not self.frames:
                self.frames.append(encoder.frame(record, 0))
            return self.store.append(record)

        (place / "empty").mkdir()
        with LogDirectory.at(str(place / "empty")) as evidence:
            nobody = plan(evidence).consumers
        self.log = ConsumerLog(nobody, 1, append, clock=_moment)
        for number in range(count):
            self.log.register("orders", f"group-{number}", 8)
        self.frames.clear()
        self.offset = 0
        self.ready = True

    def commit(self, group: int, offset: int) -> None:
        self.log.commit(f"group-{group}", "orders", 3, offset)

    def frame(self) -> bytes:
        """The frame of one commit."""
        self.frames.clear()
        self.offset += 1
        self.commit(0, self.offset)
        return self.frames[0]


def _moment() -> int:
    return timestamps.from_unix_ns(time.time_ns())


@contextmanager
def _place(parent: str | None = None) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="cursus-bench-", dir=parent) as place:
        yield Path(place)


def _seconds(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def commits_of_one_caller() -> Figures:
    """Median commit of a single caller, above the median raw write and fsync of its frame."""
    with _place() as place:
        groups, raw = Groups(place, 1), RawFile(place)
        frame = groups.frame()
        ours, theirs = [], []
        for offset in range(2, SINGLE + 2):
            theirs.append(_seconds(lambda: raw.write(frame)))
            ours.append(_seconds(lambda offset=offset: groups.commit(0, offset)))
        raw.close()
        groups.store.close()
    bare, commit = statistics.median(theirs) * 1e6, statistics.median(ours) * 1e6
    return {"raw_us": bare, "commit_us": commit, "above_raw_us": commit - bare}


def commits_of_many_callers(added: float = 0.0) -> Figures:
    """Commits of 64 threads, each with its group, against the raw loop one after the other.

    ``added``: seconds before each fsync, at the observer and in the raw loop.
    """
    ratios, rates = [], []
    with _place() as place:
        groups, raw = Groups(place, CALLERS, added), RawFile(place, added)
        frame = groups.frame()
        loop = 50 if added else 200
        for round_ in range(ROUNDS):
            bare = _seconds(lambda: [raw.write(frame) for _ in range(loop)]) / loop
            first = groups.offset + 1 + round_ * EACH
            ours = _together(groups, first) / (CALLERS * EACH)
            ratios.append(bare / ours)
            rates.append(1 / ours)
        raw.close()
        groups.store.close()
    return {"commits_per_s": statistics.median(rates), "times_raw": statistics.median(ratios)}


def _together(groups: Groups, first: int) -> float:
    """Seconds that all callers take for their commits."""
    start = threading.Barrier(CALLERS + 1)

    def work(group: int) -> None:
        start.wait()
        for offset in range(first, first + EACH):
            groups.commit(group, offset)

    threads = [threading.Thread(target=work, args=(group,)) for group in range(CALLERS)]
    for thread in threads:
        thread.start()
    start.wait()
    begin = time.perf_counter()
    for thread in threads:
        thread.join()
    return time.perf_counter() - begin


def _batch() -> list[Record]:
    return [
        Record(
            topic=b"orders",
            offset=number,
            producer_id=b"bench",
            sequence=number + 1,
            epoch=1,
            payload=bytes(200),
            key=b"key-%04d" % number,
        )
        for number in range(BATCH)
    ]


def appends_in_batches() -> Figures:
    """Records of 200 bytes in batches of 1,000, each batch durable, and through the queue.

    The bare encoder makes the same frames one by one and keeps nothing. A durable
    batch also takes what the raw write and fsync of its bytes take; the queue is
    synced once for ten batches, and that time counts.
    """
    records = _batch()
    bare, durable, queued, raw_times = [], [], [], []
    with _place() as place:
        (place / "log").mkdir()
        store = PartitionStore.open(Durable(), str(place / "log"), "orders", 0)
        raw = RawFile(place)
        data = b"".join(encode_frame(record) for record in records)
        for _ in range(BATCHES):
            bare.append(_seconds(lambda: [encode_frame(record) for record in records]))
            raw_times.append(_seconds(lambda: raw.write(data)))
            durable.append(_seconds(lambda: store.append_batch(records)))
            queued.append(_seconds(lambda: _queue_ten(store, records)) / 10)
        raw.close()
        store.close()
    encoder, batch = statistics.median(bare), statistics.median(durable)
    return {
        "encoder_records_per_s": BATCH / encoder,
        "raw_batch_ms": statistics.median(raw_times) * 1e3,
        "durable_batch_ms": batch * 1e3,
        "durable_of_encoder": encoder / batch,
        "durable_of_encoder_and_raw": (encoder + statistics.median(raw_times)) / batch,
        "queued_records_per_s": BATCH / statistics.median(queued),
        "queued_of_encoder": encoder / statistics.median(queued),
    }


def _queue_ten(store: PartitionStore, records: list[Record]) -> None:
    for _ in range(10):
        store.enqueue(records)
    store.flush()


def start_up(records: int = START_RECORDS) -> Figures:
    """A start on ``records`` records, against the judgement alone (``inspect-db verdict``)."""
    from cursus.broker.runtime import Runtime

    batch = _batch()
    starts, judgements = [], []
    with _place() as place:
        log_dir = str(place / "log")
        with Runtime.start(log_dir) as runtime:
            assert runtime.storage is not None
            runtime.storage.create_topic("orders", {"partitions": 1})
            log = runtime.storage.partition("orders", 0)
            for _ in range(records // BATCH):
                log.append_batch(batch)
        for _ in range(3):
            judgements.append(_seconds(lambda: _judge(log_dir)))
            begin = time.perf_counter()
            with Runtime.start(log_dir) as runtime:
                starts.append(time.perf_counter() - begin)
                assert runtime.ready
    start, judged = statistics.median(starts), statistics.median(judgements)
    return {"verdict_s": judged, "start_s": start, "of_verdict": start / judged}


def _judge(log_dir: str) -> None:
    with LogDirectory.at(log_dir) as evidence:
        plan(evidence, as_of=_moment())


if __name__ == "__main__":
    for measure in (
        commits_of_one_caller,
        commits_of_many_callers,
        lambda: commits_of_many_callers(ADDED_SECONDS),
        appends_in_batches,
    ):
        print({name: round(value, 2) for name, value in measure().items()})
