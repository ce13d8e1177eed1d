"""Findings, steps and actions; files that changed meanwhile; how the index was made."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import cursus
from cursus.findings import CATALOGUE, Finding, finding
from cursus.formats import timestamps
from cursus.replay.startup import Plan
from inspect_db.index import SCHEMA_VERSION
from inspect_db.load.options import BuildOptions, config_text
from inspect_db.load.writer import Writer
from inspect_db.values import name, name_or_none, number, number_or_none


def load_findings(writer: Writer, judged: Plan) -> None:
    """The catalogue, the steps and actions of the plan, and every finding."""
    writer.insert(
        "finding_codes",
        (
            (
                entry.code,
                entry.severity,
                entry.effect,
                entry.step,
                entry.meaning,
                entry.action,
                json.dumps(entry.also_named),
            )
            for entry in sorted(CATALOGUE.values(), key=lambda entry: entry.code)
        ),
    )
    writer.insert("recovery_steps", ((s.step, s.name, s.outcome) for s in judged.steps))
    writer.insert(
        "recovery_actions",
        (
            (
                at,
                action.step,
                action.kind,
                name(action.path),
                writer.ids.get(action.path),
                action.position,
                name(action.message),
                _detail(action.detail),
            )
            for at, action in enumerate(judged.actions, 1)
        ),
    )
    writer.insert(
        "findings", (_finding(writer, at, item) for at, item in enumerate(judged.findings, 1))
    )
    indexes = [item for item in judged.findings if item.code.startswith("index_")]
    writer.insert(
        "index_findings",
        (
            (
                at,
                writer.ids.get(item.path),
                item.position,
                item.length,
                item.code,
                item.effect,
                name(item.message),
            )
            for at, item in enumerate(indexes, 1)
        ),
    )
    gaps = [item for item in judged.findings if item.code == "stream_index_gap"]
    writer.insert(
        "aggregate_gaps",
        (
            (
                at,
                writer.ids.get(item.path),
                item.position,
                item.length,
                name(_text(item.detail["topic"])),
                number(_number(item.detail["partition"])),
                name(_key(item.detail["key"])),
                number(_number(item.detail["expected"])),
                number(_number(item.detail["found"])),
            )
            for at, item in enumerate(gaps, 1)
            if "key" in item.detail
        ),
    )


def _finding(writer: Writer, number_of: int, item: Finding) -> tuple[Any, ...]:
    lost = item.lost
    return (
        number_of,
        item.code,
        item.severity,
        item.effect,
        item.step,
        name(item.path),
        writer.ids.get(item.path),
        item.position,
        item.length,
        name(item.message),
        item.action,
        number_or_none(lost.bytes) if lost else None,
        number_or_none(lost.records) if lost else None,
        number_or_none(lost.first_offset) if lost else None,
        number_or_none(lost.last_offset) if lost else None,
        _detail(item.detail),
    )


def load_changes(
    writer: Writer, changed: Sequence[str], appeared: Sequence[str], judged: Plan
) -> None:
    """Say of each file that changed under the reader that it did, and what is new."""
    told = {i.path for i in judged.findings if i.code == "file_changed_while_reading"}
    for path in changed:
        writer.connection.execute(
            "update files set changed = 1 where file_id = ?", (writer.ids[path],)
        )
    messages = {
        path: "changed, or went away, between the beginning and the end of the build; "
        "what the index says of it does not belong to one moment"
        for path in changed
        if path not in told
    }
    for path in appeared:
        messages[path] = (
            "appeared between the beginning and the end of the build; the index says nothing of it"
        )
    writer.insert(
        "findings",
        (
            _finding(writer, at, finding("file_changed_while_reading", path, message=message))
            for at, (path, message) in enumerate(messages.items(), len(judged.findings) + 1)
        ),
    )


def load_build(
    writer: Writer,
    options: BuildOptions,
    judged: Plan,
    inventory: bytes | None,
    refusal: str | None,
    changed: int,
) -> None:
    """How and when the index was made."""
    moment = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    writer.insert(
        "build",
        [
            (
                SCHEMA_VERSION,
                cursus.__version__,
                moment,
                name(judged.log_dir),
                timestamps.canonical(options.as_of),
                None if judged.in_use is None else int(judged.in_use),
                judged.verdict,
                options.records,
                options.payload_bytes,
                int(options.hashes),
                config_text(options),
                changed,
                inventory,
                name_or_none(refusal),
            )
        ],
    )


def _detail(detail: Mapping[str, object]) -> str:
    return json.dumps(_plain(detail), sort_keys=True)


def _plain(value: object) -> object:
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, (bool, int, str)):
        return value
    return str(value)


def _text(value: object) -> str:
    return str(value)


def _key(value: object) -> bytes | str:
    return value if isinstance(value, bytes) else str(value)


def _number(value: object) -> int:
    return value if isinstance(value, int) else int(str(value))
