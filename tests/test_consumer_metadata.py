"""Golden vectors of the records in ``__consumer_offsets``."""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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


def each(section: str) -> pytest.MarkDecorator:
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


@pytest.mark.parametrize(
    "vector",
    [v for v in VECTORS["encode"] if v["record"]["type"] == cm.SNAPSHOT],
    ids=lambda v: str(v["name"]),
)
def test_snapshots_in_a_row_are_byte_identical(vector: dict[str, Any]) -> None:
    record = record_of(vector["record"])
    writer = cm.SnapshotWriter(record.group, record.topic, record.epoch)
    offsets = {item.partition: item.offset for item in record.offsets}
    assert writer.encode(record.revision, offsets, record.timestamp) == payload_of(vector)
    assert writer.key.decode() == vector["key"]
    assert writer.key_hash % 4 == vector["partition_of_4"]


@settings(max_examples=300, deadline=None)
@given(
    group=st.text(st.characters(exclude_categories=["Cs"]), min_size=1),
    topic=st.text(st.characters(exclude_categories=["Cs"]), min_size=1),
    epoch=st.integers(1, 2**64 - 1),
    revision=st.integers(1, 2**64 - 1),
    offsets=st.dictionaries(st.integers(0, 2**63 - 1), st.integers(0, 2**64 - 1), min_size=1),
    timestamp=st.integers(0, timestamps.parse("9999-12-31T23:59:59Z")),
)
def test_a_writer_of_snapshots_writes_what_is_read(
    group: str, topic: str, epoch: int, revision: int, offsets: dict[int, int], timestamp: int
) -> None:
    data = cm.SnapshotWriter(group, topic, epoch).encode(revision, offsets, timestamp)
    found = cm.decode(data)
    assert (found.type, found.group, found.topic) == (cm.SNAPSHOT, group, topic)
    assert (found.epoch, found.revision, found.timestamp) == (epoch, revision, timestamp)
    assert [(item.partition, item.offset) for item in found.offsets] == sorted(offsets.items())
    assert data == cm.encode(found)


@pytest.mark.parametrize(
    ("revision", "offsets", "timestamp", "code"),
    [
        (0, {0: 1}, 0, "snapshot_missing_fields"),
        (1, {}, 0, "snapshot_missing_fields"),
        (1, {0: 1, -1: 1}, 0, "negative_offset_partition"),
        (1, {0: 1}, 10**30, "timestamp_out_of_range"),
    ],
)
def test_a_writer_of_snapshots_refuses_what_nobody_would_read(
    revision: int, offsets: dict[int, int], timestamp: int, code: str
) -> None:
    with pytest.raises(FormatError) as error:
        cm.SnapshotWriter("g", "t", 1).encode(revision, offsets, timestamp)
    assert error.value.code == code


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


def test_topic_match_agrees_with_regular_expressions_on_every_short_pattern() -> None:
    """The reference compiles the pattern; each pattern of four characters on each topic."""
    texts = ["".join(t) for n in range(5) for t in itertools.product("ab\n", repeat=n)]
    for length in range(5):
        for characters in itertools.product("ab*?", repeat=length):
            pattern = "".join(characters)
            wanted = re.compile(pattern.replace("*", ".*").replace("?", "."))
            for text in texts:
                assert cm.topic_matches(pattern, text) is bool(wanted.fullmatch(text)), (
                    pattern,
                    text,
                )


def test_hostile_patterns_do_not_explode() -> None:
    assert not cm.topic_matches("*a" * 200 + "b", "a" * 400)
    assert cm.topic_matches("*" * 5000, "a" * 5000)
    half = 500_000
    assert not cm.topic_matches("*" + "a" * half + "b", "a" * 2 * half)
    assert cm.topic_matches("*" + "a" * half + "*", "a" * 2 * half)
    assert not cm.topic_matches("a*", "a\nb")
    assert cm.topic_matches("a*\n*b", "aXX\nYb")


@each("internal_partition_count")
def test_internal_partition_count(vector: dict[str, Any]) -> None:
    assert cm.internal_partitions(vector["groups"]) == vector["partitions"]


@each("unversioned_classification")
def test_unversioned_shape(vector: dict[str, Any]) -> None:
    found = cm.decode_unversioned(payload_of(vector))
    assert found.shape == vector["shape"]
    assert [{"partition": i.partition, "offset": i.offset} for i in found.offsets] == vector.get(
        "offsets", []
    )


