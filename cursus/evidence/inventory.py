"""The inventory of a log directory, as ``cursus-storage`` prints it.

An inventory lists what stands there: topics, partitions, segments, decoded
consumer records, and problems. It compares nothing with the manifest and knows
nothing of a start; whether a broker would start on the directory is the
business of ``cursus.replay``. Its rules and texts are a contract of their own,
so they are applied here on the records that the one segment scan delivers::

    problem   a path and a sentence; sorted by path bytes, then sentence; duplicates stay
    error     something cannot be looked at at all: no inventory (InventoryError)

The sentences belong to codes of the catalogue (:data:`PROBLEM_TEXTS`).

One difference to the reference (README.md decision 2): a complete record of up
to 64 MiB is a record. An unfinished frame above 16 MiB keeps the reference's
"invalid record length".

Source: manifest.md sections 3.2, 8.2 to 8.8.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from cursus import layout
from cursus.findings import FormatError
from cursus.formats import compaction_marker, consumer_metadata, topic_manifest
from cursus.formats.canonical_json import Writable
from cursus.formats.consumer_metadata import ConsumerRecord, OffsetItem
from cursus.formats.record import MAX_RECORD_BYTES, OLDER_MAX_RECORD_BYTES, Record, decode
from cursus.formats.record_columns import RecordColumns
from cursus.layout import FileKind
from cursus.replay.interfaces import (
    Entry,
    Evidence,
    RecordBatch,
    SegmentRef,
    SegmentScan,
    UnreadableError,
)

#: Codes of the catalogue and their sentences here; some codes have more than one (section 8.4).
PROBLEM_TEXTS: Final[Mapping[str, tuple[str, ...]]] = {
    "topic_entry_symlink": ("topic storage entry is a symbolic link",),
    "segment_name_not_canonical": ("non-canonical partition log name",),
    "not_regular_file": ("partition log is not a regular file",),
    "segment_id_out_of_range": ("partition or segment offset is out of range",),
    "torn_record_length": (
        "truncated record length",
        "truncated consumer metadata record length at byte {position}",
    ),
    "record_length_invalid": (
        "invalid record length {length}",
        "invalid consumer metadata record length {length} at byte {position}",
    ),
    "torn_record_body": (
        "truncated record payload",
        "truncated consumer metadata payload at byte {position}",
    ),
    "unsupported_record_format": (
        "invalid record: {tail}",
        "invalid consumer metadata disk record at byte {position}: {tail}",
    ),
    "record_identity_mismatch": ("record topic or partition does not match its path",),
    "segment_first_offset_mismatch": ("first offset {first} does not match segment base {base}",),
    "record_offset_not_contiguous": ("record offsets are not strictly contiguous",),
    "segment_offsets_overlap": ("segment offsets overlap or regress",),
    "segment_offsets_gap": ("segment offsets are not contiguous",),
    "compaction_marker_invalid": (
        "current compaction marker is not a regular file",
        "current compaction marker has invalid content",
        "read current compaction marker: {tail}",
    ),
    "hwm_checkpoint_invalid": ("invalid HWM checkpoint",),
    "hwm_checkpoint_ahead_of_log": ("HWM is ahead of log end",),
    "unversioned_record": (
        "legacy consumer metadata payload at record offset {offset}; clean bootstrap required",
    ),
    "invalid_json": ("invalid consumer metadata payload at record offset {offset}: {tail}",),
}
#: What the reference's record decoder says where this text is known.
_UNSUPPORTED_FORMAT: Final = "unsupported disk message format: clean bootstrap required"
#: A checkpoint is a number; more than this is none.
_MAX_HWM_BYTES: Final = 4096
_MAX_U64: Final = 2**64 - 1


class InventoryError(Exception):
    """There is no inventory. ``code`` is that of manifest.md sections 3 and 8.

    ``manifest_absent``, ``manifest_unreadable``, ``manifest_not_regular_file``,
    a code of the manifest decoder, ``hwm_unreadable``, ``segment_unreadable``
    or ``topic_directory_unreadable``.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class Problem:
    """A sentence about one entry. ``path`` is relative to the log directory."""

    path: str
    message: str


