"""One record of a partition log: ``CDM2``, and what older and newer builds wrote.

A segment file is a run of frames without header, footer or gaps::

    u32   length L          1 <= L <= 67,108,864 (MAX_RECORD_BYTES)
    byte  record[L]

    record, CDM2 (all integers big-endian)
    ---------------------------------------------------------------
    4     magic "CDM2"
    2+n   topic                      u16 length + bytes
    4     partition                  u32, at most 2^31-1
    8     offset                     u64
    2+n   producer_id                empty = no producer
    8     sequence                   u64, 0 = none
    8     epoch                      u64, at most 2^63-1
    4+n   payload                    u32 length + bytes
    2+n   event_type
    4     schema_version             u32
    8     aggregate_version          u64
    2+n   metadata
    2+n   key                        empty = no key
    2+n   transactional_id
    2+n   transaction_state          "", open, committed, aborted
    2+n   transaction_marker         "", commit, abort
    2+n   control_type               "" or transaction
    2     control_version            i16
    8     control_coordinator_epoch  i64
    2+n   control_key
    2+n   control_value
    ---------------------------------------------------------------
    80 bytes when every field is empty

There is no timestamp, no checksum and no optional trailer. A changed byte
inside a value is therefore invisible to every reader. Text fields are bytes:
the codec checks neither UTF-8 nor any domain of values.

Other generations are recognised as evidence only (:func:`decode_any`):

    unversioned   fields 2-8, then optional tails; no magic
    CDM3          CDM2 fields, event_id, payload_digest (or a CRC32C: side line)
    CDM4          CDM3, then u32 CRC32C of all bytes before it
    CDM5          named, not decoded

Source: segments.md sections 1, 3, 4, 19, 20.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import google_crc32c

from cursus.findings import FormatError

MAGIC: Final = b"CDM2"
MAX_RECORD_BYTES: Final = 67_108_864
#: Limit of the builds that wrote unversioned records.
OLDER_MAX_RECORD_BYTES: Final = 16_777_216
MIN_RECORD_BYTES: Final = 80
MAX_PARTITION: Final = 2**31 - 1
MAX_EPOCH: Final = 2**63 - 1
MAX_TEXT: Final = 65_535

Generation = Literal["CDM2", "CDM3", "CDM4", "CDM5", "unversioned"]

_TRANSACTION = ("transactional_id", "transaction_state", "transaction_marker")
_CONTROL_DATA = ("control_key", "control_value")

#: Shape of the fields behind the magic: (width of a length prefix, fixed size, highest value).
_SHAPE: Final = (
    (2, 0, 0),  # topic
    (0, 4, MAX_PARTITION),
    (0, 8, 0),  # offset
    (2, 0, 0),  # producer_id
    (0, 8, 0),  # sequence
    (0, 8, MAX_EPOCH),
    (4, 0, 0),  # payload
    (2, 0, 0),  # event_type
    (0, 12, 0),  # schema_version, aggregate_version
    *((2, 0, 0),) * 6,  # metadata, key, transactional id, state, marker, control type
    (0, 10, 0),  # control_version, control_coordinator_epoch
    (2, 0, 0),  # control_key
    (2, 0, 0),  # control_value
)

_U16 = struct.Struct(">H")
_U32 = struct.Struct(">I")
_PARTITION_OFFSET = struct.Struct(">IQ")
_SEQUENCE_EPOCH_PAYLOAD = struct.Struct(">QQI")
_SCHEMA_AGGREGATE = struct.Struct(">IQ")
_CONTROL = struct.Struct(">hq")
_HEAD = struct.Struct(">4sH")
_OFFSET_PRODUCER = struct.Struct(">QH")
#: event_type, schema_version, aggregate_version and metadata of a record that has none.
_NO_EVENT: Final = bytes(2 + 12 + 2)
#: The same, and the length of the key behind it.
_NO_EVENT_KEY = struct.Struct(">16xH")
#: Fields 14 to 21 of a record outside any transaction.
_NO_TRANSACTION: Final = bytes(4 * 2 + 10 + 2 * 2)
assert _PARTITION_OFFSET.size == 12
assert _SEQUENCE_EPOCH_PAYLOAD.size == 20
assert _SCHEMA_AGGREGATE.size == 12
assert _CONTROL.size == 10


@dataclass(frozen=True, slots=True)
class Record:
    """The fields of one record, in the order in which they stand on disk."""

    topic: bytes = b""
    partition: int = 0
    offset: int = 0
    producer_id: bytes = b""
    sequence: int = 0
    epoch: int = 0
    payload: bytes = b""
    event_type: bytes = b""
    schema_version: int = 0
    aggregate_version: int = 0
    metadata: bytes = b""
    key: bytes = b""
    transactional_id: bytes = b""
    transaction_state: bytes = b""
    transaction_marker: bytes = b""
    control_type: bytes = b""
    control_version: int = 0
    control_coordinator_epoch: int = 0
    control_key: bytes = b""
    control_value: bytes = b""

    @property
    def is_control(self) -> bool:
        """A commit or abort marker (segments.md section 4.3)."""
        return bool(self.control_type or self.transaction_marker)


_NOTHING: Final = Record()


class _Draft:
    """A record while the decoder fills it; it becomes a :class:`Record` by its class.

    The initialiser of a frozen dataclass goes through ``object.__setattr__`` for
    each field and took two thirds of the time of decoding. This one has the same
    slots, so the finished object can change its class.
    """

    __slots__ = Record.__slots__

    def __init__(
        self,
        topic: bytes,
        partition: int,
        offset: int,
        producer_id: bytes,
        sequence: int,
        epoch: int,
        payload: bytes,
        event_type: bytes,
        schema_version: int,
        aggregate_version: int,
        metadata: bytes,
        key: bytes,
        transactional_id: bytes,
        transaction_state: bytes,
        transaction_marker: bytes,
        control_type: bytes,
        control_version: int,
        control_coordinator_epoch: int,
        control_key: bytes,
        control_value: bytes,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.producer_id = producer_id
        self.sequence = sequence
        self.epoch = epoch
        self.payload = payload
        self.event_type = event_type
        self.schema_version = schema_version
        self.aggregate_version = aggregate_version
        self.metadata = metadata
        self.key = key
        self.transactional_id = transactional_id
        self.transaction_state = transaction_state
        self.transaction_marker = transaction_marker
        self.control_type = control_type
        self.control_version = control_version
        self.control_coordinator_epoch = control_coordinator_epoch
        self.control_key = control_key
        self.control_value = control_value


def new_record(*values: Any) -> Record:
    """A record by its fields, in their order; as ``Record(*values)``, in a third of the time."""
    draft: Any = _Draft(*values)
    draft.__class__ = Record
    record: Record = draft
    return record


@dataclass(frozen=True, slots=True)
class ForeignRecord:
    """A record of another generation, decoded as evidence and never as state.

    ``record`` is ``None`` where the generation is named but not decoded.
    ``side_line`` marks the ``CDM3`` of one development line, which ends in a
    checksum instead of an event id.
    """

    generation: Generation
    record: Record | None
    event_id: bytes = b""
    payload_digest: bytes = b""
    side_line: bool = False


def crc32c(data: bytes) -> int:
    """Castagnoli checksum; ``crc32c(b"123456789") == 0xE3069283``."""
    return int(google_crc32c.value(data))


def encode(record: Record) -> bytes:
    """Bytes of a record, without the length prefix.

    Raises :class:`FormatError` ``encode_field_too_long``,
    ``encode_partition_negative``, ``encode_epoch_negative`` or
    ``record_too_large``, in the order of segments.md section 4.1, and
    ``encode_value_out_of_range`` for a number that its field cannot hold.
    """
    try:
        head = _HEAD.pack(MAGIC, len(record.topic)) + record.topic + _U32.pack(record.partition)
        return _join(head, record, record.offset)
    except struct.error:
        raise _refusal(record) from None


class FrameEncoder:
    """Frames of one partition, whose topic and number are encoded once.

    Raises :class:`FormatError` ``encode_field_too_long`` for the topic and
    ``record_partition_out_of_range`` for a partition outside 0 to 2^31-1.
    """

    __slots__ = ("_fixed", "_front", "_head", "_partition", "_topic")

    def __init__(self, topic: bytes, partition: int) -> None:
        _limit("topic", topic, MAX_TEXT)
        if not 0 <= partition <= MAX_PARTITION:
            raise FormatError(
                "record_partition_out_of_range",
                f"partition {partition} is not between 0 and {MAX_PARTITION}",
                found=partition,
            )
        self._topic = topic
        self._partition = partition
        self._head = _HEAD.pack(MAGIC, len(topic)) + topic + _U32.pack(partition)
        self._fixed = MIN_RECORD_BYTES + len(topic)
        # Length, head, offset and the length of the producer id: one step of packing.
        self._front = struct.Struct(f">I{len(self._head)}sQH")

    def frame(self, record: Record, offset: int) -> bytes:
        """The frame of ``record`` as it stands at ``offset`` of this partition.

        Topic, partition and offset of ``record`` itself do not count. Raises as
        :func:`encode` does.
        """
        return self.frames((record,), offset)[0]

    def frames(self, records: Iterable[Record], offset: int) -> list[bytes]:
        """Frames of ``records`` at consecutive offsets; raises as :func:`encode` does."""
        front, head, fixed = self._front.pack, self._head, self._fixed
        middle, key_length = _SEQUENCE_EPOCH_PAYLOAD.pack, _NO_EVENT_KEY.pack
        join = b"".join
        found = []
        record = _NOTHING
        try:
            for record in records:
                producer, payload, key = record.producer_id, record.payload, record.key
                epoch = record.epoch
                size = fixed + len(producer) + len(payload) + len(key)
                if size > MAX_RECORD_BYTES or epoch > MAX_EPOCH:
                    raise struct.error
                if is_plain(record):
                    found.append(
                        join(
                            (
                                front(size, head, offset, len(producer)),
                                producer,
                                middle(record.sequence, epoch, len(payload)),
                                payload,
                                key_length(len(key)),
                                key,
                                _NO_TRANSACTION,
                            )
                        )
                    )
                else:
                    data = _join(head, record, offset)
                    found.append(_U32.pack(len(data)) + data)
                offset += 1
        except struct.error:
            place = replace(record, topic=self._topic, partition=self._partition, offset=offset)
            raise _refusal(place) from None
        return found


def is_plain(record: Record) -> bool:
    """No event fields and no part of a transaction: what most records are."""
    return not (
        record.event_type
        or record.transactional_id
        or record.schema_version
        or record.aggregate_version
        or record.metadata
        or record.transaction_state
        or record.transaction_marker
        or record.control_type
        or record.control_version
        or record.control_coordinator_epoch
        or record.control_key
        or record.control_value
    )


def _join(head: bytes, record: Record, offset: int) -> bytes:
    """``head`` (magic, topic, partition) and the fields behind it.

    Most records have no event fields and no transaction: their zeros are not
    packed one by one. Raises ``struct.error`` for whatever :func:`_refusal` names.
    """
    producer, payload, key = record.producer_id, record.payload, record.key
    epoch = record.epoch
    if len(payload) > MAX_RECORD_BYTES or epoch > MAX_EPOCH:
        raise struct.error
    event_type, metadata = record.event_type, record.metadata
    if event_type or metadata or record.schema_version or record.aggregate_version:
        event = b"".join(
            (
                _U16.pack(len(event_type)),
                event_type,
                _SCHEMA_AGGREGATE.pack(record.schema_version, record.aggregate_version),
                _U16.pack(len(metadata)),
                metadata,
            )
        )
    else:
        event = _NO_EVENT
    if (
        record.transactional_id
        or record.transaction_state
        or record.transaction_marker
        or record.control_type
        or record.control_version
        or record.control_coordinator_epoch
        or record.control_key
        or record.control_value
    ):
        tail = _transaction_tail(record)
    else:
        tail = _NO_TRANSACTION
    data = b"".join(
        (
            head,
            _OFFSET_PRODUCER.pack(offset, len(producer)),
            producer,
            _SEQUENCE_EPOCH_PAYLOAD.pack(record.sequence, epoch, len(payload)),
            payload,
            event,
            _U16.pack(len(key)),
            key,
            tail,
        )
    )
    if len(data) > MAX_RECORD_BYTES:
        raise struct.error
    return data


def _transaction_tail(record: Record) -> bytes:
    """Fields 14 to 21."""
    return b"".join(
        (
            _text(record.transactional_id),
            _text(record.transaction_state),
            _text(record.transaction_marker),
            _text(record.control_type),
            _CONTROL.pack(record.control_version, record.control_coordinator_epoch),
            _text(record.control_key),
            _text(record.control_value),
        )
    )


def _refusal(record: Record) -> FormatError:
    """Why a record cannot be encoded: the checks of segments.md section 4.1, in order."""
    try:
        _check(record)
    except FormatError as error:
        return error
    return FormatError("encode_value_out_of_range", "a number of the record does not fit its field")


def _check(record: Record) -> None:
    _limit("topic", record.topic, MAX_TEXT)
    _limit("producer_id", record.producer_id, MAX_TEXT)
    _limit("payload", record.payload, 2**32 - 1)
    _limit("event_type", record.event_type, MAX_TEXT)
    _limit("metadata", record.metadata, MAX_TEXT)
    if record.partition < 0:
        raise FormatError("encode_partition_negative", f"partition {record.partition} is negative")
    for name in (
        "key",
        "transactional_id",
        "transaction_state",
        "transaction_marker",
        "control_type",
        "control_key",
        "control_value",
    ):
        _limit(name, getattr(record, name), MAX_TEXT)
    if record.epoch < 0:
        raise FormatError("encode_epoch_negative", f"epoch {record.epoch} is negative")
    size = encoded_size(record)
    if size > MAX_RECORD_BYTES:
        raise FormatError(
            "record_too_large",
            f"record of {size} bytes is over the limit of {MAX_RECORD_BYTES}",
            size=size,
        )


def encoded_size(record: Record) -> int:
    """Size of the record in bytes, without the length prefix."""
    return (
        MIN_RECORD_BYTES
        + len(record.topic)
        + len(record.producer_id)
        + len(record.payload)
        + len(record.event_type)
        + len(record.metadata)
        + len(record.key)
        + len(record.transactional_id)
        + len(record.transaction_state)
        + len(record.transaction_marker)
        + len(record.control_type)
        + len(record.control_key)
        + len(record.control_value)
    )


def encode_frame(record: Record) -> bytes:
    """The record with its length prefix, as it stands in a segment."""
    data = encode(record)
    return _U32.pack(len(data)) + data


def _limit(name: str, value: bytes, limit: int) -> None:
    if len(value) > limit:
        raise FormatError(
            "encode_field_too_long",
            f"{name} has {len(value)} bytes; the limit is {limit}",
            field=name,
        )


def _text(value: bytes) -> bytes:
    return _U16.pack(len(value)) + value


class _Walker:
    """Reads fields in order; every step says which field it was about to read."""

    __slots__ = ("data", "end", "position")

    def __init__(self, data: bytes, position: int) -> None:
        self.data = data
        self.position = position
        self.end = len(data)

    def take(self, size: int, field: str) -> int:
        start = self.position
        if size > self.end - start:
            raise FormatError(
                "record_field_truncated",
                f"{field} runs past the end of the record",
                position=start,
                field=field,
            )
        self.position = start + size
        return start

    def text(self, field: str) -> bytes:
        at = self.take(2, f"{field}_length")
        size = _U16.unpack_from(self.data, at)[0]
        at = self.take(size, field)
        return self.data[at : at + size]

    def payload(self) -> bytes:
        at = self.take(4, "payload_length")
        size = _U32.unpack_from(self.data, at)[0]
        at = self.take(size, "payload")
        return self.data[at : at + size]

    def integer(self, form: str, field: str) -> int:
        size = struct.calcsize(form)
        at = self.take(size, field)
        return int(struct.unpack_from(form, self.data, at)[0])

    def partition(self) -> int:
        value = self.integer(">I", "partition")
        if value > MAX_PARTITION:
            raise FormatError(
                "record_partition_out_of_range",
                f"partition {value} is above {MAX_PARTITION}",
                position=self.position - 4,
                found=value,
            )
        return value

    def epoch(self) -> int:
        value = self.integer(">Q", "epoch")
        if value > MAX_EPOCH:
            raise FormatError(
                "record_epoch_out_of_range",
                f"epoch {value} is above 2^63-1",
                position=self.position - 8,
                found=value,
            )
        return value

    def head(self) -> dict[str, Any]:
        """Fields 2 to 8, which every generation shares."""
        return {
            "topic": self.text("topic"),
            "partition": self.partition(),
            "offset": self.integer(">Q", "offset"),
            "producer_id": self.text("producer_id"),
            "sequence": self.integer(">Q", "sequence"),
            "epoch": self.epoch(),
            "payload": self.payload(),
        }

    def texts(self, *fields: str) -> dict[str, Any]:
        return {field: self.text(field) for field in fields}

    def event(self) -> dict[str, Any]:
        """Fields 9 to 12."""
        return {
            "event_type": self.text("event_type"),
            "schema_version": self.integer(">I", "schema_version"),
            "aggregate_version": self.integer(">Q", "aggregate_version"),
            "metadata": self.text("metadata"),
        }

    def control_head(self) -> dict[str, Any]:
        """Fields 17 to 19."""
        return {
            "control_type": self.text("control_type"),
            "control_version": self.integer(">h", "control_version"),
            "control_coordinator_epoch": self.integer(">q", "control_coordinator_epoch"),
        }

    def record(self) -> Record:
        """Fields 2 to 21 of every generation with a magic."""
        values = self.head()
        values |= self.event()
        values |= self.texts("key", *_TRANSACTION)
        values |= self.control_head()
        values |= self.texts(*_CONTROL_DATA)
        return Record(**values)


def _unsupported(data: bytes) -> FormatError:
    shown = data[:4].hex(" ") or "nothing"
    return FormatError(
        "unsupported_record_format", f"record starts with {shown}, not with CDM2", position=0
    )


def decode(data: bytes, start: int = 0, end: int | None = None) -> Record:
    """Decode one ``CDM2`` record (without its length prefix): ``data[start:end]``.

    A scan passes its window and the bounds, which spares a copy of each record.
    Raises :class:`FormatError` with the codes of segments.md section 4.2;
    ``position`` counts from the start of the record.
    """
    if end is None:
        end = len(data)
    if end - start < 4 or data[start : start + 4] != MAGIC:
        raise _unsupported(data[start : min(end, start + 4)])
    try:
        return _decode_fast(data, start, end)
    except (struct.error, IndexError):
        # A field runs past the end, or a limit was met: walk again, slowly, to say which.
        return _decode_slow(data[start:end])


def _decode_fast(data: bytes, start: int, end: int) -> Record:
    # What runs past ``end`` into the next record ends behind it: the last check sees that.
    u16 = _U16.unpack_from
    (n,) = u16(data, start + 4)
    at = start + 6
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
    at += n
    if at != end or partition > MAX_PARTITION or epoch > MAX_EPOCH:
        raise IndexError
    draft: Any = _Draft(
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
    draft.__class__ = Record
    record: Record = draft
    return record


def _decode_slow(data: bytes) -> Record:
    walker = _Walker(data, 4)
    record = walker.record()
    _nothing_left(walker)
    return record


def record_length(read: Callable[[int, int], bytes], start: int, end: int) -> int | None:
    """Length of the ``CDM2`` record at ``start`` by its own field lengths.

    ``read(position, length)`` gives bytes of the file; only lengths and fixed
    fields are read, values are stepped over. Returns ``None`` when the bytes do
    not start with ``CDM2``, when a field runs past ``end``, or when partition
    or epoch is out of range. Rule B0 of segments.md section 10 uses this to
    tell a torn frame from a corrupt length prefix.
    """
    if end - start < 4 or read(start, 4) != MAGIC:
        return None
    at = start + 4
    for width, fixed, limit in _SHAPE:
        if at + width + (0 if width else fixed) > end:
            return None
        if width:
            at += width + int.from_bytes(read(at, width), "big")
        else:
            if limit and int.from_bytes(read(at, fixed), "big") > limit:
                return None
            at += fixed
        if at > end:
            return None
    return at - start


def decode_any(data: bytes, topic: bytes, partition: int) -> ForeignRecord:
    """Recognise a record of any generation (segments.md sections 19 and 20).

    ``topic`` and ``partition`` are those of the path: an unversioned record
    counts as one only when it carries them. Raises :class:`FormatError`
    (``record_checksum_mismatch`` for a bad ``CDM4``, otherwise the decode
    codes, ``unsupported_record_format`` when nothing fits).
    """
    magic = data[:4]
    reader = _GENERATIONS.get(magic)
    if reader is not None:
        return reader(data)
    return _decode_unversioned(data, topic, partition)


def _as_current(data: bytes) -> ForeignRecord:
    return ForeignRecord("CDM2", decode(data))


def _decode_cdm3(data: bytes) -> ForeignRecord:
    walker = _Walker(data, 4)
    record = walker.record()
    left = data[walker.position :]
    if len(left) == 4 and left != b"\0\0\0\0":
        # The side line wrote a checksum here; four zero bytes are two empty strings.
        if _U32.unpack(left)[0] == crc32c(data[:-4]):
            return ForeignRecord("CDM3", record, side_line=True)
        raise FormatError(
            "record_checksum_mismatch",
            "CRC32C at the end of the record does not match",
            position=walker.position,
        )
    event_id = walker.text("event_id")
    digest = walker.text("payload_digest")
    _nothing_left(walker)
    return ForeignRecord("CDM3", record, event_id, digest)


def _decode_cdm4(data: bytes) -> ForeignRecord:
    if len(data) < 8 or _U32.unpack(data[-4:])[0] != crc32c(data[:-4]):
        raise FormatError(
            "record_checksum_mismatch",
            "CRC32C at the end of the record does not match",
            position=max(len(data) - 4, 0),
        )
    walker = _Walker(data[:-4], 4)
    record = walker.record()
    event_id = walker.text("event_id")
    digest = walker.text("payload_digest")
    _nothing_left(walker)
    return ForeignRecord("CDM4", record, event_id, digest)


def _name_cdm5(data: bytes) -> ForeignRecord:
    return ForeignRecord("CDM5", None)


def _nothing_left(walker: _Walker) -> None:
    left = walker.end - walker.position
    if left:
        raise FormatError(
            "record_trailing_bytes",
            f"{left} bytes are left over behind the last field",
            position=walker.position,
            trailing=left,
        )


#: Decoders are chosen by magic in one table (decision 1).
_GENERATIONS = {
    b"CDM2": _as_current,
    b"CDM3": _decode_cdm3,
    b"CDM4": _decode_cdm4,
    b"CDM5": _name_cdm5,
}


def _decode_unversioned(data: bytes, topic: bytes, partition: int) -> ForeignRecord:
    walker = _Walker(data, 0)
    event_id = digest = b""
    try:
        values = walker.head()
        # Each tail needs the ones before it; bytes after the last one were ignored.
        if walker.position < walker.end:
            values |= walker.event()
            if walker.end - walker.position >= 2:
                values |= walker.texts("key")
            if walker.position < walker.end:
                values |= walker.texts(*_TRANSACTION)
            if walker.position < walker.end:
                values |= walker.control_head()
            if walker.position < walker.end:
                values |= walker.texts(*_CONTROL_DATA)
            if walker.position < walker.end:
                event_id, digest = walker.text("event_id"), walker.text("payload_digest")
    except FormatError:
        raise _unsupported(data) from None
    if values["topic"] != topic or values["partition"] != partition:
        raise _unsupported(data)
    return ForeignRecord("unversioned", Record(**values), event_id, digest)
