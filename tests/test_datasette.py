"""Tables and named queries of an index in Datasette, and databases that are none."""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import httpx
import index_help
import pytest
import rich
import rich.console
from browse_help import Site, site

from inspect_db import load, queries_catalogue
from inspect_db.index import schema_objects
from inspect_db.queries_catalogue import named_queries

SMALL = "small-healthy"
DAMAGED = "damaged-missing-segment"
ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def small() -> Site:
    return site(SMALL, DAMAGED)


def test_the_plugin_is_found_by_its_entry_point(small: Site) -> None:
    found = {item["name"]: item for item in small.json("/-/plugins.json")}
    assert found["cursus-storage"]["static"]
    assert found["cursus-storage"]["templates"]


@pytest.mark.parametrize("table", sorted(schema_objects()))
def test_every_table_is_shown_with_its_descriptions(small: Site, table: str) -> None:
    item = schema_objects()[table]
    page = small.page(f"/{DAMAGED}/{table}?_size=3")
    plain = page.replace("&#34;", '"').replace("&#39;", "'").replace("&gt;", ">")
    assert item.comment in plain
    columns = small.json(f"/{DAMAGED}/{table}.json?_size=1")["columns"]
    described = small.datasette.table_metadata(DAMAGED, table)["columns"]
    assert {column for column in columns if column not in described} <= {"rowid"}


@pytest.mark.parametrize("view", ["records", "record_rows", "aggregate_events"])
def test_views_over_all_records_are_neither_counted_nor_sampled(small: Site, view: str) -> None:
    page = small.json(f"/{SMALL}/{view}.json?_size=2")
    assert page["filtered_table_rows_count"] is None
    assert page["suggested_facets"] == []
    assert small.json(f"/{SMALL}/files.json")["filtered_table_rows_count"] > 0


def given(query: queries_catalogue.NamedQuery) -> dict[str, str]:
    values = {"key": "quote-0001", "group": "billing"}
    return {item.name: values[item.name] for item in query.parameters if item.required}


@pytest.mark.parametrize("name", sorted(named_queries()))
def test_every_named_query_is_a_canned_query(small: Site, name: str) -> None:
    """It gives the rows that the catalogue gives, with its help on the page."""
    query = named_queries()[name]
    connection = sqlite3.connect(index_help.built(SMALL))
    wanted = connection.execute(query.sql, query.bind(given(query))).fetchall()
    connection.close()
    found = small.get(f"/{SMALL}/query-{name}.json", params={"_shape": "arrays", **given(query)})
    assert found.status_code == 200
    assert [tuple(row) for row in found.json()["rows"]] == wanted
    page = small.page(f"/{SMALL}/query-{name}").replace("&#x27;", "'").replace("&gt;", ">")
    assert query.title in page
    assert query.question in page
    for item in query.parameters:
        assert f'name="{item.name}"' in page
        assert item.help in page


def test_a_parameter_that_is_no_number_is_refused_in_words(small: Site) -> None:
    response = small.get(f"/{SMALL}/query-largest_records.json?limit=many")
    assert response.status_code == 400
    assert response.json()["error"] == "a parameter needs a number, not 'many'"
    assert len(small.json(f"/{SMALL}/query-largest_records.json?limit=3")["rows"]) == 3
    assert len(small.json(f"/{SMALL}/query-largest_records.json")["rows"]) == 20


def test_queries_do_not_hide_tables_of_the_same_name(small: Site) -> None:
    assert small.json(f"/{SMALL}/segments.json")["table"] == "segments"


def test_cells_lead_on(small: Site) -> None:
    """From a finding to its file and its bytes, from a segment to its partition."""
    findings = small.page(f"/{DAMAGED}/findings")
    row = small.json(f"/{DAMAGED}/findings.json?_shape=objects&file_id__notnull=1")["rows"][0]
    assert f'href="/{DAMAGED}/files/{row["file_id"]}"' in findings
    assert f'href="/{DAMAGED}/finding_codes/{row["code"]}"' in findings
    segments = small.page(f"/{DAMAGED}/segments")
    assert f'href="/-/cursus/{DAMAGED}/topic/orders/0"' in segments
    lag = small.page(f"/{SMALL}/query-lag")
    assert f'href="/-/cursus/{SMALL}/group/billing"' in lag
    records = small.page(f"/{SMALL}/query-largest_records")
    assert f'href="/-/cursus/{SMALL}/at/' in records
    # and back: the row of a file says what points at it
    assert f"/{DAMAGED}/findings?file_id=" in small.page(f"/{DAMAGED}/files/{row['file_id']}")


def test_figures_carry_their_unit(small: Site) -> None:
    size = small.json(f"/{SMALL}/files.json?_shape=objects&type=file&_size=1")["rows"][0]["size"]
    assert f"{size:,}&nbsp;B" in small.page(f"/{SMALL}/files?type=file&_size=1")


# -- other databases -----------------------------------------------------------------------


@pytest.fixture
def mixed(tmp_path: Path) -> Site:
    """An index, a database of somebody else, and an index of another schema version."""
    foreign, older = tmp_path / "foreign.db", tmp_path / "older.db"
    connection = sqlite3.connect(foreign)
    connection.executescript(
        "create table files (path text, size integer, topic text);"
        "insert into files values ('http://example.org/', 5, 'orders');"
    )
    connection.close()
    shutil.copy(index_help.built(SMALL), older)
    connection = sqlite3.connect(older)
    connection.execute("pragma user_version = 99")
    connection.close()
    return Site({"small": index_help.built(SMALL), "foreign": foreign, "older": older})


