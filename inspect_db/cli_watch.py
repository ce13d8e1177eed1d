"""``inspect-db watch``: an index that follows its directory."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime

import click

from cursus.replay.startup import StartupConfig
from inspect_db.cli_index import Failure, terminated_as_interrupted
from inspect_db.load import BuildError, BuildOptions, RecordsMode
from inspect_db.watch import watch


@click.command("watch")
@click.argument("log_dir")
@click.option("-o", "--output", required=True, metavar="INDEX.db", help="The index to keep up.")
@click.option(
    "--interval",
    type=click.FloatRange(min=0.05),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="Time between two looks.",
)
@click.option(
    "--records",
    type=click.Choice(["all", "internal", "none"]),
    default="all",
    show_default=True,
    help="Which records get a row of their own.",
)
def watch_command(
    log_dir: str,
    output: str,
    interval: float,
    records: RecordsMode,
    config: StartupConfig,
) -> None:
    """Keep an index up with a running broker.

    Looks again and again until Ctrl-C (or SIGTERM) ends it, with exit code 0.
    One line, with the time, for each change: of the verdict, findings that come
    and go, records and files. Each change costs an update of the index (see
    `build --update`), which is replaced as a whole, so whoever reads it always
    sees one moment.
    """

    def say(line: str) -> None:
        moment = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        click.echo(f"{moment}  {line}")

    options = BuildOptions(0, records, config=config)
    try:
        with terminated_as_interrupted():
            watch(log_dir, output, options, say, lambda: time.sleep(interval))
    except KeyboardInterrupt:
        click.echo(f"{os.path.basename(output)} stays as it is", err=True)
    except BuildError as error:
        raise Failure(str(error)) from None


def register(group: click.Group) -> None:
    """Add the command to ``inspect-db``."""
    from inspect_db import cli

    group.add_command(cli.config_option(watch_command))
