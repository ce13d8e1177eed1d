"""``inspect-db``: the bench on which broker storage is examined.

A thin skin: each command calls one function of the library and prints what it
returns. Data go to stdout, talk to stderr; ``--json`` shapes are stable. Exit
codes: 0 done, 1 failed, 2 usage, 130 interrupted, 141 nobody reads stdout any
more; ``verdict`` says what it found by 0, 3, 4, 5 or 6. A mistake of the user is
one line on stderr, never a traceback.
"""

from __future__ import annotations

import csv
import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NoReturn

import click
import yaml
from click.core import ParameterSource

from cursus.evidence.collector import collect_rarely
from cursus.evidence.walk import LogDirectory, LogDirectoryError
from cursus.findings import Finding
from cursus.formats import timestamps
from cursus.formats.display import safe_text
from cursus.layout import FileKind, file_class
from cursus.replay.startup import Plan, StartupConfig, plan
from inspect_db import dump as dumping
from inspect_db import fixtures, index_check, verdict

INTERRUPTED: Final = 130
CLOSED_PIPE: Final = 141


class Failure(click.ClickException):
    """Something cannot be done; one line on stderr, exit code 1."""

    exit_code = 1


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80})
def cli() -> None:
    """Examine the storage of a Cursus broker without changing it.

    LOG_DIR is the log directory of a broker, running or not. Nothing is ever
    written, created, locked or followed below it.
    """


# -- what every command needs -----------------------------------------------------------


def parse_as_of(_: click.Context, __: click.Parameter, value: str | None) -> int:
    """``--as-of``: nanoseconds since the zero time; now without one."""
    if value is None:
        return timestamps.from_unix_ns(time.time_ns())
    try:
        return timestamps.parse(value)
    except ValueError:
        raise click.BadParameter(
            f"{safe_text(value)!r} is not a time like 2026-09-15T12:00:00Z"
        ) from None


def parse_config(_: click.Context, __: click.Parameter, value: str | None) -> StartupConfig:
    """``--config``: the settings of a broker's configuration file that decide a start."""
    if value is None:
        return StartupConfig()
    try:
        text = Path(value).read_text("utf-8")
        loaded = json.loads(text) if value.endswith(".json") else yaml.safe_load(text)
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a readable configuration"
        raise Failure(f"{safe_text(value)}: {reason}") from None
    if loaded is None:
        return StartupConfig()
    if not isinstance(loaded, Mapping):
        raise Failure(f"{safe_text(value)}: not a mapping of settings")
    return StartupConfig.from_settings(loaded)


as_of_option = click.option(
    "--as-of",
    metavar="TIME",
    callback=parse_as_of,
    help="Judge as if a broker were started then (RFC 3339). Default: now.",
)
config_option = click.option(
    "--config",
    metavar="FILE",
    callback=parse_config,
    help="The broker's configuration, YAML or JSON (time-outs, limits of topics).",
)


@contextmanager
def opened(log_dir: str) -> Iterator[LogDirectory]:
    """The log directory as evidence; raises :class:`Failure` with one clear line."""
    try:
        evidence = LogDirectory.at(log_dir)
    except LogDirectoryError as error:
        raise Failure(safe_text(str(error))) from None
    with evidence:
        yield evidence


#: Looks at a directory in use, until one was not overtaken by what the broker removes.
LOOKS: Final = 5


def judge(log_dir: str, config: StartupConfig, as_of: int) -> Plan:
    """The plan of a directory; where a broker is at work, of one moment if that can be had.

    Retention and compaction take files away between the walk and the read. What
    was read then does not belong together, so the directory is looked at again.
    """
    for look in range(1, LOOKS + 1):
        with opened(log_dir) as evidence:
            found = plan(evidence, config, as_of)
        overtaken = any(item.code == "file_changed_while_reading" for item in found.findings)
        if not overtaken or found.in_use is False or look == LOOKS:
            break
    return found


def refuse_other_judgement() -> None:
    """An index keeps the judgement of its build; another moment needs another build."""
    context = click.get_current_context()
    for name in ("config", "as_of"):
        if context.get_parameter_source(name) is not ParameterSource.DEFAULT:
            flag = name.replace("_", "-")
            raise click.UsageError(
                f"--{flag} does not apply to an index: it was judged when it was built; "
                f"build it again with --{flag}"
            )


