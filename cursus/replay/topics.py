"""Steps 1 and 2 of a start: the manifest, and the manifest against the directories.

Step 1 reads ``__topic_metadata.json`` and nothing else. Step 2 compares it with
what stands under the log directory: undeclared directories that hold logs,
declared topics without storage, partitions missing or too many, names that no
broker writes, and the lifecycle marker of truncated topics. Contents of
segments are another matter (``cursus.replay.segments``).

A broker stops at the first violation, in this order: undeclared directories
(sorted), then declared topics by name. All of them are reported. Work is
constant for each entry.

Source: manifest.md sections 3.2, 4, 5.4; README.md decisions 9, 26, 33.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Final

from cursus import layout
from cursus.findings import Finding, FormatError, Lost, finding
from cursus.formats import checkpoints, topic_manifest
from cursus.formats.topic_manifest import TopicDefinition
from cursus.layout import FileClass, FileKind
from cursus.replay.interfaces import Entry, Evidence, UnreadableError
from cursus.replay.segments import PartitionFiles, PartitionLog

_MAX_PARSED_PARTITION: Final = 2**63 - 1
#: Missing partitions: all of a topic's up to this many, and after as many in all the lowest only.
MAX_MISSING: Final = 100
MAX_MISSING_IN_ALL: Final = 1000
_PARTITION_KINDS: Final = {
    FileKind.HWM,
    FileKind.PRODUCERS,
    FileKind.PARTITION_LOCK,
    FileKind.AGGREGATE_DIRECTORY,
}
#: Classes of files that mean nothing without the logs they stood beside.
_REMOVABLE: Final = frozenset({FileClass.DERIVED, FileClass.TEMPORARY, FileClass.LOCK})


@dataclass(frozen=True, slots=True)
class ManifestReplay:
    """Step 1. ``definitions`` is ``None`` when the manifest cannot be read as version 3."""

    present: bool
    version: int | None
    definitions: tuple[TopicDefinition, ...] | None
    names_as_evidence: tuple[str, ...]
    findings: tuple[Finding, ...]

    @property
    def by_name(self) -> dict[str, TopicDefinition]:
        """Definitions by topic name; empty without a readable manifest."""
        return {item.name: item for item in self.definitions or ()}


@dataclass(slots=True)
class TopicStorage:
    """A topic as the directories show it.

    ``state``: ``live`` (declared, or the manifest cannot be read), ``undeclared``
    (a start takes no notice of what stands inside), ``reset_pending`` (refused,
    decision 9) or ``resumable`` (a start empties it, decision 33).
    ``marker_epoch``: what the lifecycle marker says.
    """

    name: str
    definition: TopicDefinition | None
    directory: bool
    state: str
    partitions: dict[int, PartitionFiles] = field(default_factory=dict)
    marker_epoch: int | None = None


@dataclass(frozen=True, slots=True)
class TopicsReplay:
    """Step 2, as far as names go. ``topics`` is sorted by name."""

    topics: dict[str, TopicStorage]
    findings: tuple[Finding, ...]
    undeclared: tuple[str, ...]


# -- step 1 ------------------------------------------------------------------------


def replay_manifest(evidence: Evidence) -> ManifestReplay:
    """Read the manifest (manifest.md section 3). Never raises for what stands there."""
    entry = evidence.get(layout.MANIFEST)
    if entry is None:
        names = persisted_topics(evidence)
        found: tuple[Finding, ...] = ()
        if names:
            shown = ", ".join(names[:5]) + (" …" if len(names) > 5 else "")
            found = (
                finding(
                    "manifest_missing_with_persisted_topics",
                    layout.MANIFEST,
                    message=f"no manifest, but {len(names)} topic directories hold logs: {shown}",
                    topics=names,
                ),
            )
        return ManifestReplay(False, None, (), (), found)
    if entry.type != "file":
        # The reference follows a link; evidence never does, so for a link nobody can tell.
        link = entry.type == "symlink"
        problem = finding(
            "manifest_not_regular_file",
            layout.MANIFEST,
            message=f"a {entry.type} stands where the manifest should be",
            effect="unknown" if link else "refuses",
        )
        return ManifestReplay(True, None, None, (), (problem,))
    try:
        data = evidence.read(layout.MANIFEST, topic_manifest.MAX_BYTES)
    except UnreadableError as error:
        told = error.finding
        problem = finding(
            told.code,
            told.path,
            message=told.message,
            severity=told.severity,
            effect=told.effect,
            step=1,
        )
        return ManifestReplay(True, None, None, (), (problem,))
    return _decode(data)


def _decode(data: bytes) -> ManifestReplay:
    try:
        manifest = topic_manifest.decode(data, whole_definition_rules=False)
    except FormatError as error:
        version, names = topic_manifest.topic_names(data)
        problem = _manifest_finding(error, len(data))
        return ManifestReplay(True, version, None, names, (problem,))
    found: list[Finding] = []
    for definition in manifest.definitions:
        try:
            topic_manifest.check_internal_contract(definition)
        except FormatError as error:
            # A wrong policy is replaced in memory, a wrong mode refuses (section 2.3).
            wrong_mode = bool(error.detail.get("mode"))
            found.append(
                finding(
                    error.code,
                    layout.MANIFEST,
                    message=error.message,
                    effect="refuses" if wrong_mode else "ignores",
                    severity="error" if wrong_mode else "warning",
                    topic=definition.name,
                )
            )
            continue
        try:
            topic_manifest.check_compaction(definition)
        except FormatError as error:
            found.append(
                finding(error.code, layout.MANIFEST, message=error.message, topic=definition.name)
            )
    return ManifestReplay(True, topic_manifest.VERSION, manifest.definitions, (), tuple(found))


def _manifest_finding(error: FormatError, size: int) -> Finding:
    length = error.detail.get("length")
    return finding(
        error.code,
        layout.MANIFEST,
        position=error.position,
        length=length if isinstance(length, int) else None,
        message=error.message,
        step=1,
        size=size,
    )


# -- step 2 ------------------------------------------------------------------------


def persisted_topics(evidence: Evidence) -> tuple[str, ...]:
    """Names of directories that hold a topic log by the broker's own rule (section 4.1)."""
    names = []
    for entry in evidence.children(""):
        if entry.type != "directory" or not layout.is_topic_name(entry.path):
            continue
        if any(_is_persisted_log(child) for child in evidence.children(entry.path)):
            names.append(entry.path)
    return tuple(names)


