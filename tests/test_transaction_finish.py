"""Commits that are decided: carried out after any crash, or refused by plan and start alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from store_help import NOW, Tape, files, plan_of
from test_consumer_log import Storage

from cursus import layout
from cursus.evidence.walk import LogDirectory
from cursus.findings import CATALOGUE, FormatError
from cursus.formats import transaction_journal as tj
from cursus.formats.record import Record
from cursus.formats.transaction_journal import Transaction
from cursus.replay.commit import commit_marker, staged_records
from cursus.replay.interfaces import RecordBatch
from cursus.replay.producers import Idempotence
from cursus.replay.startup import Plan, plan
from cursus.storage.consumer_log import ConsumerLog
from cursus.storage.errors import StoreError
from cursus.storage.journal_store import JournalStore
from cursus.storage.log_settings import LogSettings
from cursus.storage.manifest_store import ManifestStore
from cursus.storage.partition_log import PartitionStore
from cursus.storage.transaction_finish import finish_commit
from inspect_db import fixtures

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"
SETTINGS = LogSettings(log_index_size_bytes=4096)


class Port:
    """A log directory, opened from a plan as a start opens it."""

    def __init__(self, directory: Path, found: Plan, tape: Tape | None = None) -> None:
        self.files = files(tape)
        self.logs = {
            key: PartitionStore.open(
                self.files, str(directory), *key, found.partitions[key], settings=SETTINGS
            )
            for key in found.producers
        }
        self.known = {k: Idempotence(dict(p.effective)) for k, p in found.producers.items()}
        self.groups = ConsumerLog(
            found.consumers, 4, lambda p, r: self.logs[layout.INTERNAL_TOPIC, p].append(r),
            clock=lambda: NOW,
        )  # fmt: skip
        self.journal = JournalStore.open(
            self.files, str(directory), found.journal, clock=lambda: found.as_of
        )

    def producers(self, topic: str, partition: int) -> Idempotence:
        return self.known[topic, partition]

    def append(self, topic: str, partition: int, records: Sequence[Record]) -> None:
        self.logs[topic, partition].append_batch(records)

    def commit_offsets(
        self, group: str, topic: str, offsets: Mapping[int, int], registration_epoch: int
    ) -> None:
        self.groups.commit_prepared(group, topic, offsets, registration_epoch)

    def finish_all(self) -> list[str]:
        done = [state.id for state in self.journal.committing()]
        for name in done:
            finish_commit(self.journal, name, self, clock=lambda: NOW)
        return done

    def close(self) -> None:
        self.journal.close()
        for store in self.logs.values():
            with suppress(StoreError):
                store.close()


# -- against captures ------------------------------------------------------------------


def captured(name: str, place: Path) -> tuple[Path, int]:
    fixture = fixtures.load(FIXTURES / name)
    return fixtures.materialise(fixture, place), fixture.as_of


def transactional_of(directory: Path, as_of: int) -> tuple[Plan, list[Record]]:
    found: list[Record] = []

    def sink(batch: RecordBatch) -> None:
        found.extend(item.record for item in batch if item.record.transactional_id)

    with LogDirectory.at(str(directory)) as evidence:
        return plan(evidence, as_of=as_of, sink=sink), found


@pytest.mark.parametrize("name", ["small-healthy", "shop-healthy"])
def test_what_a_commit_writes_is_what_the_reference_wrote(name: str, tmp_path: Path) -> None:
    """Every record and marker of a committed transaction, field by field."""
    found, records = transactional_of(*captured(name, tmp_path / "d"))
    there = {replace(item, offset=0) for item in records}
    compared = 0
    for state in found.journal.transactions.values():
        if state.state != "committed" or state.expired:
            continue
        for key, staged in staged_records(state).items():
            compacted = "compact" in found.manifest.by_name[key[0]].policy.cleanup_policy
            for item in (*staged, commit_marker(state, *key)):
                if compacted and item not in there:
                    continue
                assert item in there
                compared += 1
    assert compared >= 16


@pytest.mark.parametrize("name", ["shop-healthy", "shop-killed"])
def test_the_commits_of_a_capture_are_finished(name: str, tmp_path: Path) -> None:
    directory, as_of = captured(name, tmp_path / "d")
    before, _ = transactional_of(directory, as_of)
    assert before.journal.finish
    port = Port(directory, before)
    assert port.finish_all() == [item.transactional_id for item in before.journal.finish]
    port.close()
    after, records = transactional_of(directory, as_of)
    assert after.verdict == "starts_clean"
    assert not after.journal.finish
    assert not any(item.code.startswith("txn_") for item in after.findings if item.step == 4)
    there = [replace(item, offset=0) for item in records]
    for item in before.journal.finish:
        state = after.journal.transactions[item.transactional_id]
        assert state.state == "committed"
        for key, staged in staged_records(state).items():
            assert there.count(commit_marker(state, *key)) == 1
            assert all(there.count(record) == 1 for record in staged)


# -- a small directory -------------------------------------------------------------------


def message(number: int, **values: Any) -> dict[str, Any]:
    given = {"ProducerID": "txn-tx", "SeqNum": number, "Payload": f"p{number}", "Key": "k"}
    return tj.message(TransactionalID="tx", TransactionState="open", **{**given, **values})


def staged(topic: str, partition: int, number: int, **values: Any) -> dict[str, Any]:
    return {"Topic": topic, "Partition": partition, "Message": message(number, **values)}


def offset(partition: int, value: int, *, life: int = 1, topic: str = "orders") -> dict[str, Any]:
    return {
        "Topic": topic,
        "Group": "g",
        "Member": "m",
        "Generation": 1,
        "Partition": partition,
        "Offset": value,
        "registration_epoch": life,
    }


def committing(revision: int = 3, **values: Any) -> Transaction:
    given: dict[str, Any] = {
        "messages": [
            staged("orders", 1, 1),
            staged("orders", 0, 1),
            staged("orders", 1, 2),
            staged("bills", 0, 1),
        ],
        "offsets": [offset(0, 5), offset(1, 7)],
        **values,
    }
    return tj.transaction(
        id="tx",
        producer="txn-tx",
        revision=revision,
        state="committing",
        created_at=NOW,
        updated_at=NOW,
        **given,
    )


def directory_with(place: Path, state: Transaction) -> Path:
    """Two topics, a group with an offset, and the journal as the commit was decided."""
    storage = Storage(place)
    storage.groups.register("orders", "g", 2)
    storage.groups.commit("g", "orders", 0, 6)
    storage.close()
    found = plan_of(place)
    manifest = ManifestStore.from_replay(files(), str(place), found.manifest, found.topics)
    manifest.create("orders", {"partitions": 2})
    manifest.create("bills", {"partitions": 1})
    journal = JournalStore.open(files(), str(place), found.journal, clock=lambda: NOW)
    journal.append(state)
    journal.close()
    return place


def content(found: Plan, place: Path) -> dict[tuple[str, int], list[tuple[bytes, bytes]]]:
    port = Port(place, found)
    seen = {
        key: [(item.payload, item.transaction_marker) for item in store.records()]
        for key, store in port.logs.items()
        if key[0] != layout.INTERNAL_TOPIC
    }
    port.close()
    return seen


EXPECTED = {
    ("bills", 0): [(b"p1", b""), (b"__cursus_txn_control_marker__", b"commit")],
    ("orders", 0): [(b"p1", b""), (b"__cursus_txn_control_marker__", b"commit")],
    ("orders", 1): [
        (b"p1", b""),
        (b"p2", b""),
        (b"__cursus_txn_control_marker__", b"commit"),
    ],
}


def test_every_crash_of_a_commit_is_carried_on(tmp_path: Path) -> None:
    number = 0
    while True:
        place = tmp_path / str(number)
        place.mkdir()
        directory_with(place, committing())
        found = plan_of(place)
        tape = Tape(dead=True)
        port = Port(place, found, tape)
        tape.operations.clear()
        tape.fail_at = number
        with suppress(StoreError, OSError):
            port.finish_all()
        port.close()
        after = plan_of(place)
        assert after.first_refusal is None, tape.operations[-1]
        second = Port(place, after)
        if not tape.failed:
            assert second.finish_all() == []
            second.close()
            break
        assert second.finish_all() in ([], ["tx"])
        second.close()
        last = plan_of(place)
        assert last.verdict == "starts_clean"
        assert last.journal.transactions["tx"].state == "committed"
        assert last.journal.transactions["tx"].revision == 4
        assert last.consumers.groups["g"].offsets == {"orders": {0: 6, 1: 7}}
        assert content(last, place) == EXPECTED
        number += 1
    assert number >= 12


def test_what_is_not_committing_is_not_carried_out(tmp_path: Path) -> None:
    directory_with(tmp_path, committing())
    port = Port(tmp_path, plan_of(tmp_path))
    assert port.finish_all() == ["tx"]
    for name in ("nobody", "tx"):
        with pytest.raises(StoreError) as error:
            finish_commit(port.journal, name, port, clock=lambda: NOW)
        assert error.value.code == "txn_state_invalid"
    port.close()


def test_a_clock_that_went_back_writes_a_frame_that_a_start_reads(tmp_path: Path) -> None:
    directory_with(tmp_path, committing())
    port = Port(tmp_path, plan_of(tmp_path))
    done = finish_commit(port.journal, "tx", port, clock=lambda: NOW - 10**15)
    assert done.updated_at == NOW
    port.close()
    assert plan_of(tmp_path).verdict == "starts_clean"


#: Commits that cannot be carried out, and why.
IMPOSSIBLE: list[tuple[Transaction, str]] = [
    (committing(offsets=[offset(0, 9, life=2)]), "group_incarnation_mismatch"),
    (committing(offsets=[offset(0, 9, life=0)]), "group_incarnation_mismatch"),
    (committing(offsets=[offset(0, 9, topic="bills")]), "topic_mismatch"),
    (committing(epoch=2**31), "txn_marker_invalid"),
    (committing(messages=[staged("orders", 0, 2)]), "first_sequence_not_one"),
    (committing(messages=[staged("orders", 0, 1), staged("orders", 0, 3)]), "sequence_gap"),
    (committing(messages=[staged("orders", 0, 0)]), "sequence_required"),
    (
        committing(messages=[staged("orders", 0, 1, Epoch=2), staged("orders", 0, 2, Epoch=1)]),
        "stale_producer_epoch",
    ),
    (
        committing(messages=[staged("orders", 0, 1), staged("orders", 0, 2, Epoch=1)]),
        "new_epoch_sequence_not_one",
    ),
    (committing(messages=[staged("orders", 0, 1, Key="k" * 70_000)]), "encode_field_too_long"),
    (committing(messages=[staged("orders", 0, 1, Epoch=-1)]), "encode_epoch_negative"),
]


@pytest.mark.parametrize(("state", "code"), IMPOSSIBLE, ids=[code for _, code in IMPOSSIBLE])
def test_plan_and_start_refuse_the_same_commits(
    state: Transaction, code: str, tmp_path: Path
) -> None:
    directory_with(tmp_path, state)
    found = plan_of(tmp_path)
    refusal = found.first_refusal
    assert refusal is not None
    assert (refusal.code, refusal.step, refusal.path) == (code, 4, layout.JOURNAL)
    assert code in CATALOGUE
    assert found.actions == ()
    port = Port(tmp_path, found)
    with pytest.raises((StoreError, FormatError)) as error:
        port.finish_all()
    assert error.value.code == code
    assert port.journal.transactions["tx"].state == "committing"
    port.close()


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda s: s.groups.delete_group("g"), "txn_reference_missing"),
        (
            lambda s: (s.groups.delete_group("g"), s.groups.register("orders", "g", 2)),
            "group_incarnation_mismatch",
        ),
        (
            lambda s: (s.groups.delete_group("g"), s.groups.register("orders", "g", 1)),
            "group_incarnation_mismatch",
        ),
    ],
)
def test_a_group_that_was_deleted_in_between(
    change: Callable[[Storage], object], code: str, tmp_path: Path
) -> None:
    """The coordinator does not let it happen; a directory put together from two moments has it."""
    directory_with(tmp_path, committing())
    held = (tmp_path / layout.JOURNAL).read_bytes()
    (tmp_path / layout.JOURNAL).unlink()
    storage = Storage(tmp_path)
    change(storage)
    storage.close()
    (tmp_path / layout.JOURNAL).write_bytes(held)
    refusal = plan_of(tmp_path).first_refusal
    assert refusal is not None
    assert refusal.code == code


def test_a_partition_that_the_group_was_not_registered_with(tmp_path: Path) -> None:
    state = committing(offsets=[offset(1, 1)])
    storage = Storage(tmp_path)
    storage.groups.register("orders", "g", 1)
    storage.close()
    found = plan_of(tmp_path)
    manifest = ManifestStore.from_replay(files(), str(tmp_path), found.manifest, found.topics)
    manifest.create("orders", {"partitions": 2})
    manifest.create("bills", {"partitions": 1})
    journal = JournalStore.open(files(), str(tmp_path), found.journal, clock=lambda: NOW)
    journal.append(state)
    journal.close()
    refusal = plan_of(tmp_path).first_refusal
    assert refusal is not None
    assert refusal.code == "invalid_partition"


def test_a_duplicate_of_an_earlier_run_is_not_written_again(tmp_path: Path) -> None:
    directory_with(tmp_path, committing())
    port = Port(tmp_path, plan_of(tmp_path))
    port.finish_all()
    port.journal.append(committing(revision=9))
    port.close()
    found = plan_of(tmp_path)
    assert found.journal.finish
    port = Port(tmp_path, found)
    port.finish_all()
    port.close()
    assert content(plan_of(tmp_path), tmp_path) == EXPECTED
