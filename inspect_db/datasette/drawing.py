"""A partition along its offsets, as SVG.

The drawing stretches to the width of the page, so it holds shapes only; what
they mean stands beside it as text. Every shape has a class and takes its colour
from the style sheet, in light and in dark.

Segments that overlap stand in rows of their own, those marked as deleted below
all others. Neighbours too narrow to be told apart are drawn as one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from markupsafe import Markup

WIDTH: Final = 1000
_ROW: Final = 22
_TOP: Final = 6
#: Rows for overlapping segments; more than that are drawn into the last one.
_ROWS: Final = 6
#: Narrower shapes could not be seen.
_THIN: Final = 2.0


@dataclass(slots=True)
class _Bar:
    kind: str
    row: int
    start: float
    end: float
    count: int = 1


@dataclass(frozen=True, slots=True)
class _Scale:
    low: int
    high: int

    def __call__(self, offset: int) -> float:
        return (offset - self.low) * WIDTH / max(self.high - self.low, 1)


def partition(document: dict[str, Any], segments: Sequence[dict[str, Any]]) -> Markup:
    """The drawing, or nothing where no segment has an offset to stand at."""
    marks = [
        (name, value)
        for name, value in (
            ("start", document["log_start"]),
            ("hwm", document["hwm_effective"]),
            ("end", document["log_end"]),
        )
        if isinstance(value, int)
    ]
    spans = [span for item in segments if (span := _span(item)) is not None]
    ends = [value for _, value in marks]
    for item in spans:
        ends += [item.start, item.end]
    if not spans or not marks:
        return Markup("")
    scale = _Scale(min(ends), max(ends))
    bars, rows = _bars(spans, scale)
    height = _TOP * 2 + rows * _ROW
    shapes = [
        *_seams(spans, scale, height),
        *(_rect(bar) for bar in bars),
        *(_mark(name, scale(value), height) for name, value in marks),
    ]
    title = Markup("<title>{}</title>").format(_title(document, len(segments)))
    return Markup(
        '<svg class="drawing" viewBox="-6 0 {} {}" preserveAspectRatio="none" role="img" '
        'width="100%" height="{}">{}{}</svg>'
    ).format(WIDTH + 12, height, height, title, Markup("").join(shapes))


def _title(document: dict[str, Any], count: int) -> str:
    return (
        f"{count:,} segments from log start {document['log_start']:,} "
        f"to log end {document['log_end']:,}"
    )


@dataclass(frozen=True, slots=True)
class _Span:
    start: int
    end: int
    kind: str
    deleted: bool
    seam: str
    previous: int | None


def _span(item: dict[str, Any]) -> _Span | None:
    start, end = item["base_offset"], item["expected_next"]
    if not isinstance(start, int) or not isinstance(end, int):
        return None
    if item["deleted"]:
        kind = "deleted"
    elif item["ends"] in {"damaged", "unreadable"}:
        kind = "damaged"
    elif item["ends"] in {"torn", "in_progress"}:
        kind = "torn"
    elif item["active"]:
        kind = "active"
    else:
        kind = "compacted" if item["compacted"] else "plain"
    previous = item["previous_last"]
    return _Span(start, max(start, end), kind, bool(item["deleted"]), item["seam"], previous)


def _bars(spans: Iterable[_Span], scale: _Scale) -> tuple[list[_Bar], int]:
    """A bar for each segment, none over another, and the number of rows."""
    bars: list[_Bar] = []
    rows: list[int] = []
    first_deleted: int | None = None
    for span in spans:
        if span.deleted and first_deleted is None:
            first_deleted = len(rows)
        base = first_deleted if span.deleted and first_deleted is not None else 0
        row = next((at for at in range(base, len(rows)) if rows[at] <= span.start), len(rows))
        row = min(row, max(_ROWS - 1, base))
        if row == len(rows):
            rows.append(span.end)
        rows[row] = max(rows[row], span.end)
        _add(bars, _Bar(span.kind, row, scale(span.start), scale(span.end)))
    return bars, max(len(rows), 1)


def _add(bars: list[_Bar], bar: _Bar) -> None:
    last = bars[-1] if bars else None
    if last is not None and (last.kind, last.row) == (bar.kind, bar.row):
        narrow = bar.end - bar.start < 2 * _THIN and last.end - last.start < 4 * _THIN
        if narrow and bar.start - last.end < _THIN / 4:
            last.end = max(last.end, bar.end)
            last.count += 1
            return
    bars.append(bar)


def _rect(bar: _Bar) -> Markup:
    # A hair between neighbours, so that one can count them.
    width = max(bar.end - bar.start - 1.2, _THIN)
    return Markup('<rect class="segment {}" x="{:.2f}" y="{}" width="{:.2f}" height="{}"/>').format(
        bar.kind, bar.start, _TOP + bar.row * _ROW + 2, width, _ROW - 4
    )


def _seams(spans: Iterable[_Span], scale: _Scale, height: int) -> Iterable[Markup]:
    """Where segments do not join: what is missing, and what stands there twice."""
    for span in spans:
        if span.previous is None or span.seam not in {"gap", "overlap"}:
            continue
        edge = span.previous + 1
        start, end = sorted((scale(edge), scale(span.start)))
        yield Markup('<rect class="{}" x="{:.2f}" y="0" width="{:.2f}" height="{}"/>').format(
            span.seam, start, max(end - start, _THIN), height
        )


def _mark(name: str, at: float, height: int) -> Markup:
    return Markup('<line class="mark {}" x1="{:.2f}" x2="{:.2f}" y1="0" y2="{}"/>').format(
        name, at, at, height
    )
