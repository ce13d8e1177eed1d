"""Fill an index: scan what has to be scanned, judge everything, write it down.

A full build and an update are the same three steps. An update begins with a copy
of the old index, from which everything is removed that does not hold any more;
a full build begins with nothing. Whatever is missing then is scanned, here or by
workers. At last the plan of a start is made, over all segments, from what their
scans left; of its tables nothing is ever kept.
"""

from __future__ import annotations

import os
import time
from collections.abc import Generator, Iterable
from contextlib import closing
from typing import Final

import apsw

from cursus.evidence.inventory import InventoryError, inventory_document, take_inventory
from cursus.evidence.segment_scan import DEFAULT
from cursus.evidence.walk import LogDirectory
from cursus.formats import canonical_json
from cursus.replay.interfaces import Entry, Evidence, SegmentScan
from cursus.replay.startup import Plan, plan
from inspect_db.index import schema_scripts
from inspect_db.load import pool
from inspect_db.load.consumers import load_consumers
from inspect_db.load.digests import DigestingDirectory
from inspect_db.load.files import Content, load_files
from inspect_db.load.findings import load_build, load_changes, load_findings
from inspect_db.load.kept import KeptError, KeptScan, KnownSegments, encode_scan
from inspect_db.load.largest import LargestRecords
from inspect_db.load.logs import load_partition, load_topics
from inspect_db.load.options import BuildOptions, BuildResult, Progress
from inspect_db.load.scanning import Scanned
from inspect_db.load.state import load_aggregates, load_checkpoints, load_journal, load_producers
from inspect_db.load.update import NotUpdatable, Start, check, copy_index, from_index, from_nothing
from inspect_db.load.writer import Writer, open_for_writing, prepare

#: What reading an index raises that somebody spoiled.
_SPOILED: Final = (
    KeptError,
    ValueError,
    TypeError,
    AttributeError,
    LookupError,
    ArithmeticError,
    RecursionError,
    apsw.CorruptError,
    apsw.NotADBError,
    apsw.ConstraintError,
    apsw.SQLError,
)
#: Longer than any tick of the kernel's clock (HZ = 100 is the slowest).
TICK_NS: Final = 20_000_000


