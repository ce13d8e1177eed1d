"""The named queries: one file of ``queries/`` answers one question.

A file begins with its front matter, then comes one statement::

    -- title: Lives of a group
    -- question: Which lives did a group have, and how did each begin and end?
    -- how to read: One line a lifecycle record, oldest epoch first. …
    -- parameter group: Name of the group. (required)
    -- parameter limit: How many lines. (default 20)
    -- scans: true
    select …

``how to read`` may go on over several lines that begin with ``--   ``. A
parameter is bound by name; one that is neither required nor given is null.
``scans: true`` says that the query reads all records.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Final

import apsw

from inspect_db.values import SqlValue, name, number

_FIELD: Final = re.compile(r"-- (title|question|how to read|scans): (.+)")
_PARAMETER: Final = re.compile(
    r"-- parameter (\w+): (.+?)(?: \((?:(required)|default (.+))\))?(?: \[(integer)\])?"
)
_MORE: Final = re.compile(r"--   (.+)")


class QueryError(Exception):
    """A query cannot be run as asked; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter. ``integer``: a number is wanted; else a name."""

    name: str
    help: str
    required: bool
    default: str | None
    integer: bool


@dataclass(frozen=True, slots=True)
class NamedQuery:
    """One question and its SQL."""

    name: str
    title: str
    question: str
    how_to_read: str
    parameters: tuple[Parameter, ...]
    scans: bool
    sql: str

    def bind(self, given: Mapping[str, str]) -> dict[str, SqlValue]:
        """Values for the statement. Raises :class:`QueryError`."""
        known = {item.name for item in self.parameters}
        for key in given:
            if key not in known:
                names = ", ".join(sorted(known)) or "none"
                raise QueryError(f"query {self.name} has no parameter {key!r} (it has: {names})")
        found: dict[str, SqlValue] = {}
        for item in self.parameters:
            text = given.get(item.name, item.default)
            if text is None and item.required:
                raise QueryError(f"query {self.name} needs -p {item.name}=…: {item.help}")
            found[item.name] = _value(item, text)
        return found


def _value(parameter: Parameter, text: str | None) -> SqlValue:
    if text is None:
        return None
    if not parameter.integer:
        return name(text)
    return integer(f"parameter {parameter.name}", text)


def integer(what: str, text: str) -> SqlValue:
    """A number that was given as text, as it is stored. Raises :class:`QueryError`."""
    if not (text.isascii() and text.isdigit()) or len(text) > 20:
        raise QueryError(f"{what} needs a number, not {text[:40]!r}")
    return number(int(text))


@cache
def named_queries() -> dict[str, NamedQuery]:
    """Every query by name."""
    folder = resources.files("inspect_db") / "queries"
    files = sorted(item.name for item in folder.iterdir() if item.name.endswith(".sql"))
    found = (_parse(file[:-4], (folder / file).read_text("utf-8")) for file in files)
    return {query.name: query for query in found}


def _parse(query: str, text: str) -> NamedQuery:
    fields: dict[str, str] = {}
    parameters: list[Parameter] = []
    lines = text.splitlines()
    body = 0
    last = ""
    for line in lines:
        if match := _FIELD.fullmatch(line):
            last = match[1]
            fields[last] = match[2]
        elif match := _PARAMETER.fullmatch(line):
            parameters.append(
                Parameter(match[1], match[2], bool(match[3]), match[4], bool(match[5]))
            )
        elif (match := _MORE.fullmatch(line)) and last:
            fields[last] += f" {match[1]}"
        else:
            break
        body += 1
    return NamedQuery(
        name=query,
        title=fields["title"],
        question=fields["question"],
        how_to_read=fields["how to read"],
        parameters=tuple(parameters),
        scans=fields.get("scans") == "true",
        sql="\n".join(lines[body:]).strip(),
    )


def get(query: str) -> NamedQuery:
    """One query. Raises :class:`QueryError`."""
    found = named_queries().get(query)
    if found is None:
        near = difflib.get_close_matches(query, named_queries(), n=1)
        hint = "SQL stands behind --sql" if " " in query else "`inspect-db queries` lists them"
        if near:
            hint = f"did you mean {near[0]!r}? {hint}"
        raise QueryError(f"no query {query!r}; {hint}")
    return found


def run(
    connection: apsw.Connection, query: NamedQuery, given: Mapping[str, str]
) -> tuple[tuple[str, ...], Iterator[tuple[SqlValue, ...]]]:
    """Names of the columns, and the rows. Raises :class:`QueryError`."""
    return execute(connection, query.sql, query.bind(given))


def execute(
    connection: apsw.Connection, sql: str, values: Mapping[str, SqlValue] | None = None
) -> tuple[tuple[str, ...], Iterator[tuple[SqlValue, ...]]]:
    """Run one statement. Raises :class:`QueryError` with what SQLite says."""
    columns: list[str] = []

    def described(at: apsw.Cursor, _: str, __: object) -> bool:
        columns[:] = [str(item[0]) for item in at.get_description()]
        return True

    cursor = connection.cursor()
    cursor.exec_trace = described
    try:
        rows = iter(cursor.execute(sql, dict(values) if values else None))
    except (apsw.Error, ValueError) as error:
        raise QueryError(str(error)) from None
    return tuple(columns), _rows(rows)


def _rows(rows: Iterator[tuple[SqlValue, ...]]) -> Iterator[tuple[SqlValue, ...]]:
    try:
        yield from rows
    except (apsw.Error, ValueError) as error:
        raise QueryError(str(error)) from None
