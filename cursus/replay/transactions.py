"""Step 4: the transaction journal, and what the logs say about transactions.

The journal is walked frame by frame from byte 0; a payload is held only while
its frame is looked at. An unfinished last frame, or a last frame with a wrong
checksum, is cut by a start. Anything else refuses, and so does a length that
runs past the end unless the document behind it is itself cut and no good frame
follows (decision 10). Good frames behind a problem are listed as salvage.

The logs carry transactional records and markers. Per partition an index keeps,
for each (transactional id, epoch), the first open record and the last marker;
from both and from the journal follows what committed readers see.

Source: journal.md sections 2, 3.1, 4, 5; README.md decisions 3, 10, 32.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from cursus import layout
from cursus.findings import Finding, FormatError, Lost, Severity, finding
from cursus.formats import canonical_json, timestamps
from cursus.formats import transaction_journal as tj
from cursus.formats.transaction_journal import Transaction
from cursus.replay.interfaces import (
    ByteSource,
    Evidence,
    RecordBatch,
    UnreadableError,
    data_from,
)
from cursus.replay.reduced import MAX_ADDRESSES, MarkerRow, OpenRun

Profile = Literal["A", "B"]
#: Payload versions that a broker of each profile reads.
VERSIONS: Final[Mapping[Profile, frozenset[int]]] = {
    "A": frozenset({1}),
    "B": frozenset({1, 2, 3}),
}
STATES: Final[Mapping[Profile, frozenset[str]]] = {
    "A": frozenset({"open", "committing", "committed", "aborted"}),
    "B": frozenset(
        {"open", "committing", "committed", "aborted", "prepare_commit", "prepare_abort"}
    ),
}
DEFAULT_EXPIRATION_MS: Final = 604_800_000
#: Code and text of what stands in the way of a decided commit, ``None`` when nothing does.
CanCommit = Callable[[Transaction], tuple[str, str] | None]
_U32 = struct.Struct(">I")
_CHUNK: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class JournalFrame:
    """One frame. ``salvage`` marks good frames behind a problem: evidence, never state."""

    position: int
    length: int
    version: int
    kind: str
    transactional_id: str
    state: str
    epoch: int
    revision: int
    updated_at: int
    salvage: bool = False
    unknown_members: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class JournalProblem:
    """Why the walk stopped. ``repair``: a start cuts the file at ``position`` and goes on."""

    code: str
    position: int
    message: str
    repair: bool
    found_length: int | None = None
    version: int | None = None


@dataclass(slots=True)
class JournalScan:
    """The walk over a journal. ``latest`` holds the last state of each id.

    ``searched``: all bytes behind the problem were searched for good frames.
    """

    size: int
    frames: list[JournalFrame] = field(default_factory=list)
    latest: dict[str, Transaction] = field(default_factory=dict)
    positions: dict[str, int] = field(default_factory=dict)
    problem: JournalProblem | None = None
    salvage: list[JournalFrame] = field(default_factory=list)
    searched: bool = False
    watermark: int | None = None
    next_epoch: int = 0

    @property
    def end(self) -> int:
        """First byte that is not part of an accepted frame."""
        return self.problem.position if self.problem else self.size


class _Short(Exception):
    """The file ended before its size."""


def scan_journal(source: ByteSource, size: int, profile: Profile = "A") -> JournalScan:
    """Walk a journal of ``size`` bytes. Never raises for what stands in it."""
    scan = JournalScan(size)
    position = 0
    try:
        while position < size:
            following = _frame(source, scan, position, profile)
            if following is None:
                break
            position = following
        if scan.problem is not None:
            _salvage(source, scan)
            _judge_tail(source, scan, profile)
    except _Short:
        scan.problem = JournalProblem(
            "file_changed_while_reading", position, "the journal shrank while it was read", False
        )
    return scan


def _read(source: ByteSource, length: int, position: int) -> bytes:
    parts = []
    got = 0
    while got < length:
        data = source.pread(length - got, position + got)
        if not data:
            raise _Short
        parts.append(data)
        got += len(data)
    return b"".join(parts)


def _frame(source: ByteSource, scan: JournalScan, position: int, profile: Profile) -> int | None:
    """Read one frame; returns where the next begins, or ``None`` after a problem."""
    size = scan.size
    left = size - position
    if left < 4:
        scan.problem = JournalProblem(
            "journal_frame_truncated", position, f"{left} bytes where a length should be", True
        )
        return None
    length = int.from_bytes(_read(source, 4, position), "big")
    if not 0 < length <= tj.MAX_PAYLOAD_BYTES:
        tail = left == 4
        scan.problem = JournalProblem(
            "journal_frame_truncated" if tail else "journal_frame_length_invalid",
            position,
            f"length {length} is not between 1 and {tj.MAX_PAYLOAD_BYTES}",
            tail,
            length,
        )
        return None
    if position + tj.OVERHEAD + length > size:
        scan.problem = JournalProblem(
            "journal_frame_truncated",
            position,
            f"frame of {length + tj.OVERHEAD} bytes, but {left} are left in the file",
            True,
            length,
        )
        return None
    data = _read(source, length + 4, position + 4)
    payload = data[:length]
    if _U32.unpack(data[length:])[0] != tj.checksum(payload):
        last = position + tj.OVERHEAD + length == size
        scan.problem = JournalProblem(
            "journal_frame_checksum_mismatch",
            position,
            "the payload does not match its checksum" + (", in the last frame" if last else ""),
            last and profile == "A",
            length,
        )
        return None
    try:
        envelope = tj.decode(payload, versions=VERSIONS[profile])
        _take(scan, envelope, position, length)
    except FormatError as error:
        version = error.detail.get("version")
        scan.problem = JournalProblem(
            error.code,
            position,
            error.message,
            False,
            length,
            version if isinstance(version, int) else None,
        )
        return None
    return position + tj.OVERHEAD + length


def _take(scan: JournalScan, envelope: tj.Envelope, position: int, length: int) -> None:
    state = envelope.transaction
    if envelope.kind == "delta" and envelope.delta is not None:
        state = tj.merge(scan.latest.get(str(envelope.delta["metadata"]["id"])), envelope.delta)
    if envelope.watermark is not None:
        scan.watermark = max(scan.watermark or 0, envelope.watermark)
        scan.next_epoch = max(scan.next_epoch, envelope.watermark)
    if state is not None:
        scan.latest[state.id] = state
        scan.positions[state.id] = position
        scan.next_epoch = max(scan.next_epoch, state.epoch + 1)
    scan.frames.append(_row(envelope, state, position, length, salvage=False))


def _row(
    envelope: tj.Envelope, state: Transaction | None, position: int, length: int, *, salvage: bool
) -> JournalFrame:
    return JournalFrame(
        position=position,
        length=length + tj.OVERHEAD,
        version=envelope.version,
        kind=envelope.kind,
        transactional_id=state.id if state else "",
        state=state.state if state else "",
        epoch=state.epoch if state else (envelope.watermark or 0),
        revision=state.revision if state else 0,
        updated_at=state.updated_at if state else timestamps.ZERO,
        salvage=salvage,
        unknown_members=envelope.unknown_members,
    )


def _judge_tail(source: ByteSource, scan: JournalScan, profile: Profile) -> None:
    """A repair needs proof that the frame itself is cut and that nothing good stands behind."""
    problem = scan.problem
    if problem is None or not problem.repair or profile != "A":
        return
    position = problem.position
    reason = ""
    if scan.salvage:
        first = scan.salvage[0].position
        reason = f"{len(scan.salvage)} good frames stand behind it, the first at byte {first}"
    elif not scan.searched:
        reason = "what stands behind it is too confused to prove that nothing is lost"
    elif problem.code == "journal_frame_truncated" and problem.found_length is not None:
        left = scan.size - position - 4
        if 0 < problem.found_length <= tj.MAX_PAYLOAD_BYTES and left > 0:
            reason = _not_cut(
                _read(source, min(left, tj.MAX_PAYLOAD_BYTES), position + 4), problem.found_length
            )
    if reason:
        scan.problem = JournalProblem(
            "journal_corrupt_non_tail",
            position,
            f"{problem.message}; yet {reason}",
            False,
            problem.found_length,
        )


def _not_cut(data: bytes, length: int) -> str:
    """Why these bytes are not the beginning of a frame of ``length`` bytes, or nothing."""
    start = tj.PAYLOAD_START
    if data[: len(start)] != start[: len(data)]:
        return "what follows is not the beginning of a journal document"
    end = canonical_json.document_end(data)
    if end is not None and end != length:
        return f"the document behind it ends after {end} bytes"
    return ""


def _salvage(source: ByteSource, scan: JournalScan) -> None:
    """Good frames behind the problem: plausible length, good checksum, a journal document.

    The file is read once through a window. The checksums together cover at most
    four times the file and one frame: a file made of overlapping false frames
    must not cost the square of its size. Where that is used up nothing is known
    of the rest, and ``searched`` stays False.
    """
    assert scan.problem is not None
    size, mark = scan.size, tj.PAYLOAD_START
    budget = 4 * size + tj.MAX_PAYLOAD_BYTES
    position = scan.problem.position + 5  # of a mark; it stands behind a frame's length
    start, data = position, b""
    while position + len(mark) <= size:
        if position + len(mark) > start + len(data):
            position = data_from(source, position)
            if position + len(mark) > size:
                break
            start, data = position, _read(source, min(_CHUNK, size - position), position)
        at = data.find(mark, position - start)
        if at < 0:
            position = start + len(data) - len(mark) + 1
            continue
        position = start + at
        budget -= _plausible(source, size, position - 4)
        if budget < 0:
            return
        frame = _good_frame(source, size, position - 4)
        if frame is None:
            position += 1
        else:
            scan.salvage.append(frame)
            position = frame.position + frame.length + 4
    scan.searched = True


def _plausible(source: ByteSource, size: int, position: int) -> int:
    """Payload length of the frame that begins at ``position``, 0 when it cannot be one."""
    (length,) = _U32.unpack(_read(source, 4, position))
    fits = 0 < length <= tj.MAX_PAYLOAD_BYTES and position + tj.OVERHEAD + length <= size
    return int(length) if fits else 0


def _good_frame(source: ByteSource, size: int, position: int) -> JournalFrame | None:
    length = _plausible(source, size, position)
    if not length:
        return None
    data = _read(source, length + 4, position + 4)
    if _U32.unpack(data[length:])[0] != tj.checksum(data[:length]):
        return None
    try:
        envelope = tj.decode(data[:length], versions=VERSIONS["B"])
    except FormatError:
        return None
    return _row(envelope, envelope.transaction, position, length, salvage=True)


def import_problem(state: Transaction, profile: Profile = "A") -> tuple[str, str] | None:
    """Code and text of the first violated rule of journal.md section 2.1, or ``None``."""
    values = state.values
    if not state.id or not state.producer:
        return "txn_identity_invalid", "id or producer is empty"
    if state.epoch < 0:
        return "txn_epoch_negative", f"epoch {state.epoch}"
    if state.revision < 1:
        return "txn_revision_missing", "revision is missing"
    if (
        profile == "B"
        and values["offset_reservations_pending"]
        and (
            values["mode"] != "transactional_processing_v1"
            or not state.offsets
            or state.expired
            or state.ready
            or values["offsets_materialized"]
        )
    ):
        return "txn_reservation_pending_invalid", "offset reservations cannot be pending"
    if state.state not in STATES[profile]:
        return "txn_state_invalid", f'state "{canonical_json.shorten(state.state)}" is not known'
    zero = timestamps.ZERO
    if zero in {state.created_at, state.updated_at} or state.updated_at < state.created_at:
        return "txn_timestamps_invalid", "times are missing or in the wrong order"
    return None


# -- step 4 ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Finish:
    """What a start would do to finish a committing transaction."""

    transactional_id: str
    epoch: int
    records: int
    partitions: tuple[tuple[str, int], ...]
    offsets: int


@dataclass(frozen=True, slots=True)
class JournalReplay:
    """Step 4. ``transactions`` holds the last accepted state of each id, tombstones too.

    ``complete`` is False when a problem that is not repaired hides later states.
    ``live``: a broker was using the directory; the logs were read before the
    journal, so a decision may be newer than the marker that was not there yet.
    """

    present: bool
    complete: bool
    size: int
    frames: tuple[JournalFrame, ...]
    salvage: tuple[JournalFrame, ...]
    transactions: dict[str, Transaction]
    findings: tuple[Finding, ...]
    cut: tuple[int, int] | None
    finish: tuple[Finish, ...]
    expire: tuple[str, ...]
    later_versions: tuple[int, ...] = ()
    live: bool = False

    def decision(self, transactional_id: str, epoch: int) -> str | None:
        """State of (id, epoch) in the journal, ``None`` when it does not know them."""
        state = self.transactions.get(transactional_id)
        if state is None or state.epoch != epoch or state.expired:
            return None
        return state.state


def _empty(present: bool, complete: bool, found: Iterable[Finding]) -> JournalReplay:
    return JournalReplay(present, complete, 0, (), (), {}, tuple(found), None, (), ())


def replay_journal(
    evidence: Evidence,
    as_of: int,
    *,
    declared: Mapping[str, int] | None,
    groups: Iterable[str] | None = None,
    expiration_ms: int = DEFAULT_EXPIRATION_MS,
    can_commit: CanCommit | None = None,
) -> JournalReplay:
    """Read and judge the journal.

    ``as_of``: nanoseconds since the zero time, for expiry. ``declared``:
    partition count of each topic, ``None`` when the manifest cannot be read.
    ``groups``: live groups, ``None`` when they cannot be told. ``can_commit``: why
    a commit that is decided could not be carried out (``cursus.replay.commit``).
    """
    path = layout.JOURNAL
    entry = evidence.get(path)
    if entry is None:
        return _empty(False, True, ())
    if entry.type != "file":
        text = f"a {entry.type} stands where the journal should be"
        return _empty(True, False, (finding("journal_not_regular", path, message=text),))
    try:
        with evidence.open(path) as source:
            # A broker at work may have compacted it since it was listed.
            size = source.size if evidence.in_use else entry.size
            scan = scan_journal(source, size)
            later = scan_journal(source, size, "B") if _is_later(scan) else None
    except UnreadableError as error:
        told = error.finding
        problem = finding(
            told.code,
            told.path,
            message=told.message,
            severity=told.severity,
            effect=told.effect,
            step=4,
        )
        return _empty(True, False, (problem,))
    except OSError as error:
        text = f"cannot be read: {error.strerror or error}"
        return _empty(True, False, (finding("file_unreadable", path, message=text, step=4),))
    found: list[Finding] = []
    cut = None
    if scan.problem is not None and scan.problem.repair and evidence.in_use:
        found.append(_in_progress(scan))
    elif scan.problem is not None:
        found.append(_problem_finding(scan))
        if scan.problem.repair:
            cut = (scan.problem.position, scan.size - scan.problem.position)
    found.extend(_unknown_members(later.frames if later else scan.frames))
    if later is not None:
        found.extend(_about_manifest(evidence, later))
    found.extend(_import(scan))
    finish, told_finish = _finish(scan, declared, groups, can_commit)
    found.extend(told_finish)
    expire = _expiry(scan, as_of, expiration_ms)
    if expire:
        found.append(
            finding(
                "txn_expiry_due",
                path,
                message=f"{len(expire)} transactions are past their expiration",
                ids=expire,
            )
        )
    complete = scan.problem is None or scan.problem.repair
    shown = later.frames if later is not None else scan.frames
    return JournalReplay(
        present=True,
        complete=complete,
        size=scan.size,
        frames=tuple(shown),
        salvage=tuple(scan.salvage) if later is None else tuple(later.salvage),
        transactions=dict(sorted((later or scan).latest.items())),
        findings=tuple(found),
        cut=cut,
        finish=finish,
        expire=expire,
        later_versions=tuple(sorted({f.version for f in shown if f.version != 1})),
        live=bool(evidence.in_use),
    )


def _is_later(scan: JournalScan) -> bool:
    problem = scan.problem
    return (
        problem is not None
        and problem.code == "journal_version_unsupported"
        and problem.version in {2, 3}
    )


def _problem_finding(scan: JournalScan) -> Finding:
    problem = scan.problem
    assert problem is not None
    left = scan.size - problem.position
    facts: dict[str, object] = {}
    if problem.found_length is not None:
        facts["found_length"] = problem.found_length
    message = problem.message
    if scan.salvage and not problem.repair and problem.code != "journal_corrupt_non_tail":
        message += f"; {len(scan.salvage)} good frames stand behind it"
    if problem.code == "file_changed_while_reading":
        return finding(problem.code, layout.JOURNAL, position=problem.position, step=4)
    return finding(
        problem.code,
        layout.JOURNAL,
        position=problem.position,
        length=left,
        message=message,
        effect="repairs" if problem.repair else "refuses",
        severity="warning" if problem.repair else "error",
        step=4,
        lost=Lost(bytes=left, records=len(scan.salvage)),
        **facts,
    )


def _in_progress(scan: JournalScan) -> Finding:
    problem = scan.problem
    assert problem is not None
    return finding(
        "write_in_progress",
        layout.JOURNAL,
        position=problem.position,
        length=scan.size - problem.position,
        message=f"{problem.message}; a broker is using the directory and may be writing it "
        "right now",
        step=4,
    )


def _unknown_members(frames: Sequence[JournalFrame]) -> Iterable[Finding]:
    for frame in frames:
        if frame.version == 2 and frame.unknown_members:
            names = ", ".join(canonical_json.shorten(n) for n in frame.unknown_members[:5])
            yield finding(
                "journal_envelope_unknown_member",
                layout.JOURNAL,
                position=frame.position,
                length=frame.length,
                message=f"version-2 frame with unknown members: {names}",
            )
            return


def _about_manifest(evidence: Evidence, scan: JournalScan) -> Iterable[Finding]:
    path = layout.JOURNAL_MANIFEST
    entry = evidence.get(path)
    if entry is None:
        yield finding("journal_manifest_missing", path)
        return
    try:
        manifest = tj.decode_manifest(evidence.read(path, 1 << 20))
    except UnreadableError as error:
        yield error.finding
        return
    except FormatError as error:
        yield finding(error.code, path, position=error.position, message=error.message)
        return
    code = judge_manifest(manifest, scan)
    if code is not None:
        yield finding(code, path)


def judge_manifest(manifest: tj.JournalManifest, scan: JournalScan) -> str | None:
    """Code of the first check that fails (journal.md section 1.10), or ``None``."""
    if not manifest.checksum_ok:
        return "journal_manifest_checksum_mismatch"
    said = (
        manifest.version,
        manifest.journal_size,
        manifest.record_count,
        manifest.latest_transactions,
        manifest.next_producer_epoch,
        manifest.has_producer_epoch_watermark,
    )
    is_so = (
        1,
        scan.size,
        len(scan.frames),
        len(scan.latest),
        scan.next_epoch,
        scan.watermark is not None,
    )
    if said != is_so:
        return "journal_manifest_stale"
    unused = not scan.latest and scan.next_epoch == 0
    if manifest.state != ("unused" if unused else "active"):
        return "journal_manifest_state_mismatch"
    return None


def _import(scan: JournalScan) -> Iterable[Finding]:
    for name in sorted(scan.latest, key=_order):
        problem = import_problem(scan.latest[name])
        if problem is not None:
            code, text = problem
            yield finding(
                code,
                layout.JOURNAL,
                position=scan.positions[name],
                message=f'transaction "{canonical_json.shorten(name)}": {text}',
                step=4,
                transactional_id=name,
            )


def _finish(
    scan: JournalScan,
    declared: Mapping[str, int] | None,
    groups: Iterable[str] | None,
    can_commit: CanCommit | None,
) -> tuple[tuple[Finish, ...], list[Finding]]:
    found: list[Finding] = []
    finish: list[Finish] = []
    live = None if groups is None else set(groups)
    for name in sorted(scan.latest, key=_order):
        state = scan.latest[name]
        if state.expired or state.state not in {"open", "committing"}:
            continue
        committing = state.state == "committing"
        missing = _missing(state, declared, live if committing else None)
        if missing:
            found.append(
                finding(
                    "txn_reference_missing",
                    layout.JOURNAL,
                    position=scan.positions[name],
                    message=f'{state.state} transaction "{canonical_json.shorten(name)}" '
                    f"refers to {missing}",
                    effect="refuses" if committing else "ignores",
                    severity="error" if committing else "warning",
                    transactional_id=name,
                    epoch=state.epoch,
                )
            )
        elif committing and can_commit is not None and (cause := can_commit(state)) is not None:
            found.append(
                finding(
                    cause[0],
                    layout.JOURNAL,
                    position=scan.positions[name],
                    message=f'the commit of transaction "{canonical_json.shorten(name)}" cannot be '
                    f"carried out: {cause[1]}",
                    severity="error",
                    effect="refuses",
                    step=4,
                    transactional_id=name,
                    epoch=state.epoch,
                )
            )
        elif committing:
            partitions = tuple(state.partitions())
            finish.append(
                Finish(name, state.epoch, len(state.messages), partitions, len(state.offsets))
            )
            found.append(
                finding(
                    "txn_recovery_pending",
                    layout.JOURNAL,
                    position=scan.positions[name],
                    message=f'transaction "{canonical_json.shorten(name)}" is committing: '
                    f"{len(state.messages)} records and markers in {len(partitions)} partitions, "
                    f"{len(state.offsets)} offsets",
                    transactional_id=name,
                    epoch=state.epoch,
                )
            )
    return tuple(finish), found


def _missing(
    state: Transaction, declared: Mapping[str, int] | None, groups: set[str] | None
) -> str:
    if declared is not None:
        places = [(str(m["Topic"]), int(m["Partition"])) for m in state.messages]
        places += [(str(o["Topic"]), int(o["Partition"])) for o in state.offsets]
        for topic, partition in places:
            if topic not in declared:
                return f'topic "{canonical_json.shorten(topic)}", which is not declared'
            if not 0 <= partition < declared[topic]:
                return f'partition {partition} of topic "{topic}", which is not declared'
    if groups is not None:
        for offset in state.offsets:
            if str(offset["Group"]) not in groups:
                return f'group "{canonical_json.shorten(str(offset["Group"]))}", which is gone'
    return ""


def _expiry(scan: JournalScan, as_of: int, expiration_ms: int) -> tuple[str, ...]:
    period = (expiration_ms if expiration_ms > 0 else DEFAULT_EXPIRATION_MS) * 1_000_000
    cutoff = as_of - period
    return tuple(
        name
        for name in sorted(scan.latest, key=_order)
        if (scan.latest[name].expired or scan.latest[name].state in {"committed", "aborted"})
        and scan.latest[name].updated_at < cutoff
    )


def _order(name: str) -> bytes:
    return name.encode("utf-8", "surrogatepass")


# -- what the logs say ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Marker:
    """The marker with the highest offset of one (id, epoch)."""

    kind: str
    offset: int
    coordinator_epoch: int
    path: str = ""
    position: int = 0


@dataclass(slots=True)
class OpenRecords:
    """Records of one (id, epoch) whose state is open."""

    first_offset: int
    count: int = 0
    addresses: list[tuple[str, int, int, int]] = field(default_factory=list)


#: States whose markers are still to come.
_UNDER_WAY: Final = frozenset({"open", "committing", "prepare_commit", "prepare_abort"})
#: States that a marker cannot stand beside: it is written while the decision is
#: being carried out, or later.
_CONTRADICTS: Final = {
    "commit": frozenset({"open", "aborted", "prepare_abort"}),
    "abort": frozenset({"open", "committing", "committed", "prepare_commit"}),
}


class TransactionIndex:
    """Open records and markers of one partition (journal.md section 5)."""

    def __init__(self, topic: str, partition: int) -> None:
        self.topic = topic
        self.partition = partition
        self.open: dict[tuple[bytes, int], OpenRecords] = {}
        self.markers: dict[tuple[bytes, int], Marker] = {}

    def visit(self, batch: RecordBatch) -> None:
        """Take the transactional records of a batch; unreachable ones decide nothing."""
        if not batch.reachable or batch.segment.deleted:
            return
        path = batch.segment.path
        for row in batch.transaction_rows():
            key = (row.transactional_id, row.epoch)
            if isinstance(row, MarkerRow):
                self._marker(key, row, path)
            else:
                self._open(key, row, path)

    def _marker(self, key: tuple[bytes, int], row: MarkerRow, path: str) -> None:
        held = self.markers.get(key)
        if held is None or row.offset > held.offset:
            kind = row.kind.decode("utf-8", "replace")
            self.markers[key] = Marker(kind, row.offset, row.coordinator_epoch, path, row.position)
        if key in self.open:
            self.open[key].addresses.clear()  # decided: nobody asks where they are

    def _open(self, key: tuple[bytes, int], row: OpenRun, path: str) -> None:
        records = self.open.get(key)
        if records is None:
            records = self.open[key] = OpenRecords(row.first_offset)
        records.first_offset = min(records.first_offset, row.first_offset)
        records.count += row.count
        if key not in self.markers:
            room = MAX_ADDRESSES - len(records.addresses)
            records.addresses += [(path, *address) for address in row.addresses[: max(room, 0)]]

    def findings(self, journal: JournalReplay) -> Iterable[Finding]:
        """Records nobody can decide any more, and markers that contradict the journal."""
        for (name, epoch), marker in sorted(self.markers.items()):
            decision = journal.decision(name.decode("utf-8", "surrogateescape"), epoch)
            if decision is not None and decision in _CONTRADICTS.get(marker.kind, ()):
                yield finding(
                    "txn_marker_decision_conflict",
                    marker.path,
                    position=marker.position,
                    message=f"{marker.kind} marker at offset {marker.offset}, "
                    f"but the journal says {decision}",
                    step=4,
                    transactional_id=name.decode("utf-8", "surrogateescape"),
                    epoch=epoch,
                )
        if not journal.complete:
            return  # what cannot be read may hold the decision
        for (name, epoch), records in sorted(self.open.items()):
            yield from self._unresolved(name, epoch, records, journal)

    def _unresolved(
        self, name: bytes, epoch: int, records: OpenRecords, journal: JournalReplay
    ) -> Iterable[Finding]:
        text = name.decode("utf-8", "surrogateescape")
        decision = journal.decision(text, epoch)
        if (name, epoch) in self.markers or decision in _UNDER_WAY:
            return
        known = f"although the journal says {decision}" if decision else "and no journal entry"
        severity: Severity = "warning"
        if journal.live:
            severity = "info"
            known += "; a broker is using the directory and may have written the marker since"
        for path, position, length, offset in records.addresses:
            yield finding(
                "txn_record_unresolved",
                path,
                position=position,
                length=length,
                message=f'offset {offset} of transaction "{canonical_json.shorten(text)}" epoch '
                f"{epoch} has no marker, {known}",
                severity=severity,
                step=4,
                topic=self.topic,
                partition=self.partition,
                offset=offset,
                transactional_id=text,
                epoch=epoch,
            )
        hidden = records.count - len(records.addresses)
        if hidden:
            path, position, length, _ = records.addresses[-1]
            yield finding(
                "txn_record_unresolved",
                path,
                position=position,
                length=length,
                message=f"{hidden} more records of this transaction follow",
                severity=severity,
                step=4,
                repeated=hidden,
            )


Decide = Callable[[bytes, int], tuple[str, int] | None]


def marker_is_valid(marker: Marker, decision: tuple[str, int] | None) -> bool:
    """Does the marker count? ``decision``: state and coordinator epoch in the journal."""
    if decision is None:
        return True
    state, coordinator_epoch = decision
    return (
        state == {"commit": "committed", "abort": "aborted"}.get(marker.kind)
        and marker.coordinator_epoch == coordinator_epoch
    )


def last_stable_offset(
    index: TransactionIndex, decide: Decide, *, first_offset: int, high: int
) -> int:
    """First offset that committed readers do not see yet (journal.md section 5)."""
    stable = high
    for key, records in index.open.items():
        offset = records.first_offset
        if offset >= high:
            continue
        marker = index.markers.get(key)
        decided = marker is not None and offset < marker.offset < high
        if decided and marker is not None and marker_is_valid(marker, decide(*key)):
            continue
        stable = min(stable, max(offset, first_offset))
    return stable


def is_visible(
    index: TransactionIndex,
    decide: Decide,
    *,
    key: tuple[bytes, int],
    state: bytes,
    marker: bytes,
    offset: int,
    high: int,
) -> bool:
    """Do committed readers get this record, given that it lies below the last stable offset?"""
    if marker:
        return False
    if not key[0] and not state:
        return True
    if state == b"aborted":
        return False
    found = index.markers.get(key)
    return (
        found is not None
        and found.kind == "commit"
        and offset < found.offset < high
        and marker_is_valid(found, decide(*key))
    )


_MARKER_TYPES: Final = {"commit": 0, "abort": 1}
MARKER_PAYLOAD: Final = b"__cursus_txn_control_marker__"


def marker_control(marker: str, coordinator_epoch: int) -> tuple[bytes, bytes]:
    """Control key and value of a marker (segments.md section 4.3).

    Raises ``ValueError`` when the epoch does not fit an i32: such a marker
    cannot be written.
    """
    if not -(2**31) <= coordinator_epoch < 2**31:
        raise ValueError(f"coordinator epoch {coordinator_epoch} does not fit a marker")
    return (
        struct.pack(">hh", 0, _MARKER_TYPES[marker]),
        struct.pack(">hi", 0, coordinator_epoch),
    )
