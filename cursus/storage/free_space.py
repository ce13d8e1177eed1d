"""The guard that refuses writes before the disk is full.

The file system is asked at most once a second; between two answers the guard
counts what it granted. A refusal is passing: nothing was written, no offset was
used, and the next write may be granted.

Source: segments.md section 16.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from cursus.storage.durable import FileSystem
from cursus.storage.errors import WriteRefusedError

_SECOND_NS: Final = 1_000_000_000


class FreeSpaceGuard:
    """Guarded by the append lock of its partition."""

    def __init__(
        self,
        fs: FileSystem,
        log_dir: str,
        clock: Callable[[], int],
        min_bytes: int,
        min_percent: float,
    ) -> None:
        self._fs = fs
        self._log_dir = log_dir
        self._clock = clock
        self._min_bytes = min_bytes
        self._min_percent = min_percent
        self._on = min_bytes > 0 or min_percent > 0
        self._asked_ns: int | None = None
        self._free = self._total = self._granted = 0

    def grant(self, required: int) -> None:
        """Let ``required`` bytes be written. Raises :class:`WriteRefusedError`."""
        if not self._on:
            return
        self._ask()
        minimum = max(self._min_bytes, math.ceil(self._total * max(self._min_percent, 0) / 100))
        left = max(self._free - self._granted - required, 0)
        if left < minimum:
            raise WriteRefusedError(
                "insufficient_disk_space",
                f"{required} bytes would leave {left} free; {minimum} have to stay",
                path=self._log_dir,
                required=required,
                free=self._free - self._granted,
                minimum=minimum,
            )
        self._granted += required

    def _ask(self) -> None:
        now = self._clock()
        if self._asked_ns is not None and 0 <= now - self._asked_ns < _SECOND_NS:
            return
        try:
            self._free = self._fs.free_bytes(self._log_dir)
            self._total = self._fs.total_bytes(self._log_dir)
        except OSError as error:
            self._asked_ns = None
            raise WriteRefusedError(
                "insufficient_disk_space",
                f"the free space cannot be read: {error.strerror or error}",
                path=self._log_dir,
            ) from error
        self._asked_ns, self._granted = now, 0
