"""What stands on a terminal: the progress of a build, and the SQL shell with its completion."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import index_help
import pytest

INSPECT_DB = [sys.executable, "-m", "inspect_db"]
#: Control sequences of a terminal; what is left is what a person reads.
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]|\x1b\][^\x07]*\x07|\r")


class Terminal:
    """A process whose standard input, output and error are one terminal of 80 columns."""

    def __init__(self, words: list[str]) -> None:
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        environment = os.environ | {
            "TERM": "xterm",
            "PROMPT_TOOLKIT_NO_CPR": "1",
        }
        self.child = subprocess.Popen(
            words, stdin=slave, stdout=slave, stderr=slave, env=environment, start_new_session=True
        )
        os.close(slave)
        self.seen = ""

    def read(self, seconds: float) -> bool:
        """Take what comes within ``seconds``; false when the other side is closed."""
        if not select.select([self.master], [], [], seconds)[0]:
            return True
        try:
            data = os.read(self.master, 1 << 16)
        except OSError:
            return False
        self.seen += CONTROL.sub("", data.decode("utf-8", "replace"))
        return bool(data)

    def wait_for(self, text: str, behind: str = "") -> str:
        """Everything seen, once ``text`` was, ``behind`` another; fails after half a minute."""
        until = time.monotonic() + 30
        while text not in self.seen.partition(behind)[2] if behind else text not in self.seen:
            assert time.monotonic() < until, self.seen
            assert self.read(0.1), self.seen
        return self.seen

    def type(self, text: str) -> None:
        self.seen = ""
        os.write(self.master, text.encode())

    def end(self) -> int:
        until = time.monotonic() + 30
        while self.read(0.1) and self.child.poll() is None:
            assert time.monotonic() < until, self.seen
        while self.read(0):
            if not select.select([self.master], [], [], 0)[0]:
                break
        return self.child.wait(30)

    def close(self) -> None:
        if self.child.poll() is None:
            os.killpg(self.child.pid, signal.SIGKILL)
            self.child.wait(30)
        os.close(self.master)


@pytest.fixture
def shell() -> Iterator[Terminal]:
    terminal = Terminal([*INSPECT_DB, "shell", str(index_help.built("small-healthy"))])
    terminal.wait_for("index>")
    yield terminal
    terminal.close()


def test_the_shell_completes_names_of_tables_and_queries(shell: Terminal) -> None:
    shell.type("select count(*) from persist")
    shell.wait_for("persistence_unit")
    shell.type("\x03")
    shell.wait_for("index>")
    shell.type(".query lar")
    shell.wait_for("largest_records")
    shell.type("\x03")
    shell.wait_for("index>")
    shell.type("select rec")
    shell.wait_for("record_json(")


def test_the_shell_answers_and_goes_on_after_a_mistake(shell: Terminal) -> None:
    shell.type("select 6 *\r7 as answer;\r")
    assert "42" in shell.wait_for("42")
    shell.type("select nothing from nowhere;\r")
    assert "Traceback" not in shell.wait_for("error: ")
    shell.type("delete from files;\r")
    shell.wait_for("error: ")
    shell.type("select verdict from build;\r")
    shell.wait_for("index>", behind="starts_clean")
    shell.type("\x04")
    assert shell.end() == 0


def test_a_build_shows_its_progress_on_a_terminal_only(tmp_path: Path) -> None:
    words = [*INSPECT_DB, "build", str(index_help.log_dir("shop-healthy")), "-o"]
    terminal = Terminal([*words, str(tmp_path / "a.db")])
    try:
        assert terminal.end() == 0
        assert "reading" in terminal.seen
        assert re.search(r"\d/\d+\.\d [kM]B", terminal.seen), terminal.seen
        assert re.search(r"a\.db: starts_\w+, [\d,]+ records", terminal.seen)
    finally:
        terminal.close()
    done = subprocess.run([*words, str(tmp_path / "b.db")], capture_output=True, check=True)
    assert b"reading" not in done.stderr
    assert done.stderr.count(b"\n") == 1


def test_a_table_that_is_too_wide_for_the_terminal_is_written_row_by_row() -> None:
    words = [*INSPECT_DB, "query", str(index_help.built("small-healthy")), "segments"]
    terminal = Terminal(words)
    try:
        assert terminal.end() == 0
    finally:
        terminal.close()
    lines = terminal.seen.splitlines()
    assert lines[0] == "-- 1 --"
    assert re.fullmatch(r"topic +__consumer_offsets", lines[1])
    assert max(map(len, lines)) <= 80
    piped = subprocess.run(words, capture_output=True, check=True, text=True).stdout.splitlines()
    assert piped[0].startswith("topic  ")
    # Every row of the table is there, each value under its name.
    assert sum(line.startswith("-- ") for line in lines) == len(piped) - 2
    narrow = Terminal([*INSPECT_DB, "query", str(index_help.built("small-healthy")), "steps"])
    try:
        assert narrow.end() == 0
    finally:
        narrow.close()
    assert "-- 1 --" not in narrow.seen


def test_a_question_that_is_nearly_named_is_named() -> None:
    words = [*INSPECT_DB, "query", str(index_help.built("small-healthy")), "lags"]
    done = subprocess.run(words, capture_output=True, check=False, text=True)
    assert done.returncode == 1
    assert "did you mean 'lag'?" in done.stderr
