"""Text from a log directory, made safe to show.

Names and payloads are evidence: whoever wrote them may have put a newline, an
escape sequence or a bidirectional mark into them to fool the eye of whoever
reads a report. :func:`safe_text` shows every such character as an escape, so
that one line stays one line and a terminal obeys only us.

Source: design, "Any bytes give a value or a finding"; runbook.
"""

from __future__ import annotations

import re
from typing import Final

_SHORT: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\\": "\\\\"}
#: Controls, line and paragraph separators, invisible and bidirectional marks, surrogates,
#: tags, private use and noncharacters; the backslash, so that an escape cannot be feigned.
_UNSAFE: Final = re.compile(
    "[\x00-\x1f\\\\\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f"
    "\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ud800-\udfff\ue000-\uf8ff\ufdd0-\ufdef"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\ufffe\uffff"
    "\U0001d173-\U0001d17a\U000e0000-\U000e0fff\U000f0000-\U0010ffff]"
)


def safe_text(text: str, limit: int | None = None) -> str:
    """``text`` on one line with everything invisible written out as an escape.

    A byte that was not UTF-8 (kept by ``surrogateescape``) becomes ``\\xff``,
    other characters ``\\n``, ``\\x1b``, ``\\u202e`` or ``\\U000e0041``. More than
    ``limit`` characters are cut, with an ellipsis.
    """
    if limit is not None and len(text) > limit:
        text = text[:limit] + "…"
    return _UNSAFE.sub(_escape, text)


def safe_bytes(data: bytes, limit: int | None = None) -> str:
    """:func:`safe_text` of bytes that should be UTF-8."""
    return safe_text(data.decode("utf-8", "surrogateescape"), limit)


def _escape(match: re.Match[str]) -> str:
    character = match.group()
    code = ord(character)
    if character in _SHORT:
        return _SHORT[character]
    if 0xDC80 <= code <= 0xDCFF:  # one byte that was not UTF-8
        return f"\\x{code - 0xDC00:02x}"
    if code < 0x100:
        return f"\\x{code:02x}"
    if code < 0x10000:
        return f"\\u{code:04x}"
    return f"\\U{code:08x}"