def read_index(path: str, what: str, **how: object) -> Any:
    """``what`` of an index built by ``inspect-db build``; a plain file only."""
    return getattr(_index_commands(), what)(path, **how)


def _index_commands() -> Any:
    """The commands of the index; that module stands on this one, so it is loaded late."""
    return importlib.import_module("inspect_db.cli_index")


def write_json(value: object) -> None:
    """Indented JSON; names that are not UTF-8 keep their bytes as lone surrogates."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=True))


def write_csv(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """CSV with a header. On a terminal, whatever could disturb it is written out."""
    show: Callable[[Any], Any] = _on_terminal if sys.stdout.isatty() else _in_file
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow([show(row.get(column)) for column in columns])


def _in_file(value: Any) -> Any:
    return "" if value is None else value


def _on_terminal(value: Any) -> Any:
    return safe_text(value) if isinstance(value, str) else _in_file(value)


# -- verdict ----------------------------------------------------------------------------


@cli.command("verdict")
@click.argument("log_dir")
@click.option("--json", "as_json", is_flag=True, help="The whole verdict as JSON.")
@click.option("--all", "everything", is_flag=True, help="Show every finding and every action.")
@config_option
@as_of_option
def verdict_command(
    log_dir: str, as_json: bool, everything: bool, config: StartupConfig, as_of: int
) -> int:
    """Would a broker start on this?

    Judges the five steps of a start and says what is wrong, in which file at
    which byte, what is lost, and what to do. LOG_DIR may be an index too.

    Exit code: 0 starts clean, 3 with repairs, 4 with damage, 5 refuses,
    6 undetermined (this account may not read what a broker could).
    """
    if os.path.isfile(log_dir):
        refuse_other_judgement()
        document = read_index(log_dir, "verdict_document")
        if as_json:
            write_json(document)
        else:
            for line in read_index(log_dir, "verdict_page", everything=everything):
                click.echo(line)
        return verdict.EXIT_CODES[document["verdict"]]
    found = judge(log_dir, config, as_of)
    if as_json:
        write_json(verdict.verdict_json(found))
    else:
        for line in verdict.page(found, everything=everything):
            click.echo(line)
    return verdict.EXIT_CODES[found.verdict]


# -- findings and inventory ----------------------------------------------------------------

FINDING_COLUMNS: Final = (
    "code",
    "severity",
    "effect",
    "step",
    "path",
    "position",
    "length",
    "message",
    "lost_bytes",
    "lost_records",
    "lost_first_offset",
    "lost_last_offset",
    "action",
)
INVENTORY_COLUMNS: Final = (
    "path",
    "type",
    "kind",
    "class",
    "size",
    "mtime_ns",
    "mode",
    "topic",
    "partition",
    "base_offset",
)


def finding_row(item: Finding) -> dict[str, Any]:
    """A finding as a flat row."""
    row = verdict.finding_json(item)
    lost = row.pop("lost") or {}
    return row | {
        f"lost_{name}": lost.get(name)
        for name in ("bytes", "records", "first_offset", "last_offset")
    }


def inventory_rows(evidence: LogDirectory) -> Iterator[dict[str, Any]]:
    """One row for each entry below the log directory, by path."""
    for entry in evidence.entries:
        known = entry.kind is not FileKind.UNKNOWN
        yield {
            "path": entry.path,
            "type": entry.type,
            "kind": entry.kind.value,
            "class": file_class(entry.kind).value,
            "size": entry.size,
            "mtime_ns": entry.mtime_ns,
            "mode": f"{entry.mode:04o}",
            "topic": entry.topic if known else None,
            "partition": entry.partition,
            "base_offset": entry.base,
        }


format_options = (
    click.option("--json", "as_json", is_flag=True, help="A JSON array of objects."),
    click.option("--csv", "as_csv", is_flag=True, help="CSV with a header."),
)


def listing(command: Callable[..., Any]) -> Callable[..., Any]:
    """``--json`` and ``--csv`` on every listing."""
    for option in reversed(format_options):
        command = option(command)
    return command


@cli.command("findings")
@click.argument("log_dir")
@listing
@config_option
@as_of_option
def findings_command(
    log_dir: str, as_json: bool, as_csv: bool, config: StartupConfig, as_of: int
) -> None:
    """List every finding with its address.

    In the order in which a broker would meet them. LOG_DIR may be an index too.
    """
    if os.path.isfile(log_dir):
        refuse_other_judgement()
        rows = list(read_index(log_dir, "finding_rows"))
    else:
        with opened(log_dir) as evidence:
            rows = [finding_row(item) for item in plan(evidence, config, as_of).findings]
    _write_rows(FINDING_COLUMNS, rows, as_json, as_csv, _finding_lines)


@cli.command("inventory")
@click.argument("log_dir")
@listing
def inventory_command(log_dir: str, as_json: bool, as_csv: bool) -> None:
    """List everything below LOG_DIR and what it is.

    LOG_DIR may be an index too. (The document of the reference inspector is
    printed by `cursus-storage manifest inspect`.)
    """
    if os.path.isfile(log_dir):
        rows = list(read_index(log_dir, "inventory_rows"))
    else:
        with opened(log_dir) as evidence:
            rows = list(inventory_rows(evidence))
    _write_rows(INVENTORY_COLUMNS, rows, as_json, as_csv, _inventory_lines)


def _write_rows(
    columns: Sequence[str],
    rows: Sequence[Mapping[str, Any]],
    as_json: bool,
    as_csv: bool,
    lines: Callable[[Mapping[str, Any]], Iterable[str]],
) -> None:
    if as_json and as_csv:
        raise click.UsageError("--json and --csv exclude each other")
    if as_json:
        write_json([{name: row.get(name) for name in columns} for row in rows])
    elif as_csv:
        write_csv(columns, rows)
    else:
        for row in rows:
            for line in lines(row):
                click.echo(line)
        click.echo(f"{len(rows):,} in all", err=True)


def _finding_lines(row: Mapping[str, Any]) -> Iterator[str]:
    step = f"step {row['step']}" if row["step"] else "-"
    yield f"{row['severity']:<8}{step:<8}{row['effect']:<13}{row['code']}"
    where = safe_text(str(row["path"])) or "the log directory"
    if row["position"] is not None:
        where += f" at byte {row['position']}"
    yield from verdict.wrap(where, " " * 8, " " * 10)
    yield from verdict.wrap(safe_text(str(row["message"]), verdict.MESSAGE), " " * 8, " " * 10)


def _inventory_lines(row: Mapping[str, Any]) -> Iterator[str]:
    head = f"{row['type']:<10}{row['kind']:<20}{row['size']:>14,}  "
    yield from verdict.wrap(safe_text(str(row["path"])), head, " " * len(head))


# -- dump and index check --------------------------------------------------------------------


@cli.command("dump")
@click.argument("file")
@click.option(
    "--from",
    "start",
    type=click.IntRange(min=0),
    default=0,
    metavar="POS",
    help="Leave out what begins before this byte.",
)
@click.option(
    "--as",
    "kind",
    type=click.Choice([kind.value for kind in dumping.KINDS]),
    metavar="KIND",
    help="Kind of the file, where its name does not say it: "
    f"{', '.join(kind.value for kind in dumping.KINDS)}.",
)
@click.option("--jsonl", is_flag=True, help="One JSON object a line.")
@click.option(
    "--strict", is_flag=True, help="Leave out what stands behind damage; exit 1 on a problem."
)
def dump_command(file: str, start: int, kind: str | None, jsonl: bool, strict: bool) -> int:
    """Decode one file, record by record.

    A segment, index, journal, checkpoint, manifest or aggregate file. A line
    shows byte position, length and fields; `!` marks what no broker reaches.
    """

    def emit(item: dumping.Row | Finding) -> None:
        if isinstance(item, Finding):
            if jsonl:
                click.echo(json.dumps(dumping.finding_line(item)))
            else:
                text = f"{item.severity}: {item.code}: {verdict.place(item)}: "
                click.echo(text + safe_text(item.message, verdict.MESSAGE), err=True)
        else:
            click.echo(json.dumps(item.json()) if jsonl else item.line())

    chosen = FileKind(kind) if kind else None
    try:
        problems = dumping.dump(Path(file), emit, kind=chosen, start=start, strict=strict)
    except dumping.DumpError as error:
        raise Failure(str(error)) from None
    return 1 if strict and problems else 0


@cli.group("index")
def index_group() -> None:
    """Sparse offset indexes."""


@index_group.command("check")
@click.argument("log_dir")
@click.option("--json", "as_json", is_flag=True, help="A JSON array, one object an index.")
def index_check_command(log_dir: str, as_json: bool) -> None:
    """Check every index entry against its log.

    An index is advisory and cannot make data invalid: the exit code is 0.
    """
    with opened(log_dir) as evidence:
        found = plan(evidence, as_of=timestamps.from_unix_ns(time.time_ns()))
        reports = list(index_check.check_indexes(found, evidence))
    if as_json:
        write_json(
            [
                {
                    "path": report.path,
                    "entries": report.entries,
                    "valid": report.valid,
                    "findings": [verdict.finding_json(item) for item in report.findings],
                }
                for report in reports
            ]
        )
        return
    for report in reports:
        if report.findings:
            click.echo(f"{report.valid:,} of {report.entries:,} entries valid")
            for line in verdict.wrap(safe_text(report.path), "  "):
                click.echo(line)
            for item in report.findings:
                where = "" if item.position is None else f"byte {item.position}: "
                for line in verdict.wrap(f"{where}{item.code}: {safe_text(item.message)}", "    "):
                    click.echo(line)
    entries = sum(report.entries for report in reports)
    valid = sum(report.valid for report in reports)
    click.echo(f"{len(reports):,} indexes, {valid:,} of {entries:,} entries valid")


# -- fixtures ----------------------------------------------------------------------------------


@cli.group("fixture")
def fixture_group() -> None:
    """Captured directories as regression tests."""


@fixture_group.command("new")
@click.argument("log_dir")
@click.argument("name")
@click.option(
    "--into", default="fixtures", show_default=True, metavar="DIR", help="Where fixtures live."
)
@as_of_option
def fixture_new_command(log_dir: str, name: str, into: str, as_of: int) -> None:
    """Copy LOG_DIR into a new fixture NAME and draft its case.json.

    The draft says what the inspector says today. Confirm every line of it: a
    test that repeats a mistake proves nothing.
    """
    with opened(log_dir) as evidence:
        found = plan(evidence, as_of=as_of)
        try:
            folder = fixtures.draft(log_dir, name, Path(into), found, evidence)
        except (fixtures.FixtureError, OSError) as error:
            raise Failure(safe_text(str(error))) from None
    click.echo(safe_text(str(folder)))
    click.echo("drafted; now confirm every line of case.json", err=True)


# -- the program ---------------------------------------------------------------------------------


def run(arguments: Sequence[str]) -> int:
    """Run one command; returns the exit code. Errors become one line on stderr."""
    if sys.stdout is None:
        _say("stdout is closed")
        return 1
    try:
        with cli.make_context("inspect-db", list(arguments)) as context:
            code = cli.invoke(context)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except click.exceptions.Exit as done:
        return done.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        return 2
    except click.UsageError as error:
        _say(error.format_message())
        if error.ctx is not None:
            click.echo(f"try: {error.ctx.command_path} --help", err=True)
        return 2
    except click.ClickException as error:
        _say(error.format_message())
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        _say("interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        # Nobody reads any more; what is still buffered must not raise at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return CLOSED_PIPE
    except OSError as error:
        name = f"{safe_text(str(error.filename))}: " if error.filename else ""
        _say(f"{name}{error.strerror or error}")
        return 1
    except MemoryError:
        _say("out of memory")
        return 1


def _say(text: str) -> None:
    click.echo(f"error: {' '.join(text.split())}", err=True)


#: Commands that go on until somebody ends them, and let go of much meanwhile.
_STAY: Final = frozenset({"serve", "shell", "watch"})


def main() -> NoReturn:
    """Console script ``inspect-db``."""
    if not _STAY.intersection(sys.argv[1:2]):
        collect_rarely()
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    sys.exit(run(sys.argv[1:]))


_index_commands().register(cli)
