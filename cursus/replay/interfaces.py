"""What the replay is given: evidence, as an object.

The replay never opens a file. Whoever calls it passes something that fits
these protocols: ``cursus.evidence`` over a real directory, or a test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from cursus.findings import Finding
from cursus.formats.offset_index import Prefix
from cursus.formats.record import Record
from cursus.formats.record_columns import RecordColumns
from cursus.layout import FileKind
from cursus.replay.reduced import AggregateEvents, ProducerRuns, TransactionRow

EntryType = Literal["file", "directory", "symlink", "fifo", "socket", "device", "gone"]


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry below ``log_dir``, as ``lstat`` saw it; nothing is followed.

    ``path`` is relative with ``/`` separators (``surrogateescape`` for bytes
    that are not UTF-8). ``ctime_ns`` moves with every change of the file and cannot
    be put back, as ``mtime_ns`` can. ``kind`` is what the *name* says, ``type`` what stands
    there. ``topic``, ``partition``, ``base`` and ``number`` come from the name
    where the pattern has them (``number``: size of a compaction marker).
    """

    path: str
    kind: FileKind
    type: EntryType
    size: int
    mtime_ns: int
    ctime_ns: int
    mode: int
    dev: int
    ino: int
    topic: str | None = None
    partition: int | None = None
    base: int | None = None
    number: int | None = None


class ByteSource(Protocol):
    """An open file: positioned reads only. ``pread`` may return fewer bytes at the end."""

    @property
    def size(self) -> int: ...

    def pread(self, length: int, position: int) -> bytes: ...


def data_from(source: ByteSource, position: int) -> int:
    """Where to read on: behind the hole that ``position`` stands in, if the source can tell."""
    known = getattr(source, "data_from", None)
    return position if known is None else int(known(position))


def expect(evidence: Evidence, segments: Iterable[Entry]) -> None:
    """These segments are scanned next, in this order: evidence that can reads them together.

    A hint that changes no answer.
    """
    known = getattr(evidence, "expect", None)
    if known is not None:
        known(segments)


class UnreadableError(OSError):
    """The entry cannot be opened or read; ``finding`` is ready to be reported (decision 24)."""

    def __init__(self, message: str, finding: Finding) -> None:
        super().__init__(message)
        self.finding = finding


class Evidence(Protocol):
    """A log directory, read-only."""

    @property
    def log_dir(self) -> str: ...

    @property
    def in_use(self) -> bool | None: ...

    @property
    def entries(self) -> Sequence[Entry]:
        """Every entry below ``log_dir``, sorted by the bytes of ``path``."""

    @property
    def walk_findings(self) -> Sequence[Finding]:
        """What the walk itself met: directories that cannot be listed, unknown files."""

    def get(self, path: str) -> Entry | None: ...

    def children(self, directory: str) -> Sequence[Entry]:
        """Entries directly below ``directory`` (``""`` for ``log_dir``), sorted by name bytes."""

    def read(self, path: str, limit: int) -> bytes:
        """At most ``limit`` + 1 bytes of a regular file. Raises :class:`UnreadableError`."""

    def open(self, path: str) -> OpenSource:
        """Raises :class:`UnreadableError`."""

    def scan(
        self,
        segment: SegmentRef,
        visit: Callable[[RecordBatch], None] | None = None,
        index: Prefix | None = None,
        *,
        after: SegmentScan | None = None,
    ) -> SegmentScan:
        """Scan one segment from position 0 (segments.md sections 10, 11, 18).

        ``after``: from the end of another scan of the same file on.

        ``index``: usable entries of the sparse index beside it. They are compared
        with the records, and may help to find them; none is believed.
        """


class OpenSource(ByteSource, Protocol):
    def __enter__(self) -> OpenSource: ...

    def __exit__(self, *exc: object) -> None: ...


