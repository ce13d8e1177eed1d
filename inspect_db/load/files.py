"""Everything below the log directory, and digests of what stands in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from cursus.evidence.walk import LogDirectory
from cursus.layout import FileClass, file_class
from inspect_db.load.digests import read_blocks
from inspect_db.load.writer import Writer
from inspect_db.values import name, number, number_or_none

_HASHED_CLASSES: Final = {FileClass.AUTHORITATIVE, FileClass.DERIVED, FileClass.CLIENT_DATA}


@dataclass(frozen=True, slots=True)
class Content:
    """Digests of a file: of its blocks, and with ``--hash`` of all its bytes."""

    content: bytes | None = None
    sha256: bytes | None = None


def load_files(
    writer: Writer, evidence: LogDirectory, known: Mapping[str, Content], *, hashes: bool
) -> None:
    """A row for every entry; what nobody has read so far is read for its digests.

    ``known``: digests by path.
    """
    contents = {
        entry.path: known[entry.path]
        if entry.path in known
        else _read(writer, evidence, entry.path, hashes)
        for entry in evidence.entries
        if entry.type == "file"
    }
    nothing = Content()
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
                entry.ctime_ns,
                entry.mode,
                number(entry.dev),
                number(entry.ino),
                contents.get(entry.path, nothing).content,
                contents.get(entry.path, nothing).sha256,
                0,
            )
            for entry in evidence.entries
        ),
    )


def _read(writer: Writer, evidence: LogDirectory, path: str, hashes: bool) -> Content:
    entry = evidence.get(path)
    assert entry is not None
    wanted = file_class(entry.kind) in _HASHED_CLASSES
    if not (wanted or hashes):
        return Content()
    blocks = read_blocks(evidence, entry, whole=hashes)
    if blocks is None:
        return Content()
    if hashes:
        writer.insert("file_blocks", blocks.rows(writer.ids[path]))
    return Content(blocks.content if wanted else None, blocks.whole)
