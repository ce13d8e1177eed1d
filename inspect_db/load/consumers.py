"""Records of ``__consumer_offsets``, and what their replay left."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cursus.formats.consumer_metadata import SNAPSHOT, ConsumerRecord, TopicSnapshot
from cursus.replay.consumer_groups import ConsumerResult, ConsumerRow
from inspect_db.load.writer import Writer, moment
from inspect_db.values import SqlNumber, difference, name, name_or_none, number, number_or_none


def load_consumers(
    writer: Writer, result: ConsumerResult, bounds: Mapping[tuple[str, int], tuple[int, int]]
) -> None:
    """Records of ``__consumer_offsets``, and what the replay left.

    ``bounds``: (log start, next offset) of the partitions that have a log.
    """
    status, failure = result.status, result.failure
    writer.insert(
        "consumer_status",
        [
            (
                status.phase,
                int(status.ready),
                name_or_none(status.failure),
                failure.code if failure else None,
                status.restored_groups,
                status.restored_offsets,
                status.replayed_records,
                status.registration_records,
                status.offset_records,
                status.orphan_records,
                status.corrupt_records,
            )
        ],
    )
    writer.insert("consumer_records", (_consumer_row(writer, row) for row in result.rows))
    accepted = [(row, row.record) for row in result.rows if row.record is not None]
    writer.insert(
        "lifecycle_records",
        (
            (
                *_head(writer, row),
                record.type,
                name(record.group),
                name(record.topic),
                record.partition_count,
                number(record.epoch),
                moment(record.timestamp),
                record.identity(),
            )
            for row, record in accepted
            if record.type != SNAPSHOT
        ),
    )
    writer.insert(
        "initial_offsets",
        (
            (writer.ids[row.path], row.position, name(held.topic), number(held.revision), *item)
            for row, record in accepted
            for held in record.initial_offsets
            for item in _initial(held)
        ),
    )
    _load_snapshots(writer, accepted)
    writer.insert(
        "historical_offsets",
        (
            (name(group), name(topic), number(partition), number(offset))
            for (group, topic, partition), offset in sorted(result.historical.items())
        ),
    )
    _load_groups(writer, result, bounds)


def _head(writer: Writer, row: ConsumerRow) -> tuple[Any, ...]:
    return (
        writer.ids[row.path],
        row.position,
        row.length,
        row.log_partition,
        number(row.log_offset),
        row.state,
        row.disposition,
        row.code,
    )


def _consumer_row(writer: Writer, row: ConsumerRow) -> tuple[Any, ...]:
    payload = row.payload if row.record is None else None
    return (
        *_head(writer, row),
        row.shape,
        number_or_none(row.newer_version),
        name_or_none(row.key),
        payload or None,
    )


def _load_snapshots(writer: Writer, accepted: Sequence[tuple[ConsumerRow, ConsumerRecord]]) -> None:
    before = _previous_revisions(accepted)
    snapshots, items = [], []
    for row, record in accepted:
        if record.type != SNAPSHOT:
            continue
        previous, offsets = before.get((row.path, row.position), (None, {}))
        snapshots.append(
            (
                *_head(writer, row),
                name(record.group),
                name(record.topic),
                number(record.epoch),
                number(record.revision),
                moment(record.timestamp),
                record.identity(),
                number_or_none(previous),
                None if previous is None else number(record.revision - previous),
            )
        )
        for item in record.offsets:
            held = offsets.get(item.partition)
            items.append(
                (
                    writer.ids[row.path],
                    row.position,
                    item.partition,
                    number(item.offset),
                    number_or_none(held),
                    None if held is None else difference(item.offset, held),
                )
            )
    writer.insert("offset_snapshots", snapshots)
    writer.insert("offset_snapshot_items", items)


def _load_groups(
    writer: Writer, result: ConsumerResult, bounds: Mapping[tuple[str, int], tuple[int, int]]
) -> None:
    groups = result.groups
    writer.insert(
        "replayed_groups",
        (
            (
                name(group.name),
                "live",
                name(group.topic),
                group.partition_count,
                number(group.epoch),
                _floor(result, group.name),
            )
            for group in groups.values()
        ),
    )
    writer.insert(
        "replayed_groups",
        (
            (name(group), "deleted", None, None, number(epoch), _floor(result, group))
            for group, epoch in result.deleted.items()
        ),
    )
    writer.insert(
        "replayed_revisions",
        (
            (name(group.name), name(topic), number(revision))
            for group in groups.values()
            for topic, revision in group.revisions.items()
        ),
    )
    writer.insert(
        "replayed_offsets",
        (
            (
                name(group.name),
                name(topic),
                number(partition),
                number(offset),
                *_against_log(offset, bounds.get((topic, partition))),
            )
            for group in groups.values()
            for topic, offsets in group.offsets.items()
            for partition, offset in offsets.items()
        ),
    )


def _previous_revisions(
    accepted: Iterable[tuple[ConsumerRow, ConsumerRecord]],
) -> dict[tuple[str, int], tuple[int | None, dict[int, int]]]:
    """For each snapshot in the log: the revision before it and its offsets.

    Within one (group, topic, epoch) by revision; offsets that a registration
    carries come in as a revision of their own.
    """
    chains: dict[tuple[str, str, int], list[tuple[int, int, int, int, ConsumerRow | None, Any]]]
    chains = {}
    for row, record in accepted:
        if row.state != "live":
            continue
        if record.type == SNAPSHOT:
            key = (record.group, record.topic, record.epoch)
            place = (record.revision, 1, row.log_partition, row.log_offset)
            chains.setdefault(key, []).append((*place, row, record.offsets))
        for held in record.initial_offsets:
            key = (record.group, held.topic, record.epoch)
            place = (held.revision, 0, row.log_partition, row.log_offset)
            chains.setdefault(key, []).append((*place, None, held.offsets))
    found: dict[tuple[str, int], tuple[int | None, dict[int, int]]] = {}
    for chain in chains.values():
        chain.sort(key=lambda item: item[:4])
        before: tuple[int | None, dict[int, int]] = (None, {})
        current: tuple[int | None, dict[int, int]] = (None, {})
        for revision, _, _, _, found_row, offsets in chain:
            if revision != current[0]:
                before = current
                current = (revision, {item.partition: item.offset for item in offsets})
            if found_row is not None:
                found[found_row.path, found_row.position] = before
    return found


def _initial(held: TopicSnapshot) -> list[tuple[int, SqlNumber | None]]:
    if not held.offsets:
        return [(-1, None)]
    return [(item.partition, number(item.offset)) for item in held.offsets]


def _against_log(offset: int, limits: tuple[int, int] | None) -> tuple[Any, ...]:
    if limits is None:
        return (None, None, None, "no_log", None)
    start, end = limits
    place, outside = "in_log", 0
    if offset < start:
        place, outside = "below_start", start - offset
    elif offset > end:
        place, outside = "beyond_end", offset - end
    lag = max(0, end - offset)
    return (number(start), number(end), number(lag), place, number(outside))


def _floor(result: ConsumerResult, group: str) -> SqlNumber | None:
    return number_or_none(result.floors.get(group))
