"""Findings about one segment file, bounded in number.

Source: segments.md sections 10, 11, 18.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from cursus.findings import Effect, Finding, Lost, Severity, Step, finding
from cursus.replay.interfaces import SegmentRef

#: Findings of one code for one file; after that one more says how many there were.
MAX_FINDINGS: Final = 1000
_NOT_CUT: Final = "Keep the directory and do not cut the file. Then clean bootstrap."


class ScanFindings:
    """Findings of one file, at most :data:`MAX_FINDINGS` of each code."""

    def __init__(self, ref: SegmentRef) -> None:
        self.ref = ref
        self.items: list[Finding] = []
        self._counts: dict[str, int] = {}
        self._hidden_from: dict[str, int] = {}

    def add(
        self,
        code: str,
        position: int,
        message: str,
        *,
        length: int | None = None,
        lost: Lost | None = None,
        effect: Effect | None = None,
        severity: Severity | None = None,
        detail: Mapping[str, object] | None = None,
    ) -> None:
        count = self._counts.get(code, 0) + 1
        self._counts[code] = count
        if count > MAX_FINDINGS:
            self._hidden_from.setdefault(code, position)
            return
        self._append(code, position, message, length, lost, effect, severity, detail or {})

    def identity(
        self, position: int, length: int, topic: bytes, partition: int, offset: int
    ) -> None:
        """A record that belongs to another topic or partition than its file."""
        found = topic.decode("utf-8", "surrogateescape")
        self.add(
            "record_identity_mismatch",
            position,
            f'record belongs to topic "{found}" partition {partition}',
            length=length,
            detail={"found_topic": found, "found_partition": partition, "offset": offset},
        )

    def contiguity(self, position: int, length: int, last: int, offset: int) -> None:
        """Judge an offset against the one before it; ``last`` is -1 for the first record."""
        base, gaps = self.ref.base, self.ref.gaps_allowed
        if last < 0:
            if offset < base or (offset != base and not gaps):
                self.add(
                    "segment_first_offset_mismatch",
                    position,
                    f"first record has offset {offset}; the name says base {base}",
                    length=length,
                    detail={"base": base, "found": offset},
                )
        elif offset <= last or (offset != last + 1 and not gaps):
            self.add(
                "record_offset_not_contiguous",
                position,
                f"offset {offset} follows offset {last}",
                length=length,
                detail={"previous": last, "expected": last + 1, "found": offset},
            )

    def room(self, code: str) -> int:
        """How many more findings of this code are told one by one."""
        return max(MAX_FINDINGS - self._counts.get(code, 0), 0)

    def hide(self, code: str, count: int, position: int) -> None:
        """Count findings that are not told one by one, the first of them at ``position``."""
        if count:
            self._counts[code] = self._counts.get(code, 0) + count
            self._hidden_from.setdefault(code, position)

    def _append(
        self,
        code: str,
        position: int,
        message: str,
        length: int | None,
        lost: Lost | None,
        effect: Effect | None,
        severity: Severity | None,
        detail: Mapping[str, object],
    ) -> None:
        ref = self.ref
        step: Step = 3 if ref.internal else 2
        if ref.deleted:
            # Out of the log for good: evidence, not a reason to refuse.
            effect, severity = "ignores", "info"
            message = f"in a deleted segment: {message}"
        found = finding(
            code,
            ref.path,
            position=position,
            length=length,
            message=message,
            effect=effect,
            severity=severity,
            step=step,
            lost=lost,
            topic=ref.topic,
            partition=ref.partition,
            **detail,
        )
        if code.startswith("torn_") and found.effect == "refuses":
            # The catalogue speaks of the tail of an active log, which a start cuts.
            found = replace(found, action=_NOT_CUT)
        self.items.append(found)

    def close(self) -> tuple[Finding, ...]:
        for code, position in self._hidden_from.items():
            hidden = self._counts[code] - MAX_FINDINGS
            self._append(
                code,
                position,
                f"{hidden} more of these follow in this file, from byte {position} on",
                None,
                None,
                None,
                None,
                {"repeated": hidden},
            )
        return tuple(self.items)
