"""The log of one partition: its segments, what stands between them, its indexes and markers.

A scan judges one file. This module puts the files of a partition together: it
decides which closed segments may have gaps (a compaction marker of the current
size, with the right content, on a segment that is not active), has every
segment scanned once, and looks at the seams. The scan compares index entries
with the records as it meets them, so no file is read twice.

Gaps and overlaps between segments lose or repeat data but do not stop a broker
in application topics; in ``__consumer_offsets`` they refuse.

Source: segments.md sections 5, 9, 11, 12, 18; README.md decisions 5, 22, 27, 28.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from cursus.findings import Effect, Finding, Lost, Step, finding
from cursus.formats import compaction_marker, offset_index
from cursus.layout import FileKind
from cursus.replay.interfaces import (
    Entry,
    Evidence,
    IndexMatch,
    RecordBatch,
    SegmentRef,
    SegmentScan,
    UnreadableError,
)

Visit = Callable[[RecordBatch], None]

#: An index larger than this is looked at up to here only (65,536 times the default interval).
MAX_INDEX_BYTES: Final = 64 << 20
MAX_INDEX_FINDINGS: Final = 100

_TEMP: Final = FileKind.COMPACTION_TEMP


@dataclass(slots=True)
class PartitionFiles:
    """Entries of one partition by what they are; every list ascends by base."""

    logs: list[Entry] = field(default_factory=list)
    deleted: list[Entry] = field(default_factory=list)
    indexes: dict[int, Entry] = field(default_factory=dict)
    markers: list[Entry] = field(default_factory=list)
    leftovers: list[Entry] = field(default_factory=list)
    others: list[Entry] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class PartitionLog:
    """What the files of one partition say together.

    ``log_start``: base of the lowest live segment (the broker's). ``first_offset``:
    first record found, ``None`` without one. ``log_end``: last offset + 1 (the
    inspector's; lowest base when there is no record). ``next_offset``: what the broker would
    give the next record after its recovery. ``cut``: byte position to which the
    active log would be cut, ``None`` without a torn tail. ``readable``: False
    when some segment could not be read, so that counts and ends are not known.
    """

    topic: str
    partition: int
    internal: bool
    log_start: int
    first_offset: int | None
    log_end: int
    next_offset: int
    record_count: int
    segments: tuple[SegmentScan, ...]
    deleted: tuple[SegmentScan, ...]
    findings: tuple[Finding, ...]
    cut: tuple[str, int, int] | None
    readable: bool
    damaged: bool

    @property
    def active(self) -> SegmentScan | None:
        """The active segment, ``None`` where no live log is left."""
        return self.segments[-1] if self.segments else None


@dataclass(frozen=True, slots=True)
class SegmentFiles:
    """One segment log as it has to be scanned, and its index; ``None`` without one."""

    ref: SegmentRef
    index: Entry | None


@dataclass(frozen=True, slots=True)
class Compared:
    """So many entries of an index, of this digest, fit their log."""

    entries: int
    digest: str


@dataclass(frozen=True, slots=True)
class SegmentJudgement:
    """What one scan found in a log, and what it found in the index beside it.

    ``compared``: of an active segment whose index has nothing wrong with it.
    """

    scan: SegmentScan
    index: tuple[Finding, ...] = ()
    compared: Compared | None = None


#: How a segment is judged: :func:`judge_segment`, or something that knows its answer already.
JudgeSegment = Callable[[Evidence, SegmentFiles, Visit | None], SegmentJudgement]


def judge_partition(
    evidence: Evidence,
    topic: str,
    partition: int,
    files: PartitionFiles,
    *,
    internal: bool,
    visit: Visit | None = None,
    judge: JudgeSegment | None = None,
) -> PartitionLog:
    """Scan every segment of a partition once and judge them together."""
    found: list[Finding] = []
    step: Step = 3 if internal else 2
    found.extend(_leftovers(files, internal))
    segments, marker_findings = segment_files(evidence, topic, partition, files, internal=internal)
    found.extend(marker_findings)
    judge = judge or judge_segment
    scans: list[SegmentScan] = []
    gone: list[SegmentScan] = []
    for item in segments:
        if item.ref.deleted:
            break
        judged = judge(evidence, item, visit)
        scans.append(judged.scan)
        found.extend(judged.scan.findings)
        found.extend(judged.index)
    live = {entry.base for entry in files.logs}
    found.extend(
        finding("index_without_log", entry.path, step=step)
        for base, entry in sorted(files.indexes.items())
        if base not in live
    )
    found.extend(_seams(scans, internal))
    for item in segments[len(scans) :]:
        scan = judge(evidence, item, visit).scan
        gone.append(scan)
        found.extend(scan.findings)
    return _together(topic, partition, internal, scans, gone, found)


def segment_files(
    evidence: Evidence, topic: str, partition: int, files: PartitionFiles, *, internal: bool
) -> tuple[list[SegmentFiles], list[Finding]]:
    """The segments of a partition in the order of their scans, deleted ones last.

    The findings are about compaction markers: they decide which segments may have gaps.
    """
    proven, found = _markers(evidence, files, 3 if internal else 2)
    segments = []
    for number, entry in enumerate(files.logs):
        active = number == len(files.logs) - 1
        ref = _ref(evidence, entry, topic, partition, internal=internal, active=active)
        ref = _with_gaps(ref, entry.path in proven and not active)
        segments.append(SegmentFiles(ref, files.indexes.get(entry.base or 0)))
    for entry in files.deleted:
        ref = _ref(evidence, entry, topic, partition, internal=internal, active=False)
        segments.append(SegmentFiles(ref, None))
    return segments, found


def judge_segment(
    evidence: Evidence,
    files: SegmentFiles,
    visit: Visit | None = None,
    after: SegmentScan | None = None,
) -> SegmentJudgement:
    """Scan a segment once, and hold its index against it; a deleted one has none.

    ``after``: go on from another scan of the same files, which found nothing wrong.
    """
    ref = files.ref
    if ref.deleted:
        return SegmentJudgement(evidence.scan(ref, visit))
    step: Step = 3 if ref.internal else 2
    index = _load_index(evidence, files.index, active=ref.active, step=step)
    prefix = index.prefix if index else None
    if after is None:
        scan = evidence.scan(ref, visit, prefix)
    else:
        scan = evidence.scan(ref, visit, prefix, after=after)
    if index is None:
        # Only the active segment gets one when it is opened; a closed one is scanned instead.
        effect: Effect = "recovers" if ref.active else "ignores"
        missing = finding("index_missing", ref.path, step=step, effect=effect)
        return SegmentJudgement(scan, (missing,))
    # What stands behind damage cannot be compared, and is no shorter log either.
    whole = scan.end in {"clean", "torn"}
    found = index.close(scan.index, scan.end_position if whole else ref.size)
    compared = _compared(scan.index, prefix) if ref.active and not found else None
    # How the entries fared is in the findings.
    return SegmentJudgement(replace(scan, index=None), tuple(found), compared)


def _compared(match: IndexMatch | None, prefix: offset_index.Prefix | None) -> Compared | None:
    """The entries that are known to fit, where nothing is wrong with the index."""
    if match is None or prefix is None:
        return None
    return Compared(match.passed, digest_of_entries(prefix, match.passed))


def digest_of_entries(prefix: offset_index.Prefix, count: int) -> str:
    """SHA-256 over the first ``count`` entries, to know them again."""
    digest = hashlib.sha256(prefix.offsets[:count].tobytes())
    digest.update(prefix.positions[:count].tobytes())
    return digest.hexdigest()


def _ref(
    evidence: Evidence, entry: Entry, topic: str, partition: int, *, internal: bool, active: bool
) -> SegmentRef:
    return SegmentRef(
        path=entry.path,
        topic=topic,
        partition=partition,
        base=entry.base or 0,
        size=entry.size,
        active=active,
        deleted=entry.kind is FileKind.DELETED_LOG,
        gaps_allowed=False,
        internal=internal,
        in_use=evidence.in_use,
    )


def _with_gaps(ref: SegmentRef, allowed: bool) -> SegmentRef:
    if not allowed:
        return ref
    return SegmentRef(
        ref.path,
        ref.topic,
        ref.partition,
        ref.base,
        ref.size,
        ref.active,
        ref.deleted,
        True,
        ref.internal,
        ref.in_use,
    )


def _leftovers(files: PartitionFiles, internal: bool) -> Iterable[Finding]:
    for entry in files.leftovers:
        if entry.type == "directory" and not (internal and entry.kind is not _TEMP):
            yield _not_ours(entry)
        elif entry.kind is _TEMP:
            yield finding("compaction_temp_leftover", entry.path, step=3 if internal else 2)
        elif internal:
            yield finding("internal_deleted_segment", entry.path)
        else:
            yield finding("deleted_segment_leftover", entry.path)


def _not_ours(entry: Entry) -> Finding:
    """No broker makes a directory under this name, so none removes it or stumbles over it."""
    text = "a directory under the name of a file that an opening removes; it stays"
    return finding("unknown_file", entry.path, message=text)


def _markers(
    evidence: Evidence, files: PartitionFiles, step: Step
) -> tuple[set[str], list[Finding]]:
    """Paths of the logs whose marker proves that they may have gaps."""
    logs = {entry.base: entry for entry in files.logs}
    proven: set[str] = set()
    found: list[Finding] = []
    for marker in files.markers:
        log = logs.get(marker.base)
        if log is None or log.size != marker.number:
            if marker.type == "directory":
                found.append(_not_ours(marker))
                continue
            reason = "its log is gone" if log is None else f"its log has {log.size} bytes now"
            found.append(
                finding(
                    "compaction_marker_stale", marker.path, message=f"stale: {reason}", step=step
                )
            )
            continue
        problem = _marker_problem(evidence, marker)
        if problem is None:
            proven.add(log.path)
        elif isinstance(problem, Finding):
            found.append(problem)
        else:
            found.append(
                finding("compaction_marker_invalid", marker.path, message=problem, step=step)
            )
    return proven, found


def _marker_problem(evidence: Evidence, marker: Entry) -> Finding | str | None:
    if marker.type != "file":
        return f"a {marker.type} stands where the compaction marker should be"
    try:
        data = evidence.read(marker.path, compaction_marker.SIZE)
    except UnreadableError as error:
        return error.finding
    if not compaction_marker.is_valid(data):
        return f"the compaction marker does not hold its {compaction_marker.SIZE} bytes"
    return None


# -- the index -------------------------------------------------------------------


class _IndexCheck:
    """What is wrong with one index: by itself, and by the records of its log."""

    def __init__(self, entry: Entry, *, active: bool, step: Step) -> None:
        self.entry = entry
        self.active = active
        self.step = step
        self.prefix: offset_index.Prefix | None = None
        self.found: list[Finding] = []

    def add(self, code: str, position: int, message: str, length: int = 16) -> None:
        self.found.append(
            finding(
                code,
                self.entry.path,
                position=position,
                length=length,
                message=message,
                step=self.step,
                effect="recovers" if self.active and code != "index_entry_mismatch" else "ignores",
            )
        )

    def close(self, match: IndexMatch | None, log_bytes: int) -> list[Finding]:
        """Findings, now that the scan is over.

        ``match``: the entries that point to good records, compared with them.
        ``log_bytes``: valid bytes of the log (more than the good frames where
        damage stands behind them).
        """
        if self.prefix is not None:
            passed = match.passed if match is not None else 0
            self._beyond(self.prefix.positions, passed, log_bytes)
            if match is not None:
                self._mismatches(self.prefix, match)
        self.found.sort(key=lambda item: item.position or 0)
        return self.found

    def _beyond(self, positions: Sequence[int], passed: int, log_bytes: int) -> None:
        at = bisect_left(positions, log_bytes, passed)
        if at < len(positions):
            self.add(
                "index_entry_beyond_log",
                16 * at,
                f"entry points to byte {positions[at]}; the log has {log_bytes} bytes",
            )

    def _mismatches(self, prefix: offset_index.Prefix, match: IndexMatch) -> None:
        for at in match.mismatches[:MAX_INDEX_FINDINGS]:
            self.add(
                "index_entry_mismatch",
                16 * at,
                f"entry says offset {prefix.offsets[at]} at byte {prefix.positions[at]}; "
                "another record, or none, begins there",
            )
        hidden = match.mismatch_count - MAX_INDEX_FINDINGS
        if hidden > 0:
            at = match.mismatches[MAX_INDEX_FINDINGS]
            self.add("index_entry_mismatch", 16 * at, f"{hidden} more entries like this follow")


def index_prefix(evidence: Evidence, entry: Entry) -> offset_index.Prefix | None:
    """The entries of an index that may be used; ``None`` where it cannot be read."""
    check = _load_index(evidence, entry, active=True, step=2)
    return check.prefix if check is not None else None


def _load_index(
    evidence: Evidence, entry: Entry | None, *, active: bool, step: Step
) -> _IndexCheck | None:
    if entry is None:
        return None
    check = _IndexCheck(entry, active=active, step=step)
    if entry.type != "file":
        if active:
            check.found.append(
                finding(
                    "not_regular_file",
                    entry.path,
                    message=f"a {entry.type} stands where the active index should be",
                    step=step,
                )
            )
        else:
            check.add("index_entry_mismatch", 0, f"a {entry.type} stands where the index should be")
        return check
    try:
        data = evidence.read(entry.path, MAX_INDEX_BYTES)
    except UnreadableError as error:
        check.found.append(error.finding)
        return check
    prefix = offset_index.valid_prefix(data)
    check.prefix = prefix
    if prefix.not_increasing is not None:
        check.add(
            "index_entry_not_increasing",
            prefix.not_increasing,
            "entry does not ascend; it and all behind it are not used",
        )
    if prefix.stray is not None:
        check.add("index_stray_entry", prefix.stray, "bytes behind the end of the used part")
    if len(data) % offset_index.ENTRY_BYTES:
        check.add(
            "index_size_unaligned",
            len(data) - len(data) % offset_index.ENTRY_BYTES,
            f"{len(data)} bytes are not a multiple of {offset_index.ENTRY_BYTES}",
            length=len(data) % offset_index.ENTRY_BYTES,
        )
    return check


# -- between segments --------------------------------------------------------------


def _seams(scans: Sequence[SegmentScan], internal: bool) -> Iterable[Finding]:
    """Each segment goes on where the one before it ended, unless a compaction explains it.

    A segment is made for the next record: an empty one says by its base where the
    log stood, so records missing before it, or from it, were there once.
    """
    last: int | None = None
    may_gap = False
    for scan in scans:
        compacted = scan.segment.gaps_allowed
        if scan.end == "unreadable":
            last, may_gap = None, False
            continue
        first = scan.first_offset
        if first is None and scan.segment.active and scan.end in {"clean", "torn"}:
            first = scan.segment.base  # a start cuts what is torn: it is empty then
        if first is None:
            may_gap = may_gap or compacted
            if last is None and not compacted and scan.end == "clean":
                last = scan.segment.base - 1
            continue
        if last is not None:
            yield from _seam(last, first, scan, internal, may_gap or compacted)
        if scan.last_offset is not None:
            last, may_gap = scan.last_offset, compacted


def _seam(
    last: int, first: int, scan: SegmentScan, internal: bool, may_gap: bool
) -> Iterable[Finding]:
    empty = scan.first_offset is None
    lost = None
    if first <= last:
        code = "segment_offsets_overlap"
        begins = f"empty, and would go on at {first}" if empty else f"begins at offset {first}"
        text = f"{begins}; the segment before it ends at {last}"
    elif first != last + 1 and not may_gap:
        code = "segment_offsets_gap"
        lost = Lost(records=first - last - 1, first_offset=last + 1, last_offset=first - 1)
        text = f"offsets {last + 1} to {first - 1} are missing before this segment"
    else:
        return
    yield finding(
        code,
        scan.segment.path,
        position=0,
        message=text,
        effect="refuses" if internal else None,
        step=3 if internal else 2,
        lost=lost,
        topic=scan.segment.topic,
        partition=scan.segment.partition,
        first=first,
        previous_last=last,
    )


def _together(
    topic: str,
    partition: int,
    internal: bool,
    scans: list[SegmentScan],
    gone: list[SegmentScan],
    found: list[Finding],
) -> PartitionLog:
    first: int | None = None
    end = start = scans[0].segment.base if scans else 0
    for scan in scans:
        if scan.first_offset is not None and scan.last_offset is not None:
            if first is None:
                first = scan.first_offset
            end = scan.last_offset + 1
    cut = None
    following = end
    if scans:
        active = scans[-1]
        following = active.expected_next
        if active.end == "torn":
            left = active.segment.size - active.end_position
            cut = (active.segment.path, active.end_position, left)
    return PartitionLog(
        topic=topic,
        partition=partition,
        internal=internal,
        log_start=start,
        first_offset=first,
        log_end=end,
        next_offset=following,
        record_count=sum(scan.record_count for scan in scans),
        segments=tuple(scans),
        deleted=tuple(gone),
        findings=tuple(found),
        cut=cut,
        readable=all(scan.end != "unreadable" for scan in scans),
        damaged=any(scan.end == "damaged" for scan in scans),
    )