def test_unversioned_record_keeps_its_names_and_its_local_time() -> None:
    found = cm.decode_unversioned(
        b'{"group":"reports","topic":"orders","offsets":[{"partition":2,"offset":14}],'
        b'"timestamp":"2026-04-20T10:28:57.416019123+09:00"}'
    )
    assert (found.shape, found.group, found.topic) == ("bulk", "reports", "orders")
    assert found.offsets == (cm.OffsetItem(2, 14),)
    assert found.timestamp_text == "2026-04-20T10:28:57.416019123+09:00"


def test_a_timestamp_is_kept_as_it_was_written_and_changes_nothing() -> None:
    body = '{"version":1,"type":"group_tombstone","group":"g","epoch":2,"timestamp":"%s"}'
    one = cm.decode((body % "2026-09-02T02:00:00.5000+02:00").encode())
    other = cm.decode((body % "2026-09-02T00:00:00.5Z").encode())
    assert one.timestamp_text == "2026-09-02T02:00:00.5000+02:00"
    assert one == other
    assert cm.encode(one) == cm.encode(other)


LATER = {
    "2 registration": (
        b'{"version":2,"type":"group_registration","group":"g","topics":["a","b"],'
        b'"topic_partitions":[{"topic":"a","partition":0},{"topic":"b","partition":1}],"epoch":3}',
        cm.LaterRecord(
            2,
            "group_registration",
            "g",
            epoch=3,
            topics=("a", "b"),
            topic_partitions=(("a", 0), ("b", 1)),
            key=cm.group_key("g"),
        ),
    ),
    "3 transactional": (
        b'{"version":3,"type":"transactional_offset_snapshot","group":"g","topic":"t","epoch":1,'
        b'"revision":4,"offsets":[{"partition":0,"offset":9}],"transactional_id":"x",'
        b'"producer_id":"p","producer_epoch":7,"coordinator_epoch":2}',
        cm.LaterRecord(
            3,
            "transactional_offset_snapshot",
            "g",
            "t",
            epoch=1,
            revision=4,
            offsets=(cm.OffsetItem(0, 9),),
            transactional_id="x",
            producer_id="p",
            producer_epoch=7,
            coordinator_epoch=2,
            key="cursus.consumer.txn-offset.v1." + hashlib.sha256(b"g\0t\0x\x007").hexdigest(),
        ),
    ),
    "4 lifecycle": (
        b'{"version":4,"type":"group_lifecycle_snapshot","group":"g","epoch":1,"revision":6,'
        b'"lifecycle":{"topic_pattern":"o*","generation":6,"members":{"m-1":{},"m-2":{}}}}',
        cm.LaterRecord(
            4,
            "group_lifecycle_snapshot",
            "g",
            "o*",
            epoch=1,
            revision=6,
            generation=6,
            members=("m-1", "m-2"),
            key="cursus.consumer.lifecycle.v1." + hashlib.sha256(b"g").hexdigest(),
        ),
    ),
    "5 reservations": (
        b'{"version":5,"type":"offset_reservations","group":"g","epoch":1,'
        b'"reservations":[{"transactional_id":"x"},{"transactional_id":"y"}]}',
        cm.LaterRecord(5, "offset_reservations", "g", epoch=1, reserved_by=("x", "y")),
    ),
}


@pytest.mark.parametrize("name", LATER)
def test_later_version_is_refused_and_read_as_evidence(name: str) -> None:
    payload, expected = LATER[name]
    with pytest.raises(FormatError) as error:
        cm.decode(payload)
    assert error.value.code == "unknown_field"
    assert error.value.detail["later"] == cm.decode_later(payload) == expected


def test_later_version_without_new_fields_has_the_code_of_its_version() -> None:
    payload = b'{"version":2,"type":"group_tombstone","group":"g","epoch":2}'
    with pytest.raises(FormatError) as error:
        cm.decode(payload)
    assert error.value.code == "unsupported_record_version"
    assert error.value.detail["later"] == cm.decode_later(payload)
    assert cm.decode_later(payload.replace(b"2", b"1", 1)) is None
    assert cm.decode_later(b"[") is None
    assert cm.decode_later(b"[]") is None


def test_names_are_quoted_as_the_reference_does() -> None:
    assert cm.quoted('a"b\\c\n') == '"a\\"b\\\\c\\n"'
    assert cm.quoted("\x00\x7f\x85\u202e\U000e0041") == '"\\x00\\x7f\\u0085\\u202e\\U000e0041"'
    assert cm.quoted("Straße 🚚") == '"Straße 🚚"'


# -- snapshots as brokers write them, read in one go -------------------------------------------


def outcome(read: Any, payload: bytes) -> object:
    try:
        record = read(payload)
    except FormatError as error:
        return error.code, error.message
    return record, record.timestamp_text


