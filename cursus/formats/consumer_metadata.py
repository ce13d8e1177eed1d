"""Records of ``__consumer_offsets``, version 1.

The payload is one JSON object without white space, fields in this order::

    version          int     always, 1
    type             string  group_registration | offset_snapshot | group_tombstone
    group            string  any non-empty name
    topic            string  omitted when ""      exact name or pattern (* and ?)
    partition_count  int     omitted when 0       registration only
    epoch            uint    lifecycle epoch of the group, at least 1
    revision         uint    omitted when 0       snapshot only
    offsets          [{"partition":int,"offset":uint}, …]   omitted when empty
    initial_offsets  [{"topic":…,"revision":…,"offsets":[…]|null}, …]   omitted when empty
    timestamp        RFC 3339, informative only

A snapshot holds *all* committed offsets of one (group, topic). Each offset is
the next one to read. The key of the disk record says to which story a record
belongs, and compaction keeps the newest of each key::

    cursus.consumer.group.v1.<sha256(group)>               registration, tombstone
    cursus.consumer.offset.v1.<sha256(group NUL topic)>    snapshot

The partition of a record is FNV-1a-64 of its key modulo the partition count.
Two records are the same when their canonical encodings with the timestamp set
to zero are (:meth:`ConsumerRecord.identity`).

What older builds wrote (single and bulk offset JSON without a version) and
later versions are recognised as evidence only.

Source: consumer-metadata.md sections 1.1, 2, 3, 4, 12, 13.
"""

from __future__ import annotations

import hashlib
import itertools
import operator
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Final, Literal

from cursus.findings import FormatError
from cursus.formats import canonical_json, timestamps
from cursus.formats.canonical_json import INT64, UINT64, JsonError, JsonValue, Number, Writable

VERSION: Final = 1
REGISTRATION: Final = "group_registration"
SNAPSHOT: Final = "offset_snapshot"
TOMBSTONE: Final = "group_tombstone"
GROUP_KEY_PREFIX: Final = "cursus.consumer.group.v1."
OFFSET_KEY_PREFIX: Final = "cursus.consumer.offset.v1."

_FNV_BASIS: Final = 0xCBF29CE484222325
_FNV_PRIME: Final = 0x100000001B3

TRANSACTION_KEY_PREFIX: Final = "cursus.consumer.txn-offset.v1."
LIFECYCLE_KEY_PREFIX: Final = "cursus.consumer.lifecycle.v1."

Shape = Literal["single", "bulk", "unrecognised", "invalid_json"]


@dataclass(frozen=True, slots=True, order=True)
class OffsetItem:
    """Committed offset (the next one to read) of one partition."""

    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class TopicSnapshot:
    """Offsets that a registration carries with it."""

    topic: str
    revision: int
    offsets: tuple[OffsetItem, ...] = ()


@dataclass(frozen=True, slots=True)
class ConsumerRecord:
    """One record. ``timestamp`` is in nanoseconds since the zero time.

    ``timestamp_text`` is what the payload said, for forensics: it keeps the
    zone and all digits of the fraction, and takes part in no comparison.
    """

    type: str
    group: str
    epoch: int
    topic: str = ""
    partition_count: int = 0
    revision: int = 0
    offsets: tuple[OffsetItem, ...] = ()
    initial_offsets: tuple[TopicSnapshot, ...] = ()
    timestamp: int = timestamps.ZERO
    version: int = VERSION
    timestamp_text: str = field(default="", compare=False)

    def canonical(self) -> ConsumerRecord:
        """Offsets sorted by partition, initial offsets by topic in byte order."""
        if not self.initial_offsets and _ascend(self.offsets):
            return self
        return replace(
            self,
            offsets=tuple(sorted(self.offsets)),
            initial_offsets=tuple(
                TopicSnapshot(item.topic, item.revision, tuple(sorted(item.offsets)))
                for item in sorted(self.initial_offsets, key=lambda item: _bytes(item.topic))
            ),
        )

    def identity(self) -> bytes:
        """Canonical encoding with zero time: equal for the same record."""
        return _written(self.canonical(), timestamps.ZERO_TEXT)

    def key(self) -> str:
        """Key of the disk record that carries this record."""
        if self.type == SNAPSHOT:
            return offset_key(self.group, self.topic)
        return group_key(self.group)


