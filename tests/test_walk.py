"""The walk sees everything, follows nothing, touches nothing, and hangs on nothing."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cursus import layout
from cursus.evidence import walk
from cursus.evidence.walk import LogDirectory, LogDirectoryError, unreadable
from cursus.evidence.window import ShortReadError, Window, read_exactly
from cursus.findings import Finding
from cursus.formats.display import safe_bytes, safe_text
from cursus.layout import FileKind
from cursus.replay.interfaces import SegmentRef, UnreadableError

LOG = layout.segment_log(0, 0)


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    path = tmp_path / "logs"
    (path / "orders").mkdir(parents=True)
    (path / "orders" / LOG).write_bytes(b"12345678")
    return path


def codes(evidence: LogDirectory) -> list[tuple[str, str]]:
    return [(item.code, item.path) for item in evidence.walk_findings]


def told(evidence: LogDirectory, path: str) -> Finding:
    (found,) = [item for item in evidence.walk_findings if item.path == path]
    return found


def test_entries_are_sorted_by_bytes_and_typed_before_they_are_opened(log_dir: Path) -> None:
    os.mkfifo(log_dir / "pipe")
    (log_dir / "link").symlink_to("orders")
    with socket.socket(socket.AF_UNIX) as listener:
        here = os.getcwd()
        os.chdir(log_dir)
        try:
            listener.bind("socket")
        finally:
            os.chdir(here)
    for name in ("é", "a", "B"):
        (log_dir / name).write_bytes(b"")
    with LogDirectory.at(str(log_dir)) as evidence:
        paths = [os.fsencode(entry.path) for entry in evidence.entries]
        assert paths == sorted(paths)
        types = {entry.path: entry.type for entry in evidence.entries}
        assert types["pipe"] == "fifo"
        assert types["link"] == "symlink"
        assert types["socket"] == "socket"
        assert types["orders"] == "directory"
        assert f"link/{LOG}" not in types
        assert evidence.children("link") == []


def test_a_pipe_or_a_link_is_never_opened(log_dir: Path) -> None:
    os.mkfifo(log_dir / "__transaction_state.journal")
    (log_dir / "__topic_metadata.json").symlink_to(f"orders/{LOG}")
    with LogDirectory.at(str(log_dir)) as evidence:
        for path in ("__transaction_state.journal", "__topic_metadata.json", "orders"):
            with pytest.raises(UnreadableError) as error:
                evidence.read(path, 100)
            assert error.value.finding.code == "file_unreadable"


def test_a_directory_that_becomes_a_link_is_not_followed(log_dir: Path, tmp_path: Path) -> None:
    with LogDirectory.at(str(log_dir)) as evidence:
        (log_dir / "orders").rename(tmp_path / "away")
        (log_dir / "orders").symlink_to(tmp_path / "away")
        with pytest.raises(UnreadableError):
            evidence.open(f"orders/{LOG}")


@pytest.mark.parametrize("at_work", [False, True])
def test_a_pipe_with_the_inode_number_of_the_file_before_is_no_file(
    at_work: bool, log_dir: Path
) -> None:
    """A file system gives the number of what is gone to the next that is made."""
    path = "pipe"
    os.mkfifo(log_dir / path)
    with LogDirectory.at(str(log_dir)) as evidence:
        evidence.in_use = at_work
        found = os.lstat(log_dir / path)
        seen = evidence.get(path)
        assert seen is not None
        evidence._by_path[path] = replace(
            seen, type="file", kind=FileKind.HWM, dev=found.st_dev, ino=found.st_ino
        )
        with pytest.raises(UnreadableError) as error:
            evidence.read(path, 100)
        assert error.value.finding.code == "file_changed_while_reading"


def test_a_file_that_was_exchanged_is_a_finding(log_dir: Path) -> None:
    with LogDirectory.at(str(log_dir)) as evidence:
        other = log_dir / "other"
        other.write_bytes(b"another file")
        other.rename(log_dir / "orders" / LOG)
        with pytest.raises(UnreadableError) as error:
            evidence.open(f"orders/{LOG}")
    assert error.value.finding.code == "file_changed_while_reading"


def test_a_file_that_is_gone_is_a_finding(log_dir: Path) -> None:
    with LogDirectory.at(str(log_dir)) as evidence:
        (log_dir / "orders" / LOG).unlink()
        ref = SegmentRef(f"orders/{LOG}", "orders", 0, 0, 8, True, False, False, False)
        scan = evidence.scan(ref)
    assert scan.end == "unreadable"
    assert [item.code for item in scan.findings] == ["file_unreadable"]


def test_a_file_that_shrinks_is_a_finding(log_dir: Path) -> None:
    path = log_dir / "orders" / LOG
    with LogDirectory.at(str(log_dir)) as evidence, evidence.open(f"orders/{LOG}") as source:
        os.truncate(path, 3)
        with pytest.raises(ShortReadError) as error:
            read_exactly(source, 8, 0)
        assert error.value.position == 3
        ref = SegmentRef(f"orders/{LOG}", "orders", 0, 0, 8, True, False, False, False)
        scan = evidence.scan(ref)
        assert scan.end == "unreadable"
        assert [item.code for item in scan.findings] == ["file_changed_while_reading"]


class Dripping:
    """Gives at most three bytes at a time."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.size = len(data)

    def pread(self, length: int, position: int) -> bytes:
        return self.data[position : position + min(length, 3)]


