"""The first page: would a broker start, why not, and what there is to see."""

from __future__ import annotations

from typing import Any, Final

from inspect_db.datasette.documents import FINDING, LINES, Object, first, objects, total
from inspect_db.queries_catalogue import named_queries
from inspect_db.reading import Rows
from inspect_db.stored import CAUSES
from inspect_db.verdict import HEADLINES, STEP_TITLES

#: Places shown for one code.
_PLACES: Final = 3


def overview(rows: Rows) -> Object:
    """Everything that the first page shows. Raises ``LookupError`` for what no build writes."""
    build = first(
        rows,
        "select tool_version, built_at, log_dir, as_of, in_use, verdict, records_mode, "
        "payload_bytes, hashed, changed_files, inventory is not null as has_inventory from build",
    )
    if build is None:
        raise LookupError("the table build is empty")
    word, sentence = HEADLINES[build["verdict"]]
    return {
        "build": build,
        "word": word,
        "sentence": sentence,
        "steps": _steps(rows),
        "first_cause": _first_cause(rows, build["verdict"]),
        **_found(rows),
        "actions": _actions(rows),
        **_lost(rows),
        **_topics(rows),
        **_groups(rows),
        "records": total(rows, "select coalesce(sum(record_count), 0) from partitions"),
        "files": total(rows, "select count(*) from files where type = 'file'"),
        "bytes": total(rows, "select coalesce(sum(size), 0) from files where type = 'file'"),
        "queries": [
            {"name": query.name, "title": query.title, "question": query.question}
            for query in named_queries().values()
        ],
    }


def _steps(rows: Rows) -> list[Object]:
    found = objects(
        rows,
        "select s.step, s.name, s.outcome, "
        "coalesce(sum(f.severity = 'error'), 0) as errors, "
        "coalesce(sum(f.severity = 'warning'), 0) as warnings, "
        "coalesce(sum(f.severity = 'info'), 0) as notes "
        "from recovery_steps as s left join findings as f on f.step = s.step "
        "group by s.step order by s.step",
    )
    return [{**step, "title": STEP_TITLES[step["step"]]} for step in found]


def _first_cause(rows: Rows, verdict: str) -> Object | None:
    effect = CAUSES.get(verdict)
    return first(
        rows,
        f"select {FINDING}, c.meaning from findings as f "
        "join finding_codes as c on c.code = f.code "
        "where f.effect = ? and f.step is not null order by f.finding_id limit 1",
        (effect,),
    )


def _found(rows: Rows) -> Object:
    """Findings of one step, code, severity and effect together, with the first places."""
    places = objects(
        rows,
        f"select {FINDING}, c.meaning, n.total from (select finding_id, "
        "row_number() over (partition by step, code, severity, effect order by finding_id) as n, "
        "count(*) over (partition by step, code, severity, effect) as total from findings) as n "
        "join findings as f on f.finding_id = n.finding_id "
        "join finding_codes as c on c.code = f.code "
        f"where n.n <= {_PLACES} order by f.step is null, f.step, f.finding_id",
    )
    groups: dict[tuple[Any, ...], Object] = {}
    for place in places:
        key = (place["step"], place["code"], place["severity"], place["effect"])
        kept = {k: v for k, v in place.items() if k not in {"meaning", "total", "action"}}
        group = groups.setdefault(
            key,
            {
                "step": place["step"],
                "code": place["code"],
                "severity": place["severity"],
                "effect": place["effect"],
                "meaning": place["meaning"],
                "action": place["action"],
                "total": place["total"],
                "places": [],
            },
        )
        group["places"].append(kept)
    by_step: dict[int | None, list[Object]] = {}
    for group in groups.values():
        by_step.setdefault(group["step"], []).append(group)
    order = {"error": 0, "warning": 1, "info": 2}
    return {
        "found": [
            {
                "step": step,
                "title": STEP_TITLES[step] if step else None,
                "codes": sorted(codes, key=lambda item: order[item["severity"]]),
            }
            for step, codes in by_step.items()
        ],
        "findings_total": sum(group["total"] for group in groups.values()),
    }


def _actions(rows: Rows) -> list[Object]:
    places = objects(
        rows,
        "select a.step, a.kind, a.path, a.file_id, a.position, a.message, n.total from "
        "(select action_id, row_number() over (partition by kind order by action_id) as n, "
        "count(*) over (partition by kind) as total from recovery_actions) as n "
        "join recovery_actions as a on a.action_id = n.action_id "
        f"where n.n <= {_PLACES} order by a.action_id",
    )
    kinds: dict[str, Object] = {}
    for place in places:
        kind, count = place.pop("kind"), place.pop("total")
        kinds.setdefault(kind, {"kind": kind, "total": count, "places": []})
        kinds[kind]["places"].append(place)
    return list(kinds.values())


_LOST: Final = (
    "effect in ('refuses', 'unknown', 'data_missing', 'repairs') and (lost_bytes is not null "
    "or lost_records is not null or lost_first_offset is not null)"
)


def _lost(rows: Rows) -> Object:
    return {
        "lost": objects(
            rows,
            "select finding_id, code, effect, path, file_id, position, lost_bytes, lost_records, "
            f"lost_first_offset, lost_last_offset from findings where {_LOST} "
            f"order by finding_id limit {LINES}",
        ),
        "lost_total": total(rows, f"select count(*) from findings where {_LOST}"),
    }


def _topics(rows: Rows) -> Object:
    return {
        "topics": objects(
            rows,
            "select t.topic, t.state, t.declared, t.partitions, t.storage_partitions, "
            "t.cleanup_policy, (select sum(record_count) from partitions as p "
            "where p.topic = t.topic) as record_count, (select count(*) from partitions as p "
            "where p.topic = t.topic and (p.damaged or not p.readable)) as damaged "
            f"from topics as t order by t.topic limit {LINES}",
        ),
        "topics_total": total(rows, "select count(*) from topics"),
    }


def _groups(rows: Rows) -> Object:
    return {
        "groups": objects(
            rows,
            "select group_name, state, topic, epoch, partition_count, committed_partitions, "
            f"recovered from consumer_groups order by group_name limit {LINES}",
        ),
        "groups_total": total(rows, "select count(*) from replayed_groups"),
    }
