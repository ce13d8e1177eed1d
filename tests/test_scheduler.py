"""The scheduler of background work, by a clock that the test moves."""

from __future__ import annotations

import threading

from cursus.broker.scheduler import Scheduler

#: Seconds to wait for what must happen.
DEADLINE = 60


class Clock:
    def __init__(self) -> None:
        self.now = 1000

    def __call__(self) -> int:
        return self.now


class Told:
    def __init__(self) -> None:
        self.runs: list[tuple[str, object, str | None]] = []

    def __call__(self, name: str, result: object, error: Exception | None) -> None:
        self.runs.append((name, result, str(error) if error else None))


def test_work_comes_one_interval_after_it_was_asked_for_and_after_each_run() -> None:
    clock, told = Clock(), Told()
    scheduler = Scheduler[str]("test", clock, told)

    def slow() -> str:
        clock.now += 25  # more than two intervals of its own
        return "slow"

    scheduler.every(10, "slow", slow)
    scheduler.every(7, "quick", lambda: clock.now)
    assert scheduler.run_due() == 0
    clock.now = 1006
    assert scheduler.run_due() == 0
    clock.now = 1010
    assert scheduler.run_due() == 2, "the one that was due first comes first"
    assert told.runs == [("quick", 1010, None), ("slow", "slow", None)]
    assert clock.now == 1035
    assert scheduler.run_due() == 1, "what took long does not pile up"
    clock.now = 1044
    assert (scheduler.run_due(), told.runs[-1][0]) == (1, "quick")
    clock.now = 1045
    assert (scheduler.run_due(), told.runs[-1][0]) == (1, "slow")


def test_work_that_fails_is_told_and_comes_again() -> None:
    clock, told = Clock(), Told()
    scheduler = Scheduler[str]("test", clock, told)

    def fail() -> None:
        raise OSError("broken")

    scheduler.every(10, "bad", fail)
    scheduler.every(10, "good", lambda: "fine")
    for _ in range(2):
        clock.now += 10
        assert scheduler.run_due() == 2
    assert told.runs == [("bad", None, "broken"), ("good", "fine", None)] * 2


def test_work_that_is_dropped_or_replaced_does_not_begin() -> None:
    clock, told = Clock(), Told()
    scheduler = Scheduler[str]("test", clock, told)
    scheduler.every(10, "a", lambda: "old")
    scheduler.every(10, "b", lambda: "old")
    clock.now += 5
    scheduler.every(10, "a", lambda: "new")
    scheduler.drop("b")
    clock.now += 5
    assert scheduler.run_due() == 0
    clock.now += 5
    assert scheduler.run_due() == 1
    assert told.runs == [("a", "new", None)]


def test_work_that_is_dropped_while_it_runs_is_not_told_and_does_not_come_again() -> None:
    clock, told = Clock(), Told()
    scheduler = Scheduler[str]("test", clock, told)
    scheduler.every(10, "a", lambda: scheduler.drop("a"))
    clock.now += 10
    assert scheduler.run_due() == 1
    clock.now += 10
    assert scheduler.run_due() == 0
    assert told.runs == []


def test_a_thread_does_what_is_due_when_the_clock_has_moved() -> None:
    clock, done = Clock(), threading.Event()
    scheduler = Scheduler[str]("test", clock, Told())
    scheduler.start()
    scheduler.every(10**15, "a", done.set)
    clock.now += 10**15
    scheduler.wake()
    assert done.wait(DEADLINE)
    scheduler.stop()


def test_stopping_waits_for_what_runs_and_begins_nothing_more() -> None:
    clock, told = Clock(), Told()
    scheduler = Scheduler[str]("test", clock, told)
    running, go_on, stopped = threading.Event(), threading.Event(), threading.Event()

    def first() -> str:
        running.set()
        go_on.wait(DEADLINE)
        return "done"

    scheduler.every(1, "first", first)
    scheduler.every(2, "second", lambda: "done")
    clock.now += 10
    scheduler.start()
    assert running.wait(DEADLINE)

    def stop() -> None:
        scheduler.stop()
        stopped.set()

    stopper = threading.Thread(target=stop)
    stopper.start()
    while not scheduler._stopping:
        threading.Event().wait(0.001)
    assert not stopped.is_set()
    go_on.set()
    assert stopped.wait(DEADLINE)
    stopper.join()
    assert told.runs == [("first", "done", None)]
    assert scheduler.run_due() == 0
