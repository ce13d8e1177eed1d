"""One consumer group: its lives, and every revision of its committed offsets."""

from __future__ import annotations

from typing import Final

from inspect_db.datasette.documents import LINES, Object, findings_where, first, objects, total
from inspect_db.reading import Rows
from inspect_db.values import SqlName, from_name

#: Revisions shown, newest first.
REVISIONS: Final = 50
#: Partitions shown of one snapshot.
ITEMS: Final = 12

#: What became of a record, in one word; anything else is told by its code.
_MARKS: Final = {
    "lifecycle_current": "counts",
    "lifecycle_superseded": "earlier",
    "lifecycle_duplicate": "repeated",
    "lifecycle_stale": "fenced",
    "snapshot_current": "counts",
    "snapshot_superseded": "earlier",
    "snapshot_duplicate": "repeated",
    "snapshot_equals_initial": "repeated",
    "snapshot_no_lifecycle": "fenced",
    "snapshot_fenced_deleted": "fenced",
    "snapshot_fenced_epoch": "fenced",
    "snapshot_stale_revision": "fenced",
    "rejected": "refused",
    "evidence": "not read",
}
#: Why it does not count, in words.
_REASONS: Final = {
    "lifecycle_stale": "a record of a later life stands before it",
    "lifecycle_duplicate": "the same record stands in the log already",
    "snapshot_no_lifecycle": "no registration of the group is in the log",
    "snapshot_fenced_deleted": "the group was deleted",
    "snapshot_fenced_epoch": "it belongs to another life of the group",
    "snapshot_stale_revision": "the registration carries newer offsets",
    "snapshot_equals_initial": "the registration carries the same offsets",
    "snapshot_duplicate": "the same record stands in the log already",
    "rejected": "a broker refuses this record",
    "evidence": "a broker stops before it, or does not read this segment",
}


def group(rows: Rows, name: SqlName) -> Object | None:
    """The document of a group; ``None`` when nothing in the index names it."""
    state = first(
        rows,
        "select g.state, g.topic, g.partition_count, g.epoch, g.floor, r.recovered "
        "from replayed_groups as g cross join recovered as r where g.group_name = ?",
        (name,),
    )
    lives = _lives(rows, name)
    snapshots = total(rows, "select count(*) from offset_snapshots where group_name = ?", (name,))
    historical = objects(
        rows,
        "select topic, partition, item_offset from historical_offsets where group_name = ? "
        f"order by topic, partition limit {LINES}",
        (name,),
    )
    if state is None and not lives and not snapshots and not historical:
        return None
    unknown = {"state": "unregistered", "topic": None, "partition_count": None, "epoch": None}
    return {
        "group": from_name(name),
        **(state or {**unknown, "floor": None, "recovered": 1}),
        **_committed(rows, name),
        "epochs": _epochs(rows, name, lives),
        "revisions_total": snapshots,
        "historical_offsets": historical,
        **findings_where(rows, _OF_GROUP, (name, name)),
    }


_OF_GROUP: Final = (
    "f.file_id is not null and f.position is not null and (exists (select 1 from "
    "lifecycle_records as l where l.file_id = f.file_id and l.position = f.position "
    "and l.group_name = ?) or exists (select 1 from offset_snapshots as s "
    "where s.file_id = f.file_id and s.position = f.position and s.group_name = ?))"
)


def _committed(rows: Rows, name: SqlName) -> Object:
    return {
        "committed": objects(
            rows,
            "select o.topic, o.partition, o.committed_offset, v.revision, o.log_start, o.log_end, "
            "o.lag, o.place, o.outside_by from replayed_offsets as o "
            "left join replayed_revisions as v on v.group_name = o.group_name "
            "and v.topic = o.topic where o.group_name = ? "
            f"order by o.topic, o.partition limit {LINES}",
            (name,),
        ),
        "committed_total": total(
            rows, "select count(*) from replayed_offsets where group_name = ?", (name,)
        ),
    }


_MARKED: Final = (
    "disposition, code, state, log_partition, log_offset, timestamp, file_id, position, length"
)


def _lives(rows: Rows, name: SqlName) -> list[Object]:
    found = objects(
        rows,
        f"select type, topic, partition_count, epoch, {_MARKED} from lifecycle_records "
        f"where group_name = ? order by epoch desc, file_id, position limit {REVISIONS * 2}",
        (name,),
    )
    return [_marked(item) for item in found]


def _marked(item: Object) -> Object:
    mark = _MARKS.get(item["disposition"], item["disposition"])
    if item["code"] in {"lifecycle_conflict", "offset_snapshot_conflict"}:
        mark = "conflict"
    if item["state"] != "live" and mark != "not read":
        mark = "not read"
    return {**item, "mark": mark, "reason": _REASONS.get(item["disposition"])}


def _epochs(rows: Rows, name: SqlName, lives: list[Object]) -> list[Object]:
    """Newest life first: its registration and end, and its revisions, newest first."""
    revisions = [
        _marked(item)
        for item in objects(
            rows,
            f"select topic, epoch, revision, previous_revision, revision_step, {_MARKED} "
            "from offset_snapshots where group_name = ? "
            f"order by epoch desc, revision desc, file_id, position limit {REVISIONS}",
            (name,),
        )
    ]
    for item in revisions:
        address = (item["file_id"], item["position"])
        item["items"] = objects(
            rows,
            "select item_partition, item_offset, previous_offset, change "
            "from offset_snapshot_items where file_id = ? and position = ? "
            f"order by item_partition limit {ITEMS}",
            address,
        )
        item["items_total"] = total(
            rows,
            "select count(*) from offset_snapshot_items where file_id = ? and position = ?",
            address,
        )
    epochs = sorted({item["epoch"] for item in (*lives, *revisions)}, reverse=True)
    return [
        {
            "epoch": epoch,
            "records": [item for item in lives if item["epoch"] == epoch],
            "revisions": [item for item in revisions if item["epoch"] == epoch],
        }
        for epoch in epochs
    ]