def written(payload: bytes) -> bool:
    """Is it read in one go? If so, as JSON says it."""
    found = cm._written_snapshot(payload)
    if found is None:
        return False
    assert (found, found.timestamp_text) == outcome(cm._decode, payload)
    return True


PAYLOADS = [
    payload_of(vector)
    for section in ("decode_accept", "decode_reject", "encode")
    for vector in VECTORS[section]
    if "payload" in vector or "payload_base64" in vector
]


def test_what_brokers_write_is_read_in_one_go() -> None:
    writer = cm.SnapshotWriter("billing", "orders", 3)
    for offsets in ({0: 0}, {0: 7, 3: 10**18}, dict.fromkeys(range(500), 12)):
        moment = timestamps.from_unix_ns(1_790_000_000_123_456_789)
        payload = writer.encode(9, offsets, moment)
        assert written(payload)
        assert cm.decode(payload).offsets == tuple(cm.OffsetItem(*item) for item in offsets.items())


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('"version":1', '"version":2'),
        ('"version":1', '"version":01'),
        ('"version":1', '"version":1.0'),
        ("{", "{ "),
        ("billing", "bill\\u0069ng"),
        ("billing", "bill\\ning"),
        ("billing", "b\u00efll"),
        ("billing", ""),
        ('"topic":"orders",', ""),
        ('"topic":"orders"', '"topic":"orders","topic":"orders"'),
        ('"epoch":3', '"epoch":0'),
        ('"epoch":3', '"epoch":18446744073709551615'),
        ('"epoch":3', '"epoch":18446744073709551616'),
        ('"revision":9', '"revision":9e0'),
        ('"revision":9', '"revision":-9'),
        ('{"partition":1,"offset":5}', ""),
        ('{"partition":1,"offset":5}', '{"partition":0,"offset":5}'),
        ('{"partition":1,"offset":5}', '{"partition":2,"offset":5}'),
        ('{"partition":1,"offset":5}', '{"partition":1,"offset":05}'),
        ('{"partition":1,"offset":5}', '{"offset":5,"partition":1}'),
        ('{"partition":1,"offset":5}', '{"partition":1,"offset":5},'),
        ('{"partition":1,"offset":5}', '{"partition":-1,"offset":5}'),
        ('{"partition":1,"offset":5}', '{"partition":9223372036854775808,"offset":5}'),
        ('{"partition":1,"offset":5}', '{"partition":1,"offset":18446744073709551616}'),
        ("09-21T", "02-30T"),
        ("T14", "T24"),
        ("20Z", "20+01:00"),
        ("20Z", "20,5Z"),
        ("20Z", "20"),
        ("Z", "z"),
        ("}", "}}"),
        ("}", "}\n"),
    ],
)
def test_what_is_not_quite_that_is_read_as_json(before: str, after: str) -> None:
    text = (
        '{"version":1,"type":"offset_snapshot","group":"billing","topic":"orders","epoch":3,'
        '"revision":9,"offsets":[{"partition":1,"offset":5},{"partition":2,"offset":6}],'
        '"timestamp":"2026-09-21T14:13:20Z"}'
    )
    assert written(text.encode())
    head, found, tail = text.rpartition(before)
    assert found
    payload = (head + after + tail).encode()
    written(payload)
    assert outcome(cm.decode, payload) == outcome(cm._decode, payload)


@settings(max_examples=400, deadline=None)
@given(data=st.data())
def test_any_change_of_a_snapshot_reads_the_same_both_ways(data: st.DataObject) -> None:
    payload = bytearray(
        cm.SnapshotWriter("g", "t", 1).encode(
            data.draw(st.integers(1, 2**64 - 1)),
            data.draw(
                st.dictionaries(st.integers(0, 2**31), st.integers(0, 2**64 - 1), min_size=1)
            ),
            data.draw(st.integers(0, 10**20)),
        )
    )
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.integers(0, len(payload) - 1))
        change = data.draw(st.sampled_from(["byte", "cut", "copy"]))
        if change == "byte":
            payload[at] = data.draw(st.sampled_from(b'0123456789{}[]:,"\\ eE.+-Zabc\x00\xff'))
        elif change == "cut":
            del payload[at : at + data.draw(st.integers(1, 8))]
        else:
            payload[at:at] = payload[at : at + data.draw(st.integers(1, 30))]
        if not payload:
            return
    written(bytes(payload))
    assert outcome(cm.decode, bytes(payload)) == outcome(cm._decode, bytes(payload))


def test_every_vector_reads_the_same_both_ways() -> None:
    assert len(PAYLOADS) > 80
    assert any(map(written, PAYLOADS))
    for payload in PAYLOADS:
        assert outcome(cm.decode, payload) == outcome(cm._decode, payload)
