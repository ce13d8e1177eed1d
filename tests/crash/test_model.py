"""The model of a crash, on traces small enough to say by hand what may be left."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable

import pytest

from crash.memory import ROOT, Leaf, MemoryFileSystem, ShortWriteError, Tree
from crash.model import Disk, crash_states, fingerprint
from cursus.storage.durable import Operation, WriteUnavailableError


def left(script: Callable[[MemoryFileSystem], None]) -> set[str]:
    """Every state that a crash after the script may leave, as text."""
    system = MemoryFileSystem()
    script(system)
    disk = Disk()
    for event in system.trace:
        disk.take(event)
    return {text(tree) for tree in disk.states(random.Random(0), tears=9, mixtures=40)}


def text(tree: Tree) -> str:
    return " ".join(
        f"{path}/" if leaf is None else f"{path}={leaf.data.decode()}"
        for path, leaf in sorted(tree.items())
    )


def synced(system: MemoryFileSystem, name: str, content: bytes) -> None:
    with system.create(f"{ROOT}/{name}") as file:
        file.append(content)
        file.fsync()
    system.sync_directory(ROOT)


def test_an_append_without_fsync_may_be_kept_lost_or_torn() -> None:
    def script(system: MemoryFileSystem) -> None:
        synced(system, "a", b"12")
        system.open(f"{ROOT}/a").append(b"345")

    assert left(script) == {"a=12", "a=123", "a=1234", "a=12345"}


def test_a_second_append_is_never_there_without_the_first() -> None:
    def script(system: MemoryFileSystem) -> None:
        synced(system, "a", b"")
        with system.open(f"{ROOT}/a") as file:
            file.append(b"1")
            file.append(b"2")

    assert left(script) == {"a=", "a=1", "a=12"}


def test_what_was_synced_stays() -> None:
    assert left(lambda system: synced(system, "a", b"12")) == {"a=12"}


def test_a_file_without_a_synced_directory_may_have_no_name() -> None:
    def script(system: MemoryFileSystem) -> None:
        with system.create(f"{ROOT}/a") as file:
            file.append(b"12")
            file.fsync()

    assert left(script) == {"", "a=12"}


def test_a_name_may_be_kept_without_the_bytes() -> None:
    def script(system: MemoryFileSystem) -> None:
        with system.create(f"{ROOT}/a") as file:
            file.append(b"1")
        system.sync_directory(ROOT)

    assert left(script) == {"a=", "a=1"}


def test_a_replacement_without_fsync_may_leave_an_empty_file_under_the_name() -> None:
    def script(system: MemoryFileSystem) -> None:
        synced(system, "m", b"o")
        with system.create(f"{ROOT}/t") as file:
            file.append(b"n")
        system.rename(f"{ROOT}/t", f"{ROOT}/m")

    found = left(script)
    assert "m=" in found, "the trap of a rename without an fsync"
    assert found == {"m=o", "m=n", "m=", "m=o t=n", "m=o t="}


def test_a_replacement_through_the_door_is_old_or_new() -> None:
    system = MemoryFileSystem()
    synced(system, "m", b"o")
    before = len(system.trace)
    system.replace_file(f"{ROOT}/m", f"{ROOT}/t", b"n")
    states = crash_states(system.trace, seed=0)
    found = {text(state.tree) for state in states if state.last >= before}
    assert found == {"m=o", "m=n", "m=o t=", "m=o t=n"}
    end = len(system.trace)
    assert {text(state.tree) for state in states if state.last == end} == {"m=n"}


def test_names_of_one_directory_are_kept_in_any_combination() -> None:
    def script(system: MemoryFileSystem) -> None:
        for name in ("a", "b"):
            synced(system, name, b"")
        system.unlink(f"{ROOT}/a")
        system.unlink(f"{ROOT}/b")

    assert left(script) == {"a= b=", "a=", "b=", ""}


def test_a_directory_that_is_lost_takes_its_files_with_it() -> None:
    def script(system: MemoryFileSystem) -> None:
        system.make_directory(f"{ROOT}/d")
        with system.create(f"{ROOT}/d/a") as file:
            file.fsync()
        system.sync_directory(f"{ROOT}/d")

    assert left(script) == {"", "d/ d/a="}


def test_a_cut_may_be_lost() -> None:
    def script(system: MemoryFileSystem) -> None:
        synced(system, "a", b"123")
        with system.open(f"{ROOT}/a") as file:
            file.truncate(1)
            file.append(b"x")

    assert left(script) == {"a=123", "a=1", "a=1x"}


def test_what_an_fsync_failed_for_is_not_made_durable_by_a_later_one() -> None:
    """The kernel drops the page and calls it clean; what comes behind it stands behind zeros."""

    def refuse(operation: Operation) -> None:
        if operation.kind == "fsync" and failing:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    failing = False
    system = MemoryFileSystem(observer=refuse)
    synced(system, "a", b"1")
    failing = True
    with system.open(f"{ROOT}/a") as file:
        file.append(b"23")
        with pytest.raises(OSError, match="Input/output"):
            file.fsync()
    failing = False
    disk = Disk()
    for event in system.trace:
        disk.take(event)
    assert {text(tree) for tree in disk.states(random.Random(0))} == {"a=1", "a=12", "a=123"}
    with system.open(f"{ROOT}/a") as file:
        file.append(b"4")
        file.fsync()
    assert text(system.tree()) == "a=1234"  # what a process sees
    for event in system.trace[-2:]:
        disk.take(event)
    assert {text(tree) for tree in disk.states(random.Random(0))} == {"a=1\0\x004"}


def test_a_write_that_fails_in_the_middle_is_taken_back() -> None:
    """As ``AppendFile`` does; until that is synced, a crash may leave the half of it."""

    def refuse(operation: Operation) -> None:
        if operation.data == b"2345":
            raise ShortWriteError(errno.ENOSPC, operation.path, 2)

    system = MemoryFileSystem(observer=refuse)
    synced(system, "a", b"1")
    with system.open(f"{ROOT}/a") as file:
        with pytest.raises(ShortWriteError):
            file.append(b"2345")
        with pytest.raises(WriteUnavailableError):
            file.append(b"6")
    assert text(system.tree()) == "a=1"
    disk = Disk()
    for event in system.trace:
        disk.take(event)
    found = {text(tree) for tree in disk.states(random.Random(0), tears=9)}
    assert found == {"a=1", "a=12", "a=123"}


def test_states_know_the_moments_at_which_they_may_be_left() -> None:
    system = MemoryFileSystem()
    system.mark("begin")
    synced(system, "a", b"1")
    system.mark("acknowledged")
    states = {text(state.tree): state for state in crash_states(system.trace, seed=0)}
    end = len(system.trace)
    assert states["a=1"].last == end
    # create, write, fsync, sync_directory: without a name until the last of them.
    assert (states[""].first, states[""].last) == (0, end - 2)


def test_states_are_the_same_for_the_same_seed_and_distinct() -> None:
    system = MemoryFileSystem()
    for name in "abcdef":
        with system.create(f"{ROOT}/{name}") as file:
            file.append(name.encode() * 20)
    one = crash_states(system.trace, seed=1)
    assert [s.tree for s in one] == [s.tree for s in crash_states(system.trace, seed=1)]
    assert len({fingerprint(state.tree) for state in one}) == len(one) > 100


def test_a_trace_may_begin_on_a_disk_where_something_stands() -> None:
    system = MemoryFileSystem({"d": None, "d/a": Leaf(b"12")})
    disk = Disk(system.root)
    system.open(f"{ROOT}/d/a").append(b"3")
    states = crash_states(system.trace, seed=0, disk=disk)
    assert {text(state.tree) for state in states} == {"d/ d/a=12", "d/ d/a=123"}


def test_a_fingerprint_tells_a_directory_from_an_empty_file() -> None:
    assert fingerprint({"a": None}) != fingerprint({"a": Leaf(b"")})
