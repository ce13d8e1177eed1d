"""The transaction journal, ``__transaction_state.journal``.

Frames follow each other without header, footer or padding::

    4   payload length   u32, 1 … 33,554,432 (32 MiB)
    n   payload          one JSON object, UTF-8, no newline
    4   CRC-32 (IEEE) of the payload bytes

    {"version":1,"transaction":{snapshot}}           version 1: the form of this broker
    {"version":2|3,"transaction":{snapshot}}         later releases, evidence only
    {"version":3,"delta":{…}}                        change against the last state of an id
    {"version":2|3,"next_producer_epoch":N}          allocator watermark

    snapshot of version 1, members in this order (those with * are left out when
    zero, empty or false)
    id, producer, epoch, revision*, ready*, expired*, state, messages*, offsets*,
    created_at, updated_at

The last frame of an id wins, whatever its epoch or revision. Members that
nobody knows are ignored; a known member in another case, or twice, is refused
(README.md decisions 16 and 30). Times have nanoseconds.

Source: journal.md section 1.
"""

from __future__ import annotations

import base64
import binascii
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import google_crc32c

from cursus.findings import FormatError
from cursus.formats import canonical_json, timestamps
from cursus.formats.canonical_json import INT64, UINT64, JsonError, JsonValue, Number, Writable

MAX_PAYLOAD_BYTES: Final = 33_554_432
OVERHEAD: Final = 8
#: Every payload of every version begins like this.
PAYLOAD_START: Final = b'{"version":'
MAX_WATERMARK: Final = 2**63
VERSION: Final = 1

Kind = Literal["string", "i64", "u64", "u32", "i16", "bool", "time", "base64"]
_RANGES: Final = {
    "i64": INT64,
    "u64": UINT64,
    "u32": (0, 2**32 - 1),
    "i16": (-(2**15), 2**15 - 1),
}

FrameKind = Literal["snapshot", "delta", "watermark"]


@dataclass(frozen=True, slots=True)
class _Member:
    """One member of an object: how it is read, and whether an empty one is written."""

    name: str
    kind: Kind | None = None
    omit: bool = False
    items: tuple[_Member, ...] | None = None  # an array of objects
    map_of: tuple[_Member, ...] | Kind | None = None  # an object with free keys
    inner: tuple[_Member, ...] | None = None  # one object
    later: bool = False  # not written by this broker
    strings: bool = False  # an array of strings


_MESSAGE: Final = (
    _Member("Topic", "string"),
    _Member("Partition", "i64"),
    _Member("Offset", "u64"),
    _Member("Timestamp", "i64"),
    _Member("ProducerID", "string"),
    _Member("SeqNum", "u64"),
    _Member("Payload", "string"),
    _Member("Key", "string"),
    _Member("Epoch", "i64"),
    _Member("EventType", "string"),
    _Member("SchemaVersion", "u32"),
    _Member("AggregateVersion", "u64"),
    _Member("Metadata", "string"),
    _Member("EventID", "string"),
    _Member("PayloadDigest", "string"),
    _Member("TransactionalID", "string"),
    _Member("TransactionState", "string"),
    _Member("TransactionMarker", "string"),
    _Member("ControlBatchType", "string"),
    _Member("ControlBatchVersion", "i16"),
    _Member("ControlBatchCoordinatorEpoch", "i64"),
    _Member("ControlBatchKey", "base64"),
    _Member("ControlBatchValue", "base64"),
    _Member("RetryCount", "i64"),
    _Member("Retry", "bool"),
)
_MESSAGES: Final = (
    _Member("Topic", "string"),
    _Member("Partition", "i64"),
    _Member("Message", inner=_MESSAGE),
)
_STREAMS: Final = (
    _Member("Topic", "string"),
    _Member("Partition", "i64"),
    _Member("Key", "string"),
    _Member("ExpectedVersion", "u64"),
    _Member("Message", inner=_MESSAGE),
)
_OFFSETS: Final = (
    _Member("Topic", "string"),
    _Member("Group", "string"),
    _Member("Member", "string"),
    _Member("Generation", "i64"),
    _Member("Partition", "i64"),
    _Member("Offset", "u64"),
    _Member("registration_epoch", "u64", omit=True),
)
_PARTICIPANTS: Final = (_Member("topic", "string"), _Member("partition", "i64"))
_ASSIGNMENT: Final = (
    _Member("topic", "string"),
    _Member("requested_partition", "i64"),
    _Member("client_sequence", "u64"),
    _Member("partition", "i64"),
    _Member("sequence", "u64"),
    _Member("fingerprint", "string"),
)
_SNAPSHOT: Final = (
    _Member("id", "string"),
    _Member("mode", "string", omit=True, later=True),
    _Member("producer", "string"),
    _Member("epoch", "i64"),
    _Member("coordinator_epoch", "i64", omit=True, later=True),
    _Member("revision", "u64", omit=True),
    _Member("ready", "bool", omit=True),
    _Member("expired", "bool", omit=True),
    _Member("offsets_materialized", "bool", omit=True, later=True),
    _Member("offset_reservations_pending", "bool", omit=True, later=True),
    _Member("state", "string"),
    _Member("messages", items=_MESSAGES, omit=True),
    _Member("streams", items=_STREAMS, omit=True, later=True),
    _Member("offsets", items=_OFFSETS, omit=True),
    _Member("participants", items=_PARTICIPANTS, omit=True, later=True),
    _Member("sequence_by_partition", map_of="u64", omit=True, later=True),
    _Member("request_assignments", map_of=_ASSIGNMENT, omit=True, later=True),
    _Member("deadline", "time", later=True),
    _Member("created_at", "time"),
    _Member("updated_at", "time"),
)
_DELTA: Final = (
    _Member("base_epoch", "i64"),
    _Member("base_revision", "u64"),
    _Member("metadata", inner=_SNAPSHOT),
    _Member("messages_append", items=_MESSAGES, omit=True),
    _Member("streams_append", items=_STREAMS, omit=True),
    _Member("offsets_append", items=_OFFSETS, omit=True),
    _Member("participants_append", items=_PARTICIPANTS, omit=True),
    _Member("sequence_updates", map_of="u64", omit=True),
    _Member("sequence_deletes", strings=True, omit=True),
    _Member("request_assignment_updates", map_of=_ASSIGNMENT, omit=True),
    _Member("request_assignment_deletes", strings=True, omit=True),
)
_COLLECTIONS: Final = (
    "messages",
    "streams",
    "offsets",
    "participants",
    "sequence_by_partition",
    "request_assignments",
)
_ENVELOPE: Final = ("version", "transaction", "delta", "next_producer_epoch")

