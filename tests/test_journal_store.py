"""The journal while it is written: appends, compaction, expiry, and every failure inside them."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from store_help import NOW, Tape, files, plan_of, refusal_of, tree_of
from test_journal_vectors import GOLDEN, JOURNALS, OVERRIDES, VECTORS

from cursus import layout
from cursus.findings import CATALOGUE, FormatError
from cursus.formats import timestamps
from cursus.formats import transaction_journal as tj
from cursus.formats.transaction_journal import Transaction
from cursus.storage import journal_store
from cursus.storage.errors import StoreError
from cursus.storage.journal_store import JournalStore, compaction_due

WEEK = 604_800 * timestamps.SECOND


def opened(directory: Path, tape: Tape | None = None, now: int = NOW) -> JournalStore:
    """Open what stands there, as a start does."""
    plan = plan_of(directory, now)
    return JournalStore.open(files(tape), str(directory), plan.journal, clock=lambda: now)


def on_disk(directory: Path) -> dict[str, Transaction]:
    return plan_of(directory).journal.transactions


def state(
    name: str = "tx", revision: int = 1, what: str = "aborted", at: int = NOW, **values: Any
) -> Transaction:
    given = {"producer": f"txn-{name}", "created_at": at, "updated_at": at, **values}
    return tj.transaction(id=name, revision=revision, state=what, **given)


def staged(topic: str = "t", payload: str = "p") -> dict[str, Any]:
    message = tj.message(ProducerID="txn-tx", SeqNum=1, Payload=payload)
    return {"Topic": topic, "Partition": 0, "Message": message}


def offset(topic: str = "t") -> dict[str, Any]:
    return {
        "Topic": topic,
        "Group": "g",
        "Member": "m",
        "Generation": 1,
        "Partition": 0,
        "Offset": 3,
        "registration_epoch": 0,
    }


def journal(directory: Path) -> bytes:
    return (directory / layout.JOURNAL).read_bytes()


# -- vectors ---------------------------------------------------------------------------


def test_appends_are_byte_for_byte_those_of_the_vector(tmp_path: Path) -> None:
    expected = (GOLDEN / "journal" / "v1_states.journal").read_bytes()
    store = opened(tmp_path)
    position = 0
    while position < len(expected):
        length = int.from_bytes(expected[position : position + 4], "big")
        envelope = tj.decode(expected[position + 4 : position + 4 + length])
        assert envelope.transaction is not None
        store.append(envelope.transaction)
        position += length + tj.OVERHEAD
    assert journal(tmp_path) == expected
    assert (tmp_path / layout.JOURNAL).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "event", VECTORS["journal_compaction_trace"]["events"], ids=lambda e: str(e["append"])
)
def test_when_a_compaction_runs(event: dict[str, Any]) -> None:
    """The rule at every append of the trace. The frames of the trace are of version 3, with a
    watermark that this broker never writes, so their bytes cannot be made here."""
    due = compaction_due(
        event["records_before"],
        event["latest"],
        event["size_before"],
        event["latest_bytes_before"],
    )
    assert due == (event["records_after"] < event["records_before"])


def test_the_trace_of_this_broker(tmp_path: Path) -> None:
    """520 appends of one id: the trace of the vector without its watermark frame."""
    store = opened(tmp_path)
    compacted = []
    for number in range(1, 521):
        before = store.frames
        store.append(state(revision=number))
        if store.frames <= before:
            compacted.append(number)
            assert (before, store.frames) == (257, 2)
        assert store.size == len(journal(tmp_path))
    first, second = (e["append"] for e in VECTORS["journal_compaction_trace"]["events"][2:4])
    assert compacted == [first + 1, second + 2]
    assert on_disk(tmp_path)["tx"].revision == 520


def test_a_compaction_by_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert compaction_due(2, 1, 16_777_216 + 100, 100)
    assert not compaction_due(2, 1, 16_777_215 + 100, 100)
    monkeypatch.setattr(journal_store, "MAX_SUPERSEDED_BYTES", 10_000)
    store = opened(tmp_path)
    sizes = []
    for number in range(1, 10):
        message = staged(payload="x" * 3000)
        store.append(state(revision=number, what="open", messages=[message]))
        sizes.append(store.frames)
    assert sizes == [1, 2, 3, 4, 2, 3, 4, 2, 3]


#: Vectors of what stands in a journal, for the broker that opens it.
OPENS = [
    vector
    for vector in JOURNALS
    if OVERRIDES.get(vector["name"], vector["v1_broker"])["outcome"] in {"ok", "repaired"}
]


@pytest.mark.parametrize("vector", OPENS, ids=lambda v: str(v["name"]))
def test_a_journal_is_opened_and_cut(vector: dict[str, Any], tmp_path: Path) -> None:
    data = (GOLDEN / "journal" / vector["file"]).read_bytes()
    (tmp_path / layout.JOURNAL).write_bytes(data)
    expected = OVERRIDES.get(vector["name"], vector["v1_broker"])
    store = opened(tmp_path)
    end = expected.get("truncated_to", len(data))
    assert journal(tmp_path) == data[:end]
    assert store.size == end
    assert [s["id"] for s in expected["state"]] == sorted(store.transactions)
    store.append(state("later"))
    assert journal(tmp_path) == data[:end] + tj.encode_frame(state("later"))
    assert plan_of(tmp_path).journal.cut is None


@pytest.mark.parametrize(
    "vector", [v for v in JOURNALS if v not in OPENS], ids=lambda v: str(v["name"])
)
def test_a_refused_journal_is_not_touched(vector: dict[str, Any], tmp_path: Path) -> None:
    data = (GOLDEN / "journal" / vector["file"]).read_bytes()
    (tmp_path / layout.JOURNAL).write_bytes(data)
    assert refusal_of(tmp_path) is not None
    plan = plan_of(tmp_path)
    if plan.journal.complete and not plan.journal.later_versions:
        return  # the import refuses, and it is the plan that says so
    with pytest.raises(StoreError) as error:
        opened(tmp_path)
    assert error.value.code == "journal_write_unavailable"
    assert journal(tmp_path) == data


# -- opening -----------------------------------------------------------------------------


def test_the_first_start_makes_an_empty_journal_and_syncs_its_name(tmp_path: Path) -> None:
    tape = Tape()
    store = opened(tmp_path, tape)
    assert tape.kinds() == [f"create {layout.JOURNAL}", f"sync_directory {tmp_path.name}"]
    assert journal(tmp_path) == b""
    store.close()
    tape.operations.clear()
    opened(tmp_path, tape)
    assert tape.kinds() == [f"fsync {layout.JOURNAL}", f"sync_directory {tmp_path.name}"]


def test_what_is_refused_is_not_written(tmp_path: Path) -> None:
    store = opened(tmp_path)
    huge = staged(payload="x" * tj.MAX_PAYLOAD_BYTES)
    for wrong, code in (
        (state(""), "txn_identity_invalid"),
        (state(revision=0), "txn_revision_missing"),
        (state(what="prepare_commit"), "txn_state_invalid"),
        (state(at=timestamps.ZERO), "txn_timestamps_invalid"),
        (state(epoch=-1), "txn_epoch_negative"),
        (state(what="open", messages=[huge]), "journal_payload_too_large"),
    ):
        with pytest.raises(FormatError) as error:
            store.append(wrong)
        assert error.value.code == code
    assert journal(tmp_path) == b""
    assert not store.transactions


# -- failures, the process lives on --------------------------------------------------------


def test_an_append_that_failed_is_cut_off_before_the_next(tmp_path: Path) -> None:
    long = state("long", what="open", messages=[staged(payload="x" * 900)])
    for failing in ("write", "fsync"):
        place = tmp_path / failing
        place.mkdir()
        tape = Tape()
        store = opened(place, tape)
        store.append(state("a"))
        tape.fail_at = len(tape.operations) + (0 if failing == "write" else 1)
        with pytest.raises(StoreError) as error:
            store.append(long)
        assert error.value.code == "journal_write_unavailable"
        assert set(store.transactions) == {"a"}
        tape.operations.clear()
        store.append(state("b"))
        expected = [f"{kind} {layout.JOURNAL}" for kind in ("truncate", "fsync", "write", "fsync")]
        assert tape.kinds() == (expected if failing == "fsync" else expected[2:])
        assert journal(place) == tj.encode_frame(state("a")) + tj.encode_frame(state("b"))


def test_an_append_that_failed_may_be_there_after_a_crash(tmp_path: Path) -> None:
    store = opened(tmp_path, tape := Tape())
    store.append(state("a"))
    tape.fail_at = len(tape.operations) + 1
    with pytest.raises(StoreError):
        store.append(state("b"))
    assert set(on_disk(tmp_path)) == {"a", "b"}
    assert refusal_of(tmp_path) is None


def filled(directory: Path, tape: Tape | None = None) -> JournalStore:
    """A journal that compacts at its next append."""
    store = opened(directory)
    for number in range(1, 257):
        store.append(state("old", revision=number))
    store.append(state("other"))
    store.append(state("old", revision=300))
    store.close()
    return opened(directory, tape)


def test_every_failure_of_a_compaction(tmp_path: Path) -> None:
    number, seen = 0, []
    while True:
        place = tmp_path / str(number)
        place.mkdir()
        tape = Tape()
        store = filled(place, tape)
        tape.operations.clear()
        tape.fail_at = number
        with suppress(StoreError):
            store.append(state("new"))
        if not tape.failed:
            break
        assert set(store.transactions) == {"old", "other"}
        seen.append(tape.kinds()[number])
        assert set(on_disk(place)) - {"new"} == {"old", "other"}
        tape.fail_at = None
        tape.operations.clear()
        store.append(state("new"))
        if seen[-1].startswith("sync_directory"):
            # A rename that may be lost hides what comes after it: another one must be synced.
            assert f"rename {layout.JOURNAL}" in tape.kinds()
        assert dict(store.transactions) == on_disk(place)
        assert on_disk(place)["old"].revision == 300
        assert store.size == len(journal(place))
        assert set(tree_of(place)) == {layout.JOURNAL}
        number += 1
    compacting = f"{layout.JOURNAL}.compact-0"
    assert seen == [
        f"create {compacting}",
        f"write {compacting}",
        f"write {compacting}",
        f"fsync {compacting}",
        f"rename {layout.JOURNAL}",
        "sync_directory 5",
        f"write {layout.JOURNAL}",
        f"fsync {layout.JOURNAL}",
    ]


def test_every_crash_of_a_compaction(tmp_path: Path) -> None:
    number = 0
    while True:
        place = tmp_path / str(number)
        place.mkdir()
        tape = Tape(dead=True)
        store = filled(place, tape)
        tape.operations.clear()
        tape.fail_at = number
        with suppress(StoreError):
            store.append(state("new"))
        if not tape.failed:
            break
        assert "new" not in store.transactions
        plan = plan_of(place)
        assert plan.verdict == "starts_clean"
        assert plan.journal.transactions["old"].revision == 300
        again = opened(place)
        again.append(state("new"))
        again.compact()
        assert set(on_disk(place)) == {"old", "other", "new"}
        number += 1
    assert number == 8


def test_a_leftover_of_a_compaction_is_neither_read_nor_removed(tmp_path: Path) -> None:
    leftover = tmp_path / layout.journal_compaction(0)
    leftover.write_bytes(b"half")
    store = opened(tmp_path)
    store.append(state())
    store.compact()
    assert leftover.read_bytes() == b"half"
    assert set(on_disk(tmp_path)) == {"tx"}


# -- expiry, deletion of topics --------------------------------------------------------------


def test_a_finished_transaction_lives_twice_its_expiration(tmp_path: Path) -> None:
    now = NOW
    plan = plan_of(tmp_path)
    store = JournalStore.open(files(), str(tmp_path), plan.journal, clock=lambda: now)
    done = state(what="committed", revision=7, messages=[staged()], offsets=[offset()], ready=False)
    store.append(done)
    store.append(state("going", what="open"))
    store.append(state("deciding", what="committing"))
    now = NOW + WEEK
    assert store.expire() == ()
    now += 1
    assert plan_of(tmp_path, now).journal.expire == ("tx",) == store.expire()
    tombstone = on_disk(tmp_path)["tx"]
    assert (tombstone.expired, tombstone.revision, tombstone.updated_at) == (True, 8, now)
    assert (tombstone.messages, tombstone.offsets, tombstone.state) == ([], [], "committed")
    assert store.decision("tx", 0) is None
    assert store.expire() == ()
    now += WEEK + 1
    assert store.expire() == ("tx",)
    assert set(on_disk(tmp_path)) == {"going", "deciding"} == set(store.transactions)


def test_expiry_is_tried_after_each_append_and_never_fails_it(tmp_path: Path) -> None:
    now = NOW
    tape = Tape()
    plan = plan_of(tmp_path)
    store = JournalStore.open(files(tape), str(tmp_path), plan.journal, clock=lambda: now)
    store.append(state("old"))
    now += WEEK + 1
    tape.fail_at = len(tape.operations) + 2  # behind the write and fsync of the append
    store.append(state("new", at=now))
    assert store.expiry_warning is not None
    assert set(on_disk(tmp_path)) == {"old", "new"}
    assert not on_disk(tmp_path)["old"].expired
    store.append(state("newer", at=now))
    assert store.expiry_warning is None
    assert on_disk(tmp_path)["old"].expired


def test_a_deleted_topic_is_forgotten_by_finished_transactions_only(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.append(state("done", what="committed", messages=[staged(), staged("kept")]))
    store.append(state("gone", what="aborted", offsets=[offset()]))
    store.append(state("open", what="open", messages=[staged("kept")]))
    assert store.blockers("kept") == ["open"]
    with pytest.raises(StoreError) as error:
        store.forget_topic("kept")
    assert error.value.code == "topic_referenced"
    assert error.value.code in CATALOGUE
    assert store.blockers("t") == []
    assert store.forget_topic("t") == ("done", "gone")
    assert store.forget_topic("t") == ()
    found = on_disk(tmp_path)
    assert [item["Topic"] for item in found["done"].messages] == ["kept"]
    assert (found["gone"].offsets, found["gone"].revision) == ([], 2)
    assert found == dict(store.transactions)
    assert b'"Topic":"t"' not in journal(tmp_path)


def test_frames_hold_one_document_each(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.append(state("ü\u2028<", what="open", messages=[staged(payload="é\t\u0001")]))
    data = journal(tmp_path)
    length = int.from_bytes(data[:4], "big")
    assert length == len(data) - tj.OVERHEAD
    assert json.loads(data[4:-4])["transaction"]["id"] == "ü\u2028<"
