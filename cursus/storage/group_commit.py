"""One fsync for everybody who waits.

Appends write, or leave their frame to be written, one after the other; then each
has to wait until the disk holds it. The first one that comes leads: it writes what
was left and syncs, for itself and for whatever was there before. Those that come
meanwhile queue up; when the fsync is over, all that it covered go on, in the order of
their offsets, and the first of the others leads the next one. A single caller pays two
uncontended lock operations, and no thread of our own is needed.

The right to sync is exclusive, so a roll, a truncation and a close take it too
(:meth:`GroupCommit.exclusive`): no file is closed under somebody's fsync.

An fsync that fails fails everybody, for good: nobody knows what it left behind.

Source: segments.md sections 6 and 8.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Final

#: The end that nobody's fsync covers: who waits for it waits to lead.
_NEVER: Final = 1 << 65


class _Waiter:
    """A thread in the queue. ``gate`` is held until its turn has come."""

    __slots__ = ("end", "gate", "leads")

    def __init__(self, end: int) -> None:
        self.end = end
        self.leads = False
        self.gate = Lock()
        self.gate.acquire()


class GroupCommit:
    """How far a log is durable, and who makes it so.

    ``durable`` is the offset below which everything is on the disk. It only
    grows, except by :meth:`reset`. ``on_durable`` is called with it, in order,
    before anybody who waited goes on.
    """

    def __init__(self, durable: int, on_durable: Callable[[int], None] | None = None) -> None:
        self.durable = durable
        self.failure: BaseException | None = None
        self._on_durable = on_durable
        self._mutex = Lock()
        self._busy = False
        self._waiting: list[_Waiter] = []

    def wait(self, end: int, sync: Callable[[], int]) -> bool:
        """Return when everything below ``end`` is durable; ``sync`` when it is our turn.

        ``sync`` gives the end that its fsync covered, which must be ``end`` or
        more. False when an fsync has failed, ours or another's (see ``failure``).
        """
        mutex = self._mutex
        mutex.acquire()
        if self.durable >= end or self.failure is not None:
            mutex.release()
            return self.durable >= end
        if not self._lead_or_wait(end):
            return self.durable >= end
        durable = self.durable
        try:
            durable = sync()
        except OSError as error:
            self.fail(error)
        except BaseException as error:
            self.fail(error)
            raise
        finally:
            self._hand_over(durable)
        return self.durable >= end

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Nobody else syncs inside the block, where :meth:`advance` and :meth:`reset` belong."""
        self._mutex.acquire()
        self._lead_or_wait(_NEVER)
        try:
            yield
        finally:
            self._hand_over(self.durable)

    def advance(self, durable: int) -> None:
        """Everything below ``durable`` was synced by whoever holds the right to sync."""
        if durable > self.durable:
            self.durable = durable
            if self._on_durable is not None:
                self._on_durable(durable)

    def reset(self, durable: int) -> None:
        """The log was cut: it ends at ``durable`` now. Inside :meth:`exclusive` only."""
        self.durable = durable

    def fail(self, error: BaseException) -> None:
        """Nothing that is written from now on becomes durable; the first error counts."""
        with self._mutex:
            if self.failure is None:
                self.failure = error

    def _lead_or_wait(self, end: int) -> bool:
        """With the mutex held: True when it is our turn to sync. Releases the mutex."""
        if not self._busy:
            self._busy = True
            self._mutex.release()
            return True
        waiter = _Waiter(end)
        self._waiting.append(waiter)
        self._mutex.release()
        try:
            waiter.gate.acquire()
        except BaseException:
            self._leave(waiter)
            raise
        return waiter.leads

    def _leave(self, waiter: _Waiter) -> None:
        """A thread that was interrupted while it waited: nobody may wait for it to lead."""
        with self._mutex:
            if waiter in self._waiting:
                self._waiting.remove(waiter)
        if waiter.leads:
            self._let_go()

    def _hand_over(self, durable: int) -> None:
        """Our turn is over: let go whom it covered, and name who comes next."""
        try:
            self.advance(durable)
        finally:
            self._let_go()

    def _let_go(self) -> None:
        with self._mutex:
            if not self._waiting:
                self._busy = False
                return
            # Threads queue up in the order in which they got here, not in that of their offsets.
            waiting = sorted(self._waiting, key=lambda item: item.end)
            # After a failure only those go on to lead who close or cut files.
            reached = self.durable if self.failure is None else _NEVER - 1
            done = [item for item in waiting if item.end <= reached]
            self._waiting = waiting[len(done) :]
            self._busy = bool(self._waiting)
            if self._waiting:
                leader = self._waiting.pop(0)
                leader.leads = True
                done.append(leader)
        for item in done:
            item.gate.release()
