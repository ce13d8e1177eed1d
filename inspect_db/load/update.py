"""What of an older index still holds: the beginning of ``build --update``.

Nothing in the old index is believed because it is there. A file is taken for
unchanged when what the kernel says of it is the same in every respect: type,
device, inode, size, modification time, and time of the last change of any kind,
which nobody can put back. Where that differs although the size is the same (a
copy, a restored backup, a touch) its bytes are read and their digests compared.
Everything else is scanned again.

What is kept is what a scan found and what it leaves for the judgement (``kept``);
the judgement itself is made anew, over everything. So an update and a full
build say the same.

Source: design, principle 8.
"""

from __future__ import annotations

import os
import shutil
import threading
from bisect import bisect_left
from collections.abc import Iterable
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final, cast

import apsw

from cursus import __version__
from cursus.evidence.walk import LogDirectory
from cursus.replay.interfaces import Entry
from cursus.replay.segments import SegmentFiles, digest_of_entries, index_prefix
from cursus.replay.startup import segments_to_judge
from inspect_db.index import SCHEMA_VERSION, IndexFileError, open_index, schema_scripts
from inspect_db.load.digests import BlockDigester, digest_up_to, read_blocks
from inspect_db.load.files import Content
from inspect_db.load.kept import KeptError, KeptScan, decode_scan
from inspect_db.load.options import BuildOptions, config_text
from inspect_db.load.scanning import Grown, Item, Sums
from inspect_db.values import from_name, from_number

#: Tables that hold what scans found; every other one holds what was judged.
SCANNED: Final = (
    "record_rows",
    "kept_batches",
    "kept_scans",
    "segment_sums",
    "file_blocks",
)
#: Of these, what is written anew for a segment that has grown.
_REPLACED: Final = ("kept_scans", "segment_sums", "file_blocks")
_STAY: Final = {*SCANNED, "files", "record_shapes"}
#: An index of which more than this is to be replaced is better made anew.
_MOST: Final = 0.5


class NotUpdatable(Exception):
    """The old index is of no use here; the message says why."""


@dataclass(slots=True)
class Start:
    """Where a build begins: numbers of files, what is known already, what is to be scanned."""

    ids: dict[str, int]
    contents: dict[str, Content] = field(default_factory=dict)
    kept: list[tuple[int, SegmentFiles, KeptScan]] = field(default_factory=list)
    items: list[Item] = field(default_factory=list)


def from_nothing(evidence: LogDirectory) -> Start:
    """A full build: every segment is scanned."""
    ids = {entry.path: at for at, entry in enumerate(evidence.entries, 1)}
    start = Start(ids)
    for files, aggregates in segments_to_judge(evidence):
        start.items.append(_item(evidence, ids, files, aggregates))
    start.items.sort(key=lambda item: item.file_id)
    return start


def _item(
    evidence: LogDirectory, ids: dict[str, int], files: SegmentFiles, aggregates: bool
) -> Item:
    entry = evidence.get(files.ref.path)
    assert entry is not None
    return Item(ids[entry.path], files, entry, aggregates)


def copy_index(target: str, unfinished: str) -> threading.Thread:
    """A copy of the old index to work on; shared blocks where the file system has them.

    Most of it stays as it is, so it begins to go to disk at once, while the rest is
    being made. The thread that waits for that is to be joined.
    """
    with open(target, "rb") as source, open(unfinished, "r+b") as copy:
        left = os.fstat(source.fileno()).st_size
        try:
            while left:
                done = os.copy_file_range(source.fileno(), copy.fileno(), left)
                if not done:
                    break
                left -= done
        except OSError:
            source.seek(0)
            copy.seek(0)
            copy.truncate()
            shutil.copyfileobj(source, copy, 1 << 20)
    thread = threading.Thread(target=_write_out, args=(unfinished,), daemon=True)
    thread.start()
    return thread


def _write_out(path: str) -> None:
    # What fails here fails again when the index is published, and is told then.
    with suppress(OSError):
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fdatasync(fd)
        finally:
            os.close(fd)


def check(target: str, log_dir: str, options: BuildOptions) -> None:
    """Was the old index made of this directory in this way? Raises :class:`NotUpdatable`."""
    if not os.path.exists(target) or not os.path.getsize(target):
        raise NotUpdatable("there is no index yet")
    try:
        connection = open_index(target)
    except IndexFileError:
        raise NotUpdatable("the index is of another version") from None
    try:
        row = connection.execute(
            "select schema_version, tool_version, log_dir, records_mode, payload_bytes, hashed, "
            "config from build"
        ).fetchone()
        same = schema_of(connection) == schema_of(None)
    except apsw.Error:
        raise NotUpdatable("the index cannot be read") from None
    finally:
        connection.close()
    if not same:
        raise NotUpdatable("the index has other tables than this program makes")
    if row is None:
        raise NotUpdatable("the index is not whole")
    schema, tool, directory, records, payload_bytes, hashed, config = cast(tuple[Any, ...], row)
    if schema != SCHEMA_VERSION:
        raise NotUpdatable("the index is of another version")
    if tool != __version__:
        # What a scan finds is a matter of the program, and is not looked for again.
        raise NotUpdatable("the index was made by another version of this program")
    if from_name(directory) != log_dir:
        raise NotUpdatable("the index is of another directory")
    if (records, payload_bytes, bool(hashed)) != (
        options.records,
        options.payload_bytes,
        options.hashes,
    ):
        raise NotUpdatable("the index was made with other options")
    if config != config_text(options):
        raise NotUpdatable("the index was made with another configuration")