def _is_persisted_log(entry: Entry) -> bool:
    if entry.type == "directory":
        return False
    number = layout.persisted_partition(entry.path.rpartition("/")[2])
    return number is not None and 0 <= int(number) <= _MAX_PARSED_PARTITION


def judge_topics(evidence: Evidence, manifest: ManifestReplay) -> TopicsReplay:
    """The manifest against the directories (manifest.md section 4)."""
    found: list[Finding] = []
    topics: dict[str, TopicStorage] = {}
    declared = manifest.by_name
    readable = manifest.present and manifest.definitions is not None
    persisted = set(persisted_topics(evidence))
    # Without a manifest and without logs nothing is declared either: a fresh start.
    known = readable or (not manifest.present and not persisted)
    undeclared = tuple(sorted(persisted - set(declared))) if readable else ()
    for name in undeclared:
        found.append(
            finding(
                "undeclared_persisted_topic",
                name,
                message=f'directory "{name}" holds logs of a topic that nobody declares',
                topic=name,
            )
        )
    for entry in evidence.children(""):
        if entry.type == "symlink" and layout.is_topic_name(entry.path):
            if entry.path not in declared and entry.kind is FileKind.UNKNOWN:
                found.append(finding("topic_entry_symlink", entry.path))
            continue
        if entry.type != "directory" or not layout.is_topic_name(entry.path):
            continue
        name = entry.path
        state = "undeclared" if known and name not in declared else "live"
        topic = TopicStorage(name, declared.get(name), True, state)
        _collect(evidence, topic)
        if name in declared or topic.partitions:
            topics[name] = topic
    unlisted = frozenset(
        item.path for item in evidence.walk_findings if item.code == "file_unreadable"
    )
    for name in sorted(declared):
        budget = MAX_MISSING if len(found) < MAX_MISSING_IN_ALL else 1
        judge = _Declared(evidence, declared[name], topics, name not in unlisted, budget)
        found.extend(judge.findings())
    for name in sorted(set(topics) - set(declared)):
        told = _judge_names(evidence, topics[name])
        if topics[name].state == "undeclared":
            told = map(not_opened, told)
        found.extend(told)
    return TopicsReplay(dict(sorted(topics.items())), tuple(found), undeclared)


