"""An index is an ordinary SQLite file: Python's own sqlite3 and apsw read all of it alike."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import index_help
import pytest
from click.testing import CliRunner

from cursus.formats import record as codec
from inspect_db import fixtures, load, queries_catalogue
from inspect_db.cli import cli
from inspect_db.index import SCHEMA_VERSION, IndexFileError, open_index, schema_objects
from inspect_db.values import from_number, name, number

NAMES = ("small-healthy", "values-at-the-edge")
EDGES = (0, 1, 2**53 + 1, 2**63 - 1, 2**63, 2**63 + 1, 2**64 - 1)
#: Asked for where a query requires a parameter or takes one.
ASKED = {"group": "edge", "key": "k0", "topic": "ledger", "id": "tx", "partition": "0"}
#: Everything that reads an index.
COMMANDS = ("query", "digest", "shell", "verdict", "findings", "inventory")


@pytest.fixture(params=NAMES)
def index(request: pytest.FixtureRequest) -> Path:
    return index_help.built(str(request.param))


@pytest.fixture
def both(index: Path) -> Iterator[tuple[sqlite3.Connection, apsw.Connection]]:
    plain = sqlite3.connect(f"file:{index}?mode=ro", uri=True)
    other = open_index(str(index))
    yield plain, other
    plain.close()
    other.close()


def answers(
    both: tuple[sqlite3.Connection, apsw.Connection],
    sql: str,
    values: dict[str, Any],
    ordered: bool = True,
) -> tuple[list[str], list[Any]]:
    """The answer of both libraries, which is one; a query also says in which order."""
    plain, other = both
    cursor = plain.execute(sql, values)
    columns = [item[0] for item in cursor.description]
    found = cursor.fetchall()
    names, rows = queries_catalogue.execute(other, sql, values)
    assert list(names) == columns
    others = list(rows)
    assert (others if ordered else sorted(others, key=repr)) == (
        found if ordered else sorted(found, key=repr)
    )
    return columns, found


def test_every_table_and_view_opens(
    both: tuple[sqlite3.Connection, apsw.Connection],
) -> None:
    listed = {
        str(row[0])
        for row in both[0].execute(
            "select name from sqlite_schema where type in ('table', 'view') "
            "and name not like 'sqlite_%'"
        )
    }
    assert listed == set(schema_objects())
    for item in sorted(listed):
        columns, _ = answers(both, f'select * from "{item}"', {}, ordered=False)
        assert len(set(columns)) == len(columns)


@pytest.mark.parametrize("query", sorted(queries_catalogue.named_queries()))
def test_every_named_query_runs(
    both: tuple[sqlite3.Connection, apsw.Connection], query: str
) -> None:
    item = queries_catalogue.get(query)
    given = [{p.name: ASKED[p.name] for p in item.parameters if p.required}]
    given.append({p.name: ASKED[p.name] for p in item.parameters if p.name in ASKED})
    for values in given:
        columns, _ = answers(both, item.sql, item.bind(values))
        assert columns


def test_the_file_is_sound_and_its_tables_strict(index: Path) -> None:
    assert index_help.rows(index, "pragma integrity_check") == [("ok",)]
    assert index_help.rows(index, "pragma foreign_key_check") == []
    tables = index_help.rows(
        index,
        "select name, sql from sqlite_schema where type = 'table' and name not like 'sqlite_%'",
    )
    for table, sql in tables:
        assert " strict" in str(sql).rpartition(")")[2].lower(), table


def test_the_index_is_not_in_wal_and_stands_alone(index: Path) -> None:
    assert index_help.rows(index, "pragma journal_mode") == [("delete",)]
    # Bytes 18 and 19 of the header: 1 is a rollback journal, 2 is WAL.
    assert index.read_bytes()[18:20] == b"\x01\x01"
    with closing(open_index(str(index))) as connection:
        connection.execute("select count(*) from files").fetchall()
        beside = [item.name for item in index.parent.iterdir() if index.name in item.name]
    assert beside == [index.name]


def test_leftovers_of_an_older_index_go(tmp_path: Path) -> None:
    target = tmp_path / "index.db"
    for suffix in ("-wal", "-shm", "-journal"):
        (tmp_path / f"index.db{suffix}").write_bytes(b"left by another program")
    load.build(
        str(index_help.log_dir("small-healthy")),
        str(target),
        load.BuildOptions(index_help.FIXTURES["small-healthy"].as_of),
    )
    assert [item.name for item in tmp_path.iterdir()] == ["index.db"]


# -- another version -----------------------------------------------------------------------


@pytest.fixture(params=[0, SCHEMA_VERSION + 1, 2**31 - 1])
def other_version(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    target = tmp_path / "the old index.db"
    shutil.copyfile(index_help.built("small-healthy"), target)
    connection = sqlite3.connect(target)
    connection.execute(f"pragma user_version = {request.param}")
    connection.commit()
    connection.close()
    return target


def rebuild_command(target: Path) -> str:
    return f"inspect-db build {index_help.log_dir('small-healthy')} -o '{target}'"


def test_another_version_is_refused_with_the_command(other_version: Path) -> None:
    with pytest.raises(IndexFileError) as refusal:
        open_index(str(other_version))
    assert f"this release reads {SCHEMA_VERSION}" in str(refusal.value)
    assert rebuild_command(other_version) in str(refusal.value)


def test_every_command_refuses_another_version(other_version: Path) -> None:
    for command in COMMANDS:
        more = ["segments"] if command == "query" else []
        result = CliRunner().invoke(cli, [command, str(other_version), *more])
        assert result.exit_code == 1, command
        assert rebuild_command(other_version) in result.stderr, command


def test_that_command_builds_it(other_version: Path) -> None:
    log_dir = str(index_help.log_dir("small-healthy"))
    result = CliRunner().invoke(cli, ["build", log_dir, "-o", str(other_version)])
    assert result.exit_code == 0, result.output
    open_index(str(other_version)).close()


# -- values ----------------------------------------------------------------------------------


def test_numbers_at_the_edge_survive_and_sort() -> None:
    index = index_help.built("values-at-the-edge")
    revisions = index_help.rows(
        index, "select revision from offset_snapshots where group_name = 'edge' order by revision"
    )
    found = [from_number(row[0]) for row in revisions if isinstance(row[0], (int, str))]
    assert found[-3:] == [2**63 - 1, 2**63, 2**64 - 1]
    offsets = index_help.rows(
        index,
        "select item_offset from offset_snapshot_items order by item_offset",
    )
    read = [from_number(row[0]) for row in offsets if isinstance(row[0], (int, str))]
    assert read == [0, 0, 1, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1]
    assert index_help.rows(
        index,
        "select group_name, partition_count from replayed_groups where partition_count > 4",
    ) == [("wide", 2**63 - 1)]


@pytest.mark.parametrize("library", ["sqlite3", "apsw"])
def test_a_number_at_the_edge_is_found_by_a_parameter(library: str) -> None:
    index = index_help.built("values-at-the-edge")
    sql = "select item_partition from offset_snapshot_items where item_offset = ?"
    for value, partition in ((2**63 - 1, 0), (2**63, 1), (2**64 - 1, 0)):
        if library == "sqlite3":
            found = index_help.rows(index, sql, number(value))
        else:
            with closing(open_index(str(index))) as connection:
                found = connection.execute(sql, (number(value),)).fetchall()
        assert found == [(partition,)]


KEYS = (b"plain", "Straße 🚚".encode(), b"a\0b", b"\xff\xfe", b"\xc3(", b"\0", b"a" * 65_535)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Records whose keys are no text, and whose numbers fill 64 bits."""
    place = tmp_path_factory.mktemp("hostile")
    log_dir = fixtures.materialise(index_help.FIXTURES["values-at-the-edge"], place)
    path = log_dir / "ledger" / "partition_0_segment_00000000000000000000.log"
    (log_dir / "ledger" / "partition_0.hwm").unlink()
    made: Sequence[tuple[bytes, int]] = [(key, 1) for key in KEYS] + [(b"v", v) for v in EDGES]
    path.write_bytes(
        b"".join(
            codec.encode_frame(
                codec.Record(
                    topic=b"ledger",
                    partition=0,
                    offset=at,
                    payload=b"x",
                    key=key,
                    aggregate_version=version,
                    sequence=version,
                    producer_id=b"p\0\xff",
                )
            )
            for at, (key, version) in enumerate(made)
        )
    )
    (log_dir / "ledger" / os.fsdecode(b"no\xff utf-8")).write_bytes(b"")
    target = place / "index.db"
    load.build(str(log_dir), str(target), load.BuildOptions(0))
    return target


