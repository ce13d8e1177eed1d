"""A build that something goes wrong with: one clear outcome, and the old index intact."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import apsw
import index_help
import pytest

from cursus import layout
from inspect_db import fixtures, load
from inspect_db.index import open_index
from inspect_db.load import fill

OLD = "small-healthy"
LARGE = "shop-healthy"


def command(before: str = "") -> list[str]:
    """The words of a build, after ``before`` in the same process."""
    return [sys.executable, "-c", f"{before}from inspect_db.cli import main; main()", "build"]


def old_index(place: Path) -> tuple[Path, bytes]:
    """An index where the next one goes, and its bytes."""
    target = place / "index.db"
    target.write_bytes(index_help.built(OLD).read_bytes())
    return target, target.read_bytes()


def intact(target: Path, before: bytes) -> bool:
    """The old index stands as it was, and nothing stands beside it."""
    return target.read_bytes() == before and os.listdir(target.parent) == [target.name]


def test_orders_and_answers_larger_than_their_pipes(tmp_path: Path) -> None:
    """Neither the one who orders nor the one who answers waits for the other for ever."""
    topic = tmp_path / "log_dir" / "orders"
    topic.mkdir(parents=True)
    for partition in range(400):
        (topic / layout.segment_log(partition, 0)).write_bytes(b"no record")
    many = "import inspect_db.load.pool as pool; pool._AHEAD_ITEMS = 400; "
    words = [*command(many), str(topic.parent), "-o", str(tmp_path / "i.db"), "--jobs", "2"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr


def options(name: str, jobs: int | None = None) -> load.BuildOptions:
    return load.BuildOptions(index_help.FIXTURES[name].as_of, jobs=jobs)


# -- the destination -----------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one MiB, where we may make one."""
    libc = ctypes.CDLL(None, use_errno=True)
    place = tmp_path / "small"
    place.mkdir()
    if libc.mount(b"tmpfs", os.fsencode(place), b"tmpfs", 0, b"size=1m") != 0:
        pytest.skip("mounting is not permitted here; the limit of a file's size stands in")
    yield place
    libc.umount2(os.fsencode(place), 2)


def test_full_disk(small_disk: Path) -> None:
    target, before = old_index(small_disk)
    with pytest.raises(load.BuildError, match="no space left for the index"):
        load.build(str(index_help.log_dir(LARGE)), str(target), options(LARGE))
    assert intact(target, before)
    open_index(str(target)).close()


