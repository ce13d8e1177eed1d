"""The one catalogue of findings.

A finding is a sentence about one place in the evidence: *what* is wrong
(``code``), *where* (``path``, byte ``position``, ``length``), what a broker
does about it (``effect``) at which of the five recovery steps (``step``), and
what is lost where that can be known (``lost``).

Every code stands in :data:`CATALOGUE` once, with its default severity, effect
and step, one line of meaning and one line of what to do. ``docs/findings.md``,
the SQL table ``finding_codes`` and the texts of ``cursus-storage`` come from
here. :func:`finding` is the only way to make a finding; it refuses a code that
is not in the catalogue.

Source: spec/README.md decisions 20 and 23.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Literal

Severity = Literal["error", "warning", "info"]
Effect = Literal["refuses", "unknown", "data_missing", "repairs", "recovers", "ignores"]
Step = Literal[1, 2, 3, 4, 5]

#: The five steps of the recovery contract, in order.
STEP_NAMES: Final[Mapping[int, str]] = MappingProxyType(
    {
        1: "topic_manifest",
        2: "topic_storage",
        3: "consumer_metadata",
        4: "transaction_journal",
        5: "checkpoints",
    }
)

#: Worst first; the verdict of a directory is that of its worst effect.
EFFECT_ORDER: Final[tuple[Effect, ...]] = (
    "refuses",
    "unknown",
    "data_missing",
    "repairs",
    "recovers",
    "ignores",
)


@dataclass(frozen=True, slots=True)
class FindingCode:
    """One entry of the catalogue.

    ``also_named`` lists other names that the specification has for the same
    thing (decision 20): they are never raised, but a reader who knows them
    finds this entry.
    """

    code: str
    severity: Severity
    effect: Effect
    step: Step | None
    meaning: str
    action: str
    also_named: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Lost:
    """What is lost, as far as it can be known. ``None`` means not known."""

    bytes: int | None = None
    records: int | None = None
    first_offset: int | None = None
    last_offset: int | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding with its address.

    ``path`` is relative to ``log_dir`` with ``/`` separators; bytes that are
    not UTF-8 are kept by ``surrogateescape``. ``position`` and ``length`` are
    bytes in that file, ``None`` for the entry as a whole. ``detail`` holds the
    facts behind ``message`` under fixed names (``topic``, ``partition``,
    ``group``, ``offset``, ``epoch``, ``revision``, ``transactional_id``,
    ``expected``, ``found``, …) for programs; it is not part of ``--json``.
    """

    code: str
    path: str
    severity: Severity
    effect: Effect
    step: Step | None
    message: str
    action: str
    position: int | None = None
    length: int | None = None
    lost: Lost | None = None
    detail: Mapping[str, object] = field(default_factory=dict, hash=False)


CATALOGUE: dict[str, FindingCode] = {}


def _add(entries: Iterable[FindingCode]) -> None:
    for entry in entries:
        if entry.code in CATALOGUE:
            raise ValueError(f"finding code {entry.code} stands in the catalogue twice")
        CATALOGUE[entry.code] = entry


def finding(
    code: str,
    path: str,
    *,
    position: int | None = None,
    length: int | None = None,
    message: str | None = None,
    severity: Severity | None = None,
    effect: Effect | None = None,
    step: Step | None = None,
    lost: Lost | None = None,
    **detail: object,
) -> Finding:
    """Make a finding of ``code``; whatever is not given comes from the catalogue.

    Raises ``KeyError`` for a code that is not in the catalogue.
    """
    entry = CATALOGUE[code]
    return Finding(
        code=code,
        path=path,
        severity=severity or entry.severity,
        effect=effect or entry.effect,
        step=step if step is not None else entry.step,
        message=message or entry.meaning,
        action=entry.action,
        position=position,
        length=length,
        lost=lost,
        detail=detail,
    )


