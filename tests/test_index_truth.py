"""The index against the ground truth of captures, and against the directory itself."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from typing import Any

import index_help as help_
import pytest
from click.testing import CliRunner

from cursus.evidence.walk import LogDirectory
from inspect_db import cli, cli_index, queries_catalogue, stored, verdict
from inspect_db.index import open_index, schema_objects
from inspect_db.values import from_name, from_number, number

HEALTHY = ["small-healthy", "shop-healthy", "shop-killed"]
CAPTURES = [name for name in help_.FIXTURES if (help_.ROOT / name / "expected.json").exists()]


def truth(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((help_.ROOT / name / "expected.json").read_text("utf-8"))
    return found


@pytest.mark.parametrize("name", HEALTHY)
def test_groups_epochs_offsets_and_revisions(name: str) -> None:
    path = help_.built(name)
    expected = truth(name)["consumer_groups"]
    groups = {
        row[0]: row[1:]
        for row in help_.rows(
            path, "select group_name, state, epoch, topic, partition_count from consumer_groups"
        )
    }
    assert set(groups) == set(expected)
    offsets: dict[Any, dict[Any, dict[str, Any]]] = {}
    for group, topic, partition, offset in help_.rows(
        path, "select group_name, topic, partition, committed_offset from committed_offsets"
    ):
        offsets.setdefault(group, {}).setdefault(topic, {})[str(partition)] = offset
    revisions: dict[Any, dict[Any, Any]] = {}
    for group, topic, revision in help_.rows(path, "select * from replayed_revisions"):
        revisions.setdefault(group, {})[topic] = revision
    for group, want in expected.items():
        assert groups[group][:2] == (want["state"], want["epoch"])
        if want["state"] == "live":
            assert groups[group][2:] == (want["topic"], want["partition_count"])
            assert offsets.get(group, {}) == want["committed"]
            assert revisions.get(group, {}) == want["revisions"]


@pytest.mark.parametrize("name", HEALTHY)
def test_partitions_and_segments(name: str) -> None:
    path = help_.built(name)
    for topic, want in truth(name)["topics"].items():
        for part in want["partitions"]:
            key = (topic, part["partition"])
            found = help_.rows(
                path,
                "select log_start, first_offset, record_count, hwm_checkpoint from partitions "
                "where topic = ? and partition = ?",
                *key,
            )
            assert found == [
                (
                    part["log_start_base"],
                    part["first_offset"],
                    part["records"],
                    part["hwm_checkpoint"],
                )
            ], key
            segments = help_.rows(
                path,
                "select base_offset, first_offset, last_offset, record_count, active from segments "
                "where topic = ? and partition = ? and deleted = 0 order by base_offset",
                *key,
            )
            assert segments == [
                (
                    s["base_offset"],
                    s["first_offset"],
                    s["last_offset"],
                    s["records"],
                    int(s["active"]),
                )
                for s in part["segments"]
            ]


@pytest.mark.parametrize("name", HEALTHY)
def test_records_one_row_each(name: str) -> None:
    totals = truth(name)["totals"]
    path = help_.built(name)
    counts = Counter(
        dict(
            help_.rows(
                path,
                "select topic = '__consumer_offsets', count(*) from records "
                "where reachable = 1 and deleted = 0 group by 1",
            )
        )
    )
    control = help_.rows(path, "select sum(control) from segment_sums")[0][0]
    assert control == totals["control_records_on_disk"]
    assert counts[0] in {  # type: ignore[index]
        totals["application_records_on_disk"],
        totals["application_records_on_disk"] + totals["control_records_on_disk"],
        totals["application_records_on_disk"]
        + totals["control_records_on_disk"]
        + totals["transactional_data_records_on_disk"],
    }


@pytest.mark.parametrize("name", HEALTHY)
def test_journal_and_transactions(name: str) -> None:
    path = help_.built(name)
    expected = truth(name)
    assert help_.rows(path, "select count(*) from journal_frames where salvage = 0") == [
        (expected["journal"]["frames"],)
    ]
    found = {
        row[0]: row[1:]
        for row in help_.rows(
            path,
            "select transactional_id, producer, epoch, state, revision, ready, expired, "
            "staged_records, staged_offsets from transactions",
        )
    }
    assert set(found) == set(expected["transactions"])
    for transaction, want in expected["transactions"].items():
        assert found[transaction] == (
            want["producer"],
            want["epoch"],
            want["state"],
            want["revision"],
            int(want["ready"]),
            int(want["expired"]),
            len(want["staged_messages"] or ()),
            len(want["staged_offsets"] or ()),
        )


@pytest.mark.parametrize("name", HEALTHY)
def test_producers_after_a_start(name: str) -> None:
    path = help_.built(name)
    for topic, want in truth(name)["topics"].items():
        for part in want["partitions"]:
            found = {
                row[0]: {"epoch": row[1], "seq": row[2]}
                for row in help_.rows(
                    path,
                    "select producer, effective_epoch, effective_sequence from producer_states "
                    "where topic = ? and partition = ?",
                    topic,
                    part["partition"],
                )
            }
            assert found == part["producers_after_start"]


@pytest.mark.parametrize("name", CAPTURES)
def test_inventory_is_that_of_the_reference_byte_for_byte(name: str) -> None:
    reference = help_.ROOT / name / "inventory.json"
    connection = open_index(str(help_.built(name)))
    found = stored.reference_inventory(connection)
    connection.close()
    if not reference.exists():
        assert found is None
    else:
        assert found == reference.read_bytes()


@pytest.mark.parametrize("name", list(help_.FIXTURES))
def test_verdict_findings_and_inventory_are_those_of_the_directory(name: str) -> None:
    path, plan = str(help_.built(name)), help_.judged(name)
    assert cli_index.verdict_document(path) == verdict.verdict_json(plan)
    assert cli_index.verdict_page(path) == list(verdict.page(plan))
    whole = list(verdict.page(plan, everything=True))
    assert cli_index.verdict_page(path, everything=True) == whole
    assert cli_index.finding_rows(path) == [cli.finding_row(item) for item in plan.findings]
    with LogDirectory.at(str(help_.log_dir(name))) as evidence:
        assert cli_index.inventory_rows(path) == list(cli.inventory_rows(evidence))


@pytest.mark.parametrize("name", list(help_.FIXTURES))
def test_sqlite3_of_python_opens_every_table_view_and_query(name: str) -> None:
    path = help_.built(name)
    own = sqlite3.connect(path)
    other = open_index(str(path))
    for item in schema_objects():
        if item == "records" and name.startswith("shop"):
            continue
        statement = f"select * from {item}"
        found_by_own = sorted(map(repr, own.execute(statement)))
        assert found_by_own == sorted(map(repr, other.execute(statement))), item
    for query in queries_catalogue.named_queries().values():
        given = {p.name: "mailer" for p in query.parameters if p.required}
        _, found = queries_catalogue.run(other, query, given)
        assert own.execute(query.sql, query.bind(given)).fetchall() == list(found), query.name
    own.close()
    other.close()


def test_every_object_and_column_has_a_comment() -> None:
    objects = schema_objects()
    connection = open_index(str(help_.built("small-healthy")))
    names = [
        row[0]
        for row in connection.execute(
            "select name from sqlite_schema where type in ('table', 'view')"
        )
    ]
    assert set(names) == set(objects)
    for name in names:
        columns = {
            str(r[0]) for r in connection.execute(f"select name from pragma_table_info('{name}')")
        }
        assert columns <= set(objects[str(name)].columns), name
    connection.close()


def test_values_at_the_edge_survive_and_sort() -> None:
    facts = help_.FIXTURES["values-at-the-edge"].case["inspector"]["facts"]
    path = help_.built("values-at-the-edge")
    edge = facts["groups"]["edge"]
    offsets = {
        str(row[0]): from_number(row[1])  # type: ignore[arg-type]
        for row in help_.rows(
            path,
            "select partition, committed_offset from committed_offsets where group_name = 'edge'",
        )
    }
    assert offsets == {key: int(value) for key, value in edge["offsets"]["ledger"].items()}
    (epoch,) = help_.rows(path, "select epoch from consumer_groups where group_name = 'edge'")[0]
    assert from_number(epoch) == int(edge["epoch"])  # type: ignore[arg-type]
    order = help_.rows(
        path,
        "select distinct revision from offset_revisions where group_name = 'edge' "
        f"and epoch = '{epoch}' order by revision",
    )
    assert [str(from_number(row[0])) for row in order] == facts["revision_order_of_edge"]  # type: ignore[arg-type]
    assert help_.rows(path, "select * from check_q5") == []
    assert help_.rows(path, "select * from offset_regressions") == []
    wide = facts["groups"]["wide"]
    assert help_.rows(
        path, "select epoch, partition_count from consumer_groups where group_name = 'wide'"
    ) == [(number(int(wide["epoch"])), int(wide["partition_count"]))]


def test_hostile_names_survive() -> None:
    facts = help_.FIXTURES["group-names-hostile"].case["inspector"]["facts"]
    path = help_.built("group-names-hostile")
    found = {
        from_name(row[0]): row[1]  # type: ignore[arg-type]
        for row in help_.rows(path, "select group_name, committed_offset from committed_offsets")
    }
    for name, offset in facts["committed_offset_of_name"].items():
        assert found[name] == offset
    assert max(len(name.encode()) for name in found) == facts["longest_name_bytes"]
    nul = help_.rows(
        path, "select typeof(group_name) from consumer_groups where group_name = x'610062'"
    )
    assert nul == [("blob",)]


def test_dispositions_of_a_group_met_newest_first() -> None:
    facts = help_.FIXTURES["recreated-group-wrong-order"].case["inspector"]["facts"]
    path = help_.built("recreated-group-wrong-order")
    for want in facts["dispositions"]:
        assert help_.rows(
            path,
            "select disposition from consumer_records as r join files as f using (file_id) "
            "where f.path = ? and r.position = ?",
            want["path"],
            want["position"],
        ) == [(want["disposition"],)]


@pytest.mark.parametrize("command", ["verdict", "findings"])
@pytest.mark.parametrize("flag", ["--as-of=2026-09-15T12:00:00Z", "--config=/dev/null"])
def test_an_index_is_not_judged_anew(command: str, flag: str) -> None:
    done = CliRunner().invoke(cli.cli, [command, str(help_.built("small-healthy")), flag])
    assert done.exit_code == 2
    assert f"{flag.partition('=')[0]} does not apply to an index" in done.stderr
