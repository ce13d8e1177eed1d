"""The one reader and writer of JSON in Cursus storage.

Reading is strict where Python's parser is lenient. Before the standard
library's scanner sees the text, it must be UTF-8 without a byte order mark and
nest no deeper than :data:`MAX_DEPTH`; duplicate keys, ``NaN``, ``Infinity``
and a second value are refused; numbers come back as :class:`Number`, their
literal, so that ``1``, ``1.0`` and a number of five thousand digits stay apart
and nothing is converted before its length is judged (decision 31).

Writing gives the exact bytes of the reference: ``"`` and ``\\`` escaped, short
forms for ``\\b \\f \\n \\r \\t``, other controls as ``\\u00xx``, ``<`` ``>``
``&`` and U+2028/U+2029 as ``\\uXXXX`` in lower case, everything else raw UTF-8.
:func:`compact` has no white space, :func:`pretty` indents by two spaces.

Everything is linear in the size of the document.

Source: README.md decisions 16, 30, 31; manifest.md section 6;
consumer-metadata.md sections 2.2 and 3; journal.md section 1.4.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Literal

import msgspec

from cursus.findings import FormatError

MAX_DEPTH: Final = 64
INT64: Final = (-(2**63), 2**63 - 1)
UINT64: Final = (0, 2**64 - 1)
#: 2^64-1 and -2^63 have twenty characters; a longer literal is out of every range.
_LONGEST_LITERAL: Final = 20

JsonErrorKind = Literal["syntax", "utf8", "duplicate_key", "depth", "trailing"]

_WHITE = re.compile(rb"[ \t\n\r]*")
_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]*)")
_STRING_OR_BRACKET = re.compile(rb'["\[\]{}]')
#: Possessive: an unclosed string of millions of escapes must not be remembered escape by escape.
_STRING_END = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_STRING_OR_CONSTANT = re.compile(rb'"|NaN|-?Infinity')
_COLON = re.compile(rb"[ \t\n\r]*:")
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


class Number:
    """A number as it was written.

    No dataclass: a library that writes JSON must not take it for an object.
    """

    __slots__ = ("literal",)

    def __init__(self, literal: str) -> None:
        self.literal: Final = literal

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Number) and other.literal == self.literal

    def __hash__(self) -> int:
        return hash(self.literal)

    def __repr__(self) -> str:
        return f"Number({self.literal!r})"

    def as_int(self, low: int, high: int) -> int:
        """The integer, if the literal is one and lies in ``low`` … ``high``.

        Raises ``ValueError`` for a fraction, an exponent or a value out of
        range. The literal ``-0`` is an integer only where negative ones are.
        """
        if len(self.literal) > _LONGEST_LITERAL or not _INTEGER.fullmatch(self.literal):
            raise ValueError(f"{shorten(self.literal)} is not an integer in range")
        if low >= 0 and self.literal.startswith("-"):
            raise ValueError(f"{self.literal} is negative")
        value = int(self.literal)
        if not low <= value <= high:
            raise ValueError(f"{self.literal} is out of range")
        return value


JsonValue = None | bool | str | Number | list["JsonValue"] | dict[str, "JsonValue"]


class JsonError(FormatError):
    """A document that is not acceptable JSON; ``kind`` says in which way."""

    def __init__(
        self, kind: JsonErrorKind, message: str, position: int, *, key: str | None = None
    ) -> None:
        super().__init__(
            "duplicate_key" if kind == "duplicate_key" else "invalid_json",
            message,
            position=position,
        )
        self.kind: JsonErrorKind = kind
        self.key = key


class _DuplicateKeyError(Exception):
    pass


class _ConstantError(Exception):
    pass


def shorten(text: str, limit: int = 40) -> str:
    """At most ``limit`` characters of ``text``, for a message."""
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text)} characters)"


def parse(data: bytes, *, max_depth: int = MAX_DEPTH) -> JsonValue:
    """Read exactly one value with nothing but white space around it.

    Lone surrogates of ``\\u`` escapes become U+FFFD, as in the reference.
    Raises :class:`JsonError`; its ``position`` is a byte of ``data``.
    """
    value, end = parse_prefix(data, max_depth=max_depth)
    if end != len(data):
        raise JsonError("trailing", "something follows the value", end)
    return value


def parse_prefix(data: bytes, *, max_depth: int = MAX_DEPTH) -> tuple[JsonValue, int]:
    """Read the first value; returns it and the byte behind the white space that follows."""
    _no_bom(data)
    start = _skip_white(data, 0)
    if start == len(data):
        raise JsonError("syntax", "the document is empty", start)
    stop = _extent(data, start, max_depth)
    # Only the first value must be text: what stands behind it is another matter.
    try:
        text = data[start:stop].decode("utf-8")
    except UnicodeDecodeError as error:
        raise JsonError("utf8", "invalid UTF-8", start + error.start) from None
    decoder = json.JSONDecoder(
        object_pairs_hook=_pairs,
        parse_int=Number,
        parse_float=Number,
        parse_constant=_constant,
        strict=True,
    )
    try:
        value, end = decoder.raw_decode(text)
    except json.JSONDecodeError as error:
        at = start + len(text[: error.pos].encode("utf-8"))
        raise JsonError("syntax", error.msg, at) from None
    except _DuplicateKeyError:
        raise _duplicate(data, start) from None
    except _ConstantError as error:
        at = _constant_position(data, start)
        raise JsonError("syntax", f"{error} is not a JSON value", at) from None
    except RecursionError:
        raise JsonError("depth", "nested too deeply", start) from None
    if "\\u" in text:
        try:
            value = _replace_surrogates(value)
        except _DuplicateKeyError:
            raise _duplicate(data, start) from None
    behind = start + (len(text[:end].encode("utf-8")) if end != len(text) else stop - start)
    return value, _skip_white(data, behind)


def _no_bom(data: bytes) -> None:
    if data.startswith(b"\xef\xbb\xbf"):
        raise JsonError("syntax", "a byte order mark stands in front", 0)


def _skip_white(data: bytes, position: int) -> int:
    match = _WHITE.match(data, position)
    assert match is not None
    return match.end()


def _extent(data: bytes, start: int, max_depth: int) -> int:
    """Where the first value can end at the latest; refuses what nests too deeply.

    The scanner of the standard library recurses, so depth is judged before it.
    Returns the end of the outermost bracket, or of the document for a scalar or
    an unclosed value.
    """
    if data[start : start + 1] not in (b"{", b"["):
        return len(data)
    depth = 0
    position = start
    while True:
        match = _STRING_OR_BRACKET.search(data, position)
        if match is None:
            return len(data)
        token = match.group()
        position = match.end()
        if token == b'"':
            end = _STRING_END.match(data, position)
            if end is None:
                return len(data)
            position = end.end()
        elif token in b"{[":
            depth += 1
            if depth > max_depth:
                raise JsonError("depth", f"nested deeper than {max_depth} levels", match.start())
        else:
            depth -= 1
            if depth == 0:
                return position


def _pairs(pairs: list[tuple[str, JsonValue]]) -> dict[str, JsonValue]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise _DuplicateKeyError
    return found


def _duplicate(data: bytes, start: int) -> JsonError:
    """The first key of a document that stands in its object a second time.

    The hooks of the parser do not know where they are, so the document is
    walked once more; only a document that is refused pays for that.
    """
    open_objects: list[set[str] | None] = []
    position = start
    while (match := _STRING_OR_BRACKET.search(data, position)) is not None:
        token, position = match.group(), match.end()
        if token in b"]}":
            open_objects.pop()
        elif token in b"{[":
            open_objects.append(set() if token == b"{" else None)
        elif (end := _STRING_END.match(data, position)) is not None:
            position = end.end()
            keys = open_objects[-1] if open_objects else None
            if keys is None or _COLON.match(data, position) is None:
                continue
            text = json.loads(data[match.start() : position].decode("utf-8"))
            key = _LONE_SURROGATE.sub("\ufffd", text)
            if key in keys:
                told = f'key "{shorten(key)}" stands twice in one object'
                return JsonError("duplicate_key", told, match.start(), key=key)
            keys.add(key)
    raise AssertionError("no key stands twice")


def _constant_position(data: bytes, start: int) -> int:
    """Where the first ``NaN`` or ``Infinity`` stands that is not inside a string."""
    position = start
    while (match := _STRING_OR_CONSTANT.search(data, position)) is not None:
        if match.group() != b'"':
            return match.start()
        end = _STRING_END.match(data, match.end())
        if end is None:
            break
        position = end.end()
    return start


def _constant(name: str) -> JsonValue:
    raise _ConstantError(name)


def _replace_surrogates(value: JsonValue) -> JsonValue:
    if isinstance(value, str):
        return _LONE_SURROGATE.sub("\ufffd", value)
    if isinstance(value, list):
        return [_replace_surrogates(item) for item in value]
    if isinstance(value, dict):
        replaced: dict[str, JsonValue] = {}
        for key, item in value.items():
            name = _LONE_SURROGATE.sub("\ufffd", key)
            if name in replaced:
                raise _DuplicateKeyError
            replaced[name] = _replace_surrogates(item)
        return replaced
    return value


# -- writing -----------------------------------------------------------------

Writable = None | bool | int | str | Number | Sequence["Writable"] | Mapping[str, "Writable"]

_ESCAPES: Final[dict[str, str]] = {
    **{chr(code): f"\\u{code:04x}" for code in range(0x20)},
    "\b": "\\b",
    "\f": "\\f",
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
    '"': '\\"',
    "\\": "\\\\",
    "<": "\\u003c",
    ">": "\\u003e",
    "&": "\\u0026",
    "\u2028": "\\u2028",
    "\u2029": "\\u2029",
}
_UNESCAPED: Final = re.compile("[<>&]|\u2028|\u2029".encode())
_TO_ESCAPE: Final = re.compile('[\x00-\x1f"\\\\<>&\u2028\u2029]')


def _escape(match: re.Match[str]) -> str:
    return _ESCAPES[match.group()]


def quote(text: str) -> str:
    """``text`` as a JSON string. What is not Unicode (surrogates) becomes U+FFFD."""
    escaped = _TO_ESCAPE.sub(_escape, _LONE_SURROGATE.sub("\ufffd", text))
    return f'"{escaped}"'


def compact(value: Writable) -> bytes:
    """One line without white space and without a newline at the end."""
    return _quickly(value) or _write(value, None, "").encode("utf-8")


def pretty(value: Writable) -> bytes:
    """Two spaces a level, one element a line, ``[]`` for nothing, a newline at the end."""
    quick = _quickly(value)
    if quick is not None:
        return msgspec.json.format(quick, indent=2) + b"\n"
    return (_write(value, "  ", "\n") + "\n").encode("utf-8")


def _quickly(value: Writable) -> bytes | None:
    """As :func:`compact`, by a library that escapes less; ``None`` where it cannot.

    That is numbers that are kept as text or do not fit 64 bits, and what is not
    Unicode. What it does not escape can only stand inside of strings.
    """
    try:
        text = msgspec.json.encode(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return _UNESCAPED.sub(_escape_bytes, text) if _UNESCAPED.search(text) else text


def _escape_bytes(match: re.Match[bytes]) -> bytes:
    return _ESCAPES[match.group().decode("utf-8")].encode("ascii")


def _write(value: Writable, indent: str | None, line: str) -> str:
    if value is None:
        return "null"
    if value is True:
        return "true"
    if value is False:
        return "false"
    if isinstance(value, str):
        return quote(value)
    if isinstance(value, Number):
        return value.literal
    if isinstance(value, int):
        return str(value)
    if isinstance(value, Mapping):
        colon = ":" if indent is None else ": "
        deeper = "" if indent is None else line + indent
        items = [
            f"{deeper}{quote(key)}{colon}{_write(item, indent, deeper)}"
            for key, item in value.items()
        ]
        return "{" + ",".join(items) + (line if items else "") + "}"
    deeper = "" if indent is None else line + indent
    elements = [f"{deeper}{_write(item, indent, deeper)}" for item in value]
    return "[" + ",".join(elements) + (line if elements else "") + "]"


def object_starts(data: bytes, depth: int) -> Iterator[int]:
    """Positions of the objects that stand ``depth`` brackets deep; the outermost is at depth 1.

    For a document that was read; brackets inside strings do not count.
    """
    level = 0
    position = 0
    while (match := _STRING_OR_BRACKET.search(data, position)) is not None:
        token, position = match.group(), match.end()
        if token == b'"':
            end = _STRING_END.match(data, position)
            if end is None:
                return
            position = end.end()
        elif token in b"{[":
            level += 1
            if level == depth and token == b"{":
                yield match.start()
        else:
            level -= 1


def document_end(data: bytes) -> int | None:
    """Where the object at the start of ``data`` ends, ``None`` when it is cut.

    Only brackets and strings are followed; what stands between is not judged.
    A document that nests too deeply counts as one that ends where it does so.
    """
    try:
        end = _extent(data, 0, MAX_DEPTH)
    except JsonError as error:
        return error.position
    return None if end == len(data) and not _closed(data) else end


def _closed(data: bytes) -> bool:
    """Does the outermost bracket of ``data`` close at its very end?"""
    depth = 0
    position = 0
    while (match := _STRING_OR_BRACKET.search(data, position)) is not None:
        position = match.end()
        token = match.group()
        if token == b'"':
            end = _STRING_END.match(data, position)
            if end is None:
                return False
            position = end.end()
        else:
            depth += 1 if token in b"{[" else -1
    return depth == 0
