"""Golden vectors of the records in ``__consumer_offsets``."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from cursus.findings import CATALOGUE, FormatError
from cursus.formats import consumer_metadata as cm
from cursus.formats import timestamps

GOLDEN = Path(__file__).resolve().parent.parent / "fixtures" / "golden"
VECTORS: dict[str, Any] = json.loads(
    (GOLDEN / "consumer-metadata" / "vectors.json").read_text("utf-8")
)
OVERRIDES = {
    item["name"]: item["code"]
    for item in json.loads((GOLDEN / "overrides.json").read_text("utf-8"))["overrides"]
    if item["topic"] == "consumer-metadata"
}


def each(section: str) -> Any:
    items = VECTORS[section]
    names = [str(item.get("name", number)) for number, item in enumerate(items)]
    return pytest.mark.parametrize("vector", items, ids=names)


def payload_of(vector: dict[str, Any]) -> bytes:
    if "payload_base64" in vector:
        return base64.b64decode(vector["payload_base64"])
    return str(vector["payload"]).encode("utf-8", "surrogatepass")


def record_of(value: dict[str, Any]) -> cm.ConsumerRecord:
    def items(listed: list[dict[str, int]] | None) -> tuple[cm.OffsetItem, ...]:
        return tuple(cm.OffsetItem(i["partition"], i["offset"]) for i in listed or ())

    return cm.ConsumerRecord(
        version=value.get("version", 0),
        type=value.get("type", ""),
        group=value.get("group", ""),
        topic=value.get("topic", ""),
        partition_count=value.get("partition_count", 0),
        epoch=value.get("epoch", 0),
        revision=value.get("revision", 0),
        offsets=items(value.get("offsets")),
        initial_offsets=tuple(
            cm.TopicSnapshot(i["topic"], i["revision"], items(i["offsets"]))
            for i in value.get("initial_offsets") or ()
        ),
        timestamp=timestamps.parse(value.get("timestamp", timestamps.ZERO_TEXT)),
    )


@each("decode_accept")
def test_accepted_payload(vector: dict[str, Any]) -> None:
    if vector["name"] in OVERRIDES:
        with pytest.raises(FormatError) as error:
            cm.decode(payload_of(vector))
        assert error.value.code == OVERRIDES[vector["name"]]
        return
    record = cm.decode(payload_of(vector))
    assert cm.encode(record).decode() == vector["canonical_payload"]
    assert record.key() == vector["key"]


@each("decode_reject")
def test_rejected_payload(vector: dict[str, Any]) -> None:
    with pytest.raises(FormatError) as error:
        cm.decode(payload_of(vector))
    assert error.value.code == vector["code"]
    assert error.value.code in CATALOGUE
    if vector.get("error_text_normative"):
        assert error.value.message == vector.get("error", vector.get("reference_error"))


@each("encode")
def test_encoding_is_byte_identical(vector: dict[str, Any]) -> None:
    record = record_of(vector["record"])
    data = cm.encode(record)
    assert data.hex() == vector["payload_hex"]
    assert record.key() == vector["key"]
    assert cm.partition_of(record.key(), 4) == vector["partition_of_4"]


@each("encode_reject")
def test_rejected_encoding(vector: dict[str, Any]) -> None:
    if vector["name"] == "timestamp_year_10000":  # given in words
        last = timestamps.parse("9999-12-31T23:59:59Z")
        record = cm.ConsumerRecord(cm.TOMBSTONE, "g", 2, timestamp=last + timestamps.SECOND)
        with pytest.raises(FormatError) as late:
            cm.encode(record)
        assert late.value.code == vector["code"]
        return
    with pytest.raises(FormatError) as error:
        cm.encode(record_of(vector["record"]))
    assert error.value.code == vector["code"]
    assert error.value.message == vector["error"]


def test_group_name_that_is_not_utf8_cannot_be_found_again() -> None:
    vector = VECTORS["invalid_utf8_group"]
    assert cm.group_key(base64.b64decode(vector["group_base64"])) == vector["key"]
    assert cm.decode(payload_of(vector)).key() == vector["key_after_decode"]


@each("keys")
def test_key_and_partition(vector: dict[str, Any]) -> None:
    group = vector["group"]
    key = (
        cm.group_key(group) if vector["kind"] == "group" else cm.offset_key(group, vector["topic"])
    )
    assert key == vector["key"]
    assert f"{cm.fnv1a64(key.encode()):016x}" == vector["fnv1a64"]
    for count, partition in vector["partition_by_count"].items():
        assert cm.partition_of(key, int(count)) == partition


@each("topic_match")
def test_topic_match(vector: dict[str, Any]) -> None:
    assert cm.topic_matches(vector["pattern"], vector["topic"]) is vector["match"]


def test_hostile_patterns_do_not_explode() -> None:
    assert not cm.topic_matches("*a" * 200 + "b", "a" * 400)
    assert cm.topic_matches("*" * 5000, "a" * 5000)
    assert not cm.topic_matches("a*", "a\nb")
    assert cm.topic_matches("a*\n*b", "aXX\nYb")


@each("internal_partition_count")
def test_internal_partition_count(vector: dict[str, Any]) -> None:
    assert cm.internal_partitions(vector["groups"]) == vector["partitions"]


@each("unversioned_classification")
def test_unversioned_shape(vector: dict[str, Any]) -> None:
    shape, items = cm.classify_unversioned(payload_of(vector))
    assert shape == vector["shape"]
    assert [{"partition": i.partition, "offset": i.offset} for i in items] == vector.get(
        "offsets", []
    )


def test_placement_of_a_later_version_is_named() -> None:
    payload = (
        b'{"version":4,"type":"group_lifecycle_snapshot","group":"g","epoch":1,"lifecycle":{}}'
    )
    with pytest.raises(FormatError) as error:
        cm.decode(payload)
    assert error.value.code == "unknown_field"
    assert error.value.detail["newer_version"] == 4
    assert error.value.detail["newer_type"] == "group_lifecycle_snapshot"
