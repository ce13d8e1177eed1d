"""Small files beside the segments: high watermark, producer state, lifecycle epoch.

High watermark, ``partition_<p>.hwm``::

    decimal u64, "\\n"             the next offset that consumers may see (exclusive)

Lifecycle marker, ``.cursus_lifecycle_epoch``::

    decimal u64 above 0, "\\n"     the truncation to this epoch is complete

Producer state, ``partition_<p>.producers``: compact JSON, keys sorted, "\\n"::

    {"p":12}                                                     oldest: sequence only
    {"p":{"epoch":0,"seq":12}}                                   the form that is written
    {"version":2,"producers":{"p":{"epoch":0,"seq":12}}}
    {"version":4,"covered_offset":10,"producers":{"p":{"epoch":2,"seq":3,"offset":5}}}

None has a checksum. Readers trim white space around a number (Unicode's) and
accept leading zeros, but no sign, underscore or other digit than 0-9. A
producer may be called "version": the file is versioned when ``version`` is a
number *and* a member ``producers`` stands beside it.

Source: journal.md sections 5.1, 6.1, 6.2.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from cursus.findings import FormatError
from cursus.formats import canonical_json
from cursus.formats.canonical_json import INT64, UINT64, JsonError, JsonValue, Number

#: A number with white space around it is never longer than this; nobody reads on.
MAX_NUMBER_BYTES: Final = 256
#: About a million producers in one partition. What is longer is invalid, and rebuilt.
MAX_PRODUCERS_BYTES: Final = 64 << 20
#: Unicode's property White_Space; Python's own idea of it has four controls more.
_WHITE_SPACE: Final = (
    "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008"
    "\u2009\u200a\u2028\u2029\u202f\u205f\u3000"
)
_DIGITS: Final = re.compile("[0-9]+")
_MAX: Final = 2**64 - 1

Form = Literal["sequence_only", "epoch_sequence", "version_2", "version_4"]


def _decode_number(data: bytes, code: str) -> int:
    if len(data) > MAX_NUMBER_BYTES:
        raise FormatError(code, f"more than {MAX_NUMBER_BYTES} bytes", position=MAX_NUMBER_BYTES)
    try:
        text = data.decode("utf-8").strip(_WHITE_SPACE)
    except UnicodeDecodeError as error:
        raise FormatError(code, "not UTF-8", position=error.start) from None
    digits = text.lstrip("0") or "0"
    if not _DIGITS.fullmatch(text) or len(digits) > 20 or int(digits) > _MAX:
        raise FormatError(code, "not a decimal number below 2^64", position=0)
    return int(digits)


def decode_hwm(data: bytes) -> int:
    """Raises :class:`FormatError` ``hwm_checkpoint_invalid``."""
    return _decode_number(data, "hwm_checkpoint_invalid")


def encode_hwm(offset: int) -> bytes:
    """Content of a high-watermark checkpoint."""
    return b"%d\n" % offset


def decode_lifecycle_epoch(data: bytes) -> int:
    """Raises :class:`FormatError` ``lifecycle_marker_invalid``; 0 is not an epoch."""
    epoch = _decode_number(data, "lifecycle_marker_invalid")
    if epoch == 0:
        raise FormatError("lifecycle_marker_invalid", "epoch 0", position=0)
    return epoch


def encode_lifecycle_epoch(epoch: int) -> bytes:
    """Content of a lifecycle marker."""
    return b"%d\n" % epoch


@dataclass(frozen=True, slots=True)
class ProducerEntry:
    """Last record of a producer; ``offset`` only in version 4."""

    epoch: int
    sequence: int
    offset: int | None = None


@dataclass(frozen=True, slots=True)
class ProducerCheckpoint:
    """A decoded producer checkpoint; entries without id or sequence are left out."""

    form: Form
    producers: dict[str, ProducerEntry]
    covered_offset: int | None = None


def decode_producers(data: bytes) -> ProducerCheckpoint:
    """Read any form of a producer checkpoint.

    Raises :class:`FormatError`: ``producer_checkpoint_invalid``,
    ``producer_checkpoint_version_unsupported`` or
    ``producer_checkpoint_producers_missing``.
    """
    if len(data) > MAX_PRODUCERS_BYTES:
        raise _invalid(f"more than {MAX_PRODUCERS_BYTES} bytes", MAX_PRODUCERS_BYTES)
    try:
        value = canonical_json.parse(data)
    except JsonError as error:
        raise _invalid(error.message, error.position) from None
    if value is None:
        return ProducerCheckpoint("epoch_sequence", {})
    if not isinstance(value, dict):
        raise _invalid("not an object")
    if isinstance(value.get("version"), Number) and "producers" in value:
        return _versioned(value)
    if all(isinstance(item, dict) for item in value.values()):
        return ProducerCheckpoint("epoch_sequence", _entries(value, with_offset=False))
    found = {}
    for name, item in value.items():
        sequence = _integer(item, UINT64)
        if name and sequence:
            found[name] = ProducerEntry(0, sequence)
    return ProducerCheckpoint("sequence_only", found)


def _invalid(reason: str, position: int | None = None) -> FormatError:
    return FormatError("producer_checkpoint_invalid", reason, position=position)


def _integer(value: JsonValue, limits: tuple[int, int]) -> int:
    if value is None:
        return 0
    if not isinstance(value, Number):
        raise _invalid("a number is missing")
    try:
        return value.as_int(*limits)
    except ValueError as error:
        raise _invalid(str(error)) from None


def _entries(value: Mapping[str, JsonValue], *, with_offset: bool) -> dict[str, ProducerEntry]:
    found = {}
    for name, item in value.items():
        if not isinstance(item, dict):
            raise _invalid("an entry is not an object")
        epoch = _integer(item.get("epoch"), INT64)
        sequence = _integer(item.get("seq"), UINT64)
        offset = _integer(item.get("offset"), UINT64) if with_offset else None
        if name and sequence:
            found[name] = ProducerEntry(epoch, sequence, offset)
    return found


def _versioned(value: Mapping[str, JsonValue]) -> ProducerCheckpoint:
    version = _integer(value["version"], INT64)
    if version not in {2, 4}:
        raise FormatError(
            "producer_checkpoint_version_unsupported", f"version {version} is not known"
        )
    producers = value["producers"]
    if producers is None:
        raise FormatError("producer_checkpoint_producers_missing", "producers is null")
    if not isinstance(producers, dict):
        raise _invalid("producers is not an object")
    if version == 2:
        return ProducerCheckpoint("version_2", _entries(producers, with_offset=False))
    return ProducerCheckpoint(
        "version_4",
        _entries(producers, with_offset=True),
        _integer(value.get("covered_offset"), UINT64),
    )


def encode_producers(producers: Mapping[str, ProducerEntry]) -> bytes:
    """The epoch and sequence form, producers in byte order of their ids."""
    ordered = sorted(producers.items(), key=lambda item: item[0].encode("utf-8", "replace"))
    found = {name: {"epoch": e.epoch, "seq": e.sequence} for name, e in ordered}
    return canonical_json.compact(found) + b"\n"