def test_a_window_reads_what_comes_in_pieces() -> None:
    data = bytes(range(200))
    window = Window(Dripping(data), len(data))
    assert window.get(150, 20) == data[150:170]
    assert window.get(0, 200) == data
    assert window.get(199, 1) == data[199:]


def test_names_that_are_not_utf8_and_names_with_controls(log_dir: Path) -> None:
    raw = b"bad\xff\n\x1b[31m"
    with open(os.fsencode(log_dir / "orders") + b"/" + raw, "wb") as file:
        file.write(b"x")
    with LogDirectory.at(str(log_dir)) as evidence:
        entry = next(item for item in evidence.entries if "bad" in item.path)
        assert os.fsencode(entry.path) == b"orders/" + raw
        assert evidence.read(entry.path, 10) == b"x"
        assert entry.kind is FileKind.UNKNOWN
        assert ("unknown_file", entry.path) in codes(evidence)
    assert safe_text(entry.path) == "orders/bad\\xff\\n\\x1b[31m"


def test_safe_text_shows_what_hides() -> None:
    assert safe_text("a\u202eb\u200bc\x00\x7f\u2028") == "a\\u202eb\\u200bc\\x00\\x7f\\u2028"
    assert safe_text("C:\\n") == "C:\\\\n"
    assert safe_text("größe 日本 ✓") == "größe 日本 ✓"
    assert safe_text("\U000e0041\ud800") == "\\U000e0041\\ud800"
    assert safe_text("abcdef", 3) == "abc…"
    assert safe_bytes(b"\xffa") == "\\xffa"
    assert safe_text("\udcffa") == "\\xffa"


