"""The record codec against its vectors, and what the vectors cannot say."""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import FrozenInstanceError, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cursus.findings import CATALOGUE, FormatError
from cursus.formats import compaction_marker, offset_index
from cursus.formats.record import (
    MAX_EPOCH,
    MAX_PARTITION,
    MAX_RECORD_BYTES,
    MIN_RECORD_BYTES,
    Record,
    crc32c,
    decode,
    decode_any,
    encode,
    encode_frame,
    encoded_size,
    record_length,
)

GOLDEN = Path(__file__).resolve().parent.parent / "fixtures" / "golden" / "segments"
VECTORS: dict[str, Any] = json.loads((GOLDEN / "vectors.json").read_text(encoding="utf-8"))


def named(part: str) -> list[Any]:
    return [pytest.param(case, id=case["name"]) for case in VECTORS[part]]


def record_of(message: dict[str, Any]) -> Record:
    """A record from the fields of a vector; every member must be one that we know."""
    values: dict[str, Any] = {}
    for name, value in message.items():
        if name.endswith("_hex"):
            values[name[:-4]] = bytes.fromhex(value)
        elif isinstance(value, str) and isinstance(getattr(Record(), name), int):
            values[name] = int(value)
        elif isinstance(value, str):
            values[name] = value.encode()
        else:
            values[name] = value
    assert set(values) == {item.name for item in fields(Record)}
    return Record(**values)


def rejected(data: bytes) -> FormatError:
    with pytest.raises(FormatError) as caught:
        decode(data)
    assert caught.value.code in CATALOGUE
    return caught.value


# -- vectors -------------------------------------------------------------------------------


@pytest.mark.parametrize("case", named("records"))
def test_records_round_trip(case: dict[str, Any]) -> None:
    data = (GOLDEN / case["file"]).read_bytes()
    assert len(data) == case["length"]
    assert hashlib.sha256(data).hexdigest() == case["sha256"]
    record = record_of(case["message"])
    assert decode(data) == record
    assert encode(record) == data
    assert encoded_size(record) == len(data)
    assert record_length(lambda at, n: data[at : at + n], 0, len(data)) == len(data)


def test_worked_example() -> None:
    record = Record(
        topic=b"t",
        partition=2,
        offset=300,
        producer_id=b"p",
        sequence=1,
        epoch=1,
        payload=b"hi",
        key=b"k",
    )
    assert encode_frame(record).hex() == VECTORS["worked_example"]["frame_hex"]


@pytest.mark.parametrize("case", named("malformed_records"))
def test_malformed_records(case: dict[str, Any]) -> None:
    data = bytes.fromhex(case["hex"])
    assert len(data) == case["length"]
    error = rejected(data)
    assert error.code == case["error_code"]
    for name, value in case.get("detail", {}).items():
        assert error.detail[name] == value


def test_every_prefix_is_rejected_with_its_field() -> None:
    part = VECTORS["prefix_rejections"]
    data = (GOLDEN / part["file"]).read_bytes()
    assert decode(data) == record_of(part["message"])
    lengths = []
    for run in part["runs"]:
        for length in range(run["from_length"], run["to_length"] + 1):
            lengths.append(length)
            error = rejected(data[:length])
            assert error.code == run["error_code"], length
            assert error.detail.get("field") == run.get("detail", {}).get("field"), length
            assert record_length(lambda at, n: data[at : at + n], 0, length) is None, length
    assert lengths == list(range(len(data)))


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=case["name"]) for case in VECTORS["encode_limits"]["cases"]]
)
def test_encode_limits(case: dict[str, Any]) -> None:
    field = case["field"]
    value: Any = b"k" * case["field_bytes"]
    if field in {"partition", "epoch"}:
        value = -1
    record = replace(Record(topic=b"t"), **{field: value})
    if not case["ok"]:
        with pytest.raises(FormatError) as caught:
            encode(record)
        assert caught.value.code == case["error_code"]
        assert caught.value.code in CATALOGUE
        return
    data = encode(record)
    assert len(data) == case["length"]
    assert hashlib.sha256(data).hexdigest() == case["sha256"]
    assert decode(data) == record


def test_write_limit() -> None:
    part = VECTORS["write_limit"]
    topic = part["topic"].encode()
    largest = part["largest_accepted_payload_bytes_for_topic_orders"]
    data = encode(Record(topic=topic, payload=bytes(largest)))
    assert len(data) == MAX_RECORD_BYTES
    assert len(decode(data).payload) == largest
    assert part["payload_bytes"] == largest + 1
    with pytest.raises(FormatError) as caught:
        encode(Record(topic=topic, payload=bytes(part["payload_bytes"])))
    assert caught.value.code == part["error_code"]


