"""No named query reads all records unless it says so.

By the program that SQLite makes of it: a cursor on ``record_rows`` that begins at
the first row is a scan, one that seeks is not.
"""

from __future__ import annotations

from contextlib import closing

import index_help
import pytest

from inspect_db import queries_catalogue
from inspect_db.index import open_index

QUERIES = queries_catalogue.named_queries()


def scanned_tables(sql: str) -> set[str]:
    """Tables that a statement walks over from the first row on."""
    with closing(open_index(str(index_help.built("shop-healthy")))) as connection:
        roots = {
            int(str(root)): str(table)
            for root, table in connection.execute("select rootpage, tbl_name from sqlite_schema")
        }
        opened: dict[int, int] = {}
        begun: set[int] = set()
        # Parameters without a value are null, which changes no plan.
        for row in connection.execute(f"explain {sql}", _Nulls()):
            operation, first, second = str(row[1]), int(str(row[2])), int(str(row[3]))
            if operation in {"OpenRead", "ReopenIdx"}:
                opened[first] = second
            elif operation in {"Rewind", "Last"}:
                begun.add(first)
        return {roots[opened[cursor]] for cursor in begun if opened.get(cursor) in roots}


class _Nulls(dict[str, None]):
    def __missing__(self, _: str) -> None:
        return None


def test_the_program_shows_a_scan() -> None:
    assert "record_rows" in scanned_tables("select sum(length) from record_rows")
    assert "record_rows" in scanned_tables("select key from records where key = 'x'")
    assert "record_rows" not in scanned_tables("select * from record_rows where file_id = 1")


@pytest.mark.parametrize("name", sorted(QUERIES))
def test_only_queries_that_say_so_read_all_records(name: str) -> None:
    query = QUERIES[name]
    assert ("record_rows" in scanned_tables(query.sql)) == query.scans
