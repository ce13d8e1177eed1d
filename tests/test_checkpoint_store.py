"""Checkpoints of a partition while a broker runs: what is written, and when."""

from __future__ import annotations

from pathlib import Path

import pytest
from store_help import Tape, files, tree_of
from test_checkpoint_vectors import VECTORS, log_of

from cursus import layout
from cursus.evidence.walk import LogDirectory
from cursus.formats.checkpoints import ProducerEntry
from cursus.replay.checkpoints import judge_hwm
from cursus.replay.producers import Idempotence, ProducerIndex
from cursus.storage.checkpoint_store import INTERVAL_NS, PartitionCheckpoints

HWM = f"t/{layout.hwm(0)}"
PRODUCERS = f"t/{layout.producers(0)}"


class Clock:
    now = 0

    def __call__(self) -> int:
        return self.now


def checkpoints_of(
    directory: Path,
    tape: Tape | None = None,
    *,
    stored: int | None = None,
    hwm: int = 0,
    producers: Idempotence | None = None,
    clock: Clock | None = None,
) -> PartitionCheckpoints:
    (directory / "t").mkdir(exist_ok=True)
    return PartitionCheckpoints(
        files(tape),
        str(directory),
        "t",
        0,
        stored_hwm=stored,
        hwm=hwm,
        producers=producers.checkpoint if producers is not None else None,
        clock=clock or Clock(),
    )


@pytest.mark.parametrize("offset", [0, 42, 2**64 - 1])
def test_what_is_written_is_what_a_start_reads(offset: int, tmp_path: Path) -> None:
    tape = Tape()
    assert checkpoints_of(tmp_path, tape, hwm=offset).flush()
    assert tape.kinds() == [
        "create partition_0.hwm.tmp",
        "write partition_0.hwm.tmp",
        "fsync partition_0.hwm.tmp",
        "rename partition_0.hwm",
        "sync_directory t",
    ]
    assert (tmp_path / HWM).stat().st_mode & 0o777 == 0o600
    with LogDirectory.at(str(tmp_path)) as evidence:
        found = judge_hwm(evidence, log_of(offset), opens=True)
    assert (found.stored, found.findings) == (offset, ())


def test_producers_are_written_byte_for_byte(tmp_path: Path) -> None:
    vector = VECTORS["producer_checkpoints"][0]
    known = vector["unversioned_reader"]["producers"]
    rules = Idempotence({n: ProducerEntry(e["epoch"], e["seq"]) for n, e in known.items()})
    rules.state["without a sequence"] = ProducerEntry(3, 0)
    store = checkpoints_of(tmp_path, stored=0, producers=rules)
    store.note_producers()
    assert store.flush()
    assert tree_of(tmp_path / "t") == {layout.producers(0): vector["data"].encode()}
    with LogDirectory.at(str(tmp_path)) as evidence:
        found = ProducerIndex("t", 0).finish(evidence, log_of(0), opens=True)
    assert set(found.effective) == set(known)


def test_at_most_every_quarter_of_a_second_and_only_what_changed(tmp_path: Path) -> None:
    clock, tape = Clock(), Tape()
    store = checkpoints_of(tmp_path, tape, stored=0, clock=clock)
    assert not store.flush_if_due()
    store.note_hwm(1)
    assert store.flush_if_due()
    store.note_hwm(2)
    clock.now = INTERVAL_NS - 1
    assert not store.flush_if_due()
    clock.now = INTERVAL_NS
    assert store.flush_if_due()
    assert not store.flush()
    assert (tmp_path / HWM).read_bytes() == b"2\n"
    assert sum(kind.startswith("rename") for kind in tape.kinds()) == 2
    store.note_producers()
    assert not store.dirty  # this one has no producers


def test_a_watermark_does_not_go_down(tmp_path: Path) -> None:
    store = checkpoints_of(tmp_path, stored=9, hwm=9)
    store.note_hwm(4)
    assert not store.flush()


def test_a_start_lowers_a_checkpoint_that_leads(tmp_path: Path) -> None:
    store = checkpoints_of(tmp_path, stored=50, hwm=40)
    assert store.flush()
    assert (tmp_path / HWM).read_bytes() == b"40\n"


def test_a_failure_of_any_step_leaves_a_file_and_a_warning(tmp_path: Path) -> None:
    rules = Idempotence({"p": ProducerEntry(0, 1)})
    for number in range(10):
        place = tmp_path / str(number)
        place.mkdir()
        first = checkpoints_of(place, hwm=1, producers=rules)
        first.note_producers()
        first.flush()
        rules.state["p"] = ProducerEntry(0, number + 2)
        store = checkpoints_of(place, Tape(number), stored=1, hwm=7, producers=rules)
        store.note_producers()
        assert not store.flush()
        assert store.warning is not None
        assert store.dirty
        assert (place / HWM).read_bytes() in {b"1\n", b"7\n"}
        with LogDirectory.at(str(place)) as evidence:
            assert ProducerIndex("t", 0).finish(evidence, log_of(9), opens=True).checkpoint
        assert store.flush()
        assert store.warning is None
        assert set(tree_of(place / "t")) == {layout.hwm(0), layout.producers(0)}
        assert (place / HWM).read_bytes() == b"7\n"
