"""What stands at one byte of a file: the record, its bytes with their names, its neighbours."""

from __future__ import annotations

import json
from typing import Any, Final

from cursus.findings import FormatError
from cursus.formats import record as codec
from inspect_db.datasette.documents import Object, findings_where, first, objects
from inspect_db.functions import as_json
from inspect_db.reading import DEFAULT_LIMIT, Door, Excerpt, ReadRefused, Rows, read, read_frame
from inspect_db.record_fields import Field, fields_of

#: Bytes shown where no complete record stands.
RAW_BYTES: Final = 256
#: The same where the index knows how long a frame of the journal is.
MAX_RAW_BYTES: Final = 4096
#: Bytes of one field in the document.
_FIELD_BYTES: Final = DEFAULT_LIMIT


def record(rows: Rows, door: Door | None, file_id: int, position: int) -> Object | None:
    """The document of a place; ``None`` when the index has no such file, or it ends before."""
    file = first(
        rows,
        "select file_id, path, kind, type, size, mtime_ns, topic, partition, base_offset "
        "from files where file_id = ?",
        (file_id,),
    )
    if file is None or file["type"] != "file" or not 0 <= position <= file["size"]:
        return None
    address = (file_id, position)
    indexed = first(rows, "select * from records where file_id = ? and position = ?", address)
    if indexed is not None:
        indexed.pop("payload", None)
    frame = first(
        rows,
        "select transactional_id, kind, state, epoch, revision, updated_at, salvage, length "
        "from journal_frames where file_id = ? and position = ?",
        address,
    )
    return {
        "file": file,
        "position": position,
        "record": indexed,
        "consumer_record": _consumer(rows, file_id, position),
        "journal_frame": frame,
        "neighbours": _neighbours(rows, file, position),
        "bytes": _bytes(rows, door, file, position, _raw_length(frame)),
        **findings_where(
            rows,
            "f.file_id = ? and f.position <= ? and f.position + max(coalesce(f.length, 1), 1) > ?",
            (file_id, position, position),
        ),
    }


def _consumer(rows: Rows, file_id: int, position: int) -> Object | None:
    """What the replay of consumer metadata made of it."""
    address = (file_id, position)
    found = first(
        rows,
        "select log_partition, log_offset, state, disposition, code, shape, length "
        "from consumer_records where file_id = ? and position = ?",
        address,
    )
    if found is None:
        return None
    life = first(
        rows,
        "select type, group_name, topic, partition_count, epoch, timestamp "
        "from lifecycle_records where file_id = ? and position = ?",
        address,
    )
    snapshot = first(
        rows,
        "select 'offset_snapshot' as type, group_name, topic, epoch, revision, "
        "previous_revision, revision_step, timestamp from offset_snapshots "
        "where file_id = ? and position = ?",
        address,
    )
    return {**found, **(life or snapshot or {})}


# -- neighbours ----------------------------------------------------------------------------


def _neighbours(rows: Rows, file: Object, position: int) -> Object:
    """The records before and behind, also across the border of a segment."""
    if file["kind"] == "journal":
        return {
            "previous": _near(rows, "journal_frames", file["file_id"], position, back=True),
            "next": _near(rows, "journal_frames", file["file_id"], position, back=False),
        }
    return {
        "previous": _before(rows, file, position),
        "next": _behind(rows, file, position),
    }


def _near(rows: Rows, table: str, file_id: int, position: int, *, back: bool) -> Object | None:
    where, order = ("<", "desc") if back else (">", "asc")
    return first(
        rows,
        f"select file_id, position from {table} where file_id = ? and position {where} ? "
        f"order by position {order} limit 1",
        (file_id, position),
    )


def _in_file(rows: Rows, file_id: int, position: int, *, back: bool) -> Object | None:
    """Rows of records, or of consumer metadata where records have none."""
    return _near(rows, "record_rows", file_id, position, back=back) or _near(
        rows, "consumer_records", file_id, position, back=back
    )


def _before(rows: Rows, file: Object, position: int) -> Object | None:
    found = _in_file(rows, file["file_id"], position, back=True)
    for other in _segments(rows, file, back=True) if found is None else ():
        found = _in_file(rows, other["file_id"], 1 << 62, back=True)
        if found is not None:
            break
    return found


