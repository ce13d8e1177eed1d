"""The transaction journal while a broker runs: append, compact, expire.

Every state of a transaction is a whole frame at the end of the file, synced
before :meth:`JournalStore.append` returns; the last frame of an id is its state.
What an append that failed left behind is cut off, and the cut synced, before
anything is written again: a shorter frame over the rest of a longer one would
read as damage.

Superseded frames are dropped by compaction: a new file beside the journal with
the last frame of each id, synced, renamed over it, the directory synced::

    crash before the rename   the old journal; a file .compact-N that nobody reads
    crash after it            the old or the new journal: they say the same
    the directory sync fails  neither name is certain: nothing is acknowledged
                              until another rename was synced

Only payload version 1 is written (profile A). Not safe for two threads at once:
**every method needs the broker's journal lock**.

Source: journal.md sections 1.7, 1.8, 1.9, 2.5, 4.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Final

from cursus import layout
from cursus.findings import FormatError
from cursus.formats import transaction_journal as tj
from cursus.formats.transaction_journal import Transaction
from cursus.replay.commit import marker_producer
from cursus.replay.transactions import DEFAULT_EXPIRATION_MS, JournalReplay, import_problem
from cursus.storage.durable import FileSystem, WritableFile
from cursus.storage.errors import StoreError, reason

#: Superseded frames, and superseded bytes, at which the next append compacts first.
MAX_SUPERSEDED_FRAMES: Final = 256
MAX_SUPERSEDED_BYTES: Final = 16_777_216
#: States that are not decided or not carried out: they hold what they refer to.
UNDER_WAY: Final = frozenset({"open", "committing"})
_NEVER: Final = 2**127

#: Nanoseconds since the zero time (``cursus.formats.timestamps``).
Clock = Callable[[], int]


def compaction_due(frames: int, ids: int, size: int, live_bytes: int) -> bool:
    """Does the next append compact first? ``live_bytes``: the last frames of all ids."""
    return frames - ids >= MAX_SUPERSEDED_FRAMES or size - live_bytes >= MAX_SUPERSEDED_BYTES


class JournalStore:
    """The journal of a running broker; made by :meth:`open`."""

    def __init__(
        self,
        files: FileSystem,
        log_dir: str,
        *,
        clock: Clock,
        expiration_ms: int = DEFAULT_EXPIRATION_MS,
    ) -> None:
        self._files = files
        self._log_dir = log_dir
        self._path = os.path.join(log_dir, layout.JOURNAL)
        self._clock = clock
        period = expiration_ms if expiration_ms > 0 else DEFAULT_EXPIRATION_MS
        self._period = period * 1_000_000
        self._states: dict[str, Transaction] = {}
        self._lengths: dict[str, int] = {}
        self._live = 0
        self._frames = 0
        self._end = 0
        self._due_at = 0  # no transaction is past its expiration before this moment
        self._file: WritableFile | None = None
        self._name_uncertain = False
        self._tail_uncertain = False  # a frame whose append failed may be there
        #: Why the last expiry could not be written; it is tried again.
        self.expiry_warning: str | None = None

    @classmethod
    def open(
        cls,
        files: FileSystem,
        log_dir: str,
        replay: JournalReplay,
        *,
        clock: Clock,
        expiration_ms: int = DEFAULT_EXPIRATION_MS,
    ) -> JournalStore:
        """Open the journal that a plan has judged, create it where there is none.

        A torn tail is cut where the plan says (``replay.cut``). What the plan read
        is synced, name and all: the process before may have died before it was.
        Expiry is a step of its own: :meth:`expire`. Raises :class:`StoreError`,
        also for a journal that the plan refuses.
        """
        if not replay.complete or replay.later_versions:
            raise StoreError(
                "journal_write_unavailable",
                "the journal was not read to its end",
                path=layout.JOURNAL,
            )
        store = cls(files, log_dir, clock=clock, expiration_ms=expiration_ms)
        try:
            if replay.present:
                store._take(replay)
            else:
                store._file = files.create(store._path)
            files.sync_directory(log_dir)
        except OSError as error:
            raise _unavailable("opened", reason(error)) from error
        return store

    def _take(self, replay: JournalReplay) -> None:
        self._states = dict(replay.transactions)
        for frame in replay.frames:
            self._lengths[frame.transactional_id] = frame.length
        self._live = sum(self._lengths.values())
        self._frames = len(replay.frames)
        self._end = replay.cut[0] if replay.cut is not None else replay.size
        self._file = self._files.open(self._path)
        if self._file.size != self._end:
            self._file.truncate(self._end)
        self._file.fsync()

    def close(self) -> None:
        """Close the file; everything in it is synced."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

    # -- what there is ---------------------------------------------------------------

    @property
    def transactions(self) -> Mapping[str, Transaction]:
        """The last durable state of every id, tombstones included."""
        return MappingProxyType(self._states)

    @property
    def frames(self) -> int:
        """Frames in the file."""
        return self._frames

    @property
    def size(self) -> int:
        """Bytes of acknowledged frames."""
        return self._end

    @property
    def live_bytes(self) -> int:
        """Bytes of the last frame of each id."""
        return self._live

    def decision(self, transactional_id: str, epoch: int) -> str | None:
        """State of (id, epoch), ``None`` when the journal does not know them."""
        state = self._states.get(transactional_id)
        if state is None or state.epoch != epoch or state.expired:
            return None
        return state.state

    def committing(self) -> list[Transaction]:
        """Commits that are decided and not finished, by the bytes of their ids."""
        return [
            state
            for name, state in sorted(self._states.items(), key=lambda item: _order(item[0]))
            if state.state == "committing" and not state.expired
        ]

    def blockers(self, topic: str) -> list[str]:
        """Ids of unfinished transactions that refer to ``topic``: it cannot be deleted."""
        return [
            name
            for name in sorted(self._states, key=_order)
            if self._states[name].state in UNDER_WAY
            and not self._states[name].expired
            and _refers(self._states[name], topic)
        ]

    def pledged(self, groups: Collection[str]) -> list[str]:
        """Ids of decided commits that have an offset for one of ``groups``.

        Such a group cannot be deleted: the commit is carried out in that life of it, or
        never.
        """
        return [
            state.id
            for state in self.committing()
            if any(str(item["Group"]) in groups for item in state.offsets)
        ]

    def producers_under_way(self) -> set[str]:
        """Producers of unfinished transactions, of their records and markers."""
        found: set[str] = set()
        for name, state in self._states.items():
            if state.state in UNDER_WAY and not state.expired:
                found |= {state.producer, marker_producer(name)}
                found |= {str(item["Message"]["ProducerID"]) for item in state.messages}
        return found

    # -- changes ---------------------------------------------------------------------

    def append(self, state: Transaction) -> None:
        """Make ``state`` the durable state of its id.

        Raises :class:`FormatError` for a state that a start would refuse or that
        is too large, :class:`StoreError` for one that takes back a decided commit
        (section 3.1), and when it could not be written. Then the
        state before is the one that counts, though a start may find the new one
        when it comes before the next append.
        """
        problem = import_problem(state)
        if problem is not None:
            raise FormatError(problem[0], f'transaction "{state.id}": {problem[1]}')
        self._refuse_to_take_back(state)
        frame = tj.encode_frame(state)
        if self._name_uncertain or compaction_due(
            self._frames, len(self._states), self._end, self._live
        ):
            self._rewrite(self._states)
        try:
            self._write(frame)
        except OSError as error:
            self.close()
            self._tail_uncertain = True
            raise _unavailable("written", reason(error)) from error
        self._tail_uncertain = False
        self._end += len(frame)
        self._frames += 1
        self._live += len(frame) - self._lengths.get(state.id, 0)
        self._states[state.id] = state
        self._lengths[state.id] = len(frame)
        self._due_at = min(self._due_at, self._expires_at(state))
        self._expire_quietly()

    def _refuse_to_take_back(self, state: Transaction) -> None:
        """A commit that is decided is carried out before anything else is said of its id."""
        known = self._states.get(state.id)
        if known is None or known.state != "committing" or known.expired:
            return
        if state.epoch != known.epoch or state.state not in {"committing", "committed"}:
            raise StoreError(
                "txn_state_invalid",
                f'transaction "{state.id}" is committing; it has to be finished first',
                path=layout.JOURNAL,
                transactional_id=state.id,
            )

    def settle(self) -> None:
        """Return when a start would find what :attr:`transactions` say, and nothing else.

        Before something is done on the strength of them: a topic that goes, while a
        frame that names it was refused and is there, would refuse every later start.
        Raises :class:`StoreError`.
        """
        if self._tail_uncertain or self._name_uncertain:
            self._rewrite(self._states)

    def compact(self) -> None:
        """Rewrite the journal with the last state of each id. Raises :class:`StoreError`."""
        self._rewrite(self._states)

    def expire(self, now: int | None = None) -> tuple[str, ...]:
        """Turn finished transactions that are past their expiration into tombstones, drop old ones.

        ``now``: nanoseconds since the zero time, the clock's by default. Returns
        the ids that changed. Raises :class:`StoreError`; it may be called again.
        """
        moment = self._clock() if now is None else now
        if moment < self._due_at:
            return ()
        states = dict(self._states)
        changed = [name for name, state in states.items() if self._expires_at(state) <= moment]
        for name in changed:
            state = states.pop(name)
            if not state.expired:
                states[name] = _tombstone(state, moment)
        if changed:
            self._rewrite(states)
        self._due_at = min(map(self._expires_at, states.values()), default=_NEVER)
        return tuple(sorted(changed, key=_order))

    def _expires_at(self, state: Transaction) -> int:
        """First moment at which ``state`` is past its expiration (section 2.5)."""
        if state.state in UNDER_WAY and not state.expired:
            return _NEVER
        return state.updated_at + self._period + 1

    def forget_topic(self, topic: str) -> tuple[str, ...]:
        """Remove a deleted or truncated topic from finished transactions; ids that changed.

        Raises :class:`StoreError`, ``topic_referenced`` when an unfinished
        transaction refers to it.
        """
        blockers = self.blockers(topic)
        if blockers:
            raise StoreError(
                "topic_referenced",
                f'transaction "{blockers[0]}" is unfinished and refers to topic "{topic}"',
                path=topic,
                transactional_id=blockers[0],
            )
        states = {
            name: _without_topic(state, topic) if _refers(state, topic) else state
            for name, state in self._states.items()
        }
        changed = [name for name, state in states.items() if state is not self._states[name]]
        if changed or self._name_uncertain:
            self._rewrite(states)
        return tuple(sorted(changed, key=_order))

    def _expire_quietly(self) -> None:
        """After an append that succeeded: it must not become an error."""
        try:
            self.expire()
            self.expiry_warning = None
        except StoreError as error:
            self.expiry_warning = str(error)

    # -- the file ----------------------------------------------------------------------

    def _write(self, frame: bytes) -> None:
        if self._file is None:
            self._file = self._files.open(self._path)
        self._cut_back(self._file)
        self._file.append(frame)
        self._file.fsync()

    def _cut_back(self, file: WritableFile) -> None:
        if file.size != self._end:
            file.truncate(self._end)
            file.fsync()

    def _rewrite(self, states: Mapping[str, Transaction]) -> None:
        """Replace the journal by one frame of each of ``states``; they become the state."""
        lengths: dict[str, int] = {}
        try:
            self._replace(states, lengths)
        except OSError as error:
            raise _unavailable("compacted", reason(error)) from error
        except FormatError as error:  # a frame of another writer that is longer in our spelling
            raise _unavailable("compacted", error.message) from error
        self._states, self._lengths = dict(states), lengths
        self._live = self._end = sum(lengths.values())
        self._frames = len(lengths)
        self._name_uncertain = True
        self._tail_uncertain = False
        self.close()
        try:
            self._files.sync_directory(self._log_dir)
        except OSError as error:
            raise _unavailable("compacted", reason(error)) from error
        self._name_uncertain = False

    def _replace(self, states: Mapping[str, Transaction], lengths: dict[str, int]) -> None:
        temporary = self._unused_name()
        try:
            with self._files.create(temporary) as file:
                for name in sorted(states, key=_order):
                    frame = tj.encode_frame(states[name])
                    file.append(frame)
                    lengths[name] = len(frame)
                file.fsync()
            self._files.rename(temporary, self._path)
        except (OSError, FormatError):
            with suppress(OSError):
                if self._files.status(temporary) is not None:
                    self._files.unlink(temporary)
            raise

    def _unused_name(self) -> str:
        """A leftover of a crash is neither read nor removed."""
        number = 0
        while True:
            path = os.path.join(self._log_dir, layout.journal_compaction(number))
            if self._files.status(path) is None:
                return path
            number += 1


def _unavailable(what: str, why: str) -> StoreError:
    return StoreError(
        "journal_write_unavailable",
        f"the journal could not be {what}: {why}",
        path=layout.JOURNAL,
    )


def _order(name: str) -> bytes:
    return name.encode("utf-8", "surrogatepass")


def _changed(state: Transaction, **values: object) -> Transaction:
    """``state`` with other values; its revision counts the change."""
    return Transaction({**state.values, "revision": state.revision + 1, **values})


def _tombstone(state: Transaction, now: int) -> Transaction:
    return _changed(state, messages=[], offsets=[], ready=False, expired=True, updated_at=now)


def _refers(state: Transaction, topic: str) -> bool:
    staged = (*state.messages, *state.offsets)
    return any(str(item["Topic"]) == topic for item in staged)


def _without_topic(state: Transaction, topic: str) -> Transaction:
    return _changed(
        state,
        messages=[item for item in state.messages if str(item["Topic"]) != topic],
        offsets=[item for item in state.offsets if str(item["Topic"]) != topic],
    )
