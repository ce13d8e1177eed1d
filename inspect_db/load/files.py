"""Everything below the log directory, and digests of what stands in it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from cursus.layout import FileClass, FileKind, file_class
from cursus.replay.interfaces import Entry, Evidence, UnreadableError
from inspect_db.load.writer import Writer
from inspect_db.values import name, number, number_or_none

BLOCK_BYTES: Final = 1 << 20
LOGS: Final = {FileKind.SEGMENT_LOG, FileKind.DELETED_LOG, FileKind.NONCANONICAL_LOG}
_HASHED_CLASSES: Final = {FileClass.AUTHORITATIVE, FileClass.DERIVED, FileClass.CLIENT_DATA}


def load_files(writer: Writer, entries: Sequence[Entry]) -> None:
    """Everything below the log directory; the ids ascend by path bytes."""
    writer.ids = {entry.path: at for at, entry in enumerate(entries, 1)}
    writer.insert(
        "files",
        (
            (
                writer.ids[entry.path],
                name(entry.path),
                entry.kind.value,
                file_class(entry.kind).value,
                entry.type,
                None if entry.topic is None else name(entry.topic),
                number_or_none(entry.partition),
                number_or_none(entry.base),
                number_or_none(entry.number),
                entry.size,
                entry.mtime_ns,
                entry.mode,
                number(entry.dev),
                number(entry.ino),
                None,
                None,
                0,
            )
            for entry in entries
        ),
    )


def load_contents(
    writer: Writer, evidence: Evidence, of_logs: Mapping[int, bytes], *, hashes: bool
) -> None:
    """Digests of contents: what two builds of the same evidence have in common.

    ``of_logs``: digest of the records of each log, by file.
    """
    for file_id, content in of_logs.items():
        _set_content(writer, file_id, content)
    rows = writer.connection.execute(
        "select file_id from segments where ends <> 'clean'"
    ).fetchall()
    damaged = {row[0] for row in rows}
    for entry in evidence.entries:
        if entry.type != "file":
            continue
        file_id = writer.ids[entry.path]
        wanted = file_class(entry.kind) in _HASHED_CLASSES and entry.kind not in LOGS
        if wanted or file_id in damaged:
            digest = hashlib.blake2b(digest_size=16)
            if _read_all(evidence, entry.path, digest.update):
                _set_content(writer, file_id, digest.digest())
        if hashes:
            _hash(writer, evidence, entry, file_id)


def _set_content(writer: Writer, file_id: int, digest: bytes) -> None:
    writer.connection.execute("update files set content = ? where file_id = ?", (digest, file_id))


def _hash(writer: Writer, evidence: Evidence, entry: Entry, file_id: int) -> None:
    whole = hashlib.sha256()
    blocks: list[tuple[int, int, int, int, bytes]] = []

    def take(data: bytes) -> None:
        whole.update(data)
        at = len(blocks)
        digest = hashlib.sha256(data).digest()
        blocks.append((file_id, at, at * BLOCK_BYTES, len(data), digest))

    if _read_all(evidence, entry.path, take):
        writer.insert("file_blocks", blocks)
        writer.connection.execute(
            "update files set sha256 = ? where file_id = ?", (whole.digest(), file_id)
        )


def _read_all(evidence: Evidence, path: str, take: Callable[[bytes], object]) -> bool:
    """Hand a whole file over in blocks of 1 MiB; False when it cannot be read."""
    try:
        with evidence.open(path) as source:
            position = 0
            while position < source.size:
                block = b""
                while len(block) < BLOCK_BYTES:
                    data = source.pread(BLOCK_BYTES - len(block), position + len(block))
                    if not data:
                        break
                    block += data
                if not block:
                    break
                take(block)
                position += len(block)
    except (UnreadableError, OSError):
        return False
    return True