def test_full_disk_by_the_command(small_disk: Path) -> None:
    target, before = old_index(small_disk)
    words = [*command(), str(index_help.log_dir(LARGE)), "-o", str(target)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "no space left for the index" in done.stderr
    assert intact(target, before)


def test_limit_of_a_file(tmp_path: Path) -> None:
    target, before = old_index(tmp_path)
    limit = "import resource as r; r.setrlimit(r.RLIMIT_FSIZE, (1 << 20, 1 << 20)); "
    words = [*command(limit), str(index_help.log_dir(LARGE)), "-o", str(target)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "the index cannot be written" in done.stderr
    assert "Traceback" not in done.stderr
    assert intact(target, before)


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """A directory with an old index where nothing can be written, for root neither."""
    place = tmp_path / "read only"
    place.mkdir()
    old_index(place)
    libc = ctypes.CDLL(None, use_errno=True)
    mounted = False
    if os.geteuid() == 0:
        raw, bind, remount, ro = os.fsencode(place), 0x1000, 0x20, 0x1
        mounted = libc.mount(raw, raw, None, bind, None) == 0
        if not mounted or libc.mount(None, raw, None, bind | remount | ro, None) != 0:
            if mounted:
                libc.umount2(raw, 2)
            pytest.skip("root writes everywhere, and mounting is not permitted here")
    else:
        place.chmod(0o555)
    yield place
    if mounted:
        libc.umount2(os.fsencode(place), 2)
    place.chmod(0o755)


def test_read_only_destination(read_only: Path) -> None:
    target = read_only / "index.db"
    before = target.read_bytes()
    with pytest.raises(load.BuildError, match=r"Read-only file system|Permission denied"):
        load.build(str(index_help.log_dir(OLD)), str(target), options(OLD))
    assert intact(target, before)


@pytest.mark.skipif(os.geteuid() == 0, reason="root lists every directory")
def test_destination_that_cannot_be_listed(tmp_path: Path) -> None:
    place = tmp_path / "drop"
    place.mkdir(mode=0o300)
    try:
        with pytest.raises(load.BuildError, match="Permission denied"):
            load.build(str(index_help.log_dir(OLD)), str(place / "i.db"), options(OLD))
    finally:
        place.chmod(0o700)


def test_destination_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(load.BuildError, match="no such directory"):
        load.build(str(index_help.log_dir(OLD)), str(tmp_path / "no" / "i.db"), options(OLD))
    assert not list(tmp_path.iterdir())


def fresh(place: Path, name: str = OLD) -> Path:
    place.mkdir(exist_ok=True)
    return fixtures.materialise(index_help.FIXTURES[name], place)


def listing(log_dir: Path) -> list[tuple[str, int]]:
    return sorted((str(item), item.lstat().st_mtime_ns) for item in log_dir.rglob("*"))


@pytest.mark.parametrize("way", ["plainly", "deeper", "dots", "linked directory", "linked file"])
def test_destination_inside_the_log_directory(way: str, tmp_path: Path) -> None:
    log_dir = fresh(tmp_path / "evidence")
    outside = tmp_path / "outside"
    outside.mkdir()
    topic = next(item for item in sorted(log_dir.iterdir()) if item.is_dir())
    (outside / "link").symlink_to(topic)
    (outside / "index.db").symlink_to(log_dir / "index.db")
    target = {
        "plainly": str(log_dir / "index.db"),
        "deeper": str(topic / "index.db"),
        "dots": f"{outside}/../evidence/log_dir/index.db",
        "linked directory": str(outside / "link" / "index.db"),
        "linked file": str(outside / "index.db"),
    }[way]
    before = listing(log_dir)
    with pytest.raises(load.BuildError, match="inside the log directory"):
        load.build(str(log_dir), target, options(OLD))
    assert listing(log_dir) == before


@pytest.mark.parametrize("kind", ["text", "other database", "directory"])
def test_what_is_no_index_is_not_overwritten(kind: str, tmp_path: Path) -> None:
    target = tmp_path / "index.db"
    if kind == "directory":
        target.mkdir()
    else:
        target.write_bytes(b"my thesis" if kind == "text" else b"SQLite format 3\0" + bytes(84))
    with pytest.raises(load.BuildError, match=r"not overwritten|is a directory"):
        load.build(str(index_help.log_dir(OLD)), str(target), options(OLD))
    assert os.listdir(tmp_path) == ["index.db"]


# -- the process -----------------------------------------------------------------------------


def unfinished(place: Path) -> list[Path]:
    return sorted(place.glob(".index.db.building-*"))


def started(target: Path) -> subprocess.Popen[str]:
    """A build of a larger directory that has begun to write."""
    # A shell in the background starts its children deaf to interrupts.
    hearing = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    words = [*command(hearing), str(index_help.log_dir(LARGE)), "-o", str(target), "--hash"]
    child = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    until = time.monotonic() + 30
    while not any(path.stat().st_size > 1 << 16 for path in unfinished(target.parent)):
        assert child.poll() is None, child.communicate()
        assert time.monotonic() < until
        time.sleep(0.002)
    return child


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted(number: signal.Signals, tmp_path: Path) -> None:
    target, before = old_index(tmp_path)
    child = started(target)
    child.send_signal(number)
    _, said = child.communicate(timeout=30)
    assert child.returncode not in {0, None}
    assert "Traceback" not in said
    assert intact(target, before)


def test_killed(tmp_path: Path) -> None:
    target, before = old_index(tmp_path)
    child = started(target)
    child.kill()
    child.communicate(timeout=30)
    assert target.read_bytes() == before
    assert len(unfinished(tmp_path)) == 1
    load.build(str(index_help.log_dir(OLD)), str(target), options(OLD))
    assert os.listdir(tmp_path) == ["index.db"]
    open_index(str(target)).close()


def test_the_unfinished_file_of_a_running_build_stays(tmp_path: Path) -> None:
    target, _ = old_index(tmp_path)
    running = tmp_path / f".index.db.building-{os.getpid()}-abcd0123"
    running.write_bytes(b"")
    load.build(str(index_help.log_dir(OLD)), str(target), options(OLD))
    assert sorted(os.listdir(tmp_path)) == sorted([running.name, "index.db"])


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError, OSError(5, "I/O error")])
def test_anything_raised_in_the_middle(
    error: type[BaseException] | BaseException, tmp_path: Path
) -> None:
    target, before = old_index(tmp_path)

    def fail(_: int, __: int) -> None:
        raise error

    wanted = load.BuildError if isinstance(error, OSError) else error
    assert isinstance(wanted, type)
    with pytest.raises(wanted):
        load.build(str(index_help.log_dir(OLD)), str(target), options(OLD), fail)
    assert intact(target, before)


# -- workers -----------------------------------------------------------------------------------


