"""Topics, partitions and segments, as the plan judged them."""

from __future__ import annotations

from typing import Any, Final

from cursus.findings import Finding
from cursus.replay.interfaces import SegmentScan
from cursus.replay.segments import PartitionLog
from cursus.replay.startup import Plan
from inspect_db.load.writer import Writer
from inspect_db.values import name, number, number_or_none

_SEAMS: Final = {"segment_offsets_gap": "gap", "segment_offsets_overlap": "overlap"}


def load_topics(writer: Writer, judged: Plan) -> None:
    """Topics of the manifest and of the directories."""
    definitions = judged.manifest.by_name
    storage = judged.topics.topics
    rows = []
    for topic in sorted({*definitions, *storage}):
        stored, definition = storage.get(topic), definitions.get(topic)
        policy = definition.policy if definition else None
        rows.append(
            (
                name(topic),
                int(definition is not None),
                int(stored is not None and stored.directory),
                stored.state if stored else "live",
                number(definition.lifecycle_epoch) if definition else None,
                number_or_none(stored.marker_epoch) if stored else None,
                number(definition.revision) if definition else None,
                number(definition.partitions) if definition else None,
                len(stored.partitions) if stored else 0,
                number(definition.replication_factor) if definition else None,
                int(definition.idempotent) if definition else None,
                int(definition.event_sourcing) if definition else None,
                name(policy.cleanup_policy) if policy else None,
                name(policy.partitioner) if policy else None,
                name(policy.auth_policy) if policy else None,
                number(policy.retention_hours) if policy else None,
                number(policy.retention_bytes) if policy else None,
            )
        )
    writer.insert("topics", rows)


def load_partition(writer: Writer, log: PartitionLog, judged: Plan) -> None:
    """One partition, its segments, and what joins them."""
    key = (log.topic, log.partition)
    hwm = judged.hwm.get(key)
    missing = 0
    rows, before, unknown = [], None, False
    judged_seams = {item.path: item for item in log.findings if item.code in _SEAMS}
    for scan in log.segments:
        seam, lost = _seam(scan, before, unknown, judged_seams.get(scan.segment.path))
        if seam == "gap":
            missing += lost
        rows.append(_segment(writer, scan, before, seam, lost))
        if scan.end == "unreadable":
            before, unknown = None, True
        elif scan.last_offset is not None:
            before, unknown = scan, False
    rows += [_segment(writer, scan, None, "deleted", 0) for scan in log.deleted]
    writer.insert(
        "partitions",
        [
            (
                name(log.topic),
                number(log.partition),
                int(log.internal),
                number(log.log_start),
                number_or_none(log.first_offset),
                number(log.log_end),
                number(log.next_offset),
                number_or_none(hwm.stored) if hwm else None,
                number_or_none(hwm.effective) if hwm else None,
                log.record_count,
                len(log.segments),
                len(log.deleted),
                number(missing),
                log.cut[1] if log.cut else None,
                int(log.readable),
                int(log.damaged),
            )
        ],
    )
    writer.insert("segments", rows)
    writer.insert(
        "unreachable_runs",
        (
            (
                writer.ids[scan.segment.path],
                run.position,
                run.length,
                run.records,
                number(run.first_offset),
                number(run.last_offset),
            )
            for scan in (*log.segments, *log.deleted)
            for run in scan.unreachable
        ),
    )


def _segment(
    writer: Writer, scan: SegmentScan, before: SegmentScan | None, seam: str, missing: int
) -> tuple[Any, ...]:
    ref = scan.segment
    return (
        writer.ids[ref.path],
        name(ref.topic),
        number(ref.partition),
        number(ref.base),
        int(ref.active),
        int(ref.deleted),
        int(ref.gaps_allowed),
        ref.size,
        scan.end,
        scan.end_position,
        number_or_none(scan.first_offset),
        number_or_none(scan.last_offset),
        scan.record_count,
        number(scan.expected_next),
        number_or_none(before.last_offset) if before else None,
        seam,
        number(missing),
        sum(run.records for run in scan.unreachable),
    )


def _seam(
    scan: SegmentScan, before: SegmentScan | None, unknown: bool, judged: Finding | None
) -> tuple[str, int]:
    """How a segment joins the one before it, and the number of offsets that are missing."""
    if judged is not None:
        return _SEAMS[judged.code], (judged.lost.records or 0) if judged.lost else 0
    if scan.end == "unreadable" and scan.first_offset is None:
        return "unknown", 0
    if scan.first_offset is None:
        return "empty", 0
    if before is None or before.last_offset is None:
        return ("unknown" if unknown else "first"), 0
    missing = scan.first_offset - before.last_offset - 1
    return ("compacted" if missing else "contiguous"), missing
