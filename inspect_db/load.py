"""Build an index: replay a log directory into rows.

The judgement is that of a start (``cursus.replay.startup.plan``); the loader
listens while the segments are scanned, and afterwards writes down what was
decided. Nothing is decided here but three sums that SQL cannot make: differences
of unsigned numbers, the revision before a revision, and the largest records.

The index is made in a file of its own beside the destination, named
``.NAME.building-PID-RANDOM``, and renamed into place when it is whole. Until
then the old index stays as it is. Whatever ends the build early removes the
unfinished file; after a kill the next build does.

Source: design.md "The index", principle 8; README.md decision 17.
"""

from __future__ import annotations

import hashlib
import heapq
import json
import os
import re
import secrets
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Literal, NoReturn

import apsw

import cursus
from cursus import layout
from cursus.evidence.inventory import InventoryError, inventory_document, take_inventory
from cursus.evidence.walk import LogDirectory, LogDirectoryError
from cursus.findings import CATALOGUE, Finding, finding
from cursus.formats import canonical_json, timestamps
from cursus.formats.consumer_metadata import SNAPSHOT, ConsumerRecord, TopicSnapshot
from cursus.formats.display import safe_text
from cursus.layout import FileClass, FileKind, file_class
from cursus.replay.consumer_groups import ConsumerResult, ConsumerRow
from cursus.replay.interfaces import (
    Entry,
    Evidence,
    RecordBatch,
    SegmentScan,
    UnreadableError,
)
from cursus.replay.segments import PartitionLog
from cursus.replay.startup import Plan, StartupConfig, plan
from inspect_db.index import SCHEMA_VERSION, is_index, schema_scripts
from inspect_db.values import SqlNumber, difference, name, name_or_none, number, number_or_none

RecordsMode = Literal["all", "internal", "none"]
#: Called with (bytes scanned, bytes to scan).
Progress = Callable[[int, int], None]

#: Kept of the largest records.
LARGEST: Final = 100
#: Combinations remembered; beyond that some are written twice, which costs space only.
MAX_SHAPES: Final = 50_000
BLOCK_BYTES: Final = 1 << 20
#: Longer than any tick of the kernel's clock (HZ = 100 is the slowest).
TICK_NS: Final = 20_000_000
PAGE_BYTES: Final = 4096
_CACHE_KIB: Final = 16_384
_LOGS: Final = {FileKind.SEGMENT_LOG, FileKind.DELETED_LOG, FileKind.NONCANONICAL_LOG}
_HASHED_CLASSES: Final = {FileClass.AUTHORITATIVE, FileClass.DERIVED, FileClass.CLIENT_DATA}
_NUMBERS: Final = struct.Struct(">QQQQqqIQqh")


class BuildError(Exception):
    """No index was made, and an older one is as it was; the message says why."""


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """What goes into an index. ``as_of``: nanoseconds since the zero time."""

    as_of: int
    records: RecordsMode = "all"
    payload_bytes: int = 0
    hashes: bool = False
    config: StartupConfig = field(default_factory=StartupConfig)


@dataclass(frozen=True, slots=True)
class BuildResult:
    """What was made. ``changed``: paths of files that changed while they were read."""

    path: str
    verdict: str
    records: int
    bytes: int
    changed: tuple[str, ...]


# -- the file ----------------------------------------------------------------------------


def build(
    log_dir: str, destination: str, options: BuildOptions, progress: Progress | None = None
) -> BuildResult:
    """Read ``log_dir`` and put an index at ``destination``.

    Raises :class:`BuildError`; then, as after an interruption, an older index
    stands where it stood and nothing new is left behind.
    """
    target = os.path.abspath(destination)
    _check_destination(log_dir, target)
    folder, base = os.path.split(target)
    unfinished = os.path.join(folder, f".{base}.building-{os.getpid()}-{secrets.token_hex(4)}")
    try:
        _remove_abandoned(target)
        result = _build(log_dir, target, unfinished, options, progress)
        _publish(unfinished, target)
    except apsw.Error as error:
        _failed(target, error)
    except LogDirectoryError as error:
        raise BuildError(safe_text(str(error))) from None
    except OSError as error:
        raise BuildError(f"{safe_text(target)}: {error.strerror or error}") from None
    finally:
        _remove(unfinished)
    return result