def is_leftover(kind: FileKind, type: str, inside: Iterable[FileKind] = ()) -> bool:
    """May whoever makes a topic remove this entry of its directory first?

    Only what is derived, temporary or a lock, and the marker of a life that nobody
    declares; anything else is somebody's data. ``inside``: kinds of what an
    aggregate directory holds.
    """
    if kind is FileKind.AGGREGATE_DIRECTORY:
        return all(layout.file_class(item) is FileClass.DERIVED for item in inside)
    if type != "file" or kind in {FileKind.DELETED_LOG, FileKind.DELETED_INDEX}:
        return False
    return kind is FileKind.LIFECYCLE_EPOCH or layout.file_class(kind) in _REMOVABLE


def in_the_way(evidence: Evidence, name: str) -> Iterable[Finding]:
    """What stands where a start has to make the directory of topic ``name``."""
    here = evidence.get(name)
    blocking: list[Entry] = []
    if here is not None and here.type != "directory":
        blocking = [here]
    elif here is not None:
        blocking = [
            item
            for item in evidence.children(name)
            if not is_leftover(
                item.kind, item.type, (each.kind for each in evidence.children(item.path))
            )
        ]
    for item in blocking[:1]:
        text = f"stands where a start has to make topic {name}, which nobody declares"
        yield finding(
            "topic_storage_without_definition", item.path, message=text, effect="refuses", step=3
        )


def not_opened(item: Finding) -> Finding:
    """``item`` inside a directory that nobody declares: worth a word, nothing to a broker."""
    severity = "warning" if item.severity == "error" else item.severity
    return replace(item, effect="ignores", severity=severity)


def _collect(evidence: Evidence, topic: TopicStorage) -> None:
    for entry in evidence.children(topic.name):
        kind = entry.kind
        if entry.partition is None or entry.partition > layout.MAX_PARTITION:
            continue
        if entry.base is not None and entry.base > layout.MAX_OFFSET:
            continue
        if kind is FileKind.SEGMENT_LOG:
            if entry.type == "file":
                topic.partitions.setdefault(entry.partition, PartitionFiles()).logs.append(entry)
        elif kind is FileKind.DELETED_LOG:
            files = topic.partitions.setdefault(entry.partition, PartitionFiles())
            files.leftovers.append(entry)
            if entry.type == "file":
                files.deleted.append(entry)
        elif kind is FileKind.SEGMENT_INDEX:
            files = topic.partitions.setdefault(entry.partition, PartitionFiles())
            files.indexes[entry.base or 0] = entry
        elif kind is FileKind.COMPACTION_MARKER:
            topic.partitions.setdefault(entry.partition, PartitionFiles()).markers.append(entry)
        elif kind in {FileKind.COMPACTION_TEMP, FileKind.DELETED_INDEX}:
            topic.partitions.setdefault(entry.partition, PartitionFiles()).leftovers.append(entry)
        elif kind in _PARTITION_KINDS:
            topic.partitions.setdefault(entry.partition, PartitionFiles()).others.append(entry)