@dataclass(frozen=True, slots=True)
class Segment:
    """One segment. ``first_offset``, ``last_offset``, ``record_count`` are 0 without a record."""

    base_offset: int
    path: str
    size: int
    modified_unix_nano: int
    state: str
    active: bool
    first_offset: int
    last_offset: int
    record_count: int


@dataclass(frozen=True, slots=True)
class Partition:
    """One partition; ``log_end`` is the last offset + 1 of its live segments."""

    id: int
    segments: tuple[Segment, ...]
    deleted_segments: tuple[Segment, ...]
    log_start: int
    log_end: int
    hwm: int | None


@dataclass(frozen=True, slots=True)
class Topic:
    """One directory that holds logs, declared or not."""

    name: str
    partitions: tuple[Partition, ...]


@dataclass(frozen=True, slots=True)
class ConsumerEntry:
    """A decoded record of ``__consumer_offsets`` and where it stands."""

    segment_state: str
    log_partition: int
    segment_base: int
    record_offset: int
    record: ConsumerRecord


@dataclass(frozen=True, slots=True)
class Inventory:
    """Everything that stands in a log directory (section 8.2).

    ``in_use`` is not part of the document and of no comparison.
    """

    manifest_present: bool
    manifest_topics: tuple[str, ...]
    topics: tuple[Topic, ...]
    consumer_metadata_records: tuple[ConsumerEntry, ...]
    problems: tuple[Problem, ...]
    definitions: tuple[topic_manifest.TopicDefinition, ...] = ()
    in_use: bool | None = field(default=None, compare=False)

    @property
    def topic_names(self) -> tuple[str, ...]:
        """Names of :attr:`topics`."""
        return tuple(topic.name for topic in self.topics)


#: As ``Evidence.scan``.
ScanSegment = Callable[[SegmentRef, Callable[[RecordBatch], None]], SegmentScan]


def take_inventory(evidence: Evidence, scan: ScanSegment | None = None) -> Inventory:
    """Read everything once. Raises :class:`InventoryError`.

    ``scan`` answers in place of that of the evidence, for whoever has scanned already.
    """
    definitions = _manifest(evidence)
    collector = _Collector(evidence, scan or evidence.scan)
    topics = collector.topics()
    return Inventory(
        manifest_present=definitions is not None,
        manifest_topics=tuple(item.name for item in definitions or ()),
        topics=topics,
        consumer_metadata_records=collector.consumer_records(),
        problems=collector.problems(),
        definitions=definitions or (),
        in_use=evidence.in_use,
    )


def _manifest(evidence: Evidence) -> tuple[topic_manifest.TopicDefinition, ...] | None:
    entry = evidence.get(layout.MANIFEST)
    _check_looked_at(evidence, layout.MANIFEST, "manifest_unreadable")
    if entry is None:
        return None
    if entry.type != "file":
        raise InventoryError(
            "manifest_not_regular_file",
            f"{layout.MANIFEST} is a {entry.type}, not a regular file",
        )
    if entry.size > topic_manifest.MAX_BYTES:
        raise InventoryError(
            "manifest_too_large",
            f"{layout.MANIFEST} has {entry.size} bytes; the limit is {topic_manifest.MAX_BYTES}",
        )
    try:
        return topic_manifest.decode(
            evidence.read(layout.MANIFEST, topic_manifest.MAX_BYTES)
        ).definitions
    except UnreadableError as error:
        raise InventoryError("manifest_unreadable", f"{layout.MANIFEST}: {error}") from None
    except FormatError as error:
        if error.code == "manifest_version_unsupported":  # the reference's own sentence
            raise InventoryError(error.code, error.message) from None
        place = "" if error.position is None else f" byte {error.position}:"
        raise InventoryError(error.code, f"{layout.MANIFEST}:{place} {error.message}") from None


def _check_looked_at(evidence: Evidence, path: str, code: str) -> None:
    """The walk could not look at this entry, or list it."""
    for item in evidence.walk_findings:
        if item.code == "file_unreadable" and item.path == path:
            raise InventoryError(code, f"{path}: {item.message}")