def _failed(target: str, error: apsw.Error) -> NoReturn:
    shown = safe_text(target)
    if isinstance(error, apsw.FullError):
        raise BuildError(f"{shown}: no space left for the index") from None
    if isinstance(error, (apsw.CantOpenError, apsw.ReadOnlyError, apsw.PermissionsError)):
        raise BuildError(f"{shown}: the index cannot be written there") from None
    raise BuildError(f"{shown}: the index cannot be written ({error})") from None


def _check_destination(log_dir: str, target: str) -> None:
    shown = safe_text(target)
    folder = os.path.dirname(target)
    if not os.path.isdir(folder):
        raise BuildError(f"{safe_text(folder)}: no such directory")
    inside = os.path.realpath(log_dir)
    for place in (os.path.join(os.path.realpath(folder), os.path.basename(target)), target):
        if os.path.commonpath([inside, os.path.realpath(place)]) == inside:
            raise BuildError(
                f"{shown} is inside the log directory; nothing is ever written there: "
                "choose another place"
            )
    if os.path.isdir(target):
        raise BuildError(f"{shown} is a directory; name a file")
    if os.path.lexists(target):
        plain = os.path.isfile(target) and not os.path.islink(target)
        if plain and not os.access(target, os.R_OK):
            raise BuildError(f"{shown}: permission denied; what stands there cannot be looked at")
        if not plain or (os.path.getsize(target) and not is_index(target)):
            raise BuildError(f"{shown} exists and is not an index; it is not overwritten")


def _remove(path: str) -> None:
    for suffix in ("", "-journal", "-wal", "-shm"):
        with suppress(OSError):  # what went wrong before is what is told
            os.unlink(path + suffix)


def _remove_abandoned(target: str) -> None:
    """Unfinished files of builds whose process is gone."""
    folder, base = os.path.split(target)
    pattern = re.compile(rf"(\.{re.escape(base)}\.building-([0-9]+)-[0-9a-f]+)(?:-journal)?")
    for found in os.listdir(folder):
        match = pattern.fullmatch(found)
        if match is None:
            continue
        try:
            os.kill(int(match[2]), 0)
        except ProcessLookupError:
            _remove(os.path.join(folder, match[1]))
        except (OSError, OverflowError):
            continue


