"""The largest records of a directory, out of the largest of each segment."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from cursus.replay.interfaces import Entry, SegmentRef
from inspect_db.load.scanning import LARGEST, Large
from inspect_db.load.writer import Writer
from inspect_db.values import name, number


class LargestRecords:
    """Of equal ones the first in the order of files and of each file stay."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self._places = {entry.path: at for at, entry in enumerate(entries)}
        self._held: list[tuple[int, int, int, SegmentRef, int, int]] = []

    def add(self, ref: SegmentRef, largest: Sequence[Large]) -> None:
        """Take the largest of one segment, in descending order."""
        held, place = self._held, -self._places[ref.path]
        for length, position, offset, payload in largest:
            # The place differs, or the position does: a segment is never compared.
            row = (length, place, -position, ref, offset, payload)
            if len(held) < LARGEST:
                heapq.heappush(held, row)
            elif row[:3] > held[0][:3]:
                heapq.heapreplace(held, row)
            else:
                return

    def write(self, writer: Writer) -> None:
        """Rows of ``largest_records``."""
        ordered = sorted(self._held, key=lambda row: row[:3], reverse=True)
        writer.insert(
            "largest_records",
            (
                (
                    rank,
                    writer.ids[ref.path],
                    -position,
                    length,
                    name(ref.topic),
                    number(ref.partition),
                    number(offset),
                    payload,
                )
                for rank, (length, _, position, ref, offset, payload) in enumerate(ordered, 1)
            ),
        )
