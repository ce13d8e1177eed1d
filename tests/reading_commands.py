"""Run every reading command over log directories, in one process: what is traced and mounted.

``python tests/reading_commands.py LOG_DIR …`` prints one line for each command
that ended in another way than it may: a traceback, or an exit code that is none
of its own. It is a program of its own so that ``strace -f`` can watch it.
"""

from __future__ import annotations

import contextlib
import io
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

from cursus.cli import storage
from inspect_db import cli
from inspect_db.dump import KINDS, DumpError, kind_of

Command = tuple[Callable[[list[str]], int], list[str], frozenset[int]]

VERDICTS = frozenset({0, 3, 4, 5, 6})
DONE = frozenset({0})
INSPECTED = frozenset({0, 1})
#: Commands of the specification; ``orphan archive`` moves and is not among them.
SPECIFIED = (("manifest", "inspect"), ("consumer-metadata", "inspect"), ("orphan", "inspect"))


def commands(log_dir: Path) -> Iterator[Command]:
    """Every command but ``orphan archive``, with the exit codes that it may have."""
    where = str(log_dir)
    yield cli.run, ["verdict", where], VERDICTS
    yield cli.run, ["verdict", "--all", "--as-of", "2026-09-15T12:00:00Z", where], VERDICTS
    yield cli.run, ["verdict", "--json", where], VERDICTS
    for listing in ("findings", "inventory"):
        for form in ([], ["--json"], ["--csv"]):
            yield cli.run, [listing, *form, where], DONE
    yield cli.run, ["index", "check", where], DONE
    yield cli.run, ["index", "check", "--json", where], DONE
    for path in one_of_each_kind(log_dir):
        yield cli.run, ["dump", str(path)], DONE
        yield cli.run, ["dump", "--jsonl", "--strict", str(path)], INSPECTED
    for words in SPECIFIED:
        yield storage.main, [*words, "--log-dir", where], INSPECTED
    yield storage.main, ["backup", "validate", "--log-dir", where], INSPECTED
    with tempfile.TemporaryDirectory() as elsewhere:
        index = str(Path(elsewhere) / "index.db")
        yield cli.run, ["build", where, "-o", index, "--hash", "--payload-bytes", "64"], DONE
        yield cli.run, ["digest", index], DONE
        yield cli.run, ["query", index, "what_is_lost"], DONE


def one_of_each_kind(log_dir: Path) -> Iterator[Path]:
    """The first file of every kind that ``dump`` knows."""
    waiting = set(KINDS)
    for path in sorted(log_dir.rglob("*")):
        if path.is_symlink() or not path.is_file():
            continue
        try:
            kind, _ = kind_of(path)
        except DumpError:
            continue
        if kind in waiting:
            waiting.discard(kind)
            yield path


def complaints(log_dir: Path) -> Iterator[str]:
    """Run them all; one line for each that ended wrongly."""
    for command, arguments, codes in commands(log_dir):
        out, errors = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
                code = command(arguments)
        except BaseException:
            yield f"{arguments}: {traceback.format_exc()}"
            continue
        if code not in codes:
            errors.seek(0)
            yield f"{arguments}: exit code {code}: {errors.read()}"


if __name__ == "__main__":
    found = [line for name in sys.argv[1:] for line in complaints(Path(name))]
    print("\n".join(found))
    sys.exit(1 if found else 0)
