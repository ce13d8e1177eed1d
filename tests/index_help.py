"""Indexes of fixtures for the tests of the index, each built once a session."""

from __future__ import annotations

import atexit
import shutil
import sqlite3
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import apsw

from cursus.evidence.walk import LogDirectory
from cursus.replay.startup import Plan, plan
from inspect_db import fixtures, load

ROOT = Path(__file__).resolve().parent.parent / "fixtures"
FIXTURES = {fixture.name: fixture for fixture in fixtures.find(ROOT)}


def temporary_folder(prefix: str) -> Path:
    """A folder that lives as long as this process: cached fixtures stand in it."""
    folder = mkdtemp(prefix=prefix)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


@cache
def log_dir(name: str) -> Path:
    return fixtures.materialise(FIXTURES[name], temporary_folder("cursus-index-"))


@cache
def built(name: str) -> Path:
    directory = log_dir(name)
    target = directory.parent / "index.db"
    load.build(str(directory), str(target), load.BuildOptions(FIXTURES[name].as_of))
    return target


@cache
def judged(name: str) -> Plan:
    with LogDirectory.at(str(log_dir(name))) as evidence:
        return plan(evidence, as_of=FIXTURES[name].as_of)


def rows(path: Path, sql: str, *values: object) -> list[tuple[object, ...]]:
    """By Python's own sqlite3."""
    connection = sqlite3.connect(path)
    try:
        return connection.execute(sql, values).fetchall()
    finally:
        connection.close()


def places(connection: apsw.Connection, sql: str) -> set[tuple[object, ...]]:
    return {tuple(row) for row in connection.execute(sql)}
