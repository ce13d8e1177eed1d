"""The manifest against the directories: what a broker makes of both, at steps 1 and 2."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from cursus import layout
from cursus.evidence.walk import LogDirectory
from cursus.findings import CATALOGUE, Finding
from cursus.formats import topic_manifest
from cursus.formats.record import Record, encode_frame
from cursus.formats.topic_manifest import TopicDefinition
from cursus.replay import startup
from cursus.replay.topics import ManifestReplay, TopicsReplay, judge_topics, replay_manifest

GOLDEN = Path(__file__).resolve().parent.parent / "fixtures" / "golden"
VECTORS: dict[str, Any] = json.loads((GOLDEN / "manifest" / "vectors.json").read_text("utf-8"))
OVERRIDES = {
    item["name"]: item["value"]
    for item in json.loads((GOLDEN / "overrides.json").read_text("utf-8"))["overrides"]
    if item["topic"] == "manifest" and item["list"] == "log_directories"
}
LOG = layout.segment_log(0, 0)


def judge(log_dir: Path) -> tuple[ManifestReplay, TopicsReplay, list[Finding]]:
    with LogDirectory.at(str(log_dir)) as evidence:
        manifest = replay_manifest(evidence)
        topics = judge_topics(evidence, manifest)
        return manifest, topics, [*manifest.findings, *topics.findings]


def refusing(findings: list[Finding]) -> list[tuple[str, str]]:
    return [(item.code, item.path) for item in findings if item.effect == "refuses"]


def write(log_dir: Path, *definitions: TopicDefinition, logs: bool = True) -> Path:
    """A log directory with these topics and an empty log for each of their partitions."""
    log_dir.mkdir(exist_ok=True)
    (log_dir / layout.MANIFEST).write_bytes(topic_manifest.encode(definitions))
    for item in definitions if logs else ():
        (log_dir / item.name).mkdir()
        for partition in range(item.partitions):
            (log_dir / item.name / layout.segment_log(partition, 0)).write_bytes(b"")
    return log_dir


def topic(name: str = "orders", partitions: int = 1, epoch: int = 1, revision: int = 1) -> Any:
    return TopicDefinition(name, revision, epoch, partitions, 1)


def records(name: str, count: int) -> bytes:
    return b"".join(
        encode_frame(Record(topic=name.encode(), partition=0, offset=n, payload=b"x"))
        for n in range(count)
    )


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    return tmp_path / "logs"


# -- golden vectors ----------------------------------------------------------------


@pytest.mark.parametrize("vector", VECTORS["log_directories"], ids=lambda v: str(v["name"]))
def test_what_the_broker_loads(vector: dict[str, Any], log_dir: Path) -> None:
    log_dir.mkdir()
    for item in vector["tree"]:
        path = log_dir / item["path"]
        path.parent.mkdir(parents=True, exist_ok=True)
        if item["type"] == "dir":
            path.mkdir(exist_ok=True)
        elif item["type"] == "symlink":
            path.symlink_to(item["target"])
        elif "blob" in item:
            path.write_bytes((GOLDEN / "manifest" / "blobs" / item["blob"]).read_bytes())
        else:
            path.write_text(item["text"], "utf-8")
    expected = {**vector["broker_manifest_load"], **OVERRIDES.get(vector["name"], {})}
    manifest, topics, findings = judge(log_dir)
    if vector["name"] == "manifest_symlink":
        # The reference follows the link; evidence never does, so nobody can tell.
        assert [(item.code, item.effect) for item in findings] == [
            ("manifest_not_regular_file", "unknown")
        ]
        return
    refusals = [item for item in findings if item.effect == "refuses"]
    if expected["accepts"]:
        assert refusals == []
        assert sorted(manifest.by_name) == expected["topics"]
    else:
        entry = CATALOGUE[refusals[0].code]
        assert expected["code"] in {entry.code, *entry.also_named}
    if not expected["accepts"] and expected.get("orphan_count") and manifest.present:
        assert len(topics.undeclared) == expected["orphan_count"]


# -- the manifest ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "code", "position"),
    [
        (b"", "manifest_json_invalid", 0),
        (b"\n\n", "manifest_json_invalid", 2),
        (b'{"version":3,"topics":[]}  x', "manifest_trailing_content", 27),
        (b'{"version":3,"topics":[]}{}', "manifest_trailing_content", 25),
        (b'{"version":3,"version":3}', "duplicate_key", 13),
        (b'{"version":3,"topics":[null,{"name":"a"}]}', "topic_revision_missing", None),
        (b'{"version":3,"topics":[{"name":"[{"},{"x":1}]}', "manifest_unknown_field", 37),
        (b'{"version":2,"topics":[{"name":"a"}]}', "manifest_version_unsupported", None),
    ],
)
def test_a_manifest_error_says_where(
    data: bytes, code: str, position: int | None, log_dir: Path
) -> None:
    write(log_dir, topic())
    (log_dir / layout.MANIFEST).write_bytes(data)
    manifest, topics, findings = judge(log_dir)
    assert [(f.code, f.path, f.position, f.step) for f in findings] == [
        (code, layout.MANIFEST, position, 1)
    ]
    # Nobody can say that a directory is undeclared, and it is still worth a look.
    assert manifest.definitions is None
    assert topics.undeclared == ()
    assert topics.topics["orders"].state == "live"
    assert topics.topics["orders"].partitions[0].logs


def test_the_faulty_definition_is_named(log_dir: Path) -> None:
    data = topic_manifest.encode([topic("a"), topic("b"), topic("c")])
    place = data.index(b'"name": "b"')
    broken = data[:place] + data[place:].replace(b'"revision": 1', b'"revision": 0', 1)
    write(log_dir, logs=False)
    (log_dir / layout.MANIFEST).write_bytes(broken)
    _, _, (found,) = judge(log_dir)
    assert found.code == "topic_revision_missing"
    assert found.position == data.rindex(b"{", 0, place)
    assert found.message.startswith('topics[1]: topic "b"')


def test_an_older_manifest_still_names_its_topics(log_dir: Path) -> None:
    log_dir.mkdir()
    old = b'{"version":1,"topics":[{"name":"b","partitions":1},{"name":"a"},7,{"name":3}]}'
    (log_dir / layout.MANIFEST).write_bytes(old)
    manifest, _, findings = judge(log_dir)
    assert manifest.version == 1
    assert manifest.names_as_evidence == ("a", "b")
    assert refusing(findings) == [("manifest_json_invalid", layout.MANIFEST)]
    (log_dir / layout.MANIFEST).write_bytes(old.replace(b"7,", b"").replace(b":3}", b":null}"))
    manifest, _, findings = judge(log_dir)
    assert refusing(findings) == [("manifest_version_unsupported", layout.MANIFEST)]
    assert manifest.names_as_evidence == ("a", "b")


def test_nothing_at_all_is_a_fresh_start(log_dir: Path) -> None:
    log_dir.mkdir()
    manifest, topics, findings = judge(log_dir)
    assert (manifest.present, findings, topics.topics) == (False, [], {})


def test_logs_without_a_manifest_refuse_at_step_one(log_dir: Path) -> None:
    write(log_dir, topic("b"), topic("a"))
    (log_dir / layout.MANIFEST).unlink()
    manifest, topics, (found,) = judge(log_dir)
    assert (found.code, found.path, found.step) == (
        "manifest_missing_with_persisted_topics",
        layout.MANIFEST,
        1,
    )
    assert found.detail["topics"] == ("a", "b")
    assert not manifest.present
    assert topics.undeclared == ()


def test_a_weakened_internal_topic(log_dir: Path) -> None:
    internal = topic_manifest.encode(
        [TopicDefinition("__consumer_offsets", 1, 1, 1, 1, policy=topic_manifest.INTERNAL_POLICY)]
    )
    write(log_dir, logs=False)
    (log_dir / "__consumer_offsets").mkdir()
    (log_dir / "__consumer_offsets" / LOG).write_bytes(b"")
    manifest = log_dir / layout.MANIFEST
    # A policy is replaced in memory, a mode cannot be.
    manifest.write_bytes(internal.replace(b'"compact"', b'"delete"'))
    _, _, (found,) = judge(log_dir)
    assert (found.code, found.effect, found.severity) == (
        "internal_topic_contract_mismatch",
        "ignores",
        "warning",
    )
    manifest.write_bytes(internal.replace(b'"idempotent": false', b'"idempotent": true'))
    assert refusing(judge(log_dir)[2]) == [("internal_topic_contract_mismatch", layout.MANIFEST)]


def test_ten_thousand_topics(log_dir: Path) -> None:
    write(log_dir, *(topic(f"t{n:05}") for n in range(10_000)), logs=False)
    started = time.process_time()
    findings = judge(log_dir)[2]
    assert time.process_time() - started < 10  # quadratic would be minutes
    assert len(findings) == 10_000
    assert findings[0].path == "t00000"
    assert {item.code for item in findings} == {"declared_topic_storage_missing"}


# -- directories -------------------------------------------------------------------


def test_undeclared_directories_come_first_and_sorted(log_dir: Path) -> None:
    write(log_dir, topic("a", partitions=2))
    (log_dir / "a" / layout.segment_log(1, 0)).unlink()
    for name in ("z", "Z", "raft", "..."):
        (log_dir / name).mkdir()
        (log_dir / name / LOG).write_bytes(b"")
    _, topics, findings = judge(log_dir)
    assert topics.undeclared == ("...", "Z", "raft", "z")
    assert refusing(findings) == [
        *(("undeclared_persisted_topic", name) for name in topics.undeclared),
        ("declared_topic_partition_missing", "a"),
    ]
    assert all(item.step == 2 for item in findings)


@pytest.mark.parametrize(
    ("name", "persisted"),
    [
        ("partition_0_segment_00000000000000000000.log", True),
        ("partition_00_segment_.log", True),
        ("partition_+7_segment_x.log", True),
        ("partition_-0_segment_x.log", True),
        ("partition_-1_segment_x.log", False),
        ("partition_9223372036854775807_segment_0.log", True),
        ("partition_9223372036854775808_segment_0.log", False),
        ("partition__segment_0.log", False),
        ("partition_x_segment_0.log", False),
        ("partition_\u0660_segment_0.log", False),
        ("partition_0_segment_0.log.deleted", False),
        ("partition_0.hwm", False),
        ("other.log", False),
    ],
)
def test_what_makes_a_directory_persisted(name: str, persisted: bool, log_dir: Path) -> None:
    write(log_dir)
    (log_dir / "x").mkdir()
    (log_dir / "x" / name).write_bytes(b"")
    _, topics, findings = judge(log_dir)
    assert topics.undeclared == (("x",) if persisted else ())
    assert bool(refusing(findings)) is persisted


@pytest.mark.parametrize("manifest", [True, False])
def test_a_start_takes_no_notice_of_what_nobody_declares(manifest: bool, log_dir: Path) -> None:
    """And cleans nothing up there: what stands there belongs to somebody else."""
    if manifest:
        write(log_dir)
    (log_dir / "x" / LOG).mkdir(parents=True)
    (log_dir / "x" / f"{layout.segment_log(1, 0)}.deleted").write_bytes(b"\0\0\0\0damage")
    (log_dir / "x" / f"{layout.segment_log(1, 0)}.compacting").write_bytes(b"")
    (log_dir / "x" / "partition_01.log.deleted").write_bytes(b"")
    with LogDirectory.at(str(log_dir)) as evidence:
        plan = startup.plan(evidence)
    assert plan.verdict == "starts_clean"
    assert [action for action in plan.actions if action.path.startswith("x")] == []
    assert plan.topics.topics["x"].state == "undeclared"
    assert "not_regular_file" in {item.code for item in plan.findings if item.severity == "warning"}


def test_entries_of_a_declared_topic(log_dir: Path) -> None:
    write(log_dir, topic(partitions=3))
    orders = log_dir / "orders"
    for partition in (0, 1):
        (orders / layout.segment_log(partition, 0)).unlink()
    (orders / LOG).mkdir()
    os.mkfifo(orders / layout.segment_log(1, 0))
    (orders / layout.segment_log(3, 0)).write_bytes(b"")
    (orders / f"{layout.segment_log(4, 0)}.deleted").write_bytes(b"")
    (orders / "partition_2_segment_7.log").write_bytes(b"")
    (orders / "partition_2_segment_99999999999999999999.log").write_bytes(b"")
    (orders / "partition_x.txt").write_bytes(b"")
    assert refusing(judge(log_dir)[2]) == [
        ("not_regular_file", f"orders/{LOG}"),
        ("not_regular_file", f"orders/{layout.segment_log(1, 0)}"),
        ("segment_name_not_canonical", "orders/partition_2_segment_7.log"),
        ("declared_topic_partition_out_of_range", f"orders/{layout.segment_log(3, 0)}"),
        ("segment_id_out_of_range", "orders/partition_2_segment_99999999999999999999.log"),
        ("declared_topic_partition_missing", "orders"),
        ("declared_topic_partition_missing", "orders"),
    ]


def test_links_in_the_place_of_topics(log_dir: Path) -> None:
    write(log_dir, topic("a"), logs=False)
    (log_dir / "elsewhere").mkdir()
    (log_dir / "elsewhere" / "partition_0.hwm").write_bytes(b"0\n")
    (log_dir / "a").symlink_to("elsewhere")
    (log_dir / "b").symlink_to("elsewhere")
    found = judge(log_dir)[2]
    assert [(item.code, item.path, item.effect) for item in found] == [
        ("topic_entry_symlink", "b", "ignores"),
        ("declared_topic_storage_not_directory", "a", "refuses"),
    ]


def test_missing_partitions_are_not_counted_one_by_one(log_dir: Path) -> None:
    names = [f"t{n:02}" for n in range(30)]
    write(log_dir, *(topic(name, partitions=2**63 - 1) for name in names), logs=False)
    for name in names:
        (log_dir / name).mkdir()
        (log_dir / name / layout.segment_log(1, 0)).write_bytes(b"")
    started = time.process_time()
    findings = judge(log_dir)[2]
    assert time.process_time() - started < 5
    assert len(findings) < 1200
    assert {item.path for item in findings} == set(names)
    first = findings[0]
    assert (first.path, first.detail["partition"], first.detail["missing"]) == (
        "t00",
        0,
        2**63 - 2,
    )
    assert findings[1].detail["partition"] == 2
    assert findings[99].message.endswith(f", and {2**63 - 2 - 100} more")
    assert findings[-1].message.endswith(f", and {2**63 - 2 - 1} more")


# -- unfinished truncations ----------------------------------------------------------


MARKER, TEMP = layout.LIFECYCLE_EPOCH, layout.LIFECYCLE_EPOCH_TEMP


@pytest.mark.parametrize(
    ("files", "state", "expected"),
    [
        ({MARKER: b"3\n"}, "live", None),
        ({MARKER: b" 3 "}, "live", None),
        ({MARKER: b"3\n", TEMP: b"4\n"}, "live", None),
        ({}, "reset_pending", "lifecycle_reset_pending"),
        ({MARKER: b"2\n"}, "reset_pending", "lifecycle_reset_pending"),
        ({MARKER: b"2\n", TEMP: b"3\n"}, "resumable", "truncation_resumable"),
        ({TEMP: b"3\n"}, "resumable", "truncation_resumable"),
        # What leads to deletion must be exact.
        ({TEMP: b"3"}, "reset_pending", "lifecycle_reset_pending"),
        ({TEMP: b"2\n"}, "reset_pending", "lifecycle_reset_pending"),
        ({TEMP: b"4\n"}, "reset_pending", "lifecycle_reset_pending"),
        ({TEMP: b""}, "reset_pending", "lifecycle_reset_pending"),
        ({MARKER: b"4\n"}, "live", "lifecycle_marker_ahead"),
        ({MARKER: b"0\n", TEMP: b"3\n"}, "live", "lifecycle_marker_invalid"),
        ({MARKER: b"-3"}, "live", "lifecycle_marker_invalid"),
        ({MARKER: "\u0663".encode()}, "live", "lifecycle_marker_invalid"),
        ({MARKER: b"9" * 5000}, "live", "lifecycle_marker_invalid"),
    ],
)
def test_the_lifecycle_marker(
    files: dict[str, bytes], state: str, expected: str | None, log_dir: Path
) -> None:
    write(log_dir, topic(epoch=3, revision=5))
    for name, data in files.items():
        (log_dir / "orders" / name).write_bytes(data)
    _, topics, findings = judge(log_dir)
    assert [item.code for item in findings] == ([expected] if expected else [])
    assert topics.topics["orders"].state == state
    if state != "live":
        assert (findings[0].path, findings[0].position) == ("orders", None)
        assert findings[0].effect == ("recovers" if state == "resumable" else "refuses")


def test_a_first_generation_needs_no_marker(log_dir: Path) -> None:
    write(log_dir, topic(epoch=1))
    (log_dir / "orders" / MARKER).write_bytes(b"junk")
    assert judge(log_dir)[2] == []


@pytest.mark.parametrize(
    ("definition", "code"),
    [
        (topic(epoch=2, revision=1), "lifecycle_pending_revision_invalid"),
        (
            TopicDefinition(
                "__consumer_offsets", 2, 2, 1, 1, policy=topic_manifest.INTERNAL_POLICY
            ),
            "lifecycle_reset_pending",  # nobody can truncate the internal topic
        ),
    ],
)
def test_a_truncation_that_nobody_can_have_decided(
    definition: TopicDefinition, code: str, log_dir: Path
) -> None:
    write(log_dir, definition)
    (log_dir / definition.name / TEMP).write_bytes(b"2\n")
    _, topics, findings = judge(log_dir)
    assert refusing(findings) == [(code, definition.name)]
    assert topics.topics[definition.name].state == "reset_pending"


def test_a_marker_that_is_a_link_is_not_followed(log_dir: Path) -> None:
    write(log_dir, topic(epoch=2, revision=2))
    (log_dir / "two").write_bytes(b"2\n")
    (log_dir / "orders" / MARKER).symlink_to("../two")
    assert refusing(judge(log_dir)[2]) == [("lifecycle_marker_invalid", f"orders/{MARKER}")]
    (log_dir / "orders" / MARKER).unlink()
    (log_dir / "orders" / TEMP).symlink_to("../two")
    assert refusing(judge(log_dir)[2]) == [("lifecycle_reset_pending", "orders")]


def test_what_a_truncation_would_empty_is_counted(log_dir: Path) -> None:
    write(log_dir, topic(epoch=2, revision=2))
    data = records("orders", 5)
    (log_dir / "orders" / LOG).write_bytes(data)
    with LogDirectory.at(str(log_dir)) as evidence:
        plan = startup.plan(evidence)
    assert plan.verdict == "refuses"
    found = plan.first_refusal
    assert found is not None
    assert found.code == "lifecycle_reset_pending"
    assert found.lost is not None
    assert (found.lost.records, found.lost.bytes) == (5, len(data))
    assert (found.lost.first_offset, found.lost.last_offset) == (0, 4)


def test_a_decided_truncation_is_resumed_whatever_stands_there(log_dir: Path) -> None:
    """It is to be emptied, so damage and missing files do not matter."""
    write(log_dir, topic(epoch=2, revision=2, partitions=3))
    (log_dir / "orders" / TEMP).write_bytes(b"2\n")
    (log_dir / "orders" / LOG).write_bytes(b"\0\0\0\0 damage")
    (log_dir / "orders" / layout.segment_log(1, 0)).unlink()
    with LogDirectory.at(str(log_dir)) as evidence:
        plan = startup.plan(evidence)
    assert plan.verdict == "starts_clean"
    assert [(a.kind, a.path) for a in plan.actions if a.path.startswith("orders")] == [
        ("resume_truncation", "orders")
    ]


def test_a_directory_that_cannot_be_listed_is_not_said_to_be_empty(
    log_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(log_dir, topic(epoch=2, revision=2))
    real = os.listdir

    def listdir(path: Any) -> Any:
        if isinstance(path, int) and os.readlink(f"/proc/self/fd/{path}").endswith("/orders"):
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(os, "listdir", listdir)
    with LogDirectory.at(str(log_dir)) as evidence:
        plan = startup.plan(evidence)
    assert plan.verdict == "undetermined"
    told = [item.code for item in plan.findings if item.severity == "error"]
    assert told == ["file_unreadable"]
