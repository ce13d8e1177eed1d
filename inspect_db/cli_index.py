"""The commands of the index: build, query, queries, digest, shell.

Registered into ``inspect-db`` by :func:`register`; the functions with the names
of documents are what ``verdict``, ``findings`` and ``inventory`` read when they
are given an index in place of a directory.
"""

from __future__ import annotations

import csv
import io
import json
import shutil
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import IO, Any, Final, Literal, cast

import apsw
import click

from cursus.evidence.walk import LogDirectory, LogDirectoryError
from cursus.formats.display import safe_bytes, safe_text
from cursus.replay.startup import StartupConfig
from inspect_db import digest as digests
from inspect_db import functions, queries_catalogue, stored, verdict
from inspect_db.index import IndexFileError, open_index, schema_objects
from inspect_db.load import BuildError, BuildOptions, build
from inspect_db.reading import Door
from inspect_db.values import SqlValue

#: Characters of one value that a table shows.
CELL: Final = 100
_SQL_WORDS: Final = (
    *("select", "from", "where", "group", "by", "order", "limit", "and", "or", "not"),
    *("null", "join", "left", "on", "as"),
)
Format = Literal["table", "json", "csv", "jsonl"]


class Failure(click.ClickException):
    """Something cannot be done; one line on stderr, exit code 1."""

    exit_code = 1


# -- documents of an index ---------------------------------------------------------------


@contextmanager
def _opened(path: str) -> Iterator[apsw.Connection]:
    try:
        connection = open_index(path)
    except IndexFileError as error:
        raise Failure(str(error)) from None
    try:
        yield connection
    except apsw.Error as error:
        raise Failure(f"{safe_text(path)}: {safe_text(str(error))}") from None
    finally:
        connection.close()


def verdict_document(path: str) -> dict[str, Any]:
    """``verdict --json`` of an index."""
    with _opened(path) as connection:
        return verdict.verdict_json(stored.stored_plan(connection))


def verdict_page(path: str, *, everything: bool = False) -> list[str]:
    """Lines of the page of an index."""
    with _opened(path) as connection:
        return list(verdict.page(stored.stored_plan(connection), everything=everything))


def finding_rows(path: str) -> list[dict[str, Any]]:
    """Findings of an index as flat rows."""
    with _opened(path) as connection:
        return [_flat(verdict.finding_json(item)) for item in stored.findings(connection)]


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    lost = row.pop("lost") or {}
    names = ("bytes", "records", "first_offset", "last_offset")
    return row | {f"lost_{name}": lost.get(name) for name in names}


def inventory_rows(path: str) -> list[dict[str, Any]]:
    """Entries of an index, as ``inventory`` lists them."""
    with _opened(path) as connection:
        return list(stored.inventory_rows(connection))


# -- build -------------------------------------------------------------------------------