def test_names_survive(hostile: Path) -> None:
    where = "where topic = 'ledger' and partition = 0"
    found = index_help.rows(hostile, f"select key from records {where} order by record_offset")
    assert [row[0] for row in found[: len(KEYS)]] == [name(key) for key in KEYS]
    kinds = index_help.rows(
        hostile, f"select typeof(key) from records {where} order by record_offset"
    )
    assert [row[0] for row in kinds[: len(KEYS)]] == ["text", "text", *["blob"] * 4, "text"]
    for key in KEYS:
        sql = f"select count(*) from records {where} and key = ?"
        assert index_help.rows(hostile, sql, name(key)) == [(1,)]
    producers = index_help.rows(hostile, f"select distinct producer from records {where}")
    assert producers == [(b"p\0\xff",)]
    paths = index_help.rows(hostile, "select path from files where typeof(path) = 'blob'")
    assert paths == [(b"ledger/no\xff utf-8",)]


def test_names_sort_by_their_bytes_text_before_others(hostile: Path) -> None:
    found = index_help.rows(
        hostile, "select distinct key from records where sequence = 1 and key <> 'v' order by key"
    )
    text = sorted(key for key in KEYS if isinstance(name(key), str))
    other = sorted(key for key in KEYS if isinstance(name(key), bytes))
    assert [row[0] for row in found] == [name(key) for key in (*text, *other)]


@pytest.mark.parametrize("column", ["sequence", "aggregate_version"])
def test_numbers_of_records_sort_over_64_bits(hostile: Path, column: str) -> None:
    found = index_help.rows(
        hostile, f"select {column} from records where key = 'v' order by {column} desc"
    )
    read = [from_number(row[0]) for row in found if isinstance(row[0], (int, str))]
    assert read == sorted(EDGES, reverse=True)


def test_a_group_name_with_nul_survives() -> None:
    index = index_help.built("group-names-hostile")
    sql = "select committed_offset from committed_offsets where group_name = ?"
    assert index_help.rows(index, sql, b"a\0b") == [(5,)]
    names = index_help.rows(index, "select group_name from replayed_groups order by group_name")
    assert names[-1] == (b"a\0b",)
    texts = [row[0] for row in names if isinstance(row[0], str)]
    assert texts == sorted(texts, key=str.encode)
    assert len(texts) == len(names) - 1
