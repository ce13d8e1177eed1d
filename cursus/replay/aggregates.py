"""Aggregates of an event-sourcing partition: their versions in the log, and the files beside it.

The log is the truth: a record with a key and an aggregate version is an event,
and the versions of a key go up by one. Index and keys are derived from it; a
start throws them away and builds them anew, so what is wrong with them is worth
a warning and no more. An index that ends early is normal after a crash, since
it is not synced. A jump of versions in the log itself means lost events.

Source: journal.md section 7; README.md decision 36.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from cursus import layout
from cursus.findings import Finding, finding
from cursus.formats import aggregate_files as af
from cursus.layout import FileKind
from cursus.replay.interfaces import Evidence, RecordBatch, UnreadableError
from cursus.replay.segments import PartitionLog

MAX_FILE_BYTES: Final = 1 << 30
MAX_GAPS: Final = 100


@dataclass(frozen=True, slots=True)
class SnapshotRow:
    """One record of the snapshot file; ``current`` marks the one that counts for its key."""

    key: bytes
    version: int
    payload_bytes: int
    position: int
    length: int
    current: bool


@dataclass(frozen=True, slots=True)
class AggregateFiles:
    """Aggregates of one partition. ``versions``: highest version of each key in the log."""

    topic: str
    partition: int
    event_sourcing: bool
    versions: dict[bytes, int]
    events: int
    gaps: int
    snapshots: tuple[SnapshotRow, ...]
    findings: tuple[Finding, ...]


class AggregateIndex:
    """Collects the events of one partition while its log is scanned."""

    def __init__(self, topic: str, partition: int, *, event_sourcing: bool = False) -> None:
        self.topic = topic
        self.partition = partition
        self.event_sourcing = event_sourcing
        self._versions: dict[bytes, int] = {}
        self._hashes: dict[bytes, int] = {}
        self._entries: array[int] = array("Q")  # hash, version, offset of each event
        self._gaps: list[Finding] = []
        self._gap_count = 0
        self._events = 0

    def visit(self, batch: RecordBatch) -> None:
        """Take the events of a batch; topics that are not event-sourcing have none."""
        if not self.event_sourcing or not batch.reachable or batch.segment.deleted:
            return
        for item in batch.with_aggregate():
            record = item.record
            key, version = record.key, record.aggregate_version
            known = self._versions.get(key)
            if known is not None and version <= known:
                continue
            expected = 1 if known is None else known + 1
            # Behind a log that does not begin at 0 the first version seen is the base.
            begins_late = known is None and batch.segment.base > 0
            if version != expected and not begins_late:
                self._gap(batch.segment.path, item.position, item.length, key, expected, version)
            self._versions[key] = version
            value = self._hashes.get(key)
            if value is None:
                value = self._hashes[key] = af.fnv1a64(key)
            self._entries.extend((value, version, record.offset))
            self._events += 1

    def _gap(
        self, path: str, position: int, length: int, key: bytes, expected: int, version: int
    ) -> None:
        self._gap_count += 1
        if len(self._gaps) < MAX_GAPS:
            self._gaps.append(
                finding(
                    "stream_index_gap",
                    path,
                    position=position,
                    length=length,
                    message=f"aggregate jumps to version {version}, {expected} was due",
                    topic=self.topic,
                    partition=self.partition,
                    key=key,
                    expected=expected,
                    found=version,
                )
            )

    def finish(self, evidence: Evidence, log: PartitionLog, *, opens: bool) -> AggregateFiles:
        """Compare the files with the log. ``opens``: would a start open this partition?"""
        directory = f"{self.topic}/{layout.aggregate_directory(self.partition)}"
        found = list(self._gaps)
        entry = evidence.get(directory)
        snapshots: tuple[SnapshotRow, ...] = ()
        if entry is not None and entry.type == "directory":
            hashes, told = _keys(evidence, self._path(directory, FileKind.AGGREGATE_KEYS))
            found.extend(told)
            path = self._path(directory, FileKind.AGGREGATE_INDEX)
            found.extend(self._compare(evidence, path, hashes, opens=opens))
            path = self._path(directory, FileKind.AGGREGATE_SNAPSHOTS)
            snapshots, told = _snapshots(evidence, path)
            found.extend(told)
        return AggregateFiles(
            topic=self.topic,
            partition=self.partition,
            event_sourcing=self.event_sourcing,
            versions=dict(sorted(self._versions.items())),
            events=self._events,
            gaps=self._gap_count,
            snapshots=snapshots,
            findings=tuple(found),
        )

    def _path(self, directory: str, kind: FileKind) -> str:
        return f"{directory}/{layout.aggregate_file(self.partition, kind)}"

    def _compare(
        self, evidence: Evidence, path: str, hashes: set[int], *, opens: bool
    ) -> Iterable[Finding]:
        data, problem = _read(evidence, path)
        if problem is not None:
            yield problem
        if data is None:
            return
        entries, end = af.decode_index(data)
        if end != len(data):
            yield finding("stream_index_entry_torn", path, position=end, length=len(data) - end)
        unknown = next((n for n, e in enumerate(entries) if e.key_hash not in hashes), None)
        if unknown is not None:
            yield finding("stream_index_hash_unknown", path, position=32 * unknown, length=32)
        if not (self.event_sourcing and opens):
            return
        count = len(self._entries) // 3
        for number, item in enumerate(entries):
            due = tuple(self._entries[3 * number : 3 * number + 3])
            if (item.key_hash, item.version, item.offset) != due:
                what = "another event" if number < count else "no event"
                yield finding(
                    "stream_index_diverges_from_log",
                    path,
                    position=32 * number,
                    length=32,
                    message=f"entry {number} says version {item.version} at offset {item.offset}; "
                    f"the log has {what} there",
                    topic=self.topic,
                    partition=self.partition,
                )
                return


def _read(evidence: Evidence, path: str) -> tuple[bytes | None, Finding | None]:
    entry = evidence.get(path)
    if entry is None:
        return None, None
    if entry.type != "file":
        return None, finding(
            "checkpoint_not_regular",
            path,
            message=f"a {entry.type} stands where an aggregate file should be",
            effect="ignores",
            severity="warning",
        )
    try:
        return evidence.read(path, MAX_FILE_BYTES), None
    except UnreadableError as error:
        return None, replace(error.finding, step=5)


def _keys(evidence: Evidence, path: str) -> tuple[set[int], list[Finding]]:
    data, problem = _read(evidence, path)
    found = [problem] if problem else []
    if data is None:
        return set(), found
    keys, end = af.decode_keys(data)
    for key in keys:
        if af.fnv1a64(key.key) != key.key_hash:
            found.append(finding("stream_keys_hash_mismatch", path, position=key.at, length=8))
            break
    if end != len(data):
        found.append(finding("stream_keys_torn", path, position=end, length=len(data) - end))
    return {key.key_hash for key in keys}, found


def _snapshots(evidence: Evidence, path: str) -> tuple[tuple[SnapshotRow, ...], list[Finding]]:
    data, problem = _read(evidence, path)
    found = [problem] if problem else []
    if data is None:
        return (), found
    snapshots, end = af.decode_snapshots(data)
    if end != len(data):
        found.append(
            finding(
                "snapshot_record_torn",
                path,
                position=end,
                length=len(data) - end,
                message=f"unfinished record; {len(data) - end} bytes follow the last good one",
            )
        )
    last = {item.key: number for number, item in enumerate(snapshots)}
    rows = tuple(
        SnapshotRow(
            item.key,
            item.version,
            len(item.payload),
            item.at,
            item.length,
            last[item.key] == number,
        )
        for number, item in enumerate(snapshots)
    )
    return rows, found
