"""Step 5, the high watermark: a checkpoint beside each log, against the end of that log.

The checkpoint lags or leads by what was in flight. A start raises it to the
durable tail when it lags (standalone: nothing above it is uncommitted) and
lowers it when it leads. A lead is the trace of records that are gone:

* in an application topic it can come from queued appends. It is a repair
  (decision 23: a high watermark is lowered), and ordinary recovery where the
  same start cuts the tail of that log, since then the cut is the cause;
* in ``__consumer_offsets`` every record was synced before it was acknowledged
  and before the watermark moved: acknowledged records are gone, and a start
  refuses (decision 29).

A log that does not open has no end, so nothing is compared with it.

Source: journal.md section 6.1; README.md decisions 11, 23, 25, 29.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from cursus import layout
from cursus.findings import Finding, FormatError, Lost, finding
from cursus.formats import checkpoints
from cursus.replay.interfaces import Evidence, UnreadableError
from cursus.replay.segments import PartitionLog


@dataclass(frozen=True, slots=True)
class HwmCheckpoint:
    """The high watermark of one partition.

    ``stored``: what the file says, ``None`` when missing or not a number.
    ``effective``: what a start would use (the next offset of the log), ``None``
    when the log does not open.
    """

    topic: str
    partition: int
    path: str
    present: bool
    stored: int | None
    effective: int | None
    findings: tuple[Finding, ...]


def judge_hwm(evidence: Evidence, log: PartitionLog, *, opens: bool) -> HwmCheckpoint:
    """Compare the checkpoint of a partition with its log.

    ``opens``: a start could open the log; otherwise the file is only read.
    """
    path = layout.topic_file(log.topic, layout.hwm(log.partition))
    effective = log.next_offset if opens else None
    entry = evidence.get(path)
    if entry is None:
        found: tuple[Finding, ...] = ()
        if opens:
            found = (
                _finding(
                    "hwm_checkpoint_missing",
                    log,
                    path,
                    f"no high-watermark checkpoint; the log ends at {log.next_offset}",
                ),
            )
        return HwmCheckpoint(log.topic, log.partition, path, False, None, effective, found)
    stored, problem = _read(evidence, log, path, entry.type)
    if problem is None and stored is not None and effective is not None:
        problem = _compare(evidence, log, path, stored, effective)
    told = () if problem is None else (problem,)
    return HwmCheckpoint(log.topic, log.partition, path, True, stored, effective, told)


def _read(
    evidence: Evidence, log: PartitionLog, path: str, kind: str
) -> tuple[int | None, Finding | None]:
    if kind != "file":
        text = f"a {kind} stands where the high-watermark checkpoint should be"
        return None, _finding("checkpoint_not_regular", log, path, text)
    try:
        return checkpoints.decode_hwm(evidence.read(path, checkpoints.MAX_NUMBER_BYTES)), None
    except UnreadableError as error:
        return None, replace(error.finding, step=5)
    except FormatError as error:
        return None, finding(
            error.code,
            path,
            position=error.position,
            message=error.message,
            topic=log.topic,
            partition=log.partition,
        )


def _compare(
    evidence: Evidence, log: PartitionLog, path: str, stored: int, end: int
) -> Finding | None:
    if stored == end:
        return None
    if stored < end:
        text = f"checkpoint {stored}, log end {end}: a start raises it"
        return _finding("hwm_checkpoint_behind_log", log, path, text, hwm=stored)
    text = f"checkpoint {stored}, but the log ends at {end}"
    if evidence.in_use:
        # The log was read before the checkpoint; a broker may have appended in between.
        told = _finding("hwm_checkpoint_ahead_of_log", log, path, text, hwm=stored)
        return replace(
            told,
            severity="info",
            effect="ignores",
            message=f"{text}; a broker is using the directory and may have appended since",
        )
    lost = Lost(records=stored - end, first_offset=end, last_offset=stored - 1)
    if log.internal:
        text += "; every record below it was synced and acknowledged"
        return _finding("internal_metadata_tail_lost", log, path, text, lost, hwm=stored)
    told = _finding("hwm_checkpoint_ahead_of_log", log, path, text, lost, hwm=stored)
    if log.cut is not None:
        return replace(
            told, effect="recovers", message=f"{text}, because its torn tail is cut at step 2"
        )
    return told


def _finding(
    code: str,
    log: PartitionLog,
    path: str,
    message: str,
    lost: Lost | None = None,
    **detail: object,
) -> Finding:
    facts: dict[str, object] = {
        "topic": log.topic,
        "partition": log.partition,
        "log_end": log.next_offset,
        **detail,
    }
    return finding(code, path, message=message, lost=lost, **facts)  # type: ignore[arg-type]
