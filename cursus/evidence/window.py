"""Positioned reads through one reused window.

Evidence is never mapped: a mapped file that shrinks kills the process, a read
that comes back short becomes a finding. A window holds :data:`CHUNK` bytes, or
one record when that is larger (at most 64 MiB and its length prefix).

:class:`Window` gives bytes, for the scalar codec. :class:`FrameWindow` is a
buffer that is read into again and again, for arrays: it moves forward only, so
every byte of the file passes through it once.

Source: design, "One door for evidence".
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Final

import numpy as np

from cursus.formats.record_columns import SLACK, Bytes
from cursus.replay.interfaces import ByteSource, data_from

#: Called with the position and the bytes of each part of a file, in order, each byte once.
OnBytes = Callable[[int, memoryview], None]
#: Called in its place with the position and the length of a hole: so many zero bytes.
OnHole = Callable[[int, int], None]

CHUNK: Final = 1 << 20
#: Memory of a window that is kept, however small the next file.
_SMALL: Final = 8 << 20


class ShortReadError(OSError):
    """The file ended before the size that it had when it was opened."""

    def __init__(self, position: int) -> None:
        super().__init__(f"the file ends at byte {position}, before the size it had when opened")
        self.position = position


def read_exactly(source: ByteSource, length: int, position: int) -> bytes:
    """``length`` bytes at ``position``. Raises :class:`ShortReadError`."""
    data = source.pread(length, position)
    if len(data) == length:
        return data
    parts = [data]
    got = len(data)
    while got < length:
        more = source.pread(length - got, position + got)
        if not more:
            raise ShortReadError(position + got)
        parts.append(more)
        got += len(more)
    return b"".join(parts)


class Window:
    """A file seen through a buffer. ``size`` is fixed when the window is made."""

    __slots__ = ("_buffer", "_source", "_start", "size")

    def __init__(self, source: ByteSource, size: int) -> None:
        self._source = source
        self.size = size
        self._buffer = b""
        self._start = 0

    def get(self, position: int, length: int) -> bytes:
        """Bytes ``position`` … ``position + length``, which must lie inside the file."""
        offset = position - self._start
        if offset < 0 or offset + length > len(self._buffer):
            self.fill(position, length)
            offset = 0
        return self._buffer[offset : offset + length]

    def probe(self, position: int, length: int) -> bytes:
        """As :meth:`get`, but a few bytes elsewhere do not move the window.

        Following the lengths of something that may be no record jumps far ahead;
        filling the window for each jump would read the file many times over.
        """
        offset = position - self._start
        if offset < 0 or offset + length > len(self._buffer):
            return read_exactly(self._source, length, position)
        return self._buffer[offset : offset + length]

    def find(self, needle: bytes, position: int) -> int | None:
        """Position of ``needle`` at or behind ``position``; searched in place, without copying.

        It must not begin with a zero byte: holes are stepped over.
        """
        while position + len(needle) <= self.size:
            offset = position - self._start
            if offset < 0 or offset + len(needle) > len(self._buffer):
                position = data_from(self._source, position)
                if position + len(needle) > self.size:
                    break
                self.fill(position, len(needle))
                offset = 0
            at = self._buffer.find(needle, offset)
            if at >= 0:
                return self._start + at
            position = self._start + len(self._buffer) - len(needle) + 1
        return None

    def fill(self, position: int, length: int) -> tuple[bytes, int]:
        """Make the window begin at ``position`` with at least ``length`` bytes."""
        want = min(max(length, CHUNK), self.size - position)
        self._buffer, self._start = b"", position  # never two of them at once
        self._buffer = _read_at_least(self._source, length, want, position)
        return self._buffer, position


def _read_at_least(source: ByteSource, least: int, want: int, position: int) -> bytes:
    """``want`` bytes, or what there is of them when that is ``least`` at least.

    What can be read of a file that shrinks, or of a disk that fails further on, is
    used to the last byte. Raises :class:`ShortReadError` and ``OSError``.
    """
    data = source.pread(want, position)
    if len(data) == want:
        return data
    parts = [data]
    got = len(data)
    while got < want:
        try:
            more = source.pread(want - got, position + got)
        except OSError:
            if got < least:
                raise
            break
        if not more:
            if got < least:
                raise ShortReadError(position + got)
            break
        parts.append(more)
        got += len(more)
    return b"".join(parts)


class ScanBuffer:
    """Memory of a window, kept from one part of a file to the next."""

    __slots__ = ("data", "raw")

    def __init__(self) -> None:
        self.raw = bytearray()
        self.data: Bytes = np.frombuffer(self.raw, np.uint8)

    def reserve(self, size: int, keep: slice | None = None) -> None:
        """Make room for ``size`` bytes and SLACK; ``keep``: bytes that must stand at its start.

        Memory is used again unless it is too small, large and far too large, or somebody still
        looks at it: a batch that was kept stays as it is.
        """
        wanted = size + SLACK
        kept = self.raw[keep] if keep is not None else b""
        if wanted <= len(self.raw) <= max(4 * wanted, _SMALL) and not self._watched():
            self.raw[: len(kept)] = kept
            return
        del self.data  # never two of them at once, where nobody watches
        self.raw = bytearray()
        self.raw = bytearray(wanted)
        self.raw[: len(kept)] = kept
        self.data = np.frombuffer(self.raw, np.uint8)

    def _watched(self) -> bool:
        return self._references() > _UNWATCHED

    def _references(self) -> int:
        # Every column and every view of the window holds on to this one array.
        return sys.getrefcount(self.data)


_UNWATCHED: Final = ScanBuffer()._references()


class FrameWindow:
    """A file through a :class:`ScanBuffer`, from ``start`` to its end.

    ``start`` is the position in the file of the first byte of the buffer,
    ``filled`` how many bytes of it belong to the file.
    """

    __slots__ = ("_into", "_on_bytes", "_source", "buffer", "filled", "size", "start", "window")

    def __init__(
        self,
        source: ByteSource,
        size: int,
        buffer: ScanBuffer,
        window: int,
        on_bytes: OnBytes | None,
        start: int = 0,
    ) -> None:
        self._source = source
        self._into = getattr(source, "pread_into", None)
        self._on_bytes = on_bytes
        self.size = size
        self.window = window
        self.buffer = buffer
        self.start = start
        self.filled = 0
        buffer.reserve(min(window, size - start))

    @property
    def at_end(self) -> bool:
        """Has the whole file been read?"""
        return self.start + self.filled >= self.size

    def advance(self, used: int, need: int = 0) -> bool:
        """Let go of the first ``used`` bytes and read on, to ``need`` bytes at least.

        False when nothing more can be read: the end of the file, or a failure (which
        whoever reads the same bytes again will meet).
        """
        rest = self.filled - used
        capacity = min(max(self.window, need), self.size - self.start - used)
        self.buffer.reserve(capacity, slice(used, self.filled))
        self.start += used
        self.filled = rest
        while self.filled < capacity:
            got = self._read(capacity)
            if not got:
                break
            if self._on_bytes is not None:
                with memoryview(self.buffer.raw)[self.filled : self.filled + got] as part:
                    self._on_bytes(self.start + self.filled, part.toreadonly())
            self.filled += got
        return self.filled > rest

    def drain(self, on_hole: OnHole | None) -> None:
        """Hand over all bytes that were not read so far; nothing of them is kept."""
        while self.advance(self.filled):
            if on_hole is None:
                continue
            at = self.start + self.filled
            length = data_from(self._source, at) - at
            if length > 0:
                on_hole(at, length)
                self.start, self.filled = at + length, 0

    def _read(self, capacity: int) -> int:
        position = self.start + self.filled
        try:
            if self._into is not None:
                with memoryview(self.buffer.raw)[self.filled : capacity] as part:
                    return int(self._into(part, position))
            data = self._source.pread(capacity - self.filled, position)
        except OSError:
            return 0
        self.buffer.raw[self.filled : self.filled + len(data)] = data
        return len(data)
