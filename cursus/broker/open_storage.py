"""Storage that is open: every store of a log directory, and the operations on them.

:meth:`OpenStorage.open` carries out what a plan decided, in the order of the
recovery steps, and opens each store from the state that the plan found:

    2  partitions of live topics      repairs of their logs happen as they open
    3  __consumer_offsets, groups     created where the manifest has none
    4  journal, truncations, commits  torn tail, expiry; what was decided is finished
    5  checkpoints, aggregate files   derived: written anew where they differ

The operations are thin: each is one call of one store, under the locks that the
store asks for, plus what belongs to it by the specification (a deleted topic
takes its groups along, a first registration may grow the internal topic).
Network, members of groups and the commands of transactions stand above this.

Locks, in the order in which they are taken: topics, journal, groups (lives of
all of them), aggregates, one stripe (offsets of a group), producers of a
partition. Partitions have their own; what waits for the disk there holds
nothing that another producer or another group would need.

Closing takes topics, journal and aggregates. Whatever opens files holds one of these
for as long as it runs, and has looked, with the lock held, whether the storage is
still open; other operations end at a partition, which refuses when it is closed.

Source: broker.md section 2; consumer-metadata.md sections 1, 7; journal.md
sections 2.2, 4, 6; manifest.md section 5.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack, suppress
from functools import partial
from threading import RLock
from typing import TYPE_CHECKING, Any, Final, Protocol

from cursus import layout
from cursus.broker import references
from cursus.broker.commit_port import StorageCommitPort
from cursus.broker.derived_state import Key
from cursus.broker.machine import Machine
from cursus.broker.open_partitions import OpenPartitions
from cursus.findings import Step
from cursus.formats import transaction_journal as tj
from cursus.formats.topic_manifest import TopicDefinition
from cursus.formats.transaction_journal import Transaction
from cursus.replay.consumer_groups import GroupState
from cursus.replay.startup import Plan
from cursus.storage.consumer_log import ConsumerLog
from cursus.storage.errors import StoreError, reason
from cursus.storage.journal_store import JournalStore
from cursus.storage.log_settings import LogSettings
from cursus.storage.manifest_store import ManifestStore, TopicChange, empty_log
from cursus.storage.partition_log import PartitionStore
from cursus.storage.transaction_finish import finish_commit

if TYPE_CHECKING:
    from cursus.broker.runtime import Settings

#: Locks that groups are spread over.
_STRIPES: Final = 4096


class Watcher(Protocol):
    """Somebody who works on partitions while they are open."""

    def opened(self, key: Key, log: PartitionStore) -> None:
        """This partition is open now."""

    def closing(self, key: Key, log: PartitionStore) -> None:
        """This partition is about to be closed."""


class OpenStorage(OpenPartitions):
    """See the module. ``step`` is the recovery step that :meth:`open` has reached.

    Every operation raises ``StoreError`` or ``FormatError`` with the code of what
    was refused, and then nothing has changed unless the code says otherwise.
    """

    def __init__(self, log_dir: str, settings: Settings, machine: Machine) -> None:
        super().__init__(log_dir, machine)
        self.settings = settings
        self.step: Step = 2
        self._journal_lock = RLock()
        self._group_lock = RLock()
        self._consumers: ConsumerLog
        self._journal: JournalStore | None = None
        self._stripes = tuple(RLock() for _ in range(_STRIPES))
        self._emptied: set[str] = set()
        self._watcher: Watcher | None = None

    # -- opening -------------------------------------------------------------------------

    def open(self, plan: Plan) -> None:
        """Carry out the actions of ``plan``, which must not refuse, and open everything.

        Raises ``StoreError``, ``FormatError`` and ``OSError``; :attr:`step` then is
        the one that failed, and :meth:`abandon` lets go of what is open.
        """
        with self._while_open(self._topic_lock, self._journal_lock):
            self._carry_out(plan)

    def _carry_out(self, plan: Plan) -> None:
        self._manifest = ManifestStore.from_replay(
            self._files,
            self.log_dir,
            plan.manifest,
            plan.topics,
            defaults=self.settings.topic_defaults,
            limits=self.settings.limits,
        )
        for topic, definition in self._manifest.definitions.items():
            if topic != layout.INTERNAL_TOPIC and topic not in self._manifest.pending:
                self._open_topic(definition, range(definition.partitions), plan)
        self.step = 3
        self._open_consumers(plan)
        self.step = 4
        self._open_journal(plan)
        self.step = 5
        self._reconcile(plan)

    def _open_topic(
        self, definition: TopicDefinition, wanted: Iterable[int], plan: Plan | None
    ) -> None:
        """Open partitions from what the plan found; without one they were just made."""
        settings = self._log_settings(definition)
        # Listed and synced once for all of them: a topic may have many partitions.
        directory = f"{self.log_dir}/{definition.name}"
        names = self._files.list_directory(directory)
        for partition in wanted:
            key = (definition.name, partition)
            found = empty_log(*key) if plan is None else plan.partitions[key]
            self.partitions[key] = PartitionStore.open(
                self._files,
                self.log_dir,
                *key,
                found,
                settings=settings,
                clock=self._machine.now_ns,
                lock=self._machine.lock_partition,
                on_durable=partial(self._derived.moved, key),
                names=names,
                sync_names=False,
            )
            known = plan.producers[key].effective if plan is not None else {}
            self._derived.opened(key, self.partitions[key], known)
            if self.step == 5:
                self._derived.write_files(key, stored_hwm=None)
            if self._watcher is not None:
                self._watcher.opened(key, self.partitions[key])
        if wanted:
            self._files.sync_directory(directory)
            self._files.sync_directory(self.log_dir)

    def _log_settings(self, definition: TopicDefinition) -> LogSettings:
        policy = definition.policy
        return self.settings.log.for_topic(
            retention_hours=policy.retention_hours,
            retention_bytes=policy.retention_bytes,
            policy=policy.cleanup_policy,
            event_sourcing=definition.event_sourcing,
        )

    def _open_consumers(self, plan: Plan) -> None:
        declared = self._manifest.definitions.get(layout.INTERNAL_TOPIC)
        if declared is not None:
            self._open_topic(declared, range(declared.partitions), plan)
        change = self._manifest.ensure_internal_topic()
        self._open_topic(change.definition, change.opened, None)
        self._consumers = ConsumerLog(
            plan.consumers,
            change.definition.partitions,
            lambda partition, record: self.partitions[layout.INTERNAL_TOPIC, partition].append(
                record
            ),
            clock=self._machine.moment,
            grow=self._grow_internal,
        )

    def _open_journal(self, plan: Plan) -> None:
        """The journal; then truncations and commits that were decided and not carried out."""
        self._journal = journal = JournalStore.open(
            self._files,
            self.log_dir,
            plan.journal,
            clock=self._machine.moment,
            expiration_ms=self.settings.startup.transactional_id_expiration_ms,
        )
        if plan.journal.expire:
            journal.expire(plan.as_of)
        for topic in sorted(self._manifest.pending):
            self._emptied.add(topic)
            self._manifest.resume_truncation(topic, forget=partial(self._forget, topic))
            definition = self._manifest.definitions[topic]
            self._open_topic(definition, range(definition.partitions), None)
        for state in journal.committing():
            finish_commit(journal, state.id, StorageCommitPort(self), clock=self._machine.moment)

    def _reconcile(self, plan: Plan) -> None:
        """Derived files that differ from what stands in the logs, after everything above.

        The index of aggregates is built anew at first use in any case; here only
        where it is wrong now, so that what is on the disk is right after a start.
        """
        named = {action.path for action in plan.actions}
        for key in self.partitions:
            judged = plan.hwm.get(key)
            untouched = key[0] not in self._emptied and judged is not None
            stored = judged.stored if untouched and judged is not None else None
            rebuild = layout.topic_file(key[0], layout.producers(key[1])) in named
            self._derived.write_files(key, stored_hwm=stored, rebuild=rebuild)
        self.checkpoint()
        for topic, partition in self.partitions:
            directory = layout.topic_file(topic, layout.aggregate_directory(partition))
            if any(path.startswith(f"{directory}/") for path in named):
                # Derived: what cannot be built stops its own commands, each time, and no start.
                with suppress(StoreError):
                    self.aggregates(topic, partition)

    def watch(self, watcher: Watcher | None) -> None:
        """Tell ``watcher`` of every partition that is open, and of those that come and go."""
        with self._topic_lock:
            self._watcher = watcher
            if watcher is not None:
                for key, log in self.partitions.items():
                    watcher.opened(key, log)

    # -- what there is --------------------------------------------------------------------

    @property
    def topics(self) -> Mapping[str, TopicDefinition]:
        """Every declared topic."""
        return self._manifest.definitions

    @property
    def groups(self) -> Mapping[str, GroupState]:
        """Live consumer groups."""
        return self._consumers.groups

    def group_epoch(self, group: str) -> int:
        """Highest lifecycle epoch of a group, deleted ones included; 0 for an unknown one."""
        return self._consumers.epoch(group)

    @property
    def transactions(self) -> Mapping[str, Transaction]:
        """The last state of every transactional id."""
        return self._open_journal_store().transactions

    def _stripe(self, name: object) -> RLock:
        """The lock of one group; a few share one."""
        return self._stripes[hash(name) % _STRIPES]

    # -- topics ---------------------------------------------------------------------------

    def create_topic(self, name: str, given: Mapping[str, Any]) -> TopicChange:
        """Create a topic, or change one: more partitions, another policy."""
        with self._while_open(self._topic_lock):
            if name not in self._manifest.definitions:
                references.require_unreferenced(self._consumers, name)
            change = self._manifest.create(name, given)
            self._open_missing(change.definition)
            settings = self._log_settings(change.definition)
            for partition in range(change.definition.partitions):
                self.partitions[name, partition].settings = settings
            return change

    def _open_missing(self, definition: TopicDefinition) -> None:
        """Open partitions that were just made, or whose opening failed the last time.

        Raises ``StoreError``; what is declared stays so, and the same request, sent
        again, opens the rest.
        """
        name = definition.name
        missing = [p for p in range(definition.partitions) if (name, p) not in self.partitions]
        try:
            if missing:
                self._open_topic(definition, missing, None)
        except OSError as error:
            text = f'topic "{name}" is declared, but not open: {reason(error)}; ask again'
            raise StoreError("topic_storage_write_failed", text, path=name) from error

    def delete_topic(self, name: str) -> bool:
        """Delete a topic with the groups that name it; False when its directory is still there.

        Its groups stay as long as a crash could bring the topic back. Asked again, it
        goes on with what is left.
        """
        with self._while_open(self._topic_lock, self._journal_lock):
            references.require_no_transaction(self._open_journal_store(), self._consumers, name)
            if name in self._manifest.leftover and name not in self._manifest.definitions:
                gone = self._manifest.remove_leftover(name)
            else:
                gone = self._manifest.delete(name, release=lambda: self._release(name))
            if self._manifest.durability_warning is None:
                self._forget(name)
            return gone

    def truncate_topic(self, name: str, expected_revision: int) -> TopicDefinition:
        """Empty a topic: its partitions begin at offset 0 again, its groups are gone."""
        with self._while_open(self._topic_lock, self._journal_lock):
            references.require_no_transaction(self._open_journal_store(), self._consumers, name)
            definition = self._manifest.truncate(
                name,
                expected_revision,
                release=lambda: self._release(name),
                forget=lambda: self._forget(name),
            )
            self._open_missing(definition)
            return definition

    def _release(self, topic: str) -> None:
        """Close everything that holds files of a topic."""
        with self._aggregates.lock, ExitStack() as stack:
            for key in [key for key in self.partitions if key[0] == topic]:
                if self._watcher is not None:
                    self._watcher.closing(key, self.partitions[key])
                self._derived.closing(key)
                # All of them, whatever one of them says: nobody may write there any more.
                stack.callback(self.partitions.pop(key).close)
                stack.callback(self._aggregates.drop, key)

    def _forget(self, topic: str) -> None:
        """Remove the groups and the references of transactions to a topic that is gone."""
        with self._group_lock, ExitStack() as stack:
            for stripe in self._stripes:
                stack.enter_context(stripe)
            self._consumers.forget_topic(topic)
        self._open_journal_store().forget_topic(topic)

    # -- consumer groups --------------------------------------------------------------------

    def register_group(self, group: str, topic: str, partition_count: int) -> bool:
        """Register a group; False when it is registered already, just so."""
        with self._while_open(self._topic_lock, self._group_lock, self._stripe(group)):
            self._require_not_pending(group, topic)
            return self._consumers.register(topic, group, partition_count)

    def delete_group(self, group: str) -> bool:
        """Delete a group; False when there is none.

        Refused as long as a decided commit has an offset for it (``group_referenced``).
        """
        with self._while_open(self._topic_lock, self._journal_lock):
            journal, where = self._open_journal_store(), layout.INTERNAL_TOPIC
            references.require_no_pledge(journal, "group_referenced", where, {group})
            with self._group_lock, self._stripe(group):
                return self._consumers.delete_group(group)

    def commit_offsets(self, group: str, topic: str, offsets: Mapping[int, int]) -> bool:
        """Commit the next offsets to read; False when nothing differs."""
        with self._stripe(group):
            self._require_open()
            self._require_not_pending(group, topic)
            return self._consumers.commit_batch(group, topic, offsets.items())

    def _require_not_pending(self, group: str, topic: str) -> None:
        """A start that finishes a truncation deletes the groups of its topic."""
        for name in self._manifest.pending:
            if topic == name or group in self._consumers.references(name):
                text = f'the truncation of topic "{name}" is decided and not finished'
                raise StoreError("topic_lifecycle_pending", text, path=name)

    def _grow_internal(self, wanted: int) -> int:
        """Called under the group lock by whoever registers; takes the topic lock above it."""
        change = self._manifest.ensure_internal_topic(wanted)
        self._open_missing(change.definition)
        return change.definition.partitions

    # -- transactions -------------------------------------------------------------------------

    def journal_append(self, values: Mapping[str, Any]) -> None:
        """Make a state of a transaction durable; members that are not given are zero."""
        with self._while_open(self._journal_lock):
            self._open_journal_store().append(tj.transaction(**values))

    def compact_journal(self) -> None:
        """Rewrite the journal without superseded frames."""
        with self._while_open(self._journal_lock):
            self._open_journal_store().compact()

    def finish_transaction(self, transactional_id: str) -> Transaction:
        """Carry out a commit that is decided."""
        with self._while_open(self._journal_lock):
            journal = self._open_journal_store()
            clock = self._machine.moment
            return finish_commit(journal, transactional_id, StorageCommitPort(self), clock=clock)

    def _open_journal_store(self) -> JournalStore:
        if self._journal is None:
            raise StoreError("journal_write_unavailable", "the journal is not open")
        return self._journal

    def commit_prepared(
        self, group: str, topic: str, offsets: Mapping[int, int], registration_epoch: int
    ) -> None:
        """Offsets of a commit that is decided, for the life of the group that staged them."""
        with self._stripe(group):
            self._require_open()
            self._consumers.commit_prepared(group, topic, offsets, registration_epoch)

    # -- producers ----------------------------------------------------------------------------

    def forget_producers(self, topic: str, partition: int, ttl_ns: int) -> int | None:
        """Forget producers of a partition that sent nothing for ``ttl_ns``; how many.

        Those of unfinished transactions stay: what a commit has written already is known
        by its producer only. ``None`` when the checkpoint without them cannot be written:
        then nobody is forgotten.
        """
        with self._while_open(self._topic_lock, self._journal_lock):
            under_way = self._open_journal_store().producers_under_way
            return self._derived.forget((topic, partition), ttl_ns, under_way)

    # -- checkpoints, and the end -----------------------------------------------------------------

    def checkpoint(self) -> None:
        """Write the checkpoints that changed.

        A write that fails leaves the file that was there; the stores keep a warning.
        """
        with self._while_open(self._topic_lock):
            self._derived.checkpoint()

    def checkpoint_due(self) -> dict[Key, str | None]:
        """Write those that changed, at most every 250 ms each; the warning of each of them."""
        self._require_open()
        return self._derived.checkpoint_due()

    def close(self) -> None:
        """Ordered shutdown: logs, checkpoints, aggregates, journal.

        Operations that run are waited for; every later one is refused. Raises the first
        error; everything is let go all the same. Closing twice is allowed.
        """
        with self._topic_lock, self._journal_lock, self._aggregates.lock, ExitStack() as stack:
            if self._closed:
                return
            if self._journal is not None:
                stack.callback(self._journal.close)
            stack.callback(self._aggregates.close)
            # A pass that has begun finds nothing any more: the files are the next owner's.
            stack.callback(self._derived.write_no_more)
            stack.callback(self._derived.checkpoint)
            for log in tuple(self.partitions.values()):
                stack.callback(log.close)
            self._closed = True

    def abandon(self) -> None:
        """Let go of what is open after a start that failed."""
        with self._topic_lock:
            self._derived.write_no_more()
            with suppress(StoreError, OSError):
                self.close()
