"""Which databases are indexes, and how they are opened.

An index is told by its file header (application id), its release by the schema
version beside it; other databases are none of our business.

Datasette keeps connections open. A build or an update puts a new file in the
place of the old one, and a connection would go on showing the old rows.
:class:`IndexDatabase` looks at the file before each use and opens it anew when
another stands there, so that nobody looks at yesterday's rows.

Whoever asks may only read: the file is opened ``mode=ro``, and an authorizer
refuses everything but reading this one file.
"""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final
from urllib.parse import quote

from datasette.database import Database, connections

from inspect_db import functions
from inspect_db import index as index_files
from inspect_db.datasette.addresses import typed_name
from inspect_db.index import SCHEMA_VERSION
from inspect_db.queries_catalogue import QueryError, integer
from inspect_db.reading import MAX_LIMIT, Door, ReadRefused
from inspect_db.values import SqlValue

#: Name of the plugin: that of the distribution, as Datasette has it.
PLUGIN: Final = "cursus-storage"
#: No value is longer: the hexadecimal digits of the longest record, and some.
MAX_VALUE: Final = 3 * MAX_LIMIT
#: What a reader does; everything else is refused.
_ALLOWED: Final = {
    sqlite3.SQLITE_SELECT,
    sqlite3.SQLITE_READ,
    sqlite3.SQLITE_FUNCTION,
    sqlite3.SQLITE_RECURSIVE,
    sqlite3.SQLITE_TRANSACTION,
}
#: Functions of SQLite, or of its shell, that reach beyond the database.
_FORBIDDEN_FUNCTIONS: Final = {"load_extension", "readfile", "writefile", "edit", "fts3_tokenizer"}
#: What Datasette itself reads by pragma.
_PRAGMAS: Final = {
    *("database_list", "foreign_key_list", "function_list", "index_info", "index_list"),
    *("index_xinfo", "max_page_count", "page_count", "page_size", "schema_version"),
    *("table_info", "table_xinfo", "table_list", "application_id", "user_version"),
    *("encoding", "compile_options", "recursive_triggers", "cache_size", "query_only"),
}
#: Of these the value may be set: it concerns the connection only.
_SETTABLE: Final = {"cache_size", "recursive_triggers"}
_TABLE_PRAGMAS: Final = {
    *("foreign_key_list", "index_info", "index_list", "index_xinfo", "table_info", "table_xinfo"),
}
Signature = tuple[int, int, int, int]


