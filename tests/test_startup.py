"""The plan as a whole: steps behind a refusal, order, actions, one scan for each segment."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from cursus.evidence.walk import LogDirectory
from cursus.evidence.window import OnBytes
from cursus.findings import EFFECT_ORDER, finding
from cursus.formats import timestamps
from cursus.formats.offset_index import Prefix
from cursus.formats.record import Record, encode_frame
from cursus.replay.interfaces import RecordBatch, SegmentRef, SegmentScan
from cursus.replay.startup import ACTION_KINDS, Plan, StartupConfig, plan
from inspect_db import fixtures

ROOT = Path(__file__).resolve().parent.parent / "fixtures"
AS_OF = timestamps.parse("2026-09-15T12:00:00Z")


def judged(log_dir: Path, config: StartupConfig | None = None) -> Plan:
    with LogDirectory.at(str(log_dir)) as evidence:
        return plan(evidence, config, AS_OF)


@pytest.fixture
def storage(tmp_path: Path) -> Callable[[str], Path]:
    """A copy of a fixture's log directory, to be changed by the test."""

    def build(name: str) -> Path:
        return fixtures.materialise(fixtures.load(ROOT / name), tmp_path / name)

    (tmp_path / "zero-tail-of-three-bytes").mkdir()
    (tmp_path / "small-healthy").mkdir()
    return build


@pytest.fixture
def small(storage: Callable[[str], Path]) -> Path:
    """Orders with six records, one group, nothing wrong."""
    log_dir = storage("zero-tail-of-three-bytes")
    log = log_dir / "orders" / "partition_0_segment_00000000000000000000.log"
    log.write_bytes(log.read_bytes()[:-3])
    return log_dir


def outcomes(found: Plan) -> list[str]:
    return [step.outcome for step in found.steps]


def test_a_lock_that_is_no_file_refuses_before_everything_else(small: Path) -> None:
    (small / ".cursus.lock").unlink(missing_ok=True)
    (small / ".cursus.lock").mkdir()
    found = judged(small)
    assert found.verdict == "refuses"
    assert found.first_refusal is not None
    assert (found.first_refusal.code, found.first_refusal.step) == ("not_regular_file", 1)


def test_a_whole_directory_starts_clean_and_does_nothing(small: Path) -> None:
    found = judged(small)
    assert found.verdict == "starts_clean"
    assert outcomes(found) == ["passed"] * 5
    assert found.actions == ()
    assert found.first_cause is None


def test_a_fresh_directory_starts_and_creates_the_internal_topic(tmp_path: Path) -> None:
    found = judged(tmp_path)
    assert found.verdict == "starts_clean"
    assert [action.kind for action in found.actions] == ["create_internal_topic"]


def test_steps_behind_a_refusal_are_judged_and_not_reached(small: Path) -> None:
    (small / "__topic_metadata.json").write_bytes(b"")
    (small / "__transaction_state.journal").write_bytes(b"\0" * 9)
    found = judged(small)
    assert outcomes(found) == ["refuses", *["not_reached"] * 4]
    assert [item.code for item in found.steps[3].findings] == ["journal_frame_length_invalid"]
    assert found.actions == (), "a start that refuses does nothing"


def test_a_repair_behind_a_refusal_does_not_soften_the_verdict(small: Path) -> None:
    log = small / "orders" / "partition_0_segment_00000000000000000000.log"
    log.write_bytes(log.read_bytes() + b"\0\0\0")
    (small / "__topic_metadata.json").write_bytes(b"{")
    found = judged(small)
    assert found.verdict == "refuses"
    assert found.first_refusal is not None
    assert found.first_refusal.step == 1


def test_findings_stand_in_the_order_of_the_steps(storage: Callable[[str], Path]) -> None:
    log_dir = storage("small-healthy")
    (log_dir / "quotes" / "partition_0.hwm").write_bytes(b"x\n")
    (log_dir / "orders" / "partition_1.hwm").write_bytes(b"x\n")
    found = judged(log_dir)
    steps = [item.step or 9 for item in found.findings]
    assert steps == sorted(steps)
    watermarks = [item.path for item in found.findings if item.code == "hwm_checkpoint_invalid"]
    assert watermarks == ["orders/partition_1.hwm", "quotes/partition_0.hwm"]


def test_a_watermark_above_the_log_is_lowered(small: Path) -> None:
    (small / "orders" / "partition_0.hwm").write_bytes(b"9\n")
    found = judged(small)
    (told,) = [item for item in found.findings if item.code == "hwm_checkpoint_ahead_of_log"]
    assert found.verdict == "starts_with_repairs"
    assert outcomes(found) == ["passed"] * 4 + ["repairs"]
    assert told.lost is not None
    assert (told.lost.records, told.lost.first_offset, told.lost.last_offset) == (3, 6, 8)
    assert [action.kind for action in found.actions] == ["lower_hwm"]


def test_a_watermark_above_a_cut_follows_from_the_cut(small: Path) -> None:
    log = small / "orders" / "partition_0_segment_00000000000000000000.log"
    log.write_bytes(log.read_bytes()[:-1])
    found = judged(small)
    (told,) = [item for item in found.findings if item.code == "hwm_checkpoint_ahead_of_log"]
    assert (told.effect, told.severity) == ("recovers", "warning")
    assert outcomes(found) == ["passed", "repairs", "passed", "passed", "passed"]
    assert found.hwm["orders", 0].effective == 5


