"""The sparse offset index of a segment.

Entries of 16 bytes, one after the other, big-endian::

    8   offset     u64   of the record
    8   position   u64   of its frame in the log

The file of an active segment is preallocated with zeros, so the first entry
that is all zero ends the list; ``(0, 0)`` is never a real entry, since the
first record of a segment has none. An entry is due before a record whose
position lies at least one interval (4096 bytes by default) behind the position
of the last entry.

The index is advisory: the log decides, and every entry is checked against it
before use. It is never rebuilt; a lost one starts empty.

Source: segments.md section 5.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

ENTRY_BYTES: Final = 16
DEFAULT_INTERVAL: Final = 4096
_ENTRY = struct.Struct(">QQ")
assert _ENTRY.size == ENTRY_BYTES


@dataclass(frozen=True, slots=True)
class Prefix:
    """The entries that may be used, by rules 1 and 2 of segments.md section 5.

    ``not_increasing`` and ``stray`` are byte positions in the index: of the
    first entry that does not ascend, and of the first byte that is not zero
    behind the end of the list. Rule 3 (position inside the log) needs the log.
    """

    offsets: array[int]
    positions: array[int]
    not_increasing: int | None
    stray: int | None


def valid_prefix(data: bytes) -> Prefix:
    """Entries from the start up to the first one that ends the list. Linear; never raises."""
    whole = len(data) - len(data) % ENTRY_BYTES
    values = array("Q")
    values.frombytes(data[:whole])
    if sys.byteorder == "little":
        values.byteswap()
    offsets, positions = values[0::2], values[1::2]
    last_offset = last_position = -1
    for at in range(len(offsets)):
        offset, position = offsets[at], positions[at]
        if offset == 0 and position == 0:
            rest = data[at * ENTRY_BYTES :].lstrip(b"\0")
            stray = len(data) - len(rest) if rest else None
            return Prefix(offsets[:at], positions[:at], None, stray)
        if offset <= last_offset or position <= last_position:
            return Prefix(offsets[:at], positions[:at], at * ENTRY_BYTES, None)
        last_offset, last_position = offset, position
    return Prefix(offsets, positions, None, None)


def encode(entries: Iterable[tuple[int, int]]) -> bytes:
    """Bytes of ``(offset, position)`` entries."""
    return b"".join(_ENTRY.pack(offset, position) for offset, position in entries)


def is_due(position: int, last_indexed: int, interval: int) -> bool:
    """Is an entry due before a record at ``position``? Interval 0 means 4096."""
    return position - last_indexed >= (interval if interval > 0 else DEFAULT_INTERVAL)
