"""What goes into an index, and what came of making one."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Literal

from cursus.replay.startup import StartupConfig

RecordsMode = Literal["all", "internal", "none"]
#: Called with (bytes scanned, bytes to scan).
Progress = Callable[[int, int], None]


class BuildError(Exception):
    """No index was made, and an older one is as it was; the message says why."""


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """What goes into an index, and how it is made.

    ``as_of``: nanoseconds since the zero time. ``jobs``: processes that scan;
    ``None`` for two where there are the cores and enough to read. ``update``: go on
    from the index that is there. Neither changes what the index says.
    """

    as_of: int
    records: RecordsMode = "all"
    payload_bytes: int = 0
    hashes: bool = False
    config: StartupConfig = field(default_factory=StartupConfig)
    jobs: int | None = None
    update: bool = False


@dataclass(frozen=True, slots=True)
class BuildResult:
    """What was made.

    ``changed``: paths of files that changed while they were read. ``scanned``: bytes
    of logs that were scanned. ``full``: why an update became a full build; empty
    when it did not, or when none was asked for.
    """

    path: str
    verdict: str
    records: int
    bytes: int
    changed: tuple[str, ...]
    scanned: int = 0
    full: str = ""


def config_text(options: BuildOptions) -> str:
    """The settings that the start is judged with, as an index has them."""
    return json.dumps(asdict(options.config), sort_keys=True)
