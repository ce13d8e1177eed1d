"""Build an index: replay a log directory into rows.

The segments are scanned first, in one process or several; then the judgement is
made, by the one function that decides a start (``cursus.replay.startup.plan``),
from what the scans left; then it is written down. Nothing is decided here but
three sums that SQL cannot make: differences of unsigned numbers, the revision
before a revision, and the largest records.

``build`` is the file and its publication, ``fill`` what goes into it, ``pool`` and
``worker`` the processes that scan, ``scanning`` one segment, ``kept`` what a scan
leaves, ``update`` what of an older index still holds. Every other module fills the
tables of one subject through the same :class:`~inspect_db.load.writer.Writer`.

Source: design.md "The index", principle 8; README.md decision 17.
"""

from __future__ import annotations

from inspect_db.load.build import build
from inspect_db.load.consumers import load_consumers
from inspect_db.load.fill import create_schema
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
