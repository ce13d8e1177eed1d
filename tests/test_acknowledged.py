"""What a partition says of itself, and acknowledges, at a moment that is between two steps."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from background_help import SETTINGS, World, sent

from cursus.broker.runtime import Runtime
from cursus.formats.record import Record
from cursus.storage.durable import real_file_system
from cursus.storage.errors import WriteFailedError
from cursus.storage.partition_log import PartitionStore
from cursus.storage.segment_files import ActiveSegment

LOG = Path("t", "partition_0_segment_00000000000000000000.log")


def test_a_duplicate_of_a_queued_record_whose_write_fails_is_not_acknowledged(
    tmp_path: Path,
) -> None:
    """The queue's write fails between the check of the retry and its look at the queue."""
    world = World()
    runtime = Runtime.start(str(tmp_path), SETTINGS, world.machine, background=False)
    storage = runtime.storage
    assert storage is not None
    storage.create_topic("orders", {"partitions": 1, "idempotent": True})
    log = storage.partition("orders", 0)
    storage.enqueue("orders", 0, [sent("desk", 1)])
    real = log.write_queued

    def write_queued() -> int:
        world.fails = lambda item: item.kind == "write" and item.path.endswith(".log")
        with pytest.raises(WriteFailedError):
            log.flush()
        return real()

    log.write_queued = write_queued  # type: ignore[method-assign]
    with pytest.raises(WriteFailedError):
        storage.publish("orders", 0, [sent("desk", 1)])


def test_flushed_is_never_ahead_of_the_file(tmp_path: Path) -> None:
    """An append between the two looks that make up the answer."""
    log = PartitionStore.open(real_file_system(), str(tmp_path), "t", 0)
    log.append(Record(payload=b"first"))
    active = log._active

    class Between:
        """Somebody adds a frame after ``unwritten`` was read."""

        @property
        def unwritten(self) -> int | None:
            found = active.unwritten
            if log._written == 1:
                active.add(log._encoder.frame(Record(payload=b"second"), 1), 1)
                log._next = log._written = 2
            return found

    log._active = Between()  # type: ignore[assignment]
    flushed = log.flushed
    log._active = active
    assert flushed == 1
    assert b"second" not in (tmp_path / LOG).read_bytes()


def test_a_frame_that_somebody_else_was_to_write_is_not_acknowledged_when_he_did_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch takes the gathered frames along; memory ends as they are joined."""
    log = PartitionStore.open(real_file_system(), str(tmp_path), "t", 0)
    log.append(Record(payload=b"first"))
    real, wait = ActiveSegment._write, log._commit.wait
    added, leads, taken = threading.Event(), threading.Event(), threading.Event()

    def write(self: ActiveSegment, frames: list[bytes], offset: int) -> None:
        if threading.current_thread().name == "batch":
            taken.set()
            leads.wait()
            raise MemoryError
        real(self, frames, offset)

    def waits(end: int, sync: object) -> bool:
        if threading.current_thread().name == "single":
            added.set()
            taken.wait()
            leads.set()
        return wait(end, sync)  # type: ignore[arg-type]

    monkeypatch.setattr(ActiveSegment, "_write", write)
    monkeypatch.setattr(log._commit, "wait", waits)
    ends: dict[str, object] = {}

    def single() -> None:
        try:
            ends["single"] = log.append(Record(payload=b"single"))
        except WriteFailedError:
            ends["single"] = "failed"

    def batch() -> None:
        with pytest.raises(MemoryError):
            log.write([Record(payload=b"batch")])

    threads = [
        threading.Thread(target=single, name="single"),
        threading.Thread(target=batch, name="batch"),
    ]
    threads[0].start()
    added.wait()
    threads[1].start()
    for thread in threads:
        thread.join()
    assert b"single" not in (tmp_path / LOG).read_bytes()
    assert ends["single"] == "failed"
    assert log.hwm == 1
