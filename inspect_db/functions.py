"""SQL functions that read records from the evidence: payload, record_json, record_hex.

``payload(file_id, position)``      bytes of the payload
``record_json(file_id, position)``  every field of the record as a JSON object
``record_hex(file_id, position)``   the bytes of the record, hexadecimal

They read only beneath the directory that the person who runs the query names,
refuse a file that is not what was indexed (:mod:`inspect_db.reading`), and give
null where no complete record stands. An answer holds at most 64 KiB of the
payload (``record_hex``: of the record); a third argument asks for more, in
bytes. ``record_json`` that leaves payload out says so by ``payload_bytes``.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

from cursus.findings import FormatError
from cursus.formats import record as codec
from inspect_db.reading import DEFAULT_LIMIT, MAX_LIMIT, Door, ReadRefused, Rows, read_frame

FUNCTIONS = ("payload", "record_json", "record_hex")
#: How a function is made known: name, function, number of arguments.
Create = Callable[[str, Callable[..., Any], int], object]


def register(rows: Rows, door: Door | None, create: Create) -> None:
    """Make the functions known; without evidence they say what is missing.

    They raise :class:`ReadRefused` with a message for people.
    """

    def body(file_id: Any, position: Any) -> bytes | None:
        if door is None:
            raise ReadRefused("name the directory with --evidence LOG_DIR to read records")
        if not isinstance(file_id, int) or not isinstance(position, int):
            return None
        found = read_frame(rows, door, file_id, position)
        return found.data[4:] if found else None

    def payload(file_id: Any, position: Any, limit: Any = DEFAULT_LIMIT) -> bytes | None:
        limit = _limit("payload", limit)
        found = _decoded(body(file_id, position))
        return found.payload[:limit] if found else None

    def record_json(file_id: Any, position: Any, limit: Any = DEFAULT_LIMIT) -> str | None:
        limit = _limit("record_json", limit)
        found = _decoded(body(file_id, position))
        return as_json(found, limit) if found else None

    def record_hex(file_id: Any, position: Any, limit: Any = DEFAULT_LIMIT) -> str | None:
        limit = _limit("record_hex", limit)
        data = body(file_id, position)
        return data[:limit].hex() if data is not None else None

    for name, function in zip(FUNCTIONS, (payload, record_json, record_hex), strict=True):
        create(name, function, 2)
        create(name, function, 3)


def _limit(function: str, limit: Any) -> int:
    if not isinstance(limit, int) or not 0 <= limit <= MAX_LIMIT:
        raise ReadRefused(f"the limit of {function}() is a number of bytes up to {MAX_LIMIT:,}")
    return limit


def _decoded(data: bytes | None) -> codec.Record | None:
    if data is None:
        return None
    try:
        return codec.decode(data)
    except FormatError:
        return None


def as_json(record: codec.Record, limit: int = MAX_LIMIT) -> str:
    """Every field; bytes that are not UTF-8 as lone surrogates.

    A payload of more than ``limit`` bytes is cut, and ``payload_bytes`` is added.
    """
    fields = {
        field.name: _plain(getattr(record, field.name)) for field in dataclasses.fields(record)
    }
    if len(record.payload) > limit:
        fields["payload"] = _plain(record.payload[:limit])
        fields["payload_bytes"] = len(record.payload)
    return json.dumps(fields)


def _plain(value: Any) -> Any:
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else value