@dataclass(frozen=True, slots=True)
class _Declared:
    """One declared topic against what stands there.

    ``listed``: False for a directory that could not be listed, so that nothing
    is known to be missing there. ``budget``: how many missing partitions are told.
    """

    evidence: Evidence
    definition: TopicDefinition
    topics: dict[str, TopicStorage]
    listed: bool
    budget: int

    def findings(self) -> Iterable[Finding]:
        """In the order of manifest.md section 4.2."""
        definition, name = self.definition, self.definition.name
        topic = self.topics.get(name)
        entry = self.evidence.get(name)
        if topic is None:
            topic = self.topics[name] = TopicStorage(name, definition, False, "live")
        if definition.lifecycle_epoch >= 2 and self.listed:
            yield from _judge_marker(self.evidence, definition, topic)
            if topic.state == "resumable" or (topic.state == "reset_pending" and entry is None):
                return
        if entry is None:
            yield finding(
                "declared_topic_storage_missing",
                name,
                message=f'topic "{name}" is declared with {definition.partitions} partitions '
                "and has no directory",
                topic=name,
            )
            return
        if entry.type != "directory":
            yield finding(
                "declared_topic_storage_not_directory",
                name,
                message=f'a {entry.type} stands where the directory of topic "{name}" should be',
                topic=name,
            )
            return
        yield from _judge_names(self.evidence, topic)
        present = {
            partition
            for partition, files in topic.partitions.items()
            if files.logs and partition < definition.partitions
        }
        if len(present) < definition.partitions and self.listed:
            yield from _missing_partitions(name, definition.partitions, present, self.budget)


def _missing_partitions(name: str, count: int, present: set[int], budget: int) -> Iterable[Finding]:
    """The lowest first. Never loops to the declared number: it may be 2^63-1 (decision 19)."""
    missing = count - len(present)
    lowest = islice((p for p in range(count) if p not in present), min(missing, budget))
    for number, partition in enumerate(lowest, 1):
        tail = f", and {missing - number} more" if number == budget and missing > number else ""
        yield finding(
            "declared_topic_partition_missing",
            name,
            message=f'partition {partition} of topic "{name}" has no active log{tail}',
            topic=name,
            partition=partition,
            missing=missing,
        )


def _judge_names(evidence: Evidence, topic: TopicStorage) -> Iterable[Finding]:
    """Names and types in a topic directory, in name order (section 4.2, item 4)."""
    limit = topic.definition.partitions if topic.definition else None
    at_open = []  # numbers out of range are met when the partition is opened, behind the names
    for entry in evidence.children(topic.name):
        if entry.kind is FileKind.NONCANONICAL_LOG:
            deleted = layout.is_deleted_name(entry.path)
            yield finding(
                "segment_name_not_canonical",
                entry.path,
                effect="ignores" if deleted else None,
                severity="warning" if deleted else None,
                topic=topic.name,
            )
        elif entry.kind in {FileKind.SEGMENT_LOG, FileKind.DELETED_LOG}:
            for item in _judge_log(entry, topic.name, limit):
                if item.code == "segment_id_out_of_range":
                    at_open.append(item)
                else:
                    yield item
        elif entry.kind is FileKind.PARTITION_LOCK and entry.type != "file":
            yield finding(
                "not_regular_file",
                entry.path,
                message=f"a {entry.type} stands where the lock file of the partition should be",
                topic=topic.name,
                partition=entry.partition,
            )
    yield from at_open


def _judge_log(entry: Entry, topic: str, limit: int | None) -> Iterable[Finding]:
    deleted = entry.kind is FileKind.DELETED_LOG
    partition = entry.partition if entry.partition is not None else 0
    facts: dict[str, object] = {"topic": topic, "partition": partition}
    out_of_range = partition > layout.MAX_PARTITION or (entry.base or 0) > layout.MAX_OFFSET
    if entry.type != "file":
        yield finding(
            "not_regular_file",
            entry.path,
            message=f"a {entry.type} stands where a log should be",
            effect="ignores" if deleted else None,
            severity="warning" if deleted else None,
            **facts,  # type: ignore[arg-type]
        )
    elif limit is not None and partition >= limit and not deleted:
        yield finding(
            "declared_topic_partition_out_of_range",
            entry.path,
            message=f'partition {partition} of topic "{topic}" is not declared ({limit} are)',
            **facts,  # type: ignore[arg-type]
        )
    elif out_of_range:
        yield finding(
            "segment_id_out_of_range",
            entry.path,
            effect="ignores" if deleted else None,
            severity="warning" if deleted else None,
            **facts,  # type: ignore[arg-type]
        )


# -- the lifecycle marker ------------------------------------------------------------


