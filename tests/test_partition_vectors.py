"""The golden vectors for segments: what a writer does, byte for byte."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from storage_help import judge_log, tree
from test_segment_vectors import LOGS, OVERRIDES, SEGMENTS, WRITING

from cursus import layout
from cursus.findings import CATALOGUE, FormatError
from cursus.formats.record import Record
from cursus.storage.durable import real_file_system
from cursus.storage.errors import RefusedError, WriteRefusedError
from cursus.storage.log_settings import LogSettings
from cursus.storage.partition_log import PartitionStore

HOUR_NS = 3600 * 10**9


@pytest.fixture(params=[pytest.param(case, id=case["name"]) for case in LOGS])
def case(request: pytest.FixtureRequest) -> dict[str, Any]:
    return dict(request.param)


@pytest.fixture
def log_dir(case: dict[str, Any], tmp_path: Path) -> Path:
    # Modification times are those of now: by them retention decides.
    shutil.copytree(SEGMENTS / case["dir"], tmp_path / "log_dir", copy_function=shutil.copyfile)
    return tmp_path / "log_dir"


def settings(case: dict[str, Any]) -> LogSettings:
    config = case["config"]
    retention = case.get("retention", {})
    return LogSettings(
        log_segment_bytes=config["segment_bytes"],
        log_index_size_bytes=config["index_bytes"],
        log_index_interval_bytes=config["index_interval_bytes"],
        log_cleanup_policy=config["cleanup_policy"],
        log_min_cleanable_dirty_ratio=config["min_cleanable_dirty_ratio"],
        log_retention_hours=retention.get("retention_hours", -1),
        log_retention_bytes=retention.get("retention_bytes", -1),
    )


def open_store(case: dict[str, Any], log_dir: Path) -> PartitionStore:
    """As a broker opens it: what the plan refuses is not opened."""
    names, found = judge_log(log_dir, case["topic"], case["partition"])
    for item in names:
        if item.effect == "refuses":
            raise RefusedError(item.code, item.message, path=item.path)
    return PartitionStore.open(
        real_file_system(),
        str(log_dir),
        case["topic"],
        case["partition"],
        found,
        settings=settings(case),
    )


def wanted_opening(case: dict[str, Any]) -> dict[str, Any]:
    opening = case.get("recommended_open", case["broker_open"])
    return dict(OVERRIDES.get((case["name"], "broker_open"), opening))


OPENING = [case for case in LOGS if wanted_opening(case)["opens"]]


def test_opening(case: dict[str, Any], log_dir: Path) -> None:
    before = tree(log_dir)
    expected = wanted_opening(case)
    if not expected["opens"]:
        with pytest.raises(RefusedError) as refused:
            open_store(case, log_dir)
        code = refused.value.code
        assert expected["error_code"] in {code, *CATALOGUE[code].also_named}
        assert tree(log_dir) == before
        return
    with open_store(case, log_dir) as store:
        assert {
            "opens": True,
            "active_bytes": store.active_bytes,
            "active_segment": store.segments[-1],
            "first_offset": store.log_start,
            "next_offset": store.leo,
            "segments": list(store.segments),
            "read_all_from_first": {"offsets": [item.offset for item in store.records()]},
        } == expected
        assert store.hwm == store.flushed == store.leo


@pytest.mark.parametrize("case", OPENING, ids=lambda case: case["name"])
def test_files_after(case: dict[str, Any], log_dir: Path) -> None:
    """After opening, the action if there is one, and closing. (Refused: see test_opening.)"""
    store = open_store(case, log_dir)
    for member, action in ACTIONS.items():
        if member in case:
            action(store, case, log_dir)
    store.close()
    assert tree(log_dir) == {item["path"]: item["sha256"] for item in case["files_after"]}
    if "after_dir" in case:
        assert tree(log_dir) == tree(SEGMENTS / case["after_dir"])


def append(store: PartitionStore, case: dict[str, Any], log_dir: Path) -> None:
    for payload in case["append"]["appended_payloads"]:
        store.append(Record(payload=payload.encode()))
    assert store.leo == store.hwm == case["append"]["next_offset"]


def compact(store: PartitionStore, case: dict[str, Any], log_dir: Path) -> None:
    expected = dict(case["compaction"])
    offsets = expected.pop("offsets_after")
    result = store.compact()
    assert result.warning is None
    assert {name: getattr(result, name) for name in expected} == expected
    assert [item.offset for item in store.records()] == offsets


def truncate(store: PartitionStore, case: dict[str, Any], log_dir: Path) -> None:
    expected = case["truncate"]
    before = store.segments, store.leo
    if expected["ok"]:
        assert store.truncate(expected["truncate_to"]) == (expected["truncate_to"] != before[1])
    else:
        with pytest.raises(WriteRefusedError) as refused:
            store.truncate(expected["truncate_to"])
        assert refused.value.code == expected["error_code"]
        assert (store.segments, store.leo) == before
    assert store.leo == store.hwm == store.flushed == expected["next_offset"]
    assert list(store.segments) == expected["segments"]


def retain(store: PartitionStore, case: dict[str, Any], log_dir: Path) -> None:
    expected = case["retention"]
    for base in expected.get("aged_segments", []):
        log = log_dir / case["topic"] / layout.segment_log(case["partition"], base)
        age = log.stat().st_mtime_ns - 2 * HOUR_NS
        os.utime(log, ns=(age, age))
    before = store.segments
    result = store.apply_retention()
    assert result.failure is None
    assert list(result.removed) == [base for base in before if base not in expected["segments"]]
    assert list(store.segments) == expected["segments"]
    assert store.log_start == expected["first_offset"]
    for base in store.segments[:-1]:
        log = log_dir / case["topic"] / layout.segment_log(case["partition"], base)
        assert log.stat().st_mode & 0o777 == 0o400


ACTIONS = {"append": append, "compaction": compact, "truncate": truncate, "retention": retain}


def test_the_largest_payload_that_can_be_written(tmp_path: Path) -> None:
    limit = json.loads((SEGMENTS / "vectors.json").read_text("utf-8"))["write_limit"]
    largest = limit["largest_accepted_payload_bytes_for_topic_orders"]
    tmp_path.joinpath("log_dir").mkdir()
    with PartitionStore.open(
        real_file_system(), str(tmp_path / "log_dir"), limit["topic"], 0
    ) as store:
        with pytest.raises(FormatError) as refused:
            store.append(Record(payload=bytes(limit["payload_bytes"])))
        assert refused.value.code == limit["error_code"]
        assert (store.leo, store.active_bytes) == (0, 0)
        assert store.append(Record(payload=bytes(largest))) == 0


def test_every_member_about_writing_is_judged() -> None:
    assert set(WRITING) == {"config", "files_after", "after_dir", *ACTIONS}