def workers_of(parent: int) -> list[int]:
    """Processes that scan for ``parent``."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_bytes().split(b"\0")
            stat = (path / "stat").read_text("ascii", "replace").rpartition(")")[2].split()
        except OSError:
            continue  # it ended meanwhile
        if int(stat[1]) == parent and any(b"inspect_db.load.worker" in word for word in words):
            found.append(int(path.name))
    return found


def gone(processes: list[int]) -> bool:
    """Have these ended, within a while? One that nobody has waited for counts."""
    until = time.monotonic() + 60
    for process in processes:
        while time.monotonic() < until:
            try:
                state = Path(f"/proc/{process}/stat").read_text("ascii", "replace")
            except OSError:
                break
            if state.rpartition(")")[2].split()[0] in "ZX":
                break
            time.sleep(0.01)
        else:
            return False
    return True


def test_a_killed_worker_ends_the_build(tmp_path: Path) -> None:
    target, before = old_index(tmp_path)
    seen: list[int] = []

    def kill(_: int, __: int) -> None:
        if not seen:
            seen.extend(workers_of(os.getpid()))
            os.kill(seen[0], signal.SIGKILL)

    with pytest.raises(load.BuildError, match="killed by signal 9"):
        load.build(str(index_help.log_dir(LARGE)), str(target), options(LARGE, jobs=3), kill)
    assert len(seen) == 2
    assert gone(seen)
    assert intact(target, before)


def test_a_failure_between_two_segments_ends_the_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The index cannot take what a scan left, while others are still scanning."""
    target, before = old_index(tmp_path)
    seen: list[int] = []

    def fail(*_: object) -> None:
        seen.extend(workers_of(os.getpid()))
        raise apsw.FullError("full")

    monkeypatch.setattr(fill._Fill, "_write_down", fail)
    with pytest.raises(load.BuildError, match="no space left"):
        load.build(str(index_help.log_dir(LARGE)), str(target), options(LARGE, jobs=3))
    assert len(seen) == 2
    assert not workers_of(os.getpid())
    assert intact(target, before)


def test_full_disk_of_a_worker(small_disk: Path) -> None:
    target, before = old_index(small_disk)
    given = load.BuildOptions(index_help.FIXTURES[LARGE].as_of, payload_bytes=1000, jobs=3)
    with pytest.raises(load.BuildError, match="no space left for the index"):
        load.build(str(index_help.log_dir(LARGE)), str(target), given)
    assert intact(target, before)
    assert not workers_of(os.getpid())


def test_evidence_that_a_worker_cannot_reach(tmp_path: Path) -> None:
    target, before = old_index(tmp_path)
    log_dir = fresh(tmp_path / "evidence")
    left = [log_dir]

    def move(_: int, __: int) -> None:
        if left:
            left.pop().rename(tmp_path / "moved")

    with pytest.raises(load.BuildError):
        load.build(str(log_dir), str(target), options(OLD, jobs=2), move)
    assert target.read_bytes() == before
    assert not unfinished(tmp_path)
    assert not workers_of(os.getpid())


def shared(target: Path) -> tuple[subprocess.Popen[str], list[int]]:
    """A build with workers that have begun, and their processes."""
    hearing = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    words = [*command(hearing), str(index_help.log_dir(LARGE)), "-o", str(target), "--jobs", "3"]
    child = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, start_new_session=True)
    until = time.monotonic() + 30
    while not any(".shard-" in path.name for path in unfinished(target.parent)):
        assert child.poll() is None, child.communicate()
        assert time.monotonic() < until
        time.sleep(0.002)
    return child, workers_of(child.pid)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("to", ["all", "the first"])
def test_interrupted_with_workers(number: signal.Signals, to: str, tmp_path: Path) -> None:
    """A terminal interrupts the whole group, a supervisor the first process."""
    target, before = old_index(tmp_path)
    child, workers = shared(target)
    if to == "all":
        os.killpg(child.pid, number)
    else:
        child.send_signal(number)
    _, said = child.communicate(timeout=30)
    assert child.returncode not in {0, None}
    assert "Traceback" not in said
    assert gone(workers)
    assert intact(target, before)


def test_workers_end_with_a_killed_build(tmp_path: Path) -> None:
    target, before = old_index(tmp_path)
    child, workers = shared(target)
    child.kill()
    child.communicate(timeout=30)
    assert gone(workers)
    assert target.read_bytes() == before
    load.build(str(index_help.log_dir(OLD)), str(target), options(OLD))
    assert os.listdir(tmp_path) == ["index.db"]


# -- the evidence ------------------------------------------------------------------------------


def grow(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"\0\0\0\1")


def shrink(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def rewrite(path: Path) -> None:
    """The same size, other bytes."""
    data = path.read_bytes()
    with path.open("r+b") as file:
        file.write(bytes(byte ^ 1 for byte in data))


def rewrite_unseen(path: Path) -> None:
    """The same size, other bytes, and the modification time put back."""
    found = path.stat()
    rewrite(path)
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))


def replace(path: Path) -> None:
    """Another file of the same bytes and the same time, as a copy tool would put it."""
    found = path.stat()
    other = path.with_name("other")
    other.write_bytes(path.read_bytes())
    os.utime(other, ns=(found.st_atime_ns, found.st_mtime_ns))
    other.rename(path)


