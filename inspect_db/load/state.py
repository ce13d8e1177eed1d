"""Journal, producers, checkpoints and aggregates."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cursus import layout
from cursus.layout import FileKind
from cursus.replay.startup import Plan
from inspect_db.load.writer import Writer, moment
from inspect_db.values import SqlNumber, difference, name, number, number_or_none


def load_journal(writer: Writer, judged: Plan) -> None:
    """The journal, and what its transactions touch."""
    journal = judged.journal
    file_id = writer.ids.get(layout.JOURNAL)
    frames = [*journal.frames, *journal.salvage]
    writer.insert(
        "journal_frames",
        (
            (
                frame.position,
                file_id,
                frame.length,
                frame.version,
                frame.kind,
                name(frame.transactional_id),
                name(frame.state),
                number(frame.epoch),
                number(frame.revision),
                moment(frame.updated_at),
                int(frame.salvage),
            )
            for frame in {frame.position: frame for frame in frames}.values()
        ),
    )
    positions = {frame.transactional_id: frame.position for frame in journal.frames}
    writer.insert(
        "transactions",
        (
            (
                name(held.id),
                name(held.producer),
                number(held.epoch),
                number(held.revision),
                name(held.state),
                int(held.ready),
                int(held.expired),
                moment(held.created_at),
                moment(held.updated_at),
                len(held.messages),
                len(held.offsets),
                positions.get(held.id),
            )
            for held in journal.transactions.values()
        ),
    )
    writer.insert(
        "transaction_offsets",
        (
            (
                name(held.id),
                at,
                name(str(item["Group"])),
                name(str(item["Topic"])),
                number(int(item["Partition"])),
                number(int(item["Offset"])),
                number(int(item.get("registration_epoch") or 0)),
            )
            for held in journal.transactions.values()
            for at, item in enumerate(held.offsets)
        ),
    )
    writer.insert("transaction_partitions", _transaction_partitions(judged))


def load_producers(writer: Writer, judged: Plan) -> None:
    """Producers of each partition: their states and their runs."""
    for state in judged.producers.values():
        where = (name(state.topic), number(state.partition))
        stored = state.checkpoint.producers if state.checkpoint else {}
        states = []
        for producer in sorted({*state.from_log, *stored, *state.effective}):
            values: list[SqlNumber | None] = []
            for source in (state.from_log, stored, state.effective):
                entry = source.get(producer)
                values += [number(entry.epoch), number(entry.sequence)] if entry else [None, None]
            states.append((*where, name(producer), *values))
        writer.insert("producer_states", states)
        writer.insert(
            "producer_runs",
            (
                (
                    *where,
                    name(run.producer),
                    number(run.epoch),
                    number(run.first_sequence),
                    number(run.last_sequence),
                    number(run.first_offset),
                    number(run.last_offset),
                    run.records,
                    run.gaps,
                    run.duplicates,
                )
                for run in state.runs
            ),
        )


def load_checkpoints(writer: Writer, judged: Plan) -> None:
    """Numbers that a broker keeps beside its logs."""
    rows: list[tuple[Any, ...]] = []
    for hwm in judged.hwm.values():
        rows.append(
            _checkpoint(
                writer,
                hwm.path,
                "hwm",
                hwm.topic,
                hwm.partition,
                present=hwm.present,
                stored=hwm.stored,
                actual=hwm.effective,
            )
        )
    for state in judged.producers.values():
        checkpoint = state.checkpoint
        rows.append(
            _checkpoint(
                writer,
                state.path,
                "producers",
                state.topic,
                state.partition,
                present=state.present,
                form=checkpoint.form if checkpoint else None,
                stored=checkpoint.covered_offset if checkpoint else None,
            )
        )
    definitions = judged.manifest.by_name
    for topic in judged.topics.topics.values():
        definition = definitions.get(topic.name)
        path = layout.topic_file(topic.name, layout.LIFECYCLE_EPOCH)
        if path in writer.ids or topic.marker_epoch is not None:
            rows.append(
                _checkpoint(
                    writer,
                    path,
                    "lifecycle_epoch",
                    topic.name,
                    None,
                    present=path in writer.ids,
                    stored=topic.marker_epoch,
                    actual=definition.lifecycle_epoch if definition else None,
                )
            )
    writer.insert("checkpoints", rows)


def _checkpoint(
    writer: Writer,
    path: str,
    kind: str,
    topic: str,
    partition: int | None,
    *,
    present: bool,
    form: str | None = None,
    stored: int | None = None,
    actual: int | None = None,
) -> tuple[Any, ...]:
    known = stored is not None and actual is not None
    return (
        name(path),
        writer.ids.get(path),
        kind,
        name(topic),
        number_or_none(partition),
        int(present),
        form,
        number_or_none(stored),
        number_or_none(actual),
        difference(stored, actual) if known and stored is not None and actual is not None else None,
    )


def load_aggregates(writer: Writer, judged: Plan) -> None:
    """Aggregates of event-sourcing topics, and their snapshots."""
    for held in judged.aggregates.values():
        where = (name(held.topic), number(held.partition))
        writer.insert(
            "aggregates",
            ((*where, name(key), number(version)) for key, version in held.versions.items()),
        )
        path = "/".join(
            (
                held.topic,
                layout.aggregate_directory(held.partition),
                layout.aggregate_file(held.partition, FileKind.AGGREGATE_SNAPSHOTS),
            )
        )
        writer.insert(
            "aggregate_snapshots",
            (
                (
                    writer.ids[path],
                    row.position,
                    row.length,
                    *where,
                    name(row.key),
                    number(row.version),
                    row.payload_bytes,
                    int(row.current),
                )
                for row in held.snapshots
            ),
        )


def _transaction_partitions(judged: Plan) -> Iterator[tuple[Any, ...]]:
    rows: dict[tuple[Any, ...], list[Any]] = {}

    def row(transaction: str | bytes, epoch: int, topic: str, partition: int) -> list[Any]:
        key = (name(transaction), number(epoch), name(topic), number(partition))
        return rows.setdefault(key, [0, 0, None, None, None])

    for held in judged.journal.transactions.values():
        for message in held.messages:
            topic, partition = str(message["Topic"]), int(message["Partition"])
            row(held.id, held.epoch, topic, partition)[0] += 1
    for (topic, partition), index in judged.transactions.items():
        for (transaction, epoch), records in index.open.items():
            found = row(transaction, epoch, topic, partition)
            found[1], found[2] = records.count, number(records.first_offset)
        for (transaction, epoch), marker in index.markers.items():
            found = row(transaction, epoch, topic, partition)
            found[3], found[4] = name(marker.kind), number(marker.offset)
    for key, values in rows.items():
        yield (*key, *values)
