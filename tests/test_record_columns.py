"""Columns say what the records say, and the rows of the replay are the same from both."""

from __future__ import annotations

import itertools
import pickle
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cursus.formats import record_columns
from cursus.formats.record import Record
from cursus.formats.record_columns import TEXT_FIELDS, TextColumn, from_records
from cursus.replay import reduced
from cursus.replay.aggregates import AggregateIndex
from cursus.replay.batches import Batch, ReplayBatch
from cursus.replay.interfaces import RecordBatch, ScannedRecord, SegmentRef
from cursus.replay.producers import ProducerIndex
from cursus.replay.transactions import TransactionIndex

FEW = st.sampled_from([b"", b"a", b"b", b"a\0", b"a\0\0", b"longer than eight bytes"])
RECORDS = st.lists(
    st.builds(
        Record,
        topic=st.just(b"orders"),
        offset=st.integers(0, 2**64 - 1),
        producer_id=FEW,
        sequence=st.one_of(st.integers(0, 5), st.integers(2**64 - 3, 2**64 - 1)),
        epoch=st.sampled_from([0, 1, 2**63 - 1]),
        payload=st.binary(max_size=12),
        aggregate_version=st.one_of(st.integers(0, 4), st.just(2**64 - 1)),
        key=FEW,
        transactional_id=FEW,
        transaction_state=st.sampled_from([b"", b"open", b"open", b"opem"]),
        transaction_marker=st.sampled_from([b"", b"", b"commit", b"abort", b"x"]),
        control_coordinator_epoch=st.integers(-(2**63), 2**63 - 1),
    ),
    max_size=40,
)


def items(records: list[Record]) -> list[ScannedRecord]:
    return [ScannedRecord(100 * at, 90 + at, record) for at, record in enumerate(records)]


def ref(**changes: Any) -> SegmentRef:
    values: dict[str, Any] = {
        "path": "orders/partition_0_segment_00000000000000000000.log",
        "topic": "orders",
        "partition": 0,
        "base": 0,
        "size": 10_000,
        "active": True,
        "deleted": False,
        "gaps_allowed": False,
        "internal": False,
    }
    return SegmentRef(**(values | changes))


def batch_of(records: list[Record], **changes: Any) -> Batch:
    return Batch(ref(**changes), items(records), reachable=True)


def plain(value: Any) -> Any:
    """Arrays as lists, so that values can be compared."""
    if isinstance(value, np.ndarray):
        return (str(value.dtype), value.tolist())
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if hasattr(value, "__dataclass_fields__"):
        return {item.name: plain(getattr(value, item.name)) for item in fields(value)}
    return value


@given(records=RECORDS)
def test_columns_give_the_records_back(records: list[Record]) -> None:
    columns = batch_of(records).columns()
    assert len(columns) == len(records)
    assert [columns.record(row) for row in range(len(records))] == records
    assert columns.position.tolist() == [100 * at for at in range(len(records))]
    assert columns.length.tolist() == [90 + at for at in range(len(records))]


@given(values=st.lists(st.one_of(FEW, st.binary(max_size=3), st.binary(max_size=90)), max_size=60))
def test_a_column_knows_its_values(values: list[bytes]) -> None:
    column = column_of(values)
    assert column.values() == values
    assert [column.at(row) for row in range(len(values))] == values
    assert column.all_empty == (not any(values))
    assert column.present.tolist() == [bool(value) for value in values]
    different, codes = column.distinct()
    assert different == list(dict.fromkeys(values))
    assert [different[code] for code in codes.tolist()] == values
    for wanted in {*values, b"absent"}:
        assert column.equals(wanted).tolist() == [value == wanted for value in values]


@given(values=st.lists(st.one_of(FEW, st.binary(max_size=70)), max_size=60))
def test_values_whose_hashes_collide_are_told_apart(values: list[bytes]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record_columns, "_FACTORS", np.zeros(2, np.uint64))
        different, codes = column_of(values).distinct()
    assert different == list(dict.fromkeys(values))
    assert [different[code] for code in codes.tolist()] == values


def column_of(values: list[bytes]) -> TextColumn:
    records = [Record(key=value) for value in values]
    numbers = range(len(values))
    return from_records(records, numbers, numbers).key


def test_a_value_outside_of_the_window_is_not_read() -> None:
    data = np.zeros(10, np.uint8)
    column = TextColumn(data, np.array([0, 8]), np.array([3, 3]))
    with pytest.raises(IndexError):
        column.values()


@settings(max_examples=300)
@given(records=RECORDS)
def test_rows_from_columns_are_rows_from_records(records: list[Record]) -> None:
    scanned, columns = items(records), batch_of(records).columns()
    pairs = [
        (reduced.transaction_rows(columns), reduced.transaction_rows_of(scanned)),
        (reduced.producer_runs(columns), reduced.producer_runs_of(scanned)),
        (reduced.aggregate_events(columns), reduced.aggregate_events_of(scanned)),
    ]
    for fast, slow in pairs:
        assert plain(fast) == plain(slow)


