"""Stores on a real directory, with an observer that fails where a test wants it."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

from cursus.evidence.walk import LogDirectory
from cursus.formats import timestamps
from cursus.replay.startup import Plan, plan
from cursus.storage.durable import Durable, Operation

NOW = timestamps.parse("2026-09-02T00:00:00Z")


class Tape:
    """Records what is about to happen; fails at operation number ``fail_at`` (from 0)."""

    def __init__(self, fail_at: int | None = None, *, dead: bool = False) -> None:
        self.operations: list[Operation] = []
        self.fail_at = fail_at
        #: Nothing works any more after the failure: the process has crashed.
        self.dead = dead
        self.failed = False

    def __call__(self, operation: Operation) -> None:
        if self.failed and self.dead:
            raise OSError(errno.EIO, "crashed")
        number = len(self.operations)
        self.operations.append(operation)
        if number == self.fail_at:
            self.failed = True
            raise OSError(errno.EIO, "injected")

    def kinds(self) -> list[str]:
        """Operations in short: kind and last component of the path."""
        return [f"{item.kind} {Path(item.target or item.path).name}" for item in self.operations]


def files(tape: Tape | None = None) -> Durable:
    return Durable(tape or Tape())


def plan_of(directory: Path, as_of: int = NOW) -> Plan:
    with LogDirectory.at(str(directory)) as evidence:
        return plan(evidence, as_of=as_of)


def refusal_of(directory: Path) -> str | None:
    found = plan_of(directory).first_refusal
    return found.code if found else None


def tree_of(directory: Path) -> dict[str, bytes]:
    """Every file below a directory with its bytes, every directory with none."""
    return {
        str(path.relative_to(directory)): path.read_bytes() if path.is_file() else b""
        for path in sorted(directory.rglob("*"))
    }


def steps_of(run: Callable[[Tape], object]) -> int:
    """How many operations ``run`` has when nothing fails."""
    tape = Tape()
    run(tape)
    return len(tape.operations)
