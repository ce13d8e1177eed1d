"""An updated index says what a full build says, whatever happened in between."""

from __future__ import annotations

import dataclasses
import os
import random
import shutil
import sqlite3
import time
import zlib
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import index_help
import pytest

from cursus import layout
from cursus.evidence.walk import LogDirectory
from cursus.formats import compaction_marker
from cursus.formats import record as codec
from cursus.replay.interfaces import SegmentRef
from cursus.replay.reduced import ProducerRuns
from cursus.replay.startup import StartupConfig
from inspect_db import digest, fixtures, load
from inspect_db.index import open_index
from inspect_db.load import fill, kept

NAME = "small-healthy"
AS_OF = index_help.FIXTURES[NAME].as_of


def tables(path: Path) -> dict[str, str]:
    with closing(open_index(str(path))) as connection:
        return {table: f"{rows} {value}" for table, rows, value in digest.table_digests(connection)}


class Bench:
    """A log directory that changes, and its index."""

    def __init__(self, place: Path, name: str = NAME, **options: object) -> None:
        (place / "evidence").mkdir(parents=True)
        self.log_dir = fixtures.materialise(index_help.FIXTURES[name], place / "evidence")
        self.index = place / "index.db"
        self.full_index = place / "full.db"
        self.options = {"as_of": index_help.FIXTURES[name].as_of} | options
        self.build()

    def build(self, **changes: object) -> load.BuildResult:
        options = load.BuildOptions(**(self.options | changes))  # type: ignore[arg-type]
        return load.build(str(self.log_dir), str(self.index), options)

    def update(self, **changes: object) -> load.BuildResult:
        return self.build(update=True, **changes)

    def agrees(self) -> None:
        """Hold the index against one that is built from nothing."""
        options = load.BuildOptions(**self.options)  # type: ignore[arg-type]
        result = load.build(str(self.log_dir), str(self.full_index), options)
        updated, full = tables(self.index), tables(self.full_index)
        different = {table for table in full if updated[table] != full[table]}
        assert not different
        stored = "select verdict, inventory, inventory_error from build"
        assert index_help.rows(self.index, stored) == index_help.rows(self.full_index, stored)
        listing = "select path, size, mtime_ns, ctime_ns, sha256, changed from files order by path"
        assert index_help.rows(self.index, listing) == index_help.rows(self.full_index, listing)
        assert index_help.rows(self.index, stored)[0][0] == result.verdict

    def logs(self, topic: str = "*") -> list[Path]:
        return sorted(self.log_dir.glob(f"{topic}/partition_*_segment_*.log"))


def frames(path: Path) -> list[tuple[int, codec.Record]]:
    """Position and record of every whole frame."""
    data = path.read_bytes()
    found, at = [], 0
    while at + 4 <= len(data):
        length = int.from_bytes(data[at : at + 4], "big")
        if not 0 < length <= len(data) - at - 4:
            break
        try:
            found.append((at, codec.decode(data[at + 4 : at + 4 + length])))
        except ValueError:
            break
        at += 4 + length
    return found


def following(path: Path, count: int) -> list[codec.Record]:
    """Records that may follow the last one of a log."""
    held = frames(path)
    if not held:
        return []
    last = held[-1][1]
    return [
        codec.Record(
            last.topic,
            last.partition,
            last.offset + at,
            b"app",
            at,
            payload=b"later %d" % at,
            key=b"key-%d" % at,
        )
        for at in range(1, count + 1)
    ]


def append(path: Path, count: int = 3) -> None:
    with path.open("ab") as log:
        for record in following(path, count):
            log.write(codec.encode_frame(record))


def tear(path: Path) -> None:
    with path.open("ab") as log:
        for record in following(path, 1):
            log.write(codec.encode_frame(record)[:-5])