def _ascend(items: tuple[OffsetItem, ...]) -> bool:
    return all(one.partition < other.partition for one, other in itertools.pairwise(items))


def _bytes(name: str) -> bytes:
    return name.encode("utf-8", "surrogatepass")


def fnv1a64(data: bytes) -> int:
    """FNV-1a with 64 bits."""
    value = _FNV_BASIS
    for byte in data:
        value = ((value ^ byte) * _FNV_PRIME) & 0xFFFFFFFFFFFFFFFF
    return value


def group_key(group: str | bytes) -> str:
    """Key of registrations and tombstones."""
    data = group if isinstance(group, bytes) else _bytes(group)
    return GROUP_KEY_PREFIX + hashlib.sha256(data).hexdigest()


@lru_cache(maxsize=4096)  # the same few groups commit again and again
def offset_key(group: str | bytes, topic: str | bytes) -> str:
    """Key of snapshots."""
    first = group if isinstance(group, bytes) else _bytes(group)
    second = topic if isinstance(topic, bytes) else _bytes(topic)
    return OFFSET_KEY_PREFIX + hashlib.sha256(first + b"\0" + second).hexdigest()


def partition_of(key: str | bytes, count: int) -> int:
    """Partition of a key in a topic with ``count`` partitions."""
    return fnv1a64(key if isinstance(key, bytes) else key.encode()) % count


