"""Index entries against the records that a scan meets, in the same pass.

The sparse index is advisory: an entry that does not point to a record, or to one
of another offset, says something about the index and nothing about the log.

Source: segments.md section 5.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from cursus.formats.offset_index import Prefix
from cursus.formats.record_columns import Int64s, UInt64s
from cursus.replay.interfaces import IndexMatch

#: Entries that do not match and are told one by one.
MAX_MISMATCHES: Final = 101


class IndexComparison:
    """Feed it every good record in order; then :meth:`result`."""

    def __init__(self, prefix: Prefix) -> None:
        self.positions: UInt64s = np.frombuffer(prefix.positions, np.uint64)
        self._offsets: UInt64s = np.frombuffer(prefix.offsets, np.uint64)
        self._passed = 0
        self._mismatches: list[int] = []
        self._count = 0

    def wants(self, end: int) -> bool:
        """Does an entry that was not compared yet point to a byte before ``end``?"""
        return self._passed < len(self.positions) and int(self.positions[self._passed]) < end

    def between(self, begin: int, end: int) -> Int64s:
        """Positions of the entries that point to ``begin`` … ``end``; not checked at all."""
        bounds = np.array([max(begin, 0), max(begin, end, 0)], np.uint64)
        first, last = np.searchsorted(self.positions, bounds).tolist()
        return self.positions[first:last].astype(np.int64)

    def skip(self, end: int) -> None:
        """Entries that point to a byte before ``end`` were compared by somebody else."""
        self._passed = int(np.searchsorted(self.positions, np.uint64(end)))

    def records(self, positions: Int64s, offsets: UInt64s, end: int) -> None:
        """Records that follow those seen before, up to byte ``end`` of the log."""
        begin = self._passed
        self._passed = int(np.searchsorted(self.positions, np.uint64(end)))
        entries = self.positions[begin : self._passed].astype(np.int64)
        if not len(positions):
            wrong: NDArray[np.bool_] = np.ones(len(entries), np.bool_)
        else:
            at = np.searchsorted(positions, entries)
            at[at == len(positions)] = 0
            wrong = positions[at] != entries
            wrong |= offsets[at] != self._offsets[begin : self._passed]
        found = np.flatnonzero(wrong)
        self._count += len(found)
        room = MAX_MISMATCHES - len(self._mismatches)
        self._mismatches += (begin + found[: max(room, 0)]).tolist()

    def result(self) -> IndexMatch:
        """What became of the entries."""
        return IndexMatch(self._passed, tuple(self._mismatches), self._count)
