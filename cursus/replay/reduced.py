"""What the replay needs of a batch: runs and events, not records.

Most records say nothing to a start. Of the rest the replay needs little: for a
transaction how many open records there are, the first of them and some
addresses; for a producer where its sequence begins, ends and jumps. So a batch
of thirty thousand records of one producer is one row here. The same rows serve
three ends: the visitors of the replay take them instead of records, they are
made from columns without decoding a record, and a process that scans sends
them to the one that judges.

Each kind of row is made twice, from records one by one (the definition) and
from columns; tests hold both against each other. Only reachable records of live
segments have rows: the others are evidence, never state.

Source: journal.md sections 5, 6.2 and 7.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from cursus.formats.record import Record
from cursus.formats.record_columns import Int64s, Mask, RecordColumns, UInt64s

#: Addresses kept of the open records of one (id, epoch) in one run.
MAX_ADDRESSES: Final = 1000


class Scanned(Protocol):
    """A record and its place (``ScannedRecord``)."""

    @property
    def position(self) -> int: ...

    @property
    def length(self) -> int: ...

    @property
    def record(self) -> Record: ...


@dataclass(slots=True)
class OpenRun:
    """Open records of one (transactional id, epoch) between two of its markers.

    ``first_offset``: the lowest one. ``addresses``: (position, length, offset) of
    the first :data:`MAX_ADDRESSES` of the ``count`` records, in file order.
    """

    transactional_id: bytes
    epoch: int
    first_offset: int
    count: int = 0
    addresses: list[tuple[int, int, int]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class MarkerRow:
    """One record with a transaction marker."""

    transactional_id: bytes
    epoch: int
    kind: bytes
    offset: int
    coordinator_epoch: int
    position: int


#: Rows of one (id, epoch) are in file order; the order between different ones means nothing.
TransactionRow = OpenRun | MarkerRow


@dataclass(frozen=True, slots=True, eq=False)
class ProducerRuns:
    """Runs of records with a producer id and a sequence above 0, as columns.

    A run: records of one (producer, epoch) whose sequences go up by one, not
    looking at what others wrote in between. ``producers[producer[i]]`` wrote
    ``last_sequence[i] - first_sequence[i] + 1`` records in run ``i``. Runs are in
    the order of their first records. ``last_row`` orders their last ones: the run
    with the highest holds the last record of its producer in the batch.
    """

    producers: tuple[bytes, ...]
    producer: Int64s
    epoch: Int64s
    first_sequence: UInt64s
    last_sequence: UInt64s
    first_offset: UInt64s
    last_offset: UInt64s
    last_row: Int64s

    def __len__(self) -> int:
        return len(self.producer)


@dataclass(frozen=True, slots=True, eq=False)
class AggregateEvents:
    """Records with a key and an aggregate version above 0, in file order, as columns.

    ``keys[key[i]]`` is the key of event ``i``; keys are in order of appearance.
    """

    keys: tuple[bytes, ...]
    key: Int64s
    version: UInt64s
    offset: UInt64s
    position: Int64s
    length: Int64s

    def __len__(self) -> int:
        return len(self.key)


# -- from records --------------------------------------------------------------------------


def transaction_rows_of(items: Iterable[Scanned]) -> list[TransactionRow]:
    """Open runs and markers, record by record."""
    rows: list[TransactionRow] = []
    runs: dict[tuple[bytes, int], OpenRun] = {}
    for item in items:
        record = item.record
        key = (record.transactional_id, record.epoch)
        if record.transaction_marker:
            runs.pop(key, None)
            rows.append(
                MarkerRow(
                    *key,
                    record.transaction_marker,
                    record.offset,
                    record.control_coordinator_epoch,
                    item.position,
                )
            )
        elif record.transaction_state == b"open" and record.transactional_id:
            run = runs.get(key)
            if run is None:
                run = runs[key] = OpenRun(*key, record.offset)
                rows.append(run)
            run.first_offset = min(run.first_offset, record.offset)
            run.count += 1
            if len(run.addresses) < MAX_ADDRESSES:
                run.addresses.append((item.position, item.length, record.offset))
    return rows


def producer_runs_of(items: Iterable[Scanned]) -> ProducerRuns:
    """Runs of producers, record by record."""
    runs: list[list[int]] = []
    current: dict[tuple[bytes, int], list[int]] = {}
    producers: dict[bytes, int] = {}
    for row, item in enumerate(items):
        record = item.record
        producer, epoch, sequence = record.producer_id, record.epoch, record.sequence
        if not producer or not sequence:
            continue
        run = current.get((producer, epoch))
        if run is None or sequence != run[3] + 1:
            code = producers.setdefault(producer, len(producers))
            run = [code, epoch, sequence, sequence, record.offset, record.offset, row]
            current[producer, epoch] = run
            runs.append(run)
        else:
            run[3], run[5], run[6] = sequence, record.offset, row
    columns = list(zip(*runs, strict=True)) or [()] * 7
    return ProducerRuns(
        tuple(producers),
        np.array(columns[0], np.int64),
        np.array(columns[1], np.int64),
        np.array(columns[2], np.uint64),
        np.array(columns[3], np.uint64),
        np.array(columns[4], np.uint64),
        np.array(columns[5], np.uint64),
        np.array(columns[6], np.int64),
    )


def aggregate_events_of(items: Iterable[Scanned]) -> AggregateEvents:
    """Events of aggregates, record by record."""
    keys: dict[bytes, int] = {}
    rows = [
        (
            keys.setdefault(record.key, len(keys)),
            record.aggregate_version,
            record.offset,
            item.position,
            item.length,
        )
        for item in items
        if (record := item.record).key and record.aggregate_version
    ]
    columns: Sequence[Sequence[int]] = list(zip(*rows, strict=True)) or [()] * 5
    return AggregateEvents(
        tuple(keys),
        np.array(columns[0], np.int64),
        np.array(columns[1], np.uint64),
        np.array(columns[2], np.uint64),
        np.array(columns[3], np.int64),
        np.array(columns[4], np.int64),
    )


# -- from columns --------------------------------------------------------------------------


def transaction_rows(columns: RecordColumns) -> list[TransactionRow]:
    """As :func:`transaction_rows_of`."""
    marker, state = columns.transaction_marker, columns.transaction_state
    if marker.all_empty and state.all_empty:
        return []
    marked = marker.present
    is_open = state.equals(b"open") & columns.transactional_id.present & ~marked
    chosen = np.flatnonzero(is_open | marked)
    if not len(chosen):
        return []
    ids, codes = columns.transactional_id.rows(chosen).distinct()
    epochs = columns.epoch[chosen]
    order, heads = grouped(codes, epochs)
    rows: list[tuple[int, TransactionRow]] = []
    marked = marked[chosen]
    for begin, end in spans(heads, len(order)):
        group = order[begin:end]
        key = (ids[int(codes[group[0]])], int(epochs[group[0]]))
        at = 0
        for mark in [*np.flatnonzero(marked[group]).tolist(), len(group)]:
            if mark > at:
                part = chosen[group[at:mark]]
                rows.append((int(part[0]), _open_run(columns, key, part)))
            if mark < len(group):
                row = int(chosen[group[mark]])
                rows.append((row, _marker_row(columns, key, row)))
            at = mark + 1
    rows.sort(key=lambda item: item[0])
    return [row for _, row in rows]


def _open_run(columns: RecordColumns, key: tuple[bytes, int], rows: NDArray[np.intp]) -> OpenRun:
    offsets = columns.offset[rows]
    first = rows[:MAX_ADDRESSES]
    addresses = zip(
        columns.position[first].tolist(),
        columns.length[first].tolist(),
        columns.offset[first].tolist(),
        strict=True,
    )
    return OpenRun(*key, int(offsets.min()), len(rows), list(addresses))


def _marker_row(columns: RecordColumns, key: tuple[bytes, int], row: int) -> MarkerRow:
    return MarkerRow(
        *key,
        columns.transaction_marker.at(row),
        int(columns.offset[row]),
        int(columns.control_coordinator_epoch[row]),
        int(columns.position[row]),
    )


def producer_runs(columns: RecordColumns) -> ProducerRuns:
    """As :func:`producer_runs_of`."""
    if columns.producer_id.all_empty:
        return producer_runs_of(())
    mask: Mask = columns.producer_id.present & (columns.sequence > 0)
    chosen = np.flatnonzero(mask)
    if not len(chosen):
        return producer_runs_of(())
    producers, codes = columns.producer_id.rows(chosen).distinct()
    epochs, sequences = columns.epoch[chosen], columns.sequence[chosen]
    order, heads = grouped(codes, epochs)
    in_order = sequences[order]
    begins = np.ones(len(order), np.bool_)
    # A sequence above 0 is never one more than the highest one: nothing wraps here.
    begins[1:] = in_order[1:] != in_order[:-1] + np.uint64(1)
    begins[heads] = True
    first = np.flatnonzero(begins)
    last = np.append(first[1:], len(order)) - 1
    first_rows, last_rows = order[first], order[last]
    by_first = np.argsort(first_rows, kind="stable")
    first_rows, last_rows = first_rows[by_first], last_rows[by_first]
    offsets = columns.offset[chosen]
    return ProducerRuns(
        tuple(producers),
        codes[first_rows],
        epochs[first_rows],
        sequences[first_rows],
        sequences[last_rows],
        offsets[first_rows],
        offsets[last_rows],
        chosen[last_rows].astype(np.int64),
    )


def aggregate_events(columns: RecordColumns) -> AggregateEvents:
    """As :func:`aggregate_events_of`."""
    chosen = np.flatnonzero((columns.aggregate_version > 0) & columns.key.present)
    if not len(chosen):
        return aggregate_events_of(())
    keys, codes = columns.key.rows(chosen).distinct()
    return AggregateEvents(
        tuple(keys),
        codes,
        columns.aggregate_version[chosen],
        columns.offset[chosen],
        columns.position[chosen],
        columns.length[chosen],
    )


def grouped(codes: Int64s, epochs: Int64s) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Rows ordered by (code, epoch), file order within; and where each group begins."""
    if not bool((epochs == epochs[0]).all()):
        # The codes of epochs are below the number of rows, and so are the others.
        codes = codes * np.int64(len(codes)) + np.unique(epochs, return_inverse=True)[1]
    elif not codes.any():
        return np.arange(len(codes)), np.zeros(1, np.intp)
    few = int(codes.max()) < 1 << 16
    order = np.argsort(codes.astype(np.uint16) if few else codes, kind="stable")
    sorted_codes = codes[order]
    changes = np.append(True, sorted_codes[1:] != sorted_codes[:-1])
    return order, np.flatnonzero(changes)


def spans(heads: NDArray[np.intp], count: int) -> Iterable[tuple[int, int]]:
    """Where each group begins and ends."""
    return zip(heads.tolist(), [*heads[1:].tolist(), count], strict=True)
