"""Would a broker start? The plan as JSON for programs and as a page for people.

The page is read at three in the morning on 80 columns, so the answer comes
first, then the first cause with its address, what is lost and what to do, then
the five steps, then everything else, summed up by code. Text from the evidence
is shown on one line with everything invisible written out.

The JSON is stable::

    {"log_dir", "as_of", "verdict", "in_use",
     "steps": [{"step", "name", "outcome", "findings": […]}],
     "actions": [{"step", "kind", "path", "position", "message"}],
     "findings": [{"code", "severity", "effect", "step", "path", "position", "length",
                   "message", "lost": {"bytes", "records", "first_offset", "last_offset"} | null,
                   "action"}]}

``findings`` at the top holds those of every step, and after them those that
belong to no step.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from cursus.findings import CATALOGUE, Finding, Lost
from cursus.formats import timestamps
from cursus.formats.display import safe_text
from cursus.replay.startup import Action, Plan, StepOutcome

WIDTH: Final = 80
#: Characters of a message that are shown; a name from the evidence may have any length.
MESSAGE: Final = 400
#: Places shown for one code without ``--all``.
PLACES: Final = 3
EXIT_CODES: Final[Mapping[str, int]] = {
    "starts_clean": 0,
    "starts_with_repairs": 3,
    "starts_with_damage": 4,
    "refuses": 5,
    "undetermined": 6,
}
HEADLINES: Final[Mapping[str, tuple[str, str]]] = {
    "starts_clean": ("STARTS CLEAN", "a broker starts on this directory."),
    "starts_with_repairs": (
        "STARTS WITH REPAIRS",
        "a broker starts, after cutting a log or the journal, or lowering a high watermark.",
    ),
    "starts_with_damage": (
        "STARTS WITH DAMAGE",
        "a broker starts, but data that once existed is not there.",
    ),
    "undetermined": (
        "UNDETERMINED",
        "this account may not read something that a broker needs.",
    ),
    "refuses": ("REFUSES", "a broker does not start on this directory."),
}
STEP_TITLES: Final[Mapping[int, str]] = {
    1: "topic manifest",
    2: "topic storage",
    3: "consumer metadata",
    4: "transaction journal",
    5: "checkpoints",
}
_OUTCOMES: Final[Mapping[str, str]] = {
    "passed": "passed",
    "repairs": "repairs",
    "refuses": "REFUSES",
    "not_reached": "not reached",
}
_SEVERITIES: Final = ("error", "warning", "info")


# -- JSON ----------------------------------------------------------------------------


def lost_json(lost: Lost | None) -> dict[str, int | None] | None:
    """What is lost, as an object; ``None`` where nothing is known to be."""
    if lost is None:
        return None
    return {
        "bytes": lost.bytes,
        "records": lost.records,
        "first_offset": lost.first_offset,
        "last_offset": lost.last_offset,
    }


def finding_json(item: Finding) -> dict[str, Any]:
    """One finding, as documented above."""
    return {
        "code": item.code,
        "severity": item.severity,
        "effect": item.effect,
        "step": item.step,
        "path": item.path,
        "position": item.position,
        "length": item.length,
        "message": item.message,
        "lost": lost_json(item.lost),
        "action": item.action,
    }


def action_json(action: Action) -> dict[str, Any]:
    """One thing that a start would do."""
    return {
        "step": action.step,
        "kind": action.kind,
        "path": action.path,
        "position": action.position,
        "message": action.message,
    }


def verdict_json(plan: Plan) -> dict[str, Any]:
    """The whole verdict, as documented above."""
    return {
        "log_dir": plan.log_dir,
        "as_of": timestamps.canonical(plan.as_of),
        "verdict": plan.verdict,
        "in_use": plan.in_use,
        "steps": [
            {
                "step": step.step,
                "name": step.name,
                "outcome": step.outcome,
                "findings": [finding_json(item) for item in step.findings],
            }
            for step in plan.steps
        ],
        "actions": [action_json(action) for action in plan.actions],
        "findings": [finding_json(item) for item in plan.findings],
    }


# -- text that fits -------------------------------------------------------------------


def display_width(text: str) -> int:
    """Columns that ``text`` takes on a terminal."""
    width = 0
    for character in text:
        if unicodedata.combining(character) or unicodedata.category(character) in {"Mn", "Me"}:
            continue
        width += 2 if unicodedata.east_asian_width(character) in "WF" else 1
    return width


def wrap(text: str, indent: str = "", hanging: str | None = None) -> Iterator[str]:
    """Lines of at most :data:`WIDTH` columns; a word that is too long is broken."""
    hanging = indent if hanging is None else hanging
    line, width = indent, display_width(indent)
    empty = True
    for word in text.split(" "):
        for piece in _pieces(word, WIDTH - len(hanging)):
            columns = display_width(piece)
            if not empty and width + 1 + columns > WIDTH:
                yield line
                line, width, empty = hanging, display_width(hanging), True
            if not empty:
                line, width = line + " ", width + 1
            line, width, empty = line + piece, width + columns, False
    if not empty:
        yield line.rstrip()


def _pieces(word: str, width: int) -> Iterator[str]:
    start, columns = 0, 0
    for at, character in enumerate(word):
        step = display_width(character)
        if columns + step > width:
            yield word[start:at]
            start, columns = at, 0
        columns += step
    yield word[start:]


def place(item: Finding) -> str:
    """Where a finding stands, in words, safe to show."""
    where = safe_text(item.path) or "the log directory"
    if item.position is not None:
        where += f" at byte {item.position}"
    if item.position is not None and item.length:
        where += f", {counted(item.length, 'byte')}"
    return where


def counted(number: int, noun: str) -> str:
    """``1 byte``, ``2 bytes``."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def lost_text(lost: Lost | None) -> str:
    """What is lost, in words; nothing where nothing is known."""
    if lost is None:
        return ""
    parts = []
    if lost.bytes is not None:
        parts.append(counted(lost.bytes, "byte"))
    if lost.records:
        parts.append(counted(lost.records, "record"))
    if lost.first_offset is not None and lost.last_offset is not None:
        if lost.last_offset >= lost.first_offset:
            parts.append(f"offsets {lost.first_offset} to {lost.last_offset}")
    elif lost.first_offset is not None:
        parts.append(f"from offset {lost.first_offset} on")
    return ", ".join(parts)


