"""Where each field of a record stands, for whoever reads its bytes.

The drawing of a record is in :mod:`cursus.formats.record`; this walks over the
bytes of one frame with it and names them, field by field, as far as they go. A
frame that is damaged is named up to the field that runs past the end, and what
is left over is named so: the reader sees where the damage begins.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from cursus.formats import record as codec

#: Bytes of the length in front of a text or payload, by field; the others are numbers.
_PREFIX: Final = {
    "payload": 4,
    **dict.fromkeys(
        (
            *("topic", "producer_id", "event_type", "metadata", "key", "transactional_id"),
            *("transaction_state", "transaction_marker", "control_type", "control_key"),
            "control_value",
        ),
        2,
    ),
}
_WIDTH: Final = {
    **{"partition": 4, "offset": 8, "sequence": 8, "epoch": 8, "schema_version": 4},
    **{"aggregate_version": 8, "control_version": 2, "control_coordinator_epoch": 8},
}
_SIGNED: Final = {"control_version", "control_coordinator_epoch"}
_NAMES: Final = tuple(field.name for field in dataclasses.fields(codec.Record))
assert set(_NAMES) == {*_PREFIX, *_WIDTH}


@dataclass(frozen=True, slots=True)
class Field:
    """Bytes ``start`` to ``end`` of a frame. ``value``: a number, or bytes as they are."""

    name: str
    start: int
    end: int
    value: int | bytes | None


def fields_of(frame: bytes) -> Iterator[Field]:
    """Name the bytes of a frame (length prefix and record), as far as they go."""
    at, end = min(4, len(frame)), len(frame)
    yield Field("frame length", 0, at, int.from_bytes(frame[:4], "big") if at == 4 else None)
    magic = frame[at : at + 4]
    if magic != codec.MAGIC:
        if at < end:
            yield Field("not a CDM2 record", at, end, frame[at:])
        return
    yield Field("magic", at, at + 4, magic)
    at += 4
    for name in _NAMES:
        prefix = _PREFIX.get(name, 0)
        width = prefix or _WIDTH[name]
        if at + width > end:
            yield from _rest(name, at, end, frame)
            return
        number = int.from_bytes(frame[at : at + width], "big", signed=name in _SIGNED)
        if not prefix:
            yield Field(name, at, at + width, number)
            at += width
            continue
        yield Field(f"{name} length", at, at + width, number)
        at += width
        if at + number > end:
            yield from _rest(name, at, end, frame)
            return
        if number:
            yield Field(name, at, at + number, frame[at : at + number])
        at += number
    if at < end:
        yield Field("left over", at, end, frame[at:])


def _rest(name: str, at: int, end: int, frame: bytes) -> Iterator[Field]:
    if at < end:
        yield Field(f"{name}, cut off", at, end, frame[at:])
