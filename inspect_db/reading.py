"""Bytes of the evidence behind a row of the index, or a clear refusal.

An index says where a record stands; its bytes are still in the log directory.
They are read only beneath the directory that whoever serves the index has
named, through the one door for evidence (``openat`` step by step, no link
followed). The path in the index is only a name below that directory: one that
leads elsewhere is refused, so a forged index opens nothing.

The bytes must be those that were indexed. In this order:

1. the file is there, regular, and not shorter than it was;
2. the index holds digests of its blocks (of logs always, of other files by
   ``build --hash``): each block that the answer touches has the same digest.
   Then these are the bytes, also in a copy of the directory;
3. without digests: it is the same file (device and inode), and its size and
   change time (which nobody can put back) are those of the index, or it has
   grown since. What stands in a file that grew must agree with its row.

Everything else is refused with :class:`ReadRefused`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from cursus.evidence.walk import EvidenceFile, LogDirectory, LogDirectoryError
from cursus.findings import FormatError
from cursus.formats import record as codec
from cursus.formats.display import safe_text
from cursus.replay.interfaces import UnreadableError
from inspect_db.values import from_name, from_number, name_or_none

#: Bytes that an answer holds unless more is asked for.
DEFAULT_LIMIT: Final = 64 << 10
#: No answer is longer than the longest record with its length prefix.
MAX_LIMIT: Final = codec.MAX_RECORD_BYTES + 4


class ReadRefused(ValueError):
    """The evidence cannot be shown for this row; the message says why and what to do."""


class Rows(Protocol):
    """What is used of a connection, be it of ``apsw`` or of ``sqlite3``."""

    def execute(self, sql: str, values: Sequence[Any] = (), /) -> Any:
        """Run one statement; the result has ``fetchone`` and ``fetchall``."""


class Door:
    """The named directory, opened when it is first needed, and again when it was exchanged.

    For one thread at a time. Nothing is listed: an index knows the paths.
    """

    def __init__(self, log_dir: str) -> None:
        self.log_dir = log_dir
        self._directory: LogDirectory | None = None

    def open(self, path: str) -> EvidenceFile:
        """A file below the directory. Raises :class:`ReadRefused`."""
        if self._directory is not None and not self._directory.stands_at(self.log_dir):
            self.close()
        try:
            if self._directory is None:
                self._directory = LogDirectory.at(self.log_dir, walk=False)
            return self._directory.open(path)
        except LogDirectoryError as error:
            raise ReadRefused(f"the evidence cannot be read: {safe_text(str(error))}") from None
        except UnreadableError as error:
            shown = safe_text(path, 200)
            raise ReadRefused(f"{shown}: {safe_text(error.finding.message)}") from None
        finally:
            if self._directory is not None:
                self._directory.release()

    def close(self) -> None:
        """Close the directory; it is opened again when needed."""
        if self._directory is not None:
            self._directory.close()
            self._directory = None

    def __del__(self) -> None:
        # A door belongs to a connection that others open and drop.
        self.close()


@dataclass(frozen=True, slots=True)
class IndexedFile:
    """What the index says of a file: where it stood and what it was."""

    file_id: int
    path: str
    kind: str
    size: int
    ctime_ns: int
    device: int
    inode: int
    segment: bool

    @property
    def shown(self) -> str:
        """The path, safe to show."""
        return safe_text(self.path, 200)


def indexed_file(rows: Rows, file_id: int) -> IndexedFile | None:
    """The row of a file; ``None`` where there is none, or no regular file stood there."""
    row = rows.execute(
        "select f.path, f.kind, f.size, f.ctime_ns, f.device, f.inode, s.file_id is not null "
        "from files as f left join segments as s on s.file_id = f.file_id "
        "where f.file_id = ? and f.type = 'file'",
        (file_id,),
    ).fetchone()
    if row is None:
        return None
    path, kind, size, ctime_ns, device, inode, segment = row
    try:
        return IndexedFile(
            file_id,
            from_name(path),
            str(kind),
            size,
            ctime_ns,
            from_number(device),
            from_number(inode),
            bool(segment),
        )
    except (AttributeError, TypeError, ValueError):
        raise ReadRefused(
            f"the row of file {file_id} is none that a build writes; build the index again"
        ) from None


@dataclass(frozen=True, slots=True)
class Excerpt:
    """Bytes of a file at a position. ``grown``: the file is longer than it was indexed."""

    file: IndexedFile
    position: int
    data: bytes
    proven: bool
    grown: bool


def read(rows: Rows, door: Door, file_id: int, position: int, length: int) -> Excerpt | None:
    """At most ``length`` indexed bytes; ``None`` where the index has none there.

    Raises :class:`ReadRefused`.
    """
    file = indexed_file(rows, file_id)
    if file is None or not 0 <= position < file.size:
        return None
    with door.open(file.path) as source:
        return _read(rows, file, source, position, length)


def read_frame(rows: Rows, door: Door, file_id: int, position: int) -> Excerpt | None:
    """The record of a segment whose frame begins at ``position``, with its length prefix.

    ``None`` where no complete frame stands in the part that was indexed. Raises
    :class:`ReadRefused`.
    """
    file = indexed_file(rows, file_id)
    if file is None or not file.segment or not 0 <= position <= file.size - 4:
        return None
    with door.open(file.path) as source:
        head = _read(rows, file, source, position, 4)
        length = int.from_bytes(head.data, "big")
        if not 0 < length <= min(file.size - position - 4, codec.MAX_RECORD_BYTES):
            return None
        found = _read(rows, file, source, position, 4 + length)
    if found.grown and not found.proven:
        _compare(rows, found)
    return found


def _read(
    rows: Rows, file: IndexedFile, source: EvidenceFile, position: int, length: int
) -> Excerpt:
    length = min(length, file.size - position)
    grown, proven = _look(file, source), False
    try:
        blocks = rows.execute(
            "select position, length, sha256 from file_blocks where file_id = ? "
            "and position + length > ? and position < ? order by block",
            (file.file_id, position, position + length),
        ).fetchall()
        if blocks:
            data = _proven(file, source, blocks, position, length)
            proven = True
        else:
            _same_file(file, source, grown)
            data = _pread(source, length, position)
        grown = _look(file, source)
    except OSError as error:
        raise ReadRefused(f"{file.shown}: {error.strerror or error}") from None
    if len(data) != length:
        raise ReadRefused(f"{file.shown} became shorter while it was read")
    return Excerpt(file, position, data, proven, grown)


def _look(file: IndexedFile, source: EvidenceFile) -> bool:
    """Has the file grown since? Raises :class:`ReadRefused` when it is shorter."""
    size = source.stat().st_size
    if size < file.size:
        raise ReadRefused(
            f"{file.shown} is shorter than it was when the index was built "
            f"({size:,} of {file.size:,} bytes are left); {_AGAIN}"
        )
    return size > file.size


_AGAIN: Final = "build the index again to see what stands there now"


def _same_file(file: IndexedFile, source: EvidenceFile, grown: bool) -> None:
    found = source.stat()
    if (found.st_dev, found.st_ino) != (file.device, file.inode):
        raise ReadRefused(
            f"{file.shown} was replaced by another file since the index was built; {_AGAIN} "
            "(an index built with --hash can tell whether the bytes are the same)"
        )
    if found.st_ctime_ns != file.ctime_ns and not grown:
        raise ReadRefused(
            f"{file.shown} was touched since the index was built and has not grown; {_AGAIN} "
            "(an index built with --hash can tell whether these bytes changed)"
        )


def _proven(
    file: IndexedFile, source: EvidenceFile, blocks: Sequence[Any], position: int, length: int
) -> bytes:
    """The bytes, cut out of whole blocks that have the digests of the index."""
    at, parts = position, []
    for start, size, digest in blocks:
        if start > at or not 0 < size <= MAX_LIMIT:
            break
        block = _pread(source, size, start)
        if hashlib.sha256(block).digest() != digest:
            raise ReadRefused(
                f"{file.shown} was changed since the index was built, between byte {start:,} "
                f"and byte {start + size:,}; {_AGAIN}"
            )
        parts.append(block[at - start : position + length - start])
        at = start + size
    if at < position + length:
        raise ReadRefused(f"{file.shown}: the index has no digest for all of these bytes")
    return b"".join(parts)


def _pread(source: EvidenceFile, length: int, position: int) -> bytes:
    """``length`` bytes; fewer only where the file ends. Raises ``OSError``."""
    parts = []
    while length > 0:
        data = source.pread(min(length, 1 << 20), position)
        if not data:
            break
        parts.append(data)
        position += len(data)
        length -= len(data)
    return b"".join(parts)


def _compare(rows: Rows, found: Excerpt) -> None:
    """A record of a file that grew must be the one that the index describes."""
    row = rows.execute(
        "select length, record_offset, key, payload_bytes from record_rows "
        "where file_id = ? and position = ?",
        (found.file.file_id, found.position),
    ).fetchone()
    if row is None:
        return
    try:
        record = codec.decode(found.data[4:])
    except FormatError:
        record = codec.Record(offset=-1)
    now = (len(found.data), record.offset, name_or_none(record.key), len(record.payload))
    length, offset, key, size = row
    if now != (length, from_number(offset), key, size):
        raise ReadRefused(
            f"{found.file.shown} was changed since the index was built: another record stands "
            f"at byte {found.position:,}; {_AGAIN}"
        )
