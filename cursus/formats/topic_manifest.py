"""The topic manifest, ``__topic_metadata.json``, version 3.

One JSON object, UTF-8, two-space indentation, one newline at the end::

    {
      "version": 3,
      "topics": [                       sorted by name, byte order; [] when empty
        {
          "name": "orders",             1-249 bytes of A-Z a-z 0-9 . _ - =
          "revision": 1,                u64, at least 1: counts definition changes
          "lifecycle_epoch": 1,         u64, at least 1: counts generations of the data
          "partitions": 1,              i64, at least 1
          "replication_factor": 1,      i64, at least 1
          "idempotent": false,
          "event_sourcing": false,
          "policy": {
            "retention_hours": 24,          only when not 0 (0 = broker default)
            "retention_bytes": 1073741824,  only when not 0
            "cleanup_policy": "delete",     delete | compact | delete,compact
            "partitioner": "hash_key",      hash_key | round_robin
            "auth_policy": "open",          open | deny_write | deny_read | acl
            "read_acl": ["alice"],          only when not empty
            "write_acl": ["alice"],         only when not empty
            "min_in_sync_replicas": 1       only when present
          }
        }
      ]
    }

At most 16 MiB. Unknown fields, keys in another case, duplicate keys, numbers
with a fraction and anything behind the value are refused. Versions 1 and 2 are
recognised as evidence (:func:`topic_names`), never read as state.

Source: manifest.md sections 2, 3, 5.1, 6; README.md decisions 16, 30.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Any, Final, TypeVar

from cursus import layout
from cursus.findings import FormatError
from cursus.formats import canonical_json
from cursus.formats.canonical_json import INT64, UINT64, JsonError, JsonValue, Number, Writable

VERSION: Final = 3
MAX_BYTES: Final = 16_777_216
INTERNAL_TOPIC: Final = "__consumer_offsets"
DEFAULT_PARTITIONS: Final = 4
DEFAULT_REPLICATION_FACTOR: Final = 3

_NAME: Final = re.compile("[A-Za-z0-9._=-]*")
#: White space of the reference's trimming: Python's, without U+001C to U+001F.
_SPACE: Final = "".join(
    chr(code)
    for code in (*range(0x09, 0x0E), 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B),
                 0x2028, 0x2029, 0x202F, 0x205F, 0x3000)
)  # fmt: skip
_PARTITIONERS: Final = ("hash_key", "round_robin")
_AUTH_POLICIES: Final = ("open", "deny_write", "deny_read", "acl")
#: Names that collide with files of the broker; a loaded manifest may hold them, CREATE refuses.
RESERVED_NAMES: Final = frozenset(
    {
        layout.MANIFEST,
        layout.temporary(layout.MANIFEST),
        layout.JOURNAL,
        layout.LOG_DIR_LOCK,
        layout.RAFT,
    }
)


Judged = TypeVar("Judged")


@dataclass(frozen=True, slots=True)
class Policy:
    """What happens to the records of a topic. ``min_in_sync_replicas`` may be absent."""

    retention_hours: int = 0
    retention_bytes: int = 0
    cleanup_policy: str = "delete"
    partitioner: str = "hash_key"
    auth_policy: str = "open"
    read_acl: tuple[str, ...] = ()
    write_acl: tuple[str, ...] = ()
    min_in_sync_replicas: int | None = None


INTERNAL_POLICY: Final = Policy(cleanup_policy="compact")


@dataclass(frozen=True, slots=True)
class TopicDefinition:
    """One topic. Zero means "absent" for the numbers of a definition that was not normalised."""

    name: str = ""
    revision: int = 0
    lifecycle_epoch: int = 0
    partitions: int = 0
    replication_factor: int = 0
    idempotent: bool = False
    event_sourcing: bool = False
    policy: Policy = field(default_factory=Policy)


@dataclass(frozen=True, slots=True)
class Manifest:
    """A decoded manifest: definitions sorted by name."""

    definitions: tuple[TopicDefinition, ...]


def trim(text: str) -> str:
    """``text`` without the white space around it, as the reference trims."""
    return text.strip(_SPACE)


# -- rules ---------------------------------------------------------------------


def check_topic_name(name: str) -> None:
    """Raises :class:`FormatError` with the codes of manifest.md section 2.1."""
    if not name:
        raise FormatError("topic_name_empty", "topic name is empty")
    if len(name.encode("utf-8", "surrogateescape")) > 249:
        raise FormatError("topic_name_too_long", "topic name has more than 249 bytes")
    if name in {".", ".."}:
        raise FormatError("topic_name_reserved", f'topic name "{name}" is reserved')
    if not _NAME.fullmatch(name):
        raise FormatError(
            "topic_name_invalid_character",
            "topic name holds a character outside A-Z a-z 0-9 . _ - =",
        )


def normalize_cleanup_policy(value: str) -> str:
    """Canonical cleanup policy. Raises :class:`FormatError` ``cleanup_policy_invalid``."""
    parts = {part.strip(_SPACE) for part in value.strip(_SPACE).lower().split(",")}
    if not parts <= {"delete", "compact"}:
        raise FormatError(
            "cleanup_policy_invalid",
            f'cleanup policy "{canonical_json.shorten(value)}" is not delete, compact or both',
        )
    return ",".join(name for name in ("delete", "compact") if name in parts)


def _choice(value: str, allowed: tuple[str, ...], code: str) -> str:
    if value == "":
        return allowed[0]
    found = value.strip(_SPACE).lower()
    if found not in allowed:
        raise FormatError(code, f'"{canonical_json.shorten(value)}" is not one of {allowed}')
    return found


def normalize_policy(policy: Policy) -> Policy:
    """Canonical spelling and checked ranges (manifest.md section 2.2, item 5)."""
    cleanup = normalize_cleanup_policy(policy.cleanup_policy) if policy.cleanup_policy else "delete"
    partitioner = _choice(policy.partitioner, _PARTITIONERS, "partitioner_invalid")
    auth = _choice(policy.auth_policy, _AUTH_POLICIES, "auth_policy_invalid")
    if policy.retention_hours < 0:
        raise FormatError("retention_hours_negative", "retention_hours is negative")
    if policy.retention_bytes < 0:
        raise FormatError("retention_bytes_negative", "retention_bytes is negative")
    if policy.min_in_sync_replicas is not None and policy.min_in_sync_replicas < 1:
        raise FormatError("min_in_sync_replicas_invalid", "min_in_sync_replicas is below 1")
    return replace(policy, cleanup_policy=cleanup, partitioner=partitioner, auth_policy=auth)


def normalize(definition: TopicDefinition) -> TopicDefinition:
    """One definition by the order of manifest.md section 2.2; the first violation is raised."""
    check_topic_name(definition.name)
    if definition.partitions <= 0:
        raise FormatError(
            "partitions_invalid",
            f'topic "{definition.name}" has {definition.partitions} partitions',
        )
    if definition.replication_factor < 0:
        raise FormatError("replication_factor_invalid", "replication factor is negative")
    policy = normalize_policy(definition.policy)
    if (
        definition.event_sourcing
        and definition.name != INTERNAL_TOPIC
        and (policy.retention_hours > 0 or policy.retention_bytes > 0)
    ):
        raise FormatError(
            "event_topic_retention_forbidden",
            f'event-sourcing topic "{definition.name}" has a retention limit',
        )
    return replace(
        definition,
        replication_factor=definition.replication_factor or DEFAULT_REPLICATION_FACTOR,
        revision=definition.revision or 1,
        lifecycle_epoch=definition.lifecycle_epoch or 1,
        policy=policy,
    )


def check_internal_contract(definition: TopicDefinition) -> None:
    """``__consumer_offsets`` has a fixed mode and policy (manifest.md section 2.3)."""
    if definition.name != INTERNAL_TOPIC:
        return
    if definition.idempotent or definition.event_sourcing:
        raise FormatError(
            "internal_topic_contract_mismatch",
            "internal topic must be neither idempotent nor event-sourcing",
            mode=True,
        )
    if definition.policy != INTERNAL_POLICY:
        raise FormatError(
            "internal_topic_contract_mismatch",
            "internal topic does not have its fixed policy",
            mode=False,
        )


def check_compaction(definition: TopicDefinition) -> None:
    """Raises ``event_topic_compaction_forbidden``: history must stay complete."""
    if definition.event_sourcing and "compact" in definition.policy.cleanup_policy:
        raise FormatError(
            "event_topic_compaction_forbidden",
            f'event-sourcing topic "{definition.name}" is compacted',
        )


# -- reading -------------------------------------------------------------------


def decode(data: bytes, *, whole_definition_rules: bool = True) -> Manifest:
    """Decode a version-3 manifest.

    ``whole_definition_rules`` adds the internal contract and the compaction
    rule, as the inspector and every save do; the broker's own load leaves them
    to the restore (manifest.md sections 2.2 and 3.1). Raises
    :class:`FormatError` with the codes of section 3.1; its ``position`` is a
    byte of ``data``: of what cannot be read, of what follows, or of the object
    that breaks a rule (``None`` for the document as a whole).
    """
    if len(data) > MAX_BYTES:
        raise FormatError("manifest_too_large", f"manifest is over {MAX_BYTES} bytes")
    value, end = _first_value(data)
    root = _fields(value, ("version", "topics"), "the manifest")
    version = _integer(root.get("version"), INT64, "version")
    listed = root.get("topics")
    if listed is not None and not isinstance(listed, list):
        raise _wrong_type("topics", "an array")
    items = listed or []
    raw = [
        _at(data, items, number, partial(_definition, item)) for number, item in enumerate(items)
    ]
    if end != len(data):
        raise FormatError(
            "manifest_trailing_content",
            f"{len(data) - end} bytes follow the manifest",
            position=end,
            length=len(data) - end,
        )
    if version != VERSION:
        raise FormatError(
            "manifest_version_unsupported",
            f"unsupported topic metadata version {version}; clean bootstrap required",
            version=version,
        )
    # The inspector looks at the required numbers of all topics first, a broker topic by topic.
    if whole_definition_rules:
        for number, definition in enumerate(raw):
            _at(data, items, number, partial(_check_required, definition))
    seen: dict[str, TopicDefinition] = {}
    for number, definition in enumerate(raw):
        _at(data, items, number, partial(_take, definition, seen, whole_definition_rules))
    return Manifest(tuple(seen[name] for name in sorted(seen)))


def _at(
    data: bytes,
    items: list[JsonValue],
    number: int,
    judge: Callable[[], Judged],
) -> Judged:
    """Judge one definition; what it violates is said with its number and its first byte."""
    try:
        return judge()
    except FormatError as error:
        position = None
        if isinstance(items[number], dict):
            before = sum(isinstance(item, dict) for item in items[:number])
            starts = canonical_json.object_starts(data, 3)
            position = next(islice(starts, before, None), None)
        text = f"topics[{number}]: {error.message}"
        raise FormatError(error.code, text, position=position, **error.detail) from None


def _check_required(definition: TopicDefinition) -> None:
    required: tuple[tuple[str, Callable[[TopicDefinition], int]], ...] = (
        ("topic_revision_missing", lambda item: item.revision),
        ("topic_replication_factor_missing", lambda item: item.replication_factor),
        ("topic_lifecycle_epoch_missing", lambda item: item.lifecycle_epoch),
    )
    for code, value in required:
        if value(definition) == 0:
            name = canonical_json.shorten(definition.name)
            raise FormatError(
                code, f'topic "{name}": {code.removeprefix("topic_").replace("_", " ")}'
            )


def _take(definition: TopicDefinition, seen: dict[str, TopicDefinition], whole: bool) -> None:
    if not whole:
        _check_required(definition)
    found = normalize(definition)
    if whole:
        check_internal_contract(found)
    if found.name in seen:
        raise FormatError("topic_duplicate", f'topic "{found.name}" is declared twice')
    if whole:
        check_compaction(found)
    seen[found.name] = found


def _first_value(data: bytes) -> tuple[JsonValue, int]:
    try:
        return canonical_json.parse_prefix(data)
    except JsonError as error:
        code = "duplicate_key" if error.kind == "duplicate_key" else "manifest_json_invalid"
        raise FormatError(code, error.message, position=error.position) from None


def _wrong_type(name: str, wanted: str) -> FormatError:
    return FormatError("manifest_json_invalid", f"{name} is not {wanted}", field=name)


def _fields(value: JsonValue, known: tuple[str, ...], what: str) -> dict[str, JsonValue]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise _wrong_type(what, "an object")
    for key in value:
        if key not in known:
            raise FormatError(
                "manifest_unknown_field",
                f'unknown field "{canonical_json.shorten(key)}" in {what}',
                field=key,
            )
    return value


def _integer(value: JsonValue, limits: tuple[int, int], name: str) -> int:
    if value is None:
        return 0
    if not isinstance(value, Number):
        raise _wrong_type(name, "an integer")
    try:
        return value.as_int(*limits)
    except ValueError as error:
        raise FormatError("manifest_json_invalid", f"{name}: {error}", field=name) from None


def _string(value: JsonValue, name: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise _wrong_type(name, "a string")
    return value


def _boolean(value: JsonValue, name: str) -> bool:
    if value is None:
        return False
    if not isinstance(value, bool):
        raise _wrong_type(name, "a boolean")
    return value


def _strings(value: JsonValue, name: str) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list):
        raise _wrong_type(name, "an array")
    return tuple(_string(item, f"an entry of {name}") for item in value)


_DEFINITION_FIELDS = (
    "name",
    "revision",
    "lifecycle_epoch",
    "partitions",
    "replication_factor",
    "idempotent",
    "event_sourcing",
    "policy",
)
_POLICY_FIELDS = (
    "retention_hours",
    "retention_bytes",
    "cleanup_policy",
    "partitioner",
    "auth_policy",
    "read_acl",
    "write_acl",
    "min_in_sync_replicas",
)


def _definition(value: JsonValue) -> TopicDefinition:
    found = _fields(value, _DEFINITION_FIELDS, "a topic")
    return TopicDefinition(
        name=_string(found.get("name"), "name"),
        revision=_integer(found.get("revision"), UINT64, "revision"),
        lifecycle_epoch=_integer(found.get("lifecycle_epoch"), UINT64, "lifecycle_epoch"),
        partitions=_integer(found.get("partitions"), INT64, "partitions"),
        replication_factor=_integer(found.get("replication_factor"), INT64, "replication_factor"),
        idempotent=_boolean(found.get("idempotent"), "idempotent"),
        event_sourcing=_boolean(found.get("event_sourcing"), "event_sourcing"),
        policy=_policy(found.get("policy")),
    )


def _policy(value: JsonValue) -> Policy:
    found = _fields(value, _POLICY_FIELDS, "a policy")
    replicas = found.get("min_in_sync_replicas")
    return Policy(
        retention_hours=_integer(found.get("retention_hours"), INT64, "retention_hours"),
        retention_bytes=_integer(found.get("retention_bytes"), INT64, "retention_bytes"),
        cleanup_policy=_string(found.get("cleanup_policy"), "cleanup_policy"),
        partitioner=_string(found.get("partitioner"), "partitioner"),
        auth_policy=_string(found.get("auth_policy"), "auth_policy"),
        read_acl=_strings(found.get("read_acl"), "read_acl"),
        write_acl=_strings(found.get("write_acl"), "write_acl"),
        min_in_sync_replicas=(
            None if replicas is None else _integer(replicas, INT64, "min_in_sync_replicas")
        ),
    )


def topic_names(data: bytes) -> tuple[int | None, tuple[str, ...]]:
    """Version and topic names of a manifest of any version, as evidence.

    For a manifest that :func:`decode` refuses. Never raises; what cannot be
    told is left out.
    """
    try:
        value, _ = canonical_json.parse_prefix(data[: MAX_BYTES + 1])
    except JsonError:
        return None, ()
    if not isinstance(value, dict):
        return None, ()
    version: int | None = None
    found = value.get("version")
    if isinstance(found, Number):
        try:
            version = found.as_int(*INT64)
        except ValueError:
            version = None
    listed = value.get("topics")
    names = {
        name
        for item in (listed if isinstance(listed, list) else [])
        if isinstance(item, dict) and isinstance(name := item.get("name"), str)
    }
    return version, tuple(sorted(names, key=lambda name: name.encode("utf-8", "surrogatepass")))


# -- writing -------------------------------------------------------------------


def encode(definitions: Iterable[TopicDefinition]) -> bytes:
    """Canonical bytes of a manifest; normalises, checks every rule and sorts first.

    Raises :class:`FormatError`.
    """
    checked: dict[str, TopicDefinition] = {}
    for definition in definitions:
        found = normalize(definition)
        check_internal_contract(found)
        if found.name in checked:
            raise FormatError("topic_duplicate", f'topic "{found.name}" is declared twice')
        check_compaction(found)
        checked[found.name] = found
    data = canonical_json.pretty(
        {"version": VERSION, "topics": [_written(checked[name]) for name in sorted(checked)]}
    )
    if len(data) > MAX_BYTES:
        raise FormatError("manifest_too_large", f"manifest is over {MAX_BYTES} bytes")
    return data


def _written(definition: TopicDefinition) -> Mapping[str, Writable]:
    return {
        "name": definition.name,
        "revision": definition.revision,
        "lifecycle_epoch": definition.lifecycle_epoch,
        "partitions": definition.partitions,
        "replication_factor": definition.replication_factor,
        "idempotent": definition.idempotent,
        "event_sourcing": definition.event_sourcing,
        "policy": written_policy(definition.policy),
    }


def written_policy(policy: Policy) -> Mapping[str, Writable]:
    """The fields of a policy that are written, in order."""
    found: dict[str, Writable] = {}
    if policy.retention_hours:
        found["retention_hours"] = policy.retention_hours
    if policy.retention_bytes:
        found["retention_bytes"] = policy.retention_bytes
    found["cleanup_policy"] = policy.cleanup_policy
    found["partitioner"] = policy.partitioner
    found["auth_policy"] = policy.auth_policy
    if policy.read_acl:
        found["read_acl"] = policy.read_acl
    if policy.write_acl:
        found["write_acl"] = policy.write_acl
    if policy.min_in_sync_replicas is not None:
        found["min_in_sync_replicas"] = policy.min_in_sync_replicas
    return found


# -- patches -------------------------------------------------------------------


def patch(
    current: TopicDefinition | None, name: str, given: Mapping[str, Any]
) -> tuple[TopicDefinition, bool]:
    """Apply a create request to a topic; returns the definition and whether it changed.

    ``given`` holds only the fields of the request (manifest.md section 5.1):
    zero, false and empty lists are given values. Raises :class:`FormatError`
    with the first violated rule.
    """
    base = (
        normalize(current)
        if current is not None
        else TopicDefinition(
            name=name,
            revision=1,
            lifecycle_epoch=1,
            partitions=DEFAULT_PARTITIONS,
            replication_factor=DEFAULT_REPLICATION_FACTOR,
        )
    )
    changes: dict[str, Any] = {}
    if "partitions" in given:
        if given["partitions"] <= 0:
            raise FormatError("partitions_invalid", "the number of partitions must be positive")
        if current is not None and given["partitions"] < base.partitions:
            raise FormatError("partitions_decrease_forbidden", "a topic cannot lose partitions")
        changes["partitions"] = given["partitions"]
    if "replication_factor" in given:
        if given["replication_factor"] <= 0:
            raise FormatError("replication_factor_invalid", "replication factor must be positive")
        if current is not None and given["replication_factor"] != base.replication_factor:
            raise FormatError("replication_factor_immutable", "replication factor cannot change")
        changes["replication_factor"] = given["replication_factor"]
    for name_, code in (
        ("idempotent", "idempotent_immutable"),
        ("event_sourcing", "event_sourcing_immutable"),
    ):
        if name_ in given:
            if current is not None and given[name_] != getattr(base, name_):
                raise FormatError(code, f"{name_} cannot change")
            changes[name_] = given[name_]
    policy: dict[str, Any] = {
        key: tuple(value) if key in {"read_acl", "write_acl"} else value
        for key, value in given.items()
        if key in _POLICY_FIELDS
    }
    result = normalize(replace(base, **changes, policy=replace(base.policy, **policy)))
    check_internal_contract(result)
    check_compaction(result)
    if current is None:
        return result, True
    if result == base:
        return base, False
    if base.revision == UINT64[1]:
        raise FormatError("revision_overflow", "the revision of the topic cannot grow any more")
    return replace(result, revision=base.revision + 1), True