class _Collector:
    """Goes through the topic directories and keeps what they say."""

    def __init__(self, evidence: Evidence, scan: ScanSegment) -> None:
        self.evidence = evidence
        self._scan = scan
        self._problems: Counter[Problem] = Counter()
        self._consumer: list[ConsumerEntry] = []
        self._unlooked = {
            item.path: item.message
            for item in evidence.walk_findings
            if item.code == "file_unreadable"
        }

    def problem(self, path: str, code: str, which: int = 0, **facts: object) -> None:
        self._problems[Problem(path, PROBLEM_TEXTS[code][which].format(**facts))] += 1

    def problems(self) -> tuple[Problem, ...]:
        ordered = sorted(
            self._problems, key=lambda item: (os.fsencode(item.path), _bytes(item.message))
        )
        return tuple(item for item in ordered for _ in range(self._problems[item]))

    def consumer_records(self) -> tuple[ConsumerEntry, ...]:
        return tuple(
            sorted(
                self._consumer,
                key=lambda item: (
                    item.segment_state,
                    item.log_partition,
                    item.segment_base,
                    item.record_offset,
                ),
            )
        )

    def topics(self) -> tuple[Topic, ...]:
        found = []
        for path, message in self._unlooked.items():
            if self._needed(path):
                raise InventoryError("topic_directory_unreadable", f"{path}: {message}")
        for entry in self.evidence.children(""):
            name = entry.path
            if name == layout.RAFT or not layout.is_topic_name(name):
                continue
            if entry.type == "symlink":
                self.problem(name, "topic_entry_symlink")
            elif entry.type == "directory" and (topic := self._topic(name)) is not None:
                found.append(topic)
        return tuple(found)

    def _needed(self, path: str) -> bool:
        """Is an entry that could not be looked at a topic directory or an entry of one?"""
        parts = path.split("/")
        if parts[0] == layout.RAFT or not layout.is_topic_name(parts[0]):
            return False
        return len(parts) == 1 or (len(parts) == 2 and self.evidence.get(path) is None)

    def _topic(self, name: str) -> Topic | None:
        live: dict[int, list[Entry]] = {}
        deleted: dict[int, list[Entry]] = {}
        candidates = False
        for entry in self.evidence.children(name):
            if entry.kind is FileKind.NONCANONICAL_LOG:
                candidates = True
                self.problem(entry.path, "segment_name_not_canonical")
            elif entry.kind in {FileKind.SEGMENT_LOG, FileKind.DELETED_LOG}:
                candidates = True
                partition, base = entry.partition or 0, entry.base or 0
                if entry.type != "file":
                    self.problem(entry.path, "not_regular_file")
                elif partition > layout.MAX_PARTITION or base > layout.MAX_OFFSET:
                    self.problem(entry.path, "segment_id_out_of_range")
                else:
                    side = live if entry.kind is FileKind.SEGMENT_LOG else deleted
                    side.setdefault(partition, []).append(entry)
        if not candidates:
            return None
        markers = self._markers(name)
        return Topic(
            name,
            tuple(
                self._partition(
                    name, number, live.get(number, []), deleted.get(number, []), markers
                )
                for number in sorted({*live, *deleted})
            ),
        )

    def _markers(self, topic: str) -> dict[str, list[Entry]]:
        """Possible compaction markers by the name of their log, in name order."""
        found: dict[str, list[Entry]] = {}
        for entry in self.evidence.children(topic):
            log_name = layout.marked_log(entry.path)
            if log_name is not None:
                found.setdefault(log_name, []).append(entry)
        return found

    def _partition(
        self,
        topic: str,
        partition: int,
        live: Sequence[Entry],
        deleted: Sequence[Entry],
        markers: Mapping[str, Sequence[Entry]],
    ) -> Partition:
        segments = []
        seams = _Seams(self)
        for number, entry in enumerate(live):
            active = number == len(live) - 1
            proven = self._proven(entry, markers.get(entry.path, ()))
            segment = self._segment(topic, partition, entry, active, proven and not active)
            segments.append(segment)
            seams.add(segment, proven and not active)
        gone = [
            self._segment(
                topic, partition, entry, False, self._proven(entry, markers.get(entry.path, ()))
            )
            for entry in deleted
        ]
        hwm = self._hwm(topic, partition)
        if hwm is not None and segments and hwm > seams.log_end:
            self.problem(
                layout.topic_file(topic, layout.hwm(partition)), "hwm_checkpoint_ahead_of_log"
            )
        return Partition(
            partition, tuple(segments), tuple(gone), seams.log_start, seams.log_end, hwm
        )

    def _proven(self, log: Entry, markers: Sequence[Entry]) -> bool:
        """Does a marker of the current size say that this log may have gaps?"""
        for entry in markers:
            if layout.marker_size(entry.path, log.path) != log.size:
                continue
            if entry.type != "file":
                self.problem(log.path, "compaction_marker_invalid", 0)
                return False
            try:
                valid = compaction_marker.is_valid(
                    self.evidence.read(entry.path, compaction_marker.SIZE)
                )
            except UnreadableError as error:
                self.problem(log.path, "compaction_marker_invalid", 2, tail=error)
                return False
            if not valid:
                self.problem(log.path, "compaction_marker_invalid", 1)
            return valid
        return False

    def _segment(
        self, topic: str, partition: int, entry: Entry, active: bool, gaps: bool
    ) -> Segment:
        deleted = entry.kind is FileKind.DELETED_LOG
        ref = SegmentRef(
            path=entry.path,
            topic=topic,
            partition=partition,
            base=entry.base or 0,
            size=entry.size,
            active=active,
            deleted=deleted,
            gaps_allowed=gaps,
            internal=topic == layout.INTERNAL_TOPIC,
        )
        reader = _SegmentReader(self, ref)
        scan = self._scan(ref, reader.visit)
        if scan.end == "unreadable":
            told = scan.findings[-1].message if scan.findings else "cannot be read"
            raise InventoryError("segment_unreadable", f"{entry.path}: {told}")
        if scan.end != "clean":
            self._end(scan)
        return Segment(
            base_offset=ref.base,
            path=entry.path,
            size=entry.size,
            modified_unix_nano=entry.mtime_ns,
            state="deleted" if deleted else "active",
            active=active,
            first_offset=scan.first_offset or 0,
            last_offset=scan.last_offset or 0,
            record_count=scan.record_count,
        )

    def _end(self, scan: SegmentScan) -> None:
        """What stands where the good frames end; in ``__consumer_offsets`` both passes say so."""
        ref, position = scan.segment, scan.end_position
        left = ref.size - position
        try:
            with self.evidence.open(ref.path) as source:
                length = int.from_bytes(source.pread(4, position), "big")
                if left < 4:
                    code = "torn_record_length"
                elif not 0 < length <= MAX_RECORD_BYTES:
                    code = "record_length_invalid"
                elif length + 4 > left:
                    # Above the older limit the reference does not look for the record.
                    older = length <= OLDER_MAX_RECORD_BYTES
                    code = "torn_record_body" if older else "record_length_invalid"
                else:
                    code = "unsupported_record_format"
                data = (
                    source.pread(length, position + 4)
                    if code == "unsupported_record_format"
                    else b""
                )
        except OSError as error:
            raise InventoryError("segment_unreadable", f"{ref.path}: {error}") from None
        tail = _decoder_text(data) if data else ""
        for which in range(2 if ref.internal else 1):
            self.problem(ref.path, code, which, length=length, position=position, tail=tail)

    def consumer_payload(self, ref: SegmentRef, record: Record) -> None:
        """Decode one payload of ``__consumer_offsets`` (section 8.6)."""
        try:
            decoded = consumer_metadata.decode(record.payload)
        except FormatError as error:
            if error.code == "unversioned_record":
                self.problem(ref.path, "unversioned_record", offset=record.offset)
            else:
                self.problem(ref.path, "invalid_json", offset=record.offset, tail=error.message)
            return
        state = "deleted" if ref.deleted else "active"
        self._consumer.append(ConsumerEntry(state, ref.partition, ref.base, record.offset, decoded))

    def _hwm(self, topic: str, partition: int) -> int | None:
        path = layout.topic_file(topic, layout.hwm(partition))
        entry = self.evidence.get(path)
        if entry is None:
            return None
        if entry.type != "file":
            raise InventoryError("hwm_unreadable", f"{path} is a {entry.type}, not a regular file")
        try:
            data = self.evidence.read(path, _MAX_HWM_BYTES)
        except UnreadableError as error:
            raise InventoryError("hwm_unreadable", f"{path}: {error}") from None
        value = _unsigned(data) if len(data) <= _MAX_HWM_BYTES else None
        if value is None:
            self.problem(path, "hwm_checkpoint_invalid")
        return value


