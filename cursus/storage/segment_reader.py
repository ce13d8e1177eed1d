"""Reading what a partition has written: frames forward, with every check on the way.

A read begins where the index says, if the record that stands there is the one
that the entry names; otherwise at the first byte. From there on each frame is
checked against the one before it. Open files are kept in a cache with a bound.

The index is searched in its file, never loaded: whatever entry the search ends
at is checked against its record before use, so an index that is out of order
costs a scan and can do no harm.

Source: segments.md sections 5 (lookup) and 11.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from threading import Lock
from typing import Final

from cursus.findings import FormatError
from cursus.formats.offset_index import ENTRY_BYTES
from cursus.formats.record import MAX_RECORD_BYTES, Record, decode
from cursus.storage.durable import FileSystem, ReadableFile
from cursus.storage.errors import ReadError
from cursus.storage.segment_files import PartitionPaths

#: First window of a read, and the largest one that is not a single record.
_FIRST_WINDOW: Final = 16 << 10
_LARGEST_WINDOW: Final = 1 << 20
_U32 = struct.Struct(">I")
_ENTRY = struct.Struct(">QQ")


@dataclass(frozen=True, slots=True)
class SegmentView:
    """A segment as a reader has to take it.

    ``size``: bytes of the log that count. ``gaps``: a compaction marker of this
    size allows holes. ``active``: an unfinished frame at its end is no damage.
    """

    base: int
    size: int
    gaps: bool
    active: bool


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame at byte ``position``; ``data`` begins with its length prefix."""

    position: int
    data: bytes
    record: Record


class OpenSegment:
    """The log and the index of a segment, open for reading."""

    __slots__ = ("base", "gone", "index", "log", "path", "users")

    def __init__(self, base: int, path: str, log: ReadableFile, index: ReadableFile | None) -> None:
        self.base = base
        self.path = path
        self.log = log
        self.index = index
        self.users = 0
        self.gone = False

    def close(self) -> None:
        """Close both files."""
        self.log.close()
        if self.index is not None:
            self.index.close()


class SegmentCache:
    """Open segments of one partition, at most ``capacity`` that nobody is using."""

    def __init__(self, fs: FileSystem, paths: PartitionPaths, capacity: int) -> None:
        self._fs = fs
        self._paths = paths
        self._capacity = max(capacity, 1)
        self._mutex = Lock()
        self._open: OrderedDict[int, OpenSegment] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def acquire(self, base: int) -> OpenSegment:
        """The segment, open until :meth:`release`. Raises ``OSError``."""
        with self._mutex:
            segment = self._open.get(base)
            if segment is None:
                segment = self._open[base] = self._opened(base)
            self._open.move_to_end(base)
            segment.users += 1
            self._evict()
            return segment

    def release(self, segment: OpenSegment) -> None:
        """The caller has finished with it."""
        with self._mutex:
            segment.users -= 1
            if segment.gone and not segment.users:
                segment.close()
            self._evict()

    def forget(self, base: int) -> None:
        """The files of this segment are about to change or to go."""
        with self._mutex:
            segment = self._open.pop(base, None)
            if segment is not None:
                segment.gone = True
                if not segment.users:
                    segment.close()

    def close(self) -> None:
        """Forget all of them."""
        for base in list(self._open):
            self.forget(base)

    def _opened(self, base: int) -> OpenSegment:
        path = self._paths.log(base)
        log = self._fs.open_read(path)
        try:
            index: ReadableFile | None = self._fs.open_read(self._paths.index(base))
        except OSError:
            index = None  # only a help: without it a read scans
        return OpenSegment(base, path, log, index)

    def _evict(self) -> None:
        if len(self._open) <= self._capacity:
            return
        for base, segment in list(self._open.items()):
            if len(self._open) <= self._capacity:
                break
            if not segment.users:
                del self._open[base]
                segment.close()


def locate(segment: OpenSegment, view: SegmentView, offset: int) -> int:
    """Byte position from which a scan for ``offset`` may begin; 0 in doubt."""
    if segment.index is None or offset <= view.base:
        return 0
    entry = _last_entry(segment.index, offset)
    if entry is None or entry[1] >= view.size:
        return 0
    try:
        return entry[1] if _offset_at(segment.log, entry[1], view.size) == entry[0] else 0
    except OSError:
        return 0