def signature(path: str) -> Signature | None:
    """What tells one file at ``path`` from another; ``None`` when no regular file is there."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    if not stat.S_ISREG(found.st_mode):
        return None  # to open a pipe would be to wait for ever
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


_versions: dict[str, tuple[Signature, int | None]] = {}


def index_version(path: str | None) -> int | None:
    """Schema version of the index at ``path``; ``None`` when no index stands there."""
    seen = signature(str(path)) if path else None
    if path is None or seen is None:
        return None
    path = str(path)
    known = _versions.get(path)
    if known is None or known[0] != seen:
        known = _versions[path] = (seen, index_files.index_version(path))
    return known[1]


def is_index(datasette: Any, name: str) -> bool:
    """Is the database of this name an index that this release reads?"""
    database = datasette.databases.get(name)
    return database is not None and index_version(database.path) == SCHEMA_VERSION


def indexes(datasette: Any) -> Iterator[tuple[str, Any]]:
    """Name and database of each index that this release reads."""
    for name, database in datasette.databases.items():
        if index_version(database.path) == SCHEMA_VERSION:
            yield name, database


class IndexConnection(sqlite3.Connection):
    """A connection that knows which file it reads, and why a function refused."""

    seen: Signature | None = None
    refusal: str | None = None


class _OtherFileError(Exception):
    """Another file stands in the place of the one that is open."""


class IndexDatabase(Database):  # type: ignore[misc]  # Datasette has no types
    """An index in Datasette: read-only, and always the file that stands there now."""

    @property
    def size(self) -> int:
        """Bytes of the file that stands there now; 0 when there is none."""
        seen = signature(self.path)
        return seen[2] if seen is not None else 0

    @property
    def mtime_ns(self) -> int | None:
        """When that file was written; ``None`` when there is none."""
        seen = signature(self.path)
        return seen[3] if seen is not None else None

    def connect(self, write: bool = False) -> sqlite3.Connection:
        """Open the file for reading; nothing is ever written.

        Where no file stands any more the database is empty: Datasette asks every
        database for its schema on every page, also on those of others.
        """
        if write:
            raise sqlite3.OperationalError("an index is read-only")
        seen = signature(self.path)
        place = f"file:{quote(os.path.abspath(self.path))}?mode=ro"
        connection = sqlite3.connect(
            place if seen is not None else ":memory:",
            uri=seen is not None,
            check_same_thread=False,
            factory=IndexConnection,
        )
        connection.seen = seen
        self._all_file_connections.append(connection)
        return connection

    async def execute_fn(self, fn: Callable[[sqlite3.Connection], Any]) -> Any:
        """Run ``fn`` on a connection to the file that stands there now."""
        for _ in range(4):
            try:
                return await super().execute_fn(partial(self._checked, fn))
            except _OtherFileError:
                continue
        raise sqlite3.OperationalError("the index is being replaced again and again")

    def _checked(self, fn: Callable[[Any], Any], connection: Any) -> Any:
        now = signature(self.path)
        own = isinstance(connection, IndexConnection)
        if not own or connection.seen != now:
            self._forget(connection)
            raise _OtherFileError
        connection.refusal = None
        try:
            answer = fn(connection)
        except Exception:
            if connection.refusal is None:
                raise
        if connection.refusal is not None:
            raise sqlite3.OperationalError(connection.refusal) from None
        return answer

    def _forget(self, connection: sqlite3.Connection) -> None:
        """Datasette opens a new connection the next time; runs in the thread that has this one."""
        if getattr(connections, self.name, None) is connection:
            delattr(connections, self.name)
        if getattr(self, "_read_connection", None) is connection:
            self._read_connection: Any = None
        if connection in self._all_file_connections:
            self._all_file_connections.remove(connection)
        self.cached_hash = self.cached_size = self._cached_table_counts = None
        connection.close()


def adopt(datasette: Any) -> None:
    """Open every index among the databases as :class:`IndexDatabase`."""
    for name, database in list(datasette.databases.items()):
        if isinstance(database, IndexDatabase) or index_version(database.path) is None:
            continue
        own = IndexDatabase(datasette, path=database.path, is_mutable=database.is_mutable)
        datasette.remove_database(name)
        datasette.add_database(own, name=name, route=database.route)


# -- connections -----------------------------------------------------------------------------


def prepare(connection: Any, datasette: Any, name: str) -> None:
    """Functions and limits of a connection to an index; others stay as they are."""
    database = datasette.databases.get(name)
    if database is None:
        return
    # What was an index when it was opened keeps its limits, whatever was put in its place.
    if not isinstance(database, IndexDatabase) and index_version(database.path) is None:
        return
    evidence = evidence_of(datasette, name)
    functions.register(
        connection, Door(evidence) if evidence else None, partial(_create, connection)
    )
    _create(connection, "cursus_name", given_name, 1)
    _create(connection, "cursus_number", given_number, 2)
    connection.execute("pragma query_only = 1")
    connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE)
    connection.set_authorizer(_authorize)


def evidence_of(datasette: Any, name: str) -> str | None:
    """The directory that the configuration names for this database."""
    config = datasette.plugin_config(PLUGIN, database=name) or {}
    evidence = config.get("evidence")
    return str(evidence) if evidence else None


def _create(connection: Any, name: str, function: Callable[..., Any], arguments: int) -> None:
    """A function whose refusals are told in its own words."""

    def told(*values: Any) -> Any:
        try:
            return function(*values)
        except (ReadRefused, QueryError) as error:
            if not isinstance(connection, IndexConnection):
                raise
            # What a function raises would be printed, and its words would be lost.
            connection.refusal = connection.refusal or str(error)
            connection.interrupt()
            return None

    connection.create_function(name, arguments, told)


def _authorize(
    action: int, first: str | None, second: str | None, database: str | None, _: str | None
) -> int:
    if action == sqlite3.SQLITE_FUNCTION:
        return (
            sqlite3.SQLITE_DENY
            if (second or "").lower() in _FORBIDDEN_FUNCTIONS
            else sqlite3.SQLITE_OK
        )
    if action == sqlite3.SQLITE_PRAGMA:
        name = (first or "").lower()
        settable = second is None or name in _SETTABLE or name in _TABLE_PRAGMAS
        return sqlite3.SQLITE_OK if name in _PRAGMAS and settable else sqlite3.SQLITE_DENY
    return sqlite3.SQLITE_OK if action in _ALLOWED else sqlite3.SQLITE_DENY


# -- what people type into a form --------------------------------------------------------------


def given_name(text: Any) -> SqlValue:
    """A name as our pages show it, as the index stores it; null for nothing."""
    return typed_name(str(text)) if text not in {None, ""} else None


def given_number(text: Any, default: Any) -> SqlValue:
    """A number, or the default for nothing. Raises :class:`QueryError`."""
    return integer("a parameter", str(text)) if text not in {None, ""} else default