def schema_of(connection: apsw.Connection | None) -> set[tuple[object, ...]]:
    """Everything that an index is made of, triggers too; ``None``: as this program makes it."""
    if connection is None:
        with closing(apsw.Connection(":memory:")) as fresh:
            for _, text in schema_scripts():
                fresh.execute(text)
            return schema_of(fresh)
    return set(
        connection.execute(
            "select type, name, sql from sqlite_schema where name not like 'sqlite_%'"
        )
    )


def from_index(connection: apsw.Connection, evidence: LogDirectory) -> Start:
    """Keep what holds and drop the rest. ``connection``: the copy of the old index.

    Raises :class:`NotUpdatable` when too little of it holds.
    """
    old = _Old(connection, evidence)
    start = old.start()
    whole = sum(entry.size for entry in evidence.entries if entry.path in old.logs)
    if sum(item.bytes for item in start.items) > _MOST * whole:
        raise NotUpdatable("more than half of it has changed")
    connection.execute("begin")
    old.drop(start.items, start.ids.values())
    for (table,) in connection.execute(
        "select name from sqlite_schema where type = 'table' and name not like 'sqlite_%'"
    ).fetchall():
        if table not in _STAY:
            connection.execute(f"delete from {table}")
    connection.execute("delete from files")
    connection.execute("commit")
    return start


@dataclass(frozen=True, slots=True)
class _File:
    """A file as the old index has it."""

    file_id: int
    stamp: tuple[object, ...]
    type: str
    size: int
    changed: bool
    content: Content


