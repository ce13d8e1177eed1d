"""``cursus-storage``: what stands in a log directory, and moving orphans out of it.

A thin skin: it reads the flags, calls one function and prints one JSON
document. Data go to stdout, one line ``error: …`` to stderr. Exit 0 done (also
with problems in the report), 1 failed, 2 usage, 130 interrupted.

Flags are read as the reference reads them: one dash or two, ``--name value`` or
``--name=value``, the first word that is no flag ends them.

Source: manifest.md sections 8.1, 8.8 and 9.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from cursus.evidence.backup import backup_document, validate_backup
from cursus.evidence.collector import collect_rarely
from cursus.evidence.inventory import (
    Inventory,
    InventoryError,
    consumer_document,
    inventory_document,
    orphan_document,
    problems_document,
    take_inventory,
)
from cursus.evidence.walk import LogDirectory, LogDirectoryError
from cursus.findings import FormatError
from cursus.formats.canonical_json import Writable, pretty
from cursus.formats.display import safe_text
from cursus.replay.interfaces import UnreadableError
from cursus.storage.orphan_archive import ArchiveError, ArchiveResult, archive_orphan

USAGE: Final = """\
usage:
  cursus-storage manifest inspect --log-dir DIR
  cursus-storage consumer-metadata inspect --log-dir DIR
  cursus-storage orphan inspect --log-dir DIR
  cursus-storage orphan archive --log-dir DIR --archive-dir DIR --topic NAME [--dry-run]