def mend(path: Path) -> None:
    """A torn tail grows to the whole frame."""
    for record in following(path, 1):
        with path.open("ab") as log:
            log.write(codec.encode_frame(record)[-5:])


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def cut_at_a_frame(path: Path) -> None:
    held = frames(path)
    if held:
        os.truncate(path, held[len(held) // 2][0])


def replace(path: Path) -> None:
    """Another file of the same bytes."""
    other = path.with_name("other")
    other.write_bytes(path.read_bytes())
    other.rename(path)


def touch(path: Path) -> None:
    os.utime(path, ns=(1, 1))


def edit(path: Path) -> None:
    """Another byte in the middle, and the time put back."""
    found = path.stat()
    data = bytearray(path.read_bytes())
    if data:
        data[len(data) // 2] ^= 0xFF
        with path.open("r+b") as file:
            file.write(data)
        os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))


def remove(path: Path) -> None:
    path.unlink()


def mark_deleted(path: Path) -> None:
    path.rename(path.with_name(layout.deleted(path.name)))


def roll(path: Path) -> None:
    """The next segment begins."""
    records = following(path, 2)
    if records:
        partition = records[0].partition
        following_path = path.with_name(layout.segment_log(partition, records[0].offset))
        following_path.write_bytes(b"".join(map(codec.encode_frame, records)))
        append(following_path)


def compact(path: Path) -> None:
    """Some records are gone, and a marker beside it says that they may be."""
    held = frames(path)
    if not held:
        return
    other = path.with_name("other")
    kept = [record for at, (_, record) in enumerate(held) if at % 3 != 1]
    other.write_bytes(b"".join(map(codec.encode_frame, kept)))
    size = other.stat().st_size
    other.rename(path)
    marker = path.with_name(layout.compaction_marker(path.name, size))
    marker.write_bytes(compaction_marker.encode())


def without_index(path: Path) -> None:
    path.with_suffix(".index").unlink(missing_ok=True)


def shorter_index(path: Path) -> None:
    index = path.with_suffix(".index")
    if index.exists():
        os.truncate(index, index.stat().st_size // 2)


CHANGES: tuple[Callable[[Path], None], ...] = (
    append,
    tear,
    mend,
    cut,
    cut_at_a_frame,
    replace,
    touch,
    edit,
    remove,
    mark_deleted,
    roll,
    compact,
    without_index,
    shorter_index,
)


@pytest.mark.parametrize("which", [0, -1])
@pytest.mark.parametrize("change", CHANGES)
def test_after_one_change(change: Callable[[Path], None], which: int, tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    log = [path for path in bench.logs() if path.stat().st_size][which]
    change(log)
    result = bench.update()
    assert not result.full
    assert result.scanned < sum(path.stat().st_size for path in bench.logs()) / 2
    bench.agrees()


def test_nothing_changed_nothing_is_read(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    result = bench.update()
    assert (result.scanned, result.full) == (0, "")
    bench.agrees()


def test_a_copy_of_the_evidence_is_compared_not_scanned(tmp_path: Path) -> None:
    """Other inodes and times, the same bytes: a backup that was put back."""
    bench = Bench(tmp_path)
    moved = tmp_path / "moved"
    bench.log_dir.rename(moved)
    shutil.copytree(moved, bench.log_dir)
    result = bench.update()
    assert (result.scanned, result.full) == (0, "")
    bench.agrees()


def append_large(path: Path, size: int) -> None:
    record = following(path, 1)[0]
    large = codec.Record(record.topic, record.partition, record.offset, payload=b"x" * size)
    with path.open("ab") as log:
        log.write(codec.encode_frame(large))


@pytest.mark.parametrize("size", [100, 1_200_000])
def test_of_a_segment_that_grows_only_the_end_is_scanned(size: int, tmp_path: Path) -> None:
    """Again and again, over blocks of digests, with torn tails between, until it is closed."""
    bench = Bench(tmp_path)
    log = max(bench.logs("orders"), key=lambda path: path.name)
    append_large(log, 3 * size)
    bench.build()
    for at in range(6):
        before = frames(log)[-1][0]
        (tear if at % 3 == 1 else mend if at % 3 == 2 else append)(log)
        if at % 3 == 0:
            append_large(log, size)
        result = bench.update(jobs=1 + at % 2)
        assert not result.full
        assert 0 < result.scanned <= log.stat().st_size - before
        bench.agrees()
    roll(log)
    assert bench.update().scanned < 1000
    bench.agrees()


@pytest.mark.parametrize("again", [True, False])
def test_a_segment_that_grew_while_it_was_read_is_not_read_again(
    again: bool, tmp_path: Path
) -> None:
    """A broker at work: every look finds the active segment changed since its walk."""
    bench = Bench(tmp_path)
    log = max(bench.logs("orders"), key=lambda path: path.name)
    append_large(log, 100_000)
    sizes = [log.stat().st_size]

    def grow(_: int, __: int) -> None:
        if len(sizes) == 1:
            append(log)
            sizes.append(log.stat().st_size)

    options = load.BuildOptions(AS_OF, update=True)
    assert load.build(str(bench.log_dir), str(bench.index), options, grow).changed
    if again:
        append(log)
    result = bench.update()
    assert (result.full, result.changed) == ("", ())
    assert result.scanned == log.stat().st_size - sizes[0]
    bench.agrees()


def test_a_log_that_was_touched_while_it_was_read_is_compared(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    log = max(bench.logs("orders"), key=lambda path: path.name)
    append_large(log, 100_000)
    options = load.BuildOptions(AS_OF, update=True)
    found = load.build(str(bench.log_dir), str(bench.index), options, lambda *_: touch(log))
    assert found.changed
    assert (bench.update().scanned, bench.update().full) == (0, "")
    bench.agrees()


def test_a_segment_that_grew_behind_a_changed_record_is_scanned_whole(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    log = max(bench.logs("orders"), key=lambda path: path.name)
    edit(log)
    append(log)
    assert bench.update().scanned == log.stat().st_size
    bench.agrees()


def test_a_segment_whose_index_was_rewritten_is_scanned_whole(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    log = max(bench.logs("orders"), key=lambda path: path.name)
    position, record = frames(log)[3]
    entry = record.offset.to_bytes(8, "big") + (position + 1).to_bytes(8, "big")
    log.with_suffix(".index").write_bytes(entry)
    append(log)
    assert bench.update().scanned == log.stat().st_size
    bench.agrees()


# -- many changes ----------------------------------------------------------------------------


def a_new_topic(bench: Bench, chance: random.Random) -> None:
    name = f"new-{chance.randrange(5)}"
    (bench.log_dir / name).mkdir(exist_ok=True)
    record = codec.Record(name.encode(), 0, 0, b"app", 1, payload=chance.randbytes(40))
    path = bench.log_dir / name / layout.segment_log(0, 0)
    path.write_bytes(codec.encode_frame(record) * chance.choice([1, 1, 2]))


def a_topic_less(bench: Bench, chance: random.Random) -> None:
    topics = sorted(path for path in bench.log_dir.iterdir() if path.is_dir())
    if topics:
        shutil.rmtree(chance.choice(topics))


def another_file(bench: Bench, chance: random.Random) -> None:
    """Manifest, journal, checkpoints, locks: whatever is no log."""
    found = sorted(
        path for path in bench.log_dir.rglob("*") if path.is_file() and path.suffix != ".log"
    )
    if found:
        path = chance.choice(found)
        chance.choice([cut, replace, touch, edit, remove])(path)


def a_foreign_file(bench: Bench, chance: random.Random) -> None:
    (bench.log_dir / f"notes-{chance.randrange(3)}.txt").write_bytes(chance.randbytes(10))


def a_log(bench: Bench, chance: random.Random) -> None:
    logs = bench.logs()
    if logs:
        chance.choice(CHANGES)(chance.choice(logs))


def an_internal_log(bench: Bench, chance: random.Random) -> None:
    logs = bench.logs(layout.INTERNAL_TOPIC)
    if logs:
        chance.choice(CHANGES)(chance.choice(logs))


EVENTS = (a_log, a_log, a_log, an_internal_log, another_file, a_new_topic, a_foreign_file)


@pytest.mark.parametrize("name", [NAME, "shop-killed", "values-at-the-edge"])
@pytest.mark.parametrize("seed", range(4))
def test_after_many_changes(name: str, seed: int, tmp_path: Path) -> None:
    chance = random.Random(f"{name} {seed}")
    options = chance.choice(
        [{}, {"records": "none"}, {"hashes": True, "payload_bytes": 7}, {"records": "internal"}]
    )
    bench = Bench(tmp_path, name, **options)
    for _ in range(5):
        for _ in range(chance.choice([1, 1, 2, 4])):
            chance.choice(EVENTS)(bench, chance)
        if chance.random() < 0.1:
            a_topic_less(bench, chance)
        bench.update(jobs=chance.choice([1, 1, 1, 2]))
        bench.agrees()


# -- what an update does not go on from ------------------------------------------------------


def test_without_an_index_it_is_a_full_build(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.index.unlink()
    assert bench.update().full == "there is no index yet"
    bench.agrees()


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"records": "none"}, "other options"),
        ({"payload_bytes": 3}, "other options"),
        ({"hashes": True}, "other options"),
        ({"config": StartupConfig(max_topics=1)}, "another configuration"),
    ],
)
def test_other_options_are_a_full_build(
    changes: dict[str, object], why: str, tmp_path: Path
) -> None:
    bench = Bench(tmp_path)
    bench.options |= changes
    assert bench.update().full == f"the index was made with {why}"
    bench.agrees()


def test_another_directory_is_a_full_build(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.log_dir = bench.log_dir.rename(tmp_path / "elsewhere")
    assert bench.update().full == "the index is of another directory"
    bench.agrees()


def test_another_version_is_a_full_build(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    with closing(sqlite3.connect(bench.index)) as connection:
        connection.execute("pragma user_version = 1")
    assert bench.update().full == "the index is of another version"
    bench.agrees()


def test_another_version_of_the_program_is_a_full_build(tmp_path: Path) -> None:
    """What its scans did not look for would be missing."""
    bench = Bench(tmp_path)
    with closing(sqlite3.connect(bench.index)) as connection:
        connection.execute("update build set tool_version = '0.0.9'")
        connection.commit()
    assert bench.update().full == "the index was made by another version of this program"
    bench.agrees()


def test_an_empty_file_is_no_index_yet(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.index.write_bytes(b"")
    assert bench.update().full == "there is no index yet"
    bench.agrees()


def test_a_kept_batch_that_unpacks_without_end_is_not_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "_MAX_UNPACKED", 1 << 20)
    bench = Bench(tmp_path)
    bomb = b"\1" + zlib.compress(b" " * (4 << 20))
    with closing(sqlite3.connect(bench.index)) as connection:
        connection.execute("update kept_batches set data = ?", (bomb,))
        connection.commit()
    assert bench.update().full == "the index is damaged"
    bench.agrees()


@pytest.mark.parametrize(
    "damage",
    [
        "update kept_scans set state = '{}'",
        "update kept_scans set state = replace(state, '\"clean\"', '\"unheard of\"')",
        "delete from kept_scans",
        "drop table kept_batches",
        "update files set inode = 'many'",
        "update kept_batches set data = x'00'",
        "update kept_batches set data = x'01ffff'",
        "delete from build",
        "update build set log_dir = 1.5",
        "alter table files rename column path to place",
        'create table "a b;c" (x)',
        "create trigger no before delete on findings begin select raise(abort, 'no'); end",
    ],
)
def test_what_was_kept_is_not_believed_blindly(damage: str, tmp_path: Path) -> None:
    """An index that somebody spoiled costs time, and nothing else."""
    bench = Bench(tmp_path)
    with closing(sqlite3.connect(bench.index)) as connection:
        connection.execute(damage)
        connection.commit()
    assert bench.update().full
    bench.agrees()


@pytest.mark.parametrize(
    "forge",
    [
        lambda found: dataclasses.replace(found, producers=()),
        lambda found: dataclasses.replace(found, last_sequence=found.last_sequence * 0 - 1),
    ],
)
def test_a_kept_batch_of_numbers_that_lead_nowhere_is_not_believed(
    forge: Callable[[ProducerRuns], ProducerRuns], tmp_path: Path
) -> None:
    bench = Bench(tmp_path)
    with closing(sqlite3.connect(bench.index)) as connection:
        for *key, data in connection.execute(
            "select file_id, batch, data from kept_batches"
        ).fetchall():
            batch = kept.decode_batch(SegmentRef("", "", 0, 0, 0, False, False, False, False), data)
            if len(batch.producers):
                batch = dataclasses.replace(batch, producers=forge(batch.producers))
                changed = kept.encode_batch(batch)
                connection.execute(
                    "update kept_batches set data = ? where file_id = ? and batch = ?",
                    (changed, *key),
                )
        connection.commit()
    assert bench.update().full == "the index is damaged"
    bench.agrees()


def test_a_digest_that_could_not_be_made_is_made_when_it_can(tmp_path: Path) -> None:
    """The build before was not allowed to read the file, this one is."""
    for hashes in (False, True):
        bench = Bench(tmp_path / str(hashes), hashes=hashes)
        with closing(sqlite3.connect(bench.index)) as connection:
            unread = "(select file_id from files where path like '%.hwm')"
            connection.execute(f"delete from file_blocks where file_id in {unread}")
            connection.execute(
                f"update files set content = null, sha256 = null where file_id in {unread}"
            )
            connection.commit()
        assert not bench.update().full
        bench.agrees()


def test_a_file_of_the_future_does_not_hide_one_of_now(tmp_path: Path) -> None:
    """After the clock was put back: a tick has passed since the latest change before now."""
    (tmp_path / "log_dir").mkdir()
    (tmp_path / "log_dir" / "notes.txt").write_bytes(b"now")
    with LogDirectory.at(str(tmp_path / "log_dir")) as evidence:
        (entry,) = evidence.entries
        later = dataclasses.replace(entry, ctime_ns=entry.ctime_ns + 10**12)
        fill._let_the_clock_tick([entry, later])
        assert time.time_ns() - entry.ctime_ns >= fill.TICK_NS


def test_a_torn_copy_of_an_index_is_a_full_build(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    os.truncate(bench.index, bench.index.stat().st_size // 2)
    assert bench.update().full
    bench.agrees()


def test_an_interrupted_update_leaves_the_old_index(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    before = bench.index.read_bytes()
    append(bench.logs()[-1])

    def stop(_: int, __: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        load.build(
            str(bench.log_dir), str(bench.index), load.BuildOptions(AS_OF, update=True), stop
        )
    assert bench.index.read_bytes() == before
    assert sorted(os.listdir(tmp_path)) == ["evidence", "index.db"]