def _unsigned(data: bytes) -> int | None:
    """Decimal unsigned 64-bit number between white space; no sign, ASCII digits."""
    try:
        text = topic_manifest.trim(data.decode("utf-8"))
    except UnicodeDecodeError:
        return None
    if not text.isascii() or not text.isdigit():
        return None
    digits = text.lstrip("0") or "0"
    value = int(digits) if len(digits) <= 20 else _MAX_U64 + 1
    return value if value <= _MAX_U64 else None


def _decoder_text(data: bytes) -> str:
    try:
        decode(data)
    except FormatError as error:
        return _UNSUPPORTED_FORMAT if error.code == "unsupported_record_format" else error.message
    return "the record changed while it was being read"


class _SegmentReader:
    """Checks the records of one segment as the scan delivers them (sections 8.3 to 8.6)."""

    def __init__(self, collector: _Collector, ref: SegmentRef) -> None:
        self._collector = collector
        self._ref = ref
        self._topic = ref.topic.encode()
        self._last: int | None = None

    def visit(self, batch: RecordBatch) -> None:
        if not batch.reachable or not len(batch):
            return
        ref, problem = self._ref, self._collector.problem
        if not ref.internal and self._is_plain(batch.columns()):
            return
        last = self._last
        for item in batch:
            record = item.record
            offset = record.offset
            if record.topic != self._topic or record.partition != ref.partition:
                problem(ref.path, "record_identity_mismatch")
            if last is None:
                if offset != ref.base and not ref.gaps_allowed:
                    problem(ref.path, "segment_first_offset_mismatch", first=offset, base=ref.base)
            elif offset <= last or (offset != last + 1 and not ref.gaps_allowed):
                problem(ref.path, "record_offset_not_contiguous")
            last = offset
            if ref.internal:
                self._collector.consumer_payload(ref, record)
        self._last = last

    def _is_plain(self, columns: RecordColumns) -> bool:
        """Is there nothing to say about any of these records?"""
        ref, offsets = self._ref, columns.offset
        first = int(offsets[0])
        if not bool((columns.partition == ref.partition).all()):
            return False
        if not bool(columns.topic.equals(self._topic).all()):
            return False
        steps = offsets[1:] > offsets[:-1]
        if not ref.gaps_allowed:
            steps &= offsets[1:] - offsets[:-1] == 1
            if first != (ref.base if self._last is None else self._last + 1):
                return False
        if (self._last is not None and first <= self._last) or not bool(steps.all()):
            return False
        self._last = int(offsets[-1])
        return True


