"""The file of an index: made beside its destination, renamed into place when whole.

The index is made in a file of its own beside the destination, named
``.NAME.building-PID-RANDOM``. Until it is renamed the old index stays as it is.
Whatever ends the build early removes the unfinished file; after a kill the next
build does.
"""

from __future__ import annotations

import os
import re
import secrets
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Final, NoReturn

import apsw

from cursus.evidence.inventory import InventoryError, inventory_document, take_inventory
from cursus.evidence.walk import LogDirectory, LogDirectoryError
from cursus.formats import canonical_json
from cursus.formats.display import safe_text
from cursus.replay.interfaces import Entry, Evidence
from cursus.replay.startup import Plan, plan
from inspect_db.index import is_index, schema_scripts
from inspect_db.load.consumers import load_consumers
from inspect_db.load.files import LOGS, load_contents, load_files
from inspect_db.load.findings import load_build, load_changes, load_findings
from inspect_db.load.logs import load_partition, load_topics
from inspect_db.load.options import BuildError, BuildOptions, BuildResult, Progress
from inspect_db.load.records import RecordLoader
from inspect_db.load.state import load_aggregates, load_checkpoints, load_journal, load_producers
from inspect_db.load.writer import Writer

#: Longer than any tick of the kernel's clock (HZ = 100 is the slowest).
TICK_NS: Final = 20_000_000
PAGE_BYTES: Final = 4096
_CACHE_KIB: Final = 16_384


def build(
    log_dir: str, destination: str, options: BuildOptions, progress: Progress | None = None
) -> BuildResult:
    """Read ``log_dir`` and put an index at ``destination``.

    Raises :class:`BuildError`; then, as after an interruption, an older index
    stands where it stood and nothing new is left behind.
    """
    target = os.path.abspath(destination)
    _check_destination(log_dir, target)
    folder, base = os.path.split(target)
    unfinished = os.path.join(folder, f".{base}.building-{os.getpid()}-{secrets.token_hex(4)}")
    try:
        _remove_abandoned(target)
        result = _build(log_dir, target, unfinished, options, progress)
        _publish(unfinished, target)
    except apsw.Error as error:
        _failed(target, error)
    except LogDirectoryError as error:
        raise BuildError(safe_text(str(error))) from None
    except OSError as error:
        raise BuildError(f"{safe_text(target)}: {error.strerror or error}") from None
    finally:
        _remove(unfinished)
    return result


def _failed(target: str, error: apsw.Error) -> NoReturn:
    shown = safe_text(target)
    if isinstance(error, apsw.FullError):
        raise BuildError(f"{shown}: no space left for the index") from None
    if isinstance(error, (apsw.CantOpenError, apsw.ReadOnlyError, apsw.PermissionsError)):
        raise BuildError(f"{shown}: the index cannot be written there") from None
    raise BuildError(f"{shown}: the index cannot be written ({error})") from None


def _check_destination(log_dir: str, target: str) -> None:
    shown = safe_text(target)
    folder = os.path.dirname(target)
    if not os.path.isdir(folder):
        raise BuildError(f"{safe_text(folder)}: no such directory")
    inside = os.path.realpath(log_dir)
    for place in (os.path.join(os.path.realpath(folder), os.path.basename(target)), target):
        if os.path.commonpath([inside, os.path.realpath(place)]) == inside:
            raise BuildError(
                f"{shown} is inside the log directory; nothing is ever written there: "
                "choose another place"
            )
    if os.path.isdir(target):
        raise BuildError(f"{shown} is a directory; name a file")
    if os.path.lexists(target):
        plain = os.path.isfile(target) and not os.path.islink(target)
        if plain and not os.access(target, os.R_OK):
            raise BuildError(f"{shown}: permission denied; what stands there cannot be looked at")
        if not plain or (os.path.getsize(target) and not is_index(target)):
            raise BuildError(f"{shown} exists and is not an index; it is not overwritten")


def _remove(path: str) -> None:
    for suffix in ("", "-journal", "-wal", "-shm"):
        with suppress(OSError):  # what went wrong before is what is told
            os.unlink(path + suffix)


def _remove_abandoned(target: str) -> None:
    """Unfinished files of builds whose process is gone."""
    folder, base = os.path.split(target)
    pattern = re.compile(rf"(\.{re.escape(base)}\.building-([0-9]+)-[0-9a-f]+)(?:-journal)?")
    for found in os.listdir(folder):
        match = pattern.fullmatch(found)
        if match is None:
            continue
        try:
            os.kill(int(match[2]), 0)
        except ProcessLookupError:
            _remove(os.path.join(folder, match[1]))
        except (OSError, OverflowError):
            continue


