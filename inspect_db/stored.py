"""A verdict read back from an index, equal to that of the directory.

The plan itself is not stored: steps, findings and actions are, and they are all
that a verdict prints.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

from cursus.findings import Effect, Finding, Lost, Severity, Step
from cursus.formats import timestamps
from cursus.replay.startup import Action, Outcome, Plan, StepOutcome, Verdict
from inspect_db.reading import Rows
from inspect_db.values import from_name, from_number, from_number_or_none

#: Effect of the finding that makes a verdict what it is.
CAUSES = {
    "refuses": "refuses",
    "undetermined": "unknown",
    "starts_with_damage": "data_missing",
    "starts_with_repairs": "repairs",
}


@dataclass(frozen=True, slots=True)
class StoredPlan:
    """What :mod:`inspect_db.verdict` reads of a plan."""

    log_dir: str
    in_use: bool | None
    as_of: int
    verdict: Verdict
    steps: tuple[StepOutcome, ...]
    actions: tuple[Action, ...]
    findings: tuple[Finding, ...]
    holds_nothing: bool

    @property
    def first_cause(self) -> Finding | None:
        """The first finding that makes the verdict what it is."""
        wanted = CAUSES.get(self.verdict)
        return next((item for item in self.findings if item.effect == wanted and item.step), None)


def findings(connection: Rows) -> tuple[Finding, ...]:
    """Findings in broker order, as they were made."""
    return tuple(_findings(connection))


def _findings(connection: Rows) -> Iterator[Finding]:
    for row in connection.execute(
        "select code, severity, effect, step, path, position, length, message, action, lost_bytes, "
        "lost_records, lost_first_offset, lost_last_offset, detail from findings "
        "order by finding_id"
    ):
        code, severity, effect, step, path, position, length, message, action, *rest = cast(
            tuple[Any, ...], row
        )
        *lost, detail = rest
        numbers = [from_number_or_none(value) for value in lost]
        yield Finding(
            code=code,
            path=from_name(path),
            severity=cast(Severity, severity),
            effect=cast(Effect, effect),
            step=cast("Step | None", step),
            message=from_name(message),
            action=action,
            position=position,
            length=length,
            lost=Lost(*numbers) if any(value is not None for value in numbers) else None,
            detail=json.loads(detail),
        )


def stored_plan(connection: Rows) -> Plan:
    """The verdict of the index, in the form that pages and JSON are made of."""
    row = cast(
        tuple[Any, ...],
        connection.execute("select log_dir, in_use, as_of, verdict from build").fetchone(),
    )
    found = findings(connection)
    steps = tuple(
        StepOutcome(
            cast(Step, step),
            str(name),
            cast(Outcome, outcome),
            tuple(item for item in found if item.step == step),
        )
        for step, name, outcome in connection.execute(
            "select step, name, outcome from recovery_steps order by step"
        )
    )
    actions = tuple(
        Action(
            cast(Step, step),
            str(kind),
            from_name(cast(Any, path)),
            cast(Any, position),
            from_name(cast(Any, message)),
            json.loads(str(detail)),
        )
        for step, kind, path, position, message, detail in connection.execute(
            "select step, kind, path, position, message, detail from recovery_actions "
            "order by action_id"
        )
    )
    held = cast(
        tuple[int],
        connection.execute(
            "select exists (select 1 from files where kind = 'topic_manifest') "
            "or exists (select 1 from partitions)"
        ).fetchone(),
    )
    plan = StoredPlan(
        log_dir=from_name(row[0]),
        in_use=None if row[1] is None else bool(row[1]),
        as_of=timestamps.parse(row[2]),
        verdict=row[3],
        steps=steps,
        actions=actions,
        findings=found,
        holds_nothing=not held[0],
    )
    return cast(Plan, plan)


def inventory_rows(connection: Rows) -> Iterator[dict[str, Any]]:
    """One row for each entry below the log directory, as ``inspect-db inventory`` has it."""
    for row in connection.execute(
        "select path, type, kind, class, size, mtime_ns, mode, topic, partition, base_offset "
        "from files order by cast(path as blob)"
    ):
        path, kind_of, kind, file_class, size, mtime, mode, topic, partition, base = cast(
            tuple[Any, ...], row
        )
        yield {
            "path": from_name(path),
            "type": kind_of,
            "kind": kind,
            "class": file_class,
            "size": size,
            "mtime_ns": mtime,
            "mode": f"{mode:04o}",
            "topic": from_name(topic) if topic is not None and kind != "unknown" else None,
            "partition": _name_number(partition),
            "base_offset": _name_number(base),
        }


def _name_number(value: int | str | None) -> int | None:
    """A number of a file name, which may have any length."""
    if value is None or isinstance(value, int):
        return value
    return int(value) if len(value) > 20 else from_number(value)


def reference_inventory(connection: Rows) -> bytes | None:
    """What ``cursus-storage manifest inspect`` prints; ``None`` where it refuses."""
    row = connection.execute("select inventory from build").fetchone()
    return cast("bytes | None", row[0] if row else None)
