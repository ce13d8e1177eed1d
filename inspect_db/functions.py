"""SQL functions that read records from the evidence: payload, record_json, record_hex.

``payload(file_id, position)``      bytes of the payload
``record_json(file_id, position)``  every field of the record as a JSON object
``record_hex(file_id, position)``   the bytes of the record, hexadecimal

They read only beneath the directory that the person who runs the query names,
and give null where no complete record stands.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any, cast

import apsw

from cursus.evidence.walk import LogDirectory
from cursus.findings import FormatError
from cursus.formats import record as codec
from cursus.replay.interfaces import UnreadableError
from inspect_db.values import from_name

FUNCTIONS = ("payload", "record_json", "record_hex")


def register(connection: apsw.Connection, evidence: LogDirectory | None) -> None:
    """Make the functions known; without evidence they say what is missing."""

    def body(file_id: Any, position: Any) -> bytes | None:
        if evidence is None:
            raise ValueError("name the directory with --evidence LOG_DIR to read records")
        return read_record(connection, evidence, file_id, position)

    def payload(file_id: Any, position: Any) -> bytes | None:
        found = _decoded(body(file_id, position))
        return found.payload if found else None

    def record_json(file_id: Any, position: Any) -> str | None:
        found = _decoded(body(file_id, position))
        return as_json(found) if found else None

    def record_hex(file_id: Any, position: Any) -> str | None:
        data = body(file_id, position)
        return data.hex() if data is not None else None

    # apsw calls with as many arguments as are said here; its type knows any number only.
    for name, function in zip(FUNCTIONS, (payload, record_json, record_hex), strict=True):
        connection.create_scalar_function(name, cast(Any, function), 2)


def read_record(
    connection: apsw.Connection, evidence: LogDirectory, file_id: Any, position: Any
) -> bytes | None:
    """Bytes of the record whose frame begins at ``position``; ``None`` without one."""
    if not isinstance(file_id, int) or not isinstance(position, int) or position < 0:
        return None
    row = connection.execute(
        "select f.path from files as f join segments as s on s.file_id = f.file_id "
        "where f.file_id = ?",
        (file_id,),
    ).fetchone()
    if row is None:
        return None
    try:
        with evidence.open(from_name(row[0])) as source:
            head = source.pread(4, position)
            length = int.from_bytes(head, "big")
            left = source.size - position - 4
            if len(head) < 4 or not 0 < length <= min(left, codec.MAX_RECORD_BYTES):
                return None
            data = source.pread(length, position + 4)
    except (UnreadableError, OSError):
        return None
    return data if len(data) == length else None


def _decoded(data: bytes | None) -> codec.Record | None:
    if data is None:
        return None
    try:
        return codec.decode(data)
    except FormatError:
        return None


def as_json(record: codec.Record) -> str:
    """Every field; bytes that are not UTF-8 as lone surrogates."""
    fields = {
        field.name: _plain(getattr(record, field.name)) for field in dataclasses.fields(record)
    }
    return json.dumps(fields)


def _plain(value: Any) -> Any:
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else value
