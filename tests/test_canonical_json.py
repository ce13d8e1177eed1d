"""Strict reading and byte-exact writing of JSON."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cursus.formats import canonical_json as cj
from cursus.formats.canonical_json import INT64, UINT64, JsonError, Number


def refused(data: bytes, **options: Any) -> JsonError:
    with pytest.raises(JsonError) as error:
        cj.parse(data, **options)
    return error.value


# -- reading -------------------------------------------------------------------


def test_every_kind_of_value() -> None:
    data = b' {"a" : [1, -2.5e3, "x", true, false, null, {}, []]}\r\n\t '
    assert cj.parse(data) == {"a": [Number("1"), Number("-2.5e3"), "x", True, False, None, {}, []]}


@pytest.mark.parametrize(
    ("data", "kind", "position"),
    [
        (b"", "syntax", 0),
        (b" \n\t", "syntax", 3),
        (b"{", "syntax", 1),
        (b"[1,", "syntax", 3),
        (b"[1,]", "syntax", 3),
        (b"[1}", "syntax", 2),
        (b"{]", "syntax", 1),
        (b'{"a":1,}', "syntax", 7),
        (b'{"a" 1}', "syntax", 5),
        (b'{"\xc3\xa9": x}', "syntax", 7),  # byte 7, character 6
        (b'  "\xc3\xa9" "', "trailing", 7),
        (b'"a', "syntax", 0),
        (b'"a\nb"', "syntax", 2),
        (b'"a\x00b"', "syntax", 2),
        (b"'a'", "syntax", 0),
        (b"[01]", "syntax", 2),
        (b"[+1]", "syntax", 1),
        (b"[.5]", "syntax", 1),
        (b"[1.]", "syntax", 2),
        (b"// x\n1", "syntax", 0),
        (b"True", "syntax", 0),
        (b"\xef\xbb\xbf{}", "syntax", 0),
        (b"[1, NaN]", "syntax", 4),
        (b'["NaN", "\xc3\xa9", -Infinity]', "syntax", 14),
        (b"Infinity", "syntax", 0),
        (b"\xa0{}", "utf8", 0),
        (b'{"a":"\xff"}', "utf8", 6),
        (b'["\xc3"]', "utf8", 2),
        (b'["\xc0\x80"]', "utf8", 2),
        (b'["\xed\xa0\x80"]', "utf8", 2),  # a surrogate, encoded
        (b'{"a":1}{"b":2}', "trailing", 7),
        (b"{} \n x", "trailing", 5),
        (b"{}\x00", "trailing", 2),
        (b"{}\xa0", "trailing", 2),  # white space in Unicode, not in JSON
        (b'{"a":1,"b":2,"a":1}', "duplicate_key", 13),
        (b'[{"\xc3\xa9":1}, {"b":{"c":1, "c" : 2}}]', "duplicate_key", 24),
        (b'{"a":1,"\\u0061":2}', "duplicate_key", 7),
        (b'{"x":{"a":1},"a":[{"a":1}],"a":0}', "duplicate_key", 27),
    ],
)
def test_refused_with_the_byte(data: bytes, kind: str, position: int) -> None:
    error = refused(data)
    assert (error.kind, error.position) == (kind, position)


def test_what_follows_the_first_value_is_not_judged() -> None:
    assert cj.parse_prefix(b' {"a":1} \n\xff{{{') == ({"a": Number("1")}, 10)
    assert cj.parse_prefix(b"[] ") == ([], 3)


def test_equal_keys_in_different_objects_are_fine() -> None:
    assert cj.parse(b'{"a":{"a":1},"b":[{"a":1},{"a":1}]}')


def test_the_name_of_a_duplicate_key_is_told() -> None:
    assert refused(b'{"topics":[],"topics":[]}').key == "topics"


@pytest.mark.parametrize("bracket", [b"[", b'{"a":'])
def test_depth_is_judged_before_the_parser_recurses(bracket: bytes) -> None:
    closing = {b"[": b"]", b'{"a":': b"}"}[bracket]
    assert cj.parse(bracket * 63 + b"[]" + closing * 63)
    error = refused(bracket * 64 + b"[]" + closing * 64)
    assert (error.kind, error.position) == ("depth", 64 * len(bracket))
    assert refused(bracket * 1_000_000).kind == "depth"
    assert refused(b"[" * 3 + b"]" * 3, max_depth=2).position == 2


def test_brackets_in_strings_do_not_count() -> None:
    assert cj.parse(b'["' + b"[{" * 1000 + b'\\"]", "\\\\"]')


def test_lone_surrogates_become_the_replacement_character() -> None:
    assert cj.parse(rb'["\ud800", "x\udc00y", "\ud83d\ude00"]') == [
        "\ufffd",
        "x\ufffdy",
        "\U0001f600",
    ]
    assert cj.parse(rb'{"\udfff": {"\ud800": 1}}') == {"\ufffd": {"\ufffd": Number("1")}}
    assert refused(rb'{"\ud800":1,"\ud801":2}').kind == "duplicate_key"


# -- numbers ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("literal", "limits", "value"),
    [
        ("0", UINT64, 0),
        ("18446744073709551615", UINT64, 2**64 - 1),
        ("9223372036854775807", INT64, 2**63 - 1),
        ("-9223372036854775808", INT64, -(2**63)),
        ("-0", INT64, 0),
    ],
)
def test_integers_in_range(literal: str, limits: tuple[int, int], value: int) -> None:
    assert Number(literal).as_int(*limits) == value
    assert cj.parse(literal.encode()) == Number(literal)


@pytest.mark.parametrize(
    ("literal", "limits"),
    [
        ("18446744073709551616", UINT64),
        ("-1", UINT64),
        ("-0", UINT64),
        ("9223372036854775808", INT64),
        ("-9223372036854775809", INT64),
        ("1.0", INT64),
        ("1e0", INT64),
        ("1E+2", INT64),
        ("9" * 5000, INT64),  # int() itself would refuse this one
        ("-" + "9" * 5000, INT64),
    ],
)
def test_numbers_that_are_no_integers_in_range(literal: str, limits: tuple[int, int]) -> None:
    value = cj.parse(f"[{literal}]".encode())
    assert value == [Number(literal)]
    with pytest.raises(ValueError, match=r"integer in range|out of range|negative") as error:
        Number(literal).as_int(*limits)
    assert len(str(error.value)) < 120


# -- time ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        b'"' + b"\\\\" * 1_000_000,  # unclosed, and every second byte could be an end
        b'["' + b'\\"' * 1_000_000,
        b"[" + b"1," * 500_000,
        b'["' + b"a" * 4_000_000,
        b"[" + b"9" * 4_000_000 + b"]",
        b"{" + b",".join(b'"k%d":0' % n for n in range(200_000)) + b',"k7":1}',
        b'{"a":{"a":1}}' * 100_000,
        b" " * 4_000_000 + b"x",
        b'["' + b"\\ud800" * 300_000 + b'"]',
    ],
    ids=[
        "backslashes",
        "quotes",
        "elements",
        "string",
        "number",
        "duplicate",
        "trailing",
        "white",
        "surrogates",
    ],
)
def test_hostile_documents_take_linear_time(data: bytes) -> None:
    start = time.process_time()
    with suppress(JsonError):
        cj.parse(data)
    assert time.process_time() - start < 5  # quadratic would be hours


# -- writing ---------------------------------------------------------------------


def test_escapes() -> None:
    controls = "".join(chr(code) for code in range(0x20))
    expected = (
        "\\u0000\\u0001\\u0002\\u0003\\u0004\\u0005\\u0006\\u0007\\b\\t\\n\\u000b\\f\\r\\u000e\\u000f"
        "\\u0010\\u0011\\u0012\\u0013\\u0014\\u0015\\u0016\\u0017\\u0018\\u0019\\u001a\\u001b"
        "\\u001c\\u001d\\u001e\\u001f"
    )
    assert cj.quote(controls) == f'"{expected}"'
    assert (
        cj.quote("<a href='x'>&\u2028\u2029") == "\"\\u003ca href='x'\\u003e\\u0026\\u2028\\u2029\""
    )
    assert cj.quote('"\\/\x7f\u00e9\U0001f600') == '"\\"\\\\/\x7f\u00e9\U0001f600"'
    assert cj.quote("\ud800x\udcff") == '"\ufffdx\ufffd"'


def test_compact_and_pretty() -> None:
    value: Any = {"a": [1, "x", None, True, False], "b": [], "c": {}, "d": {"e": [[2**64 - 1]]}}
    assert cj.compact(value) == (
        b'{"a":[1,"x",null,true,false],"b":[],"c":{},"d":{"e":[[18446744073709551615]]}}'
    )
    assert cj.pretty(value) == (
        b'{\n  "a": [\n    1,\n    "x",\n    null,\n    true,\n    false\n  ],\n  "b": [],\n'
        b'  "c": {},\n  "d": {\n    "e": [\n      [\n        18446744073709551615\n      ]\n'
        b"    ]\n  }\n}\n"
    )


def test_a_number_is_written_as_it_was_read() -> None:
    data = b'{"n":1.50e+07,"m":-0,"k":' + b"7" * 5000 + b"}"
    assert cj.compact(cj.parse(data)) == data


@pytest.mark.parametrize(
    "value", [None, True, "", '\u2028<&>\\"\b', [[], {}], {"": {"a": ["\x00"]}}, [[[]], [{}]]]
)
def test_what_is_written_can_be_read(value: Any) -> None:
    assert cj.parse(cj.compact(value)) == value
    assert cj.parse(cj.pretty(value)) == value
    assert json.loads(cj.pretty(value)) == value


def both_ways(value: Any) -> None:
    """By the library, and by the writer that is the definition."""
    assert cj.compact(value) == cj._write(value, None, "").encode()
    assert cj.pretty(value) == (cj._write(value, "  ", "\n") + "\n").encode()


def test_every_character_is_written_as_the_definition_has_it() -> None:
    characters = [chr(code) for code in range(0x110000)]
    for start in range(0, len(characters), 4096):
        both_ways(["".join(characters[start : start + 4096]), *characters[start : start + 4096]])


@settings(max_examples=300, deadline=None)
@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-(2**70), 2**70)
        | st.text(st.characters() | st.sampled_from('<>&"\\\n\x00\ud800\u2028'))
        | st.from_regex(r"-?(0|[1-9][0-9]{0,30})(\.[0-9]+)?(e[0-9]+)?", fullmatch=True).map(
            cj.Number
        ),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner),
        max_leaves=20,
    )
)
def test_any_value_is_written_as_the_definition_has_it(value: Any) -> None:
    both_ways(value)


# -- where a document ends ---------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "end"),
    [
        (b"{}", 2),
        (b'{"a":"}"}rest', 9),
        (b'{"a":{"b":1}', None),
        (b'{"a":"x', None),
        (b'{"a":"x\\"}', None),
        (b'{"a":[1,2]} {', 11),
    ],
)
def test_document_end(data: bytes, end: int | None) -> None:
    assert cj.document_end(data) == end
