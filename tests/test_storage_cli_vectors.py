"""``cursus-storage``, byte for byte: golden vectors, captures, and what a user can do wrong."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cursus import layout
from cursus.cli import storage as cli
from cursus.evidence import inventory as inv
from cursus.evidence.walk import LogDirectory, LogDirectoryError
from cursus.findings import CATALOGUE, FormatError
from cursus.formats import consumer_metadata as cm
from cursus.formats.record import Record, encode_frame
from cursus.storage import orphan_archive as oa

ROOT = Path(__file__).resolve().parent.parent
GOLDEN = ROOT / "fixtures" / "golden" / "manifest"
VECTORS: dict[str, Any] = json.loads((GOLDEN / "vectors.json").read_text("utf-8"))
MTIME = VECTORS["segment_mtime_ns"]
COMMANDS = ("manifest inspect", "consumer-metadata inspect", "orphan inspect")
CAPTURES = sorted(path.parent.name for path in ROOT.glob("fixtures/*/inventory.json"))

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capfdbinary: pytest.CaptureFixture[bytes]) -> Run:
    """Run ``cursus-storage`` here: exit status, stdout, stderr."""

    def call(*words: str) -> tuple[int, str, str]:
        capfdbinary.readouterr()
        status = cli.main(list(words))
        out, err = capfdbinary.readouterr()
        return status, out.decode(), err.decode()

    return call


def is_one_error_line(text: str) -> bool:
    return text.startswith("error: ") and text.endswith("\n") and text.count("\n") == 1


def build(tree: list[dict[str, str]], root: Path) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    for item in tree:
        path = root / item["path"]
        path.parent.mkdir(parents=True, exist_ok=True)
        if item["type"] == "dir":
            path.mkdir(exist_ok=True)
        elif item["type"] == "symlink":
            path.symlink_to(item["target"])
        else:
            data = (
                (GOLDEN / "blobs" / item["blob"]).read_bytes()
                if "blob" in item
                else item["text"].encode()
            )
            path.write_bytes(data)
            os.utime(path, ns=(MTIME, MTIME))
    return root


def unpack(folder: Path, target: Path) -> Path:
    """The log directory of a capture."""
    with tarfile.open(folder / "log_dir.tar.xz") as packed:
        packed.extractall(target, filter="data")
    return target / "log_dir"


def vectors(section: str) -> Any:
    return pytest.mark.parametrize("vector", VECTORS[section], ids=lambda v: str(v["name"]))


def code_of(call: Callable[[], object]) -> str:
    with pytest.raises(
        (inv.InventoryError, LogDirectoryError, oa.ArchiveError, FormatError)
    ) as error:
        call()
    return str(error.value.code)


def document(command: str, log_dir: Path) -> object:
    with LogDirectory.at(str(log_dir)) as evidence:
        found = inv.take_inventory(evidence)
    return inv.orphan_document(found) if command == "orphan inspect" else found


def portable(text: str, vector: dict[str, Any]) -> str:
    """Without the tails that come from the reference's JSON library."""
    if "message_tail_not_portable" not in vector:
        return text
    return re.sub(r'(at record offset [12]:)(?:[^"\\]|\\.)*"', r'\1"', text)


@pytest.mark.parametrize("command", COMMANDS)
@vectors("log_directories")
def test_inspection(vector: dict[str, Any], command: str, run: Run, tmp_path: Path) -> None:
    expected = vector["commands"][command]
    log_dir = build(vector["tree"], tmp_path / "logs")
    status, out, err = run(*command.split(), "--log-dir", str(log_dir))
    assert status == expected["exit"]
    assert portable(out, vector) == portable(expected["stdout"] or "", vector)
    if status:
        assert is_one_error_line(err)
        assert code_of(lambda: document(command, log_dir)) == expected["code"]
    else:
        assert err == ""


@vectors("log_directory_path_cases")
def test_log_directory_that_is_none(vector: dict[str, Any], run: Run, tmp_path: Path) -> None:
    (tmp_path / "healthy").mkdir()
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "symlink_to_directory").symlink_to("healthy")
    name = vector["name"].replace("symlink_with_trailing_slash", "symlink_to_directory/")
    for command in COMMANDS:
        path = f"{tmp_path}/{name}"
        status, out, err = run(*command.split(), "--log-dir", path)
        assert (status, out) == (vector["exit"], "")
        assert is_one_error_line(err)
        assert code_of(lambda path=path: LogDirectory.at(path)) == vector["code"]  # type: ignore[misc]