def replayed(batches: list[RecordBatch]) -> Any:
    """What three visitors have in hand behind these batches."""
    transactions, producers = TransactionIndex("orders", 0), ProducerIndex("orders", 0)
    aggregates = AggregateIndex("orders", 0, event_sourcing=True)
    for batch in batches:
        for visitor in (transactions, producers, aggregates):
            visitor.visit(batch)
    return plain(
        [
            {key: (o.first_offset, o.count, o.addresses) for key, o in transactions.open.items()},
            transactions.markers,
            list(producers._last.items()),
            {key: plain(run) for key, run in producers._runs.items()},
            aggregates._versions,
            aggregates._entries.tolist(),
            [(item.position, item.detail) for item in aggregates._gaps],
            aggregates._gap_count,
            aggregates._events,
        ]
    )


@settings(max_examples=300)
@given(records=RECORDS, cuts=st.lists(st.integers(0, 40), max_size=3), base=st.integers(0, 1))
def test_the_replay_does_not_see_how_records_were_cut_into_batches(
    records: list[Record], cuts: list[int], base: int
) -> None:
    """One record a batch leaves nothing to be reduced: that is the definition."""
    scanned = items(records)
    one_by_one = [Batch(ref(base=base), [item], reachable=True) for item in scanned]
    bounds = [0, *sorted(cuts), len(scanned)]
    parts = [
        Batch(ref(base=base), scanned[a:b], reachable=True) for a, b in itertools.pairwise(bounds)
    ]
    reduced_parts = [pickle.loads(pickle.dumps(part.for_replay())) for part in parts]
    assert replayed([*parts]) == replayed([*one_by_one])
    assert replayed(reduced_parts) == replayed([*one_by_one])


@given(
    sequences=st.lists(
        st.one_of(st.integers(1, 30), st.integers(2**64 - 3, 2**64 - 1)), min_size=9, max_size=60
    ),
    cut=st.integers(0, 60),
)
def test_sequences_that_jump_and_repeat_are_counted_one_by_one(
    sequences: list[int], cut: int
) -> None:
    """Counted by hand, with one sequence after the other."""
    records = [Record(b"orders", 0, at, b"p", seq) for at, seq in enumerate(sequences)]
    index = ProducerIndex("orders", 0)
    for part in (records[:cut], records[cut:]):
        index.visit(batch_of(part))
    (run,) = index._runs.values()
    highest, gaps, repeats = sequences[0], 0, 0
    for seq in sequences[1:]:
        repeats += seq <= highest
        gaps += seq > highest + 1
        highest = max(highest, seq)
    assert (run.records, run.gaps, run.duplicates) == (len(sequences), gaps, repeats)
    assert (run.first_sequence, run.last_sequence) == (sequences[0], highest)
    assert (run.first_offset, run.last_offset) == (0, len(sequences) - 1)


def test_many_records_of_one_producer_are_one_row() -> None:
    records = [Record(b"orders", 0, at, b"p", at + 1, 0, b"x" * 90) for at in range(20_000)]
    small = batch_of(records).for_replay()
    assert isinstance(small, ReplayBatch)
    assert len(small) == 20_000
    assert len(small.producer_runs()) == 1
    assert len(pickle.dumps(small)) < 5_000
    with pytest.raises(TypeError):
        list(small)
    with pytest.raises(TypeError):
        small.columns()


def test_consumer_records_stay_whole() -> None:
    records = [Record(b"__consumer_offsets", 0, at, payload=b"{}") for at in range(5)]
    small = batch_of(records, internal=True).for_replay()
    again = pickle.loads(pickle.dumps(small))
    assert list(again) == items(records)
    assert [again.columns().record(row) for row in range(5)] == records


@pytest.mark.parametrize("changes", [{"reachable": False}, {"deleted": True}])
def test_evidence_has_no_rows(changes: dict[str, bool]) -> None:
    record = Record(
        b"orders", 0, 0, b"p", 1, key=b"k", aggregate_version=1, transaction_marker=b"commit"
    )
    segment = ref(deleted=changes.get("deleted", False))
    batch = Batch(segment, items([record]), reachable=changes.get("reachable", True))
    for each in (batch, batch.for_replay()):
        assert not each.transaction_rows()
        assert not len(each.producer_runs())
        assert not len(each.aggregate_events())


def test_every_text_field_has_a_column() -> None:
    columns = batch_of([Record()]).columns()
    assert all(len(columns.text(name)) == 1 for name in TEXT_FIELDS)
