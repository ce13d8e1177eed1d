"""Broken engines that only a failing disk tells from whole ones; see ``mutants.py``.

As long as no operation of the disk fails, each of them does what it should, so that
no crash state of theirs breaks a law.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack, suppress
from typing import Any, Final
from unittest.mock import patch

from crash.mutants import WORLD, Mutant, law
from cursus.broker.open_storage import OpenStorage
from cursus.storage.consumer_log import ConsumerLog
from cursus.storage.durable import FileSystem, WritableFile
from cursus.storage.group_commit import GroupCommit
from cursus.storage.journal_store import JournalStore
from cursus.storage.manifest_store import ManifestStore
from cursus.storage.partition_appending import WritablePartition
from cursus.storage.segment_files import ActiveSegment


class _ForgivingFile:
    """A file that takes writes behind an error, as the system's own files do."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if not callable(found):
            return found

        def call(*args: Any) -> Any:
            self._inner._failed = False
            return found(*args)

        return call

    def __enter__(self) -> _ForgivingFile:
        return self

    def __exit__(self, *_exception: object) -> None:
        self._inner.close()


class _Forgiving:
    """A file system of such files."""

    def __init__(self, inner: FileSystem) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def create(self, path: str) -> WritableFile:
        return _ForgivingFile(self._inner.create(path))  # type: ignore[return-value]

    def open(self, path: str) -> WritableFile:
        return _ForgivingFile(self._inner.open(path))  # type: ignore[return-value]


def _forgiving(inner: FileSystem) -> FileSystem:
    return _Forgiving(inner)  # type: ignore[return-value]


def _nothing(*_: Any, **__: Any) -> None:
    """Instead of a step that is due."""


def _wait_and_forget(log: WritablePartition, end: int) -> None:
    """An append waits for its fsync and does not look at what came of it."""
    log._commit.wait(end, log._sync)


def _write_and_forget(segment: ActiveSegment, frames: list[bytes], offset: int) -> None:
    """A write that fails is taken for done."""
    with suppress(OSError):
        _WRITE_BATCH(segment, frames, offset)
    segment._broken = False


def _surely_saved(store: ManifestStore, definitions: Any) -> bool:
    """Nobody is told that the directory behind a rename was not synced."""
    _SAVE(store, definitions)
    return True


_WRITE_BATCH = ActiveSegment.write_batch
_SAVE = ManifestStore._save


def _patched(*replaced: tuple[Any, str, Any]) -> Any:
    def enter() -> AbstractContextManager[Any]:
        stack = ExitStack()
        for owner, name, replacement in replaced:
            stack.enter_context(patch.object(owner, name, replacement))
        return stack

    return enter


FAULT_MUTANTS: Final = {
    "writes-go-on": Mutant(
        "a log takes writes behind an fsync that failed",
        "produce",
        WORLD | law("starts"),
        wrap=_forgiving,
        patched=_patched((GroupCommit, "fail", _nothing)),
    ),
    "failed-fsync-acknowledged": Mutant(
        "an append is acknowledged though its fsync failed",
        "produce",
        WORLD,
        patched=_patched((WritablePartition, "wait", _wait_and_forget)),
    ),
    "failed-write-acknowledged": Mutant(
        "an append is acknowledged though its write failed",
        "retention",
        WORLD | law("starts"),
        wrap=_forgiving,
        patched=_patched((ActiveSegment, "write_batch", _write_and_forget)),
    ),
    "doubtful-group-goes-on": Mutant(
        "a group whose tombstone may be there takes commits",
        "growth",
        WORLD,
        patched=_patched((ConsumerLog, "_refuse_in_doubt", _nothing)),
    ),
    "pending-truncation-goes-on": Mutant(
        "a group takes commits while the truncation of its topic is pending",
        "truncation",
        WORLD,
        patched=_patched((OpenStorage, "_require_not_pending", _nothing)),
    ),
    "refused-frame-left": Mutant(
        "a topic is deleted while a refused decision that names it may be in the journal",
        "decided-and-deleted",
        WORLD | law("starts"),
        patched=_patched((JournalStore, "settle", _nothing)),
    ),
    "journal-not-cut-back": Mutant(
        "a frame is written behind one whose fsync failed",
        "transactions",
        WORLD | law("starts"),
        patched=_patched((JournalStore, "_cut_back", _nothing)),
    ),
    "unsynced-manifest-trusted": Mutant(
        "a topic's directory is removed though the manifest that says so was not synced",
        "topics",
        law("starts"),
        patched=_patched((ManifestStore, "_save", _surely_saved)),
    ),
}