def internal_partitions(groups: int) -> int:
    """Partitions that ``__consumer_offsets`` should have for this many live groups."""
    return min(max(groups // 10, 4), 50)


def topic_matches(pattern: str, topic: str) -> bool:
    """Does a group's topic, an exact name or a pattern, cover ``topic``? (section 4)

    ``*`` is any run of characters but a newline, ``?`` exactly one such
    character. Patterns come from hostile records: nothing here backtracks over
    a star, and what stands between two stars is found by :meth:`str.find`.
    """
    if pattern == topic:
        return True
    if "*" not in pattern and "?" not in pattern:
        return False
    # No wildcard covers a newline, so both must have the same lines.
    patterns, lines = pattern.split("\n"), topic.split("\n")
    return len(patterns) == len(lines) and all(map(_matches_line, patterns, lines))


def _matches_line(pattern: str, line: str) -> bool:
    first, *pieces = pattern.split("*")
    if not pieces:
        return len(line) == len(first) and _matches_at(first, line, 0)
    last = pieces.pop()
    end = len(line) - len(last)
    if end < len(first) or not (_matches_at(first, line, 0) and _matches_at(last, line, end)):
        return False
    at = len(first)
    for piece in pieces:  # the leftmost place leaves most room to the pieces behind
        if piece:
            at = _find(piece, line, at, end)
            if at < 0:
                return False
            at += len(piece)
    return True


def _matches_at(piece: str, line: str, at: int) -> bool:
    """Does ``piece``, without a star, match the characters of ``line`` from ``at``?"""
    if "?" not in piece:
        return line.startswith(piece, at)
    for literal in piece.split("?"):
        if not line.startswith(literal, at):
            return False
        at += len(literal) + 1
    return at - 1 <= len(line)


def _find(piece: str, line: str, start: int, end: int) -> int:
    """Leftmost place of ``piece`` within ``line[start:end]``, or -1."""
    if "?" not in piece:
        return line.find(piece, start, end)
    if end - start < len(piece):
        return -1
    anchor = max(piece.split("?"), key=len)
    before = piece.index(anchor)
    stop = end - len(piece) + before + len(anchor)
    at = line.find(anchor, start + before, stop)
    while at >= 0:
        if _matches_at(piece, line, at - before):
            return at - before
        at = line.find(anchor, at + 1, stop)
    return -1


def quoted(name: str) -> str:
    """A name in quotation marks with backslash escapes, as the reference's texts show it."""
    short = {"\a": "\\a", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t",
             "\v": "\\v", '"': '\\"', "\\": "\\\\"}  # fmt: skip
    shown = []
    for character in name:
        code = ord(character)
        if character in short:
            shown.append(short[character])
        elif character == " " or character.isprintable():
            shown.append(character)
        elif code < 0x80:
            shown.append(f"\\x{code:02x}")
        elif code <= 0xFFFF:
            shown.append(f"\\u{code:04x}")
        else:
            shown.append(f"\\U{code:08x}")
    return f'"{"".join(shown)}"'


# -- reading -------------------------------------------------------------------

_FIELDS: Final = frozenset(
    {
        "version",
        "type",
        "group",
        "topic",
        "partition_count",
        "epoch",
        "revision",
        "offsets",
        "initial_offsets",
        "timestamp",
    }
)


def decode(payload: bytes) -> ConsumerRecord:
    """Decode and validate one record (section 3); the result is canonical.

    Raises :class:`FormatError` with the code of the first failed check. For a
    record of a later version ``detail["later"]`` is a :class:`LaterRecord`, for
    one without a version ``detail["unversioned"]`` an :class:`UnversionedRecord`.
    """
    return _written_snapshot(payload) or _decode(payload)


#: A snapshot as brokers write it, field by field, with plain names and numbers that fit.
_WRITTEN: Final = re.compile(
    rb'\{"version":1,"type":"offset_snapshot","group":"([ !#-\[\]-~]+)","topic":"([ !#-\[\]-~]+)"'
    rb',"epoch":([1-9][0-9]{0,18}),"revision":([1-9][0-9]{0,18}),"offsets":\[('
    rb'\{"partition":(?:0|[1-9][0-9]{0,8}),"offset":(?:0|[1-9][0-9]{0,18})\}'
    rb'(?:,\{"partition":(?:0|[1-9][0-9]{0,8}),"offset":(?:0|[1-9][0-9]{0,18})\})*'
    rb')\],"timestamp":"([0-9TZ:.+-]+)"\}'
)
_NUMBERS: Final = re.compile(rb"[0-9]+")


def _written_snapshot(payload: bytes) -> ConsumerRecord | None:
    """Nearly every record is such a snapshot: read in one go, a tenth of the time of JSON.

    ``None`` says nothing: :func:`_decode` is the definition, and gives the same here.
    """
    match = _WRITTEN.fullmatch(payload)
    if match is None:
        return None
    group, topic, epoch, revision, items, moment = match.groups()
    numbers = list(map(int, _NUMBERS.findall(items)))
    partitions = numbers[::2]
    if any(map(operator.ge, partitions, partitions[1:])):
        return None  # to be sorted, or refused
    text = moment.decode("ascii")
    try:
        timestamp = timestamps.parse(text)
    except ValueError:
        return None
    return ConsumerRecord(
        SNAPSHOT,
        group.decode("ascii"),
        int(epoch),
        topic.decode("ascii"),
        0,
        int(revision),
        tuple(map(OffsetItem, partitions, numbers[1::2])),
        (),
        timestamp,
        VERSION,
        text,
    )


def _decode(payload: bytes) -> ConsumerRecord:
    fields = _object(payload)
    if "version" not in fields:
        raise FormatError(
            "unversioned_record",
            "unversioned consumer metadata; clean bootstrap required",
            unversioned=_unversioned(fields),
        )
    version = _version(fields["version"])
    try:
        record = _read(fields, version)
        if record.version != VERSION:
            raise FormatError(
                "unsupported_record_version",
                f"unsupported consumer metadata record version {record.version}",
            )
        record = record.canonical()
        validate(record)
    except FormatError as error:
        if version > VERSION:
            error.detail["later"] = _later(fields, version)
        raise
    return record


def _object(payload: bytes) -> dict[str, JsonValue]:
    try:
        value = canonical_json.parse(payload)
    except JsonError as error:
        if error.kind == "duplicate_key":
            raise FormatError("duplicate_key", error.message, position=error.position) from None
        raise FormatError("invalid_json", error.message, position=error.position) from None
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise FormatError("invalid_field_type", "the payload is not an object")
    return value


def _version(value: JsonValue) -> int:
    if value is None:
        return 0
    problem = "it is not an integer"
    if isinstance(value, Number):
        try:
            return value.as_int(*INT64)
        except ValueError as error:
            problem = str(error)
    raise FormatError("invalid_version_type", f"decode consumer metadata version: {problem}")


def _read(fields: dict[str, JsonValue], version: int) -> ConsumerRecord:
    """Fields in document order: an unknown one or a wrong type, whichever comes first."""
    found: dict[str, object] = {}
    for name, value in fields.items():
        if name not in _FIELDS:
            if name.lower() == "version":
                raise FormatError("version_mismatch", "consumer metadata version mismatch")
            raise _unknown(name)
        if name in {"type", "group", "topic"}:
            found[name] = _string(value, name)
        elif name in {"epoch", "revision"}:
            found[name] = _integer(value, UINT64, name)
        elif name == "partition_count":
            found[name] = _integer(value, INT64, name)
        elif name == "offsets":
            found[name] = _items(value)
        elif name == "initial_offsets":
            found[name] = tuple(_topic_snapshot(item) for item in _array(value, name))
        elif name == "timestamp":
            found[name] = _time(value)
            found["timestamp_text"] = value or ""
    return ConsumerRecord(
        **{"type": "", "group": "", "epoch": 0, **found, "version": version}  # type: ignore[arg-type]
    )


def _unknown(name: str) -> FormatError:
    return FormatError(
        "unknown_field", f"json: unknown field {quoted(canonical_json.shorten(name))}", field=name
    )


def _wrong(name: str, wanted: str) -> FormatError:
    return FormatError("invalid_field_type", f"{name} is not {wanted}", field=name)


def _string(value: JsonValue, name: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise _wrong(name, "a string")
    return value


def _integer(value: JsonValue, limits: tuple[int, int], name: str) -> int:
    if value is None:
        return 0
    if not isinstance(value, Number):
        raise _wrong(name, "an integer")
    try:
        return value.as_int(*limits)
    except ValueError as error:
        raise FormatError("invalid_field_type", f"{name}: {error}", field=name) from None


def _array(value: JsonValue, name: str) -> list[JsonValue]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise _wrong(name, "an array")
    return value


def _inner(value: JsonValue, name: str) -> dict[str, JsonValue]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise _wrong(name, "an object")
    return value


def _items(value: JsonValue) -> tuple[OffsetItem, ...]:
    found = []
    for item in _array(value, "offsets"):
        partition = offset = 0
        for name, number in _inner(item, "an item of offsets").items():
            if name == "partition":
                partition = _integer(number, INT64, "partition")
            elif name == "offset":
                offset = _integer(number, UINT64, "offset")
            else:
                raise _unknown(name)
        found.append(OffsetItem(partition, offset))
    return tuple(found)


def _topic_snapshot(value: JsonValue) -> TopicSnapshot:
    topic, revision = "", 0
    offsets: tuple[OffsetItem, ...] = ()
    for name, item in _inner(value, "an item of initial_offsets").items():
        if name == "topic":
            topic = _string(item, "topic")
        elif name == "revision":
            revision = _integer(item, UINT64, "revision")
        elif name == "offsets":
            offsets = _items(item)
        else:
            raise _unknown(name)
    return TopicSnapshot(topic, revision, offsets)


def _time(value: JsonValue) -> int:
    if value is None:
        return timestamps.ZERO
    if not isinstance(value, str):
        raise _wrong("timestamp", "a string")
    try:
        return timestamps.parse(value)
    except ValueError as error:
        raise FormatError("invalid_field_type", f"timestamp: {error}", field="timestamp") from None


# -- validation -----------------------------------------------------------------


def validate(record: ConsumerRecord) -> None:
    """Checks 8 to 10 of section 3 on a canonical record. Raises :class:`FormatError`."""
    if record.version != VERSION:
        raise FormatError(
            "unsupported_record_version",
            f"unsupported consumer metadata record version {record.version}",
        )
    if not record.group or record.epoch == 0:
        raise FormatError(
            "missing_group_or_epoch", "consumer metadata record is missing group or epoch"
        )
    if record.type == REGISTRATION:
        _validate_registration(record)
    elif record.type == SNAPSHOT:
        _validate_snapshot(record)
    elif record.type == TOMBSTONE:
        if record.partition_count or record.revision or record.offsets or record.initial_offsets:
            raise FormatError(
                "tombstone_has_live_fields", "group tombstone contains live metadata fields"
            )
    else:
        raise FormatError(
            "unsupported_record_type",
            f"unsupported consumer metadata record type {quoted(record.type)}",
        )


def _validate_registration(record: ConsumerRecord) -> None:
    if not record.topic or record.partition_count <= 0:
        raise FormatError(
            "registration_missing_topic_or_partitions",
            "group registration is missing topic or partition count",
        )
    if record.revision or record.offsets:
        raise FormatError(
            "registration_has_offset_fields", "group registration contains offset-record fields"
        )
    seen: set[str] = set()
    for item in record.initial_offsets:
        if not item.topic:
            raise FormatError(
                "registration_empty_offset_topic",
                "group registration contains an empty offset topic",
            )
        if not topic_matches(record.topic, item.topic):
            raise FormatError(
                "registration_offset_topic_mismatch",
                f"group registration offset topic {quoted(item.topic)} "
                f"does not match group topic {quoted(record.topic)}",
            )
        if item.topic in seen:
            raise FormatError(
                "registration_duplicate_offset_topic",
                f"group registration contains duplicate offset topic {quoted(item.topic)}",
            )
        seen.add(item.topic)
        prefix = f"group registration topic {quoted(item.topic)}: "
        _validate_items(item.offsets, record.partition_count, prefix)


def _validate_snapshot(record: ConsumerRecord) -> None:
    if not record.topic or not record.revision or not record.offsets:
        raise FormatError(
            "snapshot_missing_fields", "offset snapshot is missing topic, revision, or offsets"
        )
    if record.partition_count or record.initial_offsets:
        raise FormatError(
            "snapshot_has_registration_fields", "offset snapshot contains registration fields"
        )
    _validate_items(record.offsets, 0, "")


def _validate_items(items: tuple[OffsetItem, ...], bound: int, prefix: str) -> None:
    last: int | None = None
    for item in items:
        if item.partition < 0:
            raise FormatError(
                "negative_offset_partition", f"{prefix}negative offset partition {item.partition}"
            )
        if bound and item.partition >= bound:
            raise FormatError(
                "offset_partition_out_of_range",
                f"{prefix}offset partition {item.partition} exceeds "
                f"registration partition count {bound}",
            )
        if item.partition == last:
            raise FormatError(
                "duplicate_offset_partition",
                f"{prefix}duplicate offset partition {item.partition}",
            )
        last = item.partition


# -- writing -------------------------------------------------------------------


def encode(record: ConsumerRecord) -> bytes:
    """Canonical payload. Raises :class:`FormatError`, ``timestamp_out_of_range`` included."""
    record = record.canonical()
    validate(record)
    try:
        moment = timestamps.canonical(record.timestamp)
    except ValueError as error:
        raise FormatError("timestamp_out_of_range", f"timestamp: {error}") from None
    return _written(record, moment)


def _written(record: ConsumerRecord, moment: str) -> bytes:
    found: dict[str, Writable] = {
        "version": record.version,
        "type": record.type,
        "group": record.group,
    }
    if record.topic:
        found["topic"] = record.topic
    if record.partition_count:
        found["partition_count"] = record.partition_count
    found["epoch"] = record.epoch
    if record.revision:
        found["revision"] = record.revision
    if record.offsets:
        found["offsets"] = [_item(item) for item in record.offsets]
    if record.initial_offsets:
        found["initial_offsets"] = [
            {
                "topic": item.topic,
                "revision": item.revision,
                "offsets": [_item(offset) for offset in item.offsets] or None,
            }
            for item in record.initial_offsets
        ]
    found["timestamp"] = moment
    return canonical_json.compact(found)


def _item(item: OffsetItem) -> Mapping[str, Writable]:
    return {"partition": item.partition, "offset": item.offset}


class SnapshotWriter:
    """Snapshots of one (group, topic) in one life of the group.

    What does not change between them is encoded once: ``key`` of the disk record,
    its ``key_hash`` (FNV-1a-64), and the beginning of the payload. The bytes are
    those of :func:`encode`. Raises :class:`FormatError` as that does.
    """

    __slots__ = ("_head", "epoch", "key", "key_hash")

    def __init__(self, group: str, topic: str, epoch: int) -> None:
        first = OffsetItem(0, 0)
        record = ConsumerRecord(SNAPSHOT, group, epoch, topic=topic, revision=1, offsets=(first,))
        payload = encode(record)
        self.epoch = epoch
        self.key = record.key().encode()
        self.key_hash = fnv1a64(self.key)
        self._head = payload[: payload.rindex(b'"revision":1,"offsets":[') + len('"revision":')]

    def encode(self, revision: int, offsets: Mapping[int, int], timestamp: int) -> bytes:
        """Payload of the snapshot ``revision``. ``offsets``: next offset of each partition."""
        items = sorted(offsets.items())
        if revision < 1 or not items:
            raise FormatError(
                "snapshot_missing_fields", "offset snapshot is missing topic, revision, or offsets"
            )
        if items[0][0] < 0:
            raise FormatError(
                "negative_offset_partition", f"negative offset partition {items[0][0]}"
            )
        try:
            moment = timestamps.canonical(timestamp)
        except ValueError as error:
            raise FormatError("timestamp_out_of_range", f"timestamp: {error}") from None
        listed = ",".join([f'{{"partition":{number},"offset":{at}}}' for number, at in items])
        return self._head + f'{revision},"offsets":[{listed}],"timestamp":"{moment}"}}'.encode()


# -- records of other releases -----------------------------------------------------


@dataclass(frozen=True, slots=True)
class UnversionedRecord:
    """What a broker before August 2026 wrote: offsets without epoch or revision (section 12)."""

    shape: Shape
    group: str = ""
    topic: str = ""
    offsets: tuple[OffsetItem, ...] = ()
    timestamp_text: str = ""


@dataclass(frozen=True, slots=True)
class LaterRecord:
    """What can be told of a record of version 2 or above (section 13); evidence, never state.

    ``topic`` is an exact name or, where the record has one, the pattern.
    ``topics`` and ``topic_partitions`` come from versions 2 and 4, ``members``
    (ids) and ``generation`` from 4, the transaction fields from 3, and
    ``reserved_by`` (transactional ids) from 5. ``key``: the key that the disk
    record should have, ``None`` where it has not been observed.
    """

    version: int
    type: str
    group: str = ""
    topic: str = ""
    epoch: int = 0
    revision: int = 0
    topics: tuple[str, ...] = ()
    topic_partitions: tuple[tuple[str, int], ...] = ()
    offsets: tuple[OffsetItem, ...] = ()
    transactional_id: str = ""
    producer_id: str = ""
    producer_epoch: int = 0
    coordinator_epoch: int = 0
    generation: int = 0
    members: tuple[str, ...] = ()
    reserved_by: tuple[str, ...] = ()
    key: str | None = None


def decode_unversioned(payload: bytes) -> UnversionedRecord:
    """A payload without a version, as evidence. Never raises: the shape says what it is."""
    try:
        value = canonical_json.parse(payload)
    except JsonError:
        return UnversionedRecord("invalid_json")
    return _unversioned(value) if isinstance(value, dict) else UnversionedRecord("unrecognised")


def decode_later(payload: bytes) -> LaterRecord | None:
    """A record of a later version, as evidence; ``None`` when it is not one. Never raises."""
    try:
        fields = canonical_json.parse(payload)
        version = _version(fields.get("version")) if isinstance(fields, dict) else 0
    except FormatError:
        return None
    return _later(fields, version) if isinstance(fields, dict) and version > VERSION else None


def _unversioned(fields: Mapping[str, JsonValue]) -> UnversionedRecord:
    group, topic = _text_of(fields, "group"), _text_of(fields, "topic")
    if not group or not topic:
        return UnversionedRecord("unrecognised")
    listed = fields.get("offsets")
    several = isinstance(listed, list) and bool(listed)
    try:
        items = tuple(
            OffsetItem(
                _integer(item.get("partition"), INT64, "partition"),
                _integer(item.get("offset"), UINT64, "offset"),
            )
            for item in (
                [_inner(each, "an item") for each in _array(listed, "offsets")]
                if several
                else [fields]
            )
        )
    except FormatError:
        return UnversionedRecord("unrecognised")
    time = _text_of(fields, "timestamp")
    return UnversionedRecord("bulk" if several else "single", group, topic, items, time)


def _later(fields: Mapping[str, JsonValue], version: int) -> LaterRecord:
    """Lenient: a field of another type than expected is read as absent."""
    kind, group = _text_of(fields, "type"), _text_of(fields, "group")
    inside = fields.get("lifecycle")
    life: Mapping[str, JsonValue] = inside if isinstance(inside, dict) else fields
    topic = _text_of(life, "topic") or _text_of(life, "topic_pattern")
    transactional_id = _text_of(fields, "transactional_id")
    producer_epoch = _count_of(fields, "producer_epoch")
    key: str | None = None
    if kind == "transactional_offset_snapshot":
        parts = (group, topic, transactional_id, str(producer_epoch))
        digest = hashlib.sha256(b"\0".join(map(_bytes, parts))).hexdigest()
        key = TRANSACTION_KEY_PREFIX + digest
    elif kind == "group_lifecycle_snapshot":
        key = LIFECYCLE_KEY_PREFIX + hashlib.sha256(_bytes(group)).hexdigest()
    elif kind in {REGISTRATION, TOMBSTONE}:
        key = group_key(group)
    elif kind == SNAPSHOT:
        key = offset_key(group, topic)
    return LaterRecord(
        version=version,
        type=kind,
        group=group,
        topic=topic,
        epoch=_count_of(fields, "epoch"),
        revision=_count_of(fields, "revision"),
        topics=_texts_of(life, "topics"),
        topic_partitions=tuple(
            (_text_of(item, "topic"), _count_of(item, "partition"))
            for item in _objects_of(life, "topic_partitions")
        ),
        offsets=tuple(
            OffsetItem(_count_of(item, "partition"), _count_of(item, "offset"))
            for item in _objects_of(fields, "offsets")
        ),
        transactional_id=transactional_id,
        producer_id=_text_of(fields, "producer_id"),
        producer_epoch=producer_epoch,
        coordinator_epoch=_count_of(fields, "coordinator_epoch"),
        generation=_count_of(life, "generation"),
        members=_members(life.get("members")),
        reserved_by=tuple(
            _text_of(item, "transactional_id") for item in _objects_of(fields, "reservations")
        ),
        key=key,
    )


def _members(value: JsonValue) -> tuple[str, ...]:
    """Ids of members, kept as an object by id or as a list of objects or of names."""
    if isinstance(value, dict):
        return tuple(value)
    listed = value if isinstance(value, list) else []
    names = [
        item if isinstance(item, str) else _text_of(item, "id") or _text_of(item, "member_id")
        for item in listed
        if isinstance(item, (str, dict))
    ]
    return tuple(name for name in names if name)


def _text_of(fields: Mapping[str, JsonValue], name: str) -> str:
    value = fields.get(name)
    return value if isinstance(value, str) else ""


def _count_of(fields: Mapping[str, JsonValue], name: str) -> int:
    value = fields.get(name)
    if isinstance(value, Number):
        try:
            return value.as_int(*UINT64)
        except ValueError:
            return 0
    return 0


def _texts_of(fields: Mapping[str, JsonValue], name: str) -> tuple[str, ...]:
    value = fields.get(name)
    listed = value if isinstance(value, list) else []
    return tuple(item for item in listed if isinstance(item, str))


def _objects_of(fields: Mapping[str, JsonValue], name: str) -> list[dict[str, JsonValue]]:
    value = fields.get(name)
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
