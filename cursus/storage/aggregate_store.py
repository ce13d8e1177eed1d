"""The files of one event-sourcing partition: where the events of an aggregate are, and snapshots.

Index and keys are derived from the log and not synced: what a crash leaves of
them does not matter, because the first use after a start empties both and builds
them from the committed log. Snapshots come from clients and cannot be derived;
one is on the disk, name and all, before its save returns.

An event whose version is not the next one of its key is a gap in the log: the
index is not built, and commands on this partition's aggregates fail. Where
retention has removed the beginning of the log, the first version seen of a key
is its base.

Not safe for two threads at once: every method needs **the lock of the
partition's aggregates**, which an append holds from the check of the version to
:meth:`AggregateStore.append`.

Source: journal.md section 7; README.md decision 36.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from cursus import layout
from cursus.formats import aggregate_files as af
from cursus.layout import FileKind
from cursus.storage.durable import FileSystem, WritableFile
from cursus.storage.errors import StoreError, reason

MAX_KEY_BYTES: Final = 65_535
MAX_PAYLOAD_BYTES: Final = 2**32 - 1
_CHUNK: Final = 1 << 20

#: Key, aggregate version and log offset of an event, in the order of the log.
Event = tuple[bytes, int, int]


@dataclass(slots=True)
class _Aggregate:
    """Events of one key: versions ``base``, ``base`` + 1, … at ``offsets``."""

    key_hash: int
    base: int
    offsets: array[int]

    @property
    def version(self) -> int:
        return self.base + len(self.offsets) - 1


@dataclass(frozen=True, slots=True)
class _Snapshot:
    version: int
    position: int
    length: int


class AggregateStore:
    """Aggregates of one partition; made by :meth:`open`."""

    def __init__(self, files: FileSystem, log_dir: str, topic: str, partition: int) -> None:
        self._files = files
        self._topic_directory = os.path.join(log_dir, topic)
        directory = os.path.join(self._topic_directory, layout.aggregate_directory(partition))
        self.directory = directory
        self._shown = f"{topic}/{layout.aggregate_directory(partition)}"
        self._paths = {
            kind: os.path.join(directory, layout.aggregate_file(partition, kind))
            for kind in (
                FileKind.AGGREGATE_INDEX,
                FileKind.AGGREGATE_KEYS,
                FileKind.AGGREGATE_SNAPSHOTS,
            )
        }
        self._open: dict[FileKind, WritableFile] = {}
        self._aggregates: dict[bytes, _Aggregate] = {}
        self._snapshots: dict[bytes, _Snapshot] = {}
        self._snapshots_end = 0
        self._closed = False

    @classmethod
    def open(
        cls,
        files: FileSystem,
        log_dir: str,
        topic: str,
        partition: int,
        events: Iterable[Event],
        *,
        log_start: int = 0,
    ) -> AggregateStore:
        """First use after a start: build index and keys from the committed events, read snapshots.

        ``log_start``: lowest offset that the log still has. A torn tail of the
        snapshots is cut. Raises :class:`StoreError` (``stream_index_gap`` among
        others); everything is closed then.
        """
        store = cls(files, log_dir, topic, partition)
        try:
            store._make_directory()
            store.rebuild(events, log_start=log_start)
            store._load_snapshots()
        except OSError as error:
            store.close()
            raise _failed(store._shown, "opened", error) from error
        except BaseException:
            store.close()
            raise
        return store

    def close(self) -> None:
        """Close the files; closing twice is allowed.

        Afterwards nothing is read or written (``aggregate_write_failed``): the files may
        be those of somebody else by then.
        """
        self._closed = True
        while self._open:
            self._open.popitem()[1].close()

    def _require_open(self) -> None:
        if self._closed:
            text = f"the aggregates {self._shown} are closed"
            raise StoreError("aggregate_write_failed", text, path=self._shown)

    # -- events ------------------------------------------------------------------------

    def version(self, key: bytes) -> int:
        """Current version of a key, 0 if unknown."""
        found = self._aggregates.get(key)
        return found.version if found is not None else 0

    def offsets(self, key: bytes, first_version: int) -> list[int]:
        """Log offsets of the events of a key from a version on, as far as the log has them."""
        found = self._aggregates.get(key)
        if found is None:
            return []
        return list(found.offsets[max(first_version - found.base, 0) :])

    def check(self, key: bytes, version: int) -> None:
        """Raise ``version_conflict`` unless ``version`` is the next one of the key."""
        current = self.version(key)
        if version != current + 1:
            raise StoreError(
                "version_conflict",
                f"version_conflict current={current} expected={version}",
                path=self._shown,
                current=current,
                expected=version,
            )
        if not 0 < len(key) <= MAX_KEY_BYTES:
            raise StoreError("aggregate_key_invalid", path=self._shown)

    def append(self, key: bytes, version: int, offset: int) -> None:
        """Index an event that stands in the log.

        Raises :class:`StoreError`: ``version_conflict`` (nothing changed), or
        ``aggregate_write_failed`` when the files could not be written: then
        :meth:`rebuild` before anything else.
        """
        self._require_open()
        self.check(key, version)
        try:
            self._index([(key, version, offset)])
        except OSError as error:
            raise _failed(self._shown, "written", error) from error

    def rebuild(self, events: Iterable[Event], *, log_start: int = 0) -> None:
        """Empty index and keys, and build them from the committed events of the log.

        Raises :class:`StoreError` ``stream_index_gap``, or
        ``aggregate_write_failed``; then the index is empty.
        """
        self._require_open()
        self._aggregates.clear()
        try:
            for kind in (FileKind.AGGREGATE_INDEX, FileKind.AGGREGATE_KEYS):
                self._empty(kind)
            due: list[Event] = []
            for event in self._in_order(events, log_start):
                due.append(event)
                if len(due) >= _CHUNK // af.INDEX_ENTRY_BYTES:
                    self._index(due)
                    due.clear()
            self._index(due)
        except OSError as error:
            self._aggregates.clear()
            raise _failed(self._shown, "rebuilt", error) from error
        except StoreError:
            self._aggregates.clear()
            raise

    def _in_order(self, events: Iterable[Event], log_start: int) -> Iterable[Event]:
        """Events that count: the next version of their key; repeated ones are left out."""
        versions: dict[bytes, int] = {}
        for key, version, offset in events:
            known = versions.get(key)
            if not key or version < 1 or (known is not None and version <= known):
                continue
            expected = 1 if known is None else known + 1
            if version != expected and not (known is None and log_start > 0):
                raise StoreError(
                    "stream_index_gap",
                    f"the aggregate at offset {offset} jumps to version {version}, "
                    f"{expected} was due",
                    path=self._shown,
                    offset=offset,
                )
            versions[key] = version
            yield key, version, offset

    def _index(self, events: list[Event]) -> None:
        """Write events and remember them; a key goes before its first entry."""
        if not events:
            return
        new = {
            key: _Aggregate(af.fnv1a64(key), version, array("Q"))
            for key, version, _ in reversed(events)
            if key not in self._aggregates
        }
        if new:
            keys = dict.fromkeys(key for key, _, _ in events if key in new)
            self._open[FileKind.AGGREGATE_KEYS].append(b"".join(map(af.encode_key, keys)))
        entries = (
            af.AggregateIndexEntry(
                (new.get(key) or self._aggregates[key]).key_hash, version, offset
            )
            for key, version, offset in events
        )
        self._open[FileKind.AGGREGATE_INDEX].append(b"".join(map(af.encode_index_entry, entries)))
        self._aggregates.update(new)
        for key, _, offset in events:
            self._aggregates[key].offsets.append(offset)

    # -- snapshots -----------------------------------------------------------------------

    def save_snapshot(self, key: bytes, version: int, payload: bytes) -> None:
        """Save the state of an aggregate at a version; on the disk when it returns.

        Raises :class:`StoreError`; the snapshot before is the one that counts then.
        """
        self._require_open()
        if version > self.version(key):
            raise StoreError("snapshot_version_exceeds_stream", path=self._shown)
        if not payload or len(payload) > MAX_PAYLOAD_BYTES or len(key) > MAX_KEY_BYTES:
            raise StoreError("aggregate_snapshot_invalid", path=self._shown)
        record = af.encode_snapshot(key, version, payload)
        try:
            self._append_snapshot(record)
        except OSError as error:
            file = self._open.pop(FileKind.AGGREGATE_SNAPSHOTS, None)
            if file is not None:
                file.close()
            raise _failed(self._shown, "written", error) from error
        at = self._snapshots_end + len(record) - len(payload)
        self._snapshots[key] = _Snapshot(version, at, len(payload))
        self._snapshots_end += len(record)

    def snapshot(self, key: bytes) -> tuple[int, bytes] | None:
        """Version and payload of the latest snapshot of a key. Raises :class:`StoreError`."""
        self._require_open()
        found = self._snapshots.get(key)
        if found is None:
            return None
        try:
            with self._files.open_read(self._paths[FileKind.AGGREGATE_SNAPSHOTS]) as file:
                return found.version, file.pread(found.length, found.position)
        except OSError as error:
            raise _failed(self._shown, "read", error) from error

    def _append_snapshot(self, record: bytes) -> None:
        kind = FileKind.AGGREGATE_SNAPSHOTS
        if kind not in self._open:
            self._open[kind] = self._open_or_create(kind)
            self._files.sync_directory(self.directory)
        file = self._open[kind]
        if file.size != self._snapshots_end:
            file.truncate(self._snapshots_end)
            file.fsync()
        file.append(record)
        file.fsync()

    def _load_snapshots(self) -> None:
        path = self._paths[FileKind.AGGREGATE_SNAPSHOTS]
        status = self._files.status(path)
        if status is None:
            return
        end = self._read_snapshots(path)
        self._snapshots_end = end
        file = self._open[FileKind.AGGREGATE_SNAPSHOTS] = self._files.open(path)
        if file.size != end:
            file.truncate(end)
        file.fsync()
        self._files.sync_directory(self.directory)

    def _read_snapshots(self, path: str) -> int:
        """Where each key's last record is, and the end of the last good one.

        Payloads are not read, and no length is trusted beyond the end of the file.
        """
        with self._files.open_read(path) as file:
            size, at = file.size, 0
            while at + 2 <= size:
                length = int.from_bytes(file.pread(2, at), "big")
                fixed = at + 2 + length
                if fixed + 12 > size:
                    break
                head = file.pread(length + 12, at + 2)
                version = int.from_bytes(head[length : length + 8], "big")
                payload = int.from_bytes(head[length + 8 :], "big")
                if fixed + 12 + payload > size:
                    break
                self._snapshots[head[:length]] = _Snapshot(version, fixed + 12, payload)
                at = fixed + 12 + payload
            return at

    # -- files -----------------------------------------------------------------------------

    def _make_directory(self) -> None:
        if self._files.status(self.directory) is None:
            self._files.make_directory(self.directory)
        self._files.sync_directory(self._topic_directory)

    def _empty(self, kind: FileKind) -> None:
        file = self._open.pop(kind, None)
        if file is not None:
            file.close()
        file = self._open[kind] = self._open_or_create(kind)
        if file.size:
            file.truncate(0)
        file.fsync()

    def _open_or_create(self, kind: FileKind) -> WritableFile:
        path = self._paths[kind]
        if self._files.status(path) is None:
            return self._files.create(path)
        return self._files.open(path)


def _failed(shown: str, what: str, error: OSError) -> StoreError:
    return StoreError(
        "aggregate_write_failed",
        f"the aggregate files could not be {what}: {reason(error)}",
        path=shown,
    )
