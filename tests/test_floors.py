"""An import only goes down (docs/design in brief: CONTRIBUTING.md, "Floors")."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

#: Each part may import itself and what stands in its row.
ALLOWED = {
    "cursus": set(),
    "cursus.findings": set(),
    "cursus.layout": set(),
    "cursus.formats": {"cursus.findings", "cursus.layout"},
    "cursus.wire": {"cursus.findings", "cursus.layout", "cursus.formats"},
    "cursus.replay": {"cursus.findings", "cursus.layout", "cursus.formats", "cursus.wire"},
    "cursus.evidence": {
        "cursus.findings",
        "cursus.layout",
        "cursus.formats",
        "cursus.wire",
        "cursus.replay",
    },
}
ALLOWED["cursus.storage"] = ALLOWED["cursus.evidence"]
ALLOWED["cursus.broker"] = ALLOWED["cursus.storage"] | {"cursus.evidence", "cursus.storage"}
ALLOWED["cursus.server"] = ALLOWED["cursus.broker"] | {"cursus.broker"}
ALLOWED["cursus.cli"] = ALLOWED["cursus.server"] | {"cursus.server", "cursus.client", "cursus"}
ALLOWED["cursus.client"] = {"cursus.findings", "cursus.layout", "cursus.wire", "cursus.formats"}
#: The bench stands on evidence and replay, never on what writes broker storage.
ALLOWED["inspect_db"] = (ALLOWED["cursus.evidence"] | {"cursus", "cursus.evidence"}) - {
    "cursus.wire"
}

#: The archive moves, so it belongs to storage; it needs an inventory (evidence) from its caller.
SOURCES = sorted([*ROOT.glob("cursus/**/*.py"), *ROOT.glob("inspect_db/**/*.py")])


def part_of(module: str) -> str:
    """The floor a module stands on."""
    pieces = module.split(".")
    if pieces[0] == "inspect_db":
        return "inspect_db"
    return ".".join(pieces[:2]) if len(pieces) > 1 else pieces[0]


def imports_of(path: Path) -> set[str]:
    """Modules of the project that a file imports, inside functions too."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level:
            found.add("RELATIVE")
    return {name for name in found if name.split(".")[0] in {"cursus", "inspect_db", "RELATIVE"}}


def known_parts(modules: set[str]) -> set[str]:
    """Parts behind imported names: `from cursus import findings` and `import cursus.findings`."""
    parts = set()
    for module in modules:
        part = part_of(module)
        if part in ALLOWED:
            parts.add(part)
    return parts


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_go_down_only(path: Path) -> None:
    module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    here = part_of(module)
    imported = imports_of(path)
    assert "RELATIVE" not in imported, "imports are absolute, so that this test sees them"
    up = {p for p in known_parts(imported) if p not in {here, "cursus"} | ALLOWED[here]}
    assert not up, f"{module} imports upwards: {sorted(up)}"


def test_the_test_sees_an_upward_import(tmp_path: Path) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text("def f():\n    from cursus.storage import durable\n")
    assert known_parts(imports_of(bad)) - ALLOWED["cursus.replay"] == {"cursus.storage"}


def test_every_part_has_a_row() -> None:
    parts = {
        part_of(".".join(p.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"))
        for p in SOURCES
    }
    assert parts <= set(ALLOWED), f"no row for {sorted(parts - set(ALLOWED))}"
