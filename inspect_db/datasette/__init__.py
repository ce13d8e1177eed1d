"""The Datasette plugin: an index of a log directory, for people who click.

It works in every Datasette in which this package is installed (entry point
``datasette`` of the package) and touches databases that are indexes only: a
database that is none of ours keeps its pages, its metadata and its queries.

=================  ============================================================
:mod:`databases`   which databases are indexes; opened read-only, reopened when
                   the file is replaced
:mod:`metadata`    what Datasette says of tables and columns; the named queries
:mod:`cells`       values in tables: links, units, names made safe to show
:mod:`addresses`   addresses of our pages, for names of any bytes
:mod:`documents`   what the pages say, as values: the ``.json`` twins
:mod:`drawing`     a partition along its offsets, as SVG
:mod:`pages`       requests and answers
=================  ============================================================

Configuration, in the metadata of Datasette, for all indexes or for one
database: the directory below which records may be read::

    {"plugins": {"cursus-storage": {"evidence": "/srv/evidence"}}}
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import Any

from datasette import hookimpl

from inspect_db.datasette import cells, databases, metadata, pages, requests
from inspect_db.datasette.addresses import Addresses


@hookimpl
def startup(datasette: Any) -> None:
    """Indexes are opened our way: read-only, and again when they are replaced."""
    databases.adopt(datasette)


@hookimpl
def prepare_connection(conn: Any, database: str, datasette: Any) -> None:
    """Functions and limits on connections to indexes."""
    databases.prepare(conn, datasette, database)


@hookimpl
def get_metadata(
    datasette: Any, key: str | None, database: str | None, table: str | None
) -> dict[str, Any]:
    """Descriptions of tables and columns of indexes."""
    found = {}
    for name, item in databases.indexes(datasette):
        if database in {None, name}:
            entry = metadata.of_database(addresses_in(datasette, item).home, key, table)
            if entry:
                found[name] = entry
    return {"databases": found} if found else {}


@hookimpl
def canned_queries(datasette: Any, database: str) -> dict[str, Any]:
    """The named queries, for indexes."""
    if not databases.is_index(datasette, database):
        return {}
    return {name: dict(query) for name, query in metadata.queries().items()}


@hookimpl
def render_cell(
    row: Any, value: Any, column: str, table: str | None, database: str, datasette: Any
) -> Any:
    """Links, units and safe names in the tables of indexes."""
    if not databases.is_index(datasette, database):
        return None
    limit = datasette.setting("truncate_cells_html") or None
    own = addresses_in(datasette, datasette.databases[database])
    return cells.render(row, value, column, own, limit)


@hookimpl
def extra_css_urls(database: str | None, datasette: Any) -> list[str]:
    """Style for Datasette's own pages of an index."""
    if database is None or not databases.is_index(datasette, database):
        return []
    return [str(datasette.urls.static_plugins(databases.PLUGIN, "tables.css"))]


@hookimpl
def register_routes() -> list[tuple[str, Callable[..., Any]]]:
    """Our pages."""
    return pages.ROUTES


@hookimpl
def asgi_wrapper(datasette: Any) -> Callable[[Any], Any]:
    """Views over all records are neither counted nor sampled for facets."""
    return requests.spare_the_records(datasette)


@hookimpl(hookwrapper=True)
def handle_exception(exception: BaseException) -> Generator[None, Any, None]:
    """An address that nobody knows stays a 404 where rich is installed, as it is with us.

    Datasette prints the current exception by rich, and has none for such an
    address; rich then fails, and so does the answer.
    """
    outcome = yield
    outcome.force_result(
        [requests.while_handling(exception, each) for each in outcome.get_result()]
    )


@hookimpl
def menu_links(datasette: Any) -> Iterable[dict[str, str]]:
    """The way to our pages from every page."""
    return [
        {"href": addresses_in(datasette, item).home, "label": f"{name}: would a broker start?"}
        for name, item in databases.indexes(datasette)
    ]


@hookimpl
def database_actions(datasette: Any, database: str) -> Iterable[dict[str, str]]:
    """The way to our pages from the page of the database."""
    if not databases.is_index(datasette, database):
        return []
    own = addresses_in(datasette, datasette.databases[database])
    return [{"href": own.home, "label": "Would a broker start?"}]


def addresses_in(datasette: Any, database: Any) -> Addresses:
    """Addresses within one index."""
    return Addresses(datasette.urls, database.name, database.route)
