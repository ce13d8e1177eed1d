"""What a broker needs of the machine it runs on, as one value.

The runtime opens no file and asks no clock by itself: it is given the file
system (``cursus.storage.durable``), a way to look at a directory as evidence,
the locks and the time. :func:`this_machine` is the real one; a crash harness
gives a machine in memory, and the same start runs there.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import Final

from cursus.evidence.walk import LogDirectory
from cursus.formats import timestamps
from cursus.replay.interfaces import Evidence
from cursus.storage.durable import FileSystem, real_file_system
from cursus.storage.locks import HeldLock, TakeLock, lock_log_directory, lock_partition

_FILES: Final = real_file_system()


@dataclass(frozen=True, slots=True)
class Machine:
    """``evidence`` is asked by the holder of the directory's lock only.

    ``lock_partition`` is ``None`` where no other process can be. ``now_ns``:
    nanoseconds since 1970, which somebody may set back. ``ticks_ns``: nanoseconds
    of a clock that only goes on, for intervals.
    """

    files: FileSystem
    make_log_dir: Callable[[str], None]
    lock_log_dir: Callable[[str], HeldLock]
    lock_partition: TakeLock | None
    evidence: Callable[[str], AbstractContextManager[Evidence]]
    now_ns: Callable[[], int]
    ticks_ns: Callable[[], int] = time.monotonic_ns

    def moment(self) -> int:
        """Now, in nanoseconds since the zero time of ``cursus.formats.timestamps``."""
        return timestamps.from_unix_ns(self.now_ns())


def this_machine(files: FileSystem | None = None) -> Machine:
    """The machine that this process runs on."""
    return Machine(
        files=real_file_system() if files is None else files,
        make_log_dir=_make_log_dir,
        lock_log_dir=lock_log_directory,
        lock_partition=lock_partition,
        # A broker accepts a link to its directory (manifest.md section 3.2), evidence does not.
        evidence=lambda log_dir: LogDirectory.at(os.path.realpath(log_dir), held=True),
        now_ns=time.time_ns,
    )


def _make_log_dir(log_dir: str) -> None:
    """``log_dir`` and its parents (0750), where they are missing (broker.md section 2.1).

    The names that are made are synced: what a broker acknowledges inside cannot be
    more durable than the directory itself.
    """
    if not log_dir.strip():
        raise ValueError("log_dir is empty")
    missing, path = [], os.path.abspath(log_dir)
    while _FILES.status(path) is None:
        missing.append(path)
        path = os.path.dirname(path)
    for made in reversed(missing):
        with suppress(FileExistsError):  # another process made it: its lock decides
            _FILES.make_directory(made)
        _FILES.sync_directory(os.path.dirname(made))
