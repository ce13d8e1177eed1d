"""The one table of names under ``log_dir``.

Nobody else builds or parses a file name. :func:`classify` says what a relative
path *is called*; what stands there (file, link, pipe) is the walk's business.

Source: journal.md section 8, segments.md section 2, manifest.md section 1.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
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


#: A number in a name is judged by its length before it is converted (decision 31).
_NUMBER = r"(?:0|[1-9][0-9]*)"
_CANONICAL_LOG = re.compile(rf"partition_({_NUMBER})_segment_([0-9]{{20}})\.log(\.deleted)?")


def segment_log(partition: int, base: int) -> str:
    """Name of a segment log inside its topic directory."""
    return f"partition_{partition}_segment_{base:020d}.log"


def segment_index(partition: int, base: int) -> str:
    """Name of the sparse offset index beside :func:`segment_log`."""
    return f"partition_{partition}_segment_{base:020d}.index"
