"""Scan many segments, in this process or in several, and join what they made.

Segments are handed out one by one in the order of the index. What a worker
makes comes back as shards; they are joined in the same order, whoever made
them, so that ``record_rows`` grows at its end only. While one worker is ahead its
shards wait as files beside the index.
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
#: Segments that a worker is told of ahead, so that it never waits.
_AHEAD: Final = 2
_PROGRAM: Final = (
    "import ast, sys; sys.path[:] = ast.literal_eval(sys.argv[1]); "
    "from inspect_db.load.worker import main; main()"
)


def processes(options: BuildOptions, items: Sequence[Item]) -> int:
    """How many processes scan; 1 is this one."""
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
    log_dir: str,
    shards: str,
    options: BuildOptions,
    items: Sequence[Item],
    jobs: int,
    advanced: Callable[[int], None],
) -> Iterator[Scanned]:
    """Scan in ``jobs`` processes. Nothing of ``connection`` may be uncommitted.

    ``shards``: beginning of the paths of shards. Raises :class:`BuildError` when a
    process ends before its time, and what a worker met otherwise.
    """
    shapes = Shapes()
    shapes.know(connection)
    with _started(jobs, log_dir, shards, options, shapes.next) as workers:
        yield from _Pool(connection, workers, items, advanced).run()


class _Process:
    """One worker, as its parent sees it."""

    def __init__(self, number: int, setup: Setup) -> None:
        self.number = number
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
def _started(
    jobs: int, log_dir: str, shards: str, options: BuildOptions, first_shape: int
) -> Iterator[list[_Process]]:
    workers: list[_Process] = []
    try:
        for at in range(jobs):
            setup = Setup(log_dir, f"{shards}-{at}", options, first_shape + at, jobs)
            workers.append(_Process(at, setup))
        yield workers
    finally:
        for worker in workers:
            worker.end()


class _Pool:
    def __init__(
        self,
        connection: apsw.Connection,
        workers: list[_Process],
        items: Sequence[Item],
        advanced: Callable[[int], None],
    ) -> None:
        self.connection = connection
        self.workers = workers
        self.items = items
        self.advanced = advanced
        self._handed_out = 0
        self._next = 0
        self._shards: dict[int, list[str]] = {}
        self._done: dict[int, Scanned] = {}

    def run(self) -> Iterator[Scanned]:
        """Scanned segments in the order of the items, as they are joined."""
        with selectors.DefaultSelector() as selector:
            for _ in range(_AHEAD):
                for worker in self.workers:
                    self._hand_out(worker)
            for worker in self.workers:
                selector.register(worker.answers, selectors.EVENT_READ, worker)
            while self._next < len(self.items):
                for key, _ in selector.select():
                    yield from self._listen(key.data)

    def _hand_out(self, worker: _Process) -> None:
        if self._handed_out < len(self.items):
            worker.items.append(self._handed_out)
            worker.order(self.items[self._handed_out])
            self._handed_out += 1

    def _listen(self, worker: _Process) -> Iterator[Scanned]:
        answer = worker.answer()
        if isinstance(answer, Advanced):
            self.advanced(answer.bytes)
        elif isinstance(answer, Shard):
            self._shards.setdefault(worker.items[0], []).append(answer.path)
            yield from self._join()
        elif isinstance(answer, Done):
            self._done[worker.items.popleft()] = answer.scanned
            self._hand_out(worker)
            yield from self._join()
        else:
            _raise(answer)

    def _join(self) -> Iterator[Scanned]:
        """Join what is next in the order."""
        while True:
            for path in self._shards.pop(self._next, ()):
                self._join_shard(path)
            scanned = self._done.pop(self._next, None)
            if scanned is None:
                return
            self._next += 1
            yield scanned

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
