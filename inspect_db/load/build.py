"""The file of an index: made beside its destination, renamed into place when whole.

The index is made in a file of its own beside the destination, named
``.NAME.building-PID-RANDOM``, with the shards of its workers beside it
(``….shard-WORKER-NUMBER``). Until it is renamed the old index stays as it is.
Whatever ends the build early removes the unfinished file; after a kill the next
build does.
"""

from __future__ import annotations

import os
import re
import secrets
from contextlib import suppress
from typing import NoReturn

import apsw

from cursus.evidence.walk import LogDirectoryError
from cursus.formats.display import safe_text
from inspect_db.index import is_index
from inspect_db.load.fill import fill
from inspect_db.load.options import BuildError, BuildOptions, BuildResult, Progress


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
        result = fill(log_dir, target, unfinished, options, progress)
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
    """Remove an unfinished index and its shards."""
    folder, base = os.path.split(path)
    with suppress(OSError):
        for found in os.listdir(folder):
            if found.startswith(f"{base}.shard-"):
                os.unlink(os.path.join(folder, found))
    for suffix in ("", "-journal", "-wal", "-shm"):
        with suppress(OSError):  # what went wrong before is what is told
            os.unlink(path + suffix)


def _remove_abandoned(target: str) -> None:
    """Unfinished files of builds whose process is gone."""
    folder, base = os.path.split(target)
    pattern = re.compile(
        rf"(\.{re.escape(base)}\.building-([0-9]+)-[0-9a-f]+)(?:-journal|\.shard-[0-9-]+)?"
    )
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
