"""The documentation says what the code does, and says all of it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from dataclasses import fields
from pathlib import Path

import pytest

from cursus.broker.background import BackgroundSettings
from cursus.evidence.walk import LogDirectory
from cursus.findings import CATALOGUE, Lost, finding
from cursus.replay.startup import ACTION_KINDS, Action, plan
from cursus.storage.log_settings import LogSettings
from inspect_db.verdict import action_json, finding_json, lost_json, verdict_json

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("docs/*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"])
#: A code is raised by its name as a literal.
SOURCE = "\n".join(
    path.read_text("utf-8")
    for path in [*ROOT.glob("cursus/**/*.py"), *ROOT.glob("inspect_db/**/*.py")]
    if path.name != "findings.py"
)


def test_generated_pages_are_up_to_date() -> None:
    result = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "generate_docs.py"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("code", sorted(CATALOGUE))
def test_every_finding_code_is_documented_and_says_what_to_do(code: str) -> None:
    page = (ROOT / "docs" / "findings.md").read_text("utf-8")
    assert f"### `{code}`\n" in page
    entry = CATALOGUE[code]
    assert len(entry.meaning) > 15
    assert len(entry.action) > 10
    assert "\n" not in entry.meaning + entry.action


def test_every_finding_code_can_be_raised() -> None:
    """No entry of the catalogue is dead: its name stands as a literal outside the catalogue."""
    dead = [code for code in CATALOGUE if f'"{code}"' not in SOURCE]
    assert not dead


def test_every_code_that_the_source_names_is_in_the_catalogue() -> None:
    named = set(re.findall(r"""\bfinding\(\s*"([a-z0-9_]+)\"""", SOURCE))
    assert named, "the pattern finds nothing any more"
    assert named <= set(CATALOGUE)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text("utf-8")):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_table_of_background_work_has_every_setting_with_its_default() -> None:
    page = (ROOT / "docs" / "durability.md").read_text("utf-8")
    log, background = LogSettings(), BackgroundSettings()
    named = {item.name: getattr(background, item.name) for item in fields(background)}
    named["log_segment_roll_ms"] = log.log_segment_roll_ms
    for name in ("log_retention_hours", "log_retention_bytes", "log_min_cleanable_dirty_ratio"):
        named[name] = getattr(log, name)
    for name in ("linger_ms", "disk_flush_interval_ms", "disk_flush_batch_size"):
        named[name] = getattr(log, name)
    for name, value in named.items():
        assert f"`{name}` ({value}" in page, name


# -- what the pages show is what the commands print -----------------------------------

#: Where the pages say that the captured directories lie.
SHOWN = "/srv/captures"
ELLIPSIS = re.compile(r"^\[….*\]$")
RUN_PAGES = [
    ROOT / "README.md",
    ROOT / "docs" / "getting-started.md",
    ROOT / "docs" / "tutorial.md",
    ROOT / "docs" / "verdict-json.md",
]


def console_blocks(page: Path) -> list[list[tuple[str, list[str]]]]:
    """The ``console`` blocks of a page: for each, its commands and what they print."""
    blocks = []
    for text in re.findall(r"^```console\n(.*?)^```$", page.read_text("utf-8"), re.M | re.S):
        commands: list[tuple[str, list[str]]] = []
        nested = text.startswith("$ make demo")
        for line in text.splitlines():
            if line.startswith("$ ") and not (nested and commands):
                commands.append((line[2:], []))
            elif commands[-1][0].endswith("\\") and not commands[-1][1]:
                commands[-1] = (f"{commands[-1][0]}\n{line}", [])
            else:
                commands[-1][1].append(line)
        blocks.append(commands)
    return blocks


def run(command: str, where: Path, last: int) -> tuple[str, int]:
    """What ``command`` prints, stdout and stderr as a terminal shows them."""
    if command == "echo $?":
        return f"{last}\n", 0
    words = {"make demo": f"exec {sys.executable} {ROOT / 'tools' / 'demo.py'}"}
    result = subprocess.run(
        ["bash", "-o", "pipefail", "-c", words.get(command, command)],
        cwd=where,
        env={
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "LC_ALL": "C.UTF-8",
            "HOME": str(where),
            "TMPDIR": str(where),
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        timeout=120,
        check=False,
    )
    return result.stdout, result.returncode


def shows(printed: str, pasted: list[str]) -> bool:
    """Pasted lines are the printed ones; a line ``[…]`` stands for any number of lines."""
    patterns = [
        r"(?:.*\n)*?" if ELLIPSIS.match(line) else re.escape(line) + r"\n" for line in pasted
    ]
    return re.fullmatch("".join(patterns), printed) is not None


@pytest.mark.parametrize("page", RUN_PAGES, ids=lambda p: p.name)
def test_pages_show_what_the_commands_print(page: Path) -> None:
    """The blocks of a page are run in order, in a directory with the captures of the demo."""
    blocks = console_blocks(page)
    assert blocks
    # A short path of its own: a longer one would be wrapped on the page.
    with tempfile.TemporaryDirectory(prefix="d-") as folder:
        where = Path(folder).resolve()
        subprocess.run([sys.executable, ROOT / "tools" / "demo.py", "--into", where], check=True)
        for block in blocks:
            last = 0
            for command, pasted in block:
                printed, last = run(command, where, last)
                printed = printed.replace(str(where), SHOWN)
                # The demo builds its directories in a place of its own.
                printed = re.sub(r"^  \S+/(cursus-[^/\s]+)/", f"  {SHOWN}/", printed, flags=re.M)
                if printed and not printed.endswith("\n"):
                    printed += "\n"
                assert shows(printed, pasted), f"$ {command}\n{printed}"
                if command == "make demo":
                    assert last == 0
                    assert not [*where.glob("cursus-*")], "the demo leaves nothing behind"


@pytest.mark.parametrize("page", RUN_PAGES, ids=lambda p: p.name)
def test_the_page_of_a_verdict_is_shown_in_80_columns(page: Path) -> None:
    for block in console_blocks(page):
        for command, pasted in block:
            if command == "make demo" or ("verdict" in command and "json" not in command):
                assert [line for line in pasted if len(line) > 80] == []


def test_every_member_of_the_json_is_documented() -> None:
    """The tables of the page name the members that the code writes, and no other."""
    page = (ROOT / "docs" / "verdict-json.md").read_text("utf-8")
    tables: dict[str, set[str]] = {}
    for title, text in re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", page, re.M | re.S):
        tables[title] = set(re.findall(r"^\| `(\w+)` \|", text, re.M))
    item = finding("file_unreadable", "a", lost=Lost(bytes=1))
    assert tables["A finding"] == set(finding_json(item))
    assert tables["What is lost"] == set(lost_json(item.lost) or {})
    action = Action(2, "cut_log", "a", 0, "why")
    others = {"expire_transaction", "create_internal_topic", "grow_internal_topic"}
    kinds = set(ACTION_KINDS.values()) | others
    assert tables["An action"] == set(action_json(action)) | kinds
    with tempfile.TemporaryDirectory() as folder, LogDirectory.at(folder) as evidence:
        document = verdict_json(plan(evidence))
    assert tables["The document"] == set(document)
    assert tables["A step"] == set(document["steps"][0])


def test_the_example_of_the_engine_prints_what_the_page_shows(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "durability.md").read_text("utf-8")
    ((example, printed),) = re.findall(
        r"```python\n(.*?)```.*?```text\n(.*?)```", page, flags=re.DOTALL
    )
    done = subprocess.run(
        [sys.executable, "-c", example], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr, done.stdout) == (0, "", printed)