def _last_entry(index: ReadableFile, offset: int) -> tuple[int, int] | None:
    """The greatest entry with an offset up to ``offset``, if the entries ascend."""
    found = None
    try:
        low, high = 0, index.size // ENTRY_BYTES
        while low < high:
            middle = (low + high) // 2
            data = index.pread(ENTRY_BYTES, middle * ENTRY_BYTES)
            if len(data) < ENTRY_BYTES:
                return None
            entry = _ENTRY.unpack(data)
            if entry != (0, 0) and entry[0] <= offset:
                found = entry
                low = middle + 1
            else:
                high = middle
    except OSError:
        return None
    return found


def _offset_at(log: ReadableFile, position: int, size: int) -> int | None:
    """Offset of the record at ``position``, ``None`` when there is no whole one."""
    head = log.pread(4, position)
    if len(head) < 4:
        return None
    (length,) = _U32.unpack(head)
    if not 0 < length <= MAX_RECORD_BYTES or position + 4 + length > size:
        return None
    try:
        return decode(log.pread(length, position + 4)).offset
    except FormatError:
        return None


def frames(segment: OpenSegment, view: SegmentView, position: int = 0) -> Iterator[Frame]:
    """Frames from ``position`` on, each checked against the one before.

    Raises :class:`ReadError` with the codes of segments.md section 11 where
    the file does not go on as it must, and ``OSError``.
    """
    log, path, size = segment.log, segment.path, view.size
    expected: int | None = view.base if position == 0 else None
    last = -1
    buffer, start, window = b"", position, _FIRST_WINDOW
    while position < size:
        left = size - position
        at = position - start
        if left < 4:
            if view.active:
                return
            raise _error(
                "torn_record_length", path, position, f"{left} bytes where a length should be"
            )
        if at + 4 > len(buffer):
            buffer, start, at = _read(log, path, position, min(left, window)), position, 0
            window = min(window * 4, _LARGEST_WINDOW)
        (length,) = _U32.unpack_from(buffer, at)
        if not 0 < length <= MAX_RECORD_BYTES:
            text = f"length {length} is not between 1 and {MAX_RECORD_BYTES}"
            raise _error("record_length_invalid", path, position, text, found=length)
        if 4 + length > left:
            if view.active:
                return
            text = f"frame of {length + 4} bytes, but {left} are left in the file"
            raise _error("torn_record_body", path, position, text)
        if at + 4 + length > len(buffer):
            want = min(left, max(4 + length, window))
            buffer, start, at = _read(log, path, position, want), position, 0
        data = buffer[at : at + 4 + length]
        try:
            record = decode(data, 4)
        except FormatError as error:
            raise _error(error.code, path, position, error.message, **error.detail) from None
        offset = record.offset
        if offset != expected:
            _check_offset(path, position, view, offset, expected, last)
        yield Frame(position, data, record)
        last = offset
        expected = offset + 1
        position += 4 + length


def _check_offset(
    path: str, position: int, view: SegmentView, offset: int, expected: int | None, last: int
) -> None:
    gaps = view.gaps and not view.active
    if last < 0:
        if expected is not None and (not gaps or offset < expected):
            text = f"first record has offset {offset}; the name says base {view.base}"
            code = "segment_first_offset_mismatch"
            raise _error(code, path, position, text, expected=view.base, found=offset)
    elif offset <= last or not gaps:
        text = f"offset {offset} follows offset {last}"
        code = "record_offset_not_contiguous"
        raise _error(code, path, position, text, previous=last, expected=last + 1, found=offset)


def _read(log: ReadableFile, path: str, position: int, length: int) -> bytes:
    data = log.pread(length, position)
    while len(data) < length:
        more = log.pread(length - len(data), position + len(data))
        if not more:
            text = f"the file ends at byte {position + len(data)}, before its size"
            raise _error("file_changed_while_reading", path, position + len(data), text)
        data += more
    return data


def _error(code: str, path: str, position: int, message: str, **detail: object) -> ReadError:
    return ReadError(code, message, path=path, position=position, **detail)
