"""Digests of files, block by block, made while somebody else reads them.

A block is 1 MiB. The digest of a file is made of those of its blocks, so that
one that grew can be digested from where it ended.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cursus.evidence.walk import EvidenceFile, LogDirectory
from cursus.evidence.window import OnBytes, OnHole
from cursus.formats.offset_index import Prefix
from cursus.replay.interfaces import Entry, RecordBatch, SegmentRef, SegmentScan

BLOCK_BYTES: Final = 1 << 20
_ZEROS: Final = bytes(BLOCK_BYTES)
_OF_ZEROS: Final = hashlib.sha256(_ZEROS).digest()


@dataclass(slots=True)
class Blocks:
    """SHA-256 of each block of 1 MiB of a file. ``whole``: of all its bytes, if asked for."""

    size: int
    digests: list[bytes]
    whole: bytes | None = None

    @property
    def content(self) -> bytes:
        """One digest for all of it."""
        return hashlib.sha256(b"".join(self.digests)).digest()[:16]

    def rows(self, file_id: int) -> Iterable[tuple[Any, ...]]:
        """Rows of ``file_blocks``."""
        for at, digest in enumerate(self.digests):
            position = at * BLOCK_BYTES
            yield file_id, at, position, min(BLOCK_BYTES, self.size - position), digest


class BlockDigester:
    """Digests of consecutive bytes, block by block."""

    def __init__(self, *, whole: bool, known: Sequence[bytes] = ()) -> None:
        """``known``: digests of the first blocks, which need not be read again.

        They are of no use to a digest of all bytes, and are left alone then.
        """
        self._block = hashlib.sha256()
        self._whole = hashlib.sha256() if whole else None
        self._digests: list[bytes] = [] if whole else list(known)
        self.position = BLOCK_BYTES * len(self._digests)

    def update(self, data: bytes | memoryview) -> None:
        """Take the bytes that follow."""
        view = memoryview(data)
        if self._whole is not None:
            self._whole.update(view)
        at = 0
        while at < len(view):
            room = BLOCK_BYTES - self.position % BLOCK_BYTES
            part = view[at : at + room]
            self._block.update(part)
            self.position += len(part)
            at += len(part)
            if self.position % BLOCK_BYTES == 0:
                self._digests.append(self._block.digest())
                self._block = hashlib.sha256()

    def zeros(self, length: int) -> None:
        """Take so many zero bytes: a hole."""
        if self._whole is None:
            head = min(length, -self.position % BLOCK_BYTES)
            self.update(_ZEROS[:head])
            blocks, length = divmod(length - head, BLOCK_BYTES)
            self._digests += [_OF_ZEROS] * blocks
            self.position += blocks * BLOCK_BYTES
        while length:
            part = min(length, BLOCK_BYTES)
            self.update(_ZEROS[:part])
            length -= part

    def so_far(self) -> tuple[bytes, ...]:
        """Digests of everything up to ``position``, to know it again."""
        return (*self._digests, self._block.digest())

    def close(self) -> Blocks:
        """The digests, now that all bytes were seen."""
        digests = list(self._digests)
        if self.position % BLOCK_BYTES:
            digests.append(self._block.digest())
        return Blocks(self.position, digests, self._whole.digest() if self._whole else None)


class DigestingDirectory(LogDirectory):
    """Evidence whose scans digest the bytes that they read."""

    hashes: bool = False
    #: Of the segment that is scanned next, when it goes on: what was ``so_far`` where it does.
    known: Sequence[bytes] = ()
    blocks: Blocks | None = None

    def scan(
        self,
        segment: SegmentRef,
        visit: Callable[[RecordBatch], None] | None = None,
        index: Prefix | None = None,
        *,
        on_bytes: OnBytes | None = None,
        on_hole: OnHole | None = None,
        after: SegmentScan | None = None,
    ) -> SegmentScan:
        """Scan a segment; ``blocks`` has its digests then, unless it could not be read whole."""
        self.blocks = None
        known = self.known if after is not None else ()
        digester = BlockDigester(whole=self.hashes, known=known[:-1])
        seen = after is None or self._before(segment.path, after.end_position, digester, known)

        def take(position: int, part: memoryview) -> None:
            digester.update(part)
            if on_bytes is not None:
                on_bytes(position, part)

        def skip(position: int, length: int) -> None:
            digester.zeros(length)
            if on_hole is not None:
                on_hole(position, length)

        skips = skip if on_bytes is None or on_hole is not None else None
        scan = super().scan(segment, visit, index, on_bytes=take, on_hole=skips, after=after)
        if seen and scan.end != "unreadable" and digester.position == segment.size:
            self.blocks = digester.close()
        return scan

    def _before(self, path: str, end: int, digester: BlockDigester, known: Sequence[bytes]) -> bool:
        """Digest what stands before the bytes that a scan will read; False if it is not known."""
        try:
            with self.open(path) as source:
                return digest_up_to(source, end, digester) and digester.so_far() == tuple(known)
        except OSError:
            return False


def digest_up_to(source: EvidenceFile, end: int, digester: BlockDigester) -> bool:
    """Digest a file up to byte ``end``; False when it ends before. Raises ``OSError``."""
    while digester.position < end:
        hole = min(source.data_from(digester.position), end) - digester.position
        if hole:
            digester.zeros(hole)
            continue
        data = source.pread(min(BLOCK_BYTES, end - digester.position), digester.position)
        if not data:
            return False
        digester.update(data)
    return True


def read_blocks(evidence: LogDirectory, entry: Entry, *, whole: bool) -> Blocks | None:
    """Digest a file as it stands; ``None`` when it cannot be read."""
    digester = BlockDigester(whole=whole)
    try:
        with evidence.open(entry.path) as source:
            digest_up_to(source, source.size, digester)
    except OSError:
        return None
    return digester.close()