Values = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Transaction:
    """One state of a transactional id. ``values`` has every member; times in nanoseconds."""

    values: Values

    @property
    def id(self) -> str:
        """Transactional id."""
        return str(self.values["id"])

    @property
    def producer(self) -> str:
        """Producer id."""
        return str(self.values["producer"])

    @property
    def epoch(self) -> int:
        """Producer epoch."""
        return int(self.values["epoch"])

    @property
    def revision(self) -> int:
        """Counts every mutation."""
        return int(self.values["revision"])

    @property
    def state(self) -> str:
        """``open``, ``committing``, ``committed``, ``aborted``, or a later release's."""
        return str(self.values["state"])

    @property
    def expired(self) -> bool:
        """A tombstone."""
        return bool(self.values["expired"])

    @property
    def ready(self) -> bool:
        """Initialised; a new transaction may begin."""
        return bool(self.values["ready"])

    @property
    def messages(self) -> Sequence[Values]:
        """Staged records: ``Topic``, ``Partition``, ``Message``."""
        found: Sequence[Values] = self.values["messages"]
        return found

    @property
    def offsets(self) -> Sequence[Values]:
        """Staged consumer offsets."""
        found: Sequence[Values] = self.values["offsets"]
        return found

    @property
    def created_at(self) -> int:
        """Nanoseconds since the zero time."""
        return int(self.values["created_at"])

    @property
    def updated_at(self) -> int:
        """Nanoseconds since the zero time."""
        return int(self.values["updated_at"])

    def partitions(self) -> list[tuple[str, int]]:
        """Partitions with staged records, by topic bytes, then number."""
        found = {(str(m["Topic"]), int(m["Partition"])) for m in self.messages}
        return sorted(found, key=lambda item: (item[0].encode("utf-8", "replace"), item[1]))


@dataclass(frozen=True, slots=True)
class Envelope:
    """A decoded payload. Exactly one of the three bodies is there."""

    version: int
    kind: FrameKind
    transaction: Transaction | None = None
    delta: Values | None = None
    watermark: int | None = None
    unknown_members: tuple[str, ...] = ()


# -- reading -------------------------------------------------------------------


def checksum(payload: bytes) -> int:
    """CRC-32 of a payload."""
    return zlib.crc32(payload)


