"""Many small segments at once: thousands of partitions with a few records each.

Arrays of ten records cost more than they save, and decoding ten records one by one
costs more than opening their file. So the next ones of the segments that are
expected (:meth:`SmallSegments.expect`) are read into one buffer, and their frames
are found and decoded together, one lane for each file.

From here comes the answer about a segment that is good to its last byte and
nothing else: whole frames from its first byte to its end, all of the topic and
the partition of its name, offsets that go on from its base by one. About any
other this says nothing, and the scan of that one file reads it again: every code,
position and message about damage comes from there.

Source: segments.md sections 3, 4, 10, 11; design, principles 6 and 9.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from cursus.evidence.index_comparison import IndexComparison
from cursus.evidence.plain_scan import Visit
from cursus.formats.offset_index import Prefix
from cursus.formats.record import MAX_RECORD_BYTES, MIN_RECORD_BYTES
from cursus.formats.record_columns import (
    SLACK,
    Bytes,
    Int64s,
    RecordColumns,
    UInt64s,
    decode_frames,
    needle,
)
from cursus.replay.batches import Batch, ColumnBatch, scanned
from cursus.replay.interfaces import (
    ByteSource,
    Entry,
    ScannedRecord,
    SegmentRef,
    SegmentScan,
    UnreadableError,
)

#: Bytes and files that are read together. A frame has 84 bytes at least, so what is
#: decoded at once is no more than a window of a large segment.
CHUNK_BYTES: Final = 2 << 20
CHUNK_FILES: Final = 4096
#: Files of a chunk that may hold a record that does not decode; with more of them
#: every file of the chunk is scanned by itself, which costs as much as it always did.
_UNDECODABLE: Final = 4
#: Segments of so many records are handed over as columns, smaller ones as records.
_COLUMNS_FROM: Final = 64
_BEHIND: Final = bytes(SLACK)


class _Opened(ByteSource, Protocol):
    def close(self) -> None: ...


Open = Callable[[str], _Opened]


class SmallSegments:
    """Reads ahead. ``below``: a segment of so many bytes or more is not small."""

    def __init__(self, below: int) -> None:
        self._below = below
        self._waiting: deque[Entry] = deque()
        self._ready: dict[str, _Good] = {}

    def expect(self, entries: Iterable[Entry]) -> None:
        """These segments will be scanned next, in this order; others are forgotten."""
        self._ready = {}
        self._waiting = deque(filter(self._is_small, entries))

    def _is_small(self, entry: Entry) -> bool:
        return (
            entry.type == "file"
            and 0 < entry.size < self._below
            and entry.base is not None
            and entry.base < 1 << 63
        )

    def scan(
        self, opens: Open, ref: SegmentRef, visit: Visit | None, index: Prefix | None
    ) -> SegmentScan | None:
        """What a scan of this segment finds, where it is known to be good; else ``None``.

        ``opens``: opens a file of the walk, or raises ``UnreadableError``.
        """
        if self._waiting and self._waiting[0].path == ref.path:
            self._read_on(opens)
        good = self._ready.pop(ref.path, None)
        if good is None or not good.is_of(ref):
            return None
        compared = None
        if index is not None:
            comparison = IndexComparison(index)
            if comparison.wants(ref.size):
                comparison.records(*good.places(), ref.size)
            compared = comparison.result()
        if visit is not None:
            good.hand_over(ref, visit)
        last = ref.base + good.count - 1
        return SegmentScan(
            ref, "clean", ref.size, ref.base, last, good.count, last + 1, (), (), compared
        )

    def _read_on(self, opens: Open) -> None:
        files: list[Entry] = []
        parts: list[bytes] = []
        size = 0
        self._ready = {}
        while self._waiting and size < CHUNK_BYTES and len(files) < CHUNK_FILES:
            entry = self._waiting.popleft()
            data = _whole(opens, entry)
            if data is not None:
                files.append(entry)
                parts.append(data)
                size += len(data)
        if files:
            self._ready = _judge(files, b"".join((*parts, _BEHIND)))


def _whole(opens: Open, entry: Entry) -> bytes | None:
    """The whole file; ``None`` leaves it to its scan, which then says what is wrong."""
    try:
        source = opens(entry.path)
    except UnreadableError:
        return None
    try:
        data = source.pread(entry.size, 0)
    except OSError:
        return None
    finally:
        source.close()
    return data if len(data) == entry.size else None


class _Chunk:
    """Records of several files; decoded to objects, all of them, when the first is wanted."""

    def __init__(self, columns: RecordColumns) -> None:
        self.columns = columns
        self._records: list[ScannedRecord] | None = None

    def records(self, begin: int, end: int) -> list[ScannedRecord]:
        if self._records is None:
            self._records = list(scanned(self.columns))
        return self._records[begin:end]


@dataclass(slots=True)
class _Good:
    """A file that is good to its last byte: ``count`` rows of the chunk, from ``begin`` on."""

    chunk: _Chunk
    entry: Entry
    begin: int
    count: int
    start: int

    def is_of(self, ref: SegmentRef) -> bool:
        entry = self.entry
        return (
            ref.size == entry.size
            and ref.base == entry.base
            and ref.partition == entry.partition
            and ref.topic == entry.topic
        )

    def places(self) -> tuple[Int64s, UInt64s]:
        rows = slice(self.begin, self.begin + self.count)
        return self.chunk.columns.position[rows], self.chunk.columns.offset[rows]

    def hand_over(self, ref: SegmentRef, visit: Visit) -> None:
        begin, end = self.begin, self.begin + self.count
        if self.count < _COLUMNS_FROM:
            visit(Batch(ref, self.chunk.records(begin, end), reachable=True))
        else:
            columns = self.chunk.columns.rows(slice(begin, end))
            visit(ColumnBatch(ref, columns, self.start, reachable=True))


def _judge(files: list[Entry], raw: bytes) -> dict[str, _Good]:
    """Those of ``files`` that are good; ``raw`` holds them one behind the other, and SLACK."""
    data: Bytes = np.frombuffer(raw, np.uint8)
    sizes = np.array([entry.size for entry in files], np.int64)
    ends = np.cumsum(sizes)
    begins = ends - sizes
    start, length, lane, good = _frames(data, begins, ends)
    # What every record of the first file begins with; of the others only the topic is the same.
    topic = (files[0].topic or "").encode("utf-8", "surrogateescape")
    mark = needle(topic, files[0].partition or 0)
    for _ in range(_UNDECODABLE):
        keep = good[lane]
        start, length, lane = start[keep], length[keep], lane[keep]
        columns, alike = decode_frames(data, start, length, start - begins[lane], mark)
        if len(columns) == len(start):
            break
        good[lane[len(columns)]] = False
    else:
        return {}
    counts = np.bincount(lane, minlength=len(files))
    firsts = np.cumsum(counts) - counts
    bases = np.array([entry.base for entry in files], np.uint64)
    partitions = np.array([entry.partition for entry in files], np.int64)
    within = (np.arange(len(lane)) - firsts[lane]).astype(np.uint64)
    right = columns.offset == bases[lane] + within
    right &= columns.partition == partitions[lane]
    if not alike:
        right &= columns.topic.equals(topic)
    good[lane[~right]] = False
    chunk = _Chunk(columns)
    rows = zip(files, good.tolist(), firsts.tolist(), counts.tolist(), begins.tolist(), strict=True)
    return {
        entry.path: _Good(chunk, entry, first, count, begin)
        for entry, fine, first, count, begin in rows
        if fine and entry.topic == files[0].topic
    }


def _frames(
    data: Bytes, begins: Int64s, ends: Int64s
) -> tuple[Int64s, Int64s, NDArray[np.intp], NDArray[np.bool_]]:
    """Follow the frames of all files in lockstep.

    Returns start and length of each frame and the number of its file, in the order of
    ``data``, and for each file whether its frames end where it ends.
    """
    prefixes: NDArray[np.uint32] = np.ndarray((len(data) - 3,), ">u4", data, strides=(1,))
    whole = np.zeros(len(begins), np.bool_)
    lane, at = np.arange(len(begins)), begins
    steps: list[tuple[Int64s, Int64s, NDArray[np.intp]]] = []
    while len(at):
        length = prefixes[at].astype(np.int64) + 4
        following = at + length
        # A prefix that is cut by the end of its file leads behind it: no frame either.
        fits = (length >= 4 + MIN_RECORD_BYTES) & (length <= 4 + MAX_RECORD_BYTES)
        fits &= following <= ends[lane]
        if not fits.all():
            lane, at, length, following = lane[fits], at[fits], length[fits], following[fits]
        steps.append((at, length, lane))
        arrived = following == ends[lane]
        if arrived.any():
            whole[lane[arrived]] = True
            lane, at = lane[~arrived], following[~arrived]
        else:
            at = following
    start, length, lane = (np.concatenate(part) for part in zip(*steps, strict=True))
    order = np.argsort(start)
    return start[order], length[order], lane[order], whole
