"""The partition log: what it promises, with threads, restarts, and faults at the durable door."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import random
import tempfile
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from storage_help import judge_log, tree

from cursus import layout
from cursus.findings import FormatError
from cursus.formats.record import MAX_RECORD_BYTES, Record, decode
from cursus.storage.background import BackgroundWriter
from cursus.storage.durable import Durable, Operation
from cursus.storage.errors import (
    ReadError,
    RefusedError,
    StoreError,
    WriteFailedError,
    WriteRefusedError,
)
from cursus.storage.log_settings import LogSettings
from cursus.storage.partition_log import PartitionStore

TOPIC = "orders"


def sized(**changes: object) -> LogSettings:
    """Settings with a small index: one of ten MiB for each segment takes its time."""
    return replace(LogSettings(log_index_size_bytes=4096), **changes)  # type: ignore[arg-type]


SMALL = sized(
    log_segment_bytes=600,
    log_index_interval_bytes=200,
    log_min_cleanable_dirty_ratio=0.01,
    log_retention_hours=-1,
)
HOUR_NS = 3600 * 10**9


class Clock:
    """Time that passes when a test says so."""

    def __init__(self) -> None:
        self.now = 1_900_000_000 * 10**9

    def __call__(self) -> int:
        return self.now


def opened(
    place: Path,
    settings: LogSettings = SMALL,
    *,
    topic: str = TOPIC,
    observer: Callable[[Operation], None] = lambda _operation: None,
    fs: Durable | None = None,
    **options: object,
) -> PartitionStore:
    """The partition as a broker would open it now."""
    place.mkdir(exist_ok=True)
    _, found = judge_log(place, topic, 0)
    return PartitionStore.open(
        fs or Durable(observer),
        str(place),
        topic,
        0,
        found,
        settings=settings,
        **options,  # type: ignore[arg-type]
    )


@pytest.fixture
def quick(tmp_path: Path) -> Iterator[Path]:
    """A directory in memory, where there is one: hundreds of stores are opened in it."""
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as place:
        yield Path(place)


def value(number: int, key: bytes = b"") -> Record:
    return Record(payload=b"value %06d" % number, key=key)


def payloads(store: PartitionStore) -> list[bytes]:
    return [record.payload for record in store.records()]


def log_file(place: Path, base: int = 0, topic: str = TOPIC) -> Path:
    return place / topic / layout.segment_log(0, base)


def index_file(place: Path, base: int = 0, topic: str = TOPIC) -> Path:
    return place / topic / layout.segment_index(0, base)


# -- appending, rolling, reading ---------------------------------------------------------------


def test_every_way_of_appending_gives_contiguous_offsets_that_survive_a_restart(
    tmp_path: Path,
) -> None:
    expected: list[bytes] = []
    for round_ in range(4):
        with opened(tmp_path) as store:
            assert store.leo == store.hwm == len(expected)
            assert store.append(value(len(expected))) == len(expected)
            expected.append(value(len(expected)).payload)
            batch = [value(len(expected) + at) for at in range(5)]
            assert store.append_batch(batch) == range(len(expected), len(expected) + 5)
            expected += [record.payload for record in batch]
            assert store.hwm == len(expected)
            queued = [value(len(expected) + at) for at in range(3)]
            assert store.enqueue(queued) == range(len(expected), len(expected) + 3)
            assert (store.leo, store.hwm) == (len(expected) + 3, len(expected))
            expected += [record.payload for record in queued]
            if round_ % 2:  # close writes what is queued; so does the next append
                assert store.append(value(len(expected))) == len(expected)
                expected.append(value(len(expected)).payload)
                assert store.hwm == len(expected)
        with opened(tmp_path) as store:
            assert payloads(store) == expected
            assert [record.offset for record in store.records()] == list(range(len(expected)))
            assert len(store.segments) > round_


def test_what_is_written_is_promised_when_it_was_waited_for(tmp_path: Path) -> None:
    trace: list[Operation] = []
    with opened(tmp_path, observer=trace.append) as store:
        first, second = store.write([value(0), value(1)]), store.write([value(2)])
        assert (first, second, store.flushed) == (range(2), range(2, 3), 3)
        assert (store.hwm, store.leo, payloads(store)) == (0, 0, [])
        trace.clear()
        store.wait(second.stop)
        store.wait(first.stop)
        assert [operation.kind for operation in trace] == ["fsync"]
        assert (store.hwm, store.leo, len(payloads(store))) == (3, 3, 3)


def test_topic_partition_and_offset_are_those_of_the_log(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.append(Record(topic=b"other", partition=9, offset=77, payload=b"x"))
        (record,) = store.read(0)
        assert (record.topic, record.partition, record.offset) == (b"orders", 0, 0)


def test_a_record_that_cannot_be_written_uses_no_offset(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.append(value(0))
        before = tree(tmp_path)
        for wrong, code in (
            (Record(payload=bytes(MAX_RECORD_BYTES)), "record_too_large"),
            (Record(key=bytes(65_536)), "encode_field_too_long"),
            (Record(epoch=-1), "encode_epoch_negative"),
            (Record(sequence=2**64), "encode_value_out_of_range"),
            (Record(epoch=2**63), "encode_value_out_of_range"),
        ):
            for way in (store.append, lambda r: store.append_batch([value(9), r])):
                with pytest.raises(FormatError) as refused:
                    way(wrong)
                assert refused.value.code == code
        assert tree(tmp_path) == before
        assert store.append(value(1)) == 1


def test_the_largest_record_goes_whole_into_a_segment(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.append(value(0))
        room = MAX_RECORD_BYTES - 80 - len(TOPIC)
        assert store.append(Record(payload=bytes(room))) == 1
        assert store.segments == (0, 1)
        assert [len(record.payload) for record in store.read(1)] == [room]
    with opened(tmp_path) as store:
        assert store.leo == 2


def test_a_read_goes_across_segments_within_its_limits(tmp_path: Path) -> None:
    with opened(tmp_path, open_segments=2) as store:
        for at in range(100):
            store.append(value(at))
        assert len(store.segments) > 10
        frame = store.active_bytes  # of more than one record
        for start in range(101):
            found = store.read(start, max_records=7)
            assert [record.offset for record in found] == list(range(start, min(start + 7, 100)))
        assert len(store.read(3, max_bytes=1)) == 1
        assert 1 < len(store.read(3, max_bytes=frame)) < 100
        assert [record.offset for record in store.read(3, end=5)] == [3, 4]
        for wrong in (-1, 101):
            with pytest.raises(ReadError) as refused:
                store.read(wrong)
            assert refused.value.code == "offset_out_of_range"
            assert refused.value.detail == {"requested": wrong, "earliest": 0, "latest": 100}


def test_open_files_are_bounded(tmp_path: Path) -> None:
    def open_files() -> int:
        where = [os.path.realpath(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")]
        return sum(path.startswith(str(tmp_path / TOPIC)) for path in where)

    with opened(tmp_path, open_segments=3) as store:
        for at in range(200):
            store.append(value(at))
        assert len(store.segments) > 20
        for _ in range(2):
            assert len(list(store.records())) == 200
            # The active log and index, the partition's lock, and log and index of three segments.
            assert open_files() <= 3 + 2 * 3
    assert open_files() == 0


@pytest.mark.parametrize("damage", ["shifted", "descending", "beyond", "short", "missing", "zero"])
def test_an_index_can_only_cost_time(tmp_path: Path, damage: str) -> None:
    settings = sized(log_segment_bytes=20_000, log_index_interval_bytes=300)
    with opened(tmp_path, settings) as store:
        for at in range(300):
            store.append(value(at))
        assert len(store.segments) > 1
    for base in store.segments:
        path = index_file(tmp_path, base)
        data = bytearray(path.read_bytes())
        used = len(bytes(data).rstrip(b"\0")) // 16 * 16
        if damage == "shifted":
            for at in range(15, used, 16):
                data[at] = (data[at] + 3) % 256
        elif damage == "descending":
            data[:used] = b"".join(bytes(data[at : at + 16]) for at in range(used - 16, -1, -16))
        elif damage == "beyond":
            for at in range(8, used, 16):
                data[at] = 0x7F
        elif damage == "short":
            del data[used // 2 + 5 :]
        elif damage == "zero":
            data[:] = bytes(len(data))
        path.write_bytes(data)
        if damage == "missing":
            path.unlink()
    with opened(tmp_path, settings) as store:
        for start in range(0, 300, 7):
            assert [record.offset for record in store.read(start, max_records=5)] == list(
                range(start, min(start + 5, 300))
            )
        assert store.append(value(300)) == 300


def test_a_damaged_closed_segment_fails_the_read_that_meets_it(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        for at in range(30):
            store.append(value(at))
        path = log_file(tmp_path, store.segments[1])
        data = bytearray(path.read_bytes())
        data[4] ^= 0xFF
        path.write_bytes(data)
        assert store.read(0, end=store.segments[1])
        with pytest.raises(ReadError) as refused:
            store.read(0)
        assert refused.value.code == "unsupported_record_format"
        assert (refused.value.path, refused.value.position) == (str(path), 0)


def test_the_timer_rolls_an_old_segment_and_takes_the_queue_with_it(tmp_path: Path) -> None:
    clock = Clock()
    settings = sized(log_segment_roll_ms=1000)
    with opened(tmp_path, settings, clock=clock) as store:
        clock.now += 2 * 10**9
        assert not store.tick(), "an empty segment does not roll"
        store.append(value(0))
        store.enqueue([value(1), value(2)])
        assert store.tick()
        assert store.segments == (0, 3), "the base is above what was queued"
        assert store.hwm == 3
        assert not store.tick()
        store.append(value(3))
    with opened(tmp_path, settings) as store:
        assert [record.offset for record in store.records()] == [0, 1, 2, 3]
        assert judge_log(tmp_path, TOPIC, 0)[1].findings == ()  # type: ignore[union-attr]


def test_an_oversize_batch_fills_the_index_and_no_more(tmp_path: Path) -> None:
    settings = sized(log_index_size_bytes=32, log_index_interval_bytes=64)
    with opened(tmp_path, settings) as store:
        store.append_batch([value(at) for at in range(20)])
        assert store.segments == (0,)
        assert index_file(tmp_path).stat().st_size == 32
        store.append(value(20))
        assert store.segments == (0, 20)
        assert len(payloads(store)) == 21
    with opened(tmp_path, settings) as store:
        assert len(payloads(store)) == 21


# -- the group fsync ---------------------------------------------------------------------------


def fsyncs_log(operation: Operation) -> bool:
    return operation.kind == "fsync" and operation.path.endswith(".log")


def writes_log(operation: Operation) -> bool:
    return operation.kind == "write" and operation.path.endswith(".log")


def test_one_write_and_one_fsync_for_all_who_wait(tmp_path: Path) -> None:
    """While the first fsync is held up, 31 others come; the second one covers them all."""
    callers, held = 32, threading.Event()
    trace: list[str] = []

    def observer(operation: Operation) -> None:
        if not operation.path.endswith(".log") or not started.is_set():
            return
        trace.append(operation.kind)
        if trace == ["write", "fsync"]:
            assert held.wait(60)

    started = threading.Event()
    with opened(tmp_path, sized(), observer=observer) as store:
        started.set()
        offsets: list[int] = []
        threads = [
            threading.Thread(target=lambda at=at: offsets.append(store.append(value(at))))
            for at in range(callers)
        ]
        for thread in threads:
            thread.start()
        until = time.monotonic() + 60
        while len(store._active._gathered) < callers - 1:
            assert time.monotonic() < until
        assert (store.hwm, store.flushed) == (0, 1)
        assert not offsets
        held.set()
        for thread in threads:
            thread.join(60)
        assert sorted(offsets) == list(range(callers))
        assert trace == ["write", "fsync"] * 2
        assert store.hwm == store.flushed == callers
        assert sorted(payloads(store)) == sorted(value(at).payload for at in range(callers))


def offsets_of(frames: bytes) -> Iterator[int]:
    at = 0
    while at < len(frames):
        yield decode(
            frames, at + 4, at := at + 4 + int.from_bytes(frames[at : at + 4], "big")
        ).offset


def test_no_acknowledgement_without_an_fsync_behind_the_write(tmp_path: Path) -> None:
    """By the order of events, for 200 records of eight threads across many segments."""
    lock = threading.Lock()
    events: list[tuple[str, int]] = []

    def observer(operation: Operation) -> None:
        with lock:
            if writes_log(operation):
                events.extend(("written", offset) for offset in offsets_of(operation.data))
            elif fsyncs_log(operation):
                events.append(("synced", -1))

    with opened(tmp_path, sized(log_segment_bytes=4000), observer=observer) as store:

        def work() -> None:
            for at in range(25):
                offset = store.append(value(at))
                with lock:
                    events.append(("acknowledged", offset))

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert len(payloads(store)) == 200
    syncs = [at for at, (kind, _) in enumerate(events) if kind == "synced"]
    written = {offset: at for at, (kind, offset) in enumerate(events) if kind == "written"}
    acknowledged = {offset: at for at, (kind, offset) in enumerate(events) if kind[0] == "a"}
    assert sorted(written) == sorted(acknowledged) == list(range(200))
    for offset, at in acknowledged.items():
        assert bisect_left(syncs, written[offset]) < bisect_left(syncs, at)


def test_nothing_is_written_or_synced_behind_gathered_frames_that_were_not_written(
    tmp_path: Path,
) -> None:
    """Whatever the error was, and though the file knows nothing of it: a hole would be damage."""
    store = opened(tmp_path, sized())
    segment = store._active
    segment.add("no bytes", 0)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        segment.write_out()
    for behind in (
        segment.write_out,
        segment.sync_log,
        lambda: segment.write_batch([b"frame"], 1),
    ):
        with pytest.raises(OSError, match="an earlier write failed"):
            behind()
    assert (segment.size, segment.unwritten) == (0, 0)
    with pytest.raises(WriteFailedError):
        store.close()


def test_a_failed_fsync_fails_everybody_who_waits_for_it(tmp_path: Path) -> None:
    callers, started = 16, threading.Event()
    failed: list[str] = []

    def observer(operation: Operation) -> None:
        if started.is_set() and fsyncs_log(operation):
            until = time.monotonic() + 60
            while len(store._active._gathered) < callers - 1 and time.monotonic() < until:
                pass
            raise OSError(errno.EIO, "injected")

    store = opened(tmp_path, sized(), observer=observer)
    store.append(value(0))
    started.set()

    def work(at: int) -> None:
        try:
            store.append(value(at))
        except WriteFailedError as error:
            failed.append(error.code)

    threads = [threading.Thread(target=work, args=(at,)) for at in range(1, callers + 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failed == ["partition_write_unavailable"] * callers
    assert (store.hwm, store.writable) == (1, False)
    assert payloads(store) == [value(0).payload], "what is durable can still be read"
    with pytest.raises(WriteFailedError):
        store.append(value(99))
    store.close()
    with opened(tmp_path) as again:
        assert again.append(value(7)) >= 1


def test_appends_reads_rolls_and_retention_at_once(tmp_path: Path) -> None:
    settings = sized(log_segment_bytes=2000, log_retention_bytes=6000)
    problems: list[BaseException] = []
    with opened(tmp_path, settings, open_segments=2) as store:
        done = threading.Event()

        def append() -> None:
            for at in range(150):
                store.append(value(at))

        def read() -> None:
            while not done.is_set():
                start = store.log_start
                try:
                    found = [record.offset for record in store.read(start)]
                except ReadError as error:
                    if error.code == "offset_out_of_range":
                        continue  # retention was faster
                    raise
                assert found == list(range(start, start + len(found)))

        def retain() -> None:
            while not done.is_set():
                result = store.apply_retention()
                assert result.failure is None

        def guarded(work: Callable[[], None]) -> Callable[[], None]:
            def run() -> None:
                try:
                    work()
                except BaseException as error:
                    problems.append(error)

            return run

        writers = [threading.Thread(target=guarded(append)) for _ in range(4)]
        others = [threading.Thread(target=guarded(work)) for work in (read, read, retain)]
        for thread in (*others, *writers):
            thread.start()
        for thread in writers:
            thread.join(120)
        done.set()
        for thread in others:
            thread.join(60)
        assert problems == []
        assert store.hwm == 600
        store.apply_retention()
        left = [record.offset for record in store.records()]
        assert left == list(range(store.log_start, 600))
    with opened(tmp_path, settings) as store:
        assert store.leo == 600


# -- queued appends ----------------------------------------------------------------------------


def test_the_queue_is_written_by_size_or_time_and_synced_at_intervals(tmp_path: Path) -> None:
    clock, told = Clock(), []
    settings = sized(disk_flush_batch_size=3, linger_ms=50, disk_flush_interval_ms=500)
    with opened(tmp_path, settings, clock=clock, on_durable=told.append) as store:
        store.enqueue([value(0), value(1)])
        store.service()
        assert (store.flushed, store.hwm, store.leo) == (0, 0, 2)
        clock.now += 50 * 10**6
        store.service()
        assert (store.flushed, store.hwm, store.leo) == (2, 0, 2)
        assert payloads(store) == [], "nobody sees what a crash could take back"
        store.enqueue([value(2), value(3), value(4)])
        store.service()
        assert (store.flushed, store.hwm) == (5, 0)
        assert told == []
        clock.now += 500 * 10**6
        store.service()
        assert (store.hwm, told) == (5, [5])
        assert len(payloads(store)) == 5


def test_a_full_queue_is_written_by_whoever_meets_it(tmp_path: Path) -> None:
    settings = sized(channel_buffer_size=10, disk_flush_batch_size=4)
    with opened(tmp_path, settings) as store:
        for at in range(0, 60, 6):
            assert store.enqueue([value(at + more) for more in range(6)]).start == at
        assert 50 <= store.flushed < 60
        store.flush()
        assert len(payloads(store)) == 60


def test_a_full_queue_that_nobody_empties_refuses(tmp_path: Path) -> None:
    settings = sized(channel_buffer_size=2, disk_write_timeout_ms=1)
    with opened(tmp_path, settings) as store:
        store.attach(lambda: None)
        store.enqueue([value(0), value(1)])
        with pytest.raises(WriteRefusedError) as refused:
            store.enqueue([value(2)])
        assert refused.value.code == "append_queue_full"
        assert store.leo == 2
        assert store.append(value(2)) == 2


def test_the_background_writer_makes_queued_appends_durable(tmp_path: Path) -> None:
    told = threading.Event()
    settings = sized(
        linger_ms=1, disk_flush_interval_ms=1, channel_buffer_size=50, disk_write_timeout_ms=60_000
    )

    def on_durable(end: int) -> None:
        if end == 1000:
            told.set()

    writer = BackgroundWriter()
    store = opened(tmp_path, settings, on_durable=on_durable)
    writer.add(store)
    writer.start()
    for at in range(0, 1000, 10):
        store.enqueue([value(at + more) for more in range(10)])
    assert told.wait(60)
    writer.stop()
    assert writer.failures == {}
    assert store.hwm == 1000
    store.close()


def test_a_partition_that_fails_drops_out_of_the_background_writer(tmp_path: Path) -> None:
    def observer(operation: Operation) -> None:
        if writes_log(operation):
            raise OSError(errno.ENOSPC, "injected")

    settings = sized(linger_ms=1, disk_flush_interval_ms=1)
    told = threading.Event()
    (tmp_path / "a").mkdir()
    bad = opened(tmp_path / "a", settings, observer=observer)
    good = opened(tmp_path / "b", settings, on_durable=lambda _end: told.set())
    writer = BackgroundWriter()
    writer.add(bad)
    writer.add(good)
    writer.start()
    bad.enqueue([value(0)])
    good.enqueue([value(0)])
    assert told.wait(60)
    while not writer.failures:
        pass
    writer.stop()
    assert {key: getattr(e, "code", e) for key, e in writer.failures.items()} == {
        (TOPIC, 0): "partition_write_unavailable"
    }
    assert not bad.writable
    for store in (bad, good):
        store.close()


# -- opening -----------------------------------------------------------------------------------


def test_a_partition_that_is_held_is_refused_at_once(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.append(value(0))
        before = tree(tmp_path)
        with pytest.raises(RefusedError) as refused:
            opened(tmp_path)
        assert refused.value.code == "storage_locked"
        assert tree(tmp_path) == before
        store.append(value(1))
    opened(tmp_path).close()


def test_what_changed_since_it_was_judged_is_not_opened(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        for at in range(10):
            store.append(value(at))
    _, found = judge_log(tmp_path, TOPIC, 0)
    last = log_file(tmp_path, store.segments[-1])
    data = last.read_bytes()
    for change, back in (
        (lambda: last.write_bytes(data[:-1]), lambda: last.write_bytes(data)),
        (lambda: log_file(tmp_path, 999).touch(), lambda: log_file(tmp_path, 999).unlink()),
    ):
        change()
        before = tree(tmp_path)
        for state in (found, None):
            with pytest.raises(RefusedError) as refused:
                PartitionStore.open(Durable(), str(tmp_path), TOPIC, 0, state)
            assert refused.value.code == "file_changed_while_reading"
        assert tree(tmp_path) == before
        back()
    PartitionStore.open(Durable(), str(tmp_path), TOPIC, 0, found).close()


def test_a_torn_tail_is_cut_and_appends_go_on_behind_it(quick: Path) -> None:
    with opened(quick, sized()) as store:
        store.append_batch([value(at) for at in range(3)])
    whole = log_file(quick).read_bytes()
    frame = len(whole) // 3
    for cut in range(2 * frame, 3 * frame):
        log_file(quick).write_bytes(whole[:cut])
        with opened(quick, sized()) as store:
            assert store.leo == 2
            assert store.append(value(2)) == 2
        assert log_file(quick).read_bytes() == whole


def test_an_opening_makes_durable_what_it_read(tmp_path: Path) -> None:
    """A killed process may have left its last writes in memory only."""
    with opened(tmp_path) as store:
        store.append(value(0))
    trace: list[Operation] = []
    opened(tmp_path, observer=trace.append).close()
    kinds = [(item.kind, Path(item.path).name) for item in trace]
    assert kinds == [  # and nothing is changed where nothing has to be
        ("fsync", layout.segment_log(0, 0)),
        ("sync_directory", TOPIC),
        ("sync_directory", tmp_path.name),
    ]
    trace.clear()
    opened(tmp_path, observer=trace.append, sync_names=False).close()
    assert [item.kind for item in trace] == ["fsync"]


def test_a_closed_segment_that_becomes_the_last_one_is_made_writable(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        for at in range(20):
            store.append(value(at))
        store.apply_retention()
        bases = store.segments
    assert log_file(tmp_path, bases[-2]).stat().st_mode & 0o777 == 0o400
    log_file(tmp_path, bases[-1]).unlink()
    index_file(tmp_path, bases[-1]).unlink()
    with opened(tmp_path) as store:
        assert store.append(value(0)) == bases[-1]
    assert log_file(tmp_path, bases[-2]).stat().st_mode & 0o777 == 0o600


def test_the_internal_topic_syncs_its_index_with_the_append(tmp_path: Path) -> None:
    trace: list[Operation] = []
    topic = layout.INTERNAL_TOPIC
    with opened(tmp_path, SMALL, topic=topic, observer=trace.append) as store:
        for at in range(4):
            trace.clear()
            store.append(value(at))
            kinds = [(item.kind, Path(item.path).suffix) for item in trace]
            if ("write", ".index") in kinds:
                assert kinds[-1] == ("fsync", ".index")
                break
        else:
            raise AssertionError("no index entry was due")


def test_a_deleted_segment_of_the_internal_topic_is_never_opened(tmp_path: Path) -> None:
    topic = layout.INTERNAL_TOPIC
    with opened(tmp_path, topic=topic) as store:
        store.append(value(0))
    _, found = judge_log(tmp_path, topic, 0)
    leftover = tmp_path / topic / layout.deleted(layout.segment_index(0, 7))
    leftover.touch()
    with pytest.raises(RefusedError) as refused:
        PartitionStore.open(Durable(), str(tmp_path), topic, 0, found)
    assert refused.value.code == "internal_deleted_segment"
    assert leftover.exists()


# -- maintenance -------------------------------------------------------------------------------


def test_retention_stops_at_the_first_segment_that_stays(tmp_path: Path) -> None:
    clock = Clock()
    settings = sized(log_segment_bytes=400, log_retention_hours=1)
    with opened(tmp_path, settings, clock=clock) as store:
        for at in range(20):
            store.append(value(at))
        bases = store.segments
        old = clock.now - 2 * HOUR_NS
        for base in bases:
            fresh = base == bases[2]
            time = clock.now if fresh else old
            os.utime(log_file(tmp_path, base), ns=(time, time))
        assert store.apply_retention().removed == bases[:2]
        assert store.segments == bases[2:]
        assert store.log_start == bases[2]
        with pytest.raises(ReadError):
            store.read(0)
        assert store.apply_retention().removed == ()


def test_retention_never_touches_the_internal_topic(tmp_path: Path) -> None:
    settings = sized(log_segment_bytes=400, log_retention_bytes=1)
    with opened(tmp_path, settings, topic=layout.INTERNAL_TOPIC) as store:
        for at in range(20):
            store.append(value(at))
        assert store.apply_retention().skipped_reason == "policy_disabled"
        assert store.log_start == 0


def compactable(place: Path) -> tuple[PartitionStore, dict[bytes, bytes]]:
    settings = sized(
        log_segment_bytes=1500,
        log_index_interval_bytes=200,
        log_cleanup_policy="compact",
        log_min_cleanable_dirty_ratio=0.01,
    )
    store = opened(place, settings)
    latest = {}
    for at in range(120):
        key = b"key %d" % (at * 7 % 11)
        store.append(value(at, key))
        latest[key] = value(at).payload
    return store, latest


def latest_of(store: PartitionStore) -> dict[bytes, bytes]:
    return {record.key: record.payload for record in store.records()}


def test_compaction_keeps_the_latest_value_of_every_key(tmp_path: Path) -> None:
    store, latest = compactable(tmp_path)
    with store:
        before = len(payloads(store))
        result = store.compact()
        assert result.segments_rewritten > 3
        assert before - len(payloads(store)) == result.records_removed > 60
        assert latest_of(store) == latest
        for start in range(store.leo + 1):  # every hole can be asked for
            assert all(record.offset >= start for record in store.read(start))
        assert store.compact().skipped_reason == "no_superseded_records"
        for at in range(40):
            store.append(value(200 + at, b"key 0"))
        assert store.compact().records_removed > 0
        latest[b"key 0"] = value(239).payload
        assert latest_of(store) == latest
    with opened(tmp_path, store.settings) as again:
        assert latest_of(again) == latest
        assert again.leo == 160


def test_a_reader_is_not_disturbed_by_maintenance(tmp_path: Path) -> None:
    store, _ = compactable(tmp_path)
    with store, store._reading():
        assert store.compact().skipped_reason == "active_readers"
        assert store.apply_retention().skipped_reason == "active_readers"
        with pytest.raises(WriteRefusedError) as refused:
            store.truncate(3)
        assert refused.value.code == "active_readers"


def test_truncation_drops_the_tail_and_appends_go_on(quick: Path) -> None:
    for offset in range(0, 31):
        place = quick / str(offset)
        with opened(place) as store:
            for at in range(30):
                store.append(value(at))
            assert store.truncate(offset) == (offset < 30)
            assert store.leo == store.hwm == offset
            assert payloads(store) == [value(at).payload for at in range(offset)]
            assert store.append(value(99)) == offset
        with opened(place) as store:
            assert store.leo == offset + 1
            assert not [
                item
                for item in judge_log(place, TOPIC, 0)[1].findings  # type: ignore[union-attr]
                if item.code != "index_missing"
            ]


def test_nothing_above_a_compacted_segment_is_truncated_into_it(tmp_path: Path) -> None:
    store, _ = compactable(tmp_path)
    with store:
        store.compact()
        before = tree(tmp_path)
        with pytest.raises(WriteRefusedError) as refused:
            store.truncate(store.segments[1])
        assert refused.value.code == "truncate_compacted_segment"
        assert tree(tmp_path) == before


# -- all together ------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(12))
def test_any_order_of_operations_gives_what_a_list_would(quick: Path, seed: int) -> None:
    """Random operations against a list of (offset, key, payload), with restarts in between."""
    chance = random.Random(seed)
    clock = Clock()
    settings = sized(
        log_segment_bytes=chance.choice([300, 900, 4000]),
        log_index_size_bytes=chance.choice([48, 4096]),
        log_index_interval_bytes=chance.choice([1, 150, 600]),
        log_segment_roll_ms=1000,
        log_cleanup_policy=chance.choice(["delete", "compact", "delete,compact"]),
        log_min_cleanable_dirty_ratio=0.01,
        log_retention_hours=-1,
        log_retention_bytes=3000,
        disk_flush_batch_size=4,
    )
    store = opened(quick, settings, clock=clock, open_segments=2)
    model: list[tuple[int, bytes, bytes]] = []
    end = 0

    def some() -> list[Record]:
        return [
            Record(key=b"k%d" % chance.randrange(5), payload=bytes(chance.randrange(80)))
            for _ in range(chance.randrange(1, 9))
        ]

    for _ in range(150):
        action = chance.randrange(12)
        if action < 4:
            records = some()
            if action == 0:
                records = records[:1]
                offsets = range(end, end + 1)
                assert store.append(records[0]) == end
            else:
                offsets = (store.append_batch, store.enqueue, store.write)[action - 1](records)
            assert offsets == range(end, end + len(records))
            end = offsets.stop
            model += [(o, r.key, r.payload) for o, r in zip(offsets, records, strict=True)]
        elif action == 4:
            store.flush()
            assert store.hwm == store.leo == end
        elif action == 5:
            store.roll()
        elif action == 6:
            clock.now += chance.randrange(2 * 10**9)
            store.service()
        elif action == 7:
            before = store.segments
            gone = store.apply_retention().removed
            assert gone == before[: len(gone)]
            model = [item for item in model if item[0] >= store.log_start]
        elif action == 8:
            if store.compact().segments_rewritten:
                closed = store.segments[-1]
                latest = {key: offset for offset, key, _ in model if offset < closed}
                model = [i for i in model if i[0] >= closed or latest[i[1]] == i[0]]
        elif action == 9:
            offset = chance.randrange(store.log_start, end + 1)
            with contextlib.suppress(WriteRefusedError):  # compacted
                store.truncate(offset)
                end = offset
                model = [item for item in model if item[0] < end]
        elif action == 10:
            store.close()
            store = opened(quick, settings, clock=clock, open_segments=2)
            assert store.leo == store.hwm == end
        else:
            start = chance.randrange(store.log_start, store.leo + 1)
            count = chance.randrange(1, 20)
            found = [(r.offset, r.key, r.payload) for r in store.read(start, max_records=count)]
            assert found == [i for i in model if start <= i[0] < store.hwm][:count]
    store.flush()
    assert [(r.offset, r.key, r.payload) for r in store.records()] == model
    store.close()


# -- faults ------------------------------------------------------------------------------------


class Fault:
    """Lets ``number`` operations pass; then nothing works any more, as in a crash."""

    def __init__(self, number: int, code: int = errno.EIO) -> None:
        self.left = number
        self.code = code

    def __call__(self, operation: Operation) -> None:
        if self.left <= 0:
            raise OSError(self.code, os.strerror(self.code), operation.path)
        self.left -= 1


def count_of(work: Callable[[Callable[[Operation], None]], None]) -> int:
    """How many operations ``work`` makes when nothing fails."""
    trace: list[Operation] = []
    work(trace.append)
    return len(trace)


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EROFS])
def test_appends_that_fail_anywhere_lose_nothing_that_was_acknowledged(
    quick: Path, code: int
) -> None:
    """At every single operation: appends, batches, rolls, queued appends, close, reopen."""
    acknowledged: list[int] = []

    def work(place: Path, observer: Callable[[Operation], None]) -> None:
        acknowledged.clear()
        try:
            store = opened(place, observer=observer)
        except OSError:
            return
        try:
            for _ in range(8):
                acknowledged.append(store.append(value(0)))
                acknowledged.extend(store.append_batch([value(1)] * 2))
            queued = store.enqueue([value(2)] * 3)
            store.flush()
            acknowledged.extend(queued)
            store.close()
        except WriteFailedError:
            with pytest.raises(WriteFailedError):
                store.append(value(9))
            store.close()

    total = count_of(lambda observer: work(quick / "whole", observer))
    assert len(acknowledged) == 27
    for number in range(total):
        place = quick / str(number)
        work(place, Fault(number, code))
        # Not counting what an append that failed may have left.
        kept = list(acknowledged)
        with opened(place) as store:
            found = [record.offset for record in store.records()]
            assert found[: len(kept)] == kept
            assert found == list(range(len(found)))
            assert store.append(value(3)) == len(found)


def maintenance(name: str) -> Callable[[PartitionStore], object]:
    return {
        "retention": lambda store: store.apply_retention(),
        "compaction": lambda store: store.compact(),
        "truncation": lambda store: store.truncate(13),
    }[name]


@pytest.mark.parametrize("name", ["retention", "compaction", "truncation"])
def test_maintenance_that_is_cut_off_anywhere_leaves_a_log_that_opens(
    quick: Path, name: str
) -> None:
    settings = sized(
        log_segment_bytes=900,
        log_index_interval_bytes=200,
        log_cleanup_policy="compact" if name == "compaction" else "delete",
        log_min_cleanable_dirty_ratio=0.01,
        log_retention_hours=-1,
        log_retention_bytes=1500,
    )

    def prepared(place: Path) -> None:
        with opened(place, settings) as store:
            for at in range(40):
                store.append(value(at, b"key %d" % (at % 3)))

    def work(place: Path, observer: Callable[[Operation], None]) -> set[int]:
        store = opened(place, settings)
        store._fs = Durable(observer)  # from here on only
        with contextlib.suppress(OSError, StoreError):
            maintenance(name)(store)
        offsets = {record.offset for record in store.records()}
        store._fs = Durable()
        store.close()
        return offsets

    prepared(quick / "whole")
    before = set(range(40))
    after: set[int] = set()
    trace: list[Operation] = []
    after = work(quick / "whole", trace.append)
    assert after < before
    for number in range(len(trace)):
        place = quick / str(number)
        prepared(place)
        work(place, Fault(number))
        with opened(place, settings) as store:
            offsets = {record.offset for record in store.records()}
            assert after <= offsets <= before
            if name == "truncation":
                assert offsets == set(range(store.leo))
            elif name == "retention":
                assert offsets == set(range(store.log_start, 40))
            else:
                assert {39, 38, 37} <= offsets
            assert store.leo == max(offsets) + 1
            maintenance(name)(store)
            assert {record.offset for record in store.records()} == after
            names = os.listdir(place / TOPIC)
            assert not [item for item in names if item.endswith((".deleted", ".compacting"))]


def test_a_directory_that_cannot_be_synced_after_a_rename_is_a_warning(tmp_path: Path) -> None:
    store, latest = compactable(tmp_path)
    seen: list[str] = []

    def observer(operation: Operation) -> None:
        if operation.kind == "sync_directory":
            seen.append(operation.path)
            if len(seen) % 2 == 0:  # the second one of each segment, after its renames
                raise OSError(errno.EIO, "injected")

    with store:
        store._fs = Durable(observer)
        result = store.compact()
        store._fs = Durable()
        assert result.warning is not None
        assert result.segments_rewritten > 3
        assert latest_of(store) == latest
        assert store.writable


def appended_until(
    store: PartitionStore, record: Record, error: type[StoreError]
) -> tuple[int, StoreError]:
    """How often ``record`` could be appended before ``error`` came, and the error."""
    for count in range(10_000):
        try:
            store.append(record)
        except error as found:
            return count, found
    raise AssertionError("nothing stopped the appends")


# -- space -------------------------------------------------------------------------------------


class Space(Durable):
    """A real file system that claims to have ``free`` of ``total`` bytes."""

    free = 10_000
    total = 100_000
    asked = 0

    def free_bytes(self, path: str) -> int:
        self.asked += 1
        if self.free < 0:
            raise OSError(errno.EIO, "injected")
        return self.free

    def total_bytes(self, path: str) -> int:
        return self.total


def test_the_free_space_guard_refuses_and_grants_again(tmp_path: Path) -> None:
    clock, space = Clock(), Space()
    settings = sized(min_free_bytes=9_000, min_free_percent=5)
    with opened(tmp_path, settings, fs=space, clock=clock) as store:
        granted, refused = appended_until(store, value(0), WriteRefusedError)
        assert refused.code == "insufficient_disk_space"
        # 10,000 free, 9,000 have to stay: frames of 102 bytes and 16 for an index entry.
        assert granted == 1000 // (4 + 80 + len(TOPIC) + 12 + 16)
        assert (space.asked, store.leo, store.writable) == (1, granted, True)
        with pytest.raises(WriteRefusedError):
            store.enqueue([value(0)])
        clock.now += 10**9
        assert store.append(value(granted)) == granted
        space.free = -1
        clock.now += 10**9
        with pytest.raises(WriteRefusedError):
            store.append(value(0))
        space.free = 10_000
        assert store.append(value(0)) == granted + 1


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB, where we may make one."""
    libc = ctypes.CDLL(None, use_errno=True)
    place = tmp_path / "small"
    place.mkdir()
    if libc.mount(b"tmpfs", os.fsencode(place), b"tmpfs", 0, b"size=256k") != 0:
        pytest.skip("mounting is not permitted here; injected ENOSPC stands in")
    yield place
    libc.umount2(os.fsencode(place), 2)


def test_a_full_disk(small_disk: Path) -> None:
    settings = sized(log_segment_bytes=40_000)
    store = opened(small_disk, settings)
    acknowledged, failed = appended_until(store, Record(payload=bytes(5000)), WriteFailedError)
    assert isinstance(failed.__cause__, OSError)
    assert failed.__cause__.errno == errno.ENOSPC
    assert acknowledged > 30
    assert len(list(store.records())) == acknowledged, "what is there can be read"
    result = store.apply_retention()
    assert result.failure is None
    store.close()
    freed = sized(log_segment_bytes=40_000, log_retention_bytes=80_000)
    with opened(small_disk, freed) as store:
        assert store.leo == acknowledged
        assert store.apply_retention().removed
        assert store.append(Record(payload=bytes(5000))) == acknowledged