def _behind(rows: Rows, file: Object, position: int) -> Object | None:
    found = _in_file(rows, file["file_id"], position, back=False)
    for other in _segments(rows, file, back=False) if found is None else ():
        found = _in_file(rows, other["file_id"], -1, back=False)
        if found is not None:
            break
    return found


def _segments(rows: Rows, file: Object, *, back: bool) -> list[Object]:
    """Live segments of the same partition before or behind this one, nearest first."""
    where, order = ("<", "desc") if back else (">", "asc")
    return objects(
        rows,
        "select o.file_id from segments as s join segments as o on o.topic = s.topic "
        "and o.partition = s.partition and o.deleted = 0 "
        f"and o.base_offset {where} s.base_offset where s.file_id = ? "
        f"order by o.base_offset {order} limit 8",
        (file["file_id"],),
    )


# -- bytes ---------------------------------------------------------------------------------


def _raw_length(frame: Object | None) -> int:
    return RAW_BYTES if frame is None else min(int(frame["length"]), MAX_RAW_BYTES)


def _bytes(rows: Rows, door: Door | None, file: Object, position: int, length: int) -> Object:
    """What the evidence holds there, or why it is not shown."""
    if door is None:
        return {"state": "no_evidence", "reason": "no directory with the evidence is named"}
    file_id = file["file_id"]
    try:
        frame = read_frame(rows, door, file_id, position)
        if frame is not None:
            return _frame(file, frame)
        raw = read(rows, door, file_id, position, DEFAULT_LIMIT)
    except ReadRefused as error:
        return {"state": "refused", "reason": str(error)}
    if raw is None:
        return {"state": "end", "reason": "the file ends here"}
    return {
        "state": "raw",
        "reason": _why_no_record(raw),
        "length": len(raw.data),
        "proven": raw.proven,
        "grown": raw.grown,
        "hex": raw.data[:length].hex(),
        "fields": _fields_begun(raw),
    }


def _fields_begun(raw: Excerpt) -> list[Object]:
    """Names of the bytes of a record that was begun; none where it does not look like one."""
    if not raw.file.segment or raw.data[4:8] != codec.MAGIC:
        return []
    found = [_field(item, raw.data) for item in fields_of(raw.data)]
    if len(raw.data) < raw.file.size - raw.position and found[-1]["name"].endswith("cut off"):
        found.pop()  # the excerpt ends there, not the file
    return found


def _why_no_record(raw: Excerpt) -> str | None:
    if not raw.file.segment:
        return None
    left = raw.file.size - raw.position
    if left < 4:
        return f"only {left} bytes are left, too few for the length of a record"
    length = int.from_bytes(raw.data[:4], "big")
    if not length:
        return "the length of a record cannot be 0"
    if length > codec.MAX_RECORD_BYTES:
        return f"{length:,} cannot be the length of a record; {codec.MAX_RECORD_BYTES:,} can"
    return f"a record of {length:,} bytes was begun, and {left - 4:,} bytes are left"


def _frame(file: Object, frame: Excerpt) -> Object:
    topic, partition = file["topic"] or "", file["partition"]
    try:
        known = codec.decode_any(
            frame.data[4:],
            topic.encode("utf-8", "surrogateescape"),
            partition if isinstance(partition, int) else -1,
        )
        generation, decoded, reason = known.generation, known.record, None
    except FormatError as error:
        generation, decoded, reason = None, None, f"{error.code}: {error}"
    unversioned = generation == "unversioned"
    return {
        "state": "record",
        "reason": reason,
        "length": len(frame.data),
        "proven": frame.proven,
        "grown": frame.grown,
        "hex": frame.data[:DEFAULT_LIMIT].hex(),
        "generation": generation,
        "fields": [
            _field(item, frame.data) for item in fields_of(frame.data, unversioned=unversioned)
        ],
        "decoded": json.loads(as_json(decoded, DEFAULT_LIMIT)) if decoded else None,
    }


def _field(item: Field, frame: bytes) -> Object:
    value: Any = item.value
    if isinstance(value, bytes):
        value = value[:_FIELD_BYTES].decode("utf-8", "surrogateescape")
    raw = frame[item.start : min(item.end, item.start + _FIELD_BYTES)]
    return {
        "name": item.name,
        "start": item.start,
        "end": item.end,
        "raw": raw.hex(),
        "value": value,
    }
