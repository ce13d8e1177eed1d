"""What two indexes of the same evidence have in common: a digest by natural keys.

Every table is exported with paths in place of numbers and in an order that the
evidence decides; what belongs to the build or to a copy is left out: build data,
modification times, inodes, devices, modes, sizes of directories, and what only
the clock decides (transactions past their expiration). One line of the result
stands for each table, so that a difference can be named.

Payloads are part of it without being copied: ``files.content`` is a digest of
each log, made while it was scanned.

Source: design.md, principle 8.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Final

import apsw

from inspect_db.values import SqlValue

_NOT_EVIDENCE: Final = {"build", "finding_codes", "record_shapes", "kept_scans", "kept_batches"}
_LEFT_OUT: Final = {
    "files": {"mtime_ns", "ctime_ns", "mode", "device", "inode", "size", "sha256", "changed"},
}
#: Numbers of rows, that mean nothing outside of one index. They still give the order.
_ROW_NUMBERS: Final = {"finding_id", "action_id", "index_finding_id", "gap_id"}
_CONDITIONS: Final = {
    "findings": "code not in ('txn_expiry_due', 'file_changed_while_reading')",
    "recovery_actions": "kind <> 'expire_transaction'",
}


def table_digests(connection: apsw.Connection) -> Iterator[tuple[str, int, str]]:
    """Name, rows and digest of each table, by name."""
    tables = [
        str(row[0])
        for row in connection.execute(
            "select name from sqlite_schema where type = 'table' "
            "and name not like 'sqlite_%' order by name"
        )
    ]
    for table in tables:
        if table not in _NOT_EVIDENCE:
            yield (table, *_digest(connection, table))


def digest(connection: apsw.Connection) -> str:
    """One digest for the whole index (SHA-256, hexadecimal)."""
    whole = hashlib.sha256()
    for table, rows, value in table_digests(connection):
        whole.update(f"{table} {rows} {value}\n".encode())
    return whole.hexdigest()


def _digest(connection: apsw.Connection, table: str) -> tuple[int, str]:
    value = hashlib.sha256()
    count = 0
    rows = _records(connection) if table == "record_rows" else _rows(connection, table)
    for row in rows:
        value.update(repr(row).encode("utf-8", "surrogatepass"))
        count += 1
    return count, value.hexdigest()


def _records(connection: apsw.Connection) -> Iterator[tuple[SqlValue, ...]]:
    """Records by path, whatever numbers the files have."""
    columns = [str(row[1]) for row in connection.execute("pragma table_info(records)")]
    shown = ", ".join(column for column in columns if column != "file_id")
    files = connection.execute("select file_id from files order by cast(path as blob)").fetchall()
    for file_id in files:
        yield from connection.execute(
            f"select {shown} from records where file_id = ? order by position", file_id
        )


def _rows(connection: apsw.Connection, table: str) -> Iterable[tuple[SqlValue, ...]]:
    columns = [str(row[1]) for row in connection.execute(f"pragma table_info({table})")]
    left_out = _LEFT_OUT.get(table, set()) | _ROW_NUMBERS
    wanted = [column for column in columns if column not in left_out]
    shown = [_shown(table, column) for column in wanted]
    if table == "files":
        shown.append("case type when 'file' then size end")
    ordered = [column for column in columns if column in _ROW_NUMBERS]
    by_key = ", ".join(ordered) if ordered else ", ".join(str(n + 1) for n in range(len(shown)))
    condition = _CONDITIONS.get(table, "1")
    return connection.execute(
        f"select {', '.join(shown)} from {table} as t where {condition} order by {by_key}"
    )


def _shown(table: str, column: str) -> str:
    if column == "file_id":
        if table == "files":
            return "path"
        return "(select f.path from files as f where f.file_id = t.file_id)"
    return f"t.{column}"