def test_other_databases_are_left_alone(mixed: Site) -> None:
    page = mixed.page("/foreign/files")
    assert '<a href="http://example.org/">' in page
    assert "-/cursus/foreign" not in page
    assert "tables.css" not in page
    assert mixed.json("/foreign.json")["queries"] == []
    assert mixed.json("/older.json")["queries"] == []
    assert len(mixed.json("/small.json")["queries"]) == len(named_queries())
    assert type(mixed.datasette.databases["foreign"]).__name__ == "Database"
    assert mixed.refusal("foreign", "select cursus_name('a')") == "no such function: cursus_name"
    metadata = mixed.json("/-/metadata.json")
    assert list(metadata["databases"]) == ["small"]


def test_without_evidence_the_functions_say_what_is_missing(mixed: Site) -> None:
    told = mixed.refusal("small", "select payload(file_id, position) from largest_records")
    assert "--evidence" in told


def test_an_unknown_address_stays_one_where_rich_is_installed(
    mixed: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("datasette.handle_exception.rich", rich)
    response = mixed.get("/no/such/page/at/all")
    assert response.status_code == 404


# -- the file is replaced -------------------------------------------------------------------


def test_a_replaced_index_is_noticed(tmp_path: Path) -> None:
    index = tmp_path / "index.db"
    shutil.copy(index_help.built(SMALL), index)
    own = Site({"index": index})
    sql = "select verdict from build"
    assert own.rows("index", sql) == [["starts_clean"]]
    other = index_help.log_dir("offset-goes-backwards")
    options = load.BuildOptions(index_help.FIXTURES["offset-goes-backwards"].as_of)
    load.build(str(other), str(index), options)
    assert own.rows("index", sql) == [["refuses"]]


def test_a_replaced_index_is_noticed_without_threads(tmp_path: Path) -> None:
    """And whatever the name of its file is."""
    index = tmp_path / "a?b #1%20'é.db"
    shutil.copy(index_help.built(SMALL), index)
    own = Site({}, files=[index], settings={"num_sql_threads": 0})
    (home,) = re.findall(r'href="(/-/cursus/[^"]+)"', own.page("/-/cursus"))
    assert "STARTS CLEAN" in own.page(home)
    shutil.copy(index_help.built("offset-goes-backwards"), tmp_path / "new.db")
    (tmp_path / "new.db").replace(index)
    assert "REFUSES" in own.page(home)


@pytest.mark.parametrize("what", ["pipe", "directory", "nothing", "empty file"])
def test_what_is_no_file_takes_the_place_of_an_index(what: str, tmp_path: Path) -> None:
    """Nobody waits for the other end of a pipe, and other indexes are served on."""
    index = tmp_path / "index.db"
    shutil.copy(index_help.built(SMALL), index)
    own = Site({"index": index, "other": index_help.built("offset-goes-backwards")})
    assert own.rows("index", "select verdict from build") == [["starts_clean"]]
    index.unlink()
    if what == "pipe":
        os.mkfifo(index)
    elif what == "directory":
        index.mkdir()
    elif what == "empty file":
        index.touch()
    for _ in range(6):  # whichever thread answers
        assert own.get("/-/cursus/index/").status_code == 404
        assert own.get("/index/files").status_code == 404
        assert own.get("/index").status_code == 200
        assert "REFUSES" in own.page("/-/cursus/other/")
        assert own.get("/other/files").status_code == 200


def test_a_foreign_database_in_the_place_of_an_index_gets_no_more_rights(tmp_path: Path) -> None:
    index = tmp_path / "index.db"
    shutil.copy(index_help.built(SMALL), index)
    own = Site({"index": index})
    assert own.rows("index", "select verdict from build") == [["starts_clean"]]
    connection = sqlite3.connect(tmp_path / "new.db")
    connection.execute("create table t (a)")
    connection.close()
    (tmp_path / "new.db").replace(index)
    assert own.rows("index", "select count(*) from t") == [[0]]
    assert "not authorized" in own.refusal("index", "select load_extension('x')")


def test_an_index_takes_the_place_of_one_of_another_version(tmp_path: Path) -> None:
    index = tmp_path / "index.db"
    shutil.copy(index_help.built(SMALL), index)
    connection = sqlite3.connect(index)
    connection.execute("pragma user_version = 99")
    connection.close()
    own = Site({"index": index})
    assert own.json("/index.json")["queries"] == []
    shutil.copy(index_help.built(SMALL), tmp_path / "new.db")
    (tmp_path / "new.db").replace(index)
    assert len(own.json("/index.json")["queries"]) == len(named_queries())


# -- the commands ------------------------------------------------------------------------------


def test_make_browse_serves_a_capture_and_leaves_nothing(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "tools" / "browse.py"), "empty-manifest", "--port", "0"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stderr is not None
        lines = [process.stderr.readline(), process.stderr.readline()]
        match = re.search(r"at (http://127\.0\.0\.1:\d+/-/cursus)", lines[1])
        assert match, lines
        page = httpx.get(f"{match[1]}/empty-manifest/")
        process.terminate()
        assert process.wait(30) == 0
    assert page.status_code == 200
    assert '<h1 id="verdict">REFUSES</h1>' in page.text
    assert list(tmp_path.iterdir()) == []
