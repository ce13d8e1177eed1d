"""What goes into an index, and what came of making one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from cursus.replay.startup import StartupConfig

RecordsMode = Literal["all", "internal", "none"]
#: Called with (bytes scanned, bytes to scan).
Progress = Callable[[int, int], None]


class BuildError(Exception):
    """No index was made, and an older one is as it was; the message says why."""


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """What goes into an index. ``as_of``: nanoseconds since the zero time."""

    as_of: int
    records: RecordsMode = "all"
    payload_bytes: int = 0
    hashes: bool = False
    config: StartupConfig = field(default_factory=StartupConfig)


@dataclass(frozen=True, slots=True)
class BuildResult:
    """What was made. ``changed``: paths of files that changed while they were read."""

    path: str
    verdict: str
    records: int
    bytes: int
    changed: tuple[str, ...]