def test_a_watermark_above_the_internal_log_refuses_at_the_last_step(small: Path) -> None:
    (small / "__consumer_offsets" / "partition_1.hwm").write_bytes(b"5\n")
    found = judged(small)
    assert outcomes(found) == ["passed"] * 4 + ["refuses"]
    assert found.first_refusal is not None
    assert found.first_refusal.code == "internal_metadata_tail_lost"


def test_no_watermark_is_compared_with_a_log_that_does_not_open(small: Path) -> None:
    log = small / "orders" / "partition_0_segment_00000000000000000000.log"
    log.write_bytes(b"\0" * 99 + log.read_bytes()[99:])
    found = judged(small)
    assert found.verdict == "refuses"
    assert found.hwm["orders", 0].stored == 6
    assert found.hwm["orders", 0].effective is None
    assert found.steps[4].findings == ()


@pytest.mark.parametrize("what", ["directory", "link"])
def test_a_checkpoint_that_is_not_a_file_refuses(small: Path, what: str) -> None:
    path = small / "orders" / "partition_0.hwm"
    path.unlink()
    if what == "directory":
        path.mkdir()
    else:
        path.symlink_to("partition_0.lock")
    found = judged(small)
    assert found.first_refusal is not None
    assert (found.first_refusal.code, found.first_refusal.step) == ("checkpoint_not_regular", 5)


def test_a_truncation_that_was_cut_off_is_resumed(small: Path) -> None:
    manifest = small / "__topic_metadata.json"
    document = json.loads(manifest.read_text())
    (orders,) = [topic for topic in document["topics"] if topic["name"] == "orders"]
    orders["lifecycle_epoch"], orders["revision"] = 2, 2
    manifest.write_text(json.dumps(document))
    log = small / "orders" / "partition_0_segment_00000000000000000000.log"
    log.write_bytes(b"\0" * 8)
    assert judged(small).verdict == "refuses"
    (small / "orders" / ".cursus_lifecycle_epoch.tmp").write_bytes(b"2\n")
    found = judged(small)
    assert found.verdict == "starts_clean", "what will be emptied cannot stop a start"
    assert "resume_truncation" in [action.kind for action in found.actions]


def test_limits_refuse_only_where_the_configuration_sets_them(small: Path) -> None:
    assert judged(small).verdict == "starts_clean"
    found = judged(small, StartupConfig(max_topics=1))
    assert found.first_refusal is not None
    assert (found.first_refusal.code, found.first_refusal.step) == ("topic_capacity_exceeded", 1)


def test_settings_are_picked_out_of_a_whole_configuration() -> None:
    config = StartupConfig.from_settings(
        {"max.topics": 7, "max_partitions": True, "transactional_id_expiration_ms": "x"}
    )
    assert config == StartupConfig(max_topics=7)


def test_every_segment_is_scanned_once(storage: Callable[[str], Path]) -> None:
    class Counting(LogDirectory):
        def scan(
            self,
            segment: SegmentRef,
            visit: Callable[[RecordBatch], None] | None = None,
            index: Prefix | None = None,
            *,
            on_bytes: OnBytes | None = None,
        ) -> SegmentScan:
            scans[segment.path] += 1
            return super().scan(segment, visit, index, on_bytes=on_bytes)

    scans: Counter[str] = Counter()
    handed: Counter[str] = Counter()
    log_dir = storage("small-healthy")

    def sink(batch: RecordBatch) -> None:
        handed[batch.segment.path] += len(batch)

    with Counting.at(str(log_dir)) as evidence:
        found = plan(evidence, None, AS_OF, sink=sink)
    assert set(scans.values()) == {1}
    assert len(scans) == len(list(log_dir.rglob("*.log")))
    assert sum(handed.values()) == sum(log.record_count for log in found.partitions.values())


def test_records_of_a_topic_that_nobody_declares_are_evidence_only(small: Path) -> None:
    (small / "strange").mkdir()
    record = Record(b"strange", 0, 0, b"p", 1, 0, b"x", transactional_id=b"t")
    name = "partition_0_segment_00000000000000000000.log"
    (small / "strange" / name).write_bytes(encode_frame(record))
    found = judged(small)
    assert found.first_refusal is not None
    assert found.first_refusal.code == "undeclared_persisted_topic"
    assert found.partitions["strange", 0].record_count == 1
    assert ("strange", 0) not in found.producers


def test_an_unknown_directory_that_is_closed_to_us_decides_nothing(small: Path) -> None:
    class Closed(LogDirectory):
        @property
        def walk_findings(self) -> tuple[object, ...]:  # type: ignore[override]
            told = finding("file_unreadable", "lost+found", effect="unknown")
            return (*super().walk_findings, told)

    with Closed.at(str(small)) as evidence:
        found = plan(evidence, None, AS_OF)
    assert found.verdict == "starts_clean"


def test_the_plan_is_the_same_each_time(storage: Callable[[str], Path]) -> None:
    log_dir = storage("small-healthy")
    one, other = judged(log_dir), judged(log_dir)
    assert [(item.code, item.path, item.position) for item in one.findings] == [
        (item.code, item.path, item.position) for item in other.findings
    ]
    assert one.actions == other.actions


def test_effects_and_actions_know_every_word() -> None:
    assert EFFECT_ORDER[0] == "refuses"
    assert all(finding(code, "x").code == code for code in ACTION_KINDS)
