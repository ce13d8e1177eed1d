"""Captured log directories as regression tests.

A fixture is one folder::

    fixtures/<name>/
      case.json           what is wrong, and what everybody must say about it
      log_dir/            the files, as they were captured …
      log_dir.tar.xz      … or the same, packed

``case.json`` carries, besides the expectations, ``material.prepare``: steps for
what version control cannot hold (pipes, links, sockets, modes, times, empty
directories). :func:`materialise` builds a fresh copy in a directory of the
caller and applies them; nothing ever opens the folder itself. A new folder is a
new test, with no code: ``tests/test_fixtures.py`` finds it.

:func:`draft` makes such a folder from a log directory and fills in the
expectations with what the inspector says today, for a person to confirm.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import stat
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final

from cursus.evidence.walk import LogDirectory
from cursus.findings import Finding
from cursus.formats import timestamps
from cursus.replay.interfaces import Entry
from cursus.replay.startup import Plan

ARCHIVE: Final = "log_dir.tar.xz"
CASE: Final = "case.json"
#: Files above this size are not taken into a fixture without being asked for.
MAX_DRAFT_BYTES: Final = 64 << 20
_FILE_MODE: Final = 0o644
_DIRECTORY_MODE: Final = 0o755


class FixtureError(Exception):
    """A fixture cannot be read, built or drafted; the message says why."""


@dataclass(frozen=True, slots=True)
class Fixture:
    """One folder. ``as_of``: nanoseconds since the zero time at which a start is judged."""

    name: str
    folder: Path
    case: Mapping[str, Any]
    as_of: int


def load(folder: Path) -> Fixture:
    """Read ``case.json`` of one folder. Raises :class:`FixtureError`."""
    try:
        case = json.loads((folder / CASE).read_text("utf-8"))
        as_of = timestamps.parse(case["as_of"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FixtureError(f"{folder / CASE}: {error}") from None
    return Fixture(folder.name, folder, case, as_of)


def find(root: Path) -> list[Fixture]:
    """Every folder below ``root`` that has a ``case.json``, by name."""
    return [load(path.parent) for path in sorted(root.glob(f"*/{CASE}"))]


def materialise(fixture: Fixture, target: Path) -> Path:
    """Build the log directory of ``fixture`` below ``target`` and return its path.

    Every time is set to 1970-01-01 and every mode to 0644 (files) and 0755
    (directories) before the ``prepare`` steps, so that a copy does not depend on
    how the repository was checked out. Raises :class:`FixtureError`.
    """
    log_dir = target / "log_dir"
    archive = fixture.folder / ARCHIVE
    if archive.exists():
        _unpack(archive, target)
    else:
        _copy(fixture.folder / "log_dir", log_dir)
    for path in _tree(log_dir):
        os.chmod(path, _DIRECTORY_MODE if path.is_dir() else _FILE_MODE)
        os.utime(path, ns=(0, 0))
    material = fixture.case.get("material", {})
    for step in material.get("prepare", ()):
        _prepare(log_dir, step)
    return log_dir


def _tree(root: Path) -> Iterator[Path]:
    """Everything below ``root`` and ``root`` itself, inner things first."""
    for folder, _, files in os.walk(root, topdown=False):
        for name in files:
            yield Path(folder, name)
        yield Path(folder)


def _copy(source: Path, target: Path) -> None:
    target.mkdir(parents=True)
    for folder, directories, files in os.walk(source):
        inside = target / Path(folder).relative_to(source)
        for name in directories:
            (inside / name).mkdir()
        for name in files:
            (inside / name).write_bytes(Path(folder, name).read_bytes())


def _unpack(archive: Path, target: Path) -> None:
    with tarfile.open(archive, "r:xz") as packed:
        for member in packed:
            path = target / _inside(member.name)
            if member.isdir():
                path.mkdir(parents=True, exist_ok=True)
                continue
            data = packed.extractfile(member) if member.isfile() else None
            if data is None:
                raise FixtureError(f"{archive}: {member.name} is neither a file nor a directory")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data.read())


def _inside(path: str) -> PurePosixPath:
    """A relative path that stays where it is. Raises :class:`FixtureError`."""
    pure = PurePosixPath(path)
    if pure.is_absolute() or ".." in pure.parts or not path:
        raise FixtureError(f"path leads out of the fixture: {path!r}")
    return pure


def _prepare(log_dir: Path, step: Mapping[str, Any]) -> None:
    path = log_dir / _inside(str(step["path"]))
    match step["op"]:
        case "mkfifo":
            path.unlink(missing_ok=True)
            os.mkfifo(path)
        case "mkdir":
            path.mkdir(parents=True, exist_ok=True)
        case "symlink":
            path.unlink(missing_ok=True)
            path.symlink_to(str(step["target"]))
        case "socket":
            _socket(path)
        case "chmod":
            os.chmod(path, int(str(step["mode"]), 8))
        case "mtime":
            moment = int(step["unix_ns"])
            os.utime(path, ns=(moment, moment), follow_symlinks=False)
        case "remove":
            path.unlink()
        case other:
            raise FixtureError(f"unknown prepare step {other!r}")


def _socket(path: Path) -> None:
    """Bind below the directory: the path of a socket may have 107 bytes only."""
    here = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.chdir(path.parent)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path.name)
    finally:
        os.fchdir(here)
        os.close(here)


# -- a new one ----------------------------------------------------------------------


def draft(log_dir: str, name: str, root: Path, plan: Plan, evidence: LogDirectory) -> Path:
    """Write ``root``/``name`` from a log directory and what was found in it.

    ``plan`` and ``evidence`` are of that directory. Regular files are copied;
    for what version control cannot hold, ``prepare`` steps are written. Raises
    :class:`FixtureError` when the folder exists, when the name cannot be one,
    or when the files are too large for a repository.
    """
    if not name or name != Path(name).name or name.startswith("."):
        raise FixtureError(f"a fixture needs a plain name, not {name!r}")
    size = sum(entry.size for entry in evidence.entries if entry.type == "file")
    if size > MAX_DRAFT_BYTES:
        raise FixtureError(
            f"{size} bytes are too many for a fixture (limit {MAX_DRAFT_BYTES}); "
            "cut out the topics that matter first"
        )
    folder = root / name
    try:
        (folder / "log_dir").mkdir(parents=True)
    except OSError as error:
        raise FixtureError(f"{folder}: {error.strerror}") from None
    for entry in evidence.entries:
        path = folder / "log_dir" / entry.path
        if entry.type == "directory":
            path.mkdir(parents=True, exist_ok=True)
        elif entry.type == "file":
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(evidence.read(entry.path, entry.size))
    case = _case(name, plan, evidence, _steps(log_dir, evidence.entries))
    text = json.dumps(case, indent=2, ensure_ascii=True)
    (folder / CASE).write_text(text + "\n", "utf-8")
    return folder


def _steps(log_dir: str, entries: Sequence[Entry]) -> list[dict[str, str]]:
    parents = {entry.path.rpartition("/")[0] for entry in entries}
    steps = []
    for entry in entries:
        if entry.type == "symlink":
            target = os.readlink(os.path.join(log_dir, entry.path))
            steps.append({"op": "symlink", "path": entry.path, "target": target})
        elif entry.type in {"fifo", "socket"}:
            op = {"fifo": "mkfifo"}.get(entry.type, entry.type)
            steps.append({"op": op, "path": entry.path})
        elif entry.type == "directory" and entry.path not in parents:
            steps.append({"op": "mkdir", "path": entry.path})
        if entry.type in {"file", "directory"} and not entry.mode & stat.S_IRUSR:
            steps.append({"op": "chmod", "path": entry.path, "mode": f"{entry.mode:03o}"})
    return steps


def _case(
    name: str, plan: Plan, evidence: LogDirectory, prepare: list[dict[str, str]]
) -> dict[str, Any]:
    effect = {"starts_clean": "starts"}.get(plan.verdict, plan.verdict)
    cause = plan.first_cause
    material: dict[str, Any] = {"log_dir": "log_dir"}
    if prepare:
        material["prepare"] = prepare
    told = [item for item in plan.findings if item.severity != "info"]
    return {
        "format": 1,
        "name": name,
        "title": "DRAFT: say here in one sentence what happened",
        "kind": "DRAFT",
        "sources": [],
        "material": material,
        "as_of": timestamps.canonical(plan.as_of),
        "fault": [],
        "broker": {
            "effect": effect,
            "step": cause.step if cause else None,
            "code": cause.code if cause else None,
            "path": cause.path if cause else None,
            "position": cause.position if cause else None,
        },
        "inspector": {
            "findings": [_expected(item) for item in told],
            "facts": _facts(plan),
            "must_not": [],
            "other_findings": "No other finding of severity warning or error. "
            "Findings of severity info may come in addition.",
        },
        "why": "DRAFT: say here why this case is worth keeping",
        "spec": [],
        "files": _listing(evidence),
        "reading": "Drafted from what the inspector said; confirm every line before it counts.",
    }


def _expected(item: Finding) -> dict[str, Any]:
    return {
        "code": item.code,
        "path": item.path,
        "position": item.position,
        "severity": item.severity,
        "effect": item.effect,
    }


def _facts(plan: Plan) -> dict[str, Any]:
    return {
        "records_on_disk": {
            f"{topic}/{partition}": log.record_count
            for (topic, partition), log in plan.partitions.items()
            if topic != "__consumer_offsets"
        },
        "groups": {
            group.name: {
                "epoch": group.epoch,
                "offsets": {
                    topic: {str(partition): offset for partition, offset in offsets.items()}
                    for topic, offsets in group.offsets.items()
                },
            }
            for group in plan.consumers.groups.values()
        },
        "journal_frames": len(plan.journal.frames),
    }


def _listing(evidence: LogDirectory) -> dict[str, Any]:
    files = []
    for entry in evidence.entries:
        if entry.type == "file":
            data = evidence.read(entry.path, entry.size)
            digest = hashlib.sha256(data).hexdigest()
            files.append({"path": entry.path, "size": len(data), "sha256": digest})
    return {"count": len(files), "bytes": sum(item["size"] for item in files), "list": files}
