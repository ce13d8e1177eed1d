"""Would a broker start? Seven captured log directories, and the answer for each.

Then one of them becomes an index, and two questions are put to that.

    python tools/demo.py               build them, ask, print, leave nothing behind
    python tools/demo.py --into DIR    build them in DIR and keep them, ask nothing

The directories come from ``fixtures/``. Each is built in a temporary directory
and put to the real ``inspect-db verdict``, at the moment at which it was
captured. A long page is cut behind a section; the command above it, run in a
directory made by ``--into``, prints all of it.

The exit status is 0 when every verdict is the one that its fixture expects.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from pathlib import Path

from cursus.formats import timestamps
from inspect_db import fixtures

ROOT = Path(__file__).resolve().parent.parent
#: The fixtures shown, and what happened to each.
STORIES = {
    "small-healthy": "A small broker that was stopped properly.",
    "shop-killed": "A web shop whose broker was killed in the middle of an append.",
    "damaged-missing-segment": "Somebody deleted one closed segment.",
    "damaged-length-bit-flip": "One bit of one length prefix has flipped.",
    "offset-goes-backwards": "A consumer group's offset moves from 52 back to 12.",
    "damaged-older-offsets": "__consumer_offsets was restored from an older backup.",
    "legacy-august": "Storage of a broker from before the current formats.",
}
#: What is asked of an index of the directory that starts clean and is not right.
INDEXED = "damaged-older-offsets"
INDEX = "older.db"
QUESTIONS = {
    "commits_beyond_log_end": "Which groups committed offsets that the log does not have?",
    "groups_of_missing_topics": "Which groups consume a topic that the manifest does not know?",
}
WIDTH = 80
#: A page longer than this is cut at the last empty line above it.
PAGE_LINES = 36


def build(names: Sequence[str], target: Path) -> dict[str, str]:
    """Build fixtures as ``target``/name; returns for each the time to judge it at."""
    moments = {}
    for name in names:
        fixture = fixtures.load(ROOT / "fixtures" / name)
        with tempfile.TemporaryDirectory(dir=target) as workshop:
            fixtures.materialise(fixture, Path(workshop)).rename(target / name)
        moments[name] = timestamps.canonical(fixture.as_of)
    return moments


def expected_verdict(name: str) -> str:
    """What the fixture says about a start, in the words of ``verdict --json``."""
    case = json.loads((ROOT / "fixtures" / name / fixtures.CASE).read_text("utf-8"))
    word = str(case["broker"]["effect"])
    return {"starts": "starts_clean"}.get(word, word)


def program() -> list[str]:
    """``inspect-db`` of this environment; without an installed script, the module."""
    script = Path(sysconfig.get_path("scripts"), "inspect-db")
    return [str(script)] if script.exists() else [sys.executable, "-m", "inspect_db"]


def ask(arguments: Sequence[str], where: Path) -> str:
    """What ``inspect-db`` with ``arguments``, run in ``where``, says on a terminal."""
    found = subprocess.run(
        [*program(), *arguments], cwd=where, capture_output=True, encoding="utf-8", check=False
    )
    # 0, 3, 4, 5 and 6 are verdicts; anything else says why on stderr.
    if found.returncode not in {0, 3, 4, 5, 6}:
        raise SystemExit(f"inspect-db {' '.join(arguments)}: {found.stderr.strip()}")
    return found.stdout + found.stderr


def shorten(lines: Sequence[str]) -> list[str]:
    """The first sections of a long page, and how much of it is left out."""
    if len(lines) <= PAGE_LINES:
        return list(lines)
    end = max(at for at, line in enumerate(lines[:PAGE_LINES]) if not line)
    return [*lines[:end], "", f"[… {len(lines) - end} more lines]"]


def emphasis(text: str) -> str:
    """Bold on a terminal that wants it; plain text anywhere else."""
    wanted = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    return f"\x1b[1m{text}\x1b[0m" if wanted and os.environ.get("TERM") != "dumb" else text


def summary(name: str, document: dict[str, object]) -> str:
    """One row of the table at the end."""
    causes = [
        f"{item['step']} {item['code']}"
        for step in document["steps"]  # type: ignore[attr-defined]
        for item in step["findings"]
        if item["effect"] in {"refuses", "unknown", "data_missing", "repairs"}
    ]
    return f"{name:<25}{document['verdict']:<20}{causes[0] if causes else '-'}".rstrip()


def show_index(where: Path, moment: str) -> None:
    """Build an index and put the questions to it."""
    build_it = ["build", INDEXED, "-o", INDEX, "--as-of", moment]
    print("-" * WIDTH)
    print("The restored directory starts clean. An index of it knows what is wrong.")
    print()
    first = " ".join(build_it[:-2])
    print(emphasis(f"$ inspect-db {first} \\\n      --as-of {moment}"), flush=True)
    print(ask(build_it, where))
    for query, question in QUESTIONS.items():
        print(question)
        print()
        print(emphasis(f"$ inspect-db query {INDEX} {query}"), flush=True)
        print(ask(["query", INDEX, query], where))


def show() -> int:
    """The demonstration; returns the exit status."""
    rows, wrong = [], []
    with tempfile.TemporaryDirectory(prefix="cursus-") as folder:
        where = Path(folder)
        moments = build(list(STORIES), where)
        for name, story in STORIES.items():
            arguments = ["verdict", name, "--as-of", moments[name]]
            print("-" * WIDTH)
            print(story)
            print()
            print(emphasis(f"$ inspect-db {' '.join(arguments)}"), flush=True)
            lines = shorten(ask(arguments, where).rstrip("\n").split("\n"))
            lines[0] = emphasis(lines[0])
            print("\n".join(lines))
            print()
            document = json.loads(ask([*arguments, "--json"], where))
            rows.append(summary(name, document))
            if document["verdict"] != expected_verdict(name):
                wrong.append(name)
        print("-" * WIDTH)
        print(emphasis(f"{'directory':<25}{'verdict':<20}step and first cause"))
        print("\n".join(rows))
        print()
        show_index(where, moments[INDEXED])
    if wrong:
        print(f"not the verdict that the fixture expects: {', '.join(wrong)}", file=sys.stderr)
    return 1 if wrong else 0


def keep(target: Path) -> int:
    """Build the directories in ``target``, which must not hold them yet."""
    target.mkdir(parents=True, exist_ok=True)
    there = [name for name in STORIES if os.path.lexists(target / name)]
    if there:
        print(f"error: {target / there[0]} exists", file=sys.stderr)
        return 1
    for name, moment in build(list(STORIES), target).items():
        print(f"{name:<25}captured {moment}")
    return 0


def main(words: Sequence[str]) -> int:
    """Run the demonstration; returns the exit status."""
    parser = argparse.ArgumentParser(description="Would a broker start on these?")
    parser.add_argument("--into", metavar="DIR", type=Path, help="build the directories and stop")
    target = parser.parse_args(words).into
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")
    try:
        status = keep(target) if target is not None else show()
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        # Nobody reads any more; what is still buffered must not raise at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except (fixtures.FixtureError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