@vectors("cli")
def test_command_line(vector: dict[str, Any], run: Run) -> None:
    status, out, err = run(*vector["args"])
    assert status == vector["exit"]
    if "usage_on" in vector:
        usage = VECTORS["cli_usage"]
        assert (out, err) == ((usage, "") if vector["usage_on"] == "stdout" else ("", usage))
    else:
        assert (out == "") == vector["stdout_empty"]
        assert (err == "") == vector["stderr_empty"]
        if status:
            assert is_one_error_line(err)


@pytest.mark.parametrize("name", CAPTURES)
def test_captures(name: str, run: Run, tmp_path: Path) -> None:
    """What the reference printed for real storage (modes and times are not preserved)."""
    folder = ROOT / "fixtures" / name
    log_dir = unpack(folder, tmp_path)
    for command, judge in (("manifest", "inventory.json"), ("orphan", "orphans.json")):
        status, out, err = run(command, "inspect", "--log-dir", str(log_dir))
        out = re.sub('"modified_unix_nano": [0-9]+', '"modified_unix_nano": 0', out)
        assert (status, err) == (0, "")
        assert out == (folder / judge).read_text("utf-8")


def test_there_are_captures() -> None:
    assert len(CAPTURES) >= 9


def test_older_storage_gives_no_inventory(run: Run, tmp_path: Path) -> None:
    folder = ROOT / "fixtures" / "legacy-august"
    expected = json.loads((folder / "expected.json").read_text("utf-8"))["reference_inspector"]
    log_dir = unpack(folder, tmp_path)
    for command, judge in expected.items():
        status, out, err = run(*command.split(), "--log-dir", str(log_dir))
        assert (status, out, err) == (judge["exit"], "", judge["stderr"] + "\n")


# -- flags ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["-log-dir", "x"], {"log-dir": "x"}),
        (["--log-dir=x=y"], {"log-dir": "x=y"}),
        (["--log-dir", "-x"], {"log-dir": "-x"}),
        (["--log-dir", "a", "--log-dir", "b"], {"log-dir": "b"}),
        (["--log-dir", "a", "--"], {"log-dir": "a"}),
    ],
)
def test_flags(words: list[str], expected: dict[str, str]) -> None:
    assert cli.parse_flags(words, {"log-dir": ""}, {}).values == expected


@pytest.mark.parametrize(
    "words",
    [[], ["---log-dir=x"], ["--=x"], ["-"], ["--log-dir", "x", "-"], ["--log-dir", "x", "--", "y"]],
)
def test_bad_flags(words: list[str]) -> None:
    with pytest.raises(cli.UsageError):
        cli.parse_flags(words, {"log-dir": ""}, {})


@pytest.mark.parametrize(
    ("word", "on"),
    [
        ("--dry-run", True),
        ("-dry-run=T", True),
        ("--dry-run=1", True),
        ("--dry-run=false", False),
        ("--dry-run=F", False),
    ],
)
def test_switches(word: str, on: bool) -> None:
    found = cli.parse_flags([word, "--log-dir", "x"], {"log-dir": ""}, {"dry-run": ""})
    assert ("dry-run" in found.switches) == on


# -- texts ----------------------------------------------------------------------------


def test_every_text_belongs_to_a_code_of_the_catalogue() -> None:
    assert set(inv.PROBLEM_TEXTS) <= set(CATALOGUE)


# -- more than the vectors show -------------------------------------------------------


def healthy(tmp_path: Path) -> Path:
    (vector,) = [item for item in VECTORS["log_directories"] if item["name"] == "healthy"]
    return build(vector["tree"], tmp_path / "logs")


def problems(run: Run, log_dir: Path) -> list[tuple[str, str]]:
    status, out, _ = run("manifest", "inspect", "--log-dir", str(log_dir))
    assert status == 0
    return [(item["path"], item["message"]) for item in json.loads(out).get("problems", [])]


def test_a_complete_record_above_the_older_limit_is_a_record(run: Run, tmp_path: Path) -> None:
    """README.md decision 2: 64 MiB; an unfinished one keeps the reference's text (vectors)."""
    log_dir = tmp_path / "logs"
    (log_dir / "t").mkdir(parents=True)
    frame = encode_frame(Record(topic=b"t", payload=bytes(17 << 20)))
    (log_dir / "t" / layout.segment_log(0, 0)).write_bytes(frame)
    assert problems(run, log_dir) == []


