"""What is changed about requests before Datasette sees them, and about its errors.

Datasette counts a table that it shows and samples every column for facets. For
a view over all records that means reading every record several times, so these
requests are answered as if they asked for neither (``_nocount``, ``_nofacet``,
``_nosuggest``). There is no setting for one table.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import parse_qsl

from datasette.utils import await_me_maybe, tilde_decode

from inspect_db.datasette import databases, metadata


async def while_handling(exception: BaseException, answer: Any) -> Any:
    """Wait for an answer to an exception while that is the current one."""
    try:
        raise exception
    except BaseException:
        return await await_me_maybe(answer)


App = Callable[[Any, Any, Any], Awaitable[None]]
_SPARED = ("_nocount", "_nofacet", "_nosuggest")


def spare_the_records(datasette: Any) -> Callable[[App], App]:
    """The wrapper around the application of Datasette."""

    def wrap(app: App) -> App:
        async def spared(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "http" and _over_records(datasette, scope):
                query = scope.get("query_string", b"").decode("latin-1")
                given = {key for key, _ in parse_qsl(query, keep_blank_values=True)}
                more = [f"{key}=1" for key in _SPARED if key not in given]
                scope = {**scope, "query_string": "&".join(filter(None, [query, *more])).encode()}
            await app(scope, receive, send)

        return spared

    return wrap


def _over_records(datasette: Any, scope: Any) -> bool:
    path = scope.get("raw_path") or scope["path"].encode()
    text = path.decode("latin-1").partition("?")[0]
    base = datasette.setting("base_url")
    text = text[len(base) :] if text.startswith(base) else text.lstrip("/")
    route, slash, table = text.partition("/")
    if not slash or table.removesuffix(".json").removesuffix(".csv") not in metadata.OVER_RECORDS:
        return False
    try:
        database = datasette.get_database(route=tilde_decode(route))
    except KeyError:
        return False
    return databases.is_index(datasette, database.name)
