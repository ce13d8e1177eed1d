"""Twelve checks in SQL and the replay's dispositions: the same answer, both ways."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import apsw
import index_help as help_
import pytest
from test_consumer_replay_vectors import VECTORS, replay

from cursus.findings import Finding
from inspect_db import load
from inspect_db.index import open_index
from inspect_db.values import from_name

_PATTERN = "(select group_name from replayed_groups where instr(topic, '*') or instr(topic, '?'))"


def by_code(connection: apsw.Connection, table: str, *codes: str) -> set[tuple[object, ...]]:
    listed = ", ".join(f"'{code}'" for code in codes)
    condition = f"state = 'live' and code in ({listed})"
    if table == "offset_snapshots":
        condition += f" and group_name not in {_PATTERN}"
    return help_.places(connection, f"select file_id, position from {table} where {condition}")


def by_check(connection: apsw.Connection, check: str, condition: str = "1") -> set[Any]:
    return help_.places(
        connection,
        f"select file_id, position from {check} where {condition} and grp not in {_PATTERN}",
    )


def agree(connection: apsw.Connection, findings: Iterable[Finding], *, declared: bool) -> None:
    told = list(findings)
    q1 = help_.places(
        connection, "select file_id, position from check_q1 where decided = 'conflict'"
    )
    assert q1 == by_code(connection, "lifecycle_records", "lifecycle_conflict")
    q2 = help_.places(connection, "select file_id, position from check_q2")
    assert q2 == help_.places(
        connection,
        "select file_id, position from offset_snapshots where code = 'offset_snapshot_conflict'",
    )
    assert help_.places(connection, "select file_id, position from check_q3") == help_.places(
        connection,
        "select file_id, position from lifecycle_records where disposition = 'lifecycle_current'",
    )
    reasons = {
        "snapshot_no_lifecycle": "no_lifecycle",
        "snapshot_fenced_deleted": "deleted",
        "snapshot_fenced_epoch": "epoch",
    }
    fenced = {
        (file_id, position, reasons[str(disposition)])
        for file_id, position, disposition in connection.execute(
            "select file_id, position, disposition from offset_snapshots where disposition in "
            "('snapshot_no_lifecycle', 'snapshot_fenced_deleted', 'snapshot_fenced_epoch')"
        )
    }
    assert help_.places(connection, "select file_id, position, reason from check_q4") == fenced
    q5, q6 = by_check(connection, "check_q5"), by_check(connection, "check_q6")
    regression = by_code(connection, "offset_snapshots", "snapshot_offset_regression")
    dropped = by_code(connection, "offset_snapshots", "snapshot_dropped_partition")
    assert q5 | q6 == regression | dropped
    assert regression <= q5
    assert dropped <= q6
    assert by_check(connection, "check_q7") == by_code(
        connection, "offset_snapshots", "snapshot_partition_out_of_range"
    )
    assert by_check(connection, "check_q8") == by_code(
        connection, "offset_snapshots", "snapshot_topic_mismatch"
    )
    if declared:
        missing = {i.detail["group"] for i in told if i.code == "group_topic_missing"}
        q9 = {from_name(r[0]) for r in connection.execute("select grp from check_q9")}  # type: ignore[arg-type]
        assert q9 == missing
    q11 = {
        (from_name(group), from_name(topic))  # type: ignore[arg-type]
        for group, topic in connection.execute("select grp, topic from check_q11")
    }
    assert q11 == {
        (i.detail["group"], i.detail["topic"])
        for i in told
        if i.code == "offsets_without_registration" and "group" in i.detail
    }
    assert list(connection.execute("select * from check_q12")) == []


@pytest.mark.parametrize("name", list(help_.FIXTURES))
def test_on_every_fixture(name: str) -> None:
    plan = help_.judged(name)
    connection = open_index(str(help_.built(name)))
    agree(connection, plan.findings, declared=plan.manifest.definitions is not None)
    connection.close()


@pytest.mark.parametrize("vector", VECTORS["replay"], ids=lambda v: str(v["name"]))
def test_on_every_vector(vector: dict[str, Any]) -> None:
    result = replay(vector["records"], max(4, vector["existing_partition_count"]))
    connection = apsw.Connection(":memory:")
    load.create_schema(connection)
    writer = load.Writer(connection, {f"p{number}": number + 1 for number in range(100)})
    load.load_consumers(writer, result, {})
    agree(connection, result.findings, declared=False)


def test_missing_revisions_are_found_beyond_signed_numbers() -> None:
    connection = apsw.Connection(":memory:")
    load.create_schema(connection)
    for position, revision in enumerate(
        [1, 2, 2**63 - 1, "09223372036854775808", "18446744073709551615"]
    ):
        connection.execute(
            "insert into offset_snapshots (file_id, position, length, log_partition, log_offset, "
            "state, disposition, group_name, topic, epoch, revision, timestamp, canonical) values "
            "(1, ?, 1, 0, ?, 'live', 'snapshot_current', 'g', 't', 1, ?, '', x'00')",
            (position, position, revision),
        )
    found = list(connection.execute("select after_revision, revision from check_q10"))
    assert found == [(2, 2**63 - 1), ("09223372036854775808", "18446744073709551615")]
