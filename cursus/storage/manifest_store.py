"""Topics on disk: the manifest and the directories that it declares.

The manifest is replaced as a whole; the rename is the moment at which a
definition changes. A topic has two names in ``log_dir``, its entry in the
manifest and its directory, and no file system changes two names in one step.
A start refuses both mismatches (undeclared logs, declared topics without
storage), so the steps are ordered such that a crash between them never loses
anything and leaves the smaller riddle::

    create     empty logs, synced          -> manifest      crash: undeclared_persisted_topic
    grow       empty logs, synced          -> manifest      crash: ..._partition_out_of_range
    alter                                     manifest      crash: the old or the new definition
    delete     manifest -> logs, synced    -> the rest      crash: undeclared_persisted_topic
    truncate   intent   -> manifest -> emptied, synced -> empty logs, synced -> intent renamed
                                                            crash: resumed at start

The intent of a truncation is ``.cursus_lifecycle_epoch.tmp`` with the epoch that
the manifest is about to say; a start that finds both goes on where the crash
was. It becomes the lifecycle marker when all is done.

When the rename of the manifest has happened and the sync of ``log_dir`` fails,
the change is kept and the request succeeds, with a durability warning that the
next complete save clears. Nothing is ever removed on the strength of a manifest
that may not be durable.

Not safe for two threads at once: **every method needs the broker's topic lock**
(properties may be read without it). ``release`` and ``forget`` callbacks run
under it.

Source: manifest.md sections 2.3, 4.3, 5, 6; README.md decisions 33, 34.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final

from cursus import layout
from cursus.findings import FormatError
from cursus.formats import topic_manifest as tm
from cursus.formats.canonical_json import UINT64
from cursus.formats.topic_manifest import TopicDefinition
from cursus.replay.interfaces import SegmentRef, SegmentScan
from cursus.replay.segments import PartitionLog
from cursus.replay.topics import ManifestReplay, TopicsReplay
from cursus.storage.durable import FileSystem
from cursus.storage.errors import StoreError, reason
from cursus.storage.topic_directories import TopicDirectories

#: Partitions of ``__consumer_offsets`` when it is created.
INTERNAL_PARTITIONS: Final = 4
Callback = Callable[[], None]


def _nothing() -> None:
    """The callback of a caller who has nothing to do."""


@dataclass(frozen=True, slots=True)
class TopicLimits:
    """Most topics and partitions that a request may lead to; ``None`` for no limit."""

    max_topics: int | None = None
    max_partitions_per_topic: int | None = None
    max_partitions: int | None = None


@dataclass(frozen=True, slots=True)
class TopicChange:
    """What a create request did. ``opened``: partitions that are new (:func:`empty_log`)."""

    definition: TopicDefinition
    created: bool
    changed: bool
    opened: range


def empty_log(topic: str, partition: int) -> PartitionLog:
    """What a plan would find in a partition that was just made: one empty log, base 0.

    For whoever opens the partitions of :attr:`TopicChange.opened`, and those of a
    topic after its truncation.
    """
    internal = topic == layout.INTERNAL_TOPIC
    path = layout.topic_file(topic, layout.segment_log(partition, 0))
    ref = SegmentRef(path, topic, partition, 0, 0, True, False, False, internal)
    scan = SegmentScan(ref, "clean", 0, None, None, 0, 0, ())
    return PartitionLog(
        topic=topic,
        partition=partition,
        internal=internal,
        log_start=0,
        first_offset=None,
        log_end=0,
        next_offset=0,
        record_count=0,
        segments=(scan,),
        deleted=(),
        findings=(),
        cut=None,
        readable=True,
        damaged=False,
    )


class ManifestStore:
    """The registry of topics, each change of it durable before it returns.

    ``definitions``: what the manifest says. ``pending``: names of topics whose
    truncation is decided and not finished; to clients they do not exist.
    ``defaults``: fields of a create request that a new topic takes when the
    request does not give them.
    """

    def __init__(
        self,
        files: FileSystem,
        log_dir: str,
        definitions: Iterable[TopicDefinition] = (),
        *,
        pending: Iterable[str] = (),
        defaults: Mapping[str, Any] | None = None,
        limits: TopicLimits | None = None,
    ) -> None:
        self._files = files
        self._log_dir = log_dir
        self._directories = TopicDirectories(files, log_dir)
        self._definitions = {item.name: _forced(item) for item in definitions}
        self._defaults = dict(defaults or {})
        self._limits = limits or TopicLimits()
        self._pending = set(pending)
        self._leftover: set[str] = set()
        self._busy: set[str] = set()
        self._settled = not self._definitions
        #: Why the last rename of the manifest may not be durable; ``None`` when it is.
        self.durability_warning: str | None = None
        #: How often that happened; never goes down.
        self.durability_warnings = 0

    @classmethod
    def from_replay(
        cls,
        files: FileSystem,
        log_dir: str,
        manifest: ManifestReplay,
        topics: TopicsReplay,
        *,
        defaults: Mapping[str, Any] | None = None,
        limits: TopicLimits | None = None,
    ) -> ManifestStore:
        """The registry that a plan found. Writes nothing.

        A start then calls :meth:`settle`, :meth:`resume_truncation` for each of
        :attr:`pending`, and :meth:`ensure_internal_topic`.
        """
        pending = [name for name, topic in topics.topics.items() if topic.state == "resumable"]
        return cls(
            files,
            log_dir,
            manifest.definitions or (),
            pending=pending,
            defaults=defaults,
            limits=limits,
        )

    def settle(self) -> None:
        """Make durable what the plan read; at start, before anything is built on it.

        The process before may have died between a rename and its sync. What it
        renamed is visible, yet a loss of power could still take it back: a
        manifest, or the marker without which a truncation is done again.

        Raises ``OSError``.
        """
        self._files.sync_directory(self._log_dir)
        for name, definition in self._definitions.items():
            if definition.lifecycle_epoch > 1 and name not in self._pending:
                self._directories.sync(name)
        self._settled = True

    # -- what there is ---------------------------------------------------------------

    @property
    def definitions(self) -> Mapping[str, TopicDefinition]:
        """Every declared topic by name, pending truncations included."""
        return MappingProxyType(self._definitions)

    @property
    def pending(self) -> frozenset[str]:
        """Topics whose truncation is decided and not finished."""
        return frozenset(self._pending)

    @property
    def leftover(self) -> frozenset[str]:
        """Deleted topics whose directory is still (partly) there: ``cleanup_pending``."""
        return frozenset(self._leftover)

    def get(self, name: str) -> TopicDefinition | None:
        """The definition that clients see: none while a truncation is under way."""
        if name in self._pending or name in self._busy:
            return None
        return self._definitions.get(name)

    # -- create, grow, alter -----------------------------------------------------------

    def create(self, name: str, given: Mapping[str, Any]) -> TopicChange:
        """Create a topic, or patch the one of that name (section 5.1).

        ``given`` holds only the fields of the request. Of a request for
        ``__consumer_offsets`` only a higher partition count counts. When it
        returns, the definition and the empty logs of new partitions are durable.

        Raises :class:`FormatError` for a field, :class:`StoreError` for the
        state of the topic or a failed write; then nothing has changed.
        """
        tm.check_topic_name(name)
        if name in tm.RESERVED_NAMES and name not in self._definitions:
            raise StoreError(
                "topic_name_reserved_by_broker", f'"{name}" is a name of the broker', path=name
            )
        self._require_settled(name)
        current = self._definitions.get(name)
        definition, changed = self._merged(current, name, given)
        opened = range(current.partitions if current else 0, definition.partitions)
        if opened:
            self._check_limits(definition)
        with self._directories.made(name, opened, new=current is None):
            self._save({**self._definitions, name: definition})
        return TopicChange(definition, current is None, changed, opened)

    def set_min_in_sync_replicas(self, name: str, value: int | None) -> TopicDefinition:
        """Set it (1 to the replication factor) or, with ``None``, clear it."""
        current = self._require(name)
        if value is not None and not 1 <= value <= current.replication_factor:
            raise FormatError(
                "min_in_sync_replicas_invalid",
                f"min_in_sync_replicas {value} is not within 1 and {current.replication_factor}",
            )
        changed = replace(current, policy=replace(current.policy, min_in_sync_replicas=value))
        if changed != current:
            changed = replace(changed, revision=_next(current.revision, "revision_overflow"))
        tm.check_internal_contract(changed)
        self._save({**self._definitions, name: changed})
        return changed

    def ensure_internal_topic(self, partitions: int = INTERNAL_PARTITIONS) -> TopicChange:
        """Create ``__consumer_offsets``, or grow it to at least ``partitions``.

        A start calls it in any case; what is not settled yet, is settled here.
        """
        if not self._settled:
            self.settle()
        current = self._definitions.get(layout.INTERNAL_TOPIC)
        wanted = max(partitions, INTERNAL_PARTITIONS, current.partitions if current else 0)
        if current is not None and current.partitions == wanted:
            return TopicChange(current, False, False, range(wanted, wanted))
        return self.create(layout.INTERNAL_TOPIC, {"partitions": wanted})

    def _merged(
        self, current: TopicDefinition | None, name: str, given: Mapping[str, Any]
    ) -> tuple[TopicDefinition, bool]:
        if name == layout.INTERNAL_TOPIC:
            given = {key: value for key, value in given.items() if key == "partitions"}
            if current is None:
                given = {"partitions": INTERNAL_PARTITIONS, "cleanup_policy": "compact", **given}
        elif current is None:
            given = {**self._defaults, **given}
        return tm.patch(current, name, given)

    def _check_limits(self, definition: TopicDefinition) -> None:
        others = [item for item in self._definitions.values() if item.name != definition.name]
        limits = self._limits
        checks = (
            (definition.partitions, layout.MAX_PARTITION + 1, "partitions of a topic"),
            (definition.partitions, limits.max_partitions_per_topic, "partitions of a topic"),
            (
                definition.partitions + sum(item.partitions for item in others),
                limits.max_partitions,
                "partitions in all",
            ),
            (len(others) + 1, limits.max_topics, "topics"),
        )
        for count, limit, what in checks:
            if limit is not None and count > limit:
                raise StoreError(
                    "topic_capacity_exceeded",
                    f"{count} {what} would pass the limit of {limit}",
                    path=definition.name,
                )

    # -- delete --------------------------------------------------------------------------

    def delete(self, name: str, *, release: Callback = _nothing) -> bool:
        """Delete a topic; returns False when its directory could not be removed yet.

        The topic is gone when the manifest is saved. ``release`` then closes
        everything that holds its files. A directory that stays (``cleanup_pending``)
        is in :attr:`leftover` and :meth:`remove_leftover` tries again; until then
        a start refuses. Consumer groups and transactions that name the topic are
        the caller's.

        Raises :class:`StoreError`; then nothing has changed.
        """
        if name == layout.INTERNAL_TOPIC:
            raise StoreError(
                "internal_topic_delete_forbidden", f"{name} cannot be deleted", path=name
            )
        self._require(name)
        rest = {key: item for key, item in self._definitions.items() if key != name}
        durable = self._save(rest)
        self._leftover.add(name)
        self._busy.add(name)
        try:
            release()
        except (OSError, StoreError):
            return False  # what is open still keeps its directory
        finally:
            self._busy.discard(name)
        return durable and self._remove_leftover(name)

    def remove_leftover(self, name: str) -> bool:
        """Remove the directory of a deleted topic once more; True when nothing is left.

        Also for a directory that a crash left behind, as long as nobody declares
        a topic of that name.
        """
        tm.check_topic_name(name)
        self._require_settled(name)
        if name in self._definitions:
            raise StoreError("topic_storage_declared", f'topic "{name}" is declared', path=name)
        if self.durability_warning is not None and not self._save(self._definitions):
            return False
        return self._remove_leftover(name)

    def _remove_leftover(self, name: str) -> bool:
        try:
            removed = self._directories.remove(name)
        except OSError:
            return False
        if removed:
            self._leftover.discard(name)
        return removed

    # -- truncate ------------------------------------------------------------------------

    def truncate(
        self,
        name: str,
        expected_revision: int,
        *,
        release: Callback = _nothing,
        forget: Callback = _nothing,
    ) -> TopicDefinition:
        """Empty a topic, so that its partitions begin at offset 0 again.

        ``release`` closes what holds its files, ``forget`` removes the groups and
        transactions that name it; both must bear to be called again. A retry of a
        truncation that is pending carries the revision it began with.

        Raises :class:`StoreError`: refused before the manifest is saved
        (unchanged), ``topic_lifecycle_pending`` after it (the topic is in
        :attr:`pending`, and a start would go on with it).
        """
        if name == layout.INTERNAL_TOPIC:
            raise StoreError(
                "internal_topic_truncate_forbidden", f"{name} cannot be truncated", path=name
            )
        if name in self._pending:
            pending = self._definitions[name]
            self._require_revision(name, pending.revision - 1, expected_revision)
            return self.resume_truncation(name, release=release, forget=forget)
        current = self._require(name)
        self._require_revision(name, current.revision, expected_revision)
        definition = replace(
            current,
            revision=_next(current.revision, "lifecycle_counter_overflow"),
            lifecycle_epoch=_next(current.lifecycle_epoch, "lifecycle_counter_overflow"),
        )
        try:
            self._directories.write_intent(name, definition.lifecycle_epoch)
        except OSError as error:
            self._directories.forget_intent(name)
            raise StoreError(
                "manifest_write_failed",
                f'the truncation of "{name}" was not decided: {reason(error)}',
                path=name,
            ) from error
        try:
            self._save({**self._definitions, name: definition})
        except (StoreError, FormatError):
            self._directories.forget_intent(name)
            raise
        self._pending.add(name)
        return self.resume_truncation(name, release=release, forget=forget)

    def resume_truncation(
        self, name: str, *, release: Callback = _nothing, forget: Callback = _nothing
    ) -> TopicDefinition:
        """Carry out a truncation that the manifest has decided; at start, and on a retry.

        Raises :class:`StoreError` ``topic_lifecycle_pending``; it may be called again.
        """
        if name not in self._pending:
            raise StoreError("topic_not_found", f'no truncation of "{name}" is pending', path=name)
        definition = self._definitions[name]
        try:
            release()
            if not self._settled:
                self.settle()
            if self.durability_warning is not None and not self._save(self._definitions):
                raise OSError(self.durability_warning)
            epoch, partitions = definition.lifecycle_epoch, definition.partitions
            self._directories.empty_for(name, epoch, partitions)
            forget()
            self._directories.seal(name)
        except (OSError, StoreError, FormatError) as error:
            why = reason(error) if isinstance(error, OSError) else error.message
            raise StoreError(
                "topic_lifecycle_pending",
                f'the truncation of "{name}" is decided and not finished: {why}',
                path=name,
            ) from error
        self._pending.discard(name)
        return definition

    # -- saving ----------------------------------------------------------------------------

    def save(self) -> bool:
        """Write the manifest as it is; False when its durability is uncertain (section 6)."""
        return self._save(self._definitions)

    def _save(self, definitions: Mapping[str, TopicDefinition]) -> bool:
        data = tm.encode(definitions.values())
        path = os.path.join(self._log_dir, layout.MANIFEST)
        temporary = os.path.join(self._log_dir, layout.MANIFEST_TEMP)
        try:
            if self._files.status(temporary) is not None:
                self._files.unlink(temporary)
            with self._files.create(temporary) as file:
                file.append(data)
                file.fsync()
            self._files.rename(temporary, path)
        except OSError as error:
            with suppress(OSError):
                if self._files.status(temporary) is not None:
                    self._files.unlink(temporary)
            raise StoreError(
                "manifest_write_failed",
                f"the manifest could not be saved: {reason(error)}",
                path=layout.MANIFEST,
            ) from error
        self._definitions = dict(definitions)
        try:
            self._files.sync_directory(self._log_dir)
        except OSError as error:
            self.durability_warnings += 1
            self.durability_warning = (
                f"the manifest was renamed, but its directory was not synced: {reason(error)}"
            )
            return False
        self.durability_warning = None
        return True

    # -- refusals ------------------------------------------------------------------------------

    def _require(self, name: str) -> TopicDefinition:
        tm.check_topic_name(name)
        self._require_settled(name)
        found = self._definitions.get(name)
        if found is None:
            raise StoreError("topic_not_found", f'there is no topic "{name}"', path=name)
        return found

    def _require_settled(self, name: str) -> None:
        if name in self._busy:
            raise StoreError(
                "topic_lifecycle_in_progress",
                f'topic "{name}" is being deleted or truncated',
                path=name,
            )
        if name in self._pending:
            raise StoreError(
                "topic_lifecycle_pending",
                f'the truncation of topic "{name}" is decided and not finished',
                path=name,
            )

    def _require_revision(self, name: str, revision: int, expected: int) -> None:
        if revision != expected:
            raise StoreError(
                "topic_revision_conflict",
                f'topic "{name}" is at revision {revision}, the request expects {expected}',
                path=name,
                revision=revision,
            )


def _forced(definition: TopicDefinition) -> TopicDefinition:
    """The internal topic has its fixed policy whatever the manifest says (section 2.3)."""
    if definition.name == layout.INTERNAL_TOPIC:
        return replace(definition, policy=tm.INTERNAL_POLICY)
    return definition


def _next(counter: int, code: str) -> int:
    if counter >= UINT64[1]:
        raise FormatError(code, "a counter of the topic cannot grow any more")
    return counter + 1
