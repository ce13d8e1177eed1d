"""The door for durable writes, and the locks: what they promise, with faults at the door."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cursus.storage.durable import Durable, Operation, WriteUnavailableError
from cursus.storage.locks import StorageLockedError, lock_log_directory, lock_partition

HOLD = """
import sys
from cursus.storage.locks import lock_log_directory
lock = lock_log_directory(sys.argv[1])
print("held", flush=True)
sys.stdin.read()
"""


def names(trace: list[Operation]) -> list[tuple[str, str]]:
    return [(o.kind, os.path.basename(o.path)) for o in trace]


def failing(kind: str, code: int) -> Durable:
    def observer(operation: Operation) -> None:
        if operation.kind == kind:
            raise OSError(code, os.strerror(code), operation.path)

    return Durable(observer)


def test_a_replacement_is_written_synced_renamed_and_its_directory_synced(tmp_path: Path) -> None:
    trace: list[Operation] = []
    (tmp_path / "x").write_bytes(b"old")
    (tmp_path / "x.tmp").write_bytes(b"leftover, longer than the new content")
    Durable(trace.append).replace_file(str(tmp_path / "x"), str(tmp_path / "x.tmp"), b"new")
    assert names(trace) == [
        ("unlink", "x.tmp"),
        ("create", "x.tmp"),
        ("write", "x.tmp"),
        ("fsync", "x.tmp"),
        ("rename", "x.tmp"),
        ("sync_directory", tmp_path.name),
    ]
    assert (tmp_path / "x").read_bytes() == b"new"
    assert (tmp_path / "x").stat().st_mode & 0o777 == 0o600
    assert not (tmp_path / "x.tmp").exists()


@pytest.mark.parametrize("kind", ["create", "write", "fsync", "rename"])
def test_a_replacement_that_fails_before_its_rename_leaves_the_old_file(
    tmp_path: Path, kind: str
) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"old")
    with pytest.raises(OSError):
        failing(kind, errno.ENOSPC).replace_file(str(path), f"{path}.tmp", b"new")
    assert path.read_bytes() == b"old"


def test_what_is_appended_stands_where_append_said_and_durable_follows_fsync(
    tmp_path: Path,
) -> None:
    path = str(tmp_path / "log")
    with Durable().create(path) as file:
        assert file.append(b"abc") == 0
        assert file.durable == 0
        file.fsync()
        assert file.append(b"de") == 3
        assert (file.size, file.durable) == (5, 3)
        file.truncate(2)
        assert (file.size, file.durable) == (2, 2)
        assert file.append(b"X") == 2
    assert Path(path).read_bytes() == b"abX"
    with Durable().open(path) as file:
        assert file.append(b"Y") == 3
    with pytest.raises(FileExistsError):
        Durable().create(path)


@pytest.mark.parametrize(
    ("kind", "code"), [("write", errno.ENOSPC), ("fsync", errno.EIO), ("truncate", errno.EIO)]
)
def test_after_one_failure_nothing_is_tried_again_until_the_file_is_opened(
    tmp_path: Path, kind: str, code: int
) -> None:
    faults = [1]
    trace: list[str] = []

    def observer(operation: Operation) -> None:
        if operation.kind == kind and faults:
            faults.pop()
            raise OSError(code, os.strerror(code))
        trace.append(operation.kind)

    door = Durable(observer)
    file = door.create(str(tmp_path / "log"))
    calls = {
        "write": lambda: file.append(b"a"),
        "fsync": file.fsync,
        "truncate": lambda: file.truncate(0),
    }
    with pytest.raises(OSError) as raised:
        calls[kind]()
    assert raised.value.errno == code
    before = list(trace)
    for call in calls.values():
        with pytest.raises(WriteUnavailableError):
            call()
    assert trace == before, "nothing more reaches the door"
    file.close()
    with door.open(str(tmp_path / "log")) as again:
        again.append(b"b")
        again.fsync()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
def test_a_disk_that_is_really_full_closes_the_file_for_writing() -> None:
    with Durable().open("/dev/full") as file:
        with pytest.raises(OSError) as raised:
            file.append(b"a")
        assert raised.value.errno == errno.ENOSPC
        assert file.size == 0
        with pytest.raises(WriteUnavailableError):
            file.append(b"a")


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"t")
    (tmp_path / "link").symlink_to("target")
    with pytest.raises(OSError):
        Durable().open(str(tmp_path / "link"))


def test_names_and_directories(tmp_path: Path) -> None:
    trace: list[Operation] = []
    door = Durable(trace.append)
    directory = str(tmp_path / "d")
    door.make_directory(directory)
    assert os.stat(directory).st_mode & 0o777 == 0o750
    door.create(f"{directory}/a").close()
    door.change_mode(f"{directory}/a", 0o400)
    assert os.stat(f"{directory}/a").st_mode & 0o777 == 0o400
    door.rename(f"{directory}/a", f"{directory}/b")
    door.unlink(f"{directory}/b")
    door.remove_directory(directory)
    assert not os.path.exists(directory)
    assert [o.kind for o in trace] == ["mkdir", "create", "chmod", "rename", "unlink", "rmdir"]


def test_the_second_process_is_refused_at_once_and_a_kill_releases_the_lock(
    tmp_path: Path,
) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(StorageLockedError, match=r"\.cursus\.lock"):
            lock_log_directory(str(tmp_path))
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.communicate()
    lock_log_directory(str(tmp_path)).close()
    lock = tmp_path / ".cursus.lock"
    assert (lock.read_bytes(), lock.stat().st_mode & 0o777) == (b"", 0o600)


def test_one_process_cannot_take_a_lock_twice_and_closing_lets_go(tmp_path: Path) -> None:
    (tmp_path / "orders").mkdir()
    with lock_partition(str(tmp_path), "orders", 3):
        assert (tmp_path / "orders" / "partition_3.lock").exists()
        with pytest.raises(StorageLockedError):
            lock_partition(str(tmp_path), "orders", 3)
        lock_partition(str(tmp_path), "orders", 4).close()
    lock_partition(str(tmp_path), "orders", 3).close()


def test_an_empty_directory_name_creates_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError):
        lock_log_directory("")
    assert list(tmp_path.iterdir()) == []


def test_a_lock_that_is_no_regular_file_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / ".cursus.lock")
    with pytest.raises(OSError):
        lock_log_directory(str(tmp_path))


def test_bytes_are_overwritten_in_place_and_never_past_the_end(tmp_path: Path) -> None:
    trace: list[Operation] = []
    with Durable(trace.append).create(str(tmp_path / "x")) as file:
        file.append(b"abcdef")
        file.overwrite(2, b"\0\0")
        assert file.size == 6
        with pytest.raises(ValueError, match="pass the end"):
            file.overwrite(5, b"12")
    assert (tmp_path / "x").read_bytes() == b"ab\0\0ef"
    assert [o.kind for o in trace] == ["create", "write", "write"]


def test_a_store_reads_regular_files_only_and_follows_no_link(tmp_path: Path) -> None:
    files = Durable()
    (tmp_path / "x").write_bytes(b"content")
    (tmp_path / "link").symlink_to("x")
    os.mkfifo(tmp_path / "pipe")
    with files.open_read(str(tmp_path / "x")) as file:
        assert (file.size, file.pread(100, 3)) == (7, b"tent")
    for name in ("link", "pipe", "absent"):
        with pytest.raises(OSError, match=name):
            files.open_read(str(tmp_path / name))
    assert files.list_directory(str(tmp_path)) == ["link", "pipe", "x"]
    kinds = {n: files.status(str(tmp_path / n)) for n in ("x", "link", "pipe", "absent")}
    assert {n: s and s.type for n, s in kinds.items()} == {
        "x": "file",
        "link": "symlink",
        "pipe": "other",
        "absent": None,
    }


def test_a_modification_time_is_set_and_the_access_time_stays(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"content")
    before = (tmp_path / "x").stat().st_atime_ns
    Durable().set_modified(str(tmp_path / "x"), 1_700_000_000_123_456_789)
    after = (tmp_path / "x").stat()
    assert (after.st_mtime_ns, after.st_atime_ns) == (1_700_000_000_123_456_789, before)
