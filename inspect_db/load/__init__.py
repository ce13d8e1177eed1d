"""Build an index: replay a log directory into rows.

The judgement is that of a start (``cursus.replay.startup.plan``); the loader
listens while the segments are scanned, and afterwards writes down what was
decided. Nothing is decided here but three sums that SQL cannot make: differences
of unsigned numbers, the revision before a revision, and the largest records.

``build`` is the file and its publication; every other module fills the tables of
one subject through the same :class:`~inspect_db.load.writer.Writer`.

Source: design.md "The index", principle 8; README.md decision 17.
"""

from __future__ import annotations

from inspect_db.load.build import build, create_schema
from inspect_db.load.consumers import load_consumers
from inspect_db.load.options import BuildError, BuildOptions, BuildResult, Progress, RecordsMode
from inspect_db.load.writer import Writer

__all__ = [
    "BuildError",
    "BuildOptions",
    "BuildResult",
    "Progress",
    "RecordsMode",
    "Writer",
    "build",
    "create_schema",
    "load_consumers",
]
