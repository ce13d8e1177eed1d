"""Where each field of a record stands, for whoever reads its bytes.

The drawing of a record is in :mod:`cursus.formats.record`; this walks over the
bytes of one frame with it and names them, field by field, as far as they go. A
frame that is damaged is named up to the field that runs past the end, and what
is left over is named so: the reader sees where the damage begins. Records of
other generations are evidence; they have the same fields in the same order, with
more behind them, or without the magic.
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
            *("control_value", "event_id", "payload_digest"),
        ),
        2,
    ),
}
_WIDTH: Final = {
    **{"partition": 4, "offset": 8, "sequence": 8, "epoch": 8, "schema_version": 4},
    **{"aggregate_version": 8, "control_version": 2, "control_coordinator_epoch": 8},
    **{"checksum": 4},
}
_SIGNED: Final = {"control_version", "control_coordinator_epoch"}
_NAMES: Final = tuple(field.name for field in dataclasses.fields(codec.Record))
#: What stands behind these fields, by magic.
_BEHIND: Final[dict[bytes, tuple[str, ...]]] = {
    codec.MAGIC: (),
    b"CDM3": ("event_id", "payload_digest"),
    b"CDM4": ("event_id", "payload_digest", "checksum"),
}
assert {*_NAMES, *_BEHIND[b"CDM4"]} == {*_PREFIX, *_WIDTH}


@dataclass(frozen=True, slots=True)
class Field:
    """Bytes ``start`` to ``end`` of a frame. ``value``: a number, or bytes as they are."""

    name: str
    start: int
    end: int
    value: int | bytes | None


def fields_of(frame: bytes, *, unversioned: bool = False) -> Iterator[Field]:
    """Name the bytes of a frame (length prefix and record), as far as they go.

    ``unversioned``: a record of the builds that wrote no magic.
    """
    at, end = min(4, len(frame)), len(frame)
    yield Field("frame length", 0, at, int.from_bytes(frame[:4], "big") if at == 4 else None)
    names: tuple[str, ...] = _NAMES
    if not unversioned:
        magic = frame[at : at + 4]
        if magic not in _BEHIND:
            if at < end:
                yield Field("not a record that is known", at, end, frame[at:])
            return
        yield Field("magic", at, at + 4, magic)
        at += 4
        names += _BEHIND[magic]
    for name in names:
        if unversioned and at == end:
            return  # its tails may be absent
        prefix = _PREFIX.get(name, 0)
        width = prefix or _WIDTH[name]
        if at + width > end:
            yield from _rest(f"{name}, cut off", at, end, frame)
            return
        number = int.from_bytes(frame[at : at + width], "big", signed=name in _SIGNED)
        yield Field(f"{name} length" if prefix else name, at, at + width, number)
        at += width
        if prefix and at + number > end:
            yield from _rest(f"{name}, cut off", at, end, frame)
            return
        if prefix and number:
            yield Field(name, at, at + number, frame[at : at + number])
            at += number
    yield from _rest("left over", at, end, frame)


def _rest(name: str, at: int, end: int, frame: bytes) -> Iterator[Field]:
    if at < end:
        yield Field(name, at, end, frame[at:])
