"""How values are written on our pages: figures, places, bytes, and names made safe."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, Final

from markupsafe import Markup

from cursus.formats.display import safe_text
from inspect_db.datasette.cells import moment
from inspect_db.verdict import counted

#: Characters of a name or message, where a page does not say otherwise.
TEXT: Final = 400
#: Bytes of a field that are written out.
_FIELD_BYTES: Final = 512
#: Characters of a payload that are written out.
_PAYLOAD: Final = 16_384
_LINE: Final = 16


def finalize(value: Any) -> Any:
    """What a template shows: text on one line, with everything invisible written out."""
    if value is None:
        return "–"
    if isinstance(value, str) and not isinstance(value, Markup):
        return safe_text(value)
    return value


def figure(value: Any) -> Any:
    """A number with separators; anything else as it is."""
    return f"{value:,}" if isinstance(value, int) else value


def size(value: Any) -> Any:
    """A number of bytes, with the unit."""
    return counted(value, "byte") if isinstance(value, int) else value


def short(value: Any, limit: int = TEXT) -> Any:
    """A text that is cut when it is long."""
    if not isinstance(value, str) or len(value) <= limit:
        return value
    return value[:limit] + "…"


def words(value: Any) -> Any:
    """A name of ours as words."""
    return value.replace("_", " ") if isinstance(value, str) else value


def change(value: Any) -> Any:
    """A difference with its sign."""
    return f"{value:+,}" if isinstance(value, int) and value else value


def lines(text: str) -> Iterator[str]:
    """A payload line by line: JSON set out in lines, other text as it is; cut when long."""
    pretty = _pretty(text)
    shown = pretty if pretty is not None else text
    yield from shown[:_PAYLOAD].split("\n")
    if len(shown) > _PAYLOAD:
        yield f"… {len(shown) - _PAYLOAD:,} more characters"


def _pretty(text: str) -> str | None:
    if text[:1] not in {"{", "["}:
        return None
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return None


def field_hex(value: str | None) -> str | None:
    """Bytes of a field in groups of two digits; cut when there are many."""
    if value is None:
        return None
    text = " ".join(value[at : at + 2] for at in range(0, min(len(value), 2 * _FIELD_BYTES), 2))
    more = len(value) // 2 - _FIELD_BYTES
    return f"{text} … {more:,} more" if more > 0 else text


def dump(value: str, position: int) -> Iterator[tuple[str, str, str]]:
    """Lines of a hex dump: position, bytes, and what of them is printable."""
    data = bytes.fromhex(value)
    for at in range(0, len(data), _LINE):
        row = data[at : at + _LINE]
        text = "".join(chr(byte) if 32 <= byte < 127 and byte != 0x5C else "." for byte in row)
        yield f"{position + at:,}", row.hex(" "), text


FILTERS: Final[dict[str, Callable[..., Any]]] = {
    "figure": figure,
    "size": size,
    "short": short,
    "words": words,
    "change": change,
    "lines": lines,
    "field_hex": field_hex,
    "dump": dump,
    "moment": moment,
}
