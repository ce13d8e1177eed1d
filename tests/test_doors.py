"""Doors: durable writes go through one module, evidence is read through one package,
and names of files are built and parsed in one module.

Nothing else below ``cursus`` touches a file system. The exceptions stand here by
name, with their reason, so that a new one is a decision and not an accident.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

#: Parts whose modules may not touch files on their own.
GUARDED = sorted(
    path
    for part in ("findings.py", "layout.py", "formats", "replay", "storage", "broker")
    for path in (
        [ROOT / "cursus" / part] if part.endswith(".py") else (ROOT / "cursus" / part).glob("*.py")
    )
)
EXEMPT = {
    "cursus/storage/durable.py": "the door itself",
    "cursus/storage/locks.py": "flock needs a descriptor; lock files are never written",
    "cursus/storage/orphan_archive.py": "moves between two directories that it holds open",
}
#: Of ``os``: what only handles names and process facts.
HARMLESS = {"path", "fsencode", "fsdecode", "sep", "PathLike", "getpid", "environ", "cpu_count"}
HARMLESS_PATH = {"join", "dirname", "basename", "abspath", "normpath", "split", "sep", "realpath"}
MODULES = {"shutil", "tempfile", "pathlib", "mmap", "io", "fcntl", "glob", "subprocess", "ctypes"}


def touches(source: str) -> set[str]:
    """Calls and imports of a module that reach a file system."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {a.name for a in node.names if a.name.split(".")[0] in MODULES}
        elif isinstance(node, ast.ImportFrom):
            module = (node.module or "").split(".")[0]
            found |= {module} & MODULES
            if module == "os":
                found |= {f"os.{a.name}" for a in node.names if a.name not in HARMLESS}
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id == "os" and node.attr not in HARMLESS:
                found.add(f"os.{node.attr}")
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "os.path":
            if node.attr not in HARMLESS_PATH:
                found.add(f"os.path.{node.attr}")
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "open":
            found.add("open")
    return found


@pytest.mark.parametrize("path", GUARDED, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_no_module_but_the_door_touches_files(path: Path) -> None:
    found = touches(path.read_text("utf-8"))
    if path.relative_to(ROOT).as_posix() in EXEMPT:
        assert found, "an exemption that nobody needs"
    else:
        assert not found


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("open('x')", "open"),
        ("import os\nos.unlink('x')", "os.unlink"),
        ("import os\nos.path.exists('x')", "os.path.exists"),
        ("from os import replace", "os.replace"),
        ("def f():\n    import shutil", "shutil"),
        ("from pathlib import Path", "pathlib"),
    ],
)
def test_the_test_sees_what_it_looks_for(source: str, found: str) -> None:
    assert found in touches(source)


#: What the name of a file begins or ends with, in a literal of the code.
NAME = re.compile(
    r"(__topic_metadata|__transaction_state|\.cursus[._]).*"
    r"|.*(\.log|\.index|\.hwm|\.producers|\.deleted|\.compacting|\.compacted-|\.tmp)"
    r"|partition_|.*_segment_"
)
SOURCES = sorted((ROOT / "cursus").glob("**/*.py"))


def names_built(source: str) -> set[str]:
    """Literals that look like (a part of) a file name, outside docstrings."""
    tree = ast.parse(source)
    docstrings = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    return {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and id(node) not in docstrings
        and " " not in node.value
        and NAME.fullmatch(node.value)
    }


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_names_of_files_are_built_in_one_module(path: Path) -> None:
    if path == ROOT / "cursus" / "layout.py":
        assert names_built(path.read_text("utf-8"))
    else:
        assert not names_built(path.read_text("utf-8"))
