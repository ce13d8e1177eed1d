"""A process that scans segments into shards: the other end of ``pool``.

Started with ``python -c``, never by ``fork``: the parent may have threads and an
open database. It reads pickled orders from stdin and answers on stdout; only
its parent speaks to it. Rows go into *shards*, small databases with the tables
of the index, which the parent joins and removes. The process ends with its
parent, whatever ends that one.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from queue import SimpleQueue
from typing import IO, Any, Final

import apsw

from cursus.evidence.collector import collect_rarely
from cursus.evidence.walk import LogDirectoryError
from inspect_db.index import schema_scripts
from inspect_db.load.digests import DigestingDirectory
from inspect_db.load.options import BuildOptions
from inspect_db.load.records import Shapes
from inspect_db.load.scanning import Item, Scanned, SegmentLoader
from inspect_db.load.writer import open_for_writing

#: A shard is handed over when it has seen this many bytes of log.
SHARD_BYTES: Final = 48 << 20
#: Tables of a shard; those of the index, with the same columns.
TABLES: Final = ("record_shapes", "record_rows", "kept_batches")
_PR_SET_PDEATHSIG: Final = 1


@dataclass(frozen=True, slots=True)
class Setup:
    """The first order. ``shards``: beginning of the path of every shard."""

    log_dir: str
    shards: str
    options: BuildOptions
    first_shape: int
    step: int


@dataclass(frozen=True, slots=True)
class Advanced:
    """So many bytes were scanned."""

    bytes: int


@dataclass(frozen=True, slots=True)
class Shard:
    """A shard is ready to be joined."""

    path: str


@dataclass(frozen=True, slots=True)
class Done:
    """An order was carried out; all of its shards were handed over."""

    scanned: Scanned


@dataclass(frozen=True, slots=True)
class Failed:
    """It cannot go on. ``kind``: ``database``, ``evidence``, ``system`` or ``other``."""

    kind: str
    name: str
    message: str
    errno: int | None = None


Answer = Advanced | Shard | Done | Failed


class _Worker:
    def __init__(self, setup: Setup, answers: IO[bytes]) -> None:
        self.setup = setup
        self.answers = answers
        self.shapes = Shapes(setup.first_shape, setup.step)
        self._shards = 0
        self._in_shard = 0
        self._path = ""

    def carry_out(self, item: Item) -> None:
        entries = [item.entry, *([item.files.index] if item.files.index is not None else [])]
        options = self.setup.options
        with DigestingDirectory.at(self.setup.log_dir, walk=False) as evidence:
            evidence.know(entries)
            evidence.hashes = options.hashes
            loader = SegmentLoader(self._new_shard(), evidence, options, self.shapes)

            def advanced(size: int) -> None:
                self.answer(Advanced(size))
                self._in_shard += size
                if self._in_shard >= SHARD_BYTES:
                    self._hand_over(loader.connection)
                    loader.connection = self._new_shard()

            loader.advanced = advanced
            try:
                scanned = loader.load(item)
                self._hand_over(loader.connection)
            finally:
                loader.connection.close()
        self.answer(Done(scanned))

    def _new_shard(self) -> apsw.Connection:
        self._shards += 1
        self._in_shard = 0
        self._path = f"{self.setup.shards}-{self._shards}"
        os.close(os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        connection = open_for_writing(self._path)
        for statement in _shard_tables():
            connection.execute(statement)
        connection.execute("begin")
        return connection

    def _hand_over(self, connection: apsw.Connection) -> None:
        connection.execute("commit")
        connection.close()
        self.answer(Shard(self._path))

    def answer(self, answer: Answer) -> None:
        data = pickle.dumps(answer, pickle.HIGHEST_PROTOCOL)
        self.answers.write(len(data).to_bytes(4, "big") + data)
        self.answers.flush()


def _shard_tables() -> list[str]:
    memory = apsw.Connection(":memory:")
    for _, text in schema_scripts():
        memory.execute(text)
    found = [
        str(
            memory.execute("select sql from sqlite_schema where name = ?", (table,)).fetchall()[0][
                0
            ]
        )
        for table in TABLES
    ]
    memory.close()
    return found


def _failure(error: BaseException) -> Failed:
    name, message = type(error).__name__, str(error)
    if isinstance(error, apsw.Error):
        return Failed("database", name, message)
    if isinstance(error, LogDirectoryError):
        return Failed("evidence", name, message)
    if isinstance(error, OSError):
        return Failed("system", name, error.strerror or message, error.errno)
    return Failed("other", name, message)


def _end_with_parent() -> None:
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _orders(stream: IO[bytes]) -> Iterator[Any]:
    """Orders, as they come; ends where the stream does.

    They are read by a thread, at once: whoever writes them must not wait for a
    process that waits itself until its answers are read.
    """
    received: SimpleQueue[Any] = SimpleQueue()

    def read() -> None:
        try:
            while True:
                received.put(pickle.load(stream))
        except BaseException as error:
            received.put(error)

    threading.Thread(target=read, daemon=True).start()
    while not isinstance(order := received.get(), BaseException):
        yield order
    if not isinstance(order, EOFError):
        raise order


def main() -> None:
    """Carry out orders until there are none."""
    collect_rarely()
    parent = int(sys.argv[-1])
    _end_with_parent()
    if os.getppid() != parent:
        os._exit(1)
    orders = _orders(os.fdopen(os.dup(0), "rb"))
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever prints must not answer
    worker: Any = None
    try:
        for order in orders:
            if worker is None:
                worker = _Worker(order, answers)
            else:
                worker.carry_out(order)
        os._exit(1)  # nobody is there any more
    except BrokenPipeError:
        os._exit(1)  # nobody is there any more
    except BaseException as error:
        if worker is not None:
            worker.answer(_failure(error))
        os._exit(1)
