"""One file of a log directory, decoded record by record.

The kind of a file follows from its name (or from ``--as``). Every kind gives
rows with an address: byte position and length in the file. A segment is walked
by the same scan that the verdict uses, so what stands behind damage is shown
too, marked as not reachable. Everything is opened for reading only, and only
regular files are.

One line of ``--jsonl`` is ``{"position", "length", "type", "reachable", …}`` with
the fields of the type behind; bytes that are not UTF-8 are ``{"hex": "…"}``.
Problems are lines of type ``finding`` in the shape of ``verdict --json``.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

from cursus import layout
from cursus.evidence.segment_scan import scan_segment
from cursus.evidence.walk import EvidenceFile
from cursus.findings import CATALOGUE, Finding, FormatError, finding
from cursus.formats import (
    aggregate_files,
    canonical_json,
    checkpoints,
    compaction_marker,
    consumer_metadata,
    offset_index,
    timestamps,
    topic_manifest,
)
from cursus.formats.display import safe_bytes, safe_text
from cursus.formats.record import Record
from cursus.layout import FileKind
from cursus.replay.interfaces import RecordBatch, SegmentRef
from cursus.replay.transactions import JournalFrame, scan_journal
from inspect_db.verdict import finding_json

#: Small files (checkpoints, markers, manifest) are read whole, up to here.
MAX_WHOLE_FILE: Final = 256 << 20
_SHOWN: Final = 60

KINDS: Final = (
    FileKind.SEGMENT_LOG,
    FileKind.SEGMENT_INDEX,
    FileKind.JOURNAL,
    FileKind.TOPIC_MANIFEST,
    FileKind.HWM,
    FileKind.PRODUCERS,
    FileKind.LIFECYCLE_EPOCH,
    FileKind.COMPACTION_MARKER,
    FileKind.AGGREGATE_INDEX,
    FileKind.AGGREGATE_KEYS,
    FileKind.AGGREGATE_SNAPSHOTS,
)
_SAME: Final = {
    FileKind.DELETED_LOG: FileKind.SEGMENT_LOG,
    FileKind.DELETED_INDEX: FileKind.SEGMENT_INDEX,
    FileKind.TOPIC_MANIFEST_TEMP: FileKind.TOPIC_MANIFEST,
    FileKind.JOURNAL_COMPACTION_TEMP: FileKind.JOURNAL,
    FileKind.HWM_TEMP: FileKind.HWM,
    FileKind.PRODUCERS_TEMP: FileKind.PRODUCERS,
    FileKind.LIFECYCLE_EPOCH_TEMP: FileKind.LIFECYCLE_EPOCH,
}


class DumpError(Exception):
    """The file cannot be dumped; the message is one line for the user."""


@dataclass(frozen=True, slots=True)
class Row:
    """One decoded piece of the file. ``reachable``: a broker would get to it."""

    position: int
    length: int
    type: str
    values: Mapping[str, Any]
    reachable: bool = True

    def json(self) -> dict[str, Any]:
        """One line of ``--jsonl``."""
        head = {
            "position": self.position,
            "length": self.length,
            "type": self.type,
            "reachable": self.reachable,
        }
        return head | {name: plain(value) for name, value in self.values.items()}

    def line(self) -> str:
        """One line for a terminal; values that are empty or zero are left out."""
        mark = " " if self.reachable else "!"
        parts = [f"{self.position:>12}{mark} {self.length:>8}  {self.type}"]
        for name, value in self.values.items():
            if value in ("", b"", None) or (value == 0 and name not in _KEPT):
                continue
            parts.append(f"{name}={_shown(value)}")
        return " ".join(parts)


_KEPT: Final = {"offset", "partition", "value", "version", "epoch"}


def plain(value: Any) -> Any:
    """A value as JSON has it."""
    if isinstance(value, bytes):
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError:
            return {"hex": value.hex()}
    if isinstance(value, canonical_json.Number):
        return str(value)
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def _shown(value: Any) -> str:
    if isinstance(value, bytes):
        tail = f" ({len(value)} bytes)" if len(value) > _SHOWN else ""
        return f'"{safe_bytes(value[:_SHOWN])}"{"…" if tail else ""}{tail}'
    if isinstance(value, str):
        return safe_text(value, _SHOWN)
    if isinstance(value, (Mapping, list, tuple)):
        text = canonical_json.compact(plain(value)).decode("utf-8", "surrogateescape")
        return safe_text(text, 400)
    return str(value)


Emit = Callable[[Row | Finding], None]


def kind_of(path: Path) -> tuple[FileKind, layout.Name]:
    """What a file of a log directory is called, from its own name and its directory's.

    Raises :class:`DumpError` for a name that belongs to nothing that can be decoded.
    """
    if os.path.isdir(path):
        raise DumpError(f"{safe_text(str(path))} is a directory; dump takes one file of it")
    whole = Path(os.path.abspath(path))
    name, parent = whole.name, whole.parent
    for parts in ((parent.parent.name, parent.name, name), (parent.name, name), (name,)):
        found = layout.classify(parts, directory=False)
        kind = _SAME.get(found.kind, found.kind)
        if kind in KINDS:
            return kind, found
    known = ", ".join(kind.value for kind in KINDS)
    raise DumpError(f"{safe_text(str(path))}: unknown kind of file; say --as one of {known}")


def dump(
    path: Path, emit: Emit, *, kind: FileKind | None = None, start: int = 0, strict: bool = False
) -> int:
    """Decode ``path`` and hand rows and findings to ``emit``; returns how many problems.

    ``start``: rows that begin before this byte are left out. ``strict``: what
    stands behind the first damage is left out. Raises :class:`DumpError`.
    """
    if kind is None:
        kind, name = kind_of(path)
    else:
        name = layout.classify((path.absolute().parent.name, path.name), directory=False)
    problems = 0

    def give(item: Row | Finding) -> None:
        nonlocal problems
        if isinstance(item, Finding):
            problems += item.severity != "info"
        elif item.position < start or (strict and not item.reachable):
            return
        emit(item)

    with _open(path) as source:
        if kind is FileKind.SEGMENT_LOG:
            _segment(source, path, name, give)
        elif kind is FileKind.JOURNAL:
            _journal(source, path, give)
        else:
            _whole(source, path, kind, give)
    return problems


def _open(path: Path) -> EvidenceFile:
    try:
        before = os.lstat(path)
        if not stat.S_ISREG(before.st_mode):
            raise DumpError(f"{safe_text(str(path))}: not a regular file")
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        fd = os.open(path, flags)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise DumpError(f"{safe_text(str(path))}: {reason}") from None
    after = os.fstat(fd)
    if not stat.S_ISREG(after.st_mode):
        os.close(fd)
        raise DumpError(f"{safe_text(str(path))}: {os.strerror(errno.ESTALE)}")
    return EvidenceFile(fd, after.st_size)


# -- kinds ---------------------------------------------------------------------------


def _segment(source: EvidenceFile, path: Path, name: layout.Name, emit: Emit) -> None:
    topic = name.topic or path.absolute().parent.name
    ref = SegmentRef(
        path=path.name,
        topic=topic,
        partition=name.partition or 0,
        base=name.base or 0,
        size=source.size,
        active=name.kind is not FileKind.DELETED_LOG,
        deleted=name.kind is FileKind.DELETED_LOG,
        # A dump is of one file: whether gaps are allowed stands beside it.
        gaps_allowed=True,
        internal=topic == layout.INTERNAL_TOPIC,
    )

    def visit(batch: RecordBatch) -> None:
        for item in batch:
            values = _record_values(item.record)
            if ref.internal:
                values |= _consumer_values(item.record.payload)
            emit(Row(item.position, item.length, "record", values, batch.reachable))

    for item in scan_segment(source, ref, visit).findings:
        emit(item)


def _record_values(record: Record) -> dict[str, Any]:
    order = ["offset", "topic", "partition"]
    names = order + [item.name for item in fields(record) if item.name not in order]
    values = {name: getattr(record, name) for name in names if name != "payload"}
    return values | {"payload": record.payload}


def _consumer_values(payload: bytes) -> dict[str, Any]:
    try:
        record = consumer_metadata.decode(payload)
    except FormatError as error:
        return {"consumer_code": error.code, "consumer_message": error.message}
    return {
        "consumer": {
            "type": record.type,
            "group": record.group,
            "epoch": record.epoch,
            "topic": record.topic,
            "partition_count": record.partition_count,
            "revision": record.revision,
            "offsets": {str(item.partition): item.offset for item in record.offsets},
        }
    }


def _journal(source: EvidenceFile, path: Path, emit: Emit) -> None:
    scan = scan_journal(source, source.size, "A")
    if scan.problem is not None and scan.problem.code == "journal_version_unsupported":
        emit(_problem(scan.problem.code, path, scan.problem.position, scan.problem.message))
        scan = scan_journal(source, source.size, "B")
    for frame in (*scan.frames, *scan.salvage):
        emit(_frame_row(frame))
    if scan.problem is not None:
        emit(_problem(scan.problem.code, path, scan.problem.position, scan.problem.message))


def _frame_row(frame: JournalFrame) -> Row:
    values = {
        "version": frame.version,
        "kind": frame.kind,
        "transactional_id": frame.transactional_id,
        "state": frame.state,
        "epoch": frame.epoch,
        "revision": frame.revision,
        "updated_at": _moment(frame.updated_at),
    }
    return Row(frame.position, frame.length, "frame", values, not frame.salvage)


def _moment(value: int) -> str:
    try:
        return timestamps.canonical(value)
    except ValueError:
        return str(value)


def _whole(source: EvidenceFile, path: Path, kind: FileKind, emit: Emit) -> None:
    if source.size > MAX_WHOLE_FILE:
        raise DumpError(f"{safe_text(str(path))}: {source.size} bytes are too many for this kind")
    data = _read(source)
    try:
        _READERS[kind](data, path, emit)
    except FormatError as error:
        emit(_problem(error.code, path, error.position, error.message))


def _read(source: EvidenceFile) -> bytes:
    parts = []
    position = 0
    while position < source.size:
        data = source.pread(min(1 << 20, source.size - position), position)
        if not data:
            break
        parts.append(data)
        position += len(data)
    return b"".join(parts)


def _problem(code: str, path: Path, position: int | None, message: str) -> Finding:
    if code not in CATALOGUE:  # a code of a parser, not of a file
        return finding("file_unreadable", path.name, position=position, message=message)
    return finding(code, path.name, position=position, message=message)


def _index(data: bytes, path: Path, emit: Emit) -> None:
    prefix = offset_index.valid_prefix(data)
    size = offset_index.ENTRY_BYTES
    for at, (offset, position) in enumerate(zip(prefix.offsets, prefix.positions, strict=True)):
        emit(Row(at * size, size, "index_entry", {"offset": offset, "log_position": position}))
    if prefix.not_increasing is not None:
        text = "entry does not ascend; it and all behind it are not used"
        emit(_problem("index_entry_not_increasing", path, prefix.not_increasing, text))
    if prefix.stray is not None:
        text = "bytes behind the end of the used part"
        emit(_problem("index_stray_entry", path, prefix.stray, text))
    if len(data) % size:
        text = f"{len(data)} bytes are not a multiple of {size}"
        emit(_problem("index_size_unaligned", path, len(data) - len(data) % size, text))


def _manifest(data: bytes, path: Path, emit: Emit) -> None:
    for item in topic_manifest.decode(data).definitions:
        policy = topic_manifest.written_policy(item.policy)
        values = {
            "name": item.name,
            "revision": item.revision,
            "lifecycle_epoch": item.lifecycle_epoch,
            "partitions": item.partitions,
            "replication_factor": item.replication_factor,
            "idempotent": item.idempotent,
            "event_sourcing": item.event_sourcing,
            "policy": policy,
        }
        emit(Row(0, len(data), "topic", values))


def _hwm(data: bytes, path: Path, emit: Emit) -> None:
    emit(Row(0, len(data), "high_watermark", {"value": checkpoints.decode_hwm(data)}))


def _lifecycle(data: bytes, path: Path, emit: Emit) -> None:
    value = checkpoints.decode_lifecycle_epoch(data)
    emit(Row(0, len(data), "lifecycle_epoch", {"value": value}))


def _producers(data: bytes, path: Path, emit: Emit) -> None:
    checkpoint = checkpoints.decode_producers(data)
    for name, entry in checkpoint.producers.items():
        values = {"producer": name, "epoch": entry.epoch, "sequence": entry.sequence}
        if entry.offset is not None:
            values["offset"] = entry.offset
        emit(Row(0, len(data), "producer", values | {"form": checkpoint.form}))


def _marker(data: bytes, path: Path, emit: Emit) -> None:
    emit(Row(0, len(data), "compaction_marker", {"content": data[:64]}))
    if not compaction_marker.is_valid(data):
        text = f"does not hold its {compaction_marker.SIZE} bytes"
        emit(_problem("compaction_marker_invalid", path, 0, text))


def _aggregate_index(data: bytes, path: Path, emit: Emit) -> None:
    entries, end = aggregate_files.decode_index(data)
    size = aggregate_files.INDEX_ENTRY_BYTES
    for at, entry in enumerate(entries):
        values = {
            "key_hash": f"{entry.key_hash:016x}",
            "version": entry.version,
            "offset": entry.offset,
            "log_position": entry.position,
        }
        emit(Row(at * size, size, "aggregate_index_entry", values))
    _unfinished(data, end, emit)


def _aggregate_keys(data: bytes, path: Path, emit: Emit) -> None:
    keys, end = aggregate_files.decode_keys(data)
    for key in keys:
        values = {"key_hash": f"{key.key_hash:016x}", "key": key.key}
        emit(Row(key.at, 10 + len(key.key), "aggregate_key", values))
    _unfinished(data, end, emit)


def _aggregate_snapshots(data: bytes, path: Path, emit: Emit) -> None:
    snapshots, end = aggregate_files.decode_snapshots(data)
    for item in snapshots:
        values = {"key": item.key, "version": item.version, "payload": item.payload}
        emit(Row(item.at, item.length, "aggregate_snapshot", values))
    _unfinished(data, end, emit)


def _unfinished(data: bytes, end: int, emit: Emit) -> None:
    if end < len(data):
        emit(Row(end, len(data) - end, "unfinished", {"bytes": data[end : end + 64]}, False))


_READERS: Final[Mapping[FileKind, Callable[[bytes, Path, Emit], None]]] = {
    FileKind.SEGMENT_INDEX: _index,
    FileKind.TOPIC_MANIFEST: _manifest,
    FileKind.HWM: _hwm,
    FileKind.LIFECYCLE_EPOCH: _lifecycle,
    FileKind.PRODUCERS: _producers,
    FileKind.COMPACTION_MARKER: _marker,
    FileKind.AGGREGATE_INDEX: _aggregate_index,
    FileKind.AGGREGATE_KEYS: _aggregate_keys,
    FileKind.AGGREGATE_SNAPSHOTS: _aggregate_snapshots,
}


def finding_line(item: Finding) -> dict[str, Any]:
    """A finding as a line of ``--jsonl``."""
    return {"type": "finding"} | finding_json(item)