# -- the page -------------------------------------------------------------------------


def page(plan: Plan, *, everything: bool = False) -> Iterator[str]:
    """Lines of the page, without line ends."""
    word, sentence = HEADLINES[plan.verdict]
    yield from wrap(f"{word}: {sentence}")
    yield ""
    yield from wrap(safe_text(plan.log_dir), "  ")
    moment = f"judged as of {timestamps.canonical(plan.as_of)}; "
    yield from wrap(moment + _use(plan.in_use), "  ")
    if plan.verdict == "starts_clean" and plan.holds_nothing:
        yield from wrap("No manifest and no topics: is this the log directory?", "  ")
    cause = plan.first_cause
    if cause is not None:
        yield ""
        yield from _cause(cause)
    yield ""
    yield "Steps of a start"
    for step in plan.steps:
        yield _step_line(step)
    rest = [item for item in plan.findings if item is not cause]
    if rest:
        yield ""
        yield "Also found" if cause is not None else "Found"
        yield from _summary(rest, everything)
    if plan.actions:
        yield ""
        yield "What a start would do"
        yield from _actions(plan.actions, everything)


def _use(in_use: bool | None) -> str:
    if in_use:
        return "A BROKER IS USING IT: what is being written can look unfinished"
    if in_use is None:
        return "whether a broker is using it cannot be known here"
    return "no broker is using it"


def _cause(item: Finding) -> Iterator[str]:
    title = STEP_TITLES[item.step] if item.step else ""
    yield from wrap(f"First cause, step {item.step} ({title}): {item.code}")
    yield from wrap(place(item), "  ")
    yield from wrap(_sentence(safe_text(item.message, MESSAGE)), "  ")
    meaning = CATALOGUE[item.code].meaning
    if meaning != item.message:
        yield from wrap(meaning, "  ")
    lost = lost_text(item.lost)
    if lost:
        word = {"refuses": "At stake", "unknown": "At stake"}.get(item.effect, "Lost")
        yield from wrap(f"{word}: {lost}", "  ", "    ")
    yield from wrap(f"What to do: {item.action}", "  ", "    ")


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")


def _step_line(step: StepOutcome) -> str:
    counts = []
    for severity, noun in zip(_SEVERITIES, ("error", "warning", "note"), strict=True):
        number = sum(1 for item in step.findings if item.severity == severity)
        if number:
            counts.append(counted(number, noun))
    line = f"  {step.step}  {STEP_TITLES[step.step]:<21}{_OUTCOMES[step.outcome]:<13}"
    return (line + ", ".join(counts)).rstrip()


def _by_code(items: Iterable[Finding]) -> list[list[Finding]]:
    """Findings of one code, severity and effect together; worst first, else in broker order."""
    groups: dict[tuple[str, str, str], list[Finding]] = {}
    for item in items:
        groups.setdefault((item.code, item.severity, item.effect), []).append(item)
    return sorted(groups.values(), key=lambda group: _SEVERITIES.index(group[0].severity))


def _summary(items: Sequence[Finding], everything: bool) -> Iterator[str]:
    for group in _by_code(items):
        first = group[0]
        head = f"{first.severity:<8}{first.code}"
        if len(group) > 1:
            head += f", {len(group):,} times"
        step = f"step {first.step}, " if first.step else ""
        yield from wrap(f"{head} ({step}{first.effect.replace('_', ' ')})", "  ", " " * 10)
        shown = group if everything else group[:PLACES]
        for item in shown:
            text = place(item)
            if item.message != CATALOGUE[item.code].meaning:
                text += f": {safe_text(item.message, MESSAGE)}"
            lost = lost_text(item.lost)
            if lost and (everything or item.severity != "info"):
                text += f"; {lost}"
            yield from wrap(text, " " * 10, " " * 12)
        if len(group) > len(shown):
            yield f"{'':10}… and {len(group) - len(shown):,} more (--all shows them)"
        if first.severity != "info":
            yield from wrap(first.action, " " * 10)


def _actions(actions: Sequence[Action], everything: bool) -> Iterator[str]:
    groups: dict[str, list[Action]] = {}
    for action in actions:
        groups.setdefault(action.kind, []).append(action)
    for kind, group in groups.items():
        words = kind.replace("_", " ")
        if len(group) > 1:
            yield f"  {words}, {len(group):,} times"
        shown = group if everything else group[:PLACES]
        for action in shown:
            where = safe_text(action.path)
            if action.position is not None:
                where += f" at byte {action.position}"
            text = f"{where}: {safe_text(action.message, MESSAGE)}"
            if len(group) > 1:
                yield from wrap(text, "    ", "      ")
            else:
                yield from wrap(f"{words}: {text}", "  ", "    ")
        if len(group) > len(shown):
            yield f"    … and {len(group) - len(shown):,} more (--all shows them)"
