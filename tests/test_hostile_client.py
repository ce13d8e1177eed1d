"""A client that means harm: nothing outside is read, nothing is written, all is shown safely."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import index_help as help_
import pytest
from browse_help import Site

from inspect_db.datasette import pages
from inspect_db.index import schema_objects
from inspect_db.values import name

SMALL = "small-healthy"
BIDI = "\u202e\u2066\u200f"
#: Names that have broken a listing somewhere.
NAMES: list[str | bytes] = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "'; drop table files; --",
    f"{BIDI}gnp.exe",
    "a\0b",
    "{{ 7*7 }}{% raw %}",
    "http://evil.example/",
    "javascript:alert(1)",
    "tab\tnew\nline\x1b[31m",
    "~2E~2E/..%2f..",
    b"\xff\xfe\x80 not UTF-8 <b>",
    "<i>" * 21_845,
    b"\xff<u>" * 16_000,
]


def tree(folder: Path) -> dict[str, str]:
    """Every file below a folder with its digest."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.is_symlink()
    }


@pytest.fixture(scope="module")
def opened() -> list[str]:
    """Paths that this process opens, as the interpreter sees it; SQLite opens its own."""
    found: list[str] = []

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(arguments[0], str | bytes):
            found.append(os.fsdecode(arguments[0]))

    sys.addaudithook(audit)
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index, its evidence, and something beside them that nobody may read."""
    found = tmp_path_factory.mktemp("hostile")
    shutil.copy(help_.built(SMALL), found / "index.db")
    shutil.copytree(help_.log_dir(SMALL), found / "evidence", symlinks=True)
    connection = sqlite3.connect(found / "secret.db")
    connection.execute("create table secret as select 'SECRET' as word")
    connection.commit()
    connection.close()
    (found / "secret.log").write_bytes(b"SECRET")
    return found


@pytest.fixture(scope="module")
def own(folder: Path) -> Site:
    return Site({"index": folder / "index.db"}, {"index": folder / "evidence"})


@pytest.fixture(autouse=True)
def nothing_is_written(folder: Path) -> Iterator[None]:
    before = tree(folder)
    yield
    assert tree(folder) == before


# -- SQL ------------------------------------------------------------------------------------------

STATEMENTS = [
    "attach database '{folder}/secret.db' as s",
    "attach '{folder}/new.db' as s",
    "detach main",
    "pragma query_only = 0",
    "pragma journal_mode = wal",
    "pragma writable_schema = 1",
    "pragma temp_store_directory = '{folder}'",
    "vacuum into '{folder}/copy.db'",
    "insert into files select * from files",
    "delete from files",
    "drop table files",
    "create table t (a)",
    "create temp table t (a)",
    "with a as (select 1) delete from files",
    "with a as (select 1) insert into build select * from build",
    "with a as (select 1) update files set path = 'x'",
    "explain delete from files; delete from files",
    "select 1; attach '{folder}/secret.db' as s",
    "select load_extension('{folder}/x.so')",
    "select readfile('{folder}/secret.log')",
    "select writefile('{folder}/new', 'x')",
    "select edit('x')",
    "select fts3_tokenizer('simple', x'00')",
    "select * from pragma_journal_mode('wal')",
    "select * from pragma_query_only(0)",
    "select * from fsdir('{folder}')",
    "select * from secret",
    "select word from s.secret",
    "select randomblob(1000000000)",
    "select length(zeroblob(2000000000))",
    "select hex(zeroblob(900000000))",
]


@pytest.mark.parametrize("statement", STATEMENTS)
def test_only_this_index_is_read(own: Site, folder: Path, statement: str) -> None:
    response = own.get("/index.json", params={"sql": statement.format(folder=folder)})
    assert response.status_code == 400, response.text
    assert "SECRET" not in response.text
    page = own.get("/index", params={"sql": statement.format(folder=folder)})
    assert page.status_code == 400
    assert own.rows("index", "select count(*) from sqlite_schema where name = 't'") == [[0]]


def test_the_authorizer_refuses_on_the_connection_itself(own: Site, folder: Path) -> None:
    """Also without the check of Datasette in front of it."""

    async def ask(sql: str) -> str:
        try:
            await own.datasette.get_database("index").execute_fn(
                lambda connection: connection.execute(sql).fetchall()
            )
        except sqlite3.DatabaseError as error:
            return str(error)
        return "done"

    for statement in STATEMENTS[:17]:
        told = own._run(ask(statement.format(folder=folder)))
        assert told != "done", statement
    assert own._run(ask("pragma query_only = 0")) == "not authorized"
    assert own._run(ask(f"attach '{folder}/secret.db' as s")) in {
        "not authorized",
        "too many attached databases - max 0",
    }


def test_a_query_that_does_not_end_is_ended(own: Site) -> None:
    endless = (
        "with recursive n (n) as (select 1 union all select n + 1 from n) select count(*) from n"
    )
    response = own.get("/index.json", params={"sql": endless})
    assert response.status_code == 400
    assert "interrupted" in response.text.lower() or "too long" in response.text.lower()


# -- addresses ------------------------------------------------------------------------------------

TRICKS = [
    "..",
    "../../etc/passwd",
    "..%2f..%2fetc%2fpasswd",
    "~2E~2E~2Fsecret~2Elog",
    "%2e%2e/secret.log",
    "....//secret.log",
    "/etc/passwd",
    "%00",
    "~00",
    "~",
    "~G0",
    "~sha256-",
    "~sha256-" + "0" * 64,
    "%ff%fe",
    "a" * 20_000,
    "%F0%9F%92%A9",
    "'%20or%201=1%20--",
    "{{7*7}}",
    "%3Cscript%3Ealert(1)%3C/script%3E",
    "-1",
    "99999999999999999999",
    "9" * 400,
    "9223372036854775808",
    "٣",
    "1e5",
    "0x10",
    "1.json.json",
    "null",
]
PLACES = [
    "/-/cursus/{}",
    "/-/cursus/{}/verdict.json",
    "/-/cursus/index/{}",
    "/-/cursus/index/group/{}",
    "/-/cursus/index/group/{}.json",
    "/-/cursus/index/topic/{}",
    "/-/cursus/index/topic/orders/{}",
    "/-/cursus/index/record/{}/0",
    "/-/cursus/index/record/9/{}",
    "/-/cursus/index/record/{}/{}",
    "/-/cursus/index/at/{}",
    "/-/cursus/index/at/{}/0",
    "/-/static-plugins/cursus-storage/{}",
    "/-/static-plugins/cursus-storage/../../../{}",
]


@pytest.mark.parametrize("place", PLACES)
def test_no_address_leads_elsewhere(own: Site, folder: Path, opened: list[str], place: str) -> None:
    own.page("/-/cursus/index/")
    opened.clear()
    for trick in TRICKS:
        if "static" in place and len(trick) > 300:
            continue  # Datasette's own: a name too long for a file is an error there
        response = own.get(place.replace("{}", trick))
        assert response.status_code in {200, 302, 400, 404}, (
            place,
            trick[:40],
            response.text[:300],
        )
        assert "SECRET" not in response.text
        assert "root:" not in response.text
        assert "<script>alert" not in response.text
        if response.status_code == 302:
            assert response.headers["location"].startswith("/")
            assert not response.headers["location"].startswith("//")
    allowed = (str(folder / "index.db"), str(folder / "evidence"))
    outside = {
        path
        for path in opened
        if path.startswith("/") and not path.startswith(allowed) and not _own_code(path)
    }
    assert outside == set()
    assert not [path for path in opened if "passwd" in path or "secret" in path]


def _own_code(path: str) -> bool:
    """Modules, templates and style sheets."""
    return path.startswith((sys.prefix, sys.base_prefix, str(Path(pages.__file__).parent)))


@pytest.mark.parametrize("method", ["post", "put", "delete", "patch"])
def test_other_methods_change_nothing(own: Site, method: str) -> None:
    for path in ("/-/cursus/index/", "/-/cursus/index/record/9/0", "/-/cursus"):
        response = own._run(getattr(own.datasette.client, method)(path))
        assert response.status_code in {200, 403, 405}


# -- what stands in the index --------------------------------------------------------------------

HOSTILE_COLUMNS = {
    *("group_name", "topic", "key", "producer", "transactional_id", "path", "message"),
}


@pytest.fixture(scope="module")
def forged(folder: Path) -> Site:
    """An index in which every name of every table is one of the hostile ones."""
    path = folder / "forged.db"
    shutil.copy(folder / "index.db", path)
    connection = sqlite3.connect(path)
    for item in schema_objects().values():
        if item.type != "table":
            continue
        for _, column, *_ in connection.execute(f"pragma table_info({item.name})").fetchall():
            if column not in HOSTILE_COLUMNS:
                continue
            values = connection.execute(
                f"select distinct {column} from {item.name} where {column} is not null limit 13"
            ).fetchall()
            for at, (value,) in enumerate(values):
                hostile = name(NAMES[at % len(NAMES)])
                connection.execute(
                    f"update or ignore {item.name} set {column} = ? where {column} = ?",
                    (hostile, value),
                )
    connection.commit()
    connection.close()
    return Site({"forged": path}, {"forged": folder / "evidence"})


CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2066-\u2069]")
MARKUP = ("<script>alert", "<img src=x", "<i><i>", "<u>", "<b>")


def test_our_pages_show_hostile_names_safely(forged: Site) -> None:
    waiting, seen = ["/-/cursus/forged/"], set()
    while waiting and len(seen) < 80:
        path = waiting.pop(0)
        if path in seen or path.endswith(".json"):
            continue
        seen.add(path)
        response = forged.get(path, follow_redirects=True)
        assert response.status_code == 200, (path, response.text[-300:])
        text = response.text
        if "/forged/files/" not in str(response.url):
            assert CONTROL.search(text) is None, path
        for markup in MARKUP:
            assert markup not in text, path
        assert "javascript:" not in "".join(re.findall(r'href="([^"]*)"', text))
        links = [link for link in re.findall(r'href="([^"#]*)"', text) if "/-/cursus/" in link]
        waiting += sorted(set(links) - seen)
        assert all(len(link) < 1500 for link in links)
    assert len(seen) > 40


def test_tables_show_hostile_names_safely(forged: Site) -> None:
    for table in schema_objects():
        response = forged.get(f"/forged/{table}?_size=20")
        assert response.status_code == 200, (table, response.text[-300:])
        for markup in MARKUP:
            assert markup not in response.text, table
        assert 'href="http://evil' not in response.text
        assert 'href="javascript' not in response.text


def test_documents_keep_hostile_names_whole(forged: Site) -> None:
    document = forged.json("/-/cursus/forged/overview.json")
    groups = {item["group_name"] for item in document["groups"]}
    wanted = {
        value if isinstance(value, str) else value.decode("utf-8", "surrogateescape")
        for value in NAMES
    }
    assert len(groups & wanted) >= 5


@pytest.mark.parametrize(
    "statement",
    [
        "update files set path = x'ff', type = 'file', size = -5 where file_id = 9",
        "update files set size = 9223372036854775807",
        "update files set size = 5, device = -1",
        "update findings set position = 9223372036854775807, length = 9223372036854775807",
        "update findings set step = 99",
        "update findings set path = 12.5",
        "update recovery_steps set outcome = '<script>'",
        "update recovery_steps set step = step + 100",
        "update build set verdict = '<script>alert(1)</script>'",
        "update build set log_dir = 17",
        "update segments set base_offset = 'x', expected_next = -1",
        "update segments set base_offset = -9223372036854775807 - 1, expected_next = 1",
        "update partitions set log_start = x'00', log_end = 'y'",
        "update partitions set log_start = 1.5, hwm_effective = -1",
        "update replayed_groups set epoch = '99999999999999999999', topic = 5",
        "update offset_snapshot_items set item_offset = '-0000000000000000001', change = 'z'",
        "update record_rows set record_offset = 'abc', key = 12",
        "update finding_codes set severity = 'info', meaning = '<b>'",
        "delete from build",
        "delete from recovery_steps",
        "drop table findings",
        "drop view records",
        "alter table files rename column path to other",
    ],
)
def test_an_index_that_no_build_makes_gets_an_answer(
    folder: Path, tmp_path: Path, statement: str
) -> None:
    """No page fails without words, and none shows what stands there as markup."""
    path = tmp_path / "index.db"
    shutil.copy(folder / "index.db", path)
    connection = sqlite3.connect(path)
    connection.execute("pragma legacy_alter_table = 1")
    connection.execute(statement)
    connection.commit()
    connection.close()
    own = Site({"index": path}, {"index": folder / "evidence"})
    for page in ("", "group/billing", "topic/orders", "topic/orders/0", "record/9/0", "at/orders"):
        for twin in ("", ".json"):
            response = own.get(
                f"/-/cursus/index/{page or 'overview'}{twin}"
                if page or twin
                else "/-/cursus/index/"
            )
            assert response.status_code in {200, 302, 404, 500, 503}, response.text[:300]
            assert "Traceback" not in response.text
            assert "<script>" not in response.text.replace("<script>", "", 0) or twin
            if response.status_code in {500, 503}:
                assert "build it again" in response.text or "SQLite says" in response.text
    own.get("/-/cursus/index/verdict.json")


# -- the policy ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "/-/cursus",
        "/-/cursus/index/",
        "/-/cursus/index/group/billing",
        "/-/cursus/index/group/billing.json",
        "/-/cursus/index/topic/orders",
        "/-/cursus/index/topic/orders/0",
        "/-/cursus/index/record/9/0",
        "/-/cursus/index/verdict.json",
        "/-/cursus/index/inventory.json",
        "/-/cursus/index/group/nobody",
        "/-/cursus/nothing",
        "/-/cursus/index/no/such/page",
        "/-/cursus/index/at/nowhere",
    ],
)
def test_every_answer_of_ours_has_the_policy(own: Site, path: str) -> None:
    response = own.get(path)
    policy = dict(
        part.strip().split(" ", 1)
        for part in response.headers["content-security-policy"].split(";")
    )
    assert policy["default-src"] == "'none'"
    assert policy["style-src"] == "'self'"
    assert policy["frame-ancestors"] == "'none'"
    assert "script-src" not in policy
    assert response.headers["x-content-type-options"] == "nosniff"
    text = response.text
    if "html" in response.headers["content-type"]:
        assert re.search(r"<script|\son\w+=|\sstyle=|<style", text) is None
        assert text.startswith("<!DOCTYPE html>")


def test_permissions_of_datasette_are_kept(folder: Path) -> None:
    """Whoever may not see the database sees no page of it."""
    own = Site(
        {},
        files=[folder / "index.db"],
        metadata={"databases": {"index": {"allow": {"id": "root"}}}},
    )
    for path in ("", "group/billing", "verdict.json", "record/9/0"):
        assert own.get(f"/-/cursus/index/{path}").status_code == 403
    assert "index" not in re.findall(r'href="/-/cursus/(\w+)"', own.page("/-/cursus"))
    cookie = {"ds_actor": own.datasette.sign({"a": {"id": "root"}}, "actor")}
    assert own.get("/-/cursus/index/", cookies=cookie).status_code == 200


def test_errors_in_json_are_json(own: Site) -> None:
    response = own.get("/-/cursus/index/group/nobody.json")
    assert (response.status_code, json.loads(response.text)["ok"]) == (404, False)
