"""Rows into tables: what every part of the loader writes through."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import apsw

from cursus.formats import timestamps

CACHE_KIB: Final = 16_384


@dataclass(slots=True)
class Writer:
    """An index being written. ``ids``: number of each entry of the directory, by path."""

    connection: apsw.Connection
    ids: dict[str, int] = field(default_factory=dict)

    def insert(self, table: str, rows: Iterable[Sequence[Any]]) -> None:
        """Rows with a value for each column, in the order of the schema."""
        iterator = iter(rows)
        first = next(iterator, None)
        if first is None:
            return
        marks = ", ".join("?" * len(first))
        statement = f"insert into {table} values ({marks})"
        self.connection.execute(statement, first)
        self.connection.executemany(statement, iterator)


def moment(nanoseconds: int) -> str:
    """A moment in UTC; the bare number where it has no year."""
    try:
        return timestamps.canonical(nanoseconds)
    except ValueError:
        return str(nanoseconds)


def open_for_writing(path: str) -> apsw.Connection:
    """A database that is thrown away when anything goes wrong."""
    connection = apsw.Connection(path)
    prepare(connection)
    return connection


def prepare(connection: apsw.Connection) -> None:
    """No journal, no waiting, nobody else."""
    for pragma in (
        "page_size = 4096",
        "journal_mode = off",
        "synchronous = off",
        "locking_mode = exclusive",
        f"cache_size = -{CACHE_KIB}",
    ):
        connection.execute(f"pragma {pragma}")
