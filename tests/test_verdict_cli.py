"""``inspect-db`` from outside: shapes, 80 columns, exit codes, bad input, hostile names."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_fixtures import as_ordinary_user, open_directory

from cursus.findings import CATALOGUE, STEP_NAMES
from inspect_db import cli, fixtures
from inspect_db.verdict import EXIT_CODES, WIDTH, display_width, wrap

ROOT = Path(__file__).resolve().parent.parent
AS_OF = ["--as-of", "2026-09-15T12:00:00Z"]
FINDING = ["code", "severity", "effect", "step", "path", "position", "length", "message", "lost"]
__all__ = ["open_directory"]  # a fixture of pytest
LOST = ["bytes", "records", "first_offset", "last_offset"]


def inspect(*words: object, **more: Any) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, "-m", "inspect_db", *map(os.fspath, words)],  # type: ignore[call-overload]
        capture_output=True,
        text=True,
        encoding="utf-8",
        env=environment,
        timeout=60,
        check=False,
        **more,
    )


def built(name: str, target: Path) -> Path:
    target.mkdir(exist_ok=True)
    return fixtures.materialise(fixtures.load(ROOT / "fixtures" / name), target)


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    return built("zero-tail-of-three-bytes", tmp_path / "a")


# -- the wrong path ----------------------------------------------------------------------


def test_a_directory_that_holds_nothing_is_no_silent_clean_start(
    storage: Path, tmp_path: Path
) -> None:
    """The folder above the log directory starts clean; the page asks whether it was meant."""
    question = "  No manifest and no topics: is this the log directory?"
    (tmp_path / "empty").mkdir()
    index = tmp_path / "empty.db"
    assert inspect("build", tmp_path / "empty", "-o", index).returncode == 0
    for place in [tmp_path / "empty", index, storage.parent]:
        result = inspect("verdict", place)
        assert result.returncode == 0
        assert question in result.stdout.split("\n")
    assert question not in inspect("verdict", storage).stdout


def test_a_directory_where_another_thing_belongs_is_told(storage: Path) -> None:
    assert "is a directory; dump takes one file of it" in inspect("dump", storage).stderr
    result = inspect("query", storage, "lag")
    assert result.stderr.endswith("is a directory; `inspect-db build` makes an index of it\n")


# -- shape -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "verdict"),
    [
        ("index-larger-than-log", "starts_clean"),
        ("zero-tail-of-three-bytes", "starts_with_repairs"),
        ("merge-leftover-overlap", "starts_with_damage"),
        ("zeroed-batch-mid-segment", "refuses"),
    ],
)
def test_the_json_has_the_documented_shape(name: str, verdict: str, tmp_path: Path) -> None:
    log_dir = built(name, tmp_path / "a")
    done = inspect("verdict", "--json", *AS_OF, log_dir)
    assert done.stderr == ""
    document = json.loads(done.stdout)
    assert list(document) == [
        "log_dir", "as_of", "verdict", "in_use", "steps", "actions", "findings",
    ]  # fmt: skip
    assert document["log_dir"] == str(log_dir)
    assert document["as_of"] == "2026-09-15T12:00:00Z"
    assert document["verdict"] == verdict
    assert document["in_use"] in {True, False, None}
    assert done.returncode == EXIT_CODES[verdict]
    steps = document["steps"]
    assert [(step["step"], step["name"]) for step in steps] == list(STEP_NAMES.items())
    for step in steps:
        assert list(step) == ["step", "name", "outcome", "findings"]
        assert step["outcome"] in {"passed", "repairs", "refuses", "not_reached"}
    in_steps = [item for step in steps for item in step["findings"]]
    assert document["findings"][: len(in_steps)] == in_steps
    for item in document["findings"]:
        assert list(item) == [*FINDING, "action"]
        assert item["code"] in CATALOGUE
        assert item["lost"] is None or list(item["lost"]) == LOST
        assert not item["path"].startswith("/")
    for action in document["actions"]:
        assert list(action) == ["step", "kind", "path", "position", "message"]


def test_exit_codes_are_those_of_the_design() -> None:
    assert EXIT_CODES == {
        "starts_clean": 0,
        "starts_with_repairs": 3,
        "starts_with_damage": 4,
        "refuses": 5,
        "undetermined": 6,
    }


# -- the page ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "damaged-length-bit-flip",
        "shop-killed",
        "json-oddities-in-offsets-topic",
        "manifest-ten-thousand-topics",
        "group-names-hostile",
        "values-at-the-edge",
    ],
)
def test_a_page_fits_80_columns_and_one_look(name: str, tmp_path: Path) -> None:
    done = inspect("verdict", *AS_OF, built(name, tmp_path / "a"))
    lines = done.stdout.splitlines()
    assert max(map(display_width, lines)) <= WIDTH
    assert all(line.isprintable() for line in lines)
    assert len(lines) < 100
    assert re.match(r"(STARTS|REFUSES|UNDETERMINED)", lines[0])


def test_a_page_says_the_verdict_the_cause_and_what_to_do(tmp_path: Path) -> None:
    done = inspect("verdict", *AS_OF, built("zeroed-batch-mid-segment", tmp_path / "a"))
    lines = done.stdout.splitlines()
    assert lines[0] == "REFUSES: a broker does not start on this directory."
    cause = lines.index("First cause, step 2 (topic storage): record_length_invalid")
    steps = lines.index("Steps of a start")
    told = " ".join(line.strip() for line in lines[cause:steps])
    assert "partition_0_segment_00000000000000000000.log at byte 495" in told
    assert "4 records, offsets 5 to 11" in told
    assert "What to do: Look at the bytes" in told
    assert lines[steps + 2] == "  2  topic storage        REFUSES      1 error"


def test_all_shows_what_the_page_sums_up(tmp_path: Path) -> None:
    log_dir = built("json-oddities-in-offsets-topic", tmp_path / "a")
    short, whole = (inspect("verdict", *AS_OF, *more, log_dir) for more in ([], ["--all"]))
    assert "--all shows them" in short.stdout
    assert "--all shows them" not in whole.stdout
    assert len(whole.stdout) > len(short.stdout)


def test_wide_characters_and_long_words_are_wrapped_too() -> None:
    lines = list(wrap("\u6f22" * 200 + " end", "  ", "    "))
    assert max(map(display_width, lines)) <= WIDTH
    assert "".join(line.strip() for line in lines).replace(" ", "").endswith("\u6f22end")


# -- hostile names -----------------------------------------------------------------------


def test_hostile_names_cannot_disturb_the_terminal(storage: Path) -> None:
    names = [
        b"\x1b[2J\x1b]0;gone\x07",
        b"line\nend",
        b"bad\xff\xfeutf8",
        b"<b>bold<i>",
        b"\xe2\x80\xaeabc",
    ]
    for name in names:
        Path(os.fsdecode(os.fsencode(storage) + b"/" + name)).write_bytes(b"")
    for words in (["verdict", "--all"], ["findings"], ["inventory"], ["index", "check"]):
        done = inspect(*words, storage)
        assert done.returncode in {0, 3}
        for line in (done.stdout + done.stderr).splitlines():
            assert line.isprintable(), line
            assert display_width(line) <= WIDTH or words != ["verdict", "--all"]
    rows = json.loads(inspect("inventory", "--json", storage).stdout)
    paths = {os.fsencode(row["path"]) for row in rows}
    assert set(names) <= paths, "JSON keeps every byte of a name"


def test_a_closed_stdout_is_one_line_on_stderr(storage: Path) -> None:
    words = [sys.executable, "-c", "from inspect_db.cli import main; main()", "verdict"]
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" >&-', "sh", *words, str(storage)],
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (1, "error: stdout is closed\n")


def test_a_hostile_log_dir_is_one_line_on_stderr(tmp_path: Path) -> None:
    done = inspect("verdict", f"{tmp_path}/\x1b[31mred\nline")
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.strip().isprintable()


# -- bad input ---------------------------------------------------------------------------

BAD = [["verdict"], ["findings"], ["inventory"], ["index", "check"]]


def one_line(done: subprocess.CompletedProcess[str], code: int) -> str:
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    return line


@pytest.mark.parametrize("words", BAD, ids=" ".join)
def test_a_missing_directory(words: list[str], tmp_path: Path) -> None:
    line = one_line(inspect(*words, tmp_path / "nothing"), 1)
    assert line.endswith("nothing: No such file or directory")


@pytest.mark.parametrize("words", BAD, ids=" ".join)
def test_a_file_is_not_a_directory(words: list[str], tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"not an index")
    one_line(inspect(*words, tmp_path / "file"), 1)


@pytest.mark.parametrize("words", BAD, ids=" ".join)
def test_a_link_to_a_directory_is_not_followed(words: list[str], storage: Path) -> None:
    (storage.parent / "link").symlink_to(storage)
    line = one_line(inspect(*words, storage.parent / "link"), 1)
    assert "symbolic link" in line


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")
def test_no_permission(open_directory: Path) -> None:
    closed = open_directory / "closed"
    closed.mkdir(mode=0o700)

    def verdict() -> list[str]:
        errors = io.StringIO()
        with contextlib.redirect_stderr(errors):
            code = cli.run(["verdict", str(closed)])
        return [str(code), *errors.getvalue().splitlines()]

    cli.run(["verdict", str(closed)])  # what it imports late, it may not read as nobody
    assert as_ordinary_user(verdict) == ["1", f"error: {closed}: Permission denied"]


def test_usage_errors_exit_with_2(storage: Path) -> None:
    for words in (["nonsense"], ["verdict"], ["verdict", "--as-of", "noon", storage]):
        done = inspect(*words)
        assert done.returncode == 2
        assert done.stderr.startswith("error: ")
        assert "Traceback" not in done.stderr


def test_a_bad_configuration_is_one_line(storage: Path, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    for content in ("a: [", "- just\n- a list\n"):
        config.write_text(content)
        one_line(inspect("verdict", "--config", config, storage), 1)
    one_line(inspect("verdict", "--config", tmp_path / "none.yaml", storage), 1)


def test_a_configuration_counts(storage: Path, tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text('{"max_topics": 1}')
    done = inspect("verdict", "--config", config, storage)
    assert done.returncode == EXIT_CODES["refuses"]
    assert "topic_capacity_exceeded" in done.stdout


def test_a_closed_pipe_is_quiet(tmp_path: Path) -> None:
    log_dir = built("shop-killed", tmp_path / "a")
    reading, writing = os.pipe()
    os.close(reading)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "inspect_db", "inventory", "--json", str(log_dir)],
        stdout=writing,
        stderr=subprocess.PIPE,
        env=environment,
        check=False,
        timeout=60,
    )
    os.close(writing)
    assert done.stderr == b""
    assert done.returncode == 141


def test_ctrl_c_is_one_line(tmp_path: Path) -> None:
    fifo = tmp_path / "config.yaml"
    os.mkfifo(fifo)  # the command waits for its configuration until it is interrupted
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    running = subprocess.Popen(
        [sys.executable, "-m", "inspect_db", "verdict", "--config", str(fifo), str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        text=True,
    )
    with open(fifo, "w", encoding="utf-8"):  # returns when the command has opened it
        time.sleep(0.2)
        running.send_signal(signal.SIGINT)
        out, errors = running.communicate(timeout=30)
    assert running.returncode == 130
    assert (out, errors) == ("", "error: interrupted\n")


# -- listings ----------------------------------------------------------------------------


def test_listings_have_the_same_rows_in_every_form(storage: Path) -> None:
    for command in ("findings", "inventory"):
        rows = json.loads(inspect(command, "--json", storage).stdout)
        table = list(csv.DictReader(io.StringIO(inspect(command, "--csv", storage).stdout)))
        assert rows
        assert [list(row) for row in rows] == [list(row) for row in table]
        assert [row["path"] for row in rows] == [row["path"] for row in table]
        assert inspect(command, "--json", "--csv", storage).returncode == 2


# -- dump --------------------------------------------------------------------------------


def lines_of(done: subprocess.CompletedProcess[str]) -> Iterator[dict[str, Any]]:
    return map(json.loads, done.stdout.splitlines())


def test_dump_decodes_every_record_of_a_segment(storage: Path) -> None:
    log = storage / "orders" / "partition_0_segment_00000000000000000000.log"
    rows = list(lines_of(inspect("dump", "--jsonl", log)))
    assert [row["offset"] for row in rows if row["type"] == "record"] == list(range(6))
    assert [(row["code"], row["position"]) for row in rows if row["type"] == "finding"] == [
        ("torn_record_length", 594)
    ]
    later = list(lines_of(inspect("dump", "--jsonl", "--from", "300", log)))
    assert [row["offset"] for row in later if row["type"] == "record"] == [4, 5]


def test_dump_shows_what_stands_behind_damage_and_strict_does_not(tmp_path: Path) -> None:
    log_dir = built("zeroed-batch-mid-segment", tmp_path / "a")
    log = log_dir / "orders" / "partition_0_segment_00000000000000000000.log"
    whole, strict = inspect("dump", "--jsonl", log), inspect("dump", "--jsonl", "--strict", log)
    behind = [row for row in lines_of(whole) if row["type"] == "record" and not row["reachable"]]
    assert [row["offset"] for row in behind] == [8, 9, 10, 11]
    assert whole.returncode == 0
    assert strict.returncode == 1
    assert all(row["type"] != "record" or row["reachable"] for row in lines_of(strict))
    assert "! " in inspect("dump", log).stdout


def test_dump_knows_every_kind_by_its_name(tmp_path: Path) -> None:
    log_dir = built("small-healthy", tmp_path / "a")
    names = {
        "__topic_metadata.json": "topic",
        "__transaction_state.journal": "frame",
        "orders/partition_0.hwm": "high_watermark",
        "orders/partition_0.producers": "producer",
        "visits/.cursus_lifecycle_epoch": "lifecycle_epoch",
        "orders/partition_0_segment_00000000000000000000.index": "index_entry",
        "quotes/partition_0/partition_0_stream.idx": "aggregate_index_entry",
        "quotes/partition_0/partition_0_stream_keys.dat": "aggregate_key",
        "quotes/partition_0/partition_0_snapshots.dat": "aggregate_snapshot",
    }
    for name, kind in names.items():
        rows = list(lines_of(inspect("dump", "--jsonl", log_dir / name)))
        assert {row["type"] for row in rows} == {kind}, name
    frames = list(lines_of(inspect("dump", "--jsonl", log_dir / "__transaction_state.journal")))
    assert len(frames) == 84


def test_dump_of_a_strange_file_says_so(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    assert "--as" in one_line(inspect("dump", tmp_path / "notes.txt"), 1)
    os.mkfifo(tmp_path / "partition_0.hwm")
    assert "not a regular file" in one_line(inspect("dump", tmp_path / "partition_0.hwm"), 1)
    one_line(inspect("dump", tmp_path / "partition_1.hwm"), 1)
    done = inspect("dump", "--as", "hwm", tmp_path / "notes.txt")
    assert "hwm_checkpoint_invalid" in done.stderr


# -- index check, fixtures ---------------------------------------------------------------


def test_index_check_counts_what_a_reader_may_use(tmp_path: Path) -> None:
    done = inspect("index", "check", "--json", built("index-larger-than-log", tmp_path / "a"))
    wrong = [report for report in json.loads(done.stdout) if report["findings"]]
    assert [(report["entries"], report["valid"]) for report in wrong] == [(6, 2)]
    assert done.returncode == 0


def test_a_new_fixture_says_what_the_inspector_says(storage: Path, tmp_path: Path) -> None:
    os.mkfifo(storage / "spool")
    (storage / "orders" / "empty").mkdir()
    done = inspect("fixture", "new", storage, "mine", "--into", tmp_path / "f", *AS_OF)
    assert done.returncode == 0
    made = fixtures.load(tmp_path / "f" / "mine")
    assert made.case["broker"]["code"] == "torn_record_length"
    steps = {(step["op"], step["path"]) for step in made.case["material"]["prepare"]}
    assert steps == {("mkfifo", "spool"), ("mkdir", "orders/empty")}
    (tmp_path / "copy").mkdir()
    again = fixtures.materialise(made, tmp_path / "copy")
    assert (again / "spool").is_fifo()
    assert inspect("verdict", again).returncode == EXIT_CODES["starts_with_repairs"]
    one_line(inspect("fixture", "new", storage, "mine", "--into", tmp_path / "f"), 1)
    one_line(inspect("fixture", "new", storage, "../mine", "--into", tmp_path / "f"), 1)
