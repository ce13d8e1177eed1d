"""Many records at once: one array for each field, one element for each record.

A segment is read by the million, and a Python object for each record is what
such a reading costs. Here a run of records is a handful of arrays over the
bytes of the read window: numbers are decoded, values are not; a value is a
start and a length into ``data``. Whoever needs the bytes of a value takes
those of the rows that matter.

All arrays have one element for each record, in file order, and native byte
order::

    position                    int64    of the length prefix, in the file
    length                      int64    of the frame, prefix included
    partition                   int64    0 .. 2^31-1
    offset                      uint64
    sequence                    uint64   0 = none
    epoch                       int64    0 .. 2^63-1
    schema_version              uint32
    aggregate_version           uint64
    control_version             int16
    control_coordinator_epoch   int64
    twelve values               TextColumn: start int64, length int64, into data

Numbers that are unsigned on disk stay unsigned: mixed with signed ones NumPy
makes floating-point numbers of them, which hold 53 bits.

The scalar codec of ``record.py`` is the definition of truth.

Source: segments.md section 4; design, principle 9.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from cursus.formats.record import (
    MAGIC,
    MAX_PARTITION,
    MAX_TEXT,
    MIN_RECORD_BYTES,
    Record,
    new_record,
)

Int64s = NDArray[np.int64]
UInt64s = NDArray[np.uint64]
Bytes = NDArray[np.uint8]
Mask = NDArray[np.bool_]

#: Values of a record, in the order in which they stand on disk.
TEXT_FIELDS: Final = (
    "topic",
    "producer_id",
    "payload",
    "event_type",
    "metadata",
    "key",
    "transactional_id",
    "transaction_state",
    "transaction_marker",
    "control_type",
    "control_key",
    "control_value",
)
#: Numbers of a record and the type of their column.
NUMBER_FIELDS: Final[dict[str, type[np.generic]]] = {
    "partition": np.int64,
    "offset": np.uint64,
    "sequence": np.uint64,
    "epoch": np.int64,
    "schema_version": np.uint32,
    "aggregate_version": np.uint64,
    "control_version": np.int16,
    "control_coordinator_epoch": np.int64,
}
_TRANSACTION_FIELDS: Final = ("transactional_id", "transaction_state", "transaction_marker")
assert {*TEXT_FIELDS, *NUMBER_FIELDS} == set(Record.__slots__)

#: Values up to this length are compared as words.
_LONGEST: Final = 64
_WORD: Final = 8
#: Bytes from the start of a value that may be read for that.
_ROOM: Final = _LONGEST + _WORD
#: Masks of the first 0 to 8 bytes of a word, as it stands in memory.
_MASKS: Final[UInt64s] = np.frombuffer(
    b"".join((b"\xff" * n).ljust(_WORD, b"\0") for n in range(_WORD + 1)), np.uint64
)
_FACTORS: Final[UInt64s] = np.array(
    [0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0xD6E8FEB86659FD93, 0xA0761D6478BD642F], np.uint64
)
_HALF: Final = np.uint64(32)
_ZERO: Final[Int64s] = np.zeros(1, np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class TextColumn:
    """One variable field of many records: ``data[start : start + length]`` for each.

    Where ``length`` is 0 ``start`` may be any position inside ``data``, or its end.
    """

    data: Bytes
    start: Int64s
    length: Int64s

    def __len__(self) -> int:
        return len(self.start)

    @property
    def present(self) -> Mask:
        """Which rows have a value (an empty one is none)."""
        present: Mask = self.length > 0
        return present

    @property
    def all_empty(self) -> bool:
        """Has no row a value?"""
        return not bool(self.length.any())

    def at(self, row: int) -> bytes:
        """The value of one row."""
        start = int(self.start[row])
        return self.data[start : start + int(self.length[row])].tobytes()

    def rows(self, chosen: Mask | NDArray[np.intp] | slice) -> TextColumn:
        """The same field of some rows only."""
        return TextColumn(self.data, self.start[chosen], self.length[chosen])

    def values(self) -> list[bytes]:
        """The value of every row, copied."""
        size = self._common_length()
        if size is not None:
            return _as_bytes(self._matrix(self.start, size))
        first, end = self._extent()
        raw = self.data[first:end].tobytes()
        starts = (self.start - first).tolist()
        ends = (self.start + self.length - first).tolist()
        return [raw[a:b] if a < b else b"" for a, b in zip(starts, ends, strict=True)]

    def equals(self, value: bytes) -> Mask:
        """Which rows hold exactly these bytes."""
        size = len(value)
        same: Mask = self.length == size
        if not size or not same.any():
            return same
        if same.all():
            return self._all_of(value)
        chosen = np.flatnonzero(same)
        same[chosen] = self.rows(chosen)._all_of(value)
        return same

    def _all_of(self, value: bytes) -> Mask:
        """As :meth:`equals`, where every row has the length of ``value``."""
        wanted = TextColumn(
            np.frombuffer(value + bytes(_ROOM), np.uint8), _ZERO, np.array([len(value)])
        )
        words, others = self._words(), wanted._words()
        if words is None or others is None:
            bytes_ = np.frombuffer(value, np.uint8)
            found: Mask = (self._matrix(self.start, len(value)) == bytes_).all(axis=1)
            return found
        found = words[0] == others[0]
        for word, other in zip(words[1:], others[1:], strict=True):
            found &= word == other
        return found

    def distinct(self) -> tuple[list[bytes], Int64s]:
        """The different values, in order of first appearance, and the number of each row's.

        ``values[codes[row]]`` is the value of ``row``. Fast for short values; exact
        always: two rows have one number when their bytes are the same, whatever their
        hashes are.
        """
        count = len(self)
        if not count:
            return [], np.zeros(0, np.int64)
        if self.all_empty:
            return [b""], np.zeros(count, np.int64)
        words = self._words()
        if words is None:
            known: dict[bytes, int] = {}
            codes = [known.setdefault(value, len(known)) for value in self.values()]
            return list(known), np.array(codes, np.int64)
        if self._common_length() is None:
            words.append(self.length.astype(np.uint64))
        first = _first_rows(np.stack(words))
        heads = np.flatnonzero(first == np.arange(count))
        numbers = np.empty(count, np.int64)
        numbers[heads] = np.arange(len(heads))
        return [self.at(row) for row in heads.tolist()], numbers[first]

    def _words(self) -> list[UInt64s] | None:
        """The values as words of eight bytes, filled up with zeros; ``None`` where they are
        long, or too near to the end of ``data``.
        """
        longest = int(self.length.max(initial=0))
        if longest > _LONGEST or int(self.start.max(initial=0)) + _ROOM > len(self.data):
            return None
        if int(self.start.min(initial=0)) < 0:
            return None
        view: UInt64s = np.ndarray((len(self.data) - 7,), np.uint64, self.data, strides=(1,))
        words = []
        even = bool((self.length == longest).all())
        for at in range(0, longest, _WORD):
            word = view[self.start + at]
            if not even:
                word &= _MASKS[np.clip(self.length - at, 0, _WORD)]
            elif longest - at < _WORD:
                word &= _MASKS[longest - at]
            words.append(word)
        return words

    def _common_length(self) -> int | None:
        """The length that all rows share."""
        if not len(self):
            return 0
        size = int(self.length[0])
        return size if bool((self.length == size).all()) else None

    def _extent(self) -> tuple[int, int]:
        """The part of ``data`` that the values lie in."""
        present = self.present
        if not present.any():
            return 0, 0
        starts = self.start[present]
        return int(starts.min()), int((starts + self.length[present]).max())

    def _matrix(self, start: Int64s, size: int) -> Bytes:
        """Values of one length as the rows of a matrix (a copy)."""
        if size == 0:
            return np.empty((len(start), 0), np.uint8)
        if len(start) and not 0 <= int(start.min()) <= int(start.max()) <= len(self.data) - size:
            raise IndexError("a value lies outside of the window")
        windows = as_strided(self.data, (len(self.data) - size + 1, size), (1, 1), writeable=False)
        return windows[start]


def _first_rows(words: UInt64s) -> NDArray[np.intp]:
    """For each column of a matrix, the first one that is the same.

    Each row is put into a table by a hash, later ones first, so that the first row of
    a slot stays; a row that differs from the one in its slot tries again with another
    hash, and after some rounds in a dictionary: hashes can be made to collide.
    """
    count = words.shape[1]
    first = np.arange(count)
    left = first
    bits = np.uint64(64 - max(int(4 * count).bit_length(), 4))
    table = np.empty(1 << int(np.uint64(64) - bits), np.intp)
    for factor in _FACTORS:
        part = words if len(left) == count else words[:, left]
        mixed = part[0] * factor
        for word in part[1:]:
            mixed = (mixed ^ (mixed >> _HALF) ^ word) * factor
        slots = (mixed >> bits).astype(np.intp)
        table[slots[::-1]] = left[::-1]
        found = table[slots]
        same = (words[:, found] == part).all(axis=0)
        first[left] = np.where(same, found, left)
        left = left[~same]
        if not len(left):
            return first
    # Rows that are the same have the same hashes, so all of a kind are left, or none.
    known: dict[bytes, int] = {}
    for row in left.tolist():
        first[row] = known.setdefault(words[:, row].tobytes(), row)
    return first


def _as_bytes(matrix: Bytes) -> list[bytes]:
    """Each row as bytes; ``V`` keeps zero bytes at the end, which ``S`` drops."""
    count, size = matrix.shape
    if size == 0:
        return [b""] * count
    found: list[bytes] = np.ascontiguousarray(matrix).view(f"V{size}").ravel().tolist()
    return found


@dataclass(frozen=True, slots=True, eq=False)
class RecordColumns:
    """Fields of consecutive records, one array each (shapes and types: see the module).

    ``data`` is the window that the values lie in. It is only valid during the
    visit that handed it over: what is kept longer must be copied, because the
    window is read into again (``values()``, ``at()`` and ``distinct()`` copy; the
    numbers are arrays of their own and may be kept).
    """

    data: Bytes
    position: Int64s
    length: Int64s
    topic: TextColumn
    partition: Int64s
    offset: UInt64s
    producer_id: TextColumn
    sequence: UInt64s
    epoch: Int64s
    payload: TextColumn
    event_type: TextColumn
    schema_version: NDArray[np.uint32]
    aggregate_version: UInt64s
    metadata: TextColumn
    key: TextColumn
    transactional_id: TextColumn
    transaction_state: TextColumn
    transaction_marker: TextColumn
    control_type: TextColumn
    control_version: NDArray[np.int16]
    control_coordinator_epoch: Int64s
    control_key: TextColumn
    control_value: TextColumn

    def __len__(self) -> int:
        return len(self.position)

    def text(self, field: str) -> TextColumn:
        """The column of a variable field, by name."""
        column: TextColumn = getattr(self, field)
        return column

    def rows(self, chosen: Mask | NDArray[np.intp] | slice) -> RecordColumns:
        """The same columns of some rows only."""
        taken: dict[str, Any] = {"data": self.data}
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, TextColumn):
                taken[item.name] = value.rows(chosen)
            elif item.name != "data":
                taken[item.name] = value[chosen]
        return RecordColumns(**taken)

    def record(self, row: int) -> Record:
        """One row as the scalar codec has it."""
        values: dict[str, Any] = {name: self.text(name).at(row) for name in TEXT_FIELDS}
        values |= {name: int(getattr(self, name)[row]) for name in NUMBER_FIELDS}
        return Record(**values)

    def records(self) -> Iterator[Record]:
        """Every row as the scalar codec has it, at a third of its cost."""
        columns = (getattr(self, name) for name in Record.__slots__)
        values = (
            column.values() if isinstance(column, TextColumn) else column.tolist()
            for column in columns
        )
        return map(new_record, *values)


def from_records(
    records: Sequence[Record], positions: Iterable[int], lengths: Iterable[int]
) -> RecordColumns:
    """Columns of records that are decoded already. Slow, and right."""
    count = len(records)
    columns: dict[str, Any] = {
        name: np.fromiter((getattr(item, name) for item in records), kind, count)
        for name, kind in NUMBER_FIELDS.items()
    }
    columns["position"] = np.fromiter(positions, np.int64, count)
    columns["length"] = np.fromiter(lengths, np.int64, count)
    parts = [getattr(item, name) for name in TEXT_FIELDS for item in records]
    data = np.frombuffer(b"".join([*parts, bytes(_ROOM)]), np.uint8)
    sizes = np.fromiter(map(len, parts), np.int64, len(parts))
    starts = np.cumsum(sizes) - sizes
    for number, name in enumerate(TEXT_FIELDS):
        part = slice(number * count, (number + 1) * count)
        columns[name] = TextColumn(data, starts[part], sizes[part])
    return RecordColumns(data=data, **columns)


# -- decoding ------------------------------------------------------------------------------

#: Bytes that must stand behind the last frame in the buffer, whatever they are. Before the
#: payload a record has two values of at most 65,535 bytes, behind it nine; both times the
#: sum of what the lengths say is compared with the end of the frame afterwards. So nothing
#: is ever read further behind a frame than this.
SLACK: Final = 1 << 20
assert 11 * (2 + MAX_TEXT) + 256 < SLACK

_NEEDLE_AT: Final = 4  # magic, topic and partition stand behind the length prefix
_HEAD: Final = np.dtype([("partition", ">u4"), ("offset", ">u8"), ("size", ">u2")])
_MIDDLE: Final = np.dtype([("sequence", ">u8"), ("epoch", ">i8"), ("size", ">u4")])
_SCHEMA: Final = [("schema", ">u4"), ("aggregate", ">u8"), ("size", ">u2")]
_EVENT: Final = np.dtype([("event", ">u2"), *_SCHEMA, ("key", ">u2")])
_CONTROL: Final = np.dtype([("version", ">i2"), ("epoch", ">i8"), ("size", ">u2")])
#: The end of a record without a transaction: four empty values, numbers, two empty values.
_PLAIN_TAIL: Final = np.dtype([("four", "u8"), ("version", ">i2"), ("epoch", ">i8"), ("two", "u4")])
assert (_HEAD.itemsize, _MIDDLE.itemsize) == (14, 20)
assert (_EVENT.itemsize, _CONTROL.itemsize, _PLAIN_TAIL.itemsize) == (18, 12, 22)


def needle(topic: bytes, partition: int) -> bytes:
    """How every record of a partition begins: magic, topic and partition."""
    return MAGIC + len(topic).to_bytes(2, "big") + topic + partition.to_bytes(4, "big")


def decode_frames(
    data: Bytes, start: Int64s, length: Int64s, position: Int64s, begins: bytes
) -> tuple[RecordColumns, bool]:
    """Decode ``CDM2`` frames; stops before the first one that is not good to the last byte.

    ``start``: where each frame begins in ``data``; ``length``: of the frame with its
    prefix, by that prefix; ``position``: where it begins in the file. ``begins``: the
    :func:`needle` of the partition, which most records will have. Every frame must lie
    in ``data`` with :data:`SLACK` bytes behind it (else ``ValueError``).

    The columns may have fewer rows than there are frames: the frame behind the last
    row does not decode, and the scalar codec is to say why. No row is in them that
    the scalar codec would not accept, and no value that it would not give. The second
    result says that every row begins with ``begins``, which spares a comparison.
    """
    while True:
        try:
            return _Decoder(data, start, length, position).decode(begins)
        except _NotGoodError as stop:
            # Rows before it have passed the checks so far: a few rounds at most.
            start, length, position = start[: stop.row], length[: stop.row], position[: stop.row]


class _NotGoodError(Exception):
    """The frame of this row is not good; those before it may be."""

    def __init__(self, row: int) -> None:
        super().__init__(row)
        self.row = row


class _Decoder:
    """A cursor on every record at once: ``at`` is where the next field of each begins.

    Reading at an address costs the same for two bytes as for twenty, so what stands
    at a fixed distance is read in one go, as the fields of a structure.
    """

    def __init__(self, data: Bytes, start: Int64s, length: Int64s, position: Int64s) -> None:
        self.data = data
        self.start = start
        self.length = length
        self.position = position
        self.end = start + length
        self.at = start
        self.nothing = np.zeros(len(start), np.int64)
        if len(start) and (int(start.min()) < 0 or int(self.end.max()) + SLACK > len(data)):
            raise ValueError("a frame lies outside of the window")

    def decode(self, begins: bytes) -> tuple[RecordColumns, bool]:
        self._demand(self.length >= 4 + MIN_RECORD_BYTES)
        alike, topic, partition, offset, size = self._head(begins)
        producer = self._value(size)
        middle = self._read(_MIDDLE)
        epoch = middle["epoch"].astype(np.int64)
        self._demand(epoch >= 0)  # above 2^63-1 as an unsigned number
        payload = self._value(middle["size"])
        self._demand(self.at <= self.end)
        event, schema, aggregate, metadata, key = self._event()
        tail = self._tail()
        self._demand(self.at == self.end)
        columns = RecordColumns(
            data=self.data,
            position=self.position,
            length=self.length,
            topic=topic,
            partition=partition,
            offset=offset,
            producer_id=producer,
            sequence=middle["sequence"].astype(np.uint64),
            epoch=epoch,
            payload=payload,
            event_type=event,
            schema_version=schema,
            aggregate_version=aggregate,
            metadata=metadata,
            key=key,
            **tail,
        )
        return columns, alike

    def _demand(self, good: Mask) -> None:
        if not good.all():
            raise _NotGoodError(int(np.argmin(good)))

    def _read(self, kind: np.dtype[Any]) -> NDArray[Any]:
        """A structure at the cursor of each record; the cursor moves behind it."""
        found = self._look(kind)
        self.at = self.at + kind.itemsize
        return found

    def _look(self, kind: np.dtype[Any]) -> NDArray[Any]:
        # Inside of the buffer by what SLACK promises. ``take`` would copy the whole view.
        size = len(self.data) - kind.itemsize + 1
        view: NDArray[Any] = np.ndarray((size,), kind, self.data, strides=(1,))
        found: NDArray[Any] = view[self.at]
        return found

    def _value(self, size: NDArray[Any]) -> TextColumn:
        """A value of ``size`` bytes at the cursor."""
        length = size.astype(np.int64)
        start = self.at
        self.at = start + length
        return TextColumn(self.data, start, length)

    def _text(self) -> TextColumn:
        """A length of two bytes and a value."""
        return self._value(self._read(np.dtype(">u2")))

    def _empty(self) -> TextColumn:
        return TextColumn(self.data, self.start, self.nothing)

    def _head(self, begins: bytes) -> tuple[bool, TextColumn, Int64s, UInt64s, NDArray[Any]]:
        """Topic, partition and offset; and the length of the producer id."""
        topic_size = len(begins) - 10
        kind = np.dtype([("begins", f"V{len(begins)}"), ("offset", ">u8"), ("size", ">u2")])
        self.at = self.start + _NEEDLE_AT
        found = self._look(kind)
        if _all_equal(found, begins):
            partition = int.from_bytes(begins[-4:], "big")
            topic = TextColumn(
                self.data, self.at + 6, np.full(len(self.start), topic_size, np.int64)
            )
            self.at = self.at + kind.itemsize
            partitions = np.full(len(self.start), partition, np.int64)
            return True, topic, partitions, found["offset"].astype(np.uint64), found["size"]
        magic = self._read(np.dtype(">u4"))
        self._demand(magic == int.from_bytes(MAGIC, "big"))
        topic = self._text()
        head = self._read(_HEAD)
        partitions = head["partition"].astype(np.int64)
        self._demand(partitions <= MAX_PARTITION)
        return False, topic, partitions, head["offset"].astype(np.uint64), head["size"]

    def _event(
        self,
    ) -> tuple[TextColumn, NDArray[np.uint32], UInt64s, TextColumn, TextColumn]:
        """Event type, schema version, aggregate version, metadata and key."""
        found = self._look(_EVENT)
        if not found["event"].any() and not found["size"].any():
            event = metadata = self._empty()
            self.at = self.at + _EVENT.itemsize
            key = self._value(found["key"])
        else:
            event = self._text()
            found = self._read(np.dtype(_SCHEMA))
            metadata = self._value(found["size"])
            key = self._text()
        return (
            event,
            found["schema"].astype(np.uint32),
            found["aggregate"].astype(np.uint64),
            metadata,
            key,
        )

    def _tail(self) -> dict[str, Any]:
        """Everything behind the key."""
        found = self._look(_PLAIN_TAIL)
        if not found["four"].any() and not found["two"].any():
            self.at = self.at + _PLAIN_TAIL.itemsize
            values = [self._empty()] * 6
        else:
            values = [self._text() for _ in range(4)]
            found = self._read(_CONTROL)
            values.append(self._value(found["size"]))
            values.append(self._text())
        names = (*_TRANSACTION_FIELDS, "control_type", "control_key", "control_value")
        tail: dict[str, Any] = dict(zip(names, values, strict=True))
        tail["control_version"] = found["version"].astype(np.int16)
        tail["control_coordinator_epoch"] = found["epoch"].astype(np.int64)
        return tail


def _all_equal(found: NDArray[Any], begins: bytes) -> bool:
    """Does each structure begin with these bytes? Compared in words of eight, the last
    of which overlaps the one before."""
    if not len(found):
        return True
    size = len(begins)
    starts = [*range(0, size - 8, 8), size - 8]
    raw = found.view(np.uint8)
    stride = found.dtype.itemsize
    for at in starts:
        word = np.ndarray((len(found),), np.uint64, raw, at, (stride,))
        if not (word == np.frombuffer(begins, np.uint64, 1, at)[0]).all():
            return False
    return True
