"""The three forms of a batch: decoded records, columns, and what is left for the replay.

``Batch`` holds records that the scalar codec decoded. ``ColumnBatch`` holds
columns over a read window and decodes records only when somebody walks over it.
``ReplayBatch`` holds the rows that a judgement needs and nothing else: it can be
pickled, and visiting it gives exactly the same replay.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from cursus.formats.record import decode
from cursus.formats.record_columns import (
    SLACK,
    RecordColumns,
    decode_frames,
    from_records,
    needle,
)
from cursus.replay import reduced
from cursus.replay.interfaces import ScannedRecord, SegmentRef
from cursus.replay.reduced import AggregateEvents, ProducerRuns, TransactionRow

#: Rows of what must not count: records behind damage and in deleted segments.
NO_PRODUCERS: Final = reduced.producer_runs_of(())
NO_EVENTS: Final = reduced.aggregate_events_of(())


class Batch:
    """Consecutive records of one segment, decoded (fits ``RecordBatch``)."""

    __slots__ = ("_records", "reachable", "segment")

    def __init__(
        self, segment: SegmentRef, records: list[ScannedRecord], *, reachable: bool
    ) -> None:
        self.segment = segment
        self.reachable = reachable
        self._records = records

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[ScannedRecord]:
        return iter(self._records)

    @property
    def counts(self) -> bool:
        """Do these records decide anything?"""
        return self.reachable and not self.segment.deleted

    def columns(self) -> RecordColumns:
        """The records as columns, made on the spot."""
        items = self._records
        return from_records(
            [item.record for item in items],
            [item.position for item in items],
            [item.length for item in items],
        )

    def transaction_rows(self) -> Sequence[TransactionRow]:
        """Open runs and markers."""
        return reduced.transaction_rows_of(self._records) if self.counts else ()

    def producer_runs(self) -> ProducerRuns:
        """Runs of producers."""
        return reduced.producer_runs_of(self._records) if self.counts else NO_PRODUCERS

    def aggregate_events(self) -> AggregateEvents:
        """Events of aggregates."""
        return reduced.aggregate_events_of(self._records) if self.counts else NO_EVENTS

    def for_replay(self, *, aggregates: bool = True) -> ReplayBatch:
        """What the visitors of the replay need, and nothing else."""
        kept = tuple(self._records) if self.segment.internal else None
        return _reduce(self, kept, aggregates=aggregates)


class ColumnBatch:
    """Consecutive records of one segment as columns (fits ``RecordBatch``)."""

    __slots__ = ("_columns", "_start", "reachable", "segment")

    def __init__(
        self, segment: SegmentRef, columns: RecordColumns, start: int, *, reachable: bool
    ) -> None:
        """``start``: where the frame of the first record begins in ``columns.data``."""
        self.segment = segment
        self.reachable = reachable
        self._columns = columns
        self._start = start

    def __len__(self) -> int:
        return len(self._columns)

    def __iter__(self) -> Iterator[ScannedRecord]:
        return scanned(self._columns)

    @property
    def counts(self) -> bool:
        """Do these records decide anything?"""
        return self.reachable and not self.segment.deleted

    def columns(self) -> RecordColumns:
        """The columns, as they were decoded."""
        return self._columns

    def transaction_rows(self) -> Sequence[TransactionRow]:
        """Open runs and markers."""
        return reduced.transaction_rows(self._columns) if self.counts else ()

    def producer_runs(self) -> ProducerRuns:
        """Runs of producers."""
        return reduced.producer_runs(self._columns) if self.counts else NO_PRODUCERS

    def aggregate_events(self) -> AggregateEvents:
        """Events of aggregates."""
        return reduced.aggregate_events(self._columns) if self.counts else NO_EVENTS

    def for_replay(self, *, aggregates: bool = True) -> ReplayBatch:
        """What the visitors of the replay need, and nothing else."""
        kept = self._frames() if self.segment.internal else None
        return _reduce(self, kept, aggregates=aggregates)

    def _frames(self) -> Frames:
        columns = self._columns
        if not len(columns):
            return Frames(0, b"", ())
        first, base = self._start, int(columns.position[0])
        end = first + int(columns.position[-1]) + int(columns.length[-1]) - base
        return Frames(base, columns.data[first:end].tobytes(), tuple(columns.length.tolist()))


def scanned(columns: RecordColumns) -> Iterator[ScannedRecord]:
    """Every row as a record at its place."""
    positions, lengths = columns.position.tolist(), columns.length.tolist()
    return map(ScannedRecord, positions, lengths, columns.records())


@dataclass(frozen=True, slots=True)
class Frames:
    """Whole frames that follow each other, decoded when they are walked over."""

    position: int
    data: bytes
    lengths: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[ScannedRecord]:
        if not self.lengths:
            return
        lengths = np.array(self.lengths, np.int64)
        starts = np.cumsum(lengths) - lengths
        first = decode(self.data, 4, self.lengths[0])
        data = np.frombuffer(self.data + bytes(SLACK), np.uint8)
        begins = needle(first.topic, first.partition)
        columns, _ = decode_frames(data, starts, lengths, starts + self.position, begins)
        yield from scanned(columns)
        for start, length in zip(
            starts[len(columns) :].tolist(), self.lengths[len(columns) :], strict=True
        ):
            # Not as it was when it was scanned: the codec says why.
            record = decode(self.data, start + 4, start + length)
            yield ScannedRecord(self.position + start, length, record)


@dataclass(frozen=True, slots=True, eq=False)
class ReplayBatch:
    """What is left of a batch for the replay (fits ``RecordBatch``; can be pickled).

    ``count``: records that it stands for. The records themselves are there in
    ``__consumer_offsets`` only, where every one of them counts; elsewhere walking
    over it, or asking for its columns, is a mistake and raises ``TypeError``.
    """

    segment: SegmentRef
    reachable: bool
    count: int
    records: Frames | tuple[ScannedRecord, ...] | None
    transactions: tuple[TransactionRow, ...]
    producers: ProducerRuns
    aggregates: AggregateEvents

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[ScannedRecord]:
        if self.records is None:
            raise TypeError("the records of a reduced batch were left behind")
        return iter(self.records)

    def columns(self) -> RecordColumns:
        """Of ``__consumer_offsets`` only. Raises ``TypeError``."""
        items = list(self)
        return Batch(self.segment, items, reachable=self.reachable).columns()

    def transaction_rows(self) -> Sequence[TransactionRow]:
        """Open runs and markers."""
        return self.transactions

    def producer_runs(self) -> ProducerRuns:
        """Runs of producers."""
        return self.producers

    def aggregate_events(self) -> AggregateEvents:
        """Events of aggregates."""
        return self.aggregates

    def for_replay(self, *, aggregates: bool = True) -> ReplayBatch:
        """Itself."""
        return self


def _reduce(
    batch: Batch | ColumnBatch,
    records: Frames | tuple[ScannedRecord, ...] | None,
    *,
    aggregates: bool,
) -> ReplayBatch:
    return ReplayBatch(
        batch.segment,
        batch.reachable,
        len(batch),
        records,
        tuple(batch.transaction_rows()),
        batch.producer_runs(),
        batch.aggregate_events() if aggregates else NO_EVENTS,
    )
