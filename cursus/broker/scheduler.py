"""Work that comes back at intervals, one piece after the other, on one thread.

The clock is given, so a test (or a harness without threads) decides what time it
is and calls :meth:`Scheduler.run_due` itself. Intervals count from the end of one
run to the next: what takes longer than its interval does not pile up. A piece of
work that fails is told to ``report`` and comes again; nothing ends the thread but
:meth:`Scheduler.stop`.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count
from threading import Condition, Lock, Thread
from typing import Final, Generic, TypeVar

#: Names one piece of work.
Name = TypeVar("Name")
#: Nanoseconds of a clock that does not go back.
Clock = Callable[[], int]

#: The thread looks at the clock at least this often, in seconds.
_LONGEST: Final = 3600.0


class Scheduler(Generic[Name]):
    """``report`` is told each run: the work, what it gave, and the error that ended it."""

    def __init__(
        self, title: str, clock: Clock, report: Callable[[Name, object, Exception | None], None]
    ) -> None:
        self._title = title
        self._clock = clock
        self._report = report
        self._numbers = count()
        self._due: list[tuple[int, int, Name]] = []
        #: Work that is wanted: number of its entry, interval, what to call.
        self._work: dict[Name, tuple[int, int, Callable[[], object]]] = {}
        self._changed = Condition()
        self._turn = Lock()
        self._stopping = False
        self._thread: Thread | None = None

    def every(self, interval_ns: int, name: Name, run: Callable[[], object]) -> None:
        """Call ``run`` each interval, for the first time one interval from now.

        Work of the same name is replaced.
        """
        with self._changed:
            self._enter(interval_ns, name, run)
            self._changed.notify()

    def drop(self, name: Name) -> None:
        """This work does not begin any more; a run that has begun goes on."""
        with self._changed:
            self._work.pop(name, None)

    def run_due(self) -> int:
        """Do what is due, in the order of its times; how many pieces that was.

        One caller at a time; nothing that becomes due meanwhile is waited for.
        """
        done = 0
        with self._turn:
            now = self._clock()
            while (taken := self._take(now)) is not None:
                number, interval_ns, name, run = taken
                result, failure = None, None
                try:
                    result = run()
                except Exception as error:
                    failure = error
                with self._changed:
                    known = self._work.get(name)
                    wanted = known is not None and known[0] == number
                    if wanted:
                        self._enter(interval_ns, name, run)
                if wanted:
                    self._report(name, result, failure)
                done += 1
        return done

    def start(self) -> None:
        """Begin to do by itself what is due."""
        thread = Thread(target=self._run, name=self._title, daemon=True)
        thread.start()
        self._thread = thread

    def wake(self) -> None:
        """Look at the clock now: whoever controls it has moved it."""
        with self._changed:
            self._changed.notify()

    def stop(self) -> None:
        """End the thread, after what it is doing; nothing begins any more."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _enter(self, interval_ns: int, name: Name, run: Callable[[], object]) -> None:
        number = next(self._numbers)
        self._work[name] = (number, interval_ns, run)
        heapq.heappush(self._due, (self._clock() + interval_ns, number, name))

    def _take(self, now: int) -> tuple[int, int, Name, Callable[[], object]] | None:
        """The next piece that is due at ``now``; entries of dropped work go."""
        with self._changed:
            while self._due and not self._stopping:
                due, number, name = self._due[0]
                known = self._work.get(name)
                wanted = known is not None and known[0] == number
                if wanted and due > now:
                    return None
                heapq.heappop(self._due)
                if known is not None and wanted:
                    _, interval_ns, run = known
                    return number, interval_ns, name, run
            return None

    def _run(self) -> None:
        while True:
            self.run_due()
            with self._changed:
                if self._stopping:
                    return
                pause = _LONGEST
                if self._due:
                    pause = min((self._due[0][0] - self._clock()) / 1e9, pause)
                if pause > 0:
                    self._changed.wait(pause)
