"""Watch a log directory: update its index again and again, and say what became different.

The directory is walked each time; only when the kernel says that something moved
is the index updated, and only when the index says something else is there a line.
What changes while it is read is read again by the next round.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any, Final, cast

import apsw

from cursus.evidence.walk import LogDirectory, LogDirectoryError
from cursus.formats import timestamps
from cursus.formats.display import safe_text
from inspect_db.index import IndexFileError, open_index
from inspect_db.load import BuildError, BuildOptions, build
from inspect_db.values import from_name

#: Findings that a line names, topics that it counts; the rest is a number.
NAMED: Final = 3
#: Say more of the reading than of what was read.
_OF_THE_READING: Final = frozenset(
    {"file_changed_while_reading", "storage_in_use", "write_in_progress", "txn_expiry_due"}
)


@dataclass(frozen=True, slots=True)
class State:
    """What an index says, as far as lines are made of it."""

    verdict: str = ""
    records: Counter[str] = field(default_factory=Counter)
    files: frozenset[str] = frozenset()
    findings: Counter[str] = field(default_factory=Counter)


def read_state(path: str) -> State:
    """Of an index at ``path``."""
    with closing(open_index(path)) as connection:
        rows = connection.execute("select verdict from build").fetchall()
        records = connection.execute(
            "select f.topic, sum(s.records) from segment_sums as s "
            "join files as f on f.file_id = s.file_id group by f.topic"
        ).fetchall()
        files = connection.execute("select path from files where type <> 'directory'").fetchall()
        found = connection.execute(
            "select code, path, position from findings where severity <> 'info'"
        ).fetchall()
    return State(
        str(rows[0][0]),
        Counter({safe_text(from_name(cast(Any, topic))): int(str(n)) for topic, n in records}),
        frozenset(from_name(cast(Any, row[0])) for row in files),
        Counter(
            _finding(str(code), from_name(cast(Any, where)), cast(Any, position))
            for code, where, position in found
            if code not in _OF_THE_READING
        ),
    )


def _finding(code: str, path: str, position: int | None) -> str:
    shown = safe_text(path)
    return f"{code} at {shown}" + ("" if position is None else f":{position}")


def differences(before: State, after: State) -> Iterator[str]:
    """Lines about what became different."""
    if before.verdict != after.verdict:
        yield f"verdict: {before.verdict} → {after.verdict}"
    new, gone = after.findings - before.findings, before.findings - after.findings
    for word, found in (("found", new), ("gone", gone)):
        names = sorted(found)
        for name in names[:NAMED]:
            yield f"{word}: {name}"
        if len(names) > NAMED:
            yield f"{word}: {len(names) - NAMED} more findings"
    moved = [
        (topic, after.records[topic] - before.records[topic])
        for topic in sorted({*before.records, *after.records})
    ]
    moved = [(topic, count) for topic, count in moved if count]
    if moved:
        shown = ", ".join(f"{topic} {count:+,}" for topic, count in moved[:NAMED])
        more = f" and {len(moved) - NAMED} more topics" if len(moved) > NAMED else ""
        yield f"records: {shown}{more}"
    added, removed = len(after.files - before.files), len(before.files - after.files)
    if added or removed:
        yield f"files: +{added:,} −{removed:,}"


def watch(
    log_dir: str,
    index: str,
    options: BuildOptions,
    say: Callable[[str], None],
    wait: Callable[[], None],
) -> None:
    """Until ``wait`` raises. Raises :class:`BuildError` when the first round fails.

    ``say`` is given lines without a time, ``wait`` is called between two rounds.
    """
    state: State | None = None
    seen: object = None
    trouble = ""
    while True:
        try:
            stamps = _stamps(log_dir)
            if stamps != seen or trouble:
                moment = timestamps.from_unix_ns(time.time_ns())
                result = build(log_dir, index, replace(options, as_of=moment, update=True))
                after = read_state(index)
                if state is None:
                    count = sum(after.records.values())
                    say(f"verdict: {after.verdict}; {count:,} records")
                for line in differences(state, after) if state is not None else ():
                    say(line)
                state = after
                # What changed meanwhile is looked at again, even if nothing moves any more.
                seen = None if result.changed else stamps
                trouble = ""
        except (BuildError, LogDirectoryError, IndexFileError, apsw.Error) as error:
            if state is None:
                raise BuildError(safe_text(str(error))) from None
            if str(error) != trouble:
                trouble = str(error)
                say(f"trouble: {safe_text(trouble)}")
        wait()


def _stamps(log_dir: str) -> object:
    with LogDirectory.at(log_dir) as evidence:
        return [
            (e.path, e.type, e.dev, e.ino, e.size, e.mtime_ns, e.ctime_ns) for e in evidence.entries
        ], evidence.in_use