@contextmanager
def terminated_as_interrupted() -> Iterator[None]:
    """A termination is an interruption: the unfinished file goes away."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None] | None]:
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

    columns = (TextColumn("reading"), BarColumn(), DownloadColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("reading", total=None)

        def report(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        yield report


@click.command("build")
@click.argument("log_dir")
@click.option("-o", "--output", required=True, metavar="INDEX.db", help="Where the index goes.")
@click.option(
    "--records",
    type=click.Choice(["all", "internal", "none"]),
    default="all",
    show_default=True,
    help="Which records get a row of their own.",
)
@click.option(
    "--payload-bytes",
    type=click.IntRange(0, 1 << 20),
    default=0,
    show_default=True,
    metavar="N",
    help="Copy this much of each payload.",
)
@click.option("--hash", "hashes", is_flag=True, help="SHA-256 of every file and block of 1 MiB.")
@click.option(
    "--jobs",
    type=click.IntRange(1, 64),
    metavar="N",
    help="Processes that read; the index says the same for every N. (default 2, where there "
    "are the cores and enough to read)",
)
@click.option(
    "--update",
    is_flag=True,
    help="Go on from INDEX.db: read only what has changed since.",
)
def build_command(
    log_dir: str,
    output: str,
    records: Literal["all", "internal", "none"],
    payload_bytes: int,
    hashes: bool,
    jobs: int | None,
    update: bool,
    config: StartupConfig,
    as_of: int,
) -> None:
    """Replay LOG_DIR into a SQLite database.

    Built beside INDEX.db and renamed into place: an older index stays as it was
    until the new one is whole. Nothing is written below LOG_DIR.
    """
    options = BuildOptions(as_of, records, payload_bytes, hashes, config, jobs, update)
    with terminated_as_interrupted(), _progress() as progress:
        try:
            result = build(log_dir, output, options, progress)
        except BuildError as error:
            raise Failure(str(error)) from None
    if result.full:
        click.echo(f"{safe_text(output)}: a full build, since {result.full}", err=True)
    click.echo(
        f"{safe_text(output)}: {result.verdict}, {result.records:,} records, "
        f"{result.bytes:,} bytes" + (f", {result.scanned:,} bytes of logs read" if update else ""),
        err=True,
    )
    if result.changed:
        shown = ", ".join(safe_text(path) for path in result.changed[:3])
        click.echo(
            f"warning: {len(result.changed):,} files changed while they were read ({shown}…): "
            "the index mixes moments, see findings of file_changed_while_reading",
            err=True,
        )


# -- query -------------------------------------------------------------------------------


def _format_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for flag, text in (
        ("jsonl", "One JSON object a line."),
        ("csv", "CSV with a header."),
        ("json", "A JSON array of objects."),
    ):
        command = click.option(f"--{flag}", f"as_{flag}", is_flag=True, help=text)(command)
    return command


def _chosen(as_json: bool, as_csv: bool, as_jsonl: bool) -> Format:
    if as_json + as_csv + as_jsonl > 1:
        raise click.UsageError("--json, --csv and --jsonl exclude each other")
    return "json" if as_json else "csv" if as_csv else "jsonl" if as_jsonl else "table"


def _json_value(value: SqlValue) -> Any:
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else value


def _cell(value: SqlValue, limit: int | None = None) -> str:
    if value is None:
        return ""
    if isinstance(value, bytes):
        return safe_bytes(value if limit is None else value[: 4 * limit], limit)
    return safe_text(str(value), limit)


def write_rows(
    columns: Sequence[str],
    rows: Iterable[Sequence[SqlValue]],
    form: Format,
    out: IO[str],
    width: int | None = None,
) -> int:
    """Write a result; returns the number of rows.

    ``width``: columns of the terminal that a table goes to. A wider one is written
    row after row, each value in a line of its own.
    """
    count = 0
    if form in {"json", "jsonl"}:
        lead = "[\n  " if form == "json" else ""
        between = ",\n  " if form == "json" else "\n"
        for row in rows:
            values = {c: _json_value(v) for c, v in zip(columns, row, strict=True)}
            out.write((between if count else lead) + json.dumps(values))
            count += 1
        if form == "json":
            out.write("\n]\n" if count else "[]\n")
        elif count:
            out.write("\n")
        return count
    if form == "csv":
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(columns)
        for row in rows:
            writer.writerow([_cell(value) for value in row])
            count += 1
        return count
    table = [[_cell(value, CELL) for value in row] for row in rows]
    numeric = [all(_is_number(row[at]) for row in table) for at in range(len(columns))]
    widths = [
        max([verdict.display_width(name), *(verdict.display_width(row[at]) for row in table)])
        for at, name in enumerate(columns)
    ]
    if table and width is not None and sum(widths) + 2 * len(widths) - 2 > width:
        _write_blocks(columns, table, out)
        return len(table)
    for line in (list(columns), ["-" * width for width in widths], *table):
        cells = (_padded(*item) for item in zip(line, widths, numeric, strict=True))
        out.write("  ".join(cells).rstrip() + "\n")
    return len(table)


def _terminal_width() -> int | None:
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def _write_blocks(columns: Sequence[str], table: Sequence[Sequence[str]], out: IO[str]) -> None:
    """A row after the other, for a terminal that is too narrow for the table."""
    names = max(map(verdict.display_width, columns))
    for number, row in enumerate(table, 1):
        out.write(f"{'' if number == 1 else chr(10)}-- {number} --\n")
        for name, value in zip(columns, row, strict=True):
            out.write(f"{_padded(name, names, False)}  {value}".rstrip() + "\n")


def _is_number(text: str) -> bool:
    return not text or text.lstrip("-").isdigit()


def _padded(text: str, width: int, right: bool) -> str:
    space = " " * (width - verdict.display_width(text))
    return space + text if right else text + space


@contextmanager
def _records_of(connection: apsw.Connection, log_dir: str | None) -> Iterator[None]:
    """The functions that read records, beneath ``log_dir``."""

    def create(name: str, function: Callable[..., Any], arguments: int) -> None:
        connection.create_scalar_function(name, function, arguments)

    if log_dir is None:
        functions.register(connection, None, create)
        yield
        return
    try:
        LogDirectory.at(log_dir, walk=False).close()
    except LogDirectoryError as error:
        raise Failure(safe_text(str(error))) from None
    with closing(Door(log_dir)) as door:
        functions.register(connection, door, create)
        yield


evidence_option = click.option(
    "--evidence",
    metavar="LOG_DIR",
    help="Where payload(), record_json() and record_hex() read from.",
)


def _parameters(given: Sequence[str]) -> dict[str, str]:
    found = {}
    for item in given:
        key, equals, value = item.partition("=")
        if not equals:
            raise click.UsageError(f"a parameter is written name=value, not {safe_text(item)!r}")
        found[key] = value
    return found


@click.command("query")
@click.argument("index")
@click.argument("name", required=False)
@click.option("--sql", metavar="SQL", help="Run this statement in place of a named query.")
@click.option(
    "-p",
    "--parameter",
    "given",
    multiple=True,
    metavar="NAME=VALUE",
    help="A parameter of the question or statement; may be repeated.",
)
@evidence_option
@_format_options
def query_command(
    index: str,
    name: str | None,
    sql: str | None,
    given: tuple[str, ...],
    evidence: str | None,
    as_json: bool,
    as_csv: bool,
    as_jsonl: bool,
) -> None:
    """Ask an index a named question, or any SQL.

    `inspect-db queries` lists the questions. The index is read-only. A table that
    is wider than the terminal is written row after row, a value a line.
    """
    form = _chosen(as_json, as_csv, as_jsonl)
    if (name is None) == (sql is None):
        raise click.UsageError("give the name of a query, or --sql")
    values = _parameters(given)
    with _opened(index) as connection, _records_of(connection, evidence):
        _forbid_other_files(connection)
        try:
            if name is not None:
                query = queries_catalogue.get(name)
                if query.scans and form == "table":
                    click.echo("this question reads all records", err=True)
                columns, rows = queries_catalogue.run(connection, query, values)
            else:
                columns, rows = queries_catalogue.execute(
                    connection, sql or "", cast("dict[str, SqlValue]", values)
                )
            count = write_rows(columns, rows, form, sys.stdout, _terminal_width())
        except queries_catalogue.QueryError as error:
            raise Failure(safe_text(str(error))) from None
    if form == "table":
        sys.stdout.flush()  # the count comes behind the table, also in a pipe
        click.echo(f"{count:,} {'row' if count == 1 else 'rows'}", err=True)


def _forbid_other_files(connection: apsw.Connection) -> None:
    """A query reads this index and nothing else."""

    def allow(operation: int, *_: object) -> int:
        denied = {apsw.SQLITE_ATTACH, apsw.SQLITE_DETACH}
        return apsw.SQLITE_DENY if operation in denied else apsw.SQLITE_OK

    connection.authorizer = allow


@click.command("queries")
@click.option("--json", "as_json", is_flag=True, help="A JSON array of objects.")
def queries_command(as_json: bool) -> None:
    """List the questions that an index can answer."""
    found = queries_catalogue.named_queries().values()
    if as_json:
        listing = [
            {
                "name": query.name,
                "title": query.title,
                "question": query.question,
                "how_to_read": query.how_to_read,
                "scans": query.scans,
                "parameters": [
                    {"name": p.name, "help": p.help, "required": p.required, "default": p.default}
                    for p in query.parameters
                ],
                "sql": query.sql,
            }
            for query in found
        ]
        click.echo(json.dumps(listing, indent=2))
        return
    for query in found:
        click.echo(query.name + ("  (reads all records)" if query.scans else ""))
        for line in verdict.wrap(query.question, "    "):
            click.echo(line)
        for item in query.parameters:
            needed = " (required)" if item.required else ""
            for line in verdict.wrap(f"-p {item.name}=…  {item.help}{needed}", "    ", "      "):
                click.echo(line)


@click.command("digest")
@click.argument("index")
@click.option("--tables", is_flag=True, help="One line a table: rows and digest.")
def digest_command(index: str, tables: bool) -> None:
    """Digest of what an index says about the evidence.

    Two indexes of the same evidence, built with the same options, have the same
    digest, wherever and whenever they were built.
    """
    with _opened(index) as connection:
        if tables:
            for table, rows, value in digests.table_digests(connection):
                click.echo(f"{value}  {rows:>10,}  {table}")
        else:
            click.echo(digests.digest(connection))


# -- shell -------------------------------------------------------------------------------


@click.command("shell")
@click.argument("index")
@evidence_option
def shell_command(index: str, evidence: str | None) -> None:
    """A read-only SQL shell with completion.

    Statements end with a semicolon; `.queries`, `.tables` and `.quit` are
    commands, and `.query NAME name=value …` asks a named question.
    """
    with _opened(index) as connection, _records_of(connection, evidence):
        _forbid_other_files(connection)
        read = _prompt() if sys.stdin.isatty() else _lines
        statement = ""
        for line in read():
            if not statement and line.strip().startswith("."):
                if line.strip() in {".quit", ".exit"}:
                    return
                _command(connection, line.split())
                continue
            statement += line + "\n"
            if apsw.complete(statement):
                _answer(connection, statement)
                statement = ""
        if statement.strip():
            _answer(connection, statement)


def _lines() -> Iterator[str]:
    for line in sys.stdin:
        yield line.rstrip("\n")


def completion_words() -> list[str]:
    """What the shell completes: tables, views, columns, functions, words of SQL."""
    words = {*_SQL_WORDS}
    words |= {f"{name}(" for name in functions.FUNCTIONS} | {".queries", ".tables", ".query"}
    for item in schema_objects().values():
        words.add(item.name)
        words.update(item.columns)
    return sorted(words | set(queries_catalogue.named_queries()))


def _prompt() -> Callable[[], Iterator[str]]:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import WordCompleter

    session: PromptSession[str] = PromptSession(
        completer=WordCompleter(completion_words(), ignore_case=True)
    )

    def lines() -> Iterator[str]:
        while True:
            try:
                yield session.prompt("index> ")
            except KeyboardInterrupt:
                continue
            except EOFError:
                return

    return lines


def _command(connection: apsw.Connection, words: Sequence[str]) -> None:
    if words[0] == ".queries":
        for query in queries_catalogue.named_queries().values():
            click.echo(f"{query.name}: {query.question}")
    elif words[0] == ".tables":
        for item in schema_objects().values():
            click.echo(f"{item.name} ({item.type}): {item.comment}")
    elif words[0] == ".query" and len(words) > 1:
        try:
            query = queries_catalogue.get(words[1])
            _show(*queries_catalogue.run(connection, query, _parameters(words[2:])))
        except (queries_catalogue.QueryError, click.UsageError) as error:
            click.echo(f"error: {safe_text(str(error))}", err=True)
    else:
        click.echo("error: commands are .queries, .tables, .query NAME, .quit", err=True)


def _answer(connection: apsw.Connection, statement: str) -> None:
    try:
        _show(*queries_catalogue.execute(connection, statement))
    except queries_catalogue.QueryError as error:
        click.echo(f"error: {safe_text(str(error))}", err=True)


def _show(columns: Sequence[str], rows: Iterable[Sequence[SqlValue]]) -> None:
    out = io.StringIO()
    write_rows(columns, rows, "table", out, _terminal_width())
    click.echo(out.getvalue(), nl=False)


def register(group: click.Group) -> None:
    """Add the commands to ``inspect-db``."""
    from inspect_db import cli, cli_serve, cli_watch

    cli_serve.register(group)
    cli_watch.register(group)
    group.add_command(cli.config_option(cli.as_of_option(build_command)))
    for command in (query_command, queries_command, digest_command, shell_command):
        group.add_command(command)
