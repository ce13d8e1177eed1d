"""Values in the tables of an index: links, units, and names that are safe to show.

What stands in a cell is evidence. Text is shown on one line with everything
invisible written out, bytes that are a name as that name, and nothing becomes a
link because it looks like one: links lead within the index only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from markupsafe import Markup, escape

from cursus.formats.display import safe_bytes, safe_text
from inspect_db.datasette.addresses import Addresses

#: Characters of a name in a table; the page behind the link shows all of it.
NAME: Final = 120
#: Columns that count bytes, as numbers.
_BYTES: Final = {
    *("size", "length", "bytes", "payload_bytes", "largest_bytes", "lost_bytes"),
    *("marker_bytes", "retention_bytes"),
}
_DIGESTS: Final = {"content", "sha256"}
#: Columns of bytes that are no name; Datasette offers them for download.
_BLOBS: Final = {"payload", "canonical", "inventory"}


def render(
    row: Any, value: Any, column: str, addresses: Addresses, limit: int | None
) -> Markup | None:
    """A cell as markup; ``None`` leaves it to Datasette."""
    if isinstance(value, Mapping):  # a foreign key with the label of its row
        return _labelled(column, value, addresses)
    if value is None or value == "":
        return None
    link = _LINKS.get(column)
    address = link(_Row(row), value, addresses) if link else None
    if address is not None:
        return _anchor(address, _text(value, NAME))
    if isinstance(value, bytes):
        if column in _DIGESTS:
            return Markup("<code>{}</code>").format(value.hex())
        return None if column in _BLOBS or column.startswith("payload(") else _span(value, limit)
    if isinstance(value, int):
        return _number(column, value)
    return _span(value, limit) if isinstance(value, str) else None


def _number(column: str, value: int) -> Markup:
    if column in _BYTES:
        return Markup("{}&nbsp;B").format(f"{value:,}")
    if column in {"mtime_ns", "ctime_ns"}:
        return Markup("{}").format(moment(value))
    if column == "mode":
        return Markup("{}").format(f"{value:04o}")
    return Markup("{}").format(value)


def moment(nanoseconds: int) -> str:
    """A time of a file in UTC, as exact as the file system has it."""
    try:
        whole = datetime.fromtimestamp(nanoseconds // 10**9, UTC)
    except (OverflowError, ValueError, OSError):
        return f"{nanoseconds:,} ns"
    return f"{whole:%Y-%m-%d %H:%M:%S}.{nanoseconds % 10**9:09d}Z"


def _text(value: Any, limit: int | None) -> str:
    if isinstance(value, bytes):
        return safe_bytes(value if limit is None else value[: 4 * limit], limit)
    return safe_text(str(value), limit)


def _span(value: str | bytes, limit: int | None) -> Markup:
    return escape(_text(value, limit))


def _anchor(address: str, text: str) -> Markup:
    return Markup('<a href="{}">{}</a>').format(address, text)


def _labelled(column: str, value: Mapping[str, Any], addresses: Addresses) -> Markup | None:
    target, label = value.get("value"), value.get("label")
    if column == "file_id" and isinstance(target, int):
        return _anchor(addresses.file(target), _text(label, NAME))
    if column == "code" and isinstance(target, str):
        return _anchor(addresses.code(target), _text(label, NAME))
    return None


class _Row:
    """Columns of a row by name, whatever they are; absent ones are ``None``."""

    def __init__(self, row: Any) -> None:
        self._row = row

    def __getitem__(self, column: str) -> Any:
        try:
            value = self._row[column]
        except (KeyError, IndexError, TypeError):
            return None
        return value.get("value") if isinstance(value, Mapping) else value


def _file(row: _Row, value: Any, addresses: Addresses) -> str | None:
    return addresses.file(value) if isinstance(value, int) else None


def _path(row: _Row, value: Any, addresses: Addresses) -> str | None:
    if isinstance(row["file_id"], int):
        return addresses.file(row["file_id"])
    return addresses.place(value) if isinstance(value, str | bytes) else None


def _position(row: _Row, value: Any, addresses: Addresses) -> str | None:
    if not isinstance(value, int):
        return None
    if isinstance(row["file_id"], int):
        return addresses.record(row["file_id"], value)
    path = row["path"]
    return addresses.place(path, value) if isinstance(path, str | bytes) and path else None


def _group(row: _Row, value: Any, addresses: Addresses) -> str | None:
    return addresses.group(value) if isinstance(value, str | bytes) else None


def _topic(row: _Row, value: Any, addresses: Addresses) -> str | None:
    if not isinstance(value, str | bytes) or _is_pattern(value):
        return None
    return addresses.topic(value)


def _partition(row: _Row, value: Any, addresses: Addresses) -> str | None:
    topic = row["topic"]
    if not isinstance(topic, str | bytes) or not topic or _is_pattern(topic):
        return None
    return addresses.partition(topic, value) if isinstance(value, int) else None


def _code(row: _Row, value: Any, addresses: Addresses) -> str | None:
    return addresses.code(value) if isinstance(value, str) else None


def _finding(row: _Row, value: Any, addresses: Addresses) -> str | None:
    return addresses.finding(value) if isinstance(value, int) else None


def _is_pattern(topic: str | bytes) -> bool:
    text = topic if isinstance(topic, bytes) else topic.encode()
    return b"*" in text or b"?" in text


_LINKS: Final[dict[str, Callable[[_Row, Any, Addresses], str | None]]] = {
    "file_id": _file,
    "path": _path,
    "position": _position,
    "group_name": _group,
    "grp": _group,
    "topic": _topic,
    "partition": _partition,
    "item_partition": _partition,
    "code": _code,
    "finding_id": _finding,
}
