"""What our pages say, as values; the ``.json`` twin of a page is its document.

A function of these modules takes a connection to an index and gives plain
values: names as text (bytes that are not UTF-8 by ``surrogateescape``), numbers
as numbers whatever their size, lists cut at a limit and beside each
``…_total``, how many there are. Nothing here knows HTML or addresses.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from inspect_db.reading import Rows
from inspect_db.values import DIGITS, from_name, from_number

#: Lines of a list on a page; the rest is in the table behind it.
LINES: Final = 25
#: Columns that hold unsigned numbers or differences of them.
_NUMBERS: Final = frozenset(
    (
        *("base_offset", "first_offset", "last_offset", "log_start", "log_end", "next_offset"),
        *("hwm_checkpoint", "hwm_effective", "missing_offsets", "expected_next"),
        *("previous_last", "record_offset", "log_offset", "item_offset", "previous_offset"),
        *("change", "committed_offset", "lag", "outside_by", "epoch", "floor", "revision"),
        *("previous_revision", "revision_step", "lifecycle_epoch", "marker_epoch"),
        *("retention_hours", "retention_bytes", "lost_bytes", "lost_records"),
        *("lost_first_offset", "lost_last_offset", "sequence", "aggregate_version"),
        *("partitions", "replication_factor", "partition", "item_partition", "stored", "actual"),
    )
)
Object = dict[str, Any]


def plain(column: str, value: Any) -> Any:
    """A stored value as a plain one."""
    if isinstance(value, bytes):
        return from_name(value)
    if isinstance(value, str) and column in _NUMBERS and len(value.lstrip("-")) == DIGITS:
        try:
            return from_number(value)
        except ValueError:
            return value
    return value


def objects(rows: Rows, sql: str, values: Sequence[Any] = ()) -> list[Object]:
    """Rows of a query as objects."""
    cursor = rows.execute(sql, values)
    columns = [item[0] for item in cursor.description]
    return [
        {column: plain(column, value) for column, value in zip(columns, row, strict=True)}
        for row in cursor.fetchall()
    ]


def first(rows: Rows, sql: str, values: Sequence[Any] = ()) -> Object | None:
    """The first row of a query as an object."""
    found = objects(rows, sql, values)
    return found[0] if found else None


def total(rows: Rows, sql: str, values: Sequence[Any] = ()) -> int:
    """The number that a query gives."""
    return int(rows.execute(sql, values).fetchone()[0])


FINDING: Final = (
    "f.finding_id, f.code, f.severity, f.effect, f.step, f.path, f.file_id, f.position, "
    "f.length, f.message, f.action, f.lost_bytes, f.lost_records, f.lost_first_offset, "
    "f.lost_last_offset"
)


def findings_where(rows: Rows, condition: str, values: Sequence[Any]) -> Object:
    """The first findings that meet a condition on ``f``, in the order of a broker."""
    return {
        "findings": objects(
            rows,
            f"select {FINDING}, c.meaning from findings as f "
            "join finding_codes as c on c.code = f.code "
            f"where {condition} order by f.finding_id limit {LINES}",
            values,
        ),
        "findings_total": total(
            rows, f"select count(*) from findings as f where {condition}", values
        ),
    }