def remove(path: Path) -> None:
    path.unlink()


def to_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


CHANGES = (grow, shrink, empty, rewrite, rewrite_unseen, replace, remove, to_directory)
#: Read before the first record of a topic is scanned, while it is, and after.
FILES = (
    "__topic_metadata.json",
    "first segment",
    "last segment",
    "last checkpoint",
    "__transaction_state.journal",
)


def chosen(log_dir: Path, which: str) -> Path:
    if which.startswith("__"):
        return log_dir / which
    logs = sorted(p for p in log_dir.rglob("*.log") if p.stat().st_size)
    if which == "last checkpoint":
        return sorted(log_dir.rglob("*.hwm"))[-1]
    return logs[0 if which == "first segment" else -1]


@pytest.mark.parametrize("which", FILES)
@pytest.mark.parametrize("change", CHANGES)
def test_evidence_that_changes_is_said_to(
    change: Callable[[Path], None], which: str, tmp_path: Path
) -> None:
    log_dir = fresh(tmp_path / "evidence")
    path = chosen(log_dir, which)
    assert path.is_file()
    target = tmp_path / "index.db"
    left = [path]

    def during(_: int, __: int) -> None:
        if left:
            change(left.pop())

    result = load.build(str(log_dir), str(target), options(OLD), during)
    assert not left
    said = path.relative_to(log_dir).as_posix()
    assert result.changed == (said,)
    told = index_help.rows(
        target, "select path from findings where code = 'file_changed_while_reading'"
    )
    assert set(told) == {(said,)}
    assert index_help.rows(target, "select path from files where changed") == [(said,)]
    assert index_help.rows(target, "select changed_files from build") == [(1,)]


@pytest.mark.parametrize("kind", ["directory", "file", "file in a topic"])
def test_what_appears_is_said_to(kind: str, tmp_path: Path) -> None:
    log_dir = fresh(tmp_path / "evidence")
    topic = next(item for item in sorted(log_dir.iterdir()) if item.is_dir())
    new = topic / "new" if kind == "file in a topic" else log_dir / "new"
    target = tmp_path / "index.db"
    left = [new]

    def during(_: int, __: int) -> None:
        if left:
            path = left.pop()
            path.mkdir() if kind == "directory" else path.write_bytes(b"")

    result = load.build(str(log_dir), str(target), options(OLD), during)
    said = new.relative_to(log_dir).as_posix()
    assert result.changed == (said,)
    sql = "select path, message from findings where code = 'file_changed_while_reading'"
    ((path, message),) = index_help.rows(target, sql)
    assert path == said
    assert message.startswith("appeared between")
    assert index_help.rows(target, "select changed_files from build") == [(1,)]


def test_quiet_evidence_is_not_said_to_change(tmp_path: Path) -> None:
    result = load.build(str(fresh(tmp_path / "e")), str(tmp_path / "index.db"), options(OLD))
    assert result.changed == ()
    sql = "select count(*) from findings where code = 'file_changed_while_reading'"
    assert index_help.rows(tmp_path / "index.db", sql) == [(0,)]


@pytest.mark.parametrize("to", ["nothing", "a link", "another directory"])
def test_the_directory_goes_away(to: str, tmp_path: Path) -> None:
    place = tmp_path / "out"
    place.mkdir()
    target, before = old_index(place)
    log_dir = fresh(tmp_path / "evidence")
    left = [log_dir.with_name("moved")]

    def during(_: int, __: int) -> None:
        if left:
            moved = left.pop()
            log_dir.rename(moved)
            if to == "a link":
                log_dir.symlink_to(moved)
            elif to == "another directory":
                log_dir.mkdir()

    if to == "another directory":
        result = load.build(str(log_dir), str(target), options(OLD), during)
        files = index_help.rows(target, "select count(*) from files where type = 'file'")
        assert files == [(len(result.changed),)]
        return
    with pytest.raises(load.BuildError):
        load.build(str(log_dir), str(target), options(OLD), during)
    assert intact(target, before)


def test_the_command_warns(tmp_path: Path) -> None:
    """A file that grows all the time, under the command itself."""
    log_dir = fresh(tmp_path / "evidence", LARGE)
    path = chosen(log_dir, "last segment")
    target = tmp_path / "index.db"
    words = [*command(), str(log_dir), "-o", str(target)]
    child = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    while not unfinished(tmp_path) and child.poll() is None:
        time.sleep(0.002)
    while child.poll() is None:
        grow(path)
        time.sleep(0.01)
    _, said = child.communicate()
    assert child.returncode == 0
    assert "warning: 1 files changed while they were read" in said
    assert path.relative_to(log_dir).as_posix() in said
