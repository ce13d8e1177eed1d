"""What Datasette says of an index: tables, columns, and the named queries.

Descriptions come from the comments of the schema and the front matter of the
queries, so they say here what they say in ``docs/``.

Units are not given as Datasette's ``units``: those are evaluated as arithmetic
in filters, where ``9**9**9`` would keep the server busy for ever. Cells show
them instead (:mod:`inspect_db.datasette.cells`), and columns describe them.
"""

from __future__ import annotations

import re
import sqlite3
from functools import cache
from html import escape
from typing import Any, Final

from inspect_db.datasette.addresses import query_name
from inspect_db.index import schema_objects, schema_scripts
from inspect_db.queries_catalogue import NamedQuery, Parameter, named_queries

#: Views and tables over all records. Counting or sampling them reads every row.
OVER_RECORDS: Final = ("records", "record_rows", "aggregate_events")
#: Column by which a table is shown first; others are shown by their primary key.
_SORT: Final = {
    "files": "path",
    "index_findings": "index_finding_id",
    "largest_records": "rank",
    "consumer_groups": "group_name",
    "committed_offsets": "group_name",
    "lifecycle_epochs": "group_name",
    "fenced_snapshots": "group_name",
    "persistence_unit": "path",
    "open_transactions": "transactional_id",
    "declared_without_storage": "topic",
}
_SORT_DESC: Final = {"consumer_lag": "lag", "orphan_directories": "bytes"}
#: What a row is called where another row points at it.
_LABELS: Final = {
    "files": "path",
    "finding_codes": "code",
    "findings": "code",
    "recovery_steps": "name",
    "topics": "topic",
    "segments": "base_offset",
}
#: Scaffolding of other views.
_HIDDEN: Final = re.compile(r"cm_\w+|check_q\d+|record_shapes|record_rows|recovered")
#: Keys of metadata that we have something to say about.
_KEYS: Final = {
    *("title", "description", "description_html", "databases", "tables", "sort", "sort_desc"),
    *("label_column", "hidden", "columns", "sortable_columns"),
}


@cache
def tables() -> dict[str, dict[str, Any]]:
    """Metadata of each table and view."""
    found = {}
    empty = sqlite3.connect(":memory:")
    for _, script in schema_scripts():
        empty.executescript(script)
    for item in schema_objects().values():
        names = [row[1] for row in empty.execute(f"pragma table_xinfo({item.name})")]
        columns = {name: item.columns[name] for name in names if name in item.columns}
        entry: dict[str, Any] = {"description": item.comment, "columns": columns}
        if item.name in _SORT:
            entry["sort"] = _SORT[item.name]
        if item.name in _SORT_DESC:
            entry["sort_desc"] = _SORT_DESC[item.name]
        if item.name in _LABELS:
            entry["label_column"] = _LABELS[item.name]
        if item.name in OVER_RECORDS:
            entry["sortable_columns"] = []
        if _HIDDEN.fullmatch(item.name):
            entry["hidden"] = True
        found[item.name] = entry
    empty.close()
    return found


def of_database(home: str, key: str | None, table: str | None) -> dict[str, Any]:
    """Metadata of one index. ``home``: address of our page."""
    if key is not None and key not in _KEYS:
        return {}
    if table is not None:
        entry = tables().get(table)
        return {"tables": {table: entry}} if entry else {}
    link = f'<a href="{escape(home)}">Would a broker start?</a>'
    return {
        "description_html": (
            f"An index of a Cursus log directory. {link} tells first; the queries below "
            "answer questions, and the tables hold what they read."
        ),
        "tables": tables(),
    }


# -- named queries -----------------------------------------------------------------------------


@cache
def queries() -> dict[str, dict[str, Any]]:
    """Every named query as a canned query."""
    return {
        query_name(query.name): {
            "sql": form_sql(query),
            "title": query.title,
            "description_html": _help(query),
            "params": [item.name for item in query.parameters],
            "hide_sql": True,
        }
        for query in named_queries().values()
    }


def form_sql(query: NamedQuery) -> str:
    """The statement with parameters as a form sends them: text, and nothing is null."""
    sql = query.sql
    for item in query.parameters:
        sql = re.sub(rf"(?<![:\w]):{item.name}\b", _given(item), sql)
    return sql


def _given(item: Parameter) -> str:
    if not item.integer:
        return f"cursus_name(:{item.name})"
    default = int(item.default) if item.default is not None else "null"
    return f"cursus_number(:{item.name}, {default})"


def _help(query: NamedQuery) -> str:
    lines = [f"<p>{escape(query.question)}</p>", f"<p>{escape(query.how_to_read)}</p>"]
    if query.scans:
        lines.append("<p>This query reads all records.</p>")
    if query.parameters:
        items = "".join(
            f"<li><code>{escape(item.name)}</code>: {escape(item.help)}{_wanted(item)}</li>"
            for item in query.parameters
        )
        lines.append(f"<ul>{items}</ul>")
    return "".join(lines)


def _wanted(item: Parameter) -> str:
    if item.required:
        return " Without it there is no answer."
    return f" {escape(item.default)} without it." if item.default is not None else ""
