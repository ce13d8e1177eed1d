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
            "Nothing: a start cuts these bytes; they were never acknowledged.",
        ),
        FindingCode(
            "torn_record_body",
            "warning",
            "repairs",
            2,
            "The last frame runs past the end of the file: an append was cut off inside it.",
            "Nothing: a start cuts the unfinished frame; it was never acknowledged. In a closed segment: keep the directory, then clean bootstrap.",
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
    ]
)

# -- manifest, topics, directories, archive (manifest.md) --------------------
_add([])

# -- consumer metadata (consumer-metadata.md) --------------------------------
_add([])

# -- journal, transactions, checkpoints, aggregates (journal.md) -------------
_add([])

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
            "info",
            "ignores",
            None,
            "A broker holds the lock of this directory.",
            "What is being written can look unfinished; stop the broker for a final word.",
        ),
    ]
)
