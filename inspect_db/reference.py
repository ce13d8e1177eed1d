"""The reference pages of the index, generated from the schema and the queries."""

from __future__ import annotations

import apsw

from inspect_db.index import schema_objects, schema_scripts
from inspect_db.queries_catalogue import NamedQuery, named_queries


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _empty_index() -> apsw.Connection:
    connection = apsw.Connection(":memory:")
    for _, script in schema_scripts():
        connection.execute(script)
    return connection


def columns_of(connection: apsw.Connection, name: str) -> list[tuple[str, str]]:
    """Name and declared type of the columns of a table or view."""
    rows = connection.execute("select name, type from pragma_table_xinfo(?)", (name,))
    return [(str(row[0]), str(row[1]).lower()) for row in rows]


def schema_page(note: str) -> str:
    """Every table, view and column."""
    objects = schema_objects()
    connection = _empty_index()
    lines = [
        "# Tables and views of the index\n",
        note,
        "`inspect-db build LOG_DIR -o INDEX.db` makes this database; deleting it loses nothing.\n"
        "Columns of type `any` hold unsigned 64-bit numbers (INTEGER up to 2^63-1, above that\n"
        "TEXT of 20 digits, so that ORDER BY stays right) or names (TEXT when valid UTF-8\n"
        "without NUL, else BLOB).\n",
    ]
    for kind, title in (("table", "Tables: facts"), ("view", "Views: judgement")):
        lines.append(f"## {title}\n")
        for item in objects.values():
            if item.type != kind:
                continue
            lines.append(f"### `{item.name}`\n\n{item.comment}\n")
            lines.append("| Column | Type | Meaning |\n|---|---|---|")
            for column, declared in columns_of(connection, item.name):
                text = item.columns.get(column, "")
                lines.append(f"| `{column}` | {declared} | {_cell(text)} |")
            lines.append("")
    return "\n".join(lines)


def _query(query: NamedQuery) -> list[str]:
    lines = [f"## `{query.name}`\n\n**{query.title}.** {query.question}\n"]
    lines.append(f"How to read it: {query.how_to_read}\n")
    if query.scans:
        lines.append("This query reads all records.\n")
    if query.parameters:
        lines.append("| Parameter | Meaning | Default |\n|---|---|---|")
        for item in query.parameters:
            default = "required" if item.required else (item.default or "none")
            lines.append(f"| `{item.name}` | {_cell(item.help)} | {default} |")
        lines.append("")
    lines.append(f"```sql\n{query.sql.strip()}\n```\n")
    return lines


def queries_page(note: str) -> str:
    """Every named query with its question, its help and its SQL."""
    lines = [
        "# Named queries\n",
        note,
        "`inspect-db query INDEX.db NAME -p parameter=value` runs one; `inspect-db queries`\n"
        "lists them.\n",
    ]
    for query in named_queries().values():
        lines.extend(_query(query))
    return "\n".join(lines)