class FormatError(ValueError):
    """Bytes that a decoder does not accept.

    ``code`` is a catalogue code, ``position`` the byte inside the decoded
    bytes (relative to their start), ``detail`` facts such as ``field``.
    """

    def __init__(
        self, code: str, message: str, *, position: int | None = None, **detail: object
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.position = position
        self.detail = detail


# One block for each subject; a code belongs to exactly one block.

# -- records and segments (segments.md) --------------------------------------
_add(
    [
        FindingCode(
            "torn_record_length",
            "warning",
            "repairs",
            2,
            "The active segment ends in one to three bytes, too few for a length: an append was cut off.",
            "After a crash: nothing, a start cuts them. If the high watermark stands above, acknowledged records are gone: find out what cut the file.",
        ),
        FindingCode(
            "torn_record_body",
            "warning",
            "repairs",
            2,
            "The last frame runs past the end of the file: an append was cut off inside it.",
            "After a crash: nothing, a start cuts it. If the high watermark stands above, acknowledged records are gone: find out what cut the file.",
        ),
        FindingCode(
            "write_in_progress",
            "info",
            "ignores",
            2,
            "An unfinished frame stands at the end of an active segment while a broker uses the directory.",
            "Look again, or stop the broker first: this is most likely an append that was being written.",
        ),
        FindingCode(
            "corrupt_non_tail",
            "error",
            "refuses",
            2,
            "A frame runs past the end of the file, but complete frames stand behind it: this is damage, not a torn tail.",
            "Keep the directory. Do not cut the file: the frames behind would be lost. Then clean bootstrap.",
        ),
        FindingCode(
            "record_length_corrupt",
            "error",
            "refuses",
            2,
            "The length prefix runs past the end of the file, but the record itself ends inside it.",
            "Keep the directory; the record is whole and only its length is wrong. Then clean bootstrap.",
        ),
        FindingCode(
            "record_length_invalid",
            "error",
            "refuses",
            2,
            "A length of zero or above 64 MiB stands where a record should begin.",
            "Look at the bytes with `inspect-db dump`; keep the directory, then clean bootstrap.",
        ),
        FindingCode(
            "unsupported_record_format",
            "error",
            "refuses",
            2,
            "A record does not start with CDM2: an older or newer build wrote it, or the bytes are damaged.",
            "Clean bootstrap with the current broker; storage of other builds is not converted.",
        ),
        FindingCode(
            "record_field_truncated",
            "error",
            "refuses",
            2,
            "A field runs past the end of its record.",
            "Keep the directory, then clean bootstrap.",
        ),
        FindingCode(
            "record_partition_out_of_range",
            "error",
            "refuses",
            2,
            "A record carries a partition number above 2^31-1.",
            "Keep the directory, then clean bootstrap.",
        ),
        FindingCode(
            "record_epoch_out_of_range",
            "error",
            "refuses",
            2,
            "A record carries a producer epoch above 2^63-1.",
            "Keep the directory, then clean bootstrap.",
        ),
        FindingCode(
            "record_trailing_bytes",
            "error",
            "refuses",
            2,
            "Bytes are left over behind the last field of a record.",
            "Keep the directory, then clean bootstrap.",
        ),
        FindingCode(
            "record_checksum_mismatch",
            "error",
            "refuses",
            2,
            "A record of a newer build does not match its CRC32C.",
            "Keep the directory; this broker could not read the record in any case. Then clean bootstrap.",
        ),
        FindingCode(
            "record_identity_mismatch",
            "error",
            "refuses",
            2,
            "A record carries another topic or partition than the file it stands in.",
            "Find out how the file got here (a restore, a copy, a rename). Keep the directory, then clean bootstrap.",
        ),
        FindingCode(
            "segment_first_offset_mismatch",
            "error",
            "refuses",
            2,
            "The first record of a segment does not have the offset that the file name says.",
            "Find out whether the file was renamed or exchanged. Keep the directory, then clean bootstrap.",
            also_named=("record_offset_not_contiguous",),
        ),
        FindingCode(
            "record_offset_not_contiguous",
            "error",
            "refuses",
            2,
            "An offset does not follow the one before it, and no compaction marker allows a gap.",
            "Keep the directory (a compacted log needs its marker beside it), then clean bootstrap.",
            also_named=("record_offset_not_increasing",),
        ),
        FindingCode(
            "segment_offsets_overlap",
            "error",
            "data_missing",
            2,
            "A segment begins at an offset that the segment before it already holds.",
            "Readers get the shared offsets twice. Find the segment that should not be there (a merge, a restore).",
        ),
        FindingCode(
            "segment_offsets_gap",
            "error",
            "data_missing",
            2,
            "Offsets are missing between two segments.",
            "Readers skip them without a word. If retention did not delete them, restore a complete backup.",
        ),
        FindingCode(
            "compaction_marker_invalid",
            "error",
            "refuses",
            2,
            "A compaction marker of the current size is not a regular file with the right content.",
            "Keep the directory; without its marker a compacted log cannot be trusted. Then clean bootstrap.",
            also_named=("compaction_marker_not_regular", "compaction_marker_unreadable"),
        ),
        FindingCode(
            "compaction_marker_stale",
            "info",
            "recovers",
            2,
            "A compaction marker belongs to another size of its log.",
            "Nothing: a start removes it.",
        ),
        FindingCode(
            "compaction_temp_leftover",
            "info",
            "recovers",
            2,
            "A compaction was cut off and left a temporary file.",
            "Nothing: a start removes it; the log itself is intact.",
        ),
        FindingCode(
            "deleted_segment_leftover",
            "info",
            "recovers",
            2,
            "A segment that retention took out of the log has not been removed yet.",
            "Nothing: a start removes it. Never rename it back.",
            also_named=("deleted_segment",),
        ),
        FindingCode(
            "internal_deleted_segment",
            "error",
            "refuses",
            3,
            "A .deleted file stands in __consumer_offsets, where nothing of this era creates one.",
            "Keep the directory and find out who put it there. Then clean bootstrap.",
        ),
        FindingCode(
            "internal_metadata_tail_truncated",
            "error",
            "refuses",
            3,
            "The log of __consumer_offsets ends in an unfinished frame; a start does not cut it.",
            "Everything acknowledged there was synced, so a cut may lose a commit. Keep the directory, then clean bootstrap.",
        ),
        FindingCode(
            "index_entry_not_increasing",
            "info",
            "recovers",
            2,
            "An index entry does not ascend; it and all behind it are not used.",
            "Nothing: the index is advisory, the log decides.",
        ),
        FindingCode(
            "index_entry_beyond_log",
            "info",
            "recovers",
            2,
            "An index entry points behind the end of its log.",
            "Nothing: the index is advisory, the log decides.",
        ),
        FindingCode(
            "index_entry_mismatch",
            "info",
            "ignores",
            2,
            "An index entry points to no record, or to one with another offset.",
            "Nothing: every entry is checked against the log before use.",
        ),
        FindingCode(
            "index_stray_entry",
            "info",
            "recovers",
            2,
            "Bytes stand behind the end of the used part of an index.",
            "Nothing: a start zeroes them.",
        ),
        FindingCode(
            "index_size_unaligned",
            "info",
            "recovers",
            2,
            "The size of an index is not a multiple of 16 bytes.",
            "Nothing: the rest is ignored.",
        ),
        FindingCode(
            "index_missing",
            "info",
            "recovers",
            2,
            "A log has no index.",
            "Nothing: a start creates an empty one; reads scan from the start of the segment.",
        ),
        FindingCode(
            "index_without_log",
            "info",
            "ignores",
            2,
            "An index has no log.",
            "Find out where the log went: an index is of no use without it.",
        ),
        FindingCode(
            "encode_field_too_long",
            "error",
            "refuses",
            None,
            "A field is longer than its length prefix can say.",
            "Shorten the value; nothing was written.",
        ),
        FindingCode(
            "encode_partition_negative",
            "error",
            "refuses",
            None,
            "A record with a negative partition cannot be encoded.",
            "Correct the caller; nothing was written.",
        ),
        FindingCode(
            "encode_epoch_negative",
            "error",
            "refuses",
            None,
            "A record with a negative epoch cannot be encoded.",
            "Correct the caller; nothing was written.",
        ),
        FindingCode(
            "record_too_large",
            "error",
            "refuses",
            None,
            "A record is over 64 MiB.",
            "Split the value; nothing was written.",
        ),
        FindingCode(
            "encode_value_out_of_range",
            "error",
            "refuses",
            None,
            "A number of a record does not fit its field.",
            "Correct the caller; nothing was written.",
        ),
    ]
)

# -- what an open partition log refuses or fails at (segments.md sections 8, 11, 15 to 17) ------
_add(
    [
        FindingCode(
            "partition_write_unavailable",
            "error",
            "ignores",
            None,
            "A write, flush or fsync of this partition failed; it takes no writes until it is opened again.",
            "Look at the disk and the system's log, then restart the broker: recovery says what is on the disk.",
        ),
        FindingCode(
            "storage_locked",
            "error",
            "refuses",
            None,
            "Another process holds the lock of this storage.",
            "Stop the other process, or use another directory; never delete a lock file.",
        ),
        FindingCode(
            "offset_out_of_range",
            "error",
            "ignores",
            None,
            "The offset lies before the start of the log or behind its end.",
            "Go on at the earliest or the latest offset that the answer names.",
        ),
    ]
)

# -- manifest, topics, directories, archive (manifest.md) --------------------
_add(
    [
        FindingCode(
            "manifest_json_invalid",
            "error",
            "refuses",
            1,
            "The topic manifest is not the JSON document that it should be.",
            "Keep the directory, then clean bootstrap; a manifest is never written by hand.",
        ),
        FindingCode(
            "manifest_unknown_field",
            "error",
            "refuses",
            1,
            "The topic manifest has a field that this version does not know.",
            "Keep the directory, then clean bootstrap; a manifest is never written by hand.",
            also_named=("key_case_mismatch",),
        ),
        FindingCode(
            "duplicate_key",
            "error",
            "refuses",
            1,
            "A JSON document has one key twice in one object; a document with two answers has none.",
            "Keep the directory and find out what wrote the document; no broker does. Then clean bootstrap.",
        ),
        FindingCode(
            "manifest_trailing_content",
            "error",
            "refuses",
            1,
            "Something follows the value of the topic manifest.",
            "The end of an older, longer version is the usual cause (an edit in place). Keep the directory, then clean bootstrap.",
        ),
        FindingCode(
            "manifest_version_unsupported",
            "error",
            "refuses",
            1,
            "The topic manifest has another version than 3.",
            "Clean bootstrap with the current broker; older storage is not converted.",
        ),
        FindingCode(
            "manifest_too_large",
            "error",
            "refuses",
            1,
            "The topic manifest is over 16 MiB.",
            "Keep the directory, then clean bootstrap; a manifest is never written by hand.",
        ),
        FindingCode(
            "manifest_not_regular_file",
            "error",
            "refuses",
            1,
            "The topic manifest is not a regular file.",
            "Put the real file in its place from the same moment, or clean bootstrap. Inspection follows no link.",
            also_named=("manifest_unreadable",),
        ),
        FindingCode(
            "manifest_missing_with_persisted_topics",
            "error",
            "refuses",
            1,
            "There are topic logs, but no manifest that declares them.",
            "If a create was cut off, archive the empty directory; otherwise restore a complete backup or clean bootstrap.",
            also_named=("manifest_missing_with_storage",),
        ),
        FindingCode(
            "topic_revision_missing",
            "error",
            "refuses",
            1,
            "A topic of the manifest has no revision.",
            "Keep the directory, then clean bootstrap; a manifest is never written by hand.",
        ),
        FindingCode(
            "topic_lifecycle_epoch_missing",
            "error",
            "refuses",
            1,
            "A topic of the manifest has no lifecycle epoch.",
            "Keep the directory, then clean bootstrap; a manifest is never written by hand.",
        ),
        FindingCode(
            "topic_replication_factor_missing",
            "error",
            "refuses",
            1,
            "A topic of the manifest has no replication factor.",
            "Keep the directory, then clean bootstrap; a manifest is never written by hand.",
        ),
        FindingCode(
            "partitions_invalid",
            "error",
            "refuses",
            1,
            "A topic of the manifest has no partitions.",
            "Keep the directory, then clean bootstrap; a manifest is never written by hand.",
        ),
        FindingCode(
            "replication_factor_invalid",
            "error",
            "refuses",
            1,
            "A replication factor is negative.",
            "Keep the directory, then clean bootstrap; a manifest is never written by hand.",
        ),
        FindingCode(
            "topic_name_empty",
            "error",
            "refuses",
            1,
            "A topic has no name.",
            "Keep the directory, then clean bootstrap; a manifest is never written by hand.",
        ),
        FindingCode(
            "topic_name_too_long",
            "error",
            "refuses",
            1,
            "A topic name has more than 249 bytes.",
            "Keep the directory, then clean bootstrap; a manifest is never written by hand.",
        ),
        FindingCode(
            "topic_name_reserved",
            "error",
            "refuses",
            1,
            "A topic is called . or .., which are directories.",
            "Keep the directory, then clean bootstrap; a manifest is never written by hand.",
        ),
        FindingCode(
            "topic_name_invalid_character",
            "error",
            "refuses",
            1,
            "A topic name holds a character that no topic name may hold.",
            "Keep the directory, then clean bootstrap; a manifest is never written by hand.",
        ),
        FindingCode(
            "topic_duplicate",
            "error",
            "refuses",
            1,
            "A topic is declared twice.",
            "Keep the directory, then clean bootstrap; a manifest is never written by hand.",
        ),
        FindingCode(
            "cleanup_policy_invalid",
            "error",
            "refuses",
            1,
            "A cleanup policy is neither delete nor compact nor both.",
            "Keep the directory, then clean bootstrap; a manifest is never written by hand.",
        ),
        FindingCode(
            "partitioner_invalid",
            "error",
            "refuses",
            1,
            "A partitioner is neither hash_key nor round_robin.",
            "Keep the directory, then clean bootstrap; a manifest is never written by hand.",
        ),
        FindingCode(
            "auth_policy_invalid",
            "error",
            "refuses",
            1,
            "An authorization policy is unknown.",
            "Keep the directory, then clean bootstrap; a manifest is never written by hand.",
        ),
        FindingCode(
            "retention_hours_negative",
            "error",
            "refuses",
            1,
            "A time retention is negative.",
            "Keep the directory, then clean bootstrap; a manifest is never written by hand.",
        ),
        FindingCode(
            "retention_bytes_negative",
            "error",
            "refuses",
            1,
            "A size retention is negative.",
            "Keep the directory, then clean bootstrap; a manifest is never written by hand.",
        ),
        FindingCode(
            "min_in_sync_replicas_invalid",
            "error",
            "refuses",
            1,
            "min_in_sync_replicas is below 1.",
            "Keep the directory, then clean bootstrap; a manifest is never written by hand.",
        ),
        FindingCode(
            "event_topic_retention_forbidden",
            "error",
            "refuses",
            1,
            "An event-sourcing topic has a retention limit; its history must stay complete.",
            "Keep the directory, then clean bootstrap; a manifest is never written by hand.",
        ),
        FindingCode(
            "event_topic_compaction_forbidden",
            "error",
            "refuses",
            1,
            "An event-sourcing topic is compacted; its history must stay complete.",
            "Keep the directory, then clean bootstrap; a manifest is never written by hand.",
        ),
        FindingCode(
            "internal_topic_contract_mismatch",
            "error",
            "refuses",
            1,
            "__consumer_offsets is declared with another mode or policy than its fixed one.",
            "A wrong policy is replaced in memory; a wrong mode refuses: keep the directory, then clean bootstrap.",
        ),
        FindingCode(
            "partitions_decrease_forbidden",
            "error",
            "refuses",
            None,
            "A topic cannot lose partitions.",
            "Create another topic; nothing was changed.",
        ),
        FindingCode(
            "replication_factor_immutable",
            "error",
            "refuses",
            None,
            "The replication factor of a topic cannot change.",
            "Create another topic; nothing was changed.",
        ),
        FindingCode(
            "idempotent_immutable",
            "error",
            "refuses",
            None,
            "Whether a topic is idempotent cannot change.",
            "Create another topic; nothing was changed.",
        ),
        FindingCode(
            "event_sourcing_immutable",
            "error",
            "refuses",
            None,
            "Whether a topic is event-sourcing cannot change.",
            "Create another topic; nothing was changed.",
        ),
        FindingCode(
            "revision_overflow",
            "error",
            "refuses",
            None,
            "The revision of a topic cannot grow any more.",
            "Create another topic; nothing was changed.",
        ),
        FindingCode(
            "topic_capacity_exceeded",
            "error",
            "refuses",
            1,
            "The manifest declares more topics or partitions than the configuration allows.",
            "Raise max_topics, max_partitions or max_partitions_per_topic in the broker's configuration.",
        ),
        FindingCode(
            "undeclared_persisted_topic",
            "error",
            "refuses",
            2,
            "A directory holds topic logs, but the manifest does not declare the topic.",
            "With every writer stopped, move it away: `cursus-storage orphan archive … --dry-run` first.",
            also_named=("orphan_topic_directory",),
        ),
        FindingCode(
            "declared_topic_storage_missing",
            "error",
            "refuses",
            2,
            "The manifest declares a topic that has no directory.",
            "Restore a complete backup of one moment, or clean bootstrap; an empty directory is never made up.",
            also_named=("topic_storage_missing",),
        ),
        FindingCode(
            "declared_topic_storage_not_directory",
            "error",
            "refuses",
            2,
            "Where the directory of a declared topic should be stands something else.",
            "Put the real directory in its place from the same moment, or clean bootstrap.",
        ),
        FindingCode(
            "segment_name_not_canonical",
            "error",
            "refuses",
            2,
            "A log has a name that is not partition_<p>_segment_<20 digits>.log.",
            "Find out who renamed it. Keep the directory, then clean bootstrap.",
            also_named=(
                "segment_name_noncanonical",
                "declared_topic_segment_name_noncanonical",
            ),
        ),
        FindingCode(
            "not_regular_file",
            "error",
            "refuses",
            2,
            "Where a log, an active index or a lock file should be stands something that is not a regular file.",
            "Put the real file in its place from the same moment, or clean bootstrap.",
            also_named=(
                "declared_topic_segment_not_regular",
                "segment_not_regular",
            ),
        ),
        FindingCode(
            "segment_id_out_of_range",
            "error",
            "refuses",
            2,
            "The name of a log holds a partition above 2^31-1 or a base above 2^64-1.",
            "Find out who made it. Keep the directory, then clean bootstrap.",
            also_named=("segment_number_out_of_range",),
        ),
        FindingCode(
            "declared_topic_partition_out_of_range",
            "error",
            "refuses",
            2,
            "A log belongs to a partition that the manifest does not declare.",
            "A growth that was cut off leaves empty files: remove them by hand after a snapshot. Otherwise clean bootstrap.",
        ),
        FindingCode(
            "declared_topic_partition_missing",
            "error",
            "refuses",
            2,
            "A declared partition has no active log.",
            "Restore a complete backup of one moment, or clean bootstrap.",
            also_named=("partition_log_missing",),
        ),
        FindingCode(
            "topic_entry_symlink",
            "warning",
            "ignores",
            2,
            "A topic directory that nobody declares is a symbolic link.",
            "Nothing for a start: a broker ignores it. It is not followed.",
            also_named=("topic_directory_symlink",),
        ),
        FindingCode(
            "lifecycle_reset_pending",
            "error",
            "refuses",
            2,
            "The manifest says that the topic was truncated; the marker that says 'done' is missing or older.",
            "Nothing is deleted. If hidden files were not copied, restore .cursus_lifecycle_epoch from the same moment.",
            also_named=("topic_truncation_pending",),
        ),
        FindingCode(
            "lifecycle_marker_invalid",
            "error",
            "refuses",
            2,
            "The lifecycle marker of a topic is not a number above 0.",
            "Restore .cursus_lifecycle_epoch from the same moment, or clean bootstrap.",
        ),
        FindingCode(
            "lifecycle_marker_ahead",
            "error",
            "refuses",
            2,
            "The lifecycle marker of a topic is ahead of the manifest: the manifest is the older of the two.",
            "Restore manifest and topics of one moment, or clean bootstrap.",
        ),
        FindingCode(
            "lifecycle_pending_revision_invalid",
            "error",
            "refuses",
            2,
            "A topic is to be truncated but never had an earlier definition.",
            "Keep the directory, then clean bootstrap.",
        ),
        FindingCode(
            "truncation_resumable",
            "info",
            "recovers",
            2,
            "A truncation was cut off after its decision: the directory is to be emptied.",
            "Nothing: a start finishes it, as was decided. Take a snapshot first if the records are still wanted.",
        ),
    ]
)

# -- refusals of cursus-storage (manifest.md sections 3.2, 8.8, 9) -----------------
# What a command says of itself: a start is another matter, so none of them has a step.
_add(
    [
        FindingCode(
            "log_dir_blank",
            "error",
            "ignores",
            None,
            "No log directory was given.",
            "Give its path with --log-dir.",
        ),
        FindingCode(
            "log_dir_unreadable",
            "error",
            "ignores",
            None,
            "The log directory does not exist or cannot be listed.",
            "Check the path, and run as an account that may read it; nothing was created.",
        ),
        FindingCode(
            "log_dir_not_real_directory",
            "error",
            "ignores",
            None,
            "The log directory is a link or not a directory.",
            "Give the real path; the last component of it is never followed.",
        ),
        FindingCode(
            "log_dir_in_use",
            "error",
            "ignores",
            None,
            "A broker uses the directory, or its lock cannot be tested.",
            "Stop every writer first; nothing was moved.",
        ),
        FindingCode(
            "manifest_absent",
            "error",
            "ignores",
            None,
            "There is no topic manifest, so nothing can be said to be undeclared.",
            "Use `manifest inspect` to see what stands there.",
        ),
        FindingCode(
            "topic_count_mismatch",
            "error",
            "ignores",
            None,
            "The copy holds another number of topics than its manifest declares.",
            "Do not restore it; take a copy of one moment.",
        ),
        FindingCode(
            "partition_count_mismatch",
            "error",
            "ignores",
            None,
            "A topic of the copy holds another number of partitions than its manifest declares.",
            "Do not restore it; take a copy of one moment.",
        ),
        FindingCode(
            "partition_ids_not_contiguous",
            "error",
            "ignores",
            None,
            "The partitions of a topic of the copy are not numbered from 0 without a gap.",
            "Do not restore it; take a copy of one moment.",
        ),
        FindingCode(
            "storage_has_problems",
            "error",
            "ignores",
            None,
            "The inventory of the copy lists problems.",
            "Look at them with `manifest inspect`; do not restore the copy.",
        ),
        FindingCode(
            "topic_declared_in_manifest",
            "error",
            "ignores",
            None,
            "The manifest declares the topic that is to be archived.",
            "Nothing was moved: a declared topic is no orphan.",
        ),
        FindingCode(
            "topic_not_orphan_candidate",
            "error",
            "ignores",
            None,
            "There is no directory of that name that holds topic logs.",
            "Nothing was moved. `orphan inspect` lists the candidates.",
        ),
        FindingCode(
            "archive_dir_blank",
            "error",
            "ignores",
            None,
            "No archive directory was given.",
            "Give its path with --archive-dir.",
        ),
        FindingCode(
            "archive_dir_not_real_directory",
            "error",
            "ignores",
            None,
            "The archive directory is a link or not a directory.",
            "Nothing was moved. Give the path of a real directory, or one that does not exist yet.",
        ),
        FindingCode(
            "archive_dir_inside_log_dir",
            "error",
            "ignores",
            None,
            "The archive directory is the log directory or lies in it.",
            "Nothing was moved. Choose a place outside the log directory.",
        ),
        FindingCode(
            "archive_dir_resolves_inside_log_dir",
            "error",
            "ignores",
            None,
            "The archive directory leads into the log directory by a link.",
            "Nothing was moved. Choose a place outside the log directory.",
        ),
        FindingCode(
            "archive_dir_unresolvable",
            "error",
            "ignores",
            None,
            "It cannot be told where the archive directory really is.",
            "Nothing was moved. Check the links and permissions on the way to it.",
        ),
        FindingCode(
            "archive_destination_exists",
            "error",
            "ignores",
            None,
            "Something stands in the archive under that name.",
            "Nothing was moved or replaced. Choose another archive directory.",
        ),
        FindingCode(
            "archive_dir_create_failed",
            "error",
            "ignores",
            None,
            "The archive directory cannot be created.",
            "Nothing was moved. Check permissions and space there.",
        ),
        FindingCode(
            "storage_changed_during_validation",
            "error",
            "ignores",
            None,
            "The log directory changed while it was being checked.",
            "Nothing was moved. Stop every writer and try again.",
        ),
        FindingCode(
            "archive_rename_failed",
            "error",
            "ignores",
            None,
            "The directory cannot be moved by one rename; another file system is the usual cause.",
            "Nothing was moved. Choose an archive directory on the same file system.",
        ),
        FindingCode(
            "archive_sync_failed",
            "error",
            "ignores",
            None,
            "The directory was moved, but it is not certain that a power failure would keep it so.",
            "Look at the device, then check both places after the next restart.",
        ),
        FindingCode(
            "exclusive_rename_unsupported",
            "error",
            "ignores",
            None,
            "This system has no rename that refuses to replace.",
            "Nothing was moved. Archive on a system and file system that have it.",
        ),
    ]
)

# -- consumer metadata (consumer-metadata.md) --------------------------------
_add(
    [
        FindingCode(
            "invalid_json",
            "error",
            "refuses",
            3,
            "The payload of a consumer record is not one JSON value.",
            "Keep the directory, then clean bootstrap.",
        ),
        FindingCode(
            "invalid_field_type",
            "error",
            "refuses",
            3,
            "A field of a consumer record has the wrong type or is out of range.",
            "Keep the directory, then clean bootstrap.",
        ),
        FindingCode(
            "unversioned_record",
            "error",
            "refuses",
            3,
            "A consumer record has no version: a broker from before August wrote it.",
            "Clean bootstrap; old offsets are not converted. The inspector shows them as history.",
            also_named=("consumer_payload_unversioned",),
        ),
        FindingCode(
            "invalid_version_type",
            "error",
            "refuses",
            3,
            "The version of a consumer record is not an integer.",
            "Keep the directory, then clean bootstrap.",
        ),
        FindingCode(
            "version_mismatch",
            "error",
            "refuses",
            3,
            "A consumer record has its version twice, in different spelling.",
            "Keep the directory, then clean bootstrap.",
        ),
        FindingCode(
            "unknown_field",
            "error",
            "refuses",
            3,
            "A consumer record has a field that version 1 does not know.",
            "Keep the directory, then clean bootstrap.",
        ),
        FindingCode(
            "unsupported_record_version",
            "error",
            "refuses",
            3,
            "A consumer record has another version than 1.",
            "Keep the directory, then clean bootstrap.",
        ),
        FindingCode(
            "newer_record_version",
            "info",
            "ignores",
            3,
            "A consumer record was written by a later release.",
            "Start the release that wrote it, or clean bootstrap with this one.",
        ),
        FindingCode(
            "missing_group_or_epoch",
            "error",
            "refuses",
            3,
            "A consumer record has no group or no epoch.",
            "Keep the directory, then clean bootstrap.",
        ),
        FindingCode(
            "unsupported_record_type",
            "error",
            "refuses",
            3,
            "A consumer record has a type that version 1 does not know.",
            "Keep the directory, then clean bootstrap.",
        ),
        FindingCode(
            "registration_missing_topic_or_partitions",
            "error",
            "refuses",
            3,
            "A group registration has no topic or no partition count.",
            "Keep the directory, then clean bootstrap.",
        ),
        FindingCode(
            "registration_has_offset_fields",
            "error",
            "refuses",
            3,
            "A group registration carries fields of an offset snapshot.",
            "Keep the directory, then clean bootstrap.",
        ),
        FindingCode(
            "registration_empty_offset_topic",
            "error",
            "refuses",
            3,
            "The initial offsets of a registration name no topic.",
            "Keep the directory, then clean bootstrap.",
        ),
        FindingCode(
            "registration_offset_topic_mismatch",
            "error",
            "refuses",
            3,
            "The initial offsets of a registration are for a topic that is not the group's.",
            "Keep the directory, then clean bootstrap.",
        ),
        FindingCode(
            "registration_duplicate_offset_topic",
            "error",
            "refuses",
            3,
            "The initial offsets of a registration name a topic twice.",
            "Keep the directory, then clean bootstrap.",
        ),
        FindingCode(
            "snapshot_missing_fields",
            "error",
            "refuses",
            3,
            "An offset snapshot has no topic, no revision or no offsets.",
            "Keep the directory, then clean bootstrap.",
        ),
        FindingCode(
            "snapshot_has_registration_fields",
            "error",
            "refuses",
            3,
            "An offset snapshot carries fields of a registration.",
            "Keep the directory, then clean bootstrap.",
        ),
        FindingCode(
            "tombstone_has_live_fields",
            "error",
            "refuses",
            3,
            "A group tombstone carries fields of a live group.",
            "Keep the directory, then clean bootstrap.",
        ),
        FindingCode(
            "negative_offset_partition",
            "error",
            "refuses",
            3,
            "A committed offset is for a negative partition.",
            "Keep the directory, then clean bootstrap.",
        ),
        FindingCode(
            "offset_partition_out_of_range",
            "error",
            "refuses",
            3,
            "An initial offset is for a partition that the registration does not have.",
            "Keep the directory, then clean bootstrap.",
        ),
        FindingCode(
            "duplicate_offset_partition",
            "error",
            "refuses",
            3,
            "A record commits two offsets for one partition.",
            "Keep the directory, then clean bootstrap.",
        ),
        FindingCode(
            "timestamp_out_of_range",
            "error",
            "refuses",
            None,
            "A timestamp lies outside the years 0 to 9999 and cannot be written.",
            "Keep the directory, then clean bootstrap.",
        ),
        FindingCode(
            "record_key_mismatch",
            "error",
            "refuses",
            3,
            "The key of a consumer record is not the one that its group and topic give.",
            "Keep the directory, then clean bootstrap.",
        ),
        FindingCode(
            "record_offset_not_increasing",
            "error",
            "refuses",
            3,
            "The reader met an offset again, or a lower one.",
            "Keep the directory, then clean bootstrap.",
        ),
        FindingCode(
            "log_reader_no_progress",
            "error",
            "refuses",
            3,
            "The last offset of the log is 2^64-1; nothing can follow it.",
            "Keep the directory, then clean bootstrap.",
        ),
        FindingCode(
            "lifecycle_conflict",
            "error",
            "refuses",
            3,
            "Two different lifecycle records of one group have the same epoch.",
            "Keep the directory, then clean bootstrap.",
        ),
        FindingCode(
            "offset_snapshot_conflict",
            "error",
            "refuses",
            3,
            "Two different snapshots have the same group, topic, epoch and revision.",
            "Keep the directory, then clean bootstrap.",
        ),
        FindingCode(
            "snapshot_topic_mismatch",
            "error",
            "refuses",
            3,
            "An offset snapshot is for a topic that the group does not consume.",
            "Keep the directory, then clean bootstrap.",
        ),
        FindingCode(
            "snapshot_partition_out_of_range",
            "error",
            "refuses",
            3,
            "An offset snapshot has a partition that the group does not have.",
            "Keep the directory, then clean bootstrap.",
        ),
        FindingCode(
            "initial_offset_revision_conflict",
            "error",
            "refuses",
            3,
            "A snapshot and the initial offsets of a registration differ under one revision.",
            "Keep the directory, then clean bootstrap.",
        ),
        FindingCode(
            "snapshot_dropped_partition",
            "error",
            "refuses",
            3,
            "A later snapshot lacks a partition that an earlier one had committed.",
            "Keep the directory, then clean bootstrap.",
        ),
        FindingCode(
            "snapshot_offset_regression",
            "error",
            "refuses",
            3,
            "A later snapshot moves a committed offset back.",
            "Keep the directory, then clean bootstrap.",
        ),
        FindingCode(
            "internal_topic_discovery_failed",
            "error",
            "refuses",
            3,
            "The partitions of __consumer_offsets cannot be listed.",
            "Keep the directory, then clean bootstrap.",
        ),
        FindingCode(
            "internal_topic_invalid",
            "error",
            "refuses",
            3,
            "__consumer_offsets is not declared or stored as it must be.",
            "Keep the directory, then clean bootstrap.",
        ),
        FindingCode(
            "log_start_unavailable",
            "error",
            "refuses",
            3,
            "The start of a partition of __consumer_offsets cannot be told.",
            "Keep the directory, then clean bootstrap.",
        ),
        FindingCode(
            "log_read_failed",
            "error",
            "refuses",
            3,
            "A partition of __consumer_offsets cannot be read to its end.",
            "Keep the directory, then clean bootstrap.",
        ),
        FindingCode(
            "log_starts_at",
            "info",
            "ignores",
            3,
            "A partition of __consumer_offsets begins above offset 0, which compaction may cause.",
            "Nothing, unless a registration is missing as well: then a segment may be lost.",
        ),
        FindingCode(
            "group_topic_missing",
            "warning",
            "ignores",
            3,
            "A group lives on although its topic is not declared.",
            "The topic name cannot be created until the group is cleaned up: DELETE the topic with if_exists=true.",
        ),
        FindingCode(
            "group_partition_count_differs",
            "warning",
            "ignores",
            3,
            "A group was registered with another number of partitions than its topic has.",
            "Delete the group and register it again; until then it consumes the partitions it knows.",
        ),
        FindingCode(
            "committed_offset_out_of_range",
            "warning",
            "ignores",
            3,
            "A committed offset lies outside the log of its partition.",
            "The consumer gets OFFSET_OUT_OF_RANGE; decide where it goes on. It hints at data lost or restored from another moment.",
        ),
        FindingCode(
            "unexpected_partition",
            "warning",
            "ignores",
            3,
            "A consumer record stands in a partition where no partition count puts its key.",
            "Find out who wrote it; brokers do not check the placement.",
        ),
        FindingCode(
            "offsets_without_registration",
            "warning",
            "ignores",
            3,
            "Offsets of a group are there, but no record that says the group exists.",
            "The group is gone at start. Its registration must take an epoch above the offsets', or they come back to life.",
        ),
        FindingCode(
            "distributed_internal_metadata",
            "info",
            "ignores",
            3,
            "A raft directory stands beside the logs: there __consumer_offsets is not authoritative.",
            "Start the cluster that wrote this directory; a standalone broker does not read raft state.",
        ),
    ]
)

# -- journal, transactions, checkpoints, aggregates (journal.md) -------------
_add(
    [
        FindingCode(
            "journal_not_regular",
            "error",
            "refuses",
            4,
            "Where the transaction journal should be stands something that is not a regular file.",
            "Put the real file in its place from the same moment, or clean bootstrap.",
            also_named=("journal_symlink",),
        ),
        FindingCode(
            "journal_frame_truncated",
            "warning",
            "repairs",
            4,
            "The last frame of the journal is unfinished: an append was cut off.",
            "Nothing: a start cuts it; it was never acknowledged.",
            also_named=("journal_torn_tail", "journal_first_record_incomplete"),
        ),
        FindingCode(
            "journal_corrupt_non_tail",
            "error",
            "refuses",
            4,
            "A frame runs past the end of the journal, but it is not a torn tail.",
            "Keep the directory. Do not cut the file: acknowledged decisions stand behind. Then clean bootstrap.",
            also_named=("journal_frame_length_corrupt",),
        ),
        FindingCode(
            "journal_frame_length_invalid",
            "error",
            "refuses",
            4,
            "A length of zero or above 32 MiB stands where a frame should begin.",
            "Keep the directory, then clean bootstrap.",
        ),
        FindingCode(
            "journal_frame_checksum_mismatch",
            "error",
            "refuses",
            4,
            "A frame of the journal does not match its CRC-32.",
            "In the last frame: nothing, a start cuts it. Earlier: keep the directory, then clean bootstrap.",
        ),
        FindingCode(
            "journal_payload_json_invalid",
            "error",
            "refuses",
            4,
            "A frame of the journal is whole but does not hold the JSON that it should.",
            "Keep the directory, then clean bootstrap.",
        ),
        FindingCode(
            "journal_payload_unknown_field",
            "error",
            "refuses",
            4,
            "A member of a journal frame is spelled in another case.",
            "Keep the directory and find out what wrote the frame; no broker does. Then clean bootstrap.",
        ),
        FindingCode(
            "journal_payload_too_large",
            "error",
            "refuses",
            None,
            "A journal frame would be over 32 MiB.",
            "Commit smaller transactions; nothing was written.",
        ),
        FindingCode(
            "journal_version_unsupported",
            "error",
            "refuses",
            4,
            "A journal frame has another version than 1.",
            "Start the release that wrote it, or clean bootstrap; later journals are not converted.",
        ),
        FindingCode(
            "journal_transaction_missing",
            "error",
            "refuses",
            4,
            "A journal frame holds no transaction.",
            "Keep the directory, then clean bootstrap.",
        ),
        FindingCode(
            "journal_epoch_negative",
            "error",
            "refuses",
            4,
            "A transaction of the journal has a negative epoch.",
            "Keep the directory, then clean bootstrap.",
        ),
        FindingCode(
            "journal_watermark_record_invalid",
            "error",
            "refuses",
            4,
            "A producer-epoch watermark stands beside another body or in version 1.",
            "Keep the directory, then clean bootstrap.",
        ),
        FindingCode(
            "journal_watermark_out_of_range",
            "error",
            "refuses",
            4,
            "A producer-epoch watermark is above 2^63.",
            "Keep the directory, then clean bootstrap.",
        ),
        FindingCode(
            "journal_delta_invalid",
            "error",
            "refuses",
            4,
            "A delta of the journal is malformed.",
            "Keep the directory, then clean bootstrap.",
        ),
        FindingCode(
            "journal_delta_epoch_negative",
            "error",
            "refuses",
            4,
            "A delta of the journal has a negative epoch.",
            "Keep the directory, then clean bootstrap.",
        ),
        FindingCode(
            "journal_delta_no_baseline",
            "error",
            "refuses",
            4,
            "A delta of the journal has no state to build on.",
            "Keep the directory, then clean bootstrap.",
        ),
        FindingCode(
            "journal_delta_base_mismatch",
            "error",
            "refuses",
            4,
            "A delta of the journal builds on another state than the one there.",
            "Keep the directory, then clean bootstrap.",
        ),
        FindingCode(
            "journal_delta_metadata_not_empty",
            "error",
            "refuses",
            4,
            "A delta of the journal carries collections where none belong.",
            "Keep the directory, then clean bootstrap.",
        ),
        FindingCode(
            "journal_envelope_unknown_member",
            "warning",
            "ignores",
            4,
            "A version-2 frame has members that this reader does not know; its transaction may be partial.",
            "Start the release that wrote it, or clean bootstrap.",
        ),
        FindingCode(
            "journal_manifest_missing",
            "warning",
            "ignores",
            4,
            "A journal of a later release has no manifest beside it.",
            "Nothing: a broker never reads that manifest.",
        ),
        FindingCode(
            "journal_manifest_json_invalid",
            "warning",
            "ignores",
            4,
            "The journal manifest is not JSON.",
            "Nothing: a broker never reads that manifest.",
        ),
        FindingCode(
            "journal_manifest_checksum_mismatch",
            "warning",
            "ignores",
            4,
            "The journal manifest does not match its checksum.",
            "Nothing: a broker never reads that manifest.",
        ),
        FindingCode(
            "journal_manifest_stale",
            "warning",
            "ignores",
            4,
            "The journal manifest does not describe this journal.",
            "Nothing: a broker never reads that manifest.",
        ),
        FindingCode(
            "journal_manifest_state_mismatch",
            "warning",
            "ignores",
            4,
            "The state in the journal manifest is wrong.",
            "Nothing: a broker never reads that manifest.",
        ),
        FindingCode(
            "txn_identity_invalid",
            "error",
            "refuses",
            4,
            "A transaction has no id or no producer.",
            "Keep the directory, then clean bootstrap.",
        ),
        FindingCode(
            "txn_epoch_negative",
            "error",
            "refuses",
            4,
            "A transaction has a negative epoch.",
            "Keep the directory, then clean bootstrap.",
        ),
        FindingCode(
            "txn_revision_missing",
            "error",
            "refuses",
            4,
            "A transaction has no revision: a build from before revisions wrote it.",
            "Keep the directory, then clean bootstrap.",
        ),
        FindingCode(
            "txn_reservation_pending_invalid",
            "error",
            "refuses",
            4,
            "A transaction of a later release is frozen for offsets that it does not have.",
            "Keep the directory, then clean bootstrap.",
        ),
        FindingCode(
            "txn_state_invalid",
            "error",
            "refuses",
            4,
            "A transaction is in a state that this broker does not know.",
            "Keep the directory, then clean bootstrap.",
        ),
        FindingCode(
            "txn_timestamps_invalid",
            "error",
            "refuses",
            4,
            "The times of a transaction are missing or in the wrong order.",
            "Keep the directory, then clean bootstrap.",
        ),
        FindingCode(
            "txn_recovery_pending",
            "info",
            "recovers",
            4,
            "A transaction was decided and not finished.",
            "Nothing: a start writes what is missing and finishes it.",
        ),
        FindingCode(
            "txn_reference_missing",
            "error",
            "refuses",
            4,
            "A transaction refers to a topic or partition that is not declared.",
            "If it is committing, a start cannot finish it: restore a complete backup of one moment, or clean bootstrap.",
        ),
        FindingCode(
            "txn_marker_decision_conflict",
            "warning",
            "ignores",
            4,
            "A marker in a log says something else than the journal.",
            "The decision of the journal counts for readers. Find out which of the two files is from another moment.",
        ),
        FindingCode(
            "txn_record_unresolved",
            "warning",
            "ignores",
            4,
            "A transactional record waits for a decision that nobody can make any more.",
            "Committed readers stop before it for good. Restore the journal of the same moment, or clean bootstrap.",
        ),
        FindingCode(
            "txn_expiry_due",
            "info",
            "recovers",
            4,
            "Finished transactions are older than their expiration.",
            "Nothing: a start turns them into tombstones or removes them.",
        ),
        FindingCode(
            "hwm_checkpoint_missing",
            "info",
            "ignores",
            5,
            "A partition has no high-watermark checkpoint.",
            "Nothing: a start takes the end of the log.",
        ),
        FindingCode(
            "hwm_checkpoint_invalid",
            "warning",
            "recovers",
            5,
            "A high-watermark checkpoint is not a number.",
            "Nothing: a start takes the end of the log and writes it again.",
            also_named=("hwm_invalid",),
        ),
        FindingCode(
            "hwm_checkpoint_ahead_of_log",
            "warning",
            "repairs",
            5,
            "A high-watermark checkpoint is above the end of its log.",
            "A start lowers it. Unless it follows from a cut tail, look for records that are gone.",
            also_named=(
                "hwm_beyond_log_end",
                "hwm_ahead_of_log",
            ),
        ),
        FindingCode(
            "hwm_checkpoint_behind_log",
            "info",
            "recovers",
            5,
            "A high-watermark checkpoint is below the end of its log.",
            "Nothing: a start raises it; the records are all there.",
        ),
        FindingCode(
            "internal_metadata_tail_lost",
            "error",
            "refuses",
            5,
            "The high watermark of a partition of __consumer_offsets is above its log: acknowledged records are gone.",
            "Keep the directory. Restore a complete backup of one moment, or clean bootstrap.",
        ),
        FindingCode(
            "checkpoint_not_regular",
            "error",
            "refuses",
            5,
            "Where a checkpoint should be stands something that is not a regular file.",
            "Move it away by hand after a look; a broker could never replace it.",
        ),
        FindingCode(
            "producer_checkpoint_invalid",
            "warning",
            "recovers",
            5,
            "A producer checkpoint cannot be decoded.",
            "Nothing: a start scans the log; only producers whose records are gone are forgotten.",
            also_named=("checkpoint_invalid",),
        ),
        FindingCode(
            "producer_checkpoint_version_unsupported",
            "warning",
            "recovers",
            5,
            "A producer checkpoint has a version that nobody reads.",
            "Nothing: a start scans the log; only producers whose records are gone are forgotten.",
        ),
        FindingCode(
            "producer_checkpoint_producers_missing",
            "warning",
            "recovers",
            5,
            "A producer checkpoint holds no producers.",
            "Nothing: a start scans the log.",
        ),
        FindingCode(
            "stream_index_entry_torn",
            "warning",
            "recovers",
            5,
            "The index of an aggregate ends in an unfinished entry.",
            "Nothing: a start rebuilds it from the log.",
        ),
        FindingCode(
            "stream_index_hash_unknown",
            "warning",
            "recovers",
            5,
            "An entry of the aggregate index has a hash that no key has.",
            "Nothing: a start rebuilds it from the log.",
        ),
        FindingCode(
            "stream_keys_torn",
            "warning",
            "recovers",
            5,
            "The keys of the aggregate index end in an unfinished record.",
            "Nothing: a start rebuilds it from the log.",
        ),
        FindingCode(
            "stream_keys_hash_mismatch",
            "warning",
            "recovers",
            5,
            "A key of the aggregate index does not have the hash beside it.",
            "Nothing: a start rebuilds it from the log.",
        ),
        FindingCode(
            "stream_index_diverges_from_log",
            "warning",
            "recovers",
            5,
            "The aggregate index says something else than the log.",
            "Nothing: a start rebuilds it from the log.",
        ),
        FindingCode(
            "stream_index_gap",
            "error",
            "data_missing",
            5,
            "An aggregate skips versions in the log itself.",
            "Commands on this aggregate fail. Find out which records are gone.",
        ),
        FindingCode(
            "snapshot_record_torn",
            "warning",
            "recovers",
            5,
            "The file of aggregate snapshots ends in an unfinished record.",
            "Nothing: a start cuts it; the aggregate is replayed from its events instead.",
        ),
    ]
)

# -- entries of the directory, reading, use (journal.md section 8, README) ---
_add(
    [
        FindingCode(
            "unknown_file",
            "info",
            "ignores",
            None,
            "A name that belongs to nothing a broker writes.",
            "Nothing: a broker takes no notice of it.",
        ),
        FindingCode(
            "file_unreadable",
            "error",
            "refuses",
            None,
            "An entry cannot be opened or read.",
            "Run the inspector as the account of the broker; on an I/O error look at the device before anything else.",
            also_named=(
                "manifest_unreadable",
                "topic_directory_unreadable",
                "segment_unreadable",
                "hwm_unreadable",
                "lifecycle_marker_unreadable",
            ),
        ),
        FindingCode(
            "file_changed_while_reading",
            "error",
            "unknown",
            None,
            "A file changed while it was being read; what was read does not belong to one moment.",
            "Stop the broker, or inspect a snapshot, and look again.",
        ),
        FindingCode(
            "stale_temporary_file",
            "info",
            "ignores",
            None,
            "A temporary file of a write that was cut off.",
            "Nothing: it is never read and is overwritten by the next write.",
        ),
        FindingCode(
            "older_storage",
            "info",
            "ignores",
            None,
            "A file of an older build; nothing reads it any more.",
            "Nothing to do for a start; it hints at where the storage comes from.",
        ),
        FindingCode(
            "obsolete_migration_file",
            "info",
            "ignores",
            None,
            "The migration authority of the August builds; it is not recognised any more.",
            "It authorises nothing. Old offsets come along by no way; clean bootstrap.",
        ),
        FindingCode(
            "newer_storage",
            "info",
            "ignores",
            None,
            "A file that only later or distributed builds write.",
            "Check which build wrote this directory before starting this one.",
        ),
        FindingCode(
            "storage_in_use",
            "warning",
            "ignores",
            None,
            "A broker holds the lock of this directory.",
            "What is being written can look unfinished; stop the broker for a final word.",
        ),
    ]
)
