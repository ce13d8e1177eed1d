"""Positioned reads through one reused window.

Evidence is never mapped: a mapped file that shrinks kills the process, a read
that comes back short becomes a finding. A window holds :data:`CHUNK` bytes, or
one record when that is larger (at most 64 MiB and its length prefix).

Source: design, "One door for evidence".
"""

from __future__ import annotations

from typing import Final

from cursus.replay.interfaces import ByteSource

CHUNK: Final = 1 << 20


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
        """Position of ``needle`` at or behind ``position``; searched in place, without copying."""
        while position + len(needle) <= self.size:
            offset = position - self._start
            if offset < 0 or offset + len(needle) > len(self._buffer):
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
        self._buffer = read_exactly(self._source, want, position)
        return self._buffer, position
