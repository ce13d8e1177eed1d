"""Records are read from the evidence only where they are what was indexed."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import index_help as help_
import pytest
from browse_help import Site
from click.testing import CliRunner

from cursus.evidence.walk import LogDirectory
from cursus.formats.record import Record, decode, encode_frame
from cursus.replay.interfaces import UnreadableError
from inspect_db import cli, fixtures, load
from inspect_db.reading import Door, ReadRefused, read, read_frame

SMALL = "small-healthy"
LOG = "orders/partition_0_segment_00000000000000000501.log"
BIG = 100_000
BLOCK = 1 << 20


class Bench:
    """A log directory of its own with a long active segment, and an index of it."""

    def __init__(self, folder: Path, *, digests: bool) -> None:
        self.log_dir = fixtures.materialise(help_.FIXTURES[SMALL], folder)
        self.log = self.log_dir / LOG
        self.positions: list[int] = []
        with self.log.open("ab") as file:
            for number in range(24):
                self.positions.append(file.tell())
                record = Record(
                    topic=b"orders",
                    offset=626 + number,
                    payload=bytes([65 + number]) * BIG,
                    key=b"big",
                )
                file.write(encode_frame(record))
        os.utime(self.log, ns=(0, 0))
        self.index = folder / "index.db"
        options = load.BuildOptions(help_.FIXTURES[SMALL].as_of)
        load.build(str(self.log_dir), str(self.index), options)
        self.connection = sqlite3.connect(self.index)
        row = self.connection.execute("select file_id from files where path = ?", (LOG,)).fetchone()
        self.file_id = int(row[0])
        if not digests:
            self.forge("delete from file_blocks")
        self.door = Door(str(self.log_dir))

    def frame(self, number: int = 0) -> Record | None:
        found = read_frame(self.connection, self.door, self.file_id, self.positions[number])
        return decode(found.data[4:]) if found else None

    def refusal(self, number: int = 0) -> str:
        with pytest.raises(ReadRefused) as error:
            self.frame(number)
        return str(error.value)

    def overwrite(self, position: int, data: bytes, *, times_put_back: bool = False) -> None:
        with self.log.open("r+b") as file:
            file.seek(position)
            file.write(data)
        if times_put_back:
            os.utime(self.log, ns=(0, 0))

    def forge(self, sql: str, *values: Any) -> None:
        """Change the index behind everybody's back."""
        self.connection.execute(sql, values)
        self.connection.commit()