def test_every_wrong_record_is_a_problem_of_its_own(run: Run, tmp_path: Path) -> None:
    log_dir = tmp_path / "logs"
    (log_dir / "t").mkdir(parents=True)
    frames = b"".join(encode_frame(Record(topic=b"u", offset=n)) for n in range(5000))
    (log_dir / "t" / layout.segment_log(0, 0)).write_bytes(frames)
    found = problems(run, log_dir)
    assert len(found) == 5000
    assert {text for _, text in found} == {"record topic or partition does not match its path"}


def test_glob_characters_and_hostile_names(run: Run, tmp_path: Path) -> None:
    log_dir = healthy(tmp_path).rename(tmp_path / "logs [a]*?")
    raw = b"partition_\xff\x1b[31m\n.log"
    with open(os.fsencode(log_dir / "orders") + b"/" + raw, "wb"):
        pass
    ((path, text),) = problems(run, log_dir)
    assert path == "orders/partition_\N{REPLACEMENT CHARACTER}\x1b[31m\n.log"
    assert text == "non-canonical partition log name"
    _, out, _ = run("manifest", "inspect", "--log-dir", str(log_dir))
    assert "\x1b" not in out
    assert "\\u001b" in out


def test_an_error_is_one_line_whatever_the_name(run: Run) -> None:
    status, out, err = run("manifest", "inspect", "--log-dir", "/no/\x1b[31m\nwhere\udcff")
    assert (status, out) == (1, "")
    assert is_one_error_line(err)
    assert "\x1b" not in err
    assert "\\x1b[31m\\nwhere\\xff" in err


def test_marker_of_a_deleted_segment_and_of_several_spellings(run: Run, tmp_path: Path) -> None:
    log_dir = tmp_path / "logs"
    (log_dir / "t").mkdir(parents=True)
    frames = b"".join(encode_frame(Record(topic=b"t", offset=n)) for n in (2, 5))
    deleted = log_dir / "t" / layout.deleted(layout.segment_log(0, 0))
    deleted.write_bytes(frames)
    assert len(problems(run, log_dir)) == 2
    (log_dir / "t" / f"{deleted.name}.compacted-0{len(frames)}").write_bytes(b"wrong")
    assert ("current compaction marker has invalid content") in {
        text for _, text in problems(run, log_dir)
    }
    (log_dir / "t" / f"{deleted.name}.compacted-00{len(frames)}").write_bytes(
        b"cursus-compaction-v1\n"
    )
    assert problems(run, log_dir) == []


@pytest.mark.parametrize(
    ("text", "hwm", "messages"),
    [
        (b"\xc2\xa0 007 \r\n", 7, ["HWM is ahead of log end"]),
        (b"2", 2, []),
        (b"18446744073709551615", 2**64 - 1, ["HWM is ahead of log end"]),
        (b"18446744073709551616", None, ["invalid HWM checkpoint"]),
        (b"+1", None, ["invalid HWM checkpoint"]),
        (b"-0", None, ["invalid HWM checkpoint"]),
        (b"1_0", None, ["invalid HWM checkpoint"]),
        ("\N{ARABIC-INDIC DIGIT THREE}".encode(), None, ["invalid HWM checkpoint"]),
        (b"", None, ["invalid HWM checkpoint"]),
        (b"\xff", None, ["invalid HWM checkpoint"]),
        (b"0" * 5000, None, ["invalid HWM checkpoint"]),
    ],
)
def test_hwm(text: bytes, hwm: int | None, messages: list[str], run: Run, tmp_path: Path) -> None:
    log_dir = tmp_path / "logs"
    (log_dir / "t").mkdir(parents=True)
    frames = b"".join(encode_frame(Record(topic=b"t", offset=n)) for n in range(2))
    (log_dir / "t" / layout.segment_log(0, 0)).write_bytes(frames)
    (log_dir / "t" / layout.hwm(0)).write_bytes(text)
    _, out, _ = run("manifest", "inspect", "--log-dir", str(log_dir))
    found = json.loads(out)
    assert found["topics"][0]["partitions"][0]["hwm"] == hwm
    assert [item["message"] for item in found.get("problems", [])] == messages