def at_stake(item: Finding, logs: Iterable[PartitionLog]) -> Finding:
    """``item`` with what stands in the partitions that a truncation would empty.

    For ``lifecycle_reset_pending`` and ``truncation_resumable``, once the logs of
    that topic, ``logs``, were scanned: records and bytes, and offsets where there is one
    partition.
    """
    found = list(logs)
    records = sum(log.record_count for log in found)
    size = sum(scan.segment.size for log in found for scan in log.segments)
    first = last = None
    if len(found) == 1 and found[0].first_offset is not None:
        first, last = found[0].first_offset, found[0].log_end - 1
    return replace(
        item, lost=Lost(bytes=size, records=records, first_offset=first, last_offset=last)
    )


def _judge_marker(
    evidence: Evidence, definition: TopicDefinition, topic: TopicStorage
) -> Iterable[Finding]:
    """Is a truncation unfinished? Sets the state of ``topic``."""
    name, epoch = definition.name, definition.lifecycle_epoch
    found, problem = _read_epoch(evidence, f"{name}/{layout.LIFECYCLE_EPOCH}")
    if problem is not None:
        yield problem
        return
    topic.marker_epoch = found
    if found == epoch:
        return
    facts: dict[str, object] = {"topic": name, "epoch": epoch, "found": found}
    if found is not None and found > epoch:
        yield finding(
            "lifecycle_marker_ahead",
            f"{name}/{layout.LIFECYCLE_EPOCH}",
            message=f"marker says epoch {found}, the manifest says {epoch}",
            **facts,  # type: ignore[arg-type]
        )
        return
    told = f"says epoch {found}" if found is not None else "is missing"
    # Ours writes and syncs it before the manifest, so that it proves a decision of this topic.
    decided, hidden = _proves_decision(evidence, definition)
    if decided and definition.revision > 1:
        topic.state = "resumable"
        yield finding(
            "truncation_resumable",
            name,
            message=f"truncation to epoch {epoch} was decided and not finished; the marker {told}",
            **facts,  # type: ignore[arg-type]
        )
        return
    topic.state = "reset_pending"
    if decided:
        yield finding(
            "lifecycle_pending_revision_invalid",
            name,
            message=f"truncation to epoch {epoch} is unfinished, but the topic is at revision 1",
            **facts,  # type: ignore[arg-type]
        )
        return
    yield finding(
        "lifecycle_reset_pending",
        name,
        message=f"the manifest is at lifecycle epoch {epoch}, the marker {told}",
        effect="unknown" if hidden else None,
        **facts,  # type: ignore[arg-type]
    )


def _proves_decision(evidence: Evidence, definition: TopicDefinition) -> tuple[bool, bool]:
    """Does the temporary marker stand for this very truncation (decision 33)?

    Only its exact bytes count, and never in the internal topic, which nobody can
    truncate: what follows from it is that records go. The second value is True
    when the file may not be read, so that a broker may know better.
    """
    path = f"{definition.name}/{layout.LIFECYCLE_EPOCH_TEMP}"
    entry = evidence.get(path)
    if entry is None or entry.type != "file" or definition.name == layout.INTERNAL_TOPIC:
        return False, False
    try:
        data = evidence.read(path, checkpoints.MAX_NUMBER_BYTES)
    except UnreadableError as error:
        return False, error.finding.detail.get("errno") in {"EACCES", "EPERM"}
    return data == checkpoints.encode_lifecycle_epoch(definition.lifecycle_epoch), False


def _read_epoch(evidence: Evidence, path: str) -> tuple[int | None, Finding | None]:
    entry = evidence.get(path)
    if entry is None:
        return None, None
    if entry.type != "file":
        return None, finding(
            "lifecycle_marker_invalid", path, message=f"a {entry.type} stands where it should be"
        )
    try:
        data = evidence.read(path, checkpoints.MAX_NUMBER_BYTES)
        return checkpoints.decode_lifecycle_epoch(data), None
    except UnreadableError as error:
        return None, error.finding
    except FormatError as error:
        return None, finding(error.code, path, position=error.position, message=error.message)
