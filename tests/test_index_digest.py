"""The digest of an index is that of its evidence, and of nothing else."""

from __future__ import annotations

import os
import shutil
from contextlib import closing
from pathlib import Path

import index_help
import pytest
from click.testing import CliRunner

from cursus.evidence.walk import LogDirectory
from cursus.formats import record as codec
from inspect_db import digest, fixtures, load
from inspect_db.cli import cli
from inspect_db.index import open_index

#: Healthy, damaged, and with transactions that the clock ends.
NAMES = (
    "damaged-zero-sector",
    "group-names-hostile",
    "open-transaction-without-journal",
    "shop-killed",
    "small-healthy",
    "values-at-the-edge",
)
DAY = 86_400 * 10**9


def copy(name: str, place: Path) -> Path:
    place.mkdir(parents=True)
    return fixtures.materialise(index_help.FIXTURES[name], place)


def digest_of(path: Path) -> str:
    with closing(open_index(str(path))) as connection:
        return digest.digest(connection)


def tables_of(path: Path) -> dict[str, str]:
    with closing(open_index(str(path))) as connection:
        return {table: value for table, _, value in digest.table_digests(connection)}


def make(log_dir: Path, target: Path, as_of: int) -> Path:
    load.build(str(log_dir), str(target), load.BuildOptions(as_of))
    return target


@pytest.mark.parametrize("name", NAMES)
def test_a_copy_elsewhere_on_another_day_has_the_same_digest(name: str, tmp_path: Path) -> None:
    log_dir = copy(name, tmp_path / "another place" / "deeper")
    for folder, directories, files in os.walk(log_dir):
        for item in (*directories, *files):
            os.utime(Path(folder, item), ns=(DAY, 400 * DAY), follow_symlinks=False)
    as_of = index_help.FIXTURES[name].as_of
    for at, later in enumerate((0, DAY, 400 * DAY)):
        other = make(log_dir, tmp_path / f"{at}.db", as_of + later)
        assert tables_of(other) == tables_of(index_help.built(name))
        assert digest_of(other) == digest_of(index_help.built(name))


def test_a_plain_copy_has_the_same_digest(tmp_path: Path) -> None:
    log_dir = tmp_path / "copied"
    shutil.copytree(index_help.log_dir("small-healthy"), log_dir)
    as_of = index_help.FIXTURES["small-healthy"].as_of
    built = make(log_dir, tmp_path / "index.db", as_of)
    assert digest_of(built) == digest_of(index_help.built("small-healthy"))


def test_jobs_and_the_command_change_nothing(tmp_path: Path) -> None:
    log_dir = str(index_help.log_dir("small-healthy"))
    said = set()
    for jobs in ("1", "2", "7"):
        target = str(tmp_path / f"{jobs}.db")
        made = CliRunner().invoke(cli, ["build", log_dir, "-o", target, "--jobs", jobs])
        assert made.exit_code == 0, made.output
        said.add(CliRunner().invoke(cli, ["digest", target]).stdout.strip())
    assert said == {digest_of(index_help.built("small-healthy"))}


def segments_with_payload(log_dir: Path) -> list[Path]:
    return sorted(path for path in log_dir.rglob("*.log") if path.stat().st_size)


def flip_payload(path: Path, which: int) -> bool:
    """Change the last byte of one payload; nothing else of the record. Markers have none."""
    data = bytearray(path.read_bytes())
    frames = []
    at = 0
    while at < len(data):
        length = int.from_bytes(data[at : at + 4], "big")
        record = codec.decode(bytes(data[at + 4 : at + 4 + length]))
        if record.payload:
            frames.append((at + 4, length, record.payload))
        at += 4 + length
    if not frames:
        return False
    start, length, payload = frames[which]
    body = data.index(payload, start, start + length)
    data[body + len(payload) - 1] ^= 0x01
    path.write_bytes(data)
    return True


@pytest.mark.parametrize("which", [0, -1])
def test_one_byte_of_a_payload_changes_it(which: int, tmp_path: Path) -> None:
    name = "small-healthy"
    log_dir = copy(name, tmp_path / "evidence")
    tried = 0
    firsts = {path.parent: path for path in reversed(segments_with_payload(log_dir))}
    for at, path in enumerate(firsts.values()):
        before = path.read_bytes()
        if not flip_payload(path, which):
            continue
        tried += 1
        changed = make(log_dir, tmp_path / f"{at}.db", index_help.FIXTURES[name].as_of)
        assert digest_of(changed) != digest_of(index_help.built(name)), path.name
        assert tables_of(changed)["files"] != tables_of(index_help.built(name))["files"]
        path.write_bytes(before)
    assert tried > 2


@pytest.mark.parametrize("records", ["internal", "none"])
def test_a_payload_counts_without_rows_for_records(
    records: load.RecordsMode, tmp_path: Path
) -> None:
    name = "small-healthy"
    log_dir = copy(name, tmp_path / "evidence")
    options = load.BuildOptions(index_help.FIXTURES[name].as_of, records=records)
    load.build(str(log_dir), str(tmp_path / "before.db"), options)
    user = [p for p in segments_with_payload(log_dir) if not p.parent.name.startswith("__")]
    assert flip_payload(user[0], 0)
    load.build(str(log_dir), str(tmp_path / "after.db"), options)
    assert digest_of(tmp_path / "before.db") != digest_of(tmp_path / "after.db")


def test_any_other_file_that_a_start_reads_counts(tmp_path: Path) -> None:
    """A file of the same size with one other byte, of every kind that is there."""
    name = "small-healthy"
    log_dir = copy(name, tmp_path / "evidence")
    reference = digest_of(index_help.built(name))
    seen = set()
    with LogDirectory.at(str(log_dir)) as evidence:
        entries = [entry for entry in evidence.entries if entry.type == "file" and entry.size]
    for at, entry in enumerate(entries):
        if entry.kind in seen:
            continue
        seen.add(entry.kind)
        path = log_dir / entry.path
        before = path.read_bytes()
        path.write_bytes(before[:-1] + bytes([before[-1] ^ 1]))
        changed = make(log_dir, tmp_path / f"{at}.db", index_help.FIXTURES[name].as_of)
        assert digest_of(changed) != reference, entry.kind
        path.write_bytes(before)
    assert len(seen) > 3
