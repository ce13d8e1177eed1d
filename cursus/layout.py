"""The one table of names under ``log_dir``.

Nobody else builds or parses a file name. :func:`classify` says what a relative
path *is called*; what stands there (file, link, pipe) is the walk's business.

Source: journal.md section 8, segments.md section 2, manifest.md section 1.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from typing import Final

INTERNAL_TOPIC: Final = "__consumer_offsets"
MANIFEST: Final = "__topic_metadata.json"
MANIFEST_TEMP: Final = "__topic_metadata.json.tmp"
JOURNAL: Final = "__transaction_state.journal"
JOURNAL_MANIFEST: Final = "__transaction_state.manifest"
LOG_DIR_LOCK: Final = ".cursus.lock"
RAFT: Final = "raft"
LIFECYCLE_EPOCH: Final = ".cursus_lifecycle_epoch"
LIFECYCLE_EPOCH_TEMP: Final = ".cursus_lifecycle_epoch.tmp"

MAX_PARTITION: Final = 2**31 - 1
MAX_OFFSET: Final = 2**64 - 1


class FileClass(StrEnum):
    """May it be lost? ``authoritative`` no; ``derived`` is rebuilt; see journal.md section 8."""

    AUTHORITATIVE = "authoritative"
    DERIVED = "derived"
    CLIENT_DATA = "client_data"  # aggregate snapshots: not derivable, losing them costs replay
    TEMPORARY = "temporary"
    LOCK = "lock"
    FOREIGN = "foreign"  # older or newer storage, other owners, unknown names


class FileKind(StrEnum):
    """What a name says."""

    LOG_DIR_LOCK = "log_dir_lock"
    TOPIC_MANIFEST = "topic_manifest"
    TOPIC_MANIFEST_TEMP = "topic_manifest_temp"
    JOURNAL = "journal"
    JOURNAL_COMPACTION_TEMP = "journal_compaction_temp"
    JOURNAL_MANIFEST = "journal_manifest"
    TOPIC_DIRECTORY = "topic_directory"
    SEGMENT_LOG = "segment_log"
    SEGMENT_INDEX = "segment_index"
    COMPACTION_MARKER = "compaction_marker"
    COMPACTION_TEMP = "compaction_temp"
    DELETED_LOG = "deleted_log"
    DELETED_INDEX = "deleted_index"
    NONCANONICAL_LOG = "noncanonical_log"
    PARTITION_LOCK = "partition_lock"
    HWM = "hwm"
    HWM_TEMP = "hwm_temp"
    PRODUCERS = "producers"
    PRODUCERS_TEMP = "producers_temp"
    LIFECYCLE_EPOCH = "lifecycle_epoch"
    LIFECYCLE_EPOCH_TEMP = "lifecycle_epoch_temp"
    AGGREGATE_DIRECTORY = "aggregate_directory"
    AGGREGATE_INDEX = "aggregate_index"
    AGGREGATE_KEYS = "aggregate_keys"
    AGGREGATE_SNAPSHOTS = "aggregate_snapshots"
    RAFT_DIRECTORY = "raft_directory"
    RAFT_FILE = "raft_file"
    MIGRATION_AUTHORITY = "migration_authority"  # __consumer_metadata_migration.json
    MANIFEST_MIGRATION_TEMP = "manifest_migration_temp"  # .topic-metadata-migration-N
    COMPACTED_RANGE = "compacted_range"  # later distributed builds
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Name:
    """What a relative path is called. Numbers are those of the name."""

    kind: FileKind
    topic: str | None = None
    partition: int | None = None
    base: int | None = None
    number: int | None = None


#: Explicit ASCII digits: ``\d`` and ``int()`` accept more than a name may hold.
_N = "(0|[1-9][0-9]*)"
_BASE = "([0-9]{20})"
_SEGMENT = f"partition_{_N}_segment_{_BASE}"

_IN_LOG_DIR: Final = {
    LOG_DIR_LOCK: FileKind.LOG_DIR_LOCK,
    MANIFEST: FileKind.TOPIC_MANIFEST,
    MANIFEST_TEMP: FileKind.TOPIC_MANIFEST_TEMP,
    JOURNAL: FileKind.JOURNAL,
    JOURNAL_MANIFEST: FileKind.JOURNAL_MANIFEST,
    "__consumer_metadata_migration.json": FileKind.MIGRATION_AUTHORITY,
}
_IN_LOG_DIR_PATTERNS: Final = (
    (re.compile(re.escape(JOURNAL) + r"\.compact-[0-9]+"), FileKind.JOURNAL_COMPACTION_TEMP),
    (re.compile(r"\.topic-metadata-migration-.*", re.DOTALL), FileKind.MANIFEST_MIGRATION_TEMP),
)
_PERSISTED_LOG: Final = re.compile(r"partition_([+-]?[0-9]+)_segment_.*\.log", re.DOTALL)
#: Groups: partition, base, number of a compaction marker (as far as the pattern has them).
_IN_TOPIC: Final = (
    (re.compile(rf"{_SEGMENT}\.log"), FileKind.SEGMENT_LOG),
    (re.compile(rf"{_SEGMENT}\.index"), FileKind.SEGMENT_INDEX),
    (re.compile(rf"{_SEGMENT}\.log\.compacted-{_N}"), FileKind.COMPACTION_MARKER),
    (re.compile(rf"{_SEGMENT}\.log\.deleted"), FileKind.DELETED_LOG),
    (re.compile(rf"{_SEGMENT}\.index\.deleted"), FileKind.DELETED_INDEX),
    (
        re.compile(rf"{_SEGMENT}\.(?:log|index|log\.compacted-[0-9]+)\.compacting"),
        FileKind.COMPACTION_TEMP,
    ),
    (re.compile(rf"partition_{_N}\.hwm"), FileKind.HWM),
    (re.compile(rf"partition_{_N}\.hwm\.tmp"), FileKind.HWM_TEMP),
    (re.compile(rf"partition_{_N}\.producers"), FileKind.PRODUCERS),
    (re.compile(rf"partition_{_N}\.producers\.tmp"), FileKind.PRODUCERS_TEMP),
    (re.compile(rf"partition_{_N}\.lock"), FileKind.PARTITION_LOCK),
    (re.compile(re.escape(LIFECYCLE_EPOCH)), FileKind.LIFECYCLE_EPOCH),
    (re.compile(re.escape(LIFECYCLE_EPOCH_TEMP)), FileKind.LIFECYCLE_EPOCH_TEMP),
    (re.compile(rf"partition_{_N}_compacted_range\.pending"), FileKind.COMPACTED_RANGE),
    (re.compile(rf"{_SEGMENT}\..*\.range\.compacting"), FileKind.COMPACTED_RANGE),
    # Base or size is no number: a marker of nothing, which every opening removes as stale.
    (
        re.compile(rf"partition_{_N}_segment_.*\.log\.compacted-(?!.*\.compacting).*", re.DOTALL),
        FileKind.COMPACTION_MARKER,
    ),
    (re.compile(r"partition_.*\.log(?:\.deleted)?", re.DOTALL), FileKind.NONCANONICAL_LOG),
)
_DIGITS: Final = re.compile("[0-9]{1,20}")
_PARTITION_DIRECTORY: Final = re.compile(f"partition_{_N}")
_IN_PARTITION_DIRECTORY: Final = (
    ("stream.idx", FileKind.AGGREGATE_INDEX),
    ("stream_keys.dat", FileKind.AGGREGATE_KEYS),
    ("snapshots.dat", FileKind.AGGREGATE_SNAPSHOTS),
)

_CLASS: Final = {
    FileKind.LOG_DIR_LOCK: FileClass.LOCK,
    FileKind.PARTITION_LOCK: FileClass.LOCK,
    FileKind.TOPIC_MANIFEST: FileClass.AUTHORITATIVE,
    FileKind.JOURNAL: FileClass.AUTHORITATIVE,
    FileKind.TOPIC_DIRECTORY: FileClass.AUTHORITATIVE,
    FileKind.SEGMENT_LOG: FileClass.AUTHORITATIVE,
    FileKind.NONCANONICAL_LOG: FileClass.AUTHORITATIVE,
    FileKind.COMPACTION_MARKER: FileClass.AUTHORITATIVE,
    FileKind.LIFECYCLE_EPOCH: FileClass.AUTHORITATIVE,
    FileKind.SEGMENT_INDEX: FileClass.DERIVED,
    FileKind.JOURNAL_MANIFEST: FileClass.DERIVED,
    FileKind.HWM: FileClass.DERIVED,
    FileKind.PRODUCERS: FileClass.DERIVED,
    FileKind.AGGREGATE_DIRECTORY: FileClass.DERIVED,
    FileKind.AGGREGATE_INDEX: FileClass.DERIVED,
    FileKind.AGGREGATE_KEYS: FileClass.DERIVED,
    FileKind.AGGREGATE_SNAPSHOTS: FileClass.CLIENT_DATA,
    FileKind.TOPIC_MANIFEST_TEMP: FileClass.TEMPORARY,
    FileKind.JOURNAL_COMPACTION_TEMP: FileClass.TEMPORARY,
    FileKind.COMPACTION_TEMP: FileClass.TEMPORARY,
    FileKind.DELETED_LOG: FileClass.TEMPORARY,
    FileKind.DELETED_INDEX: FileClass.TEMPORARY,
    FileKind.HWM_TEMP: FileClass.TEMPORARY,
    FileKind.PRODUCERS_TEMP: FileClass.TEMPORARY,
    FileKind.LIFECYCLE_EPOCH_TEMP: FileClass.TEMPORARY,
}


def file_class(kind: FileKind) -> FileClass:
    """May a file of this kind be lost?"""
    return _CLASS.get(kind, FileClass.FOREIGN)


_TOPIC_NAME: Final = re.compile("[A-Za-z0-9._=-]{1,249}")


@lru_cache(maxsize=1024)  # asked for every file of a topic
def is_topic_name(name: str) -> bool:
    """The name rules of manifest.md section 2.1."""
    return _TOPIC_NAME.fullmatch(name) is not None and name not in {".", ".."}


def classify(parts: tuple[str, ...], *, directory: bool) -> Name:
    """What the path below ``log_dir`` with these components is called."""
    if len(parts) == 1:
        return _in_log_dir(parts[0], directory=directory)
    topic = parts[0]
    if topic == RAFT:
        # A topic may bear this name: its logs are topic logs, all else is a cluster's.
        name = classify(("topic", *parts[1:]), directory=directory)
        if name.kind is FileKind.UNKNOWN:
            return Name(FileKind.RAFT_FILE)
        return replace(name, topic=RAFT)
    if is_topic_name(topic):
        if len(parts) == 2:
            return _in_topic(topic, parts[1], directory=directory)
        if len(parts) == 3:
            return _in_partition_directory(topic, parts[1], parts[2])
    return Name(FileKind.UNKNOWN)


def _in_log_dir(name: str, *, directory: bool) -> Name:
    if name == RAFT:
        return Name(FileKind.RAFT_DIRECTORY, topic=RAFT)
    if name in _IN_LOG_DIR:
        return Name(_IN_LOG_DIR[name])
    for pattern, kind in _IN_LOG_DIR_PATTERNS:
        if pattern.fullmatch(name) and not directory:
            return Name(kind)
    if directory and is_topic_name(name):
        return Name(FileKind.TOPIC_DIRECTORY, topic=name)
    return Name(FileKind.UNKNOWN)


def _in_topic(topic: str, name: str, *, directory: bool) -> Name:
    if directory and (match := _PARTITION_DIRECTORY.fullmatch(name)):
        return Name(FileKind.AGGREGATE_DIRECTORY, topic, int(match[1]))
    for pattern, kind in _IN_TOPIC:
        match = pattern.fullmatch(name)
        if match:
            numbers = [int(group) for group in match.groups()]
            return Name(kind, topic, *numbers)
    return Name(FileKind.UNKNOWN, topic)


def _in_partition_directory(topic: str, directory: str, name: str) -> Name:
    match = _PARTITION_DIRECTORY.fullmatch(directory)
    if match:
        for suffix, kind in _IN_PARTITION_DIRECTORY:
            if name == f"{directory}_{suffix}":
                return Name(kind, topic, int(match[1]))
    return Name(FileKind.UNKNOWN, topic)


def marked_log(name: str) -> str | None:
    """The log that a name or path would be a compaction marker of; ``None`` for others."""
    log_name, dot, _ = name.rpartition(".compacted-")
    return log_name if dot else None


def is_deleted_name(name: str) -> bool:
    """Is it the name of something that retention has taken out of the log?"""
    return name.endswith(".deleted")


def persisted_partition(name: str) -> str | None:
    """The partition, as written, in what a broker takes for a log of a topic.

    Wider than the canonical name: it may have a sign and leading zeros, and any
    base (manifest.md section 4.2).
    """
    match = _PERSISTED_LOG.fullmatch(name)
    return match[1] if match else None


def marker_size(name: str, log_name: str) -> int | None:
    """The size that a compaction marker ``name`` of ``log_name`` is for.

    Wider than the canonical name, as the reference's reader is: the marker of
    a ``.log.deleted`` and leading zeros count. ``None`` for any other name.
    """
    prefix = f"{log_name}.compacted-"
    digits = name.removeprefix(prefix) if name.startswith(prefix) else ""
    return int(digits) if _DIGITS.fullmatch(digits) else None


def absolute(path: str) -> str:
    """``path`` made absolute and cleaned (``.``, ``..``, doubled and trailing slashes).

    Purely lexical. Raises ``OSError`` when the working directory is gone.
    """
    found = os.path.abspath(path)
    return found[1:] if found.startswith("//") else found


# -- building names ------------------------------------------------------------


def segment_prefix(partition: int) -> str:
    """How every file of a segment of this partition begins, canonical or not."""
    return f"partition_{partition}_segment_"


def is_log_name(name: str) -> bool:
    """Does a name say that records stand in the file? (Not those of deleted segments.)"""
    return name.endswith(".log")


def segment_log(partition: int, base: int) -> str:
    """Name of a segment log inside its topic directory."""
    return f"partition_{partition}_segment_{base:020d}.log"


def segment_index(partition: int, base: int) -> str:
    """Name of the sparse offset index beside :func:`segment_log`."""
    return f"partition_{partition}_segment_{base:020d}.index"


def compaction_marker(log_name: str, size: int) -> str:
    """Name of the marker that proves a compacted log of ``size`` bytes."""
    return f"{log_name}.compacted-{size}"


def deleted(name: str) -> str:
    """Name that retention gives to a log or index before it is unlinked."""
    return f"{name}.deleted"


def compacting(name: str) -> str:
    """Name of an unfinished compaction output."""
    return f"{name}.compacting"


def hwm(partition: int) -> str:
    """Name of a high-watermark checkpoint inside its topic directory."""
    return f"partition_{partition}.hwm"


def producers(partition: int) -> str:
    """Name of a producer checkpoint inside its topic directory."""
    return f"partition_{partition}.producers"


def partition_lock(partition: int) -> str:
    """Name of a partition's lock file inside its topic directory."""
    return f"partition_{partition}.lock"


def temporary(name: str) -> str:
    """Name of the file that replaces ``name`` in one rename."""
    return f"{name}.tmp"


def topic_file(topic: str, name: str) -> str:
    """Path of a file of ``topic`` relative to ``log_dir``."""
    return f"{topic}/{name}"


def journal_compaction(number: int) -> str:
    """Name of the file that replaces the journal when it is compacted."""
    return f"{JOURNAL}.compact-{number}"


def aggregate_directory(partition: int) -> str:
    """Name of the directory of aggregate files inside a topic directory."""
    return f"partition_{partition}"


def aggregate_file(partition: int, kind: FileKind) -> str:
    """Name of an aggregate file inside :func:`aggregate_directory`."""
    for suffix, candidate in _IN_PARTITION_DIRECTORY:
        if candidate is kind:
            return f"partition_{partition}_{suffix}"
    raise ValueError(f"{kind} is not an aggregate file")
