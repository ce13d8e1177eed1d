"""What an index is, and how one is opened for reading.

An index is an ordinary SQLite file with our application id and the schema
version of this release. It is disposable: one of another version is not
migrated, it is built again.
"""

from __future__ import annotations

import os
import re
import shlex
import stat
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Final
from urllib.parse import quote

import apsw

from cursus.formats.display import safe_text

#: ``pragma application_id`` of every index ("CURS").
APPLICATION_ID: Final = 0x43555253
#: ``pragma user_version``: one number for the whole schema.
SCHEMA_VERSION: Final = 2
_MAGIC: Final = b"SQLite format 3\0"


class IndexFileError(Exception):
    """A file is not an index that this release reads; the message says what to do."""


@cache
def schema_scripts() -> tuple[tuple[str, str], ...]:
    """Name and text of each script of ``schema/``, in the order in which they are applied."""
    folder = resources.files("inspect_db") / "schema"
    scripts = sorted(item.name for item in folder.iterdir() if item.name.endswith(".sql"))
    return tuple((name, (folder / name).read_text("utf-8")) for name in scripts)


def index_version(path: str) -> int | None:
    """Schema version of what looks like an index at ``path``, whichever; ``None`` for all else.

    Never raises, and never waits for the other end of a pipe.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        return None
    try:
        regular = stat.S_ISREG(os.fstat(descriptor).st_mode)
        head = os.read(descriptor, 100) if regular else b""
    except OSError:
        return None
    finally:
        os.close(descriptor)
    if len(head) < 100 or head[:16] != _MAGIC:
        return None
    if int.from_bytes(head[68:72], "big") != APPLICATION_ID:
        return None
    return int.from_bytes(head[60:64], "big")


def is_index(path: str) -> bool:
    """Does ``path`` look like an index of any version? Never raises."""
    return index_version(path) is not None


def open_index(path: str) -> apsw.Connection:
    """Open an index read-only. Raises :class:`IndexFileError`."""
    shown = safe_text(path)
    if not os.path.exists(path):
        raise IndexFileError(f"{shown}: no such file")
    if os.path.isdir(path):
        raise IndexFileError(f"{shown} is a directory; `inspect-db build` makes an index of it")
    if not is_index(path):
        raise IndexFileError(f"{shown} is not an index made by `inspect-db build`")
    try:
        connection = apsw.Connection(
            f"file:{quote(os.path.abspath(path))}?mode=ro",
            flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI,
        )
        connection.execute("pragma query_only = 1")
        version = int(connection.pragma("user_version"))
        log_dir = None
        if connection.execute("select 1 from sqlite_schema where name = 'build'").fetchone():
            log_dir = connection.execute("select log_dir from build").fetchone()
    except apsw.Error as error:
        raise IndexFileError(
            f"{shown} cannot be read ({error}); build it again: "
            f"inspect-db build LOG_DIR -o {shlex.quote(shown)}"
        ) from None
    if version != SCHEMA_VERSION:
        where = log_dir[0] if log_dir and isinstance(log_dir[0], str) else "LOG_DIR"
        connection.close()
        raise IndexFileError(
            f"{shown} has schema version {version}, this release reads {SCHEMA_VERSION}; "
            f"build it again: inspect-db build {shlex.quote(safe_text(where))} "
            f"-o {shlex.quote(shown)}"
        )
    return connection


# -- what the scripts say about themselves ---------------------------------------------


@dataclass(frozen=True, slots=True)
class SchemaObject:
    """A table or view. ``columns``: name and sentence of each column, in order of the comment."""

    type: str
    name: str
    comment: str
    columns: dict[str, str]


_OBJECT: Final = re.compile(r"-- (table|view) (\w+): (.+)")
_COLUMN: Final = re.compile(r"--   (\w+): (.+)")


def schema_objects() -> dict[str, SchemaObject]:
    """Every table and view with its comments, by name; columns include the glossary's."""
    found: dict[str, SchemaObject] = {}
    glossary: dict[str, str] = {}
    for _, text in schema_scripts():
        columns = glossary
        for line in text.splitlines():
            if line == "-- glossary:":
                columns = glossary
            elif match := _OBJECT.fullmatch(line):
                columns = {}
                found[match[2]] = SchemaObject(match[1], match[2], match[3], columns)
            elif match := _COLUMN.fullmatch(line):
                columns[match[1]] = match[2]
    return {
        name: SchemaObject(item.type, item.name, item.comment, glossary | item.columns)
        for name, item in found.items()
    }
