"""Every entry of every sparse index, checked against the log that it points into.

An index is advisory: a wrong entry can never make data invalid, it only makes a
lookup slower. That is why all of this is information and why the exit code is 0.

Source: segments.md section 5.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cursus.findings import Finding
from cursus.formats import offset_index
from cursus.layout import FileKind
from cursus.replay.interfaces import Evidence, UnreadableError
from cursus.replay.segments import MAX_INDEX_BYTES
from cursus.replay.startup import Plan


@dataclass(frozen=True, slots=True)
class IndexReport:
    """One index: ``entries`` that it holds (zeros of a preallocated file left out), and
    ``valid``, those before the first that a reader may not use, without mismatches."""

    path: str
    entries: int
    valid: int
    findings: tuple[Finding, ...]


def check_indexes(plan: Plan, evidence: Evidence) -> Iterator[IndexReport]:
    """One report for each index that could be read, in order of path."""
    found: dict[str, list[Finding]] = {}
    for item in plan.findings:
        if item.code.startswith("index_"):
            found.setdefault(item.path, []).append(item)
    for entry in evidence.entries:
        if entry.kind is not FileKind.SEGMENT_INDEX or entry.type != "file":
            continue
        try:
            data = evidence.read(entry.path, MAX_INDEX_BYTES)
        except UnreadableError as error:
            yield IndexReport(entry.path, 0, 0, (error.finding,))
            continue
        told = found.get(entry.path, [])
        yield IndexReport(entry.path, *_count(data, told), tuple(told))


def _count(data: bytes, told: list[Finding]) -> tuple[int, int]:
    size = offset_index.ENTRY_BYTES
    entries = len(data.rstrip(b"\0")) // size
    if len(data.rstrip(b"\0")) % size:
        entries += 1
    usable = len(offset_index.valid_prefix(data).offsets)
    wrong = 0
    for item in told:
        if item.code == "index_entry_beyond_log" and item.position is not None:
            usable = min(usable, item.position // size)
        elif item.code == "index_entry_mismatch":
            wrong += 1
    return entries, max(usable - wrong, 0)