def _publish(unfinished: str, target: str) -> None:
    with open(unfinished, "rb") as file:
        os.fsync(file.fileno())
    for suffix in ("-journal", "-wal", "-shm"):
        with suppress(FileNotFoundError):
            os.unlink(target + suffix)
    os.rename(unfinished, target)
    folder = os.open(os.path.dirname(target), os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _build(
    log_dir: str,
    target: str,
    unfinished: str,
    options: BuildOptions,
    progress: Progress | None,
) -> BuildResult:
    # Nobody else may read evidence through the index before its owner allows it.
    os.close(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    connection = apsw.Connection(unfinished)
    try:
        create_schema(connection)
        connection.execute("begin")
        with LogDirectory.at(log_dir) as evidence:
            writer = Writer(connection)
            _let_the_clock_tick(evidence.entries)
            load_files(writer, evidence.entries)
            to_scan = sum(entry.size for entry in evidence.entries if entry.kind in LOGS)
            records = RecordLoader(writer, options, to_scan, progress)
            judged = plan(evidence, options.config, options.as_of, sink=records.visit)
            records.close()
            load_plan(writer, judged)
            load_contents(writer, evidence, records.contents(), hashes=options.hashes)
            document, refusal = _inventory(evidence)
            changed, appeared = _changed(log_dir, evidence.entries)
            load_changes(writer, changed, appeared, judged)
        load_build(writer, options, judged, document, refusal, len(changed) + len(appeared))
        connection.execute("commit")
    finally:
        connection.close()
    return BuildResult(
        path=target,
        verdict=judged.verdict,
        records=records.records,
        bytes=os.path.getsize(unfinished),
        changed=(*changed, *appeared),
    )


def load_plan(writer: Writer, judged: Plan) -> None:
    """Everything that the plan says."""
    load_topics(writer, judged)
    for log in judged.partitions.values():
        load_partition(writer, log, judged)
    bounds = {
        key: (log.log_start, log.next_offset)
        for key, log in judged.partitions.items()
        if log.segments
    }
    load_consumers(writer, judged.consumers, bounds)
    load_journal(writer, judged)
    load_producers(writer, judged)
    load_checkpoints(writer, judged)
    load_aggregates(writer, judged)
    load_findings(writer, judged)


def create_schema(connection: apsw.Connection) -> None:
    """An empty index in a database of its own; without a journal, since it is thrown away."""
    for pragma in (
        f"page_size = {PAGE_BYTES}",
        "journal_mode = off",
        "synchronous = off",
        "locking_mode = exclusive",
        f"cache_size = -{_CACHE_KIB}",
    ):
        connection.execute(f"pragma {pragma}")
    for _, text in schema_scripts():
        connection.execute(text)


def _inventory(evidence: Evidence) -> tuple[bytes | None, str | None]:
    try:
        return canonical_json.pretty(inventory_document(take_inventory(evidence))), None
    except InventoryError as error:
        return None, str(error)


def _changed(log_dir: str, entries: Iterable[Entry]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Files that are not what they were when the reading began, and what was not there then."""
    with LogDirectory.at(log_dir) as again:
        changed = []
        known = set()
        for entry in entries:
            known.add(entry.path)
            now = again.get(entry.path)
            if entry.type == "file" and (now is None or _stamp(now) != _stamp(entry)):
                changed.append(entry.path)
        appeared = [entry.path for entry in again.entries if entry.path not in known]
    return tuple(changed), tuple(appeared)


def _stamp(entry: Entry) -> tuple[object, ...]:
    """What differs when a file was touched; its modification time alone can be put back."""
    return (entry.type, entry.dev, entry.ino, entry.size, entry.mtime_ns, entry.ctime_ns)


def _let_the_clock_tick(entries: Iterable[Entry]) -> None:
    """Wait until a change of a file that changed just now would show in its ``ctime``.

    The kernel stamps files with the time of its last tick: a second change inside
    the same tick leaves no trace.
    """
    latest = max((entry.ctime_ns for entry in entries), default=0)
    age = time.time_ns() - latest
    if 0 <= age < TICK_NS:
        time.sleep((TICK_NS - age) / 1e9)
