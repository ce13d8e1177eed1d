r"""Addresses of our pages, for names of any bytes.

A name of the evidence may hold any byte and be 65,535 of them long. In an
address it is written as Datasette writes names (``~`` and two digits for every
byte but letters, digits, ``-`` and ``_``), over bytes and not characters. One
that would be too long for a request line is written ``~sha256-`` and the digest
of its bytes, and looked up among the names of the index. No name is ``~sha256-``
by accident: ``~`` is followed by two digits of 16 anywhere else.

In a form a name is typed as our pages show it: what cannot be seen is written
as an escape (``\n``, ``\x00``, ``\u202e``; ``\xff`` for a byte that is not UTF-8).
"""

from __future__ import annotations

import hashlib
import re
from typing import Any, Final
from urllib.parse import urlencode

from cursus.formats.display import safe_text
from inspect_db.reading import Rows
from inspect_db.values import SqlName, from_name, name

_PLAIN: Final = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_")
_DIGEST: Final = "~sha256-"
_EMPTY: Final = "~empty"
#: Characters of an encoded name in an address; a longer one goes by its digest.
MAX_NAME: Final = 600
#: A name of fewer bytes is never that long.
_SHORTEST: Final = MAX_NAME // 3
#: Characters of a typed name in an address; there is no link to a form for longer ones.
MAX_TYPED: Final = 2000

#: Where names of a kind stand in an index.
_SOURCES: Final = {
    "group": (
        ("replayed_groups", "group_name"),
        ("lifecycle_records", "group_name"),
        ("offset_snapshots", "group_name"),
        ("historical_offsets", "group_name"),
    ),
    "topic": (
        ("topics", "topic"),
        ("partitions", "topic"),
        ("lifecycle_records", "topic"),
        ("offset_snapshots", "topic"),
        ("replayed_offsets", "topic"),
    ),
    "path": (("files", "path"),),
}


def _bytes(value: SqlName) -> bytes:
    """``value``: stored, or decoded by ``surrogateescape``; the same bytes either way."""
    return value if isinstance(value, bytes) else value.encode("utf-8", "surrogateescape")


def encode(value: SqlName) -> str:
    """A stored name as one part of an address."""
    data = _bytes(value)
    if not data:
        return _EMPTY
    # Most names are short and plain; a long one is not worth encoding first.
    if len(data) <= MAX_NAME:
        text = "".join(chr(byte) if byte in _PLAIN else f"~{byte:02X}" for byte in data)
        if len(text) <= MAX_NAME:
            return text
    return _DIGEST + hashlib.sha256(data).hexdigest()


def decode(rows: Rows, kind: str, text: str) -> SqlName | None:
    """The stored name behind a part of an address; ``None`` when it is no such part."""
    if text.startswith(_DIGEST):
        return _by_digest(rows, kind, text.removeprefix(_DIGEST))
    if text == _EMPTY:
        return ""
    if re.fullmatch(r"(?:[A-Za-z0-9_-]|~[0-9A-Fa-f]{2})+", text) is None:
        return None
    data = re.sub(r"~(..)", lambda match: chr(int(match[1], 16)), text).encode("latin-1")
    return name(data)


def _by_digest(rows: Rows, kind: str, digest: str) -> SqlName | None:
    for table, column in _SOURCES[kind]:
        found = rows.execute(
            f"select distinct {column} from {table} where length(cast({column} as blob)) >= ?",
            (_SHORTEST,),
        )
        for (value,) in found:
            if hashlib.sha256(_bytes(value)).hexdigest() == digest:
                return name(value)
    return None


# -- names in forms ---------------------------------------------------------------------------

_ESCAPE: Final = re.compile(r"\\(?:([nrt\\])|x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8}))")
_SHORT: Final = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\"}


def typed_name(text: str) -> SqlName:
    """The stored name that is typed as ``text``.

    A backslash that begins no escape stands for itself, so a name with one may
    also be typed as it is.
    """
    return name(_ESCAPE.sub(_unescape, text))


def _unescape(match: re.Match[str]) -> str:
    short, byte, four, eight = match.groups()
    if short:
        return _SHORT[short]
    code = int(byte or four or eight, 16)
    if byte and code >= 0x80:
        return chr(0xDC00 + code)  # a byte that is not UTF-8
    return chr(code) if code <= 0x10FFFF else match.group()


def as_typed(value: SqlName) -> str:
    """A stored name as it is typed into a form; :func:`typed_name` gives it back."""
    return "".join(
        f"\\u{ord(character):04x}" if "\x80" <= character <= "\xad" else safe_text(character)
        for character in from_name(value)
    )


# -- addresses --------------------------------------------------------------------------------


class Addresses:
    """Addresses within one index; ``urls`` is that of Datasette and knows its ``base_url``."""

    def __init__(self, urls: Any, database: str, route: str) -> None:
        self._urls = urls
        self.database = database
        self.home = str(urls.path(f"/-/cursus/{encode(route)}"))

    def page(self, *parts: str | int) -> str:
        """One of our pages."""
        return "/".join((self.home, *(str(part) for part in parts)))

    def group(self, value: SqlName) -> str:
        """The page of a group."""
        return self.page("group", encode(value))

    def topic(self, value: SqlName) -> str:
        """The page of a topic."""
        return self.page("topic", encode(value))

    def partition(self, topic: SqlName, partition: int | str) -> str:
        """The page of a partition."""
        return self.page("topic", encode(topic), partition)

    def record(self, file_id: int, position: int) -> str:
        """The page of what stands at a byte of a file."""
        return self.page("record", file_id, position)

    def place(self, path: SqlName, position: int | None = None) -> str:
        """The same by the path; it leads on to the page of the record or of the file."""
        return self.page("at", encode(path), *(() if position is None else (position,)))

    def file(self, file_id: int) -> str:
        """The row of a file."""
        return f"{self.table('files')}/{file_id}"

    def finding(self, finding_id: int) -> str:
        """The row of a finding."""
        return f"{self.table('findings')}/{finding_id}"

    def code(self, code: str) -> str:
        """What a code means."""
        return f"{self.table('finding_codes')}/{encode(code)}"

    def table(self, table: str, **filters: str | int) -> str:
        """A table or view, filtered."""
        base = str(self._urls.table(self.database, table))
        return f"{base}?{urlencode(filters)}" if filters else base

    def tables(self) -> str:
        """Datasette's own page of the index."""
        return str(self._urls.database(self.database))

    def query(self, query: str, **given: SqlName | int) -> str | None:
        """A named query with its parameters; ``None`` when an address would be too long."""
        base = str(self._urls.query(self.database, query_name(query)))
        typed = {key: _typed(value) for key, value in given.items()}
        if sum(len(value) for value in typed.values()) > MAX_TYPED:
            return None
        return f"{base}?{urlencode(typed)}" if typed else base


def _typed(value: SqlName | int) -> str:
    if isinstance(value, int):
        return str(value)
    # Nobody types it, and it would take long to write it out.
    return as_typed(value) if len(value) <= MAX_TYPED else "x" * (MAX_TYPED + 1)


def query_name(query: str) -> str:
    """Name of a named query in Datasette, where queries and tables share one space of names."""
    return f"query-{query}"
