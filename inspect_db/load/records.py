"""Records as rows: columns of a batch into ``record_rows``, without a loop over records.

What few records differ in stands once in ``record_shapes``. Rows are bound a
hundred at a time, and what a whole batch has in common once for all of them:
SQLite spends more time on binding and stepping than on the rows themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, Final

import apsw
import numpy as np
from numpy.typing import NDArray

from cursus.formats.record_columns import Int64s, RecordColumns, TextColumn, UInt64s
from cursus.replay.interfaces import RecordBatch, SegmentRef
from inspect_db.values import SIGNED_MAX, name_or_none, number

#: Combinations remembered; beyond that some are written twice, which costs space only.
MAX_SHAPES: Final = 50_000
#: Rows of one statement.
ROWS: Final = 100
_TEXTS: Final = (
    "producer_id",
    "event_type",
    "transactional_id",
    "transaction_state",
    "transaction_marker",
    "control_type",
)
_NUMBERS: Final = ("epoch", "schema_version", "control_version", "control_coordinator_epoch")
#: A column of rows: one value for each, or the value that all of them have.
Column = list[Any] | None | int | str | bytes


class Shapes:
    """Numbers of the combinations in ``record_shapes``.

    Processes that write at the same time take numbers from ``first`` on in steps
    of ``step``, so that nothing has to be renumbered when their rows are joined.
    """

    def __init__(self, first: int = 1, step: int = 1) -> None:
        self._numbers: dict[tuple[Any, ...], int] = {}
        self._next = first
        self._step = step

    def know(self, connection: apsw.Connection) -> None:
        """Go on with the combinations of an index that is there."""
        for row in connection.execute(
            "select * from record_shapes order by shape_id desc limit ?", (MAX_SHAPES // 2,)
        ):
            at, *shape = row
            self._numbers[tuple(shape)] = int(str(at))
            self._next = max(self._next, int(str(at)) + 1)

    @property
    def next(self) -> int:
        """The first number that is free."""
        return self._next

    def of(self, connection: apsw.Connection, shape: tuple[Any, ...]) -> int:
        """The number of ``shape``, written down when it is new."""
        found = self._numbers.get(shape)
        if found is not None:
            return found
        if len(self._numbers) >= MAX_SHAPES:
            self._numbers.clear()
        at = self._numbers[shape] = self._next
        self._next += self._step
        marks = ", ".join("?" * (len(shape) + 1))
        connection.execute(f"insert into record_shapes values ({marks})", (at, *shape))
        return at


def insert_rows(
    connection: apsw.Connection,
    shapes: Shapes,
    file_id: int,
    batch: RecordBatch,
    columns: RecordColumns,
    payload_bytes: int,
) -> None:
    """Write one row for each record of a batch."""
    count = len(columns)
    if not count:
        return
    kept: Column = None
    if payload_bytes:
        payload = columns.payload
        start, length = payload.start, np.minimum(payload.length, payload_bytes)
        kept = TextColumn(payload.data, start, length).values()
    _insert(
        connection,
        count,
        (
            file_id,
            columns.position.tolist(),
            _same_or_each(columns.length),
            _shape_numbers(connection, shapes, batch, columns),
            _unsigned(columns.offset),
            _unsigned_or_none(columns.sequence),
            _unsigned_or_none(columns.aggregate_version),
            _names(columns.key),
            _same_or_each(columns.payload.length),
            kept,
        ),
    )


def _insert(connection: apsw.Connection, count: int, columns: Sequence[Column]) -> None:
    common = [column for column in columns if column is not None and not isinstance(column, list)]
    each = [column for column in columns if isinstance(column, list)]
    form = "".join(
        "e" if isinstance(column, list) else "n" if column is None else "c" for column in columns
    )
    width = len(each)
    values: list[Any] = [None] * (width * count)
    for at, column in enumerate(each):
        values[at::width] = column
    whole = count - count % ROWS

    def bindings() -> Iterator[list[Any]]:
        step = width * ROWS
        for at in range(0, width * whole, step):
            yield common + values[at : at + step]

    if whole:
        connection.executemany(_statement(form, ROWS), bindings())
    if whole < count:
        connection.execute(_statement(form, count - whole), common + values[width * whole :])


@cache
def _statement(form: str, rows: int) -> str:
    """``form``: for each column ``c`` common, ``n`` null, ``e`` one value for each row."""
    common, each = form.count("c"), form.count("e")
    lines = []
    for row in range(rows):
        shared, own = iter(range(1, common + 1)), iter(range(1, each + 1))
        marks = [
            "null"
            if kind == "n"
            else f"?{next(shared) if kind == 'c' else common + row * each + next(own)}"
            for kind in form
        ]
        lines.append(f"({', '.join(marks)})")
    return f"insert or ignore into record_rows values {', '.join(lines)}"


# -- columns of rows -----------------------------------------------------------------------


def _same_or_each(values: Int64s) -> Column:
    first = int(values[0])
    return first if bool((values == first).all()) else values.tolist()


def _unsigned(values: UInt64s) -> list[Any]:
    found: list[Any] = values.tolist()
    return found if int(values.max()) <= SIGNED_MAX else [number(value) for value in found]


def _unsigned_or_none(values: UInt64s) -> Column:
    """Numbers with nothing in place of 0."""
    zeros = values == 0
    if bool(zeros.all()):
        return None
    found = _unsigned(values)
    for at in np.flatnonzero(zeros).tolist():
        found[at] = None
    return found


def _names(column: TextColumn) -> Column:
    """Names with nothing in place of empty ones."""
    present = column.present
    if not present.any():
        return None
    values = column.values()
    found: list[Any]
    try:
        found = list(map(bytes.decode, values))
    except UnicodeDecodeError:
        return [name_or_none(value) for value in values]
    if b"\0" in b"".join(values):
        return [name_or_none(value) for value in values]
    for at in np.flatnonzero(~present).tolist():
        found[at] = None
    return found


# -- shapes --------------------------------------------------------------------------------


def _shape_numbers(
    connection: apsw.Connection, shapes: Shapes, batch: RecordBatch, columns: RecordColumns
) -> Column:
    codes, rows = _combinations(columns)
    numbers = [
        shapes.of(connection, _shape(columns, row, batch.segment, batch.reachable)) for row in rows
    ]
    if codes is None:
        return numbers[0]
    chosen: list[Any] = np.array(numbers, np.int64)[codes].tolist()
    return chosen


def _combinations(columns: RecordColumns) -> tuple[NDArray[np.intp] | None, list[int]]:
    """The combination of each row, and a row of each; ``None`` when all have the same."""
    combined: NDArray[np.int64] | None = None
    bound = 1
    for codes, different in _codes(columns):
        if different == 1:
            continue
        if combined is None:
            combined, bound = codes, different
            continue
        if bound > 2**62 // different:  # squeeze, so that the product fits
            values, combined = np.unique(combined, return_inverse=True)
            bound = len(values)
        combined = combined * different + codes
        bound *= different
    if combined is None:
        return None, [0]
    _, rows, codes = np.unique(combined, return_index=True, return_inverse=True)
    return codes, rows.tolist()


def _codes(columns: RecordColumns) -> Iterator[tuple[NDArray[np.int64], int]]:
    """For each field of a shape: a code of each row, and how many there are."""
    for field in (*_TEXTS, "topic"):
        column = columns.text(field)
        if not column.all_empty:
            values, codes = column.distinct()
            yield codes, len(values)
    for field in (*_NUMBERS, "partition"):
        numbers = getattr(columns, field)
        if bool((numbers == numbers[0]).all()):
            continue
        different, codes = np.unique(numbers, return_inverse=True)
        yield codes.astype(np.int64), len(different)


def _shape(
    columns: RecordColumns, row: int, segment: SegmentRef, reachable: bool
) -> tuple[Any, ...]:
    """The row of ``record_shapes`` behind its number."""
    producer, event, *transaction = (columns.text(field).at(row) for field in _TEXTS)
    epoch, schema, version, coordinator = (int(getattr(columns, field)[row]) for field in _NUMBERS)
    topic, partition = columns.topic.at(row), int(columns.partition[row])
    own = topic == segment.topic.encode("utf-8", "surrogateescape")
    return (
        None if own else name_or_none(topic),
        None if partition == segment.partition else partition,
        name_or_none(producer),
        epoch,
        name_or_none(event),
        schema,
        *(name_or_none(value) for value in transaction),
        version,
        coordinator,
        int(reachable),
    )
