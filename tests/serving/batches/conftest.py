"""Each test of files and batches runs with both kinds of database."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.serving.batches import client
from tests.serving.langgraph.postgres import cluster, new_database

sqlite_only = pytest.mark.parametrize("database", ["sqlite"], indirect=True)


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """An empty database in PostgreSQL."""
    with cluster() as url:
        yield url


@pytest.fixture(params=["sqlite", "postgres"], autouse=True)
def database(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The kind of the database of `serve_batches`, whose servers keep it from one to the next."""
    kind: str = request.param
    if kind == "postgres":
        url: str = request.getfixturevalue("postgres_url")

        @functools.cache
        def database_of(folder: Path) -> str:
            return new_database(url)

        monkeypatch.setattr(client, "database_of", database_of)
    return kind
