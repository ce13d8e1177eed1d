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
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

ENTRY_BYTES: Final = 16
DEFAULT_INTERVAL: Final = 4096
_STEP: Final = 4096
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
    count = len(data) // ENTRY_BYTES
    raw = np.frombuffer(data, ">u8", 2 * count).reshape(count, 2)
    used = _used(raw)
    entries = raw[:used].astype(np.uint64)
    ascends = (entries[1:] > entries[:-1]).all(axis=1)
    if not ascends.all():
        at = int(np.argmin(ascends)) + 1
        return Prefix(_array(entries[:at, 0]), _array(entries[:at, 1]), at * ENTRY_BYTES, None)
    stray = None
    if used < count:
        left = np.frombuffer(data, np.uint8, offset=used * ENTRY_BYTES) != 0
        if left.any():
            stray = used * ENTRY_BYTES + int(np.argmax(left))
    return Prefix(_array(entries[:, 0]), _array(entries[:, 1]), None, stray)


def _used(raw: NDArray[Any]) -> int:
    """Entries before the first that is all zero. In steps: most of a file may be zeros."""
    for begin in range(0, len(raw), _STEP):
        empty = ~raw[begin : begin + _STEP].any(axis=1)
        if empty.any():
            return begin + int(np.argmax(empty))
    return len(raw)


def _array(column: NDArray[np.uint64]) -> array[int]:
    found = array("Q")
    found.frombytes(column.tobytes())
    return found


def encode(entries: Iterable[tuple[int, int]]) -> bytes:
    """Bytes of ``(offset, position)`` entries."""
    return b"".join(_ENTRY.pack(offset, position) for offset, position in entries)


def is_due(position: int, last_indexed: int, interval: int) -> bool:
    """Is an entry due before a record at ``position``? Interval 0 means 4096."""
    return position - last_indexed >= (interval if interval > 0 else DEFAULT_INTERVAL)
