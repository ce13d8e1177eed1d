"""``inspect-db serve``: an index in Datasette, for people who click.

Datasette and its plugin do the work; this makes the instance that is right for
one index: on this machine only, read-only, with the directory that records may
be read from.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import socket
from typing import Any

import click

from cursus.evidence.walk import LogDirectory, LogDirectoryError
from cursus.formats.display import safe_text
from inspect_db.cli_index import Failure
from inspect_db.index import IndexFileError, open_index

#: Longer than Datasette's second: some named queries read all records.
TIME_LIMIT_MS = 5000


def instance(index: str, evidence: str | None, base_url: str = "/") -> Any:
    """A Datasette that serves one index. Raises :class:`Failure`."""
    if importlib.util.find_spec("datasette") is None:
        raise Failure("Datasette is not installed; pip install 'cursus-storage[serve]'")
    # The application first: it registers the handler only when it imports it itself.
    application = importlib.import_module("datasette.app")
    handler = importlib.import_module("datasette.handle_exception")
    from inspect_db.datasette.databases import PLUGIN

    try:
        open_index(index).close()
        if evidence is not None:
            LogDirectory.at(evidence, walk=False).close()
    except IndexFileError as error:
        raise Failure(str(error)) from None
    except LogDirectoryError as error:
        raise Failure(safe_text(str(error))) from None
    # Datasette prints every error with all local variables where rich is installed:
    # pages of them for each unknown address, the signing secret among them.
    vars(handler)["rich"] = None
    plugins = {PLUGIN: {"evidence": os.path.abspath(evidence)}} if evidence else {}
    return application.Datasette(
        files=[os.path.abspath(index)],
        metadata={"title": "Cursus storage", "plugins": plugins},
        settings={
            "base_url": base_url,
            "sql_time_limit_ms": TIME_LIMIT_MS,
            "suggest_facets": False,
            "allow_download": False,
        },
    )


def _home(datasette: Any) -> str:
    """Path of the first page of the index."""
    from inspect_db.datasette import addresses_in, databases

    return next(addresses_in(datasette, item).home for _, item in databases.indexes(datasette))


def listen(host: str, port: int) -> socket.socket:
    """A socket that waits for connections. Raises :class:`Failure`."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        found = socket.socket(family, kind, protocol)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
        found.listen(128)
    except OSError as error:
        reason = error.strerror or str(error)
        raise Failure(f"cannot listen on {safe_text(host)} port {port}: {reason}") from None
    return found


@click.command("serve")
@click.argument("index")
@click.option(
    "--evidence",
    metavar="LOG_DIR",
    help="Records may be read from below this directory; without it none is read.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8001,
    show_default=True,
    help="Port to listen on; 0 takes a free one.",
)
@click.option(
    "--base-url",
    default="/",
    show_default=True,
    metavar="PATH",
    help="Path below which a proxy shows it.",
)
def serve_command(index: str, evidence: str | None, host: str, port: int, base_url: str) -> None:
    """Open an index in Datasette, read-only.

    Prints the address on stderr and serves until it is interrupted. There is no
    authentication: whoever reaches the port may read the index, and records of
    the evidence. Keep it on this machine, or behind a proxy that asks who it is.
    """
    if not (base_url.startswith("/") and base_url.endswith("/")):
        raise click.UsageError("--base-url begins and ends with /")
    datasette = instance(index, evidence, base_url)
    import uvicorn

    with listen(host, port) as waiting:
        shown = f"[{host}]" if ":" in host else host
        page = f"http://{shown}:{waiting.getsockname()[1]}{_home(datasette)}"
        click.echo(f"serving {safe_text(index)} at {page} (Ctrl-C ends it)", err=True)
        config = uvicorn.Config(
            datasette.app(), log_level="warning", lifespan="on", server_header=False
        )
        uvicorn.Server(config).run(sockets=[waiting])


def register(group: click.Group) -> None:
    """Add the command to ``inspect-db``."""
    group.add_command(serve_command)