"""
DONE, FAILED, WRONG_USAGE, INTERRUPTED = 0, 1, 2, 130

#: Flags by name: what stands behind them in the help of a command.
_LOG_DIR: Final = {"log-dir": "the log directory to examine"}
_ARCHIVE: Final = {
    **_LOG_DIR,
    "archive-dir": "where to move it; must not lie in the log directory",
    "topic": "name of the topic directory that nobody declares",
}
_SWITCHES: Final = {"dry-run": "check everything, move nothing"}

_TRUE: Final = {"1", "t", "T", "TRUE", "true", "True"}
_FALSE: Final = {"0", "f", "F", "FALSE", "false", "False"}

#: What can go wrong with a log directory; each says so in one sentence.
_FAILURES: Final = (InventoryError, LogDirectoryError, ArchiveError, FormatError, UnreadableError)


class UsageError(Exception):
    """The command line is wrong."""


class HelpRequest(Exception):
    """``--help`` behind a command."""


@dataclass(frozen=True, slots=True)
class Arguments:
    """Flags of a command: values by name, and switches that are on."""

    values: Mapping[str, str]
    switches: frozenset[str] = frozenset()


def parse_flags(
    words: Sequence[str], names: Mapping[str, str], switches: Mapping[str, str]
) -> Arguments:
    """Read flags as the reference does. Raises :class:`UsageError`, :class:`HelpRequest`."""
    values: dict[str, str] = {}
    on: set[str] = set()
    rest = list(words)
    while rest:
        word = rest[0]
        if len(word) < 2 or word[0] != "-":
            break
        rest.pop(0)
        if word == "--":
            break
        flag = word[2:] if word.startswith("--") else word[1:]
        name, equals, value = flag.partition("=")
        if not name or name.startswith("-"):
            raise UsageError(f"bad flag syntax: {word}")
        if name in switches:
            _switch(on, name, value if equals else "true")
        elif name in names:
            if not equals:
                if not rest:
                    raise UsageError(f"flag needs a value: --{name}")
                value = rest.pop(0)
            values[name] = value
        elif name in {"h", "help"}:
            raise HelpRequest
        else:
            raise UsageError(f"unknown flag: {word}")
    for name in names:
        if not values.get(name):
            raise UsageError(f"--{name} is required")
    if rest:
        raise UsageError(f"unexpected argument: {rest[0]}")
    return Arguments(values, frozenset(on))


def _switch(on: set[str], name: str, value: str) -> None:
    if value in _TRUE:
        on.add(name)
    elif value in _FALSE:
        on.discard(name)
    else:
        raise UsageError(f"--{name} is true or false, not {value}")


# -- commands ------------------------------------------------------------------------


def _inventory(log_dir: str) -> Inventory:
    with LogDirectory.at(log_dir) as evidence:
        return take_inventory(evidence)


def _inspect(document: Callable[[Inventory], Mapping[str, Writable]], given: Arguments) -> int:
    _print(document(_inventory(given.values["log-dir"])))
    return DONE


def _manifest_inspect(given: Arguments) -> int:
    return _inspect(inventory_document, given)


def _consumer_inspect(given: Arguments) -> int:
    return _inspect(consumer_document, given)


def _orphan_inspect(given: Arguments) -> int:
    return _inspect(orphan_document, given)


def _backup_validate(given: Arguments) -> int:
    with LogDirectory.at(given.values["log-dir"]) as evidence:
        report = validate_backup(evidence)
    _print(backup_document(report))
    if report.problem is None:
        return DONE
    return _fail(f"not ready: {report.problem[1]}")


def _orphan_archive(given: Arguments) -> int:
    """The result is printed whatever happens: it says whether the directory was moved."""
    result = ArchiveResult()
    try:
        archive_orphan(
            given.values["log-dir"],
            given.values["archive-dir"],
            given.values["topic"],
            dry_run="dry-run" in given.switches,
            take_inventory=_inventory,
            result=result,
        )
    finally:
        found: dict[str, Writable] = {
            "changed": result.changed,
            "committed": result.committed,
            "source": result.source,
            "destination": result.destination,
        }
        if result.problems:
            found["problems"] = problems_document(result.problems)
        _print(found)
    return DONE


@dataclass(frozen=True, slots=True)
class Command:
    """A command: its function and its flags."""

    run: Callable[[Arguments], int]
    names: Mapping[str, str]
    switches: Mapping[str, str]


COMMANDS: Final[Mapping[tuple[str, str], Command]] = {
    ("manifest", "inspect"): Command(_manifest_inspect, _LOG_DIR, {}),
    ("consumer-metadata", "inspect"): Command(_consumer_inspect, _LOG_DIR, {}),
    ("orphan", "inspect"): Command(_orphan_inspect, _LOG_DIR, {}),
    ("orphan", "archive"): Command(_orphan_archive, _ARCHIVE, _SWITCHES),
    # Later than the usage text, which is a contract (README.md decision 18).
    ("backup", "validate"): Command(_backup_validate, _LOG_DIR, {}),
}


# -- talking -------------------------------------------------------------------------


def _print(document: Mapping[str, Writable]) -> None:
    _write(pretty(document))


def _write(data: bytes) -> None:
    if sys.stdout is None:
        raise BrokenPipeError("stdout is closed")
    sys.stdout.flush()
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def _say(text: str) -> None:
    """One block of talk on stderr; if that is closed, nobody listens."""
    try:
        if sys.stderr is not None:
            sys.stderr.write(text)
            sys.stderr.flush()
    except (OSError, ValueError):
        pass


def _fail(message: str, status: int = FAILED) -> int:
    _say(f"error: {safe_text(message)}\n")
    return status


def _help(words: tuple[str, str], command: Command) -> str:
    lines = [f"usage of cursus-storage {words[0]} {words[1]}:"]
    for name, text in command.names.items():
        lines.append(f"  --{name} {'NAME' if name == 'topic' else 'DIR'}  {text} (required)")
    lines.extend(f"  --{name}  {text}" for name, text in command.switches.items())
    return "\n".join(lines) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``cursus-storage``; returns the exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    if argv is None:
        collect_rarely()
    try:
        return _run(words)
    except KeyboardInterrupt:
        return _fail("interrupted", INTERRUPTED)
    except _FAILURES as error:
        return _fail(str(error))
    except OSError as error:
        # The evidence has its own errors: this is stdout, closed or full.
        _silence()
        return _fail(f"cannot write the result: {error.strerror or error}")


def _run(words: list[str]) -> int:
    if len(words) == 1 and words[0] in {"-h", "--help", "help"}:
        _write(USAGE.encode())
        return DONE
    name = (words[0], words[1]) if len(words) >= 2 else None
    command = COMMANDS.get(name) if name is not None else None
    if name is None or command is None:
        _say(USAGE)
        return WRONG_USAGE
    try:
        given = parse_flags(words[2:], command.names, command.switches)
    except HelpRequest:
        _say(_help(name, command))
        return DONE
    except UsageError as error:
        return _fail(str(error), WRONG_USAGE)
    return command.run(given)


def _silence() -> None:
    """Let the interpreter's own last flush of a broken stdout go nowhere."""
    try:
        sink = os.open(os.devnull, os.O_WRONLY)
        os.dup2(sink, 1)
        os.close(sink)
    except OSError:
        pass


if __name__ == "__main__":
    sys.exit(main())
