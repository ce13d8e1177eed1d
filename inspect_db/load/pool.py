"""Scan many segments, in this process or in several, and join what they made.

This process scans from the first segment on, straight into the index; workers
scan from the last one on, into shards, until both meet. Then the shards are
joined in the order of the index, so that ``record_rows`` grows at its end only;
until then they wait as files beside it.
"""

from __future__ import annotations

import errno
import os
import pickle
import selectors
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, NoReturn

import apsw

from cursus.evidence.walk import LogDirectoryError
from cursus.formats.display import safe_text
from inspect_db.load.digests import DigestingDirectory
from inspect_db.load.options import BuildError, BuildOptions
from inspect_db.load.records import Shapes
from inspect_db.load.scanning import Item, Scanned, SegmentLoader
from inspect_db.load.worker import TABLES, Advanced, Done, Failed, Setup, Shard

#: Less than this is read by one process: starting others takes longer.
SHARED_FROM: Final = 64 << 20
#: A worker is told of so many bytes ahead, so that it need not wait between small segments.
_AHEAD: Final = 8 << 20
_AHEAD_ITEMS: Final = 32
_PROGRAM: Final = (
    "import ast, sys; sys.path[:] = ast.literal_eval(sys.argv[1]); "
    "from inspect_db.load.worker import main; main()"
)


def processes(options: BuildOptions, items: Sequence[Item]) -> int:
    """How many processes scan, this one among them."""
    if options.jobs is not None:
        return max(1, min(options.jobs, len(items)))
    cores = len(os.sched_getaffinity(0))
    enough = sum(item.bytes for item in items) >= SHARED_FROM
    return min(2, cores, len(items)) if enough and cores > 1 and len(items) > 1 else 1


def scan_here(
    connection: apsw.Connection,
    evidence: DigestingDirectory,
    options: BuildOptions,
    items: Sequence[Item],
    advanced: Callable[[int], None],
) -> Iterator[Scanned]:
    """Scan in this process, straight into the index."""
    shapes = Shapes()
    shapes.know(connection)
    loader = SegmentLoader(connection, evidence, options, shapes, advanced)
    for item in items:
        yield loader.load(item)


def scan_shared(
    connection: apsw.Connection,
    evidence: DigestingDirectory,
    shards: str,
    options: BuildOptions,
    items: Sequence[Item],
    jobs: int,
    advanced: Callable[[int], None],
) -> Iterator[Scanned]:
    """Scan in ``jobs`` processes, of which this is one. Nothing may be uncommitted.

    ``shards``: beginning of the paths of shards. Raises :class:`BuildError` when a
    process ends before its time, and what a worker met otherwise.
    """
    shapes = Shapes(step=jobs)
    shapes.know(connection)
    setups = [
        Setup(evidence.log_dir, f"{shards}-{at}", options, shapes.next + at, jobs)
        for at in range(1, jobs)
    ]
    with _started(setups) as workers:
        loader = SegmentLoader(connection, evidence, options, shapes)
        yield from _Pool(loader, workers, items, advanced).run()


class _Process:
    """One worker, as its parent sees it."""

    def __init__(self, setup: Setup) -> None:
        self.child = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, repr(sys.path), str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            process_group=0,  # Ctrl-C is for the parent, which ends its workers
        )
        self.items: deque[int] = deque()
        self.order(setup)

    @property
    def answers(self) -> int:
        assert self.child.stdout is not None
        return self.child.stdout.fileno()

    def order(self, order: Any) -> None:
        assert self.child.stdin is not None
        with suppress(BrokenPipeError):  # that it is gone shows when it is listened to
            pickle.dump(order, self.child.stdin, pickle.HIGHEST_PROTOCOL)
            self.child.stdin.flush()

    def answer(self) -> Any:
        """The next answer. Read without a buffer, which a selector could not look into."""
        size = int.from_bytes(self._read(4), "big")
        return pickle.loads(self._read(size))

    def _read(self, length: int) -> bytes:
        data = bytearray()
        while len(data) < length:
            more = os.read(self.answers, length - len(data))
            if not more:
                code = self.child.wait()
                how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
                raise BuildError(f"a process that read segments {how}; no index was made")
            data += more
        return bytes(data)

    def end(self) -> None:
        """End it, whatever it does, and wait."""
        self.child.kill()
        self.child.wait()
        for stream in (self.child.stdin, self.child.stdout):
            with suppress(OSError):
                if stream is not None:
                    stream.close()


