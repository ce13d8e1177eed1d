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

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from cursus.formats.record import Record

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
assert {*TEXT_FIELDS, *NUMBER_FIELDS} == set(Record.__slots__)

#: Different values that are looked for one by one before a dictionary is made.
_PEELED: Final = 8


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
        if size and same.any():
            wanted = np.frombuffer(value, np.uint8)
            if same.all():
                same = (self._matrix(self.start, size) == wanted).all(axis=1)
                return same
            chosen = np.flatnonzero(same)
            same[chosen] = (self._matrix(self.start[chosen], size) == wanted).all(axis=1)
        return same

    def distinct(self) -> tuple[list[bytes], Int64s]:
        """The different values, in order of first appearance, and the number of each row's.

        ``values[codes[row]]`` is the value of ``row``. Fast where a field has few
        different values or none, as those have that an index keeps in dictionaries;
        exact always (compared byte by byte, never by a hash alone).
        """
        count = len(self)
        codes = np.zeros(count, np.int64)
        if not count:
            return [], codes
        left: NDArray[np.intp] | None = None  # rows without a code; None: all of them
        found: list[bytes] = []
        for code in range(_PEELED):
            column = self if left is None else self.rows(left)
            value = column.at(0)
            same = column.equals(value)
            found.append(value)
            if left is None:
                if same.all():
                    return found, codes
                left = np.flatnonzero(~same)
                continue
            codes[left[same]] = code
            left = left[~same]
            if not len(left):
                return found, codes
        assert left is not None
        known = {value: code for code, value in enumerate(found)}
        codes[left] = [known.setdefault(value, len(known)) for value in self.rows(left).values()]
        return list(known), codes

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
    data = np.frombuffer(b"".join(parts), np.uint8)
    sizes = np.fromiter(map(len, parts), np.int64, len(parts))
    starts = np.cumsum(sizes) - sizes
    for number, name in enumerate(TEXT_FIELDS):
        part = slice(number * count, (number + 1) * count)
        columns[name] = TextColumn(data, starts[part], sizes[part])
    return RecordColumns(data=data, **columns)