def test_a_deep_tree_ends(log_dir: Path) -> None:
    fd = os.open(log_dir, os.O_RDONLY)
    for _ in range(400):
        os.mkdir("d" * 200, dir_fd=fd)
        inner = os.open("d" * 200, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = inner
    os.close(fd)
    with LogDirectory.at(str(log_dir)) as evidence:
        assert max(entry.path.count("/") for entry in evidence.entries) == walk.MAX_DEPTH - 1
        assert f"depth {walk.MAX_DEPTH}" in "".join(i.message for i in evidence.walk_findings)


def test_of_twenty_thousand_unknown_files_a_thousand_are_told(log_dir: Path) -> None:
    fd = os.open(log_dir / "orders", os.O_RDONLY)
    for number in range(20_000):
        os.mknod(layout.segment_log(number, 0) + ".x", dir_fd=fd)
    os.close(fd)
    with LogDirectory.at(str(log_dir)) as evidence:
        assert len(evidence.entries) == 20_002
        # One sentence for each is of no use: a thousand, and how many more.
        unknown = [item for item in evidence.walk_findings if item.code == "unknown_file"]
        assert len(unknown) == walk.MAX_FINDINGS + 1
        assert unknown[-1].message == "19000 more of these"


def test_descriptors_are_closed(log_dir: Path) -> None:
    for number in range(50):
        (log_dir / f"t{number}").mkdir()
    before = len(os.listdir("/proc/self/fd"))
    with LogDirectory.at(str(log_dir)) as evidence:
        evidence.read(f"orders/{LOG}", 10)
        assert len(os.listdir("/proc/self/fd")) <= before + 3
    assert len(os.listdir("/proc/self/fd")) == before


def test_nothing_is_touched(log_dir: Path) -> None:
    path = log_dir / "orders" / LOG
    for target in (path, path.parent, log_dir):
        os.utime(target, ns=(1, 1))
    with LogDirectory.at(str(log_dir)) as evidence:
        evidence.read(f"orders/{LOG}", 10)
    for target in (path, path.parent, log_dir):
        found = os.stat(target)
        assert (found.st_atime_ns, found.st_mtime_ns) == (1, 1)


def test_reading_goes_on_where_noatime_is_not_permitted(
    log_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open

    def refusing(path: str, flags: int, *args: int, **more: int) -> int:
        if flags & os.O_NOATIME:
            raise PermissionError(errno.EPERM, "not the owner")
        return real(path, flags, *args, **more)

    monkeypatch.setattr(os, "open", refusing)
    with LogDirectory.at(str(log_dir)) as evidence:
        assert evidence.read(f"orders/{LOG}", 100) == b"12345678"


# -- what names alone say ----------------------------------------------------------


def test_leftovers_and_other_builds_are_named(log_dir: Path) -> None:
    expected = {
        "__topic_metadata.json.tmp": "stale_temporary_file",
        "__transaction_state.journal.compact-3": "stale_temporary_file",
        "orders/partition_0.hwm.tmp": "stale_temporary_file",
        "__consumer_metadata_migration.json": "obsolete_migration_file",
        ".topic-metadata-migration-1": "older_storage",
        "orders/notes.txt": "unknown_file",
    }
    for path in expected:
        (log_dir / path).write_bytes(b"")
    (log_dir / "raft").mkdir()
    (log_dir / "raft" / "log.db").write_bytes(b"")
    (log_dir / "lost+found").mkdir()
    (log_dir / "lost+found" / "inner").write_bytes(b"")
    with LogDirectory.at(str(log_dir)) as evidence:
        found = {item.path: item.code for item in evidence.walk_findings}
        assert found == {
            **expected,
            "raft": "distributed_internal_metadata",
            "lost+found": "unknown_file",
        }
        assert {item.severity for item in evidence.walk_findings} == {"info"}


# -- what cannot be read ------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "number", "effect", "step"),
    [
        ("__topic_metadata.json", errno.EIO, "refuses", 1),
        ("__topic_metadata.json", errno.EACCES, "unknown", 1),
        (f"orders/{LOG}", errno.EIO, "refuses", 2),
        ("orders", errno.EACCES, "unknown", 2),
        ("orders", errno.EIO, "refuses", 2),
        (f"__consumer_offsets/{LOG}", errno.EIO, "refuses", 3),
        ("__transaction_state.journal", errno.EPERM, "unknown", 4),
        ("orders/partition_0.hwm", errno.EIO, "recovers", 5),
        ("orders/partition_0.hwm", errno.EACCES, "unknown", 5),
        ("lost+found", errno.EACCES, "ignores", 2),
        ("orders/notes", errno.EIO, "ignores", 2),
    ],
)
def test_unreadable_by_what_needs_it(path: str, number: int, effect: str, step: int) -> None:
    found = unreadable(path, OSError(number, os.strerror(number)))
    assert (found.code, found.effect, found.step) == ("file_unreadable", effect, step)


def test_a_directory_that_cannot_be_listed_does_not_end_the_walk(
    log_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (log_dir / "zebra").mkdir()
    (log_dir / "zebra" / LOG).write_bytes(b"")
    inode = os.stat(log_dir / "orders").st_ino
    real = os.listdir

    def failing(target: int) -> list[str]:
        if os.fstat(target).st_ino == inode:
            raise PermissionError(errno.EACCES, "Permission denied")
        return real(target)

    monkeypatch.setattr(os, "listdir", failing)
    with LogDirectory.at(str(log_dir)) as evidence:
        assert told(evidence, "orders").effect == "unknown"
        assert evidence.get(f"zebra/{LOG}") is not None


@pytest.mark.parametrize(
    ("make", "code"),
    [
        ("absent", "log_dir_unreadable"),
        ("file", "log_dir_not_real_directory"),
        ("link", "log_dir_not_real_directory"),
        ("link/", "log_dir_not_real_directory"),
        ("   ", "log_dir_blank"),
        ("a\0b", "log_dir_unreadable"),
    ],
)
def test_a_log_directory_that_is_none(tmp_path: Path, make: str, code: str) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "link").symlink_to("real")
    path = make if make.isspace() else f"{tmp_path}/{make}"
    with pytest.raises(LogDirectoryError) as error:
        LogDirectory.at(path)
    assert error.value.code == code


# -- is it in use? ------------------------------------------------------------------


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A list of locks of our own, in the first PID namespace."""
    path = tmp_path / "locks"
    path.write_text("")
    real = os.stat

    class First:
        st_ino = walk._INITIAL_PID_NAMESPACE

    def seen(target: object, *args: object, **more: object) -> object:
        return First() if target == walk._PROC_PID_NAMESPACE else real(target, *args, **more)  # type: ignore[call-overload]

    monkeypatch.setattr(walk, "_PROC_LOCKS", str(path))
    monkeypatch.setattr(os, "stat", seen)
    return path


def lock_line(path: Path, *, device: str | None = None, kind: str = "FLOCK ") -> str:
    found = os.lstat(path)
    device = device or f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}"
    return f"1: {kind} ADVISORY  WRITE 4711 {device}:{found.st_ino} 0 EOF\n"


def in_use(log_dir: Path) -> bool | None:
    with LogDirectory.at(str(log_dir)) as evidence:
        return evidence.in_use


def test_in_use_is_read_from_the_list_of_locks(log_dir: Path, kernel: Path) -> None:
    assert in_use(log_dir) is False
    lock = log_dir / ".cursus.lock"
    lock.write_bytes(b"")
    assert in_use(log_dir) is False
    kernel.write_text(lock_line(lock))
    assert in_use(log_dir) is True
    with LogDirectory.at(str(log_dir)) as evidence:
        assert told(evidence, ".cursus.lock").code == "storage_in_use"
    kernel.write_text("1: -> " + lock_line(lock)[3:])
    assert in_use(log_dir) is False
    kernel.write_text(lock_line(lock, kind="POSIX "))
    assert in_use(log_dir) is False


def test_in_use_is_not_known_where_it_cannot_be(
    log_dir: Path, kernel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = log_dir / ".cursus.lock"
    lock.write_bytes(b"")
    kernel.write_text(lock_line(lock, device="fe:fe"))
    assert in_use(log_dir) is None
    kernel.unlink()
    assert in_use(log_dir) is None
    kernel.write_text("")
    monkeypatch.setattr(walk, "_INITIAL_PID_NAMESPACE", 1)
    assert in_use(log_dir) is None
    kernel.write_text(lock_line(lock))
    assert in_use(log_dir) is True


def test_a_real_lock_is_seen_or_not_known_and_never_taken(log_dir: Path) -> None:
    lock = log_dir / ".cursus.lock"
    lock.write_bytes(b"")
    with open(lock) as held:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert in_use(log_dir) in {True, None}
    with open(lock) as free, LogDirectory.at(str(log_dir)):
        fcntl.flock(free, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_directory_that_changes_all_the_time_never_raises(log_dir: Path) -> None:
    stop = threading.Event()

    def churn() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            path = log_dir / f"churn{number % 7}"
            path.mkdir(exist_ok=True)
            (path / LOG).write_bytes(b"x" * (number % 9))
            (path / LOG).unlink()
            path.rmdir()

    told_paths: set[bool] = set()
    thread = threading.Thread(target=churn)
    thread.start()
    try:
        for _ in range(30):
            with LogDirectory.at(str(log_dir)) as evidence:
                for entry in evidence.entries:
                    if entry.type == "file":
                        try:
                            evidence.read(entry.path, 100)
                        except UnreadableError as error:
                            told_paths.add(error.finding.path == entry.path)
    finally:
        stop.set()
        thread.join()
    assert told_paths <= {True}