@contextmanager
def _started(setups: Sequence[Setup]) -> Iterator[list[_Process]]:
    workers: list[_Process] = []
    try:
        for setup in setups:
            workers.append(_Process(setup))
        yield workers
    finally:
        for worker in workers:
            worker.end()


class _Pool:
    """This process takes items from the front, workers from the back, until they meet.

    Then this one joins the shards of what it did not scan itself.
    """

    def __init__(
        self,
        loader: SegmentLoader,
        workers: list[_Process],
        items: Sequence[Item],
        advanced: Callable[[int], None],
    ) -> None:
        self.loader = loader
        self.connection = loader.connection
        self.workers = workers
        self.items = items
        self.advanced = advanced
        #: Items before ``_front`` are ours, those from ``_back`` on were handed out.
        self._front, self._back = 0, len(items)
        self._shards: dict[int, list[str]] = {}
        self._done: dict[int, Scanned] = {}
        self._selector = selectors.DefaultSelector()
        loader.advanced = self._own_advanced

    def run(self) -> Iterator[Scanned]:
        """Scanned segments in the order of the items, as they come into the index."""
        with self._selector:
            for worker in self.workers:
                self._selector.register(worker.answers, selectors.EVENT_READ, worker)
            for worker in self.workers:
                self._hand_out(worker)
            while self._front < self._back:
                item = self.items[self._front]
                self._front += 1
                self.connection.execute("begin")
                scanned = self.loader.load(item)
                self.connection.execute("commit")
                yield scanned
            for at in range(self._back, len(self.items)):
                while at not in self._done:
                    self._listen(None)
                for path in self._shards.pop(at, ()):
                    self._join_shard(path)
                yield self._done.pop(at)

    def _hand_out(self, worker: _Process) -> None:
        while (
            self._front < self._back
            and len(worker.items) < _AHEAD_ITEMS
            and sum(self.items[at].bytes for at in worker.items) < _AHEAD
        ):
            self._back -= 1
            worker.items.append(self._back)
            worker.order(self.items[self._back])

    def _own_advanced(self, size: int) -> None:
        self.advanced(size)
        self._listen(0)

    def _listen(self, timeout: float | None) -> None:
        """Take one answer of every worker that has one; ``None`` waits for the first."""
        for key, _ in self._selector.select(timeout):
            worker: _Process = key.data
            answer = worker.answer()
            if isinstance(answer, Advanced):
                self.advanced(answer.bytes)
            elif isinstance(answer, Shard):
                self._shards.setdefault(worker.items[0], []).append(answer.path)
            elif isinstance(answer, Done):
                self._done[worker.items.popleft()] = answer.scanned
                self._hand_out(worker)
            else:
                _raise(answer)

    def _join_shard(self, path: str) -> None:
        connection = self.connection
        connection.execute("attach ? as shard", (path,))
        try:
            connection.execute("begin")
            for table in TABLES:
                connection.execute(f"insert into main.{table} select * from shard.{table}")
            connection.execute("commit")
        finally:
            with suppress(apsw.Error):  # after a full disk the transaction may still be open
                connection.execute("detach shard")
        os.unlink(path)


def _raise(failed: Failed) -> NoReturn:
    if failed.kind == "database":
        raise getattr(apsw, failed.name, apsw.Error)(failed.message)
    if failed.kind == "evidence":
        raise LogDirectoryError("log_dir_unreadable", failed.message)
    if failed.kind == "system":
        raise OSError(failed.errno or errno.EIO, failed.message)
    raise BuildError(
        f"a process that read segments failed: {failed.name}: {safe_text(failed.message)}"
    )
