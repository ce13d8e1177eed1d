"""The file system in memory against the real one: same operations, same trees, same errors."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from crash.evidence import MemoryEvidence
from crash.memory import ROOT, Leaf, MemoryFileSystem, replayed
from cursus.evidence.walk import LogDirectory
from cursus.replay.startup import plan
from cursus.storage.durable import Durable, FileSystem
from inspect_db import fixtures

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"


def on_disk(root: Path) -> dict[str, Leaf | None]:
    """The tree of a real directory."""
    found: dict[str, Leaf | None] = {}
    for path in root.rglob("*"):
        name = str(path.relative_to(root))
        if path.is_dir():
            found[name] = None
        else:
            status = path.stat()
            found[name] = Leaf(path.read_bytes(), status.st_mode & 0o777, status.st_mtime_ns)
    return found


def contents(tree: dict[str, Leaf | None]) -> dict[str, tuple[bytes, int] | None]:
    """Bytes and modes: times differ between a clock and a number."""
    return {path: None if leaf is None else (leaf.data, leaf.mode) for path, leaf in tree.items()}


def outcome(act: Callable[[], object]) -> object:
    """What an operation answers, or the error that it raises."""
    try:
        return act()
    except ValueError:
        return ValueError
    except OSError as error:
        return (type(error), error.errno)


class Both:
    """One operation on both file systems, whose answers must agree."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.real = Durable()
        self.memory = MemoryFileSystem()

    def run(self, act: Callable[[FileSystem, str], object]) -> object:
        real = outcome(lambda: act(self.real, str(self.root)))
        memory = outcome(lambda: act(self.memory, ROOT))
        assert real == memory
        assert contents(on_disk(self.root)) == contents(self.memory.tree())
        return real


def append(system: FileSystem, path: str, data: bytes) -> tuple[int, int]:
    with system.open(path) as file:
        return file.append(data), file.size


def test_a_story_told_to_both(tmp_path: Path) -> None:
    both = Both(tmp_path)
    both.run(lambda s, r: s.make_directory(f"{r}/orders"))
    both.run(lambda s, r: s.create(f"{r}/orders/a").close())
    assert both.run(lambda s, r: append(s, f"{r}/orders/a", b"12345")) == (0, 5)
    assert both.run(lambda s, r: append(s, f"{r}/orders/a", b"678")) == (5, 8)
    both.run(lambda s, r: s.replace_file(f"{r}/m", f"{r}/m.tmp", b"one"))
    both.run(lambda s, r: s.replace_file(f"{r}/m", f"{r}/m.tmp", b"two"))
    both.run(lambda s, r: s.change_mode(f"{r}/orders/a", 0o400))
    both.run(lambda s, r: s.set_modified(f"{r}/m", 1_700_000_000_000_000_000))
    assert both.memory.status(f"{ROOT}/m") is not None
    assert both.run(lambda s, r: getattr(s.status(f"{r}/m"), "mtime_ns", 0)) == 17 * 10**17
    both.run(lambda s, r: s.list_directory(r))
    # Errors, each of the same kind.
    both.run(lambda s, r: s.create(f"{r}/m").close())
    both.run(lambda s, r: s.open(f"{r}/nothing").close())
    both.run(lambda s, r: s.remove_directory(f"{r}/orders"))
    both.run(lambda s, r: s.unlink(f"{r}/orders/nothing"))
    both.run(lambda s, r: s.unlink(f"{r}/nowhere/nothing"))
    both.run(lambda s, r: s.make_directory(f"{r}/orders"))
    both.run(lambda s, r: s.rename(f"{r}/gone", f"{r}/here"))
    both.run(lambda s, r: s.sync_directory(f"{r}/m"))
    both.run(lambda s, r: s.open_read(f"{r}/orders").close())
    both.run(lambda s, r: s.status(f"{r}/nothing"))


