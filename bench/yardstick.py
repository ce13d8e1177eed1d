"""The yardstick: a plain loop that walks a segment and decodes every field of every record.

Frozen. It stands on nothing of the project and is never made faster or slower:
what a scan is worth is said as a multiple of it, on any machine and in any year.
It has the shape of the plain scan (windows of 1 MiB, batches of 4,096 records),
without any check.
"""

from __future__ import annotations

import os
import struct

WINDOW = 1 << 20
BATCH = 4096

_U32 = struct.Struct(">I")
_U16 = struct.Struct(">H")
_PARTITION_OFFSET = struct.Struct(">IQ")
_SEQUENCE_EPOCH_PAYLOAD = struct.Struct(">QQI")
_SCHEMA_AGGREGATE = struct.Struct(">IQ")
_CONTROL = struct.Struct(">hq")


def walk(path: str) -> tuple[int, int]:
    """Decode every record of a segment; returns how many there are and the sum of their offsets."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        size = os.fstat(descriptor).st_size
        count = total = position = start = 0
        buffer = b""
        batch = []
        while position < size:
            at = position - start
            if at + 4 > len(buffer):
                buffer, start, at = os.pread(descriptor, WINDOW, position), position, 0
            (length,) = _U32.unpack_from(buffer, at)
            if at + 4 + length > len(buffer):
                want = max(WINDOW, 4 + length)
                buffer, start, at = os.pread(descriptor, want, position), position, 0
            batch.append((position, length, decode(buffer, at + 4)))
            position += 4 + length
            if len(batch) == BATCH:
                count += len(batch)
                total += sum(item[2][2] for item in batch)
                batch = []
        count += len(batch)
        total += sum(item[2][2] for item in batch)
        return count, total
    finally:
        os.close(descriptor)


def decode(data: bytes, at: int) -> tuple:  # type: ignore[type-arg]
    """The twenty fields of the record at ``at``."""
    u16 = _U16.unpack_from
    (n,) = u16(data, at + 4)
    at += 6
    topic = data[at : at + n]
    at += n
    partition, offset = _PARTITION_OFFSET.unpack_from(data, at)
    at += 12
    (n,) = u16(data, at)
    at += 2
    producer_id = data[at : at + n]
    at += n
    sequence, epoch, n = _SEQUENCE_EPOCH_PAYLOAD.unpack_from(data, at)
    at += 20
    payload = data[at : at + n]
    at += n
    (n,) = u16(data, at)
    at += 2
    event_type = data[at : at + n]
    at += n
    schema_version, aggregate_version = _SCHEMA_AGGREGATE.unpack_from(data, at)
    at += 12
    (n,) = u16(data, at)
    at += 2
    metadata = data[at : at + n]
    at += n
    (n,) = u16(data, at)
    at += 2
    key = data[at : at + n]
    at += n
    (n,) = u16(data, at)
    at += 2
    transactional_id = data[at : at + n]
    at += n
    (n,) = u16(data, at)
    at += 2
    transaction_state = data[at : at + n]
    at += n
    (n,) = u16(data, at)
    at += 2
    transaction_marker = data[at : at + n]
    at += n
    (n,) = u16(data, at)
    at += 2
    control_type = data[at : at + n]
    at += n
    control_version, coordinator_epoch = _CONTROL.unpack_from(data, at)
    at += 10
    (n,) = u16(data, at)
    at += 2
    control_key = data[at : at + n]
    at += n
    (n,) = u16(data, at)
    at += 2
    control_value = data[at : at + n]
    return (
        topic,
        partition,
        offset,
        producer_id,
        sequence,
        epoch,
        payload,
        event_type,
        schema_version,
        aggregate_version,
        metadata,
        key,
        transactional_id,
        transaction_state,
        transaction_marker,
        control_type,
        control_version,
        coordinator_epoch,
        control_key,
        control_value,
    )