class _Seams:
    """The seams between live segments and the bounds of the log (section 8.3, 5 and 6)."""

    def __init__(self, collector: _Collector) -> None:
        self._collector = collector
        self._last: int | None = None
        self._lent = False
        self.log_start = 0
        self.log_end = 0

    def add(self, segment: Segment, gaps: bool) -> None:
        if segment.record_count == 0:
            if self._last is None:
                self.log_start = self.log_end = segment.base_offset
            self._lent |= gaps
            return
        first = segment.first_offset
        if self._last is None:
            self.log_start = first
        elif first <= self._last:
            self._collector.problem(segment.path, "segment_offsets_overlap")
        elif first != self._last + 1 and not gaps and not self._lent:
            self._collector.problem(segment.path, "segment_offsets_gap")
        self._last = segment.last_offset
        self._lent = gaps
        self.log_end = min(segment.last_offset + 1, _MAX_U64)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


# -- documents ---------------------------------------------------------------------


def inventory_document(inventory: Inventory) -> dict[str, Writable]:
    """``manifest inspect`` (section 8.2)."""
    found: dict[str, Writable] = {"manifest_present": inventory.manifest_present}
    if inventory.manifest_topics:
        found["manifest_topics"] = inventory.manifest_topics
    found["topics"] = [_topic(topic) for topic in inventory.topics]
    if inventory.consumer_metadata_records:
        found["consumer_metadata_records"] = [
            _consumer(item) for item in inventory.consumer_metadata_records
        ]
    return _with_problems(found, inventory.problems)


