"""One topic and one partition: what is declared, what stands on disk, who consumes it."""

from __future__ import annotations

from typing import Final

from inspect_db.datasette.documents import (
    LINES,
    Object,
    findings_where,
    first,
    objects,
    plain,
    total,
)
from inspect_db.reading import Rows
from inspect_db.values import SqlName, from_name

#: Partitions of a topic, or segments of a partition, on one page.
PARTS: Final = 100
_PARTITION: Final = (
    "topic, partition, internal, log_start, first_offset, log_end, next_offset, hwm_checkpoint, "
    "hwm_effective, record_count, segment_count, deleted_count, missing_offsets, cut_position, "
    "readable, damaged"
)


def topic(rows: Rows, name: SqlName) -> Object | None:
    """The document of a topic; ``None`` when nothing in the index names it.

    A topic that only consumer metadata name has neither a definition nor partitions.
    """
    definition = first(
        rows,
        "select declared, directory, state, lifecycle_epoch, marker_epoch, revision, partitions, "
        "storage_partitions, replication_factor, idempotent, event_sourcing, cleanup_policy, "
        "partitioner, auth_policy, retention_hours, retention_bytes from topics where topic = ?",
        (name,),
    )
    parts = objects(
        rows,
        f"select {_PARTITION} from partitions where topic = ? order by partition limit {PARTS}",
        (name,),
    )
    if definition is None and not parts and not _named(rows, name):
        return None
    sums = first(
        rows,
        "select count(*) as segments, coalesce(sum(s.size), 0) as bytes, "
        "coalesce(sum(m.payload_bytes), 0) as payload_bytes, max(m.largest_bytes) as largest_bytes "
        "from segments as s left join segment_sums as m on m.file_id = s.file_id "
        "where s.topic = ?",
        (name,),
    )
    return {
        "topic": from_name(name),
        "definition": definition,
        "parts": parts,
        "parts_total": total(rows, "select count(*) from partitions where topic = ?", (name,)),
        "records": total(
            rows, "select coalesce(sum(record_count), 0) from partitions where topic = ?", (name,)
        ),
        "sums": sums,
        "groups": objects(
            rows,
            "select group_name, state, epoch, partition_count from replayed_groups "
            f"where topic = ? order by group_name limit {LINES}",
            (name,),
        ),
        "groups_total": total(
            rows, "select count(*) from replayed_groups where topic = ?", (name,)
        ),
        **findings_where(rows, "f.file_id in (select file_id from files where topic = ?)", (name,)),
    }


def _named(rows: Rows, name: SqlName) -> bool:
    """Do records of consumer metadata, or what their replay left, name this topic?"""
    return any(
        total(rows, f"select exists (select 1 from {table} where topic = ?)", (name,))
        for table in ("lifecycle_records", "offset_snapshots", "replayed_offsets")
    )


def partition(rows: Rows, name: SqlName, number: int | str) -> Object | None:
    """The document of a partition; ``None`` when nothing in the index names it.

    One without files, but with committed offsets or a declaration, has null for
    everything that files would tell.
    """
    address = (name, number)
    found = first(
        rows, f"select {_PARTITION} from partitions where topic = ? and partition = ?", address
    )
    if found is None:
        if not _expected(rows, name, number):
            return None
        found = dict.fromkeys(_PARTITION.split(", "))
        found |= {"partition": plain("partition", number)}
    where = "s.topic = ? and s.partition = ?"
    return {
        **found,
        "topic": from_name(name),
        "segments": objects(
            rows,
            "select s.file_id, f.path, s.base_offset, s.active, s.deleted, s.compacted, s.size, "
            "s.ends, s.end_position, s.first_offset, s.last_offset, s.record_count, "
            "s.expected_next, s.previous_last, s.seam, s.missing_offsets, s.unreachable_records "
            f"from segments as s join files as f on f.file_id = s.file_id where {where} "
            f"order by s.deleted, s.base_offset limit {PARTS}",
            address,
        ),
        "segments_total": total(rows, f"select count(*) from segments as s where {where}", address),
        "committed": objects(
            rows,
            "select group_name, committed_offset, lag, place, outside_by from replayed_offsets "
            f"where topic = ? and partition = ? order by committed_offset limit {LINES}",
            address,
        ),
        "committed_total": total(
            rows,
            "select count(*) from replayed_offsets where topic = ? and partition = ?",
            address,
        ),
        **findings_where(
            rows,
            "f.file_id in (select file_id from files where topic = ? and partition = ?)",
            address,
        ),
    }


def _expected(rows: Rows, name: SqlName, number: int | str) -> bool:
    """Is the partition declared, or is an offset committed for it?"""
    known = total(
        rows,
        "select exists (select 1 from replayed_offsets where topic = ?1 and partition = ?2) "
        "or exists (select 1 from topics where topic = ?1 and partitions > ?2) or exists "
        "(select 1 from offset_snapshots as s join offset_snapshot_items as i "
        "on i.file_id = s.file_id and i.position = s.position "
        "where s.topic = ?1 and i.item_partition = ?2)",
        (name, number),
    )
    return bool(known)


#: Segments that a drawing takes in.
DRAWN: Final = 5000


def shape(rows: Rows, name: SqlName, number: int | str) -> list[Object]:
    """What a drawing of a partition needs of each segment, in the order of the log."""
    return objects(
        rows,
        "select base_offset, first_offset, last_offset, expected_next, previous_last, "
        "record_count, active, deleted, compacted, ends, seam from segments "
        f"where topic = ? and partition = ? order by deleted, base_offset limit {DRAWN}",
        (name, number),
    )
