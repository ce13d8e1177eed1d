"""SQLAlchemy Core tables over the schema of an index, for notebooks and scripts.

The tables and views are made from the same scripts that make an index, so that
they cannot differ::

    from sqlalchemy import select
    from inspect_db import models

    groups = models.tables["consumer_groups"]
    with models.engine("index.db").connect() as connection:
        for row in connection.execute(select(groups.c.group_name, groups.c.epoch)):
            ...

Columns of type ``ANY`` come as they are stored; :mod:`inspect_db.values` turns
them into numbers and names. A whole example: ``docs/examples/lag.py``.
"""

from __future__ import annotations

import os
from typing import Any
from urllib.parse import quote

import apsw
import sqlalchemy as sa
from sqlalchemy.types import TypeEngine, UserDefinedType

from inspect_db.index import open_index, schema_objects, schema_scripts


class AnyValue(UserDefinedType[Any]):
    """A column of type ``ANY``: a number, text or bytes, as stored."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        """Name of the type in SQL."""
        return "ANY"


def _type(declared: str) -> TypeEngine[Any]:
    match declared.lower():
        case "integer":
            return sa.Integer()
        case "text":
            return sa.Text()
        case "blob":
            return sa.LargeBinary()
        case _:
            return AnyValue()


def _tables() -> tuple[sa.MetaData, dict[str, sa.Table]]:
    metadata = sa.MetaData()
    connection = apsw.Connection(":memory:")
    for _, script in schema_scripts():
        connection.execute(script)
    found = {}
    for item in schema_objects().values():
        rows = connection.execute("select name, type, pk from pragma_table_info(?)", (item.name,))
        columns: list[sa.Column[Any]] = [
            sa.Column(
                str(name),
                _type(str(declared)),
                primary_key=bool(pk),
                comment=item.columns.get(str(name)),
            )
            for name, declared, pk in rows
        ]
        found[item.name] = sa.Table(item.name, metadata, *columns, comment=item.comment)
    connection.close()
    return metadata, found


#: Tables and views by name.
metadata, tables = _tables()


def engine(path: str) -> sa.Engine:
    """A read-only engine on an index. Raises :class:`inspect_db.index.IndexFileError`."""
    open_index(path).close()
    location = quote(os.path.abspath(path))
    return sa.create_engine(f"sqlite:///file:{location}?mode=ro&uri=true")