@dataclass(frozen=True, slots=True)
class SegmentRef:
    """One segment file and what its surroundings say about it.

    ``gaps_allowed``: a valid compaction marker of the current size stands
    beside it and it is not active. ``internal``: ``__consumer_offsets``.
    """

    path: str
    topic: str
    partition: int
    base: int
    size: int
    active: bool
    deleted: bool
    gaps_allowed: bool
    internal: bool
    in_use: bool | None = None


@dataclass(frozen=True, slots=True)
class ScannedRecord:
    """A record at byte ``position`` (of its length prefix); ``length`` is that of the frame."""

    position: int
    length: int
    record: Record


class RecordBatch(Protocol):
    """A run of consecutive records of one segment, in file order.

    ``reachable`` is False behind damage: such records are evidence, never state.
    A batch may hold tens of thousands of records. Read it by ``columns()``; a
    walk over it decodes each record to an object of its own, which is slow.

    The three kinds of rows are all that the replay takes from an application
    topic; of ``__consumer_offsets`` it takes the records too. They are empty
    where ``reachable`` is False or the segment is deleted.

    ``for_replay()`` gives a batch that holds those rows (and the records of
    ``__consumer_offsets``) and nothing of the read window. It is small, can be
    pickled, and visiting it has exactly the same effect on the replay: a process
    that scans sends it to the one that judges. Every record of a batch being of
    one producer, it is one row. It keeps ``len()``, the number of records that it
    stands for, but cannot be walked over where the records were left behind.
    """

    @property
    def segment(self) -> SegmentRef: ...

    @property
    def reachable(self) -> bool: ...

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[ScannedRecord]: ...

    def columns(self) -> RecordColumns:
        """Every field as an array; the values are valid during the visit only."""

    def transaction_rows(self) -> Sequence[TransactionRow]:
        """Runs of open records and markers, in file order for each (id, epoch)."""

    def producer_runs(self) -> ProducerRuns:
        """Records with a producer id and a sequence above 0, as runs."""

    def aggregate_events(self) -> AggregateEvents:
        """Records with a key and an aggregate version above 0."""

    def for_replay(self, *, aggregates: bool = True) -> RecordBatch:
        """What the replay needs; without the events where a topic is not event-sourcing."""


@dataclass(frozen=True, slots=True)
class UnreachableRun:
    """Complete frames found behind damage by resynchronising on ``CDM2``.

    ``first_offset`` is that of the first record, ``last_offset`` the highest one.
    """

    position: int
    length: int
    records: int
    first_offset: int
    last_offset: int


@dataclass(frozen=True, slots=True)
class IndexMatch:
    """Entries of a sparse index against the good records of its log.

    ``passed``: entries that point to a byte before the end of the good frames.
    ``mismatches``: numbers of the first of them where no record, or one of
    another offset, begins; ``mismatch_count``: how many there are in all.
    """

    passed: int
    mismatches: tuple[int, ...]
    mismatch_count: int


@dataclass(frozen=True, slots=True)
class SegmentScan:
    """What one scan found.

    ``first_offset``/``last_offset`` are ``None`` without a decoded record and
    cover the reachable records. ``end_position`` is the first byte that is not
    part of a good frame (= size when ``end`` is ``clean``). ``end``:

    ``clean``      every byte belongs to a good frame
    ``torn``       honest torn tail of an active segment; a start cuts it (internal: refuses)
    ``in_progress`` unfinished frame at the end of the active segment of a directory in use
    ``damaged``    anything else; a start refuses
    ``unreadable`` the file could not be read (finding ``file_unreadable``)

    ``expected_next``: offset that the next record would have (base when empty).
    ``index``: how the index fared, ``None`` when the scan was given none or did
    not begin.
    """

    segment: SegmentRef
    end: Literal["clean", "torn", "in_progress", "damaged", "unreadable"]
    end_position: int
    first_offset: int | None
    last_offset: int | None
    record_count: int
    expected_next: int
    findings: tuple[Finding, ...]
    unreachable: tuple[UnreachableRun, ...] = ()
    index: IndexMatch | None = None
