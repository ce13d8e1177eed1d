"""Numbers and names between Python and SQLite, both ways.

SQLite has signed 64-bit integers and text that ends badly at NUL. Storage has
unsigned 64-bit numbers and names made of any bytes. Columns of type ``ANY``
hold them without change of type::

    number up to 2^63 - 1            INTEGER
    number above                     TEXT, decimal, padded with zeros to 20 digits
    difference                       as a number; negative beyond 2^63: "-" and 20 digits
    name: UTF-8 without NUL          TEXT
    any other name                   BLOB

SQLite sorts every INTEGER before every TEXT, and 20 digits sort as numbers do,
so ``order by`` is right over the whole range.

Source: README.md decision 17.
"""

from __future__ import annotations

from typing import Final

SIGNED_MAX: Final = 2**63 - 1
SIGNED_MIN: Final = -(2**63)
UNSIGNED_MAX: Final = 2**64 - 1
DIGITS: Final = 20

SqlNumber = int | str
SqlName = str | bytes
SqlValue = int | float | str | bytes | None


def number(value: int) -> SqlNumber:
    """A number from 0 on, as it is stored."""
    return value if value <= SIGNED_MAX else f"{value:0{DIGITS}d}"


def number_or_none(value: int | None) -> SqlNumber | None:
    """:func:`number`, or nothing."""
    return None if value is None else number(value)


def difference(value: int, other: int) -> SqlNumber:
    """``value - other`` of two unsigned numbers, as it is stored."""
    found = value - other
    if SIGNED_MIN <= found <= SIGNED_MAX:
        return found
    return f"{'-' if found < 0 else ''}{abs(found):0{DIGITS}d}"


def from_number(value: SqlNumber) -> int:
    """The number that is stored as ``value``. Raises ``ValueError`` for other text."""
    if isinstance(value, int):
        return value
    digits = value.removeprefix("-")
    if len(digits) != DIGITS or not (digits.isascii() and digits.isdigit()):
        raise ValueError(f"not a stored number: {value[:40]!r}")
    return int(value)


def from_number_or_none(value: SqlNumber | None) -> int | None:
    """:func:`from_number`, or nothing."""
    return None if value is None else from_number(value)


def name(value: str | bytes) -> SqlName:
    """A name as it is stored; ``str`` may hold bytes that were not UTF-8 (surrogateescape)."""
    if isinstance(value, bytes):
        if b"\0" in value:
            return value
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError:
            return value
    if "\0" not in value:
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            pass
        else:
            return value
    try:
        return value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # a surrogate that stands for no byte
        return value.encode("utf-8", "surrogatepass")


def name_or_none(value: str | bytes | None) -> SqlName | None:
    """:func:`name`, or nothing; an empty name is nothing too."""
    return name(value) if value else None


def from_name(value: SqlName) -> str:
    """The name that is stored as ``value``; bytes that are not UTF-8 by surrogateescape."""
    return value if isinstance(value, str) else value.decode("utf-8", "surrogateescape")
