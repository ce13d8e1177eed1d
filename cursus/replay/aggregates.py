"""Aggregates of an event-sourcing partition: their versions in the log, and the files beside it.

The log is the truth: a record with a key and an aggregate version is an event,
and the versions of a key go up by one. Index and keys are derived from it; a
start throws them away and builds them anew, so what is wrong with them is worth
a warning and no more. An index that ends early is normal after a crash, since
it is not synced, and one that begins early is normal where retention has removed
records since. A jump of versions in the log itself means lost events.

The files are read through a window: no length in them is trusted, and payloads
of snapshots are never loaded.

Source: journal.md section 7; README.md decision 36.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from cursus import layout
from cursus.findings import Finding, Lost, finding
from cursus.formats import aggregate_files as af
from cursus.layout import FileKind
from cursus.replay.interfaces import (
    ByteSource,
    Evidence,
    RecordBatch,
    SegmentRef,
    UnreadableError,
)
from cursus.replay.reduced import AggregateEvents
from cursus.replay.segments import PartitionLog

MAX_GAPS: Final = 100
#: Keys and snapshots that are looked at in one file; the rest is left alone.
MAX_KEYS: Final = 1_000_000
MAX_SNAPSHOTS: Final = 1_000_000
_CHUNK: Final = 1 << 20
_ENTRY = struct.Struct(">QQQQ")


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
        self._begins_late: bool | None = None  # does the log begin above offset 0?

    def visit(self, batch: RecordBatch) -> None:
        """Take the events of a batch; topics that are not event-sourcing have none."""
        if not self.event_sourcing or not batch.reachable or batch.segment.deleted:
            return
        if self._begins_late is None:
            # Segments come in ascending order, and only the first tells where the log begins.
            self._begins_late = batch.segment.base > 0
        events = batch.aggregate_events()
        if len(events) and not self._take_in_order(events, self._begins_late):
            self._take_each(events, batch.segment, self._begins_late)

    def _take_in_order(self, events: AggregateEvents, late: bool) -> bool:
        """Take events where the versions of every key go up by one; else take nothing.

        ``late``: the log does not begin at 0, so the first version seen is the base.
        """
        order = np.argsort(events.key, kind="stable")
        keys, versions = events.key[order], events.version[order]
        same = keys[1:] == keys[:-1]
        # A version is above 0, and never one more than the highest number: nothing wraps.
        if not bool((~same | (versions[1:] == versions[:-1] + np.uint64(1))).all()):
            return False
        heads = np.flatnonzero(np.append(True, ~same))
        ends = np.append(heads[1:], len(keys)) - 1
        for key, version in zip(keys[heads].tolist(), versions[heads].tolist(), strict=True):
            known = self._versions.get(events.keys[key])
            expected = 1 if known is None else known + 1
            if version != expected and not (known is None and late):
                return False
        for key, version in zip(keys[ends].tolist(), versions[ends].tolist(), strict=True):
            self._versions[events.keys[key]] = version
        hashes = np.array([self._hash(key) for key in events.keys], np.uint64)
        rows = np.column_stack((hashes[events.key], events.version, events.offset))
        self._entries.frombytes(rows.tobytes())
        self._events += len(events)
        return True

    def _take_each(self, events: AggregateEvents, segment: SegmentRef, late: bool) -> None:
        path = segment.path
        rows = zip(
            events.key.tolist(),
            events.version.tolist(),
            events.offset.tolist(),
            events.position.tolist(),
            events.length.tolist(),
            strict=True,
        )
        for code, version, offset, position, length in rows:
            key = events.keys[code]
            known = self._versions.get(key)
            if known is not None and version <= known:
                continue
            expected = 1 if known is None else known + 1
            # Behind a log that does not begin at 0 the first version seen is the base.
            if version != expected and not (known is None and late):
                self._gap(path, position, length, key, expected, version)
            self._versions[key] = version
            self._entries.extend((self._hash(key), version, offset))
            self._events += 1

    def _hash(self, key: bytes) -> int:
        value = self._hashes.get(key)
        if value is None:
            value = self._hashes[key] = af.fnv1a64(key)
        return value

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
        # Behind damage everything looks like a jump; the damage is told already.
        found = self._told_gaps() if opens else []
        entry = evidence.get(directory)
        rows: list[SnapshotRow] = []
        if entry is not None and entry.type == "directory":
            hashes: set[int] | None = set()
            with_file = _Files(evidence, directory, self.partition, found)
            with with_file.open(FileKind.AGGREGATE_KEYS) as file:
                if file is not None:
                    hashes = _keys(file, found)
            with with_file.open(FileKind.AGGREGATE_INDEX) as file:
                if file is not None:
                    live = bool(evidence.in_use)
                    found.extend(self._compare(file, hashes, log, opens=opens, live=live))
            with with_file.open(FileKind.AGGREGATE_SNAPSHOTS) as file:
                if file is not None:
                    rows = _snapshots(file, found)
        return AggregateFiles(
            topic=self.topic,
            partition=self.partition,
            event_sourcing=self.event_sourcing,
            versions=dict(sorted(self._versions.items())),
            events=self._events,
            gaps=self._gap_count,
            snapshots=tuple(rows),
            findings=tuple(found),
        )

    def _told_gaps(self) -> list[Finding]:
        found = list(self._gaps)
        if self._gap_count > len(found):
            last = found[-1]
            more = self._gap_count - len(found)
            found.append(
                replace(last, message=f"{more} more jumps follow", detail={"repeated": more})
            )
        return found

    def _compare(
        self, file: _File, hashes: set[int] | None, log: PartitionLog, *, opens: bool, live: bool
    ) -> Iterable[Finding]:
        """What is wrong with the index; ``hashes`` is ``None`` when not all keys are known."""
        whole = file.size - file.size % af.INDEX_ENTRY_BYTES
        if whole != file.size and not live:
            yield finding(
                "stream_index_entry_torn", file.path, position=whole, length=file.size - whole
            )
        unknown = hashes is not None
        compares = self.event_sourcing and opens
        due, count = 0, len(self._entries) // 3
        for at, key_hash, version, offset in _index(file, whole):
            if not version:
                unknown = False  # no event has this version: zeros, a hole of a terabyte perhaps
            if not unknown and not compares:
                return
            if unknown and hashes is not None and key_hash not in hashes:
                yield finding("stream_index_hash_unknown", file.path, position=at, length=32)
                unknown = False
            if not compares or (version and offset < log.log_start):
                continue  # retention removes records, the index is only rebuilt at the next use
            if due < count:
                told = tuple(self._entries[3 * due : 3 * due + 3])
                same, what = told == (key_hash, version, offset), "another event"
            else:
                same, what = live and version > 0, "no event"
            due += 1
            if not same:
                compares = False
                yield finding(
                    "stream_index_diverges_from_log",
                    file.path,
                    position=at,
                    length=32,
                    message=f"the entry says version {version} at offset {offset}; "
                    f"the log has {what} there",
                    topic=self.topic,
                    partition=self.partition,
                )


class _File:
    """One file through a window of :data:`_CHUNK` bytes."""

    def __init__(self, path: str, source: ByteSource) -> None:
        self.path = path
        self.size = source.size
        self._source = source
        self._start = 0
        self._data = b""

    def get(self, position: int, length: int) -> bytes:
        """Bytes of the file, fewer where it has become shorter."""
        offset = position - self._start
        if offset < 0 or offset + length > len(self._data):
            self._start, offset = position, 0
            self._data = self._source.pread(max(length, _CHUNK), position)
        return self._data[offset : offset + length]


class _Files:
    """The three files of a partition; what cannot be opened becomes a finding."""

    def __init__(
        self, evidence: Evidence, directory: str, partition: int, found: list[Finding]
    ) -> None:
        self.evidence = evidence
        self.directory = directory
        self.partition = partition
        self.found = found

    @contextmanager
    def open(self, kind: FileKind) -> Iterator[_File | None]:
        path = f"{self.directory}/{layout.aggregate_file(self.partition, kind)}"
        entry = self.evidence.get(path)
        if entry is None:
            yield None
            return
        if entry.type != "file":
            text = f"a {entry.type} stands where an aggregate file should be"
            told = finding("checkpoint_not_regular", path, message=text)
            self.found.append(replace(told, effect="ignores", severity="warning"))
            yield None
            return
        try:
            source = self.evidence.open(path)
        except UnreadableError as error:
            self.found.append(replace(error.finding, step=5))
            yield None
            return
        with source:
            try:
                yield _File(path, source)
            except OSError as error:
                text = f"cannot be read: {error.strerror or error}"
                told = finding("file_unreadable", path, message=text, effect="recovers", step=5)
                self.found.append(told)


def _index(file: _File, whole: int) -> Iterator[tuple[int, int, int, int]]:
    """Position, hash, version and offset of every whole entry."""
    step = _CHUNK
    for start in range(0, whole, step):
        data = file.get(start, min(step, whole - start))
        usable = len(data) - len(data) % af.INDEX_ENTRY_BYTES
        for number, (key_hash, version, offset, _) in enumerate(_ENTRY.iter_unpack(data[:usable])):
            yield start + af.INDEX_ENTRY_BYTES * number, key_hash, version, offset


def _keys(file: _File, found: list[Finding]) -> set[int] | None:
    """Hashes of the keys, ``None`` when there are too many to know them all."""
    hashes: set[int] = set()
    wrong = False
    at = count = 0
    while at + 10 <= file.size:
        head = file.get(at, 10)
        if len(head) < 10:
            return hashes
        value, length = int.from_bytes(head[:8], "big"), int.from_bytes(head[8:], "big")
        if at + 10 + length > file.size:
            break
        if count >= MAX_KEYS:
            return None
        count += 1
        if not wrong and af.fnv1a64(file.get(at + 10, length)) != value:
            wrong = True
            found.append(finding("stream_keys_hash_mismatch", file.path, position=at, length=8))
        hashes.add(value)
        at += 10 + length
    if at != file.size:
        found.append(finding("stream_keys_torn", file.path, position=at, length=file.size - at))
    return hashes


def _snapshots(file: _File, found: list[Finding]) -> list[SnapshotRow]:
    rows: list[SnapshotRow] = []
    last: dict[bytes, int] = {}
    at = 0
    while at + 2 <= file.size:
        key_length = int.from_bytes(file.get(at, 2), "big")
        fixed = at + 2 + key_length
        if fixed + 12 > file.size:
            break
        key, rest = file.get(at + 2, key_length), file.get(fixed, 12)
        if len(key) < key_length or len(rest) < 12 or len(rows) >= MAX_SNAPSHOTS:
            return rows
        version, size = int.from_bytes(rest[:8], "big"), int.from_bytes(rest[8:], "big")
        end = fixed + 12 + size
        if end > file.size:
            break
        earlier = last.get(key)
        if earlier is not None:
            rows[earlier] = replace(rows[earlier], current=False)
        last[key] = len(rows)
        rows.append(SnapshotRow(key, version, size, at, end - at, True))
        at = end
    if at != file.size:
        left = file.size - at
        found.append(
            finding(
                "snapshot_record_torn",
                file.path,
                position=at,
                length=left,
                message=f"unfinished record; {left} bytes follow the last good one",
                lost=Lost(bytes=left),
            )
        )
    return rows
