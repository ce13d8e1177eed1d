"""Building an index: equality of content, faults on the way, memory and size."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import apsw
import index_help as help_
import pytest

from cursus.formats.record import Record, decode, encode_frame
from inspect_db import cli, digest, fixtures, load, models, queries_catalogue, values
from inspect_db.index import IndexFileError, is_index, open_index

NAME = "small-healthy"


@pytest.fixture
def evidence(tmp_path: Path) -> Path:
    return fixtures.materialise(help_.FIXTURES[NAME], tmp_path / "evidence")


def options(**changes: object) -> load.BuildOptions:
    settings = {"as_of": help_.FIXTURES[NAME].as_of} | changes
    return load.BuildOptions(**settings)  # type: ignore[arg-type]


def digest_of(path: Path) -> str:
    connection = open_index(str(path))
    try:
        return digest.digest(connection)
    finally:
        connection.close()


def once(action: Callable[[], object]) -> load.Progress:
    done: list[int] = []

    def progress(_: int, __: int) -> None:
        if not done:
            done.append(1)
            action()

    return progress


# -- equality ----------------------------------------------------------------------------


def test_same_evidence_same_digest_wherever_and_whenever(evidence: Path, tmp_path: Path) -> None:
    load.build(str(evidence), str(tmp_path / "a.db"), options())
    copy = tmp_path / "elsewhere" / "copied"
    shutil.copytree(evidence, copy)
    for path in copy.rglob("*"):
        os.utime(path, (1_700_000_000, 1_700_000_000))
        path.chmod(0o755 if path.is_dir() else 0o600)
    later = help_.FIXTURES[NAME].as_of + 400 * 86_400 * 10**9
    load.build(str(copy), str(tmp_path / "b.db"), options(as_of=later))
    assert digest_of(tmp_path / "a.db") == digest_of(tmp_path / "b.db")


def test_jobs_do_not_change_the_digest(evidence: Path, tmp_path: Path) -> None:
    for jobs in ("1", "4"):
        arguments = ["build", str(evidence), "-o", str(tmp_path / f"{jobs}.db"), "--jobs", jobs]
        assert cli.run(arguments) == 0
    assert digest_of(tmp_path / "1.db") == digest_of(tmp_path / "4.db")


@pytest.mark.parametrize("records", ["all", "none"])
def test_one_byte_of_a_payload_changes_the_digest(
    evidence: Path, tmp_path: Path, records: str
) -> None:
    load.build(str(evidence), str(tmp_path / "a.db"), options(records=records))
    ((path, position, length),) = help_.rows(
        help_.built(NAME),
        "select path, position, length from records where topic = 'orders' "
        "order by payload_bytes desc limit 1",
    )
    assert isinstance(position, int)
    assert isinstance(length, int)
    log = evidence / str(path)
    data = bytearray(log.read_bytes())
    payload = decode(bytes(data[position + 4 : position + length])).payload
    data[data.index(payload, position) + len(payload) // 2] ^= 1
    log.write_bytes(data)
    load.build(str(evidence), str(tmp_path / "b.db"), options(records=records))
    assert digest_of(tmp_path / "a.db") != digest_of(tmp_path / "b.db")


# -- faults ------------------------------------------------------------------------------


@pytest.fixture
def old(evidence: Path, tmp_path: Path) -> tuple[Path, bytes]:
    """An older index and its bytes, alone in a directory."""
    folder = tmp_path / "out"
    folder.mkdir()
    target = folder / "index.db"
    load.build(str(evidence), str(target), options(records="none"))
    return target, target.read_bytes()


def unharmed(old: tuple[Path, bytes]) -> None:
    target, data = old
    assert target.read_bytes() == data
    assert [path.name for path in target.parent.iterdir()] == ["index.db"]


def test_full_disk(evidence: Path, old: tuple[Path, bytes]) -> None:
    target, _ = old
    program = (
        "import resource, sys\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))\n"
        "from inspect_db import cli\n"
        "sys.exit(cli.run(sys.argv[1:]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "build", str(evidence), "-o", str(target)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr
    unharmed(old)


def test_destination_that_cannot_be_written(evidence: Path, old: tuple[Path, bytes]) -> None:
    target, _ = old
    target.chmod(0o644)
    child = os.fork()
    if child == 0:
        target.parent.chmod(0o555)
        for folder in [*evidence.parents[:5], *target.parents[:4]]:
            if folder != target.parent:
                folder.chmod(0o755)
        if os.geteuid() == 0:
            os.setuid(65534)
        try:
            load.build(str(evidence), str(target), options())
        except load.BuildError as error:
            os._exit(0 if "ermission" in str(error) else 2)
        except BaseException:
            os._exit(3)
        os._exit(4)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    target.parent.chmod(0o755)
    unharmed(old)


def interrupt() -> None:
    raise KeyboardInterrupt


def test_interruption(evidence: Path, old: tuple[Path, bytes]) -> None:
    with pytest.raises(KeyboardInterrupt):
        load.build(str(evidence), str(old[0]), options(), once(interrupt))
    unharmed(old)


def test_killed_worker_leaves_the_old_index_and_the_next_build_cleans_up(
    evidence: Path, old: tuple[Path, bytes]
) -> None:
    target, data = old
    child = os.fork()
    if child == 0:
        kill = once(lambda: os.kill(os.getpid(), signal.SIGKILL))
        load.build(str(evidence), str(target), options(), kill)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert target.read_bytes() == data
    assert len(list(target.parent.iterdir())) == 2
    load.build(str(evidence), str(target), options())
    assert [path.name for path in target.parent.iterdir()] == ["index.db"]


def test_leftovers_of_an_older_index_go(evidence: Path, old: tuple[Path, bytes]) -> None:
    target, _ = old
    for suffix in ("-wal", "-shm", "-journal"):
        Path(f"{target}{suffix}").write_bytes(b"old")
    load.build(str(evidence), str(target), options())
    assert [path.name for path in target.parent.iterdir()] == ["index.db"]


def a_log(evidence: Path) -> Path:
    return sorted((evidence / "orders").glob("partition_1_segment_*.log"))[-1]


def grow(path: Path) -> None:
    with path.open("ab") as file:
        file.write(path.read_bytes()[:100])


def shrink(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def replace(path: Path) -> None:
    other = path.with_suffix(".other")
    other.write_bytes(path.read_bytes())
    other.rename(path)


@pytest.mark.parametrize("change", [grow, shrink, replace, Path.unlink])
def test_evidence_that_changes_is_told(
    evidence: Path, tmp_path: Path, change: Callable[[Path], None]
) -> None:
    target = tmp_path / "index.db"
    log = a_log(evidence)
    result = load.build(str(evidence), str(target), options(), once(lambda: change(log)))
    path = log.relative_to(evidence).as_posix()
    assert result.changed == (path,)
    assert help_.rows(target, "select path from files where changed = 1") == [(path,)]
    told = help_.rows(
        target, "select count(*) from findings where code = 'file_changed_while_reading'"
    )
    assert told[0][0] == 1
    assert help_.rows(target, "select changed_files from build") == [(1,)]


def test_evidence_that_goes_away(evidence: Path, old: tuple[Path, bytes]) -> None:
    with pytest.raises(load.BuildError):
        load.build(str(evidence), str(old[0]), options(), once(lambda: shutil.rmtree(evidence)))
    unharmed(old)


def test_nothing_is_written_into_the_log_directory(evidence: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(evidence)
    for place in (evidence / "x.db", evidence / "orders" / "x.db", link / "x.db"):
        with pytest.raises(load.BuildError, match="inside the log directory"):
            load.build(str(evidence), str(place), options())


def test_what_is_not_an_index_is_not_overwritten(evidence: Path, tmp_path: Path) -> None:
    target = tmp_path / "thesis.txt"
    target.write_text("years of work")
    with pytest.raises(load.BuildError, match="not overwritten"):
        load.build(str(evidence), str(target), options())
    assert target.read_text() == "years of work"


def test_an_index_of_another_version_names_the_command(evidence: Path, tmp_path: Path) -> None:
    target = tmp_path / "index.db"
    load.build(str(evidence), str(target), options(records="none"))
    connection = sqlite3.connect(target)
    connection.execute("pragma user_version = 99")
    connection.close()
    assert is_index(str(target))
    with pytest.raises(IndexFileError, match=f"inspect-db build {evidence}"):
        open_index(str(target))


# -- options, functions, models ----------------------------------------------------------


def test_payloads_and_hashes(evidence: Path, tmp_path: Path) -> None:
    target = tmp_path / "index.db"
    load.build(str(evidence), str(target), options(payload_bytes=5, hashes=True))
    lengths = help_.rows(target, "select max(length(payload)) from records")
    assert lengths == [(5,)]
    path = a_log(evidence)
    sha = subprocess.run(["sha256sum", path], capture_output=True, text=True, check=True)
    found = help_.rows(
        target,
        "select lower(hex(sha256)) from files where path = ?",
        path.relative_to(evidence).as_posix(),
    )
    assert found == [(sha.stdout.split()[0],)]


def test_records_internal(evidence: Path, tmp_path: Path) -> None:
    target = tmp_path / "index.db"
    load.build(str(evidence), str(target), options(records="internal"))
    assert help_.rows(target, "select distinct topic from records") == [("__consumer_offsets",)]


def test_functions_read_the_evidence_and_only_where_told(
    evidence: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "index.db"
    load.build(str(evidence), str(target), options())
    sql = (
        "select json_extract(record_json(file_id, position), '$.offset') as found, "
        "record_offset, length(payload(file_id, position)) = payload_bytes as same "
        "from records limit 3"
    )
    arguments = ["query", str(target), "--sql", sql, "--json"]
    assert cli.run([*arguments, "--evidence", str(evidence)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert all(row["found"] == row["record_offset"] and row["same"] for row in found)
    assert cli.run(arguments) == 1
    assert "--evidence" in capsys.readouterr().err


@pytest.mark.parametrize(
    "sql", ["create table x (a)", "delete from files", "attach 'x.db' as x", "select", "pragma x"]
)
def test_queries_only_read(sql: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = help_.built(NAME)
    before = path.read_bytes()
    cli.run(["query", str(path), "--sql", sql])
    assert "Traceback" not in capsys.readouterr().err
    assert path.read_bytes() == before


def test_shell() -> None:
    statements = "select count(*)\n from topics;\n.query groups\nselect 1 from nowhere;\n"
    done = subprocess.run(
        [sys.executable, "-m", "inspect_db", "shell", str(help_.built(NAME))],
        input=statements,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "default-group" in done.stdout
    assert "no such" in done.stderr


def test_models_by_the_example() -> None:
    example = Path(__file__).resolve().parent.parent / "docs" / "examples" / "lag.py"
    done = subprocess.run(
        [sys.executable, str(example), str(help_.built(NAME))],
        capture_output=True,
        text=True,
        check=True,
    )
    expected = help_.rows(
        help_.built(NAME),
        "select group_name, sum(lag) as total from consumer_lag where place = 'in_log' "
        "group by 1 order by 2 desc, 1 limit 5",
    )
    assert [line.split()[1] for line in done.stdout.splitlines()] == [row[0] for row in expected]
    assert set(models.tables) >= {"records", "consumer_groups", "findings"}


@pytest.mark.parametrize("number", [0, 1, 2**63 - 1, 2**63, 2**64 - 1])
def test_numbers_both_ways(number: int) -> None:
    assert values.from_number(values.number(number)) == number
    assert values.from_number(values.difference(0, number)) == -number


def test_numbers_sort_and_names_survive() -> None:
    connection = apsw.Connection(":memory:")
    connection.execute("create table t (a any, n any) strict")
    numbers = [2**64 - 1, 0, 2**63, 2**63 - 1, 5]
    names = [b"a\0b", b"\xff\xfe", "ü".encode(), b"plain", b"\xed\xb2\x80"]
    for number, text in zip(numbers, names, strict=True):
        connection.execute(
            "insert into t values (?, ?)", (values.number(number), values.name(text))
        )
    found = [values.from_number(row[0]) for row in connection.execute("select a from t order by a")]  # type: ignore[arg-type]
    assert found == sorted(numbers)
    for text in names:
        ((back,),) = connection.execute("select n from t where n = ?", (values.name(text),))
        assert values.from_name(back).encode("utf-8", "surrogateescape") == text  # type: ignore[arg-type]


# -- known answers -----------------------------------------------------------------------

#: Questions that a healthy or spotless place answers with nothing. (What each
#: query answers where there is something: tests/test_named_queries.py.)
EMPTY = [
    ("segment_seams", "small-healthy"),
    ("offsets_moved_back", "values-at-the-edge"),
    ("changed_files", "small-healthy"),
]


@pytest.mark.parametrize(("name", "fixture"), EMPTY)
def test_questions_without_an_answer(name: str, fixture: str) -> None:
    assert answer(name, fixture) == []


def answer(query: str, fixture: str, **given: str) -> list[dict[str, object]]:
    connection = open_index(str(help_.built(fixture)))
    try:
        columns, found = queries_catalogue.run(connection, queries_catalogue.get(query), given)
        return [dict(zip(columns, row, strict=True)) for row in found]
    finally:
        connection.close()


def test_answers_that_the_book_keeping_of_the_shop_knows() -> None:
    name = "shop-healthy"
    truth = json.loads((help_.ROOT / name / "expected.json").read_text("utf-8"))
    parts = [part for topic in truth["topics"].values() for part in topic["partitions"]]
    replayed = truth["consumer_metadata"]["replay"]
    assert len(answer("committed_offsets", name)) == replayed["restored_offsets"]
    assert len(answer("transaction_history", name)) == truth["journal"]["frames"]
    assert len(answer("topics", name)) == len(truth["topics"])
    assert len(answer("partitions", name)) == len(parts)
    assert len(answer("segments", name)) == sum(len(part["segments"]) for part in parts)
    lives = truth["consumer_metadata"]["on_disk"]
    assert len(answer("group_lives", name)) == (
        lives["group_registration"] + lives["group_tombstone"]
    )
    undecided = [t for t in truth["transactions"].values() if t["state"] in {"open", "committing"}]
    assert len(answer("staged_offsets", name)) == sum(
        len(t["staged_offsets"] or ()) for t in undecided
    )
    bytes_of_logs = sum(
        int(str(row["bytes"])) for row in answer("space", name) if row["kind"] == "segment_log"
    )
    assert bytes_of_logs == truth["totals"]["segment_bytes"]
    assert sum(int(str(row["records"])) for row in answer("records_by_topic", name)) == sum(
        part["records"] for part in parts
    )


def test_a_healthy_shop_answers_no_to_alarming_questions() -> None:
    for query in (
        "behind_damage",
        "changed_files",
        "commits_beyond_log_end",
        "declared_without_storage",
        "group_conflicts",
        "offsets_without_registration",
        "orphan_directories",
        "aggregate_gaps",
        "aggregate_snapshots_ahead",
        "historical_offsets",
        "segment_seams",
        "what_is_lost",
    ):
        assert answer(query, "shop-healthy") == [], query
    assert {row["outcome"] for row in answer("steps", "shop-healthy")} <= {"passed", "recovers"}
    assert all(row["explained"] for row in answer("revision_gaps", "shop-healthy"))
    assert answer("offsets_moved_back", "shop-healthy") == []


def test_history_of_one_committed_offset_ends_where_the_group_stands() -> None:
    history = answer("offset_history", NAME, group="mailer", topic="orders", partition="0")
    truth = json.loads((help_.ROOT / NAME / "expected.json").read_text("utf-8"))
    mailer = truth["consumer_groups"]["mailer"]
    assert history[-1]["committed_offset"] == mailer["committed"]["orders"]["0"]
    assert history[-1]["revision"] == mailer["revisions"]["orders"]
    assert history[-1]["disposition"] == "snapshot_current"


def test_lag_is_log_end_less_committed_offset() -> None:
    truth = json.loads((help_.ROOT / NAME / "expected.json").read_text("utf-8"))
    for row in answer("lag", NAME):
        group, topic = str(row["group_name"]), str(row["topic"])
        partition = int(str(row["partition"]))
        end = truth["topics"][topic]["partitions"][partition]["log_end"]
        committed = truth["consumer_groups"][group]["committed"][topic][str(partition)]
        assert row["lag"] == end - committed


def test_keys_and_their_records() -> None:
    top = answer("keys_with_most_versions", "shop-healthy", topic="prices", limit="1")[0]
    found = answer("records_of_key", "shop-healthy", topic="prices", key=str(top["key"]))
    assert len([row for row in found if row["topic"] == "prices"]) >= int(str(top["versions"]))


def test_every_query_answers_a_question_and_says_how_to_read_it() -> None:
    found = queries_catalogue.named_queries()
    assert len(found) >= 30
    for query in found.values():
        assert query.question.endswith("?"), query.name
        assert query.how_to_read.endswith("."), query.name
        assert query.scans == ("from records\n" in query.sql), query.name
        for parameter in query.parameters:
            assert f":{parameter.name}" in query.sql, query.name


@pytest.mark.parametrize("form", ["--json", "--jsonl", "--csv"])
def test_forms_of_an_answer(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["query", str(help_.built(NAME)), "groups", form]) == 0
    text = capsys.readouterr().out
    if form == "--json":
        names = [row["group_name"] for row in json.loads(text)]
    elif form == "--jsonl":
        names = [json.loads(line)["group_name"] for line in text.splitlines()]
    else:
        names = [line.split(",")[0] for line in text.splitlines()[1:]]
    assert names[:2] == ["billing", "counter"]


# -- size and memory ---------------------------------------------------------------------


@pytest.mark.slow
def test_bytes_and_memory_of_many_records(tmp_path: Path) -> None:
    records = 200_000
    log_dir = tmp_path / "logs"
    (log_dir / "events").mkdir(parents=True)
    shutil.copy(help_.log_dir(NAME) / "__topic_metadata.json", log_dir / "__topic_metadata.json")
    with (log_dir / "events" / f"partition_0_segment_{0:020d}.log").open("wb") as log:
        for offset in range(records):
            record = Record(
                b"events",
                0,
                offset,
                b"producer-1",
                offset + 1,
                payload=b'{"order":%d,"total":12.50}' % offset,
                event_type=b"order",
                key=b"order-%07d" % (offset % 50_000),
            )
            log.write(encode_frame(record))
    target = tmp_path / "index.db"
    program = (
        "import sys\n"
        "from inspect_db import cli\n"
        "code = cli.run(sys.argv[1:])\n"
        # Not ru_maxrss, which begins with the size of the process that started this one.
        "with open('/proc/self/status') as status:\n"
        "    print(next(line.split()[1] for line in status if line.startswith('VmHWM:')))\n"
        "sys.exit(code)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "build", str(log_dir), "-o", str(target)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert help_.rows(target, "select count(*) from record_rows") == [(records,)]
    assert target.stat().st_size / records <= 60
    assert int(done.stdout) * 1024 < 300 << 20


def test_a_pipe_is_no_index_and_nobody_waits_for_it(tmp_path: Path) -> None:
    pipe = tmp_path / "index.db"
    os.mkfifo(pipe)
    assert not is_index(str(pipe))
    with pytest.raises(IndexFileError, match="is not an index"):
        open_index(str(pipe))