@pytest.fixture(params=[False, True], ids=["plain", "digests"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Bench:
    return Bench(tmp_path, digests=request.param)


@pytest.fixture
def plain(tmp_path: Path) -> Bench:
    """As for a file that is no log: an index has no digests of its blocks."""
    return Bench(tmp_path, digests=False)


@pytest.fixture
def hashed(tmp_path: Path) -> Bench:
    return Bench(tmp_path, digests=True)


def test_an_untouched_file_is_read(bench: Bench) -> None:
    for number in (0, 11, 23):
        found = bench.frame(number)
        assert found is not None
        assert found.payload == bytes([65 + number]) * BIG


def test_a_file_that_only_grew_is_read_as_far_as_it_was_indexed(bench: Bench) -> None:
    end = bench.log.stat().st_size
    with bench.log.open("ab") as file:
        file.write(encode_frame(Record(topic=b"orders", offset=650, payload=b"new")))
    found = bench.frame(23)
    assert found is not None
    assert found.offset == 649
    assert read_frame(bench.connection, bench.door, bench.file_id, end) is None
    assert read(bench.connection, bench.door, bench.file_id, end, 10) is None
    tail = read(bench.connection, bench.door, bench.file_id, end - 4, 100)
    assert tail is not None
    assert (len(tail.data), tail.grown) == (4, True)


def test_a_shorter_file_is_refused(bench: Bench) -> None:
    os.truncate(bench.log, bench.positions[20])
    assert "is shorter than it was" in bench.refusal()


def test_another_file_in_its_place_is_refused(plain: Bench) -> None:
    copy = plain.log.with_suffix(".copy")
    shutil.copy2(plain.log, copy)
    copy.replace(plain.log)
    assert "was replaced by another file" in plain.refusal()


def test_with_digests_the_same_bytes_in_another_file_are_the_same(hashed: Bench) -> None:
    copy = hashed.log.with_suffix(".copy")
    shutil.copy(hashed.log, copy)
    copy.replace(hashed.log)
    found = hashed.frame(5)
    assert found is not None
    assert found.offset == 631


def test_a_file_written_to_in_place_is_refused(plain: Bench) -> None:
    plain.overwrite(plain.positions[3] + 200, b"!", times_put_back=True)
    assert "was touched" in plain.refusal(20)


def test_with_digests_a_changed_block_is_refused_whatever_its_times_say(hashed: Bench) -> None:
    at = hashed.positions[3] + 200
    hashed.overwrite(at, b"!", times_put_back=True)
    told = hashed.refusal(3)
    assert "was changed" in told
    assert "between byte 0 and byte 1,048,576" in told
    # Other blocks still have their digests, so what stands there was not changed.
    assert hashed.positions[20] > BLOCK
    found = hashed.frame(20)
    assert found is not None
    assert found.payload == bytes([65 + 20]) * BIG


def test_a_record_over_the_border_of_two_blocks_needs_both(hashed: Bench) -> None:
    over = next(number for number, at in enumerate(hashed.positions) if at < BLOCK < at + BIG)
    found = hashed.frame(over)
    assert found is not None
    assert found.payload == bytes([65 + over]) * BIG
    hashed.overwrite(BLOCK + 1, b"!", times_put_back=True)
    assert "was changed" in hashed.refusal(over)


def test_another_record_in_a_file_that_grew_is_refused(plain: Bench) -> None:
    other = Record(topic=b"orders", offset=626, payload=b"A" * (BIG - 1), key=b"big!")
    plain.overwrite(plain.positions[0], encode_frame(other))
    with plain.log.open("ab") as file:
        file.write(b"\0" * 8)
    assert "another record stands at byte" in plain.refusal()


# -- nothing outside of the evidence -----------------------------------------------------------


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A record outside of the evidence that a forged index points at."""
    found = tmp_path / "secret.log"
    found.write_bytes(encode_frame(Record(topic=b"orders", payload=b"SECRET")))
    return found


def point_at(bench: Bench, path: str | bytes, secret: Path) -> None:
    found = secret.stat()
    bench.forge(
        "update files set path = ?, size = ?, ctime_ns = ?, device = ?, inode = ? "
        "where file_id = ?",
        *(path, found.st_size, found.st_ctime_ns, found.st_dev, found.st_ino, bench.file_id),
    )
    bench.positions[0] = 0


@pytest.mark.parametrize(
    "path",
    [
        "../secret.log",
        "orders/../../secret.log",
        "./../secret.log",
        "//secret.log",
        "",
        "..",
        b"orders/\0/../../secret.log",
        "x" * 10_000,
        b"\xff\xfe/secret.log",
    ],
    ids=lambda value: repr(value[:24]),
)
def test_a_path_that_leads_elsewhere_is_refused(plain: Bench, secret: Path, path: Any) -> None:
    point_at(plain, path, secret)
    assert "SECRET" not in plain.refusal()


def test_an_absolute_path_is_refused(plain: Bench, secret: Path) -> None:
    point_at(plain, str(secret), secret)
    assert "not a path below the log directory" in plain.refusal()


def test_the_door_refuses_such_paths_itself(plain: Bench) -> None:
    with LogDirectory.at(str(plain.log_dir), walk=False) as door:
        for path in ("../secret.log", "/etc/hostname", "orders/..", "a\0b", ""):
            with pytest.raises(UnreadableError):
                door.open(path)


def link_file(bench: Bench, secret: Path) -> None:
    bench.log.unlink()
    bench.log.symlink_to(secret)


def link_directory(bench: Bench, secret: Path) -> None:
    bench.log.parent.rename(bench.log_dir.parent / "moved")
    bench.log.parent.symlink_to(bench.log_dir.parent / "moved")


def link_evidence(bench: Bench, secret: Path) -> None:
    bench.log_dir.rename(bench.log_dir.parent / "moved")
    bench.log_dir.symlink_to(bench.log_dir.parent / "moved")


def pipe(bench: Bench, secret: Path) -> None:
    bench.log.unlink()
    os.mkfifo(bench.log)


def directory(bench: Bench, secret: Path) -> None:
    bench.log.unlink()
    bench.log.mkdir()


def gone(bench: Bench, secret: Path) -> None:
    shutil.rmtree(bench.log_dir)


@pytest.mark.parametrize(
    "change", [link_file, link_directory, link_evidence, pipe, directory, gone]
)
def test_what_is_no_file_of_the_evidence_is_refused(
    bench: Bench, secret: Path, change: Callable[[Bench, Path], None]
) -> None:
    assert bench.frame() is not None, "a directory that was open before changes nothing"
    change(bench, secret)
    bench.refusal()


@pytest.mark.parametrize("value", [7, 1.5, b"\xff"])
@pytest.mark.parametrize("column", ["path", "device", "inode"])
def test_values_that_no_build_writes_are_refused(plain: Bench, column: str, value: Any) -> None:
    plain.forge(f"update files set {column} = ? where file_id = ?", value, plain.file_id)
    plain.refusal()


def test_forged_digests_read_nothing_huge(hashed: Bench) -> None:
    hashed.forge("update file_blocks set length = ? where block = 0", 1 << 60)
    assert "no digest" in hashed.refusal()


# -- how much, and by which door ----------------------------------------------------------------


@pytest.fixture
def own(plain: Bench) -> Site:
    return Site({"index": plain.index}, {"index": plain.log_dir})


def test_answers_are_capped_unless_more_is_asked_for(plain: Bench, own: Site) -> None:
    at = f"{plain.file_id}, {plain.positions[2]}"
    sql = f"select length(payload({at})), length(record_hex({at})), record_json({at})"
    ((size, digits, text),) = own.rows("index", sql)
    assert (size, digits) == (65_536, 2 * 65_536)
    cut = json.loads(text)
    assert (len(cut["payload"]), cut["payload_bytes"]) == (65_536, BIG)
    sql = f"select length(payload({at}, 70000)), length(payload({at}, 1000000)), "
    sql += f"length(record_hex({at}, 3)), record_json({at}, 200000)"
    ((some, whole, three, text),) = own.rows("index", sql)
    assert (some, whole, three) == (70_000, BIG, 6)
    assert "payload_bytes" not in json.loads(text)


@pytest.mark.parametrize("limit", ["-1", "1e3", "'9'", "9999999999", "null"])
def test_a_limit_that_is_none_is_refused(plain: Bench, own: Site, limit: str) -> None:
    told = own.refusal("index", f"select payload({plain.file_id}, {plain.positions[2]}, {limit})")
    assert told == "the limit of payload() is a number of bytes up to 67,108,868"


def test_where_no_record_stands_there_is_none(plain: Bench, own: Site) -> None:
    for at in ("0", "-1", "9223372036854775807", "1.5", "'x'", "null", f"{plain.positions[2] + 1}"):
        assert own.rows("index", f"select payload({plain.file_id}, {at}) is null")[0] == [
            int(at != "0")
        ]
    assert own.rows("index", "select payload(-1, 0), payload(99999999, 0)") == [[None, None]]


def test_every_door_refuses_with_the_same_words(plain: Bench, own: Site) -> None:
    """Datasette, `query` and the shell read by one function."""
    at = f"{plain.file_id}, {plain.positions[2]}"
    sql = f"select payload({at})"
    os.truncate(plain.log, plain.positions[20])
    told = own.refusal("index", sql)
    assert told.startswith(f"{LOG} is shorter than it was when the index was built")
    evidence = ["--evidence", str(plain.log_dir)]
    asked = CliRunner().invoke(cli.cli, ["query", str(plain.index), "--sql", sql, *evidence])
    assert (asked.exit_code, asked.output) == (1, f"Error: {told}\n")
    shell = CliRunner().invoke(cli.cli, ["shell", str(plain.index), *evidence], input=f"{sql};\n")
    assert f"error: {told}" in shell.output
    page = own.page(f"/-/cursus/index/record/{plain.file_id}/{plain.positions[2]}")
    assert told.split(" (")[0] in page.replace("&#39;", "'")