def fill(
    log_dir: str, target: str, unfinished: str, options: BuildOptions, progress: Progress | None
) -> BuildResult:
    """Make the file ``unfinished`` an index of ``log_dir``; ``target`` may be an older one."""
    # Nobody else may read evidence through the index before its owner allows it.
    os.close(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    with DigestingDirectory.at(log_dir) as evidence:
        evidence.hashes = options.hashes
        _let_the_clock_tick(evidence.entries)
        full = ""
        if options.update:
            try:
                check(target, evidence.log_dir, options)
                writing_out = copy_index(target, unfinished)
                try:
                    return _Fill(evidence, target, unfinished, options, progress).update()
                finally:
                    writing_out.join()
            except NotUpdatable as reason:
                full = str(reason)
            except _SPOILED:
                full = "the index is damaged"
            os.truncate(unfinished, 0)
        return _Fill(evidence, target, unfinished, options, progress, full).from_nothing()


class _Fill:
    def __init__(
        self,
        evidence: DigestingDirectory,
        target: str,
        unfinished: str,
        options: BuildOptions,
        progress: Progress | None,
        full: str = "",
    ) -> None:
        self.evidence = evidence
        self.target = target
        self.unfinished = unfinished
        self.options = options
        self.progress = progress
        self.full = full
        self.connection = open_for_writing(unfinished)
        self.records = 0
        self._done = 0
        self._to_scan = 0
        self._read_again: set[str] = set()

    def from_nothing(self) -> BuildResult:
        """A full build."""
        try:
            create_schema(self.connection)
            return self._run(from_nothing(self.evidence))
        finally:
            self.connection.close()

    def update(self) -> BuildResult:
        """On top of a copy of the old index."""
        try:
            try:
                start = from_index(self.connection, self.evidence)
            except (ValueError, TypeError, apsw.SQLError):
                raise NotUpdatable("the index is damaged") from None
            return self._run(start)
        finally:
            self.connection.close()

    def _run(self, start: Start) -> BuildResult:
        connection, evidence, options = self.connection, self.evidence, self.options
        writer = Writer(connection, start.ids)
        known = KnownSegments(connection)
        largest = LargestRecords(evidence.entries)
        self._to_scan = sum(item.bytes for item in start.items)
        for file_id, files, kept in start.kept:
            known.add(file_id, files, kept.judged)
            largest.add(files.ref, kept.largest)
        # Closed whatever happens between two segments, so that no worker outlives the build.
        with closing(self._scan(start)) as scans:
            for scanned in scans:
                self._write_down(writer, scanned)
                if not read_once(scanned.judged.scan):
                    self._read_again.add(scanned.item.entry.path)
                known.add(scanned.item.file_id, scanned.item.files, scanned.judged)
                largest.add(scanned.item.files.ref, scanned.largest)
                blocks = scanned.blocks
                if blocks is not None:
                    start.contents[scanned.item.entry.path] = Content(blocks.content, blocks.whole)
        connection.execute("begin")
        judged = plan(evidence, options.config, options.as_of, judge=known.judge)
        load_files(writer, evidence, start.contents, hashes=options.hashes)
        largest.write(writer)
        load_plan(writer, judged)
        document, refusal = _inventory(evidence, known)
        changed, appeared = _changed(evidence.log_dir, evidence.entries)
        load_changes(writer, changed, appeared, judged)
        load_build(writer, options, judged, document, refusal, len(changed) + len(appeared))
        self._forget(writer, {*known.missed, *self._read_again.intersection(changed)})
        ((records,),) = connection.execute("select coalesce(sum(records), 0) from segment_sums")
        connection.execute("commit")
        return BuildResult(
            path=self.target,
            verdict=judged.verdict,
            records=int(str(records)),
            bytes=os.path.getsize(self.unfinished),
            changed=(*changed, *appeared),
            scanned=self._to_scan,
            full=self.full,
        )

    def _scan(self, start: Start) -> Generator[Scanned, None, None]:
        jobs = pool.processes(self.options, start.items)
        if jobs > 1:
            yield from pool.scan_shared(
                self.connection,
                self.evidence,
                f"{self.unfinished}.shard",
                self.options,
                start.items,
                jobs,
                self._advanced,
            )
            return
        self.connection.execute("begin")
        yield from pool.scan_here(
            self.connection, self.evidence, self.options, start.items, self._advanced
        )
        self.connection.execute("commit")

    def _advanced(self, size: int) -> None:
        self._done += size
        if self.progress is not None:
            self.progress(self._done, self._to_scan)

    def _write_down(self, writer: Writer, scanned: Scanned) -> None:
        """What a scan leaves beside the rows of its records."""
        item, sums = scanned.item, scanned.sums
        if sums.records:
            writer.insert("segment_sums", [(item.file_id, *sums.row())])
        if scanned.blocks is None:
            return
        writer.insert("file_blocks", scanned.blocks.rows(item.file_id))
        indexed = item.files.index is not None
        kept = KeptScan(item.files.ref, scanned.judged, indexed, item.aggregates, scanned.largest)
        text = encode_scan(kept)
        if text is not None:
            writer.insert("kept_scans", [(item.file_id, text)])

    def _forget(self, writer: Writer, paths: Iterable[str]) -> None:
        """What was looked at twice, and may not have been the same, the next update scans."""
        for path in paths:
            self.connection.execute(
                "delete from kept_scans where file_id = ?", (writer.ids.get(path),)
            )


def create_schema(connection: apsw.Connection) -> None:
    """An empty index in a database of its own; without a journal, since it is thrown away."""
    prepare(connection)
    for _, text in schema_scripts():
        connection.execute(text)


def load_plan(writer: Writer, judged: Plan) -> None:
    """Everything that the plan says."""
    load_topics(writer, judged)
    for log in judged.partitions.values():
        load_partition(writer, log, judged)
    bounds = {
        key: (log.log_start, log.next_offset)
        for key, log in judged.partitions.items()
        if log.segments
    }
    load_consumers(writer, judged.consumers, bounds)
    load_journal(writer, judged)
    load_producers(writer, judged)
    load_checkpoints(writer, judged)
    load_aggregates(writer, judged)
    load_findings(writer, judged)


def _inventory(evidence: Evidence, known: KnownSegments) -> tuple[bytes | None, str | None]:
    try:
        found = take_inventory(evidence, known.scan_for_inventory(evidence))
        return canonical_json.pretty(inventory_document(found)), None
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


def read_once(scan: SegmentScan) -> bool:
    """Were the bytes that this scan judged those that were digested?

    By columns they are. A plain scan, of a small segment or behind the good frames,
    reads by itself, before or after.
    """
    return scan.end == "clean" and scan.segment.size >= DEFAULT.plain_below


def _let_the_clock_tick(entries: Iterable[Entry]) -> None:
    """Wait until a change of a file that changed just now would show in its ``ctime``.

    The kernel stamps files with the time of its last tick: a second change inside
    the same tick leaves no trace.
    """
    now = time.time_ns()
    # A clock that was put back leaves files of the future: they say nothing about the others.
    age = now - max((entry.ctime_ns for entry in entries if entry.ctime_ns <= now), default=0)
    if age < TICK_NS:
        time.sleep((TICK_NS - age) / 1e9)
