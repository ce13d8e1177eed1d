"""Datasette instances over indexes of fixtures, and answers of their own client."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import index_help
from datasette.app import Datasette

from inspect_db.datasette.databases import PLUGIN

# As `inspect-db serve` does: no page of local variables for each refusal.
sys.modules["datasette.handle_exception"].rich = None  # type: ignore[attr-defined]


class Site:
    """A Datasette and its client, for tests that are not asynchronous themselves."""

    def __init__(
        self,
        indexes: Mapping[str, Path],
        evidence: Mapping[str, Path] | None = None,
        files: Iterable[Path] = (),
        **options: Any,
    ) -> None:
        self._loop = asyncio.new_event_loop()
        databases = {
            name: {"plugins": {PLUGIN: {"evidence": str(path)}}}
            for name, path in (evidence or {}).items()
        }
        self.datasette = Datasette(
            files=[str(path) for path in files],
            metadata={"databases": databases, **options.pop("metadata", {})},
            **options,
        )
        from datasette.database import Database

        for name, path in indexes.items():
            self.datasette.add_database(Database(self.datasette, path=str(path)), name=name)
        self._run(self.datasette.invoke_startup())

    def _run(self, task: Any) -> Any:
        return self._loop.run_until_complete(task)

    def get(self, path: str, **options: Any) -> httpx.Response:
        """What the instance answers."""
        return self._run(self.datasette.client.get(path, **options))

    def page(self, path: str) -> str:
        """The text of a page that is there."""
        response = self.get(path)
        assert response.status_code == 200, (path, response.status_code, response.text[-2000:])
        return response.text

    def json(self, path: str) -> Any:
        """The value of a document that is there."""
        return json.loads(self.page(path))

    def rows(self, database: str, sql: str) -> list[list[Any]]:
        """The answer to SQL that a client asks."""
        response = self.get(f"/{database}.json", params={"sql": sql})
        assert response.status_code == 200, response.text
        return json.loads(response.text)["rows"]

    def refusal(self, database: str, sql: str) -> str:
        """Why SQL that a client asks is refused."""
        response = self.get(f"/{database}.json", params={"sql": sql})
        assert response.status_code == 400, response.text
        return json.loads(response.text)["error"]


@cache
def site(*names: str) -> Site:
    """One instance over the indexes of fixtures, with the evidence of each."""
    return Site(
        {name: index_help.built(name) for name in names},
        {name: index_help.log_dir(name) for name in names},
        settings={"sql_time_limit_ms": 5000},
    )
