"""One segment into tables: scanned once, and everything made of it while the scan holds it.

Rows of records, sums, the largest records, digests of its blocks, and what the
replay will need of it: the judgement itself comes later (``kept``), from what
this leaves, in whatever process this ran.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final

import apsw
import numpy as np

from cursus.replay.interfaces import Entry, RecordBatch, SegmentScan
from cursus.replay.segments import SegmentFiles, SegmentJudgement, judge_segment
from inspect_db.load.digests import Blocks, DigestingDirectory
from inspect_db.load.kept import encode_batch
from inspect_db.load.options import BuildOptions
from inspect_db.load.records import Shapes, insert_rows

#: Kept of the largest records.
LARGEST: Final = 100
#: (length, position, offset, bytes of the payload)
Large = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class Item:
    """A segment to scan.

    ``aggregates``: are its keys aggregates with versions? ``grown``: what is known of
    its beginning, of which nothing is scanned again.
    """

    file_id: int
    files: SegmentFiles
    entry: Entry
    aggregates: bool
    grown: Grown | None = None

    @property
    def bytes(self) -> int:
        """How much of it is to be scanned."""
        before = self.grown.after.end_position if self.grown is not None else 0
        return self.files.ref.size - before


@dataclass(slots=True)
class Sums:
    """Sums over the records of one segment."""

    records: int = 0
    bytes: int = 0
    payload_bytes: int = 0
    largest: int = 0
    keyed: int = 0
    transactional: int = 0
    control: int = 0
    unreachable: int = 0

    def row(self) -> tuple[int, ...]:
        """The columns of ``segment_sums`` behind the file."""
        return (
            self.records,
            self.bytes,
            self.payload_bytes,
            self.largest,
            self.keyed,
            self.transactional,
            self.control,
            self.unreachable,
        )


@dataclass(frozen=True, slots=True)
class Grown:
    """What an earlier scan found before the end of the good frames, and left behind.

    ``known``: digests of everything before that end (``BlockDigester.so_far``); what
    they are of has been compared.
    """

    after: SegmentScan
    known: tuple[bytes, ...]
    sums: Sums
    largest: list[Large]
    batches: int


@dataclass(slots=True)
class Scanned:
    """What is known of a segment after its scan. ``blocks``: ``None`` if it was not read whole."""

    item: Item
    judged: SegmentJudgement
    sums: Sums
    largest: list[Large]
    blocks: Blocks | None


@dataclass(slots=True)
class SegmentLoader:
    """Scans segments into the tables of a database.

    ``advanced`` is called with the bytes of each batch; the database may be
    changed there, between two batches.
    """

    connection: apsw.Connection
    evidence: DigestingDirectory
    options: BuildOptions
    shapes: Shapes
    advanced: Callable[[int], None] | None = None
    _sums: Sums = field(default_factory=Sums)
    _largest: list[Large] = field(default_factory=list)
    _batches: int = 0

    def load(self, item: Item) -> Scanned:
        """Scan one segment."""
        self._sums, self._largest, self._batches = Sums(), [], 0
        after = None
        if item.grown is not None:
            grown, after = item.grown, item.grown.after
            self._sums, self._largest = replace(grown.sums), list(grown.largest)
            self._batches = grown.batches
            self.evidence.known = grown.known
        judged = judge_segment(
            self.evidence, item.files, lambda batch: self._take(item, batch), after
        )
        return Scanned(item, judged, self._sums, self._largest, self.evidence.blocks)

    def _take(self, item: Item, batch: RecordBatch) -> None:
        if not len(batch):
            return
        columns = batch.columns()
        sums, options = self._sums, self.options
        length, payload = columns.length, columns.payload.length
        size = int(length.sum())
        sums.records += len(batch)
        sums.bytes += size
        sums.payload_bytes += int(payload.sum())
        sums.largest = max(sums.largest, int(length.max()))
        sums.keyed += int(np.count_nonzero(columns.key.length))
        sums.transactional += int(np.count_nonzero(columns.transactional_id.length))
        control = columns.control_type.length + columns.transaction_marker.length
        sums.control += int(np.count_nonzero(control))
        sums.unreachable += 0 if batch.reachable else len(batch)
        self._look_at_sizes(length, columns.position, columns.offset, payload)
        if options.records == "all" or (options.records == "internal" and batch.segment.internal):
            insert_rows(
                self.connection, self.shapes, item.file_id, batch, columns, options.payload_bytes
            )
        data = encode_batch(batch.for_replay(aggregates=item.aggregates))
        if data is not None:
            self.connection.execute(
                "insert into kept_batches values (?, ?, ?)", (item.file_id, self._batches, data)
            )
            self._batches += 1
        if self.advanced is not None:
            self.advanced(size)

    def _look_at_sizes(self, length: Any, position: Any, offset: Any, payload: Any) -> None:
        """Keep the largest; of equal ones the first in the log stay."""
        held = self._largest
        least = held[-1][0] if len(held) == LARGEST else -1
        if int(length.max()) <= least:
            return
        rows = np.flatnonzero(length > least)
        rows = rows[np.argsort(-length[rows], kind="stable")[:LARGEST]]
        columns = (length, position, offset, payload)
        held += zip(*(column[rows].tolist() for column in columns), strict=True)
        held.sort(key=lambda row: (-row[0], row[1]))
        del held[LARGEST:]
