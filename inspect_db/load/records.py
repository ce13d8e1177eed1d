"""Records, while they are scanned: rows, sums, the largest, and a digest of each log."""

from __future__ import annotations

import hashlib
import heapq
import struct
from dataclasses import dataclass
from typing import Any, Final

from cursus.replay.interfaces import RecordBatch
from inspect_db.load.options import BuildOptions, Progress
from inspect_db.load.writer import Writer
from inspect_db.values import name, name_or_none, number

#: Kept of the largest records.
LARGEST: Final = 100
#: Combinations remembered; beyond that some are written twice, which costs space only.
MAX_SHAPES: Final = 50_000
_NUMBERS: Final = struct.Struct(">QQQQqqIQqh")


@dataclass(slots=True)
class _Sums:
    """Sums over the records of one segment."""

    records: int = 0
    bytes: int = 0
    payload_bytes: int = 0
    largest: int = 0
    keyed: int = 0
    transactional: int = 0
    control: int = 0
    unreachable: int = 0


class RecordLoader:
    """Takes the batches of every scan (the sink of the plan)."""

    def __init__(
        self,
        writer: Writer,
        options: BuildOptions,
        to_scan: int = 0,
        progress: Progress | None = None,
    ) -> None:
        self.writer = writer
        self.options = options
        self.progress = progress
        self.records = 0
        self._sums: dict[int, _Sums] = {}
        self._digests: dict[int, Any] = {}
        self._shapes: dict[tuple[Any, ...], int] = {}
        self._shape_count = 0
        self._largest: list[tuple[int, int, int, tuple[Any, ...]]] = []
        self._scanned = 0
        self._to_scan = to_scan

    def contents(self) -> dict[int, bytes]:
        """Digest of the records of each log, by file."""
        return {file_id: digest.digest() for file_id, digest in self._digests.items()}

    def visit(self, batch: RecordBatch) -> None:
        """Take one batch of a scan."""
        segment = batch.segment
        file_id = self.writer.ids[segment.path]
        sums = self._sums.setdefault(file_id, _Sums())
        digest = self._digests.get(file_id)
        if digest is None:
            digest = self._digests[file_id] = hashlib.blake2b(digest_size=16)
        mode = self.options.records
        keep = mode == "all" or (mode == "internal" and segment.internal)
        kept_payload = self.options.payload_bytes
        topic = segment.topic.encode("utf-8", "surrogateescape")
        partition, reachable = segment.partition, batch.reachable
        shapes = self._shapes
        rows: list[tuple[Any, ...]] = []
        parts: list[bytes] = []
        for item in batch:
            record = item.record
            length, position, size = item.length, item.position, len(record.payload)
            shape = (
                record.producer_id,
                record.epoch,
                record.event_type,
                record.schema_version,
                record.transactional_id,
                record.transaction_state,
                record.transaction_marker,
                record.control_type,
                record.control_version,
                record.control_coordinator_epoch,
                reachable,
                None if record.topic == topic else record.topic,
                None if record.partition == partition else record.partition,
            )
            sums.bytes += length
            sums.payload_bytes += size
            sums.largest = max(sums.largest, length)
            sums.keyed += bool(record.key)
            sums.transactional += bool(record.transactional_id)
            sums.control += record.is_control
            self._look_at_size(length, file_id, position, segment, record.offset, size)
            parts.append(
                _NUMBERS.pack(
                    position,
                    length,
                    record.offset,
                    record.sequence,
                    record.epoch,
                    record.partition,
                    record.schema_version,
                    record.aggregate_version,
                    record.control_coordinator_epoch,
                    record.control_version,
                )
            )
            parts += (
                record.topic,
                record.producer_id,
                record.payload,
                record.event_type,
                record.metadata,
                record.key,
                record.transactional_id,
                record.transaction_state,
                record.transaction_marker,
                record.control_type,
                record.control_key,
                record.control_value,
            )
            if keep:
                rows.append(
                    (
                        file_id,
                        position,
                        length,
                        shapes.get(shape) or self._new_shape(shape),
                        number(record.offset),
                        number(record.sequence) if record.sequence else None,
                        number(record.aggregate_version) if record.aggregate_version else None,
                        name(record.key) if record.key else None,
                        size,
                        record.payload[:kept_payload] if kept_payload else None,
                    )
                )
        digest.update(b"".join(parts))
        sums.records += len(batch)
        sums.unreachable += 0 if reachable else len(batch)
        self.records += len(batch)
        if rows:
            self.writer.connection.executemany(
                "insert or ignore into record_rows values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", rows
            )
        if self.progress is not None and len(batch):
            self._scanned += sum(item.length for item in batch)
            self.progress(self._scanned, self._to_scan)

    def _look_at_size(
        self, length: int, file_id: int, position: int, segment: Any, offset: int, size: int
    ) -> None:
        largest = self._largest
        if len(largest) >= LARGEST and length <= largest[0][0]:
            return
        row = (length, name(segment.topic), number(segment.partition), number(offset), size)
        # Of equal ones the first in the order of files stays.
        entry = (length, -file_id, -position, row)
        if len(largest) < LARGEST:
            heapq.heappush(largest, entry)
        else:
            heapq.heapreplace(largest, entry)

    def _new_shape(self, shape: tuple[Any, ...]) -> int:
        if len(self._shapes) >= MAX_SHAPES:
            self._shapes.clear()
        self._shape_count += 1
        self._shapes[shape] = at = self._shape_count
        producer, epoch, event, schema, txn, state, marker, control, version, coordinator = shape[
            :10
        ]
        reachable, topic, partition = shape[10:]
        self.writer.connection.execute(
            "insert into record_shapes values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                at,
                name_or_none(topic),
                partition,
                name_or_none(producer),
                epoch,
                name_or_none(event),
                schema,
                name_or_none(txn),
                name_or_none(state),
                name_or_none(marker),
                name_or_none(control),
                version,
                coordinator,
                int(reachable),
            ),
        )
        return at

    def close(self) -> None:
        """Write the sums, now that every log was scanned."""
        self.writer.insert(
            "segment_sums",
            (
                (
                    file_id,
                    sums.records,
                    sums.bytes,
                    sums.payload_bytes,
                    sums.largest,
                    sums.keyed,
                    sums.transactional,
                    sums.control,
                    sums.unreachable,
                )
                for file_id, sums in sorted(self._sums.items())
            ),
        )
        ordered = sorted(self._largest, reverse=True)
        self.writer.insert(
            "largest_records",
            (
                (rank, -file_id, -position, *row)
                for rank, (_, file_id, position, row) in enumerate(ordered, 1)
            ),
        )
