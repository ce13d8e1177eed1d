"""Nothing is written below a log directory: proven in three ways.

Every command but ``orphan archive`` runs over every fixture. A tree hash with
times before and after runs everywhere. Where the tests run as root, the commands
run on read-only bind mounts too; where ``strace`` is installed, no call that
could change anything may be seen at all.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from reading_commands import complaints
from test_fixtures import FIXTURES, tree

from inspect_db import fixtures

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = Path(__file__).resolve().parent / "reading_commands.py"


def run(arguments: list[str]) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        arguments,
        capture_output=True,
        env=environment,
        cwd="/",
        timeout=280,
        check=False,
        text=True,
        errors="replace",
    )


@contextmanager
def read_only(path: Path) -> Iterator[Path]:
    """A bind mount of ``path`` that nobody can write through."""
    mounted = path.parent / "mounted"
    mounted.mkdir()
    subprocess.run(["mount", "--bind", str(path), str(mounted)], check=True, capture_output=True)
    try:
        subprocess.run(
            ["mount", "-o", "remount,bind,ro", str(mounted)], check=True, capture_output=True
        )
        yield mounted
    finally:
        subprocess.run(["umount", str(mounted)], check=True, capture_output=True)


def may_mount() -> str:
    """Why no bind mount is possible here; empty where it is."""
    if os.geteuid() != 0:
        return "a bind mount needs root"
    clone_newns = 0x00020000
    libc = ctypes.CDLL(None, use_errno=True)
    child = os.fork()
    if child == 0:
        os._exit(0 if libc.unshare(clone_newns) == 0 else 1)
    _, status = os.waitpid(child, 0)
    return "" if status == 0 else "root without the capability to mount"


WHY_NOT = may_mount()


@pytest.mark.parametrize("fixture", FIXTURES, ids=lambda fixture: fixture.name)
def test_a_tree_is_the_same_afterwards(fixture: fixtures.Fixture, tmp_path: Path) -> None:
    """Through a read-only mount where one is possible: then no write can even be tried."""
    log_dir = fixtures.materialise(fixture, tmp_path)
    before = tree(log_dir)
    if WHY_NOT:
        wrong = list(complaints(log_dir))
    else:
        with read_only(log_dir) as mounted:
            wrong = list(complaints(mounted))
    assert not wrong, "\n".join(wrong)
    assert tree(log_dir) == before


@pytest.mark.skipif(bool(WHY_NOT), reason=f"not through a read-only mount: {WHY_NOT}")
def test_the_mount_is_read_only(tmp_path: Path) -> None:
    """Says in the report whether the test above ran through one."""
    inner = tmp_path / "log_dir"
    inner.mkdir()
    with read_only(inner) as mounted, pytest.raises(OSError, match="Read-only"):
        (mounted / "probe").touch()


#: Calls that can change something by their very name, whatever their arguments.
CHANGING = re.compile(
    r"\b(creat|rename|renameat2?|unlink|unlinkat|rmdir|mkdir|mkdirat|mknod|mknodat|link|linkat|"
    r"symlink|symlinkat|chmod|fchmodat2?|chown|lchown|fchownat|truncate|utime|utimes|utimensat|"
    r"futimesat|setxattr|lsetxattr|removexattr|lremovexattr)\("
)
#: Calls on a descriptor: strace -y shows its path in <>.
ON_DESCRIPTOR = re.compile(
    r"\b(write|pwrite64|pwritev2?|writev|ftruncate|fallocate|fchmod|fchown|flock|fsetxattr|"
    r"fremovexattr|copy_file_range|sendfile|splice)\(\d+<([^>]*)>"
)
LOCKING = re.compile(r"\bfcntl\(\d+<([^>]*)>, F_(?:OFD_)?SETLKW?")
OPENING = re.compile(r"\bopen(?:at2?)?\([^\n]*?(O_WRONLY|O_RDWR|O_CREAT|O_TRUNC)")


def forbidden(trace: str, log_dir: str) -> list[str]:
    """Lines of a trace that touch something below ``log_dir``."""
    found = []
    for line in trace.splitlines():
        if log_dir not in line:
            continue
        on_descriptor = ON_DESCRIPTOR.search(line)
        locking = LOCKING.search(line)
        if (
            CHANGING.search(line)
            or OPENING.search(line)
            or (on_descriptor and on_descriptor.group(2).startswith(log_dir))
            or (locking and locking.group(1).startswith(log_dir))
        ):
            found.append(line)
    return found


def test_the_trace_reader_sees_what_it_should() -> None:
    lines = [
        'openat(3</x/log_dir>, "a", O_RDWR|O_CREAT, 0600) = 4',
        'unlinkat(3</x/log_dir/orders>, "a", 0) = 0',
        "flock(3</x/log_dir/.cursus.lock>, LOCK_EX|LOCK_NB) = 0",
        "fcntl(3</x/log_dir/.cursus.lock>, F_SETLK, {l_type=F_WRLCK}) = 0",
        'utimensat(AT_FDCWD, "/x/log_dir/a", NULL, 0) = 0',
        "ftruncate(4</x/log_dir/a.log>, 12) = 0",
    ]
    assert forbidden("\n".join(lines), "/x/log_dir") == lines
    harmless = [
        'openat(3</x/log_dir>, "a", O_RDONLY|O_NOFOLLOW|O_NONBLOCK) = 4',
        'write(1</dev/pts/0>, "/x/log_dir is fine", 18) = 18',
    ]
    assert forbidden("\n".join(harmless), "/x/log_dir") == []


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
@pytest.mark.parametrize("half", [0, 1])
def test_no_call_changes_anything(half: int, tmp_path: Path) -> None:
    log_dirs = []
    for fixture in FIXTURES[half::2]:
        target = tmp_path / fixture.name
        target.mkdir()
        log_dirs.append(str(fixtures.materialise(fixture, target)))
    output = tmp_path / "trace"
    watch = ["strace", "-f", "-y", "-qq", "-s", "256", "-e", "trace=%file,%desc"]
    watch += ["-o", str(output)]
    done = run([*watch, sys.executable, str(PROGRAM), *log_dirs])
    if "ptrace" in done.stderr and "not permitted" in done.stderr:
        pytest.skip("strace may not trace here")
    assert done.returncode == 0, done.stdout + done.stderr
    trace = output.read_text("utf-8", "replace")
    for log_dir in log_dirs:
        assert log_dir in trace
    assert forbidden(trace, str(tmp_path)) == []