def _publish(unfinished: str, target: str) -> None:
    with open(unfinished, "rb") as file:
        os.fsync(file.fileno())
    for suffix in ("-journal", "-wal", "-shm"):
        with suppress(FileNotFoundError):
            os.unlink(target + suffix)
    os.rename(unfinished, target)
    folder = os.open(os.path.dirname(target), os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _build(
    log_dir: str,
    target: str,
    unfinished: str,
    options: BuildOptions,
    progress: Progress | None,
) -> BuildResult:
    # Nobody else may read evidence through the index before its owner allows it.
    os.close(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    connection = apsw.Connection(unfinished)
    try:
        create_schema(connection)
        connection.execute("begin")
        with LogDirectory.at(log_dir) as evidence:
            loader = Loader(connection, options, progress)
            _let_the_clock_tick(evidence.entries)
            loader.load_files(evidence.entries)
            judged = plan(evidence, options.config, options.as_of, sink=loader.visit)
            loader.load_plan(judged)
            loader.load_contents(evidence)
            document, refusal = _inventory(evidence)
            changed, appeared = _changed(log_dir, evidence.entries)
            loader.load_changes(changed, appeared, judged)
        loader.load_build(judged, document, refusal, len(changed) + len(appeared))
        connection.execute("commit")
    finally:
        connection.close()
    return BuildResult(
        path=target,
        verdict=judged.verdict,
        records=loader.records,
        bytes=os.path.getsize(unfinished),
        changed=(*changed, *appeared),
    )


def create_schema(connection: apsw.Connection) -> None:
    """An empty index in a database of its own; without a journal, since it is thrown away."""
    for pragma in (
        f"page_size = {PAGE_BYTES}",
        "journal_mode = off",
        "synchronous = off",
        "locking_mode = exclusive",
        f"cache_size = -{_CACHE_KIB}",
    ):
        connection.execute(f"pragma {pragma}")
    for _, text in schema_scripts():
        connection.execute(text)


def _inventory(evidence: Evidence) -> tuple[bytes | None, str | None]:
    try:
        return canonical_json.pretty(inventory_document(take_inventory(evidence))), None
    except InventoryError as error:
        return None, str(error)


def _changed(log_dir: str, entries: Iterable[Entry]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Files that are not what they were when the reading began, and what was not there then."""
    with LogDirectory.at(log_dir) as again:
        changed = []
        known = set()
        for entry in entries:
            known.add(entry.path)
            now = again.get(entry.path)
            if entry.type == "file" and (now is None or _stamp(now) != _stamp(entry)):
                changed.append(entry.path)
        appeared = [entry.path for entry in again.entries if entry.path not in known]
    return tuple(changed), tuple(appeared)


def _stamp(entry: Entry) -> tuple[object, ...]:
    """What differs when a file was touched; its modification time alone can be put back."""
    return (entry.type, entry.dev, entry.ino, entry.size, entry.mtime_ns, entry.ctime_ns)


def _let_the_clock_tick(entries: Iterable[Entry]) -> None:
    """Wait until a change of a file that changed just now would show in its ``ctime``.

    The kernel stamps files with the time of its last tick: a second change inside
    the same tick leaves no trace.
    """
    latest = max((entry.ctime_ns for entry in entries), default=0)
    age = time.time_ns() - latest
    if 0 <= age < TICK_NS:
        time.sleep((TICK_NS - age) / 1e9)


# -- rows ----------------------------------------------------------------------------------


@dataclass(slots=True)
class _Sums:
    """Sums over the records of one segment."""

    records: int = 0
    bytes: int = 0
    payload_bytes: int = 0
    largest: int = 0
    keyed: int = 0
    transactional: int = 0
    control: int = 0
    unreachable: int = 0


class Loader:
    """Writes rows into an empty index; one build, one loader."""

    def __init__(
        self,
        connection: apsw.Connection,
        options: BuildOptions,
        progress: Progress | None = None,
    ) -> None:
        self.connection = connection
        self.options = options
        self.progress = progress
        self.ids: dict[str, int] = {}
        self.records = 0
        self._sums: dict[int, _Sums] = {}
        self._digests: dict[int, Any] = {}
        self._shapes: dict[tuple[Any, ...], int] = {}
        self._shape_count = 0
        self._largest: list[tuple[int, int, int, tuple[Any, ...]]] = []
        self._scanned = 0
        self._to_scan = 0
        self._finding_count = 0

    def _insert(self, table: str, rows: Iterable[Sequence[Any]]) -> None:
        """Rows with a value for each column, in the order of the schema."""
        iterator = iter(rows)
        first = next(iterator, None)
        if first is None:
            return
        marks = ", ".join("?" * len(first))
        statement = f"insert into {table} values ({marks})"
        self.connection.execute(statement, first)
        self.connection.executemany(statement, iterator)

    # -- files ---------------------------------------------------------------------------

    def load_files(self, entries: Sequence[Entry]) -> None:
        """Everything below the log directory; the ids ascend by path bytes."""
        self.ids = {entry.path: at for at, entry in enumerate(entries, 1)}
        self._to_scan = sum(entry.size for entry in entries if entry.kind in _LOGS)
        self._insert(
            "files",
            (
                (
                    self.ids[entry.path],
                    name(entry.path),
                    entry.kind.value,
                    file_class(entry.kind).value,
                    entry.type,
                    None if entry.topic is None else name(entry.topic),
                    number_or_none(entry.partition),
                    number_or_none(entry.base),
                    number_or_none(entry.number),
                    entry.size,
                    entry.mtime_ns,
                    entry.mode,
                    number(entry.dev),
                    number(entry.ino),
                    None,
                    None,
                    0,
                )
                for entry in entries
            ),
        )

    def load_contents(self, evidence: Evidence) -> None:
        """Digests of contents: what two builds of the same evidence have in common."""
        for file_id, digest in self._digests.items():
            self._set_content(file_id, digest.digest())
        rows = self.connection.execute(
            "select file_id from segments where ends <> 'clean'"
        ).fetchall()
        damaged = {row[0] for row in rows}
        for entry in evidence.entries:
            if entry.type != "file":
                continue
            file_id = self.ids[entry.path]
            wanted = file_class(entry.kind) in _HASHED_CLASSES and entry.kind not in _LOGS
            if wanted or file_id in damaged:
                digest = hashlib.blake2b(digest_size=16)
                if _read_all(evidence, entry.path, digest.update):
                    self._set_content(file_id, digest.digest())
            if self.options.hashes:
                self._hash(evidence, entry, file_id)

    def _set_content(self, file_id: int, digest: bytes) -> None:
        self.connection.execute("update files set content = ? where file_id = ?", (digest, file_id))

    def _hash(self, evidence: Evidence, entry: Entry, file_id: int) -> None:
        whole = hashlib.sha256()
        blocks: list[tuple[int, int, int, int, bytes]] = []

        def take(data: bytes) -> None:
            whole.update(data)
            at = len(blocks)
            digest = hashlib.sha256(data).digest()
            blocks.append((file_id, at, at * BLOCK_BYTES, len(data), digest))

        if _read_all(evidence, entry.path, take):
            self._insert("file_blocks", blocks)
            self.connection.execute(
                "update files set sha256 = ? where file_id = ?", (whole.digest(), file_id)
            )

    # -- records, while they are scanned ---------------------------------------------------

    def visit(self, batch: RecordBatch) -> None:
        """Take one batch of the scan (the sink of the plan)."""
        segment = batch.segment
        file_id = self.ids[segment.path]
        sums = self._sums.setdefault(file_id, _Sums())
        digest = self._digests.get(file_id)
        if digest is None:
            digest = self._digests[file_id] = hashlib.blake2b(digest_size=16)
        mode = self.options.records
        keep = mode == "all" or (mode == "internal" and segment.internal)
        kept_payload = self.options.payload_bytes
        topic = segment.topic.encode("utf-8", "surrogateescape")
        partition, reachable = segment.partition, batch.reachable
        shapes = self._shapes
        rows: list[tuple[Any, ...]] = []
        parts: list[bytes] = []
        for item in batch:
            record = item.record
            length, position, size = item.length, item.position, len(record.payload)
            shape = (
                record.producer_id,
                record.epoch,
                record.event_type,
                record.schema_version,
                record.transactional_id,
                record.transaction_state,
                record.transaction_marker,
                record.control_type,
                record.control_version,
                record.control_coordinator_epoch,
                reachable,
                None if record.topic == topic else record.topic,
                None if record.partition == partition else record.partition,
            )
            sums.bytes += length
            sums.payload_bytes += size
            sums.largest = max(sums.largest, length)
            sums.keyed += bool(record.key)
            sums.transactional += bool(record.transactional_id)
            sums.control += record.is_control
            self._look_at_size(length, file_id, position, segment, record.offset, size)
            parts.append(
                _NUMBERS.pack(
                    position,
                    length,
                    record.offset,
                    record.sequence,
                    record.epoch,
                    record.partition,
                    record.schema_version,
                    record.aggregate_version,
                    record.control_coordinator_epoch,
                    record.control_version,
                )
            )
            parts += (
                record.topic,
                record.producer_id,
                record.payload,
                record.event_type,
                record.metadata,
                record.key,
                record.transactional_id,
                record.transaction_state,
                record.transaction_marker,
                record.control_type,
                record.control_key,
                record.control_value,
            )
            if keep:
                rows.append(
                    (
                        file_id,
                        position,
                        length,
                        shapes.get(shape) or self._new_shape(shape),
                        number(record.offset),
                        number(record.sequence) if record.sequence else None,
                        number(record.aggregate_version) if record.aggregate_version else None,
                        name(record.key) if record.key else None,
                        size,
                        record.payload[:kept_payload] if kept_payload else None,
                    )
                )
        digest.update(b"".join(parts))
        sums.records += len(batch)
        sums.unreachable += 0 if reachable else len(batch)
        self.records += len(batch)
        if rows:
            self.connection.executemany(
                "insert or ignore into record_rows values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", rows
            )
        if self.progress is not None and len(batch):
            self._scanned += sum(item.length for item in batch)
            self.progress(self._scanned, self._to_scan)

    def _look_at_size(
        self, length: int, file_id: int, position: int, segment: Any, offset: int, size: int
    ) -> None:
        largest = self._largest
        if len(largest) >= LARGEST and length <= largest[0][0]:
            return
        row = (length, name(segment.topic), number(segment.partition), number(offset), size)
        # Of equal ones the first in the order of files stays.
        entry = (length, -file_id, -position, row)
        if len(largest) < LARGEST:
            heapq.heappush(largest, entry)
        else:
            heapq.heapreplace(largest, entry)

    def _new_shape(self, shape: tuple[Any, ...]) -> int:
        if len(self._shapes) >= MAX_SHAPES:
            self._shapes.clear()
        self._shape_count += 1
        self._shapes[shape] = at = self._shape_count
        producer, epoch, event, schema, txn, state, marker, control, version, coordinator = shape[
            :10
        ]
        reachable, topic, partition = shape[10:]
        self.connection.execute(
            "insert into record_shapes values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                at,
                name_or_none(topic),
                partition,
                name_or_none(producer),
                epoch,
                name_or_none(event),
                schema,
                name_or_none(txn),
                name_or_none(state),
                name_or_none(marker),
                name_or_none(control),
                version,
                coordinator,
                int(reachable),
            ),
        )
        return at

    # -- what was decided --------------------------------------------------------------------

    def load_plan(self, judged: Plan) -> None:
        """Everything that the plan says, and the sums over the records."""
        self._load_sums()
        self._load_topics(judged)
        for log in judged.partitions.values():
            self._load_partition(log, judged)
        bounds = {
            key: (log.log_start, log.next_offset)
            for key, log in judged.partitions.items()
            if log.segments
        }
        self.load_consumers(judged.consumers, bounds)
        self._load_journal(judged)
        self._load_producers(judged)
        self._load_checkpoints(judged)
        self._load_aggregates(judged)
        self._load_findings(judged)

    def _load_sums(self) -> None:
        self._insert(
            "segment_sums",
            (
                (
                    file_id,
                    sums.records,
                    sums.bytes,
                    sums.payload_bytes,
                    sums.largest,
                    sums.keyed,
                    sums.transactional,
                    sums.control,
                    sums.unreachable,
                )
                for file_id, sums in sorted(self._sums.items())
            ),
        )
        ordered = sorted(self._largest, reverse=True)
        self._insert(
            "largest_records",
            (
                (rank, -file_id, -position, *row)
                for rank, (_, file_id, position, row) in enumerate(ordered, 1)
            ),
        )

    def _load_topics(self, judged: Plan) -> None:
        definitions = judged.manifest.by_name
        storage = judged.topics.topics
        rows = []
        for topic in sorted({*definitions, *storage}):
            stored, definition = storage.get(topic), definitions.get(topic)
            policy = definition.policy if definition else None
            rows.append(
                (
                    name(topic),
                    int(definition is not None),
                    int(stored is not None and stored.directory),
                    stored.state if stored else "live",
                    number(definition.lifecycle_epoch) if definition else None,
                    number_or_none(stored.marker_epoch) if stored else None,
                    number(definition.revision) if definition else None,
                    number(definition.partitions) if definition else None,
                    len(stored.partitions) if stored else 0,
                    number(definition.replication_factor) if definition else None,
                    int(definition.idempotent) if definition else None,
                    int(definition.event_sourcing) if definition else None,
                    name(policy.cleanup_policy) if policy else None,
                    name(policy.partitioner) if policy else None,
                    name(policy.auth_policy) if policy else None,
                    number(policy.retention_hours) if policy else None,
                    number(policy.retention_bytes) if policy else None,
                )
            )
        self._insert("topics", rows)

    def _load_partition(self, log: PartitionLog, judged: Plan) -> None:
        key = (log.topic, log.partition)
        hwm = judged.hwm.get(key)
        missing = 0
        rows, before, unknown = [], None, False
        for scan in log.segments:
            seam, lost = _seam(scan, before, unknown)
            if seam == "gap":
                missing += lost
            rows.append(self._segment(scan, before, seam, lost))
            if scan.end == "unreadable":
                before, unknown = None, True
            elif scan.last_offset is not None:
                before, unknown = scan, False
        rows += [self._segment(scan, None, "deleted", 0) for scan in log.deleted]
        self._insert(
            "partitions",
            [
                (
                    name(log.topic),
                    number(log.partition),
                    int(log.internal),
                    number(log.log_start),
                    number_or_none(log.first_offset),
                    number(log.log_end),
                    number(log.next_offset),
                    number_or_none(hwm.stored) if hwm else None,
                    number_or_none(hwm.effective) if hwm else None,
                    log.record_count,
                    len(log.segments),
                    len(log.deleted),
                    number(missing),
                    log.cut[1] if log.cut else None,
                    int(log.readable),
                    int(log.damaged),
                )
            ],
        )
        self._insert("segments", rows)
        self._insert(
            "unreachable_runs",
            (
                (
                    self.ids[scan.segment.path],
                    run.position,
                    run.length,
                    run.records,
                    number(run.first_offset),
                    number(run.last_offset),
                )
                for scan in (*log.segments, *log.deleted)
                for run in scan.unreachable
            ),
        )

    def _segment(
        self, scan: SegmentScan, before: SegmentScan | None, seam: str, missing: int
    ) -> tuple[Any, ...]:
        ref = scan.segment
        return (
            self.ids[ref.path],
            name(ref.topic),
            number(ref.partition),
            number(ref.base),
            int(ref.active),
            int(ref.deleted),
            int(ref.gaps_allowed),
            ref.size,
            scan.end,
            scan.end_position,
            number_or_none(scan.first_offset),
            number_or_none(scan.last_offset),
            scan.record_count,
            number(scan.expected_next),
            number_or_none(before.last_offset) if before else None,
            seam,
            number(missing),
            sum(run.records for run in scan.unreachable),
        )

    # -- consumer metadata ---------------------------------------------------------------------

    def load_consumers(
        self, result: ConsumerResult, bounds: Mapping[tuple[str, int], tuple[int, int]]
    ) -> None:
        """Records of ``__consumer_offsets``, and what the replay left.

        ``bounds``: (log start, next offset) of the partitions that have a log.
        """
        status, failure = result.status, result.failure
        self._insert(
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
        self._insert("consumer_records", (self._consumer_row(row) for row in result.rows))
        accepted = [(row, row.record) for row in result.rows if row.record is not None]
        self._insert(
            "lifecycle_records",
            (
                (
                    *self._head(row),
                    record.type,
                    name(record.group),
                    name(record.topic),
                    record.partition_count,
                    number(record.epoch),
                    _time(record.timestamp),
                    record.identity(),
                )
                for row, record in accepted
                if record.type != SNAPSHOT
            ),
        )
        self._insert(
            "initial_offsets",
            (
                (self.ids[row.path], row.position, name(held.topic), number(held.revision), *item)
                for row, record in accepted
                for held in record.initial_offsets
                for item in _initial(held)
            ),
        )
        self._load_snapshots(accepted)
        self._insert(
            "historical_offsets",
            (
                (name(group), name(topic), number(partition), number(offset))
                for (group, topic, partition), offset in sorted(result.historical.items())
            ),
        )
        self._load_groups(result, bounds)

    def _head(self, row: ConsumerRow) -> tuple[Any, ...]:
        return (
            self.ids[row.path],
            row.position,
            row.length,
            row.log_partition,
            number(row.log_offset),
            row.state,
            row.disposition,
            row.code,
        )

    def _consumer_row(self, row: ConsumerRow) -> tuple[Any, ...]:
        payload = row.payload if row.record is None else None
        return (
            *self._head(row),
            row.shape,
            number_or_none(row.newer_version),
            name_or_none(row.key),
            payload or None,
        )

    def _load_snapshots(self, accepted: Sequence[tuple[ConsumerRow, ConsumerRecord]]) -> None:
        before = _previous_revisions(accepted)
        snapshots, items = [], []
        for row, record in accepted:
            if record.type != SNAPSHOT:
                continue
            previous, offsets = before.get((row.path, row.position), (None, {}))
            snapshots.append(
                (
                    *self._head(row),
                    name(record.group),
                    name(record.topic),
                    number(record.epoch),
                    number(record.revision),
                    _time(record.timestamp),
                    record.identity(),
                    number_or_none(previous),
                    None if previous is None else number(record.revision - previous),
                )
            )
            for item in record.offsets:
                held = offsets.get(item.partition)
                items.append(
                    (
                        self.ids[row.path],
                        row.position,
                        item.partition,
                        number(item.offset),
                        number_or_none(held),
                        None if held is None else difference(item.offset, held),
                    )
                )
        self._insert("offset_snapshots", snapshots)
        self._insert("offset_snapshot_items", items)

    def _load_groups(
        self, result: ConsumerResult, bounds: Mapping[tuple[str, int], tuple[int, int]]
    ) -> None:
        groups = result.groups
        self._insert(
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
        self._insert(
            "replayed_groups",
            (
                (name(group), "deleted", None, None, number(epoch), _floor(result, group))
                for group, epoch in result.deleted.items()
            ),
        )
        self._insert(
            "replayed_revisions",
            (
                (name(group.name), name(topic), number(revision))
                for group in groups.values()
                for topic, revision in group.revisions.items()
            ),
        )
        self._insert(
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

    # -- journal, producers, checkpoints, aggregates ---------------------------------------------

    def _load_journal(self, judged: Plan) -> None:
        journal = judged.journal
        file_id = self.ids.get(layout.JOURNAL)
        frames = [*journal.frames, *journal.salvage]
        self._insert(
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
                    _time(frame.updated_at),
                    int(frame.salvage),
                )
                for frame in {frame.position: frame for frame in frames}.values()
            ),
        )
        positions = {frame.transactional_id: frame.position for frame in journal.frames}
        self._insert(
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
                    _time(held.created_at),
                    _time(held.updated_at),
                    len(held.messages),
                    len(held.offsets),
                    positions.get(held.id),
                )
                for held in journal.transactions.values()
            ),
        )
        self._insert(
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
        self._insert("transaction_partitions", _transaction_partitions(judged))

    def _load_producers(self, judged: Plan) -> None:
        for state in judged.producers.values():
            where = (name(state.topic), number(state.partition))
            stored = state.checkpoint.producers if state.checkpoint else {}
            states = []
            for producer in sorted({*state.from_log, *stored, *state.effective}):
                values: list[SqlNumber | None] = []
                for source in (state.from_log, stored, state.effective):
                    entry = source.get(producer)
                    values += (
                        [number(entry.epoch), number(entry.sequence)] if entry else [None, None]
                    )
                states.append((*where, name(producer), *values))
            self._insert("producer_states", states)
            self._insert(
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

    def _load_checkpoints(self, judged: Plan) -> None:
        rows: list[tuple[Any, ...]] = []
        for hwm in judged.hwm.values():
            rows.append(
                self._checkpoint(
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
                self._checkpoint(
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
            if path in self.ids or topic.marker_epoch is not None:
                rows.append(
                    self._checkpoint(
                        path,
                        "lifecycle_epoch",
                        topic.name,
                        None,
                        present=path in self.ids,
                        stored=topic.marker_epoch,
                        actual=definition.lifecycle_epoch if definition else None,
                    )
                )
        self._insert("checkpoints", rows)

    def _checkpoint(
        self,
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
            self.ids.get(path),
            kind,
            name(topic),
            number_or_none(partition),
            int(present),
            form,
            number_or_none(stored),
            number_or_none(actual),
            difference(stored, actual)
            if known and stored is not None and actual is not None
            else None,
        )

    def _load_aggregates(self, judged: Plan) -> None:
        for held in judged.aggregates.values():
            where = (name(held.topic), number(held.partition))
            self._insert(
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
            self._insert(
                "aggregate_snapshots",
                (
                    (
                        self.ids[path],
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

    # -- findings ----------------------------------------------------------------------------------

    def _load_findings(self, judged: Plan) -> None:
        self._insert(
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
        self._insert("recovery_steps", ((s.step, s.name, s.outcome) for s in judged.steps))
        self._insert(
            "recovery_actions",
            (
                (
                    at,
                    action.step,
                    action.kind,
                    name(action.path),
                    self.ids.get(action.path),
                    action.position,
                    name(action.message),
                    _detail(action.detail),
                )
                for at, action in enumerate(judged.actions, 1)
            ),
        )
        self._insert("findings", (self._finding(item) for item in judged.findings))
        indexes = [item for item in judged.findings if item.code.startswith("index_")]
        self._insert(
            "index_findings",
            (
                (
                    at,
                    self.ids.get(item.path),
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
        self._insert(
            "aggregate_gaps",
            (
                (
                    at,
                    self.ids.get(item.path),
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

    def _finding(self, item: Finding) -> tuple[Any, ...]:
        self._finding_count += 1
        lost = item.lost
        return (
            self._finding_count,
            item.code,
            item.severity,
            item.effect,
            item.step,
            name(item.path),
            self.ids.get(item.path),
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

    def load_changes(self, changed: Sequence[str], appeared: Sequence[str], judged: Plan) -> None:
        """Say of each file that changed under the reader that it did, and what is new."""
        told = {i.path for i in judged.findings if i.code == "file_changed_while_reading"}
        for path in changed:
            self.connection.execute(
                "update files set changed = 1 where file_id = ?", (self.ids[path],)
            )
        self._insert(
            "findings",
            (
                self._finding(
                    finding(
                        "file_changed_while_reading",
                        path,
                        message="changed, or went away, between the beginning and the end of "
                        "the build; what the index says of it does not belong to one moment",
                    )
                )
                for path in changed
                if path not in told
            ),
        )
        self._insert(
            "findings",
            (
                self._finding(
                    finding(
                        "file_changed_while_reading",
                        path,
                        message="appeared between the beginning and the end of the build; "
                        "the index says nothing of it",
                    )
                )
                for path in appeared
            ),
        )

    def load_build(
        self, judged: Plan, inventory: bytes | None, refusal: str | None, changed: int
    ) -> None:
        """How and when the index was made."""
        options = self.options
        moment = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        self._insert(
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
                    changed,
                    inventory,
                    name_or_none(refusal),
                )
            ],
        )


# -- small things --------------------------------------------------------------------------------


def _read_all(evidence: Evidence, path: str, take: Callable[[bytes], object]) -> bool:
    """Hand a whole file over in blocks of 1 MiB; False when it cannot be read."""
    try:
        with evidence.open(path) as source:
            position = 0
            while position < source.size:
                block = b""
                while len(block) < BLOCK_BYTES:
                    data = source.pread(BLOCK_BYTES - len(block), position + len(block))
                    if not data:
                        break
                    block += data
                if not block:
                    break
                take(block)
                position += len(block)
    except (UnreadableError, OSError):
        return False
    return True


def _seam(scan: SegmentScan, before: SegmentScan | None, unknown: bool) -> tuple[str, int]:
    if scan.end == "unreadable" and scan.first_offset is None:
        return "unknown", 0
    if scan.first_offset is None:
        return "empty", 0
    if before is None or before.last_offset is None:
        return ("unknown" if unknown else "first"), 0
    missing = scan.first_offset - before.last_offset - 1
    if missing < 0:
        return "overlap", 0
    if missing == 0:
        return "contiguous", 0
    told = any(item.code == "segment_offsets_gap" for item in scan.findings)
    allowed = before.segment.gaps_allowed or scan.segment.gaps_allowed
    return ("compacted" if allowed and not told else "gap"), missing


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


def _floor(result: ConsumerResult, group: str) -> SqlNumber | None:
    return number_or_none(result.floors.get(group))


def _time(nanoseconds: int) -> str:
    try:
        return timestamps.canonical(nanoseconds)
    except ValueError:
        return str(nanoseconds)


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