@pytest.mark.parametrize("case", named("older_records"))
def test_older_records_are_recognised_and_refused(case: dict[str, Any]) -> None:
    data = (GOLDEN / case["file"]).read_bytes()
    assert len(data) == case["length"]
    assert rejected(data).code == case["current_decoder_error_code"]
    record = record_of(case["message"])
    found = decode_any(data, record.topic, record.partition)
    assert found.generation == "unversioned"
    assert found.record == record
    for topic, partition in ((b"another", record.partition), (record.topic, 99)):
        with pytest.raises(FormatError) as caught:
            decode_any(data, topic, partition)
        assert caught.value.code == "unsupported_record_format"


@pytest.mark.parametrize("case", named("later_records"))
def test_later_records_are_recognised_and_refused(case: dict[str, Any]) -> None:
    data = (GOLDEN / case["file"]).read_bytes()
    assert len(data) == case["length"]
    assert data[:4] == case["magic"].encode()
    assert rejected(data).code == "unsupported_record_format"
    if "error_code" in case:
        with pytest.raises(FormatError) as caught:
            decode_any(data, b"orders", 0)
        assert caught.value.code == case["error_code"]
        return
    assert case["current_decoder_error_code"] == "unsupported_record_format"
    found = decode_any(data, b"orders", 1)
    assert found.generation == case["magic"]
    assert found.record == record_of(case["message"])
    assert found.event_id == case["event_id"].encode()
    assert found.payload_digest == case["payload_digest"].encode()


def test_constants_of_the_vectors() -> None:
    form = VECTORS["format"]
    assert form["max_record_bytes"] == MAX_RECORD_BYTES
    assert form["index_entry_bytes"] == offset_index.ENTRY_BYTES
    assert form["compaction_marker_text"].encode() == compaction_marker.CONTENT
    assert form["record_magic"].encode() == encode(Record())[:4]


# -- beyond the vectors ----------------------------------------------------------------------


def texts(limit: int = 40) -> st.SearchStrategy[bytes]:
    return st.binary(max_size=limit)


def unsigned(top: int) -> st.SearchStrategy[int]:
    return st.integers(0, top) | st.sampled_from([0, 1, top])


RECORDS = st.builds(
    Record,
    topic=texts(),
    partition=unsigned(MAX_PARTITION),
    offset=unsigned(2**64 - 1),
    producer_id=texts(),
    sequence=unsigned(2**64 - 1),
    epoch=unsigned(MAX_EPOCH),
    payload=texts(200),
    event_type=texts(),
    schema_version=unsigned(2**32 - 1),
    aggregate_version=unsigned(2**64 - 1),
    metadata=texts(),
    key=texts(),
    transactional_id=texts(),
    transaction_state=texts(),
    transaction_marker=texts(),
    control_type=texts(),
    control_version=st.integers(-(2**15), 2**15 - 1),
    control_coordinator_epoch=st.integers(-(2**63), 2**63 - 1),
    control_key=texts(),
    control_value=texts(),
)


@settings(max_examples=200, deadline=None)
@given(RECORDS, st.data())
def test_any_record_round_trips_and_none_of_its_prefixes_does(
    record: Record, data: st.DataObject
) -> None:
    encoded = encode(record)
    assert decode(encoded) == record
    assert encode_frame(record) == struct.pack(">I", len(encoded)) + encoded
    cut = data.draw(st.integers(0, len(encoded) - 1))
    code = rejected(encoded[:cut]).code
    assert code == ("unsupported_record_format" if cut < 4 else "record_field_truncated")
    error = rejected(encoded + b"\0")
    assert error.code == "record_trailing_bytes"
    assert error.position == len(encoded)


@settings(max_examples=300, deadline=None)
@given(RECORDS, st.integers(0, 10_000), st.integers(1, 255))
def test_a_changed_byte_never_escapes_as_another_exception(
    record: Record, at: int, change: int
) -> None:
    data = bytearray(encode(record))
    data[at % len(data)] ^= change
    for decoder in (decode, lambda found: decode_any(found, record.topic, record.partition)):
        codes = set()
        try:
            decoder(bytes(data))
        except FormatError as error:
            codes.add(error.code)
        assert codes <= set(CATALOGUE)


@settings(max_examples=100, deadline=None)
@given(RECORDS, st.binary(max_size=100), st.binary(min_size=1, max_size=100))
def test_a_record_is_decoded_in_its_window(record: Record, before: bytes, behind: bytes) -> None:
    data = encode(record)
    window = before + data + behind
    start, end = len(before), len(before) + len(data)
    assert decode(window, start, end) == record
    for wrong, code in (
        (start + 3, "unsupported_record_format"),
        (end - 1, "record_field_truncated"),
        (end + 1, "record_trailing_bytes"),
    ):
        with pytest.raises(FormatError) as caught:
            decode(window, start, wrong)
        assert caught.value.code == code


def test_the_record_with_every_field_empty_is_the_smallest() -> None:
    assert len(encode(Record())) == MIN_RECORD_BYTES