def decode(payload: bytes, *, versions: frozenset[int] = frozenset({1})) -> Envelope:
    """Decode one payload whose checksum is good.

    ``versions``: payload versions to accept; with only version 1 the body rules
    are this broker's (profile A), otherwise those of the later releases.
    Raises :class:`FormatError` with the codes of journal.md section 2.
    """
    try:
        value = canonical_json.parse(payload)
    except JsonError as error:
        code = "duplicate_key" if error.kind == "duplicate_key" else "journal_payload_json_invalid"
        raise FormatError(code, error.message, position=error.position) from None
    if not isinstance(value, dict):
        raise _json_invalid("the payload is not an object")
    _check_case(value, _ENVELOPE)
    version = _scalar("i64", value.get("version"), "version")
    transaction = _optional(value.get("transaction"), _SNAPSHOT, "transaction")
    later = versions != frozenset({1})
    delta = _optional(value.get("delta"), _DELTA, "delta") if later else None
    mark = value.get("next_producer_epoch") if later else None
    watermark = None if mark is None else _scalar("u64", mark, "next_producer_epoch")
    if version not in versions:
        note = " (a bare snapshot without envelope)" if "id" in value else ""
        raise FormatError(
            "journal_version_unsupported",
            f"payload version {version} is not supported{note}",
            version=version,
        )
    unknown = tuple(name for name in value if name not in _ENVELOPE)
    return _body(version, transaction, delta, watermark, unknown, later)


def _body(
    version: int,
    transaction: Values | None,
    delta: Values | None,
    watermark: int | None,
    unknown: tuple[str, ...],
    later: bool,
) -> Envelope:
    if watermark is not None:
        if version == 1 or transaction is not None or delta is not None:
            raise FormatError(
                "journal_watermark_record_invalid", "a watermark stands beside another body"
            )
        if watermark > MAX_WATERMARK:
            raise FormatError("journal_watermark_out_of_range", f"watermark {watermark}")
        return Envelope(version, "watermark", watermark=watermark, unknown_members=unknown)
    if delta is not None:
        metadata = delta["metadata"]
        if version != 3 or transaction is not None or not metadata["id"]:
            raise FormatError("journal_delta_invalid", "a delta is malformed")
        if delta["base_epoch"] < 0 or metadata["epoch"] < 0:
            raise FormatError("journal_delta_epoch_negative", "a delta has a negative epoch")
        return Envelope(version, "delta", delta=delta, unknown_members=unknown)
    if transaction is None or not transaction["id"]:
        raise FormatError("journal_transaction_missing", "the frame holds no transaction")
    if later and transaction["epoch"] < 0:
        raise FormatError("journal_epoch_negative", f"epoch {transaction['epoch']}")
    return Envelope(
        version, "snapshot", transaction=Transaction(transaction), unknown_members=unknown
    )


def merge(base: Transaction | None, delta: Values) -> Transaction:
    """Apply a delta to the last state of its id (journal.md section 1.5)."""
    metadata: Values = delta["metadata"]
    if base is None:
        raise FormatError("journal_delta_no_baseline", f"nothing is known of {metadata['id']!r}")
    if (base.epoch, base.revision) != (delta["base_epoch"], delta["base_revision"]):
        raise FormatError(
            "journal_delta_base_mismatch",
            f"builds on epoch {delta['base_epoch']} revision {delta['base_revision']}, "
            f"found {base.epoch} and {base.revision}",
        )
    if any(metadata[name] for name in _COLLECTIONS):
        raise FormatError("journal_delta_metadata_not_empty", "metadata carries collections")
    merged = dict(metadata)
    for name in ("messages", "streams", "offsets", "participants"):
        merged[name] = [*base.values[name], *delta[f"{name}_append"]]
    for name, prefix in (
        ("sequence_by_partition", "sequence"),
        ("request_assignments", "request_assignment"),
    ):
        found = {**base.values[name], **delta[f"{prefix}_updates"]}
        for key in delta[f"{prefix}_deletes"]:
            found.pop(key, None)
        merged[name] = found
    return Transaction(merged)


def _json_invalid(reason: str) -> FormatError:
    return FormatError("journal_payload_json_invalid", reason)


def _check_case(value: Mapping[str, JsonValue], names: Sequence[str]) -> None:
    known = {name.lower(): name for name in names}
    for key in value:
        spelled = known.get(key.lower())
        if spelled is not None and spelled != key:
            raise FormatError(
                "journal_payload_unknown_field",
                f'member "{canonical_json.shorten(key)}" should be spelled "{spelled}"',
                field=key,
            )


def _optional(value: JsonValue, members: Sequence[_Member], name: str) -> Values | None:
    return None if value is None else _object(value, members, name)


def _object(value: JsonValue, members: Sequence[_Member], name: str) -> Values:
    if value is None:
        value = {}
    if not isinstance(value, dict):
        raise _json_invalid(f"{name} is not an object")
    _check_case(value, [member.name for member in members])
    return {member.name: _member(member, value.get(member.name)) for member in members}


def _member(member: _Member, value: JsonValue) -> Any:
    if member.kind is not None:
        return _scalar(member.kind, value, member.name)
    if member.inner is not None:
        return _object(value, member.inner, member.name)
    if member.map_of is not None:
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise _json_invalid(f"{member.name} is not an object")
        inner = member.map_of
        if isinstance(inner, str):
            return {key: _scalar(inner, item, member.name) for key, item in value.items()}
        return {key: _object(item, inner, member.name) for key, item in value.items()}
    if value is None:
        return []
    if not isinstance(value, list):
        raise _json_invalid(f"{member.name} is not an array")
    if member.strings:
        return [_scalar("string", item, member.name) for item in value]
    return [_object(item, member.items or (), member.name) for item in value]


