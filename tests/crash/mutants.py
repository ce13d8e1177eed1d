"""Broken engines. Each one leaves out, swaps or hurries one step; the harness has to notice.

A mutant is made from outside: a file system between the engine and the disk that
forgets an operation, or a method of the engine that is replaced for the time of
the test. Its workload is recorded and its states are started with the same
broken engine, since that is what a broker with this fault would do.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Final
from unittest.mock import patch

from crash.memory import ROOT
from crash.recording import Wrap
from cursus import layout
from cursus.broker import open_storage
from cursus.broker.partition_producers import PartitionProducers
from cursus.formats.transaction_journal import Transaction
from cursus.storage import compaction, partition_open, retention
from cursus.storage.checkpoint_store import PartitionCheckpoints
from cursus.storage.consumer_log import ConsumerLog
from cursus.storage.durable import FileSystem, WritableFile
from cursus.storage.group_commit import GroupCommit
from cursus.storage.manifest_store import ManifestStore
from cursus.storage.topic_directories import TopicDirectories

Forgets = Callable[[str, str], bool]
"""(kind, path) of an operation that this file system forgets."""


class Forgetful:
    """A file system that does not do some of what it is told, and does not say so."""

    def __init__(self, inner: FileSystem, forgets: Forgets) -> None:
        self._inner = inner
        self._forgets = forgets

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def create(self, path: str) -> WritableFile:
        return self._file(self._inner.create(path))

    def open(self, path: str) -> WritableFile:
        return self._file(self._inner.open(path))

    def replace_file(self, path: str, temporary: str, content: bytes) -> None:
        if self._inner.status(temporary) is not None:
            self._inner.unlink(temporary)
        with self.create(temporary) as file:
            file.append(content)
            file.fsync()
        self._inner.rename(temporary, path)
        self.sync_directory(os.path.dirname(path))

    def sync_directory(self, path: str) -> None:
        if not self._forgets("sync_directory", path):
            self._inner.sync_directory(path)

    def _file(self, file: WritableFile) -> WritableFile:
        if self._forgets("fsync", file.path):
            file.fsync = lambda: None  # type: ignore[method-assign]
        return file


def forgets(kind: str, matches: Callable[[str], bool]) -> Wrap:
    """A wrapper that forgets one kind of operation on the paths that match."""

    def wrap(inner: FileSystem) -> FileSystem:
        return Forgetful(inner, lambda k, path: k == kind and matches(path))  # type: ignore[return-value]

    return wrap


@dataclass(frozen=True, slots=True)
class Mutant:
    """``broken``: what it does wrong. ``workload`` brings it out; ``law`` has to catch it."""

    broken: str
    workload: str
    law: frozenset[str]
    wrap: Wrap = lambda system: system
    patched: Callable[[], AbstractContextManager[Any]] = nullcontext
    killed: bool = False


#: What was acknowledged is gone, or something is there by half: one comparison of worlds.
WORLD: Final = frozenset({"acknowledged", "whole"})


def law(*names: str) -> frozenset[str]:
    return frozenset(names)


def _method(owner: Any, name: str, replacement: Any) -> Callable[[], AbstractContextManager[Any]]:
    return lambda: patch.object(owner, name, replacement)


# -- replaced steps ------------------------------------------------------------------------


def _acknowledge_early(commit: GroupCommit, end: int, sync: Any) -> bool:
    """Nobody waits for the fsync; the log is said to be durable."""
    commit.advance(end)
    return True


@contextmanager
def _manifest_first(
    directories: TopicDirectories, name: str, partitions: range, *, new: bool
) -> Iterator[None]:
    """The manifest is saved before the logs that it declares are there."""
    yield
    directories._make(name, partitions, [], new=new)


def _directory_first(store: ManifestStore, name: str, *, release: Any = lambda: None) -> bool:
    """Deleting a topic, its directory goes before the manifest is saved."""
    release()
    store._remove_leftover(name)
    return _DELETE(store, name)


def _intent_late(store: ManifestStore, name: str, revision: int, **more: Any) -> Any:
    """Truncating a topic, the intent is written after the manifest and not before it."""
    with patch.object(TopicDirectories, "write_intent", lambda *_: None):
        current = store._definitions[name]
        store._require_revision(name, current.revision, revision)
        definition = replace(
            current, revision=current.revision + 1, lifecycle_epoch=current.lifecycle_epoch + 1
        )
        store._save({**store._definitions, name: definition})
    store._pending.add(name)
    return store.resume_truncation(name, **more)


def _committed_first(journal: Any, name: str, port: Any, *, clock: Any) -> Transaction:
    """A commit is journaled as carried out before its records are written."""
    state = journal.transactions[name]
    values = {**state.values, "state": "committed", "revision": state.revision + 1}
    journal.append(Transaction(values))
    with (
        patch.object(type(journal), "append", lambda *_: None),
        patch.object(type(journal), "transactions", {name: state}),
    ):
        return _FINISH_COMMIT(journal, name, port, clock=clock)


def _newest_first(
    fs: Any, paths: Any, bases: Any, settings: Any, now_ns: int, removed: Any, **_: Any
) -> Any:
    """Retention takes the newest closed segment first."""
    for base in reversed(bases[:-1]):
        if (
            settings.log_retention_hours * 3600 * 10**9
            < now_ns - fs.status(paths.log(base)).mtime_ns
        ):
            retention.remove_segment(fs, paths, base, removed)
    return retention.RetentionResult()


class _MarkerLate:
    """A file system on which a compaction marker is renamed after its log."""

    def __init__(self, inner: FileSystem) -> None:
        self._inner = inner
        self._held: list[tuple[str, str]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def rename(self, path: str, target: str) -> None:
        if ".compacted-" in path:
            self._held.append((path, target))
            return
        self._inner.rename(path, target)
        if self._held:
            self._inner.sync_directory(os.path.dirname(path))
            self._inner.rename(*self._held.pop())


def _marker_late(fs: Any, *rest: Any) -> Any:
    """Compaction renames the log before its marker is in place."""
    return _REPLACE(_MarkerLate(fs), *rest)


def _note_ahead(checkpoints: PartitionCheckpoints, offset: int) -> None:
    """The high watermark is noted one record above what is durable."""
    _NOTE_HWM(checkpoints, offset + 1)


def _uncut(fs: Any, paths: Any, found: Any, shape: Any) -> Any:
    """Opening a partition, a torn tail stays where it is."""
    whole = replace(found, cut=None)
    return _RECOVER(fs, paths, whole, shape)


def _remember_only(log: ConsumerLog, record: Any) -> None:
    """A registration of a group is in memory and never in the log."""
    if record.type != "group_registration":
        _WRITE_LIFE(log, record)


def _same_revision(log: ConsumerLog, group: Any, topic: str, offsets: Any) -> None:
    """Each snapshot of offsets has the revision of the one before."""
    _SNAPSHOT(log, group, topic, offsets)
    group.revisions[topic] = 0


def _forget_in_memory(
    producers: PartitionProducers, names: set[str], since: int, save: Any
) -> set[str]:
    """Silent producers are forgotten; the checkpoint that knows them stays."""
    for name in names:
        producers.state.pop(name, None)
        producers._durable.pop(name, None)
    return names


def _unsynced_opening() -> AbstractContextManager[Any]:
    """Opening a partition, what a killed process had written is taken for durable."""
    stack = ExitStack()
    opening = partition_open.apply_opening

    def apply(fs: Any, *rest: Any, **more: Any) -> Any:
        return opening(Forgetful(fs, lambda kind, _: kind == "fsync"), *rest, **more)

    stack.enter_context(patch("cursus.storage.partition_log.apply_opening", apply))
    return stack


_DELETE = ManifestStore.delete
_FINISH_COMMIT = open_storage.finish_commit
_NOTE_HWM = PartitionCheckpoints.note_hwm
_RECOVER = partition_open._recover
_REPLACE = compaction.replace_segment
_WRITE_LIFE = ConsumerLog._write_life
_SNAPSHOT = ConsumerLog._snapshot


def _is_topic(path: str) -> bool:
    return os.path.basename(path) in {"orders", "prices"}


def _is_root(path: str) -> bool:
    return path == ROOT


MUTANTS: Final = {
    "log-not-synced": Mutant(
        "an append is acknowledged without an fsync of its log",
        "produce",
        WORLD | law("starts"),
        wrap=forgets("fsync", lambda path: "/orders/" in path and path.endswith(".log")),
    ),
    "acknowledged-early": Mutant(
        "nobody waits for the fsync that is due",
        "produce",
        WORLD | law("starts"),
        patched=_method(GroupCommit, "wait", _acknowledge_early),
    ),
    "roll-directory-not-synced": Mutant(
        "the names of a new segment are not synced",
        "produce",
        WORLD | law("starts"),
        wrap=forgets("sync_directory", _is_topic),
    ),
    "internal-log-not-synced": Mutant(
        "a commit is acknowledged without an fsync of __consumer_offsets",
        "groups",
        WORLD | law("starts"),
        wrap=forgets("fsync", lambda p: f"/{layout.INTERNAL_TOPIC}/" in p and p.endswith(".log")),
    ),
    "registration-in-memory": Mutant(
        "a registration is remembered and not written",
        "groups",
        WORLD,
        patched=_method(ConsumerLog, "_write_life", _remember_only),
    ),
    "revision-repeated": Mutant(
        "two snapshots of a life have one revision",
        "groups",
        law("starts"),
        patched=_method(ConsumerLog, "_snapshot", _same_revision),
    ),
    "manifest-not-synced": Mutant(
        "the manifest is renamed before its bytes are on the disk",
        "topics",
        law("starts"),
        wrap=forgets("fsync", lambda path: path.endswith(layout.MANIFEST_TEMP)),
    ),
    "manifest-directory-not-synced": Mutant(
        "log_dir is not synced after the manifest was renamed",
        "topics",
        WORLD | law("starts"),
        wrap=forgets("sync_directory", _is_root),
    ),
    "manifest-before-logs": Mutant(
        "a topic is declared before its logs are there",
        "topics",
        law("starts"),
        patched=_method(TopicDirectories, "made", _manifest_first),
    ),
    "directory-before-manifest": Mutant(
        "a topic's directory is removed before the manifest says so",
        "topics",
        law("starts"),
        patched=_method(ManifestStore, "delete", _directory_first),
    ),
    "truncation-intent-late": Mutant(
        "a truncation is decided before its intent is written",
        "truncation",
        law("starts"),
        patched=_method(ManifestStore, "truncate", _intent_late),
    ),
    "retention-newest-first": Mutant(
        "retention removes the newest closed segment first",
        "retention",
        WORLD,
        patched=lambda: patch("cursus.storage.partition_log.retain", _newest_first),
    ),
    "compacted-log-not-synced": Mutant(
        "a compacted log takes its place before its bytes are on the disk",
        "compaction",
        WORLD | law("starts"),
        wrap=forgets("fsync", lambda path: path.endswith(".log.compacting")),
    ),
    "marker-late": Mutant(
        "a compacted log is in place before its marker is",
        "compaction",
        law("starts"),
        patched=lambda: patch("cursus.storage.partition_log.replace_segment", _marker_late),
    ),
    "marker-directory-not-synced": Mutant(
        "the marker's name is not synced before the log is replaced",
        "compaction",
        law("starts", "whole"),
        wrap=forgets("sync_directory", _is_topic),
    ),
    "journal-not-synced": Mutant(
        "a state of a transaction is acknowledged without an fsync",
        "transactions",
        WORLD,
        wrap=forgets("fsync", lambda path: path.endswith(layout.JOURNAL)),
    ),
    "journal-compaction-not-synced": Mutant(
        "a compacted journal takes its place before its bytes are on the disk",
        "transactions",
        WORLD | law("starts"),
        wrap=forgets("fsync", lambda path: ".journal.compact-" in path),
    ),
    "journal-directory-not-synced": Mutant(
        "what is written behind a compaction may go with the compacted file",
        "journal-threshold",
        WORLD,
        wrap=forgets("sync_directory", _is_root),
    ),
    "committed-first": Mutant(
        "a commit is journaled as carried out before its records are written",
        "transactions",
        WORLD,
        patched=lambda: patch.object(open_storage, "finish_commit", _committed_first),
    ),
    "snapshot-not-synced": Mutant(
        "an aggregate's snapshot is acknowledged without an fsync",
        "event-streams",
        WORLD,
        wrap=forgets("fsync", lambda path: path.endswith("_snapshots.dat")),
    ),
    "watermark-ahead": Mutant(
        "a high watermark is noted above what is durable",
        "groups",
        law("starts"),
        patched=_method(PartitionCheckpoints, "note_hwm", _note_ahead),
    ),
    "forgotten-in-memory": Mutant(
        "a producer is forgotten before its checkpoint says so",
        "silent-producers",
        WORLD,
        patched=_method(PartitionProducers, "forget", _forget_in_memory),
    ),
    "tail-not-cut": Mutant(
        "a torn tail stays where it is",
        "produce",
        law("settled"),
        patched=lambda: patch.object(partition_open, "_recover", _uncut),
    ),
    "opening-not-synced": Mutant(
        "a start takes what a killed process had written for durable",
        "groups",
        law("starts"),
        patched=_unsynced_opening,
        killed=True,
    ),
}