class _Old:
    def __init__(self, connection: apsw.Connection, evidence: LogDirectory) -> None:
        self.connection = connection
        self.evidence = evidence
        self.files = dict(self._files())
        self.scans = {
            int(str(file_id)): str(state)
            for file_id, state in connection.execute("select file_id, state from kept_scans")
        }
        self.logs: set[str] = set()
        self._same: dict[str, bool] = {}

    def _files(self) -> Iterable[tuple[str, _File]]:
        for row in self.connection.execute(
            "select file_id, path, type, device, inode, size, mtime_ns, ctime_ns, changed, "
            "content, sha256 from files"
        ):
            file_id, path, kind, device, inode, size, mtime, ctime, changed, *digests = cast(
                tuple[Any, ...], row
            )
            stamp = (kind, from_number(device), from_number(inode), size, mtime, ctime)
            content = Content(*digests)
            yield from_name(path), _File(file_id, stamp, kind, size, bool(changed), content)

    def start(self) -> Start:
        free = max((file.file_id for file in self.files.values()), default=0) + 1
        ids: dict[str, int] = {}
        for entry in self.evidence.entries:
            known = self.files.get(entry.path)
            ids[entry.path] = known.file_id if known else free
            free += 0 if known else 1
        start = Start(ids)
        for files, aggregates in segments_to_judge(self.evidence):
            self.logs.add(files.ref.path)
            kept = self._kept(files)
            if kept is not None and self._holds(kept, files, aggregates):
                start.kept.append((ids[files.ref.path], files, kept))
                continue
            grown = self._grown(kept, files, aggregates) if kept is not None else None
            item = _item(self.evidence, ids, files, aggregates)
            start.items.append(replace(item, grown=grown))
        start.items.sort(key=lambda item: item.file_id)
        scanned = {item.entry.path for item in start.items}
        for entry in self.evidence.entries:
            if entry.path not in scanned and entry.type == "file" and self._unchanged(entry):
                content = self.files[entry.path].content
                if content != Content():  # else it could not be read then
                    start.contents[entry.path] = content
        return start

    def _kept(self, files: SegmentFiles) -> KeptScan | None:
        old = self.files.get(files.ref.path)
        state = self.scans.get(old.file_id) if old else None
        try:
            return decode_scan(state) if state is not None else None
        except KeptError:
            return None

    def _holds(self, kept: KeptScan, files: SegmentFiles, aggregates: bool) -> bool:
        """Would a scan of the segment find the same today?"""
        return (
            still_fits(kept, files, aggregates)
            and self._unchanged(self._entry(files))
            and (files.index is None or self._unchanged(files.index))
        )

    def _grown(self, kept: KeptScan, files: SegmentFiles, aggregates: bool) -> Grown | None:
        """What is known of a segment to which something was appended, and nothing else."""
        old, entry = self.files[files.ref.path], self._entry(files)
        scan, index = kept.judged.scan, files.index
        # Whatever became of it while it was read: what is kept was read once (``fill``).
        if entry.size <= old.size or not may_go_on(kept, files, aggregates):
            return None
        if index is not None and not self._index_goes_on(kept, index):
            return None
        known = self._begins_with(entry, old, scan.end_position)
        if known is None:
            return None
        row = self.connection.execute(
            "select * from segment_sums where file_id = ?", (old.file_id,)
        ).fetchone()
        ((batches,),) = self.connection.execute(
            "select coalesce(max(batch), -1) + 1 from kept_batches where file_id = ?",
            (old.file_id,),
        ).fetchall()
        sums = Sums(*cast(tuple[int, ...], row)[1:]) if row is not None else Sums()
        return Grown(scan, known, sums, kept.largest, int(str(batches)))

    def _index_goes_on(self, kept: KeptScan, index: Entry) -> bool:
        """Are the entries that were compared still there, and none new among them?"""
        compared, end = kept.judged.compared, kept.judged.scan.end_position
        prefix = index_prefix(self.evidence, index)
        if compared is None or prefix is None or len(prefix.positions) < compared.entries:
            return False
        if bisect_left(prefix.positions, end) != compared.entries:
            return False
        return digest_of_entries(prefix, compared.entries) == compared.digest

    def _begins_with(self, entry: Entry, old: _File, end: int) -> tuple[bytes, ...] | None:
        """Digests of what stands before ``end``, if what was read before still stands there."""
        if old.content.content is None:
            return None
        digester = BlockDigester(whole=False)
        try:
            with self.evidence.open(entry.path) as source:
                if not digest_up_to(source, end, digester):
                    return None
                known = digester.so_far()
                if not digest_up_to(source, old.size, digester):
                    return None
        except OSError:
            return None
        return known if digester.close().content == old.content.content else None

    def _entry(self, files: SegmentFiles) -> Entry:
        entry = self.evidence.get(files.ref.path)
        assert entry is not None
        return entry

    def _unchanged(self, entry: Entry) -> bool:
        found = self._same.get(entry.path)
        if found is None:
            found = self._same[entry.path] = self._look(entry)
        return found

    def _look(self, entry: Entry) -> bool:
        old = self.files.get(entry.path)
        if old is None or (old.changed and entry.path not in self.logs):
            return False  # read more than once: its digest may be that of another state
        stamp = (entry.type, entry.dev, entry.ino, entry.size, entry.mtime_ns, entry.ctime_ns)
        if stamp == old.stamp and not old.changed:
            return True
        if entry.type != "file" or old.type != "file" or entry.size != old.size:
            return False
        if old.content.content is None:
            return False
        blocks = read_blocks(self.evidence, entry, whole=False)
        return blocks is not None and blocks.content == old.content.content

    def drop(self, items: Iterable[Item], ids: Iterable[int]) -> None:
        """Remove what scans found that does not hold; ``ids``: of the files that are there."""
        grown = {item.file_id for item in items if item.grown is not None}
        holding = {*ids} - {item.file_id for item in items}
        unchanged = {
            self.files[path].file_id
            for path, same in self._same.items()
            if same and path in self.files
        }
        for file in self.files.values():
            if file.file_id in holding and file.file_id in unchanged:
                continue
            # Rows of records and batches all stand before the end of the good frames.
            for table in SCANNED if file.file_id not in grown else _REPLACED:
                self.connection.execute(f"delete from {table} where file_id = ?", (file.file_id,))


def may_go_on(kept: KeptScan, files: SegmentFiles, aggregates: bool) -> bool:
    """May a scan begin where this one found the end of the good frames?

    Only the active segment grows. What was wrong at its end is looked at again;
    anything before it would have to be told again.
    """
    scan, before = kept.judged.scan, kept.ref
    tail_only = all(item.position == scan.end_position for item in scan.findings)
    same = (before.topic, before.partition, before.base, before.internal, before.deleted)
    ref = files.ref
    return (
        before.active
        and not before.deleted
        and scan.end in {"clean", "torn", "in_progress"}
        and tail_only
        and not scan.unreachable
        and not kept.judged.index
        and kept.indexed == (files.index is not None)
        and (kept.aggregates or not aggregates)
        and not before.gaps_allowed
        and same == (ref.topic, ref.partition, ref.base, ref.internal, ref.deleted)
    )


def still_fits(kept: KeptScan, files: SegmentFiles, aggregates: bool) -> bool:
    """Would a scan of the same bytes find the same today?

    What stands around a segment decides about it too: the last one is active, a
    marker lets it have gaps, a broker may be writing. That matters only where
    something was found; a clean segment stays clean when it is closed.
    """
    ref, before = files.ref, kept.ref
    if kept.indexed != (files.index is not None) or (aggregates and not kept.aggregates):
        return False
    if ref == before:
        return True
    scan = kept.judged.scan
    plain = scan.end == "clean" and not scan.findings and not kept.judged.index
    around = replace(before, active=ref.active, in_use=ref.in_use, gaps_allowed=ref.gaps_allowed)
    return plain and ref == around and (ref.gaps_allowed or not before.gaps_allowed)