def _scalar(kind: Kind, value: JsonValue, name: str) -> Any:
    if kind == "string":
        if value is None:
            return ""
        if isinstance(value, str):
            return value
    elif kind == "bool":
        if value is None or isinstance(value, bool):
            return bool(value)
    elif kind == "time":
        if value is None:
            return timestamps.ZERO
        if isinstance(value, str):
            try:
                return timestamps.parse(value)
            except ValueError as error:
                raise _json_invalid(f"{name}: {error}") from None
    elif kind == "base64":
        if value is None:
            return None
        if isinstance(value, str):
            try:
                return base64.b64decode(value, validate=True)
            except (binascii.Error, ValueError):
                raise _json_invalid(f"{name} is not base64") from None
    elif value is None:
        return 0
    elif isinstance(value, Number):
        try:
            return value.as_int(*_RANGES[kind])
        except ValueError as error:
            raise _json_invalid(f"{name}: {error}") from None
    raise _json_invalid(f"{name} is not of type {kind}")


# -- writing -------------------------------------------------------------------


def transaction(**values: Any) -> Transaction:
    """A state from its members; those not given are zero."""
    return Transaction({**_object({}, _SNAPSHOT, "transaction"), **values})


def message(**values: Any) -> Values:
    """A staged record's ``Message`` from its members; those not given are zero."""
    return {**_object({}, _MESSAGE, "Message"), **values}


def written(state: Transaction, *, later: bool = False) -> dict[str, Writable]:
    """The members of a snapshot that are written, in order."""
    return _written(state.values, _SNAPSHOT, later)


def _written(
    values: Mapping[str, Any], members: Sequence[_Member], later: bool
) -> dict[str, Writable]:
    found: dict[str, Writable] = {}
    for member in members:
        value = values[member.name]
        if member.later and not later:
            continue
        if member.omit and not value:
            continue
        found[member.name] = _written_member(member, value, later)
    return found


def _written_member(member: _Member, value: Any, later: bool) -> Writable:
    if member.kind == "time":
        return timestamps.canonical(value)
    if member.kind == "base64":
        return None if value is None else base64.b64encode(value).decode("ascii")
    if member.inner is not None:
        return _written(value, member.inner, later)
    if member.map_of is not None:
        ordered = sorted(value.items(), key=lambda item: item[0].encode("utf-8", "replace"))
        if isinstance(member.map_of, str):
            return dict(ordered)
        return {key: _written(item, member.map_of, later) for key, item in ordered}
    if member.items is not None:
        return [_written(item, member.items, later) for item in value]
    return value  # type: ignore[no-any-return]


def encode_payload(state: Transaction) -> bytes:
    """Version-1 payload. Raises :class:`FormatError` ``journal_payload_too_large``."""
    data = canonical_json.compact({"version": VERSION, "transaction": written(state)})
    if len(data) > MAX_PAYLOAD_BYTES:
        raise FormatError(
            "journal_payload_too_large", f"payload of {len(data)} bytes is over 32 MiB"
        )
    return data


def encode_frame(state: Transaction) -> bytes:
    """A whole version-1 frame."""
    payload = encode_payload(state)
    return struct.pack(">I", len(payload)) + payload + struct.pack(">I", checksum(payload))


# -- the journal manifest of later releases --------------------------------------


@dataclass(frozen=True, slots=True)
class JournalManifest:
    """What ``__transaction_state.manifest`` says; derived, never read by a broker."""

    version: int
    state: str
    journal_size: int
    record_count: int
    latest_transactions: int
    next_producer_epoch: int
    has_producer_epoch_watermark: bool
    checksum_ok: bool


_MANIFEST: Final = (
    _Member("version", "i64"),
    _Member("state", "string"),
    _Member("journal_size", "i64"),
    _Member("record_count", "i64"),
    _Member("latest_transactions", "i64"),
    _Member("next_producer_epoch", "u64"),
    _Member("has_producer_epoch_watermark", "bool"),
    _Member("checksum", "u32"),
)


def decode_manifest(data: bytes) -> JournalManifest:
    """Raises :class:`FormatError` ``journal_manifest_json_invalid``."""

    try:
        values = _object(canonical_json.parse(data), _MANIFEST, "the journal manifest")
    except FormatError as error:
        raise FormatError(
            "journal_manifest_json_invalid", error.message, position=error.position
        ) from None
    stored = values.pop("checksum")
    plain = canonical_json.compact({**values, "checksum": 0})
    return JournalManifest(**values, checksum_ok=stored == google_crc32c.value(plain))