def consumer_document(inventory: Inventory) -> dict[str, Writable]:
    """``consumer-metadata inspect`` (section 8.6)."""
    records = [_consumer(item) for item in inventory.consumer_metadata_records]
    return _with_problems({"records": records}, inventory.problems)


def orphan_document(inventory: Inventory) -> dict[str, Writable]:
    """``orphan inspect`` (section 8.7). Raises :class:`InventoryError` ``manifest_absent``."""
    if not inventory.manifest_present:
        raise InventoryError(
            "manifest_absent",
            f"{layout.MANIFEST} is absent: without it nothing can be called an orphan",
        )
    declared = set(inventory.manifest_topics)
    topics = [_topic(topic) for topic in inventory.topics if topic.name not in declared]
    return _with_problems({"topics": topics}, inventory.problems)


class ProblemView(Protocol):
    """Something with a path and a sentence."""

    @property
    def path(self) -> str: ...

    @property
    def message(self) -> str: ...


def problems_document(problems: Iterable[ProblemView]) -> list[Writable]:
    """The ``problems`` list of every document."""
    return [{"path": item.path, "message": item.message} for item in problems]


def _with_problems(found: dict[str, Writable], problems: Sequence[Problem]) -> dict[str, Writable]:
    if problems:
        found["problems"] = problems_document(problems)
    return found


def _topic(topic: Topic) -> Writable:
    partitions = [_partition(item) for item in topic.partitions]
    return {"name": topic.name, "partitions": partitions or None}


def _partition(partition: Partition) -> Writable:
    found: dict[str, Writable] = {
        "id": partition.id,
        "segments": [_segment(item) for item in partition.segments] or None,
    }
    if partition.deleted_segments:
        found["deleted_segments"] = [_segment(item) for item in partition.deleted_segments]
    found["log_start"] = partition.log_start
    found["log_end"] = partition.log_end
    found["hwm"] = partition.hwm
    return found


def _segment(segment: Segment) -> Writable:
    return {
        "base_offset": segment.base_offset,
        "path": segment.path,
        "size": segment.size,
        "modified_unix_nano": segment.modified_unix_nano,
        "state": segment.state,
        "active": segment.active,
        "first_offset": segment.first_offset,
        "last_offset": segment.last_offset,
        "record_count": segment.record_count,
    }


def _consumer(entry: ConsumerEntry) -> Writable:
    record = entry.record
    found: dict[str, Writable] = {
        "segment_state": entry.segment_state,
        "log_partition": entry.log_partition,
        "segment_base": entry.segment_base,
        "record_offset": entry.record_offset,
        "record_type": record.type,
        "version": record.version,
    }
    optional: dict[str, Writable] = {
        "group": record.group,
        "topic": record.topic,
        "partition_count": record.partition_count,
        "lifecycle_epoch": record.epoch,
        "snapshot_revision": record.revision,
        "offsets": _items(record.offsets),
        "initial_offsets": [
            {
                "topic": item.topic,
                "revision": item.revision,
                "offsets": _items(item.offsets) or None,
            }
            for item in record.initial_offsets
        ],
    }
    found.update({name: value for name, value in optional.items() if value})
    return found


def _items(items: Iterable[OffsetItem]) -> list[Writable]:
    return [{"partition": item.partition, "offset": item.offset} for item in items]
