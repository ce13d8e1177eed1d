"""The documentation says what the code does, and says all of it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from cursus.findings import CATALOGUE

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
