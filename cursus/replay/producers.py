"""Producer state of a partition: the last sequence of each producer.

The log is always scanned; the checkpoint beside it only matters for producers
whose records are gone, and the larger (epoch, sequence) of both wins. What one
producer wrote under one epoch is a *run*; a healthy run has neither gaps nor
repeated sequences, though compaction leaves gaps of its own.

Memory is bounded by producers and epochs, never by records.

Source: journal.md section 6.2 and 6.3; README.md decision 25.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from cursus import layout
from cursus.findings import Finding, FormatError, finding
from cursus.formats import checkpoints
from cursus.formats.checkpoints import ProducerCheckpoint, ProducerEntry
from cursus.formats.record_columns import UInt64s
from cursus.replay.interfaces import Evidence, RecordBatch, UnreadableError
from cursus.replay.reduced import ProducerRuns, grouped, spans
from cursus.replay.segments import PartitionLog

#: Pieces of one run in one batch from which on arrays are faster than a loop.
_MANY: Final = 8


@dataclass(slots=True)
class ProducerRun:
    """Records of one producer under one epoch, in log order.

    ``gaps`` counts places where a sequence is not the next one, ``duplicates``
    records whose sequence is not above the one before.
    """

    producer: bytes
    epoch: int
    first_sequence: int
    last_sequence: int
    first_offset: int
    last_offset: int
    records: int = 1
    gaps: int = 0
    duplicates: int = 0


@dataclass(frozen=True, slots=True)
class ProducerState:
    """What a start knows of the producers of one partition.

    ``from_log``: last record of each producer in the log. ``effective``: what
    counts after the start. ``checkpoint`` is ``None`` without a readable file.
    """

    topic: str
    partition: int
    path: str
    present: bool
    from_log: dict[str, ProducerEntry]
    checkpoint: ProducerCheckpoint | None
    effective: dict[str, ProducerEntry]
    runs: tuple[ProducerRun, ...]
    findings: tuple[Finding, ...]


def _join(run: ProducerRun, first: int, last: int) -> None:
    """Go on with a run by records whose sequences ascend by one from ``first`` to ``last``."""
    if first <= run.last_sequence:
        # Up to the highest sequence so far they repeat; behind it they go on without a gap.
        run.duplicates += min(last, run.last_sequence) - first + 1
    elif first != run.last_sequence + 1:
        run.gaps += 1
    run.records += last - first + 1
    run.last_sequence = max(run.last_sequence, last)


def _join_many(run: ProducerRun, first: UInt64s, last: UInt64s) -> None:
    """As :func:`_join`, for one after the other."""
    one = np.uint64(1)
    highest = np.maximum.accumulate(np.append(np.uint64(run.last_sequence), last))
    before = highest[:-1]
    again = first <= before
    run.duplicates += int((np.minimum(last, before)[again] - first[again] + one).sum())
    run.gaps += int(np.count_nonzero(~again & (first - before != one)))
    run.records += int((last - first + one).sum())
    run.last_sequence = int(highest[-1])


#: Up to so many runs of a batch are taken one by one.
_FEW: Final = 48


class ProducerIndex:
    """Collects the producers of one partition while its log is scanned."""

    def __init__(self, topic: str, partition: int) -> None:
        self.topic = topic
        self.partition = partition
        self._last: dict[bytes, ProducerEntry] = {}
        self._runs: dict[tuple[bytes, int], ProducerRun] = {}

    def visit(self, batch: RecordBatch) -> None:
        """Take the records of a batch; unreachable and deleted ones do not count."""
        if not batch.reachable or batch.segment.deleted:
            return
        found = batch.producer_runs()
        for name in found.producers:  # producers stay in the order in which they appear
            self._last.setdefault(name, ProducerEntry(0, 0))
        if len(found) <= _FEW:
            self._take_few(found)
        else:
            self._take_many(found)

    def _take_few(self, found: ProducerRuns) -> None:
        """One run after the other: arrays of a handful cost more than they save."""
        latest: dict[int, tuple[int, ProducerEntry]] = {}
        for code, epoch, first, last, begin, end, row in zip(
            found.producer.tolist(),
            found.epoch.tolist(),
            found.first_sequence.tolist(),
            found.last_sequence.tolist(),
            found.first_offset.tolist(),
            found.last_offset.tolist(),
            found.last_row.tolist(),
            strict=True,
        ):
            run = self._run(found.producers[code], epoch, first, begin)
            _join(run, first, last)
            run.last_offset = end
            if code not in latest or latest[code][0] < row:
                latest[code] = row, ProducerEntry(epoch, last, end)
        for code, (_, entry) in latest.items():
            self._last[found.producers[code]] = entry

    def _take_many(self, found: ProducerRuns) -> None:
        latest = np.zeros(len(found.producers), np.intp)
        by_last = np.argsort(found.last_row)
        latest[found.producer[by_last]] = by_last  # of several the last one stays
        for name, at in zip(found.producers, latest.tolist(), strict=True):
            entry = (found.epoch[at], found.last_sequence[at], found.last_offset[at])
            self._last[name] = ProducerEntry(*map(int, entry))
        order, heads = grouped(found.producer, found.epoch)
        first, last = found.first_sequence[order], found.last_sequence[order]
        firsts, lasts = first.tolist(), last.tolist()
        codes, epochs = found.producer[order].tolist(), found.epoch[order].tolist()
        begins, ends = found.first_offset[order].tolist(), found.last_offset[order].tolist()
        for begin, end in spans(heads, len(order)):
            name = found.producers[codes[begin]]
            run = self._run(name, epochs[begin], firsts[begin], begins[begin])
            if end - begin > _MANY:
                _join_many(run, first[begin:end], last[begin:end])
            else:
                for at in range(begin, end):
                    _join(run, firsts[at], lasts[at])
            run.last_offset = ends[end - 1]

    def _run(self, producer: bytes, epoch: int, sequence: int, offset: int) -> ProducerRun:
        """What is known of (producer, epoch); new ones begin with this record."""
        run = self._runs.get((producer, epoch))
        if run is None:
            # As if the sequence before had been seen: the first one is no gap.
            run = ProducerRun(producer, epoch, sequence, sequence - 1, offset, offset, records=0)
            self._runs[producer, epoch] = run
        return run

    def finish(self, evidence: Evidence, log: PartitionLog, *, opens: bool) -> ProducerState:
        """Put log and checkpoint together.

        ``opens``: would a start open this partition? The log end of one that it
        would not is not known, so nothing is said about entries beyond it.
        """
        path = f"{self.topic}/{layout.producers(self.partition)}"
        entry = evidence.get(path)
        found: list[Finding] = []
        checkpoint: ProducerCheckpoint | None = None
        if entry is not None:
            checkpoint, found = _read(evidence, path, entry.type)
        from_log = {
            name.decode("utf-8", "surrogateescape"): item for name, item in self._last.items()
        }
        stored = dict(checkpoint.producers) if checkpoint else {}
        if checkpoint and checkpoint.form == "version_4" and opens:
            stored = _covered(stored, log)
        effective = dict(stored)
        for name, item in from_log.items():
            held = effective.get(name)
            if held is None or (item.epoch, item.sequence) >= (held.epoch, held.sequence):
                effective[name] = item
        runs = sorted(self._runs.values(), key=lambda run: (run.producer, run.epoch))
        return ProducerState(
            topic=self.topic,
            partition=self.partition,
            path=path,
            present=entry is not None,
            from_log=from_log,
            checkpoint=checkpoint,
            effective=effective,
            runs=tuple(runs),
            findings=tuple(found),
        )


def _read(
    evidence: Evidence, path: str, kind: str
) -> tuple[ProducerCheckpoint | None, list[Finding]]:
    if kind != "file":
        text = f"a {kind} stands where the producer checkpoint should be"
        return None, [finding("checkpoint_not_regular", path, message=text)]
    try:
        data = evidence.read(path, checkpoints.MAX_PRODUCERS_BYTES)
        return checkpoints.decode_producers(data), []
    except UnreadableError as error:
        return None, [replace(error.finding, step=5)]
    except FormatError as error:
        return None, [finding(error.code, path, position=error.position, message=error.message)]


def _covered(stored: Mapping[str, ProducerEntry], log: PartitionLog) -> dict[str, ProducerEntry]:
    """Entries of version 4 whose record is still in the log."""
    first = log.log_start if log.first_offset is None else log.first_offset
    return {
        name: item
        for name, item in stored.items()
        if item.offset is not None and first <= item.offset < log.next_offset
    }


# -- idempotence -------------------------------------------------------------------


@dataclass(slots=True)
class Idempotence:
    """The rules of journal.md section 6.3 for one partition, in memory."""

    state: MutableMapping[str, ProducerEntry] = field(default_factory=dict)

    def check(self, producer: str, epoch: int, sequence: int, *, active: bool, force: bool) -> str:
        """``append``, ``duplicate`` or the code of the rejection. Changes nothing."""
        if not (active or force) or not producer:
            return "append"
        if sequence == 0:
            return "sequence_required" if force else "append"
        held = self.state.get(producer)
        if held is None:
            return "append" if sequence == 1 else "first_sequence_not_one"
        if epoch < held.epoch:
            return "stale_producer_epoch"
        if epoch > held.epoch:
            return "append" if sequence == 1 else "new_epoch_sequence_not_one"
        if sequence <= held.sequence:
            return "duplicate"
        return "append" if sequence == held.sequence + 1 else "sequence_gap"

    def appended(
        self, producer: str, epoch: int, sequence: int, *, active: bool, force: bool
    ) -> None:
        """Remember a record after it was appended."""
        if (active or force) and producer:
            self.state[producer] = ProducerEntry(epoch, sequence)

    def checkpoint(self) -> dict[str, ProducerEntry]:
        """What is written: entries without a sequence are not."""
        return {name: item for name, item in self.state.items() if item.sequence}


REJECTIONS: Final = frozenset(
    {
        "sequence_required",
        "first_sequence_not_one",
        "stale_producer_epoch",
        "new_epoch_sequence_not_one",
        "sequence_gap",
    }
)


def rejected(result: str) -> bool:
    """Is this answer of :meth:`Idempotence.check` a rejection?"""
    return result in REJECTIONS


def names(states: Iterable[ProducerState]) -> set[str]:
    """Every producer id that any of these partitions knows."""
    return {name for state in states for name in state.effective}