def test_a_decoded_record_is_as_immutable_as_any_other() -> None:
    record = decode(encode(Record(topic=b"t", key=b"k")))
    assert type(record) is Record
    assert record == Record(topic=b"t", key=b"k")
    assert hash(record) == hash(Record(topic=b"t", key=b"k"))
    with pytest.raises(FrozenInstanceError):
        record.offset = 1  # type: ignore[misc]


def test_checks_of_the_encoder_keep_their_order() -> None:
    long = b"k" * 65_536
    for record, code in (
        (Record(topic=long, partition=-1, key=long, epoch=-1), "encode_field_too_long"),
        (Record(partition=-1, key=long, epoch=-1), "encode_partition_negative"),
        (Record(key=long, epoch=-1), "encode_field_too_long"),
        (Record(epoch=-1, payload=bytes(MAX_RECORD_BYTES)), "encode_epoch_negative"),
    ):
        with pytest.raises(FormatError) as caught:
            encode(record)
        assert caught.value.code == code


def test_checksum_of_the_specification() -> None:
    assert crc32c(b"123456789") == 0xE3069283


def test_the_cdm3_of_the_side_line_ends_in_a_checksum() -> None:
    body = b"CDM3" + encode(Record(topic=b"orders", offset=4))[4:]
    found = decode_any(body + struct.pack(">I", crc32c(body)), b"orders", 0)
    assert (found.generation, found.side_line) == ("CDM3", True)
    assert found.record is not None
    assert found.record.offset == 4
    plain = decode_any(body + bytes(4), b"orders", 0)
    assert (plain.side_line, plain.event_id, plain.payload_digest) == (False, b"", b"")
    with pytest.raises(FormatError) as caught:
        decode_any(body + b"\1\2\3\4", b"orders", 0)
    assert caught.value.code == "record_checksum_mismatch"


def test_cdm5_is_named_and_not_decoded() -> None:
    found = decode_any(b"CDM5 and whatever follows", b"orders", 0)
    assert (found.generation, found.record) == ("CDM5", None)


def test_identity_tail_of_an_unversioned_record() -> None:
    case = next(case for case in VECTORS["older_records"] if case["name"] == "v1_full")
    data = (GOLDEN / case["file"]).read_bytes()
    found = decode_any(data + b"\0\5evt-1\0\2dg", b"orders", 1)
    assert (found.event_id, found.payload_digest) == (b"evt-1", b"dg")


def test_nothing_is_read_by_the_length_of_a_payload() -> None:
    """Following the lengths reads only lengths and fixed fields."""
    data = encode(Record(topic=b"orders", payload=bytes(1 << 20)))
    read = 0

    def look(at: int, length: int) -> bytes:
        nonlocal read
        read += length
        return data[at : at + length]

    assert record_length(look, 0, len(data)) == len(data)
    assert read <= MIN_RECORD_BYTES


# -- the files beside a log --------------------------------------------------------------------


def test_compaction_marker() -> None:
    assert compaction_marker.is_valid(compaction_marker.encode())
    for data in (
        b"",
        b"cursus-compaction-v1",
        b"cursus-compaction-v1\n\n",
        b"cursus-compaction-v2\n",
    ):
        assert not compaction_marker.is_valid(data)


def pairs(prefix: offset_index.Prefix) -> list[tuple[int, int]]:
    return list(zip(prefix.offsets, prefix.positions, strict=True))


def test_index_prefix_ends_at_the_first_bad_entry() -> None:
    good = [(3, 300), (6, 600), (2**64 - 1, 2**64 - 1)]
    data = offset_index.encode(good)
    assert pairs(offset_index.valid_prefix(data + bytes(64))) == good
    assert pairs(offset_index.valid_prefix(data)) == good
    stray = offset_index.valid_prefix(data + bytes(32) + offset_index.encode([(9, 900)]))
    assert (pairs(stray), stray.stray) == (good, len(data) + 32 + 7)
    for bad in ((6, 700), (5, 700), (7, 600), (7, 500), (0, 700)):
        prefix = offset_index.valid_prefix(offset_index.encode([*good[:2], bad, (8, 800)]))
        assert pairs(prefix) == good[:2]
        assert prefix.not_increasing == 32


@given(st.binary(max_size=200))
def test_index_prefix_of_anything_ascends(data: bytes) -> None:
    found = pairs(offset_index.valid_prefix(data))
    assert all(a[0] < b[0] and a[1] < b[1] for a, b in pairwise(found))
    assert offset_index.encode(found) == data[: len(found) * offset_index.ENTRY_BYTES]


@pytest.mark.parametrize(
    ("position", "last", "interval", "due"),
    [
        (0, 0, 256, False),
        (255, 0, 256, False),
        (256, 0, 256, True),
        (4095, 0, 0, False),
        (4096, 0, 0, True),
    ],
)
def test_index_entries_are_due_by_distance(
    position: int, last: int, interval: int, due: bool
) -> None:
    assert offset_index.is_due(position, last, interval) is due
