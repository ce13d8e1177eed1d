"""Requests for our pages, and the answers.

A page is a document, shown by a template; its twin is the same document as
JSON. The document is read and the page is made in one go on one connection, in
one of Datasette's threads: what stands on a page is of one index, also while
that is replaced.

Pages need no script, and a content security policy allows none. They are made
in an environment of their own, so that neither Datasette's templates nor those
of other plugins can undo that; its finalizer makes every text safe to show, so
that no template can forget to.
"""

from __future__ import annotations

import json
import logging
import sqlite3
import time
from collections.abc import Callable
from functools import cache
from typing import Any, Final

import msgspec
from datasette.utils import tilde_decode
from datasette.utils.asgi import Response
from jinja2 import Environment, PackageLoader, StrictUndefined

from cursus import __version__
from cursus.formats.display import safe_text
from inspect_db import stored, verdict
from inspect_db.datasette import databases, drawing
from inspect_db.datasette.addresses import Addresses, decode
from inspect_db.datasette.documents import Object, groups, overview, records, topics
from inspect_db.datasette.show import FILTERS, finalize
from inspect_db.reading import Door, Rows
from inspect_db.values import number

HEADERS: Final = {
    "content-security-policy": (
        "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; "
        "base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}
#: Digits of a number in an address; none in an index has more.
_DIGITS: Final = 20


_LOG: Final = logging.getLogger(__name__)


class _Absent(Exception):
    """There is no such page; the message says why."""

    def __init__(self, message: str, status: int = 404) -> None:
        super().__init__(message)
        self.status = status


@cache
def environment() -> Environment:
    """Our templates. Every text that they show goes through :func:`show.finalize`."""
    found = Environment(
        loader=PackageLoader("inspect_db.datasette", "templates/cursus"),
        autoescape=True,
        finalize=finalize,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters.update(FILTERS)
    return found


class Page:
    """One request for a page of one index, on a connection to it."""

    def __init__(self, datasette: Any, database: Any, request: Any, rows: Rows) -> None:
        self.addresses = Addresses(datasette.urls, database.name, database.route)
        self.datasette = datasette
        self.database = database
        self.rows = rows
        self.given: dict[str, str] = request.url_vars
        self.request_path = "/-/cursus" + str(request.path).partition("/-/cursus")[2]
        self.json = bool(self.given.get("json"))

    def name(self, kind: str, part: str) -> Any:
        """The stored name behind a part of the address."""
        found = decode(self.rows, kind, self.given[part])
        if found is None:
            raise _Absent(f"no {kind} of this name is in the index")
        return found

    def number(self, part: str) -> int:
        """A number of the address."""
        text = self.given[part]
        if len(text) > _DIGITS or int(text) >= 1 << 64:
            raise _Absent("no number in the index is that large")
        return int(text)

    def answer(self, template: str, document: Object | None, **more: Any) -> Any:
        """The document as a page or as JSON."""
        if document is None:
            raise _Absent("nothing in the index has this address")
        if self.json:
            return json_answer(document)
        return html_answer(
            self.datasette, template, at=self.addresses, doc=document, twin=self._twin(), **more
        )

    def _twin(self) -> str:
        """Address of this page as JSON."""
        path = str(self.datasette.urls.path(self.request_path))
        home = self.addresses.home
        return f"{home}/overview.json" if path.rstrip("/") == home else f"{path}.json"


def html_answer(datasette: Any, template: str, status: int = 200, **values: Any) -> Any:
    """A page."""
    urls = datasette.urls
    text = (
        environment()
        .get_template(template)
        .render(
            style=str(urls.static_plugins(databases.PLUGIN, "cursus.css")),
            instance=str(urls.instance()),
            list=str(urls.path("/-/cursus")),
            version=__version__,
            **values,
        )
    )
    return Response.html(text, status=status, headers=dict(HEADERS))


def json_answer(document: Any, status: int = 200) -> Any:
    """A document; names that are not UTF-8 keep their bytes as lone surrogates."""
    return _json(f"{_indented(document)}\n", status)


def _indented(document: Any) -> str:
    """``json.dumps(document, indent=2)``, several times as fast where names are UTF-8."""
    text = json.dumps(document)
    try:
        return msgspec.json.format(text, indent=2)
    except msgspec.DecodeError:  # a lone surrogate, which is a byte that is not UTF-8
        return json.dumps(document, indent=2)


def _json(text: str, status: int = 200) -> Any:
    return Response(
        text, status=status, headers=dict(HEADERS), content_type="application/json; charset=utf-8"
    )


# -- from a request to a connection ----------------------------------------------------------

View = Callable[[Page], Any]


def _on_index(view: View) -> Callable[..., Any]:
    """A view of one index: found, permitted, on a connection, with a limit of time."""

    async def handle(datasette: Any, request: Any) -> Any:
        try:
            database = _database(datasette, tilde_decode(request.url_vars["database"]))
            await datasette.ensure_permissions(
                request.actor, [("view-database", database.name), "view-instance"]
            )
            limit = datasette.setting("sql_time_limit_ms") / 1000
            return await database.execute_fn(
                lambda connection: _timed(
                    connection, limit, lambda: view(Page(datasette, database, request, connection))
                )
            )
        except _Absent as absent:
            return _refuse(datasette, request, str(absent), absent.status)
        except sqlite3.Error as error:
            late = str(error) == "interrupted"
            message = "this took too long and was ended" if late else f"SQLite says: {error}"
            return _refuse(datasette, request, message, 503)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            # A build writes no such values; whoever made the index may have meant harm.
            _LOG.error("%s: %r", safe_text(request.path, 200), error)
            message = "the index holds values that no build writes; build it again"
            return _refuse(datasette, request, message, 500)

    return handle


def _timed(connection: sqlite3.Connection, limit: float, view: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + limit
    connection.set_progress_handler(lambda: time.monotonic() > deadline, 1000)
    try:
        return view()
    finally:
        connection.set_progress_handler(None, 1000)


def _database(datasette: Any, route: str) -> Any:
    try:
        database = datasette.get_database(route=route)
    except KeyError:
        raise _Absent("there is no database of this name") from None
    version = databases.index_version(database.path)
    if version is None:
        raise _Absent("this database is not an index made by `inspect-db build`")
    if not databases.is_index(datasette, database.name):
        raise _Absent(
            f"this index has schema version {version}, which this release does not read; "
            "build it again: inspect-db build LOG_DIR -o INDEX.db"
        )
    return database


def _refuse(datasette: Any, request: Any, message: str, status: int) -> Any:
    if request.path.endswith(".json"):
        return json_answer({"ok": False, "error": message}, status)
    return html_answer(datasette, "absent.html", status, message=message, status_code=status)


# -- pages -------------------------------------------------------------------------------------


async def _list(datasette: Any, request: Any) -> Any:
    await datasette.ensure_permissions(request.actor, ["view-instance"])
    found = []
    for name, database in databases.indexes(datasette):
        visible, _ = await datasette.check_visibility(
            request.actor, permissions=[("view-database", name), "view-instance"]
        )
        if visible:
            at = Addresses(datasette.urls, name, database.route)
            found.append({"name": name, "href": at.home})
    return html_answer(datasette, "list.html", indexes=found)


def _overview(page: Page) -> Any:
    found = overview.overview(page.rows)
    evidence = databases.evidence_of(page.datasette, page.database.name)
    return page.answer("overview.html", found, evidence=evidence)


def _verdict(page: Page) -> Any:
    plan = stored.stored_plan(page.rows)
    return json_answer(verdict.verdict_json(plan))


def _inventory(page: Page) -> Any:
    text = stored.reference_inventory(page.rows)
    if text is None:
        error = page.rows.execute("select inventory_error from build").fetchone()[0]
        shown = safe_text(str(error)) if error is not None else "the manifest was refused"
        raise _Absent(f"there is no inventory: {shown}")
    return _json(text.decode("utf-8"))


def _group(page: Page) -> Any:
    return page.answer("group.html", groups.group(page.rows, page.name("group", "group")))


def _topic(page: Page) -> Any:
    return page.answer("topic.html", topics.topic(page.rows, page.name("topic", "topic")))


def _partition(page: Page) -> Any:
    address = page.name("topic", "topic"), number(page.number("partition"))
    found = topics.partition(page.rows, *address)
    image = None
    if found is not None and not page.json:
        image = drawing.partition(found, topics.shape(page.rows, *address))
    return page.answer("partition.html", found, image=image)


def _record(page: Page) -> Any:
    evidence = databases.evidence_of(page.datasette, page.database.name)
    door = Door(evidence) if evidence else None
    try:
        found = records.record(page.rows, door, page.number("file"), page.number("position"))
    except OverflowError:
        found = None
    finally:
        if door is not None:
            door.close()
    return page.answer("record.html", found)


async def _unknown(datasette: Any, request: Any) -> Any:
    return _refuse(datasette, request, "there is no page of this address", 404)


def _place(page: Page) -> Any:
    path = page.name("path", "path")
    row = page.rows.execute("select file_id from files where path = ?", (path,)).fetchone()
    if row is None:
        raise _Absent("no file of this path is in the index")
    position = page.given.get("position")
    if position is None:
        return Response.redirect(page.addresses.file(row[0]))
    return Response.redirect(page.addresses.record(row[0], page.number("position")))


_BASE: Final = r"^/-/cursus/(?P<database>[^/]+)"
ROUTES: Final[list[tuple[str, Callable[..., Any]]]] = [
    (r"^/-/cursus/?$", _list),
    (rf"{_BASE}/?$", _on_index(_overview)),
    (rf"{_BASE}/verdict\.json$", _on_index(_verdict)),
    (rf"{_BASE}/overview(?P<json>\.json)$", _on_index(_overview)),
    (rf"{_BASE}/inventory\.json$", _on_index(_inventory)),
    (rf"{_BASE}/group/(?P<group>[^/.]+)(?P<json>\.json)?$", _on_index(_group)),
    (rf"{_BASE}/topic/(?P<topic>[^/.]+)(?P<json>\.json)?$", _on_index(_topic)),
    (
        rf"{_BASE}/topic/(?P<topic>[^/.]+)/(?P<partition>[0-9]+)(?P<json>\.json)?$",
        _on_index(_partition),
    ),
    (
        rf"{_BASE}/record/(?P<file>[0-9]+)/(?P<position>[0-9]+)(?P<json>\.json)?$",
        _on_index(_record),
    ),
    (rf"{_BASE}/at/(?P<path>[^/.]+)$", _on_index(_place)),
    (rf"{_BASE}/at/(?P<path>[^/.]+)/(?P<position>[0-9]+)$", _on_index(_place)),
    (r"^/-/cursus/", _unknown),
]