@pytest.mark.parametrize("what", ["directory", "link", "pipe"])
def test_a_checkpoint_that_is_no_file_ends_the_command(what: str, run: Run, tmp_path: Path) -> None:
    log_dir = healthy(tmp_path)
    path = log_dir / "orders" / layout.hwm(0)
    path.unlink()
    if what == "directory":
        path.mkdir()
    elif what == "link":
        path.symlink_to("partition_1.hwm")
    else:
        os.mkfifo(path)
    status, out, err = run("manifest", "inspect", "--log-dir", str(log_dir))
    assert (status, out) == (1, "")
    assert is_one_error_line(err)
    assert code_of(lambda: document("manifest inspect", log_dir)) == "hwm_unreadable"


def test_no_permission_is_one_line(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log_dir = healthy(tmp_path)
    real = os.open

    def refusing(path: str, *args: int, **more: int) -> int:
        if str(path) == layout.segment_log(0, 2):
            raise PermissionError(errno.EACCES, "Permission denied")
        return real(path, *args, **more)

    monkeypatch.setattr(os, "open", refusing)
    status, out, err = run("manifest", "inspect", "--log-dir", str(log_dir))
    assert (status, out) == (1, "")
    assert is_one_error_line(err)
    assert "Permission denied" in err
    assert layout.segment_log(0, 2) in err


def test_a_topic_directory_that_cannot_be_listed_ends_the_command(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log_dir = healthy(tmp_path)
    inode = os.stat(log_dir / "orders").st_ino
    real = os.listdir

    def failing(target: int) -> list[str]:
        if os.fstat(target).st_ino == inode:
            raise PermissionError(errno.EACCES, "Permission denied")
        return real(target)

    monkeypatch.setattr(os, "listdir", failing)
    status, out, err = run("manifest", "inspect", "--log-dir", str(log_dir))
    assert (status, out) == (1, "")
    assert is_one_error_line(err)


def test_initial_offsets_are_shown(run: Run, tmp_path: Path) -> None:
    log_dir = tmp_path / "logs"
    directory = log_dir / layout.INTERNAL_TOPIC
    directory.mkdir(parents=True)
    record = cm.ConsumerRecord(
        type=cm.REGISTRATION,
        group="g<1>",
        epoch=2,
        topic="t*",
        partition_count=2,
        initial_offsets=(
            cm.TopicSnapshot("t2", 4, (cm.OffsetItem(1, 9), cm.OffsetItem(0, 0))),
            cm.TopicSnapshot("t1", 1),
        ),
    )
    frame = encode_frame(
        Record(topic=layout.INTERNAL_TOPIC.encode(), partition=1, payload=cm.encode(record))
    )
    (directory / layout.segment_log(1, 0)).write_bytes(frame)
    _, out, _ = run("consumer-metadata", "inspect", "--log-dir", str(log_dir))
    assert '"group": "g\\u003c1\\u003e"' in out
    (shown,) = json.loads(out)["records"]
    assert shown["initial_offsets"] == [
        {"topic": "t1", "revision": 1, "offsets": None},
        {
            "topic": "t2",
            "revision": 4,
            "offsets": [{"partition": 0, "offset": 0}, {"partition": 1, "offset": 9}],
        },
    ]


def test_inspection_touches_nothing(run: Run, tmp_path: Path) -> None:
    log_dir = healthy(tmp_path)

    def look() -> list[tuple[str, int, int, int, int]]:
        return [
            (str(path), (s := path.lstat()).st_mtime_ns, s.st_atime_ns, s.st_ctime_ns, s.st_size)
            for path in sorted([log_dir, *log_dir.rglob("*")])
        ]

    before = look()
    for command in COMMANDS:
        run(*command.split(), "--log-dir", str(log_dir))
    run("backup", "validate", "--log-dir", str(log_dir))
    assert look() == before


# -- backup validate --------------------------------------------------------------------


def test_a_complete_backup_is_ready(run: Run, tmp_path: Path) -> None:
    folder = ROOT / "fixtures" / "small-healthy"
    log_dir = unpack(folder, tmp_path)
    expected = json.loads((folder / "expected.json").read_text("utf-8"))
    status, out, err = run("backup", "validate", "--log-dir", str(log_dir))
    assert (status, err) == (0, "")
    found = json.loads(out)
    assert list(found) == ["ready", "inventory", "transaction_journal"]
    assert found["ready"] is True
    assert found["transaction_journal"]["present"] is True
    assert found["transaction_journal"]["latest_transactions"] == len(expected["transactions"])


def spoil_manifest(log_dir: Path) -> None:
    (log_dir / layout.MANIFEST).unlink()


def spoil_journal(log_dir: Path) -> None:
    with open(log_dir / layout.JOURNAL, "ab") as file:
        file.write(b"\0\0")


def spoil_directory(log_dir: Path) -> None:
    (log_dir / "orders").rename(log_dir.parent / "away")


def spoil_undeclared(log_dir: Path) -> None:
    (log_dir / "extra").mkdir()
    (log_dir / "extra" / layout.segment_log(0, 0)).write_bytes(b"")


def spoil_renamed(log_dir: Path) -> None:
    spoil_directory(log_dir)
    spoil_undeclared(log_dir)


def spoil_partition(log_dir: Path) -> None:
    for path in (log_dir / "orders").glob("partition_0_*"):
        path.unlink()


def spoil_partition_ids(log_dir: Path) -> None:
    spoil_partition(log_dir)
    (log_dir / "orders" / layout.segment_log(77, 0)).write_bytes(b"")


def spoil_active(log_dir: Path) -> None:
    spoil_partition(log_dir)
    (log_dir / "orders" / layout.deleted(layout.segment_log(0, 0))).write_bytes(b"")


def spoil_tail(log_dir: Path) -> None:
    path = max((log_dir / "orders").glob("partition_0_segment_*.log"))
    with open(path, "ab") as file:
        file.write(b"\0")


@pytest.mark.parametrize(
    ("spoil", "code"),
    [
        (spoil_manifest, "manifest_absent"),
        (spoil_tail, "storage_has_problems"),
        (spoil_directory, "topic_count_mismatch"),
        (spoil_undeclared, "topic_count_mismatch"),
        (spoil_renamed, "declared_topic_storage_missing"),
        (spoil_partition, "partition_count_mismatch"),
        (spoil_partition_ids, "partition_ids_not_contiguous"),
        (spoil_active, "declared_topic_partition_missing"),
        (spoil_journal, "journal_frame_truncated"),
    ],
)
def test_an_incomplete_backup_is_not(
    spoil: Callable[[Path], None], code: str, run: Run, tmp_path: Path
) -> None:
    folder = ROOT / "fixtures" / "small-healthy"
    log_dir = unpack(folder, tmp_path)
    spoil(log_dir)
    status, out, err = run("backup", "validate", "--log-dir", str(log_dir))
    assert status == 1
    assert json.loads(out)["ready"] is False
    assert is_one_error_line(err)
    with LogDirectory.at(str(log_dir)) as evidence:
        problem = cli.validate_backup(evidence).problem
    assert problem is not None
    assert problem[0] == code


# -- the archive ------------------------------------------------------------------------

SETUP: dict[str, Callable[[Path], object]] = {
    "archive_resolves_inside_log_dir": lambda base: (
        (base / "logs" / "inside").mkdir(),
        (base / "alias").symlink_to(base / "logs" / "inside"),
    ),
    "archive_dir_is_symlink": lambda base: (
        (base / "real").mkdir(),
        (base / "archive").symlink_to(base / "real"),
    ),
    "archive_parent_is_symlink_outside": lambda base: (
        (base / "real").mkdir(),
        (base / "archive").symlink_to(base / "real"),
    ),
    "archive_dir_is_file": lambda base: (base / "archive").write_bytes(b""),
    "destination_exists": lambda base: (base / "archive" / "orphan").mkdir(parents=True),
    "destination_exists_dry_run": lambda base: (base / "archive" / "orphan").mkdir(parents=True),
    "destination_is_dangling_symlink": lambda base: (
        (base / "archive").mkdir(),
        (base / "archive" / "orphan").symlink_to("nowhere"),
    ),
}


def test_every_setup_of_the_vectors_is_made() -> None:
    assert set(SETUP) == {item["name"] for item in VECTORS["archive"] if item.get("setup")}


def archive_code(base: Path, vector: dict[str, Any]) -> str:
    return code_of(
        lambda: oa.archive_orphan(
            str(base / "logs"),
            vector["archive_dir"].replace("{base}", str(base)),
            vector["topic"],
            dry_run=vector["dry_run"],
            take_inventory=cli._inventory,
            result=oa.ArchiveResult(),
        )
    )


@vectors("archive")
def test_archive(vector: dict[str, Any], run: Run, tmp_path: Path) -> None:
    base = tmp_path / "base"
    base.mkdir(mode=0o755)
    base.chmod(0o755)
    build(vector["tree"], base / "logs").chmod(0o755)
    SETUP.get(vector["name"], lambda _: None)(base)
    archive_dir = vector["archive_dir"].replace("{base}", str(base))
    topic, source = vector["topic"], base / "logs" / vector["topic"]
    if vector["exit"]:
        assert archive_code(base, vector) == vector["code"]
    status, out, err = run(
        *("orphan", "archive", "--log-dir", str(base / "logs")),
        *("--archive-dir", archive_dir, "--topic", topic),
        *(["--dry-run"] if vector["dry_run"] else []),
    )
    assert (status, out) == (vector["exit"], vector["stdout"].replace("{base}", str(base)))
    assert is_one_error_line(err) if status else err == ""
    if vector["source_remains"] is not None:
        assert source.exists() == vector["source_remains"]
    archived = Path(archive_dir) / topic
    if vector["archived"]:
        assert any(archived.iterdir())
    elif "destination" not in vector["name"]:
        assert not archived.exists() or archived.samefile(source)
    assert Path(archive_dir).is_dir() == vector["archive_dir_exists_after"]
    if "archive_dir_mode" in vector:
        assert oct(Path(archive_dir).stat().st_mode & 0o777) == vector["archive_dir_mode"]


@pytest.fixture
def base(tmp_path: Path) -> Path:
    (vector,) = [item for item in VECTORS["archive"] if item["name"] == "success"]
    build(vector["tree"], tmp_path / "logs")
    return tmp_path


def archive(run: Run, base: Path, *more: str) -> tuple[int, dict[str, Any], str]:
    status, out, err = run(
        *("orphan", "archive", "--log-dir", str(base / "logs")),
        *("--archive-dir", str(base / "archive"), "--topic", "orphan", *more),
    )
    return status, json.loads(out), err


@pytest.mark.parametrize("more", [[], ["--dry-run"]])
def test_a_broker_that_holds_the_lock_is_refused(
    run: Run, base: Path, more: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = base / "logs" / ".cursus.lock"
    lock.write_bytes(b"")
    monkeypatch.setattr(LogDirectory, "_look_for_lock", lambda self: True)
    with open(lock) as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        status, found, err = archive(run, base, *more)
    assert (status, found["changed"], found["source"]) == (1, False, "")
    assert is_one_error_line(err)
    assert (base / "logs" / "orphan").is_dir()
    assert not (base / "archive").exists()


def test_a_lock_that_nobody_holds_is_no_obstacle(run: Run, base: Path) -> None:
    (base / "logs" / ".cursus.lock").write_bytes(b"")
    assert archive(run, base)[0] == 0


def test_the_lock_file_is_never_created(run: Run, base: Path) -> None:
    assert archive(run, base)[0] == 0
    assert not (base / "logs" / ".cursus.lock").exists()


def test_a_writer_between_the_two_looks_is_noticed(
    run: Run, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = []
    real = cli._inventory

    def look(log_dir: str) -> inv.Inventory:
        if looks:
            path = base / "logs" / "orders" / layout.segment_log(0, 0)
            os.utime(path, ns=(MTIME, MTIME + 1))
        looks.append(log_dir)
        return real(log_dir)

    monkeypatch.setattr(cli, "_inventory", look)
    status, found, err = archive(run, base)
    assert (status, found["changed"]) == (1, False)
    assert found["destination"] == str(base / "archive" / "orphan")
    assert "changed while it was being examined" in err
    assert (base / "logs" / "orphan").is_dir()


def failing_rename(number: int) -> Callable[..., None]:
    def rename(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    return rename


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (errno.EXDEV, "archive_rename_failed"),
        (errno.EEXIST, "archive_rename_failed"),
        (errno.EACCES, "archive_rename_failed"),
        (errno.EINVAL, "exclusive_rename_unsupported"),
        (errno.ENOSYS, "exclusive_rename_unsupported"),
    ],
)
def test_a_rename_that_fails_moves_nothing(
    base: Path, number: int, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oa, "rename_exclusively", failing_rename(number))
    vector = {"archive_dir": "{base}/archive", "topic": "orphan", "dry_run": False}
    assert archive_code(base, vector) == code
    assert (base / "logs" / "orphan").is_dir()
    assert list((base / "archive").iterdir()) == []


def test_another_device_is_never_copied_to(run: Run, base: Path) -> None:
    other = Path("/dev/shm")
    if not os.access(other, os.W_OK) or other.stat().st_dev == base.stat().st_dev:
        pytest.skip("there is no second file system here")
    target = other / f"cursus-archive-{os.getpid()}"
    try:
        status, out, _ = run(
            *("orphan", "archive", "--log-dir", str(base / "logs")),
            *("--archive-dir", str(target), "--topic", "orphan"),
        )
        assert (status, json.loads(out)["changed"]) == (1, False)
        assert list(target.iterdir()) == []
        assert (base / "logs" / "orphan").is_dir()
    finally:
        target.rmdir()


def test_the_rename_refuses_to_replace(tmp_path: Path) -> None:
    """A plain rename would silently replace an empty directory."""
    for name in ("from", "to", "from/x", "to/x"):
        (tmp_path / name).mkdir()
    source, target = (os.open(tmp_path / name, os.O_RDONLY) for name in ("from", "to"))
    try:
        with pytest.raises(FileExistsError):
            oa.rename_exclusively(source, "x", target, "x")
        assert (tmp_path / "from" / "x").is_dir()
        oa.rename_exclusively(source, "x", target, "y")
        assert (tmp_path / "to" / "y").is_dir()
    finally:
        os.close(source)
        os.close(target)


def test_a_failed_sync_says_that_the_directory_was_moved(
    run: Run, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    status, found, err = archive(run, base)
    assert status == 1
    assert (found["changed"], found["committed"]) == (True, True)
    assert is_one_error_line(err)
    assert (base / "archive" / "orphan").is_dir()


def test_the_log_directory_is_synced_before_the_archive(
    run: Run, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.fstat(fd).st_ino))
    assert archive(run, base)[0] == 0
    assert synced == [(base / name).stat().st_ino for name in ("logs", "archive")]


def test_an_archive_below_a_file_or_a_dangling_link_is_refused(run: Run, base: Path) -> None:
    (base / "file").write_bytes(b"")
    (base / "dangling").symlink_to("nowhere")
    for path in ("file/archive", "dangling/archive"):
        status, out, err = run(
            *("orphan", "archive", "--log-dir", str(base / "logs")),
            *("--archive-dir", str(base / path), "--topic", "orphan"),
        )
        assert (status, json.loads(out)["changed"]) == (1, False)
        assert is_one_error_line(err)
    assert (base / "logs" / "orphan").is_dir()


def test_a_blank_archive_directory(run: Run, base: Path) -> None:
    vector = {"archive_dir": "  ", "topic": "orphan", "dry_run": False}
    assert archive_code(base, vector) == "archive_dir_blank"


# -- as a process -----------------------------------------------------------------------


def command_line(*words: str) -> list[str]:
    return [sys.executable, "-m", "cursus.cli.storage", *words]


def test_a_closed_pipe_is_one_line(base: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            command_line("manifest", "inspect", "--log-dir", str(base / "logs")),
            stdout=writing,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            check=False,
        )
    finally:
        os.close(writing)
    assert done.returncode == 1
    assert is_one_error_line(done.stderr)


def test_an_interrupt_is_one_line(base: Path) -> None:
    """Interrupted while it examines a directory; nothing was moved, and it says so."""
    script = (
        "import os, signal, sys\n"
        "from cursus.cli import storage\n"
        "real = storage.take_inventory\n"
        "def look(evidence):\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    return real(evidence)\n"
        "storage.take_inventory = look\n"
        "sys.exit(storage.main())\n"
    )
    done = subprocess.run(
        [
            *(sys.executable, "-c", script, "orphan", "archive"),
            *("--log-dir", str(base / "logs"), "--archive-dir", str(base / "archive")),
            *("--topic", "orphan"),
        ],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert done.returncode == 130
    assert done.stderr == "error: interrupted\n"
    assert json.loads(done.stdout)["changed"] is False
    assert (base / "logs" / "orphan").is_dir()