@pytest.mark.parametrize("seed", range(6))
def test_random_operations_leave_the_same_tree(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    both = Both(tmp_path)
    names = [f"{d}{n}" for d in ("", "x/", "y/") for n in ("a", "b", "c")]
    acts: list[Callable[[FileSystem, str], object]] = []
    for _ in range(300):
        one, size = rng.choice(names), rng.randrange(20)
        other = one[:-1] + rng.choice("abc")
        data = bytes(rng.randrange(256) for _ in range(size))
        acts.append(
            rng.choice(
                [
                    lambda s, r, one=one: s.create(f"{r}/{one}").close(),
                    lambda s, r, one=one, d=data: append(s, f"{r}/{one}", d),
                    lambda s, r, one=one, n=size: _truncate(s, f"{r}/{one}", n),
                    lambda s, r, one=one, n=size, d=data: _overwrite(s, f"{r}/{one}", n, d),
                    lambda s, r, one=one, o=other: s.rename(f"{r}/{one}", f"{r}/{o}"),
                    lambda s, r, one=one: s.unlink(f"{r}/{one}"),
                    lambda s, r, d=one[:1]: s.make_directory(f"{r}/{d}"),
                    lambda s, r, d=one[:1]: s.remove_directory(f"{r}/{d}"),
                    lambda s, r, one=one, d=data: s.replace_file(f"{r}/{one}", f"{r}/{one}.t", d),
                    lambda s, r, one=one: _read(s, f"{r}/{one}"),
                    lambda s, r, d=one[:1]: s.list_directory(f"{r}/{d}"),
                ]
            )
        )
    done = [both.run(act) for act in acts]
    memory = both.memory
    assert replayed({}, memory.trace).tree() == memory.tree(), "the trace tells the whole story"
    assert sum(not isinstance(item, tuple) for item in done) > 50, "most of them only failed"


def _truncate(system: FileSystem, path: str, size: int) -> int:
    with system.open(path) as file:
        file.truncate(size)
        return file.size


def _overwrite(system: FileSystem, path: str, position: int, data: bytes) -> None:
    with system.open(path) as file:
        file.overwrite(position, data)


def _read(system: FileSystem, path: str) -> bytes:
    with system.open_read(path) as file:
        return file.pread(file.size + 1, 0)


@pytest.mark.parametrize(
    "name",
    ["small-healthy", "group-topic-gone", "zero-tail-of-three-bytes", "index-larger-than-log"],
)
def test_the_plan_over_a_tree_in_memory_is_the_plan_over_the_directory(
    tmp_path: Path, name: str
) -> None:
    log_dir = fixtures.materialise(fixtures.load(FIXTURES / name), tmp_path)
    with LogDirectory.at(str(log_dir)) as evidence:
        real = plan(evidence, None, 0)
    memory = plan(MemoryEvidence(on_disk(log_dir), log_dir=str(log_dir)), None, 0)
    assert [(i.code, i.path, i.position, i.effect, i.message) for i in real.findings] == [
        (i.code, i.path, i.position, i.effect, i.message) for i in memory.findings
    ]
    assert (real.verdict, real.actions) == (memory.verdict, memory.actions)
    assert real.consumers.groups == memory.consumers.groups
    assert {k: v.next_offset for k, v in real.partitions.items()} == {
        k: v.next_offset for k, v in memory.partitions.items()
    }


def test_what_a_trace_holds_are_inodes_not_names() -> None:
    system = MemoryFileSystem()
    file = system.create(f"{ROOT}/a.tmp")
    system.rename(f"{ROOT}/a.tmp", f"{ROOT}/a")
    file.append(b"after the rename")
    kinds = [(event.kind, event.inode, event.child) for event in system.trace]
    assert kinds == [("create", 1, 2), ("rename", 1, 2), ("write", 2, 0)]
    assert system.tree() == {"a": Leaf(b"after the rename")}
    assert os.path.basename(file.path) == "a.tmp"
