"""A client's slow read is cancelled in time, and other requests continue."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
import sqlalchemy as sa
from fastapi import HTTPException
from sqlalchemy import exc

from agentrt.serving.langgraph import outages
from agentrt.serving.langgraph.database import connections as databases
from agentrt.serving.langgraph.database.connections import Address, Database, open_database
from agentrt.serving.langgraph.database.tables import has, threads
from agentrt.serving.langgraph.database.threads import add_thread
from agentrt.serving.langgraph.outages import READER, refusal
from tests.serving.langgraph.serve import Serving

ENDLESS = sa.text(
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
)
NESTED: list[Any] = [[[[[n]]]] for n in range(5000)]
WANTED = {"a": [[[[[-1 - n]]]] for n in range(19)]}


@contextmanager
def reader(tenant: str) -> Iterator[None]:
    token = READER.set(tenant)
    try:
        yield
    finally:
        READER.reset(token)


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[Database]:
    async with open_database(Address.parse(f"sqlite:{folder / 'a.db'}")) as database:
        yield database


def allow(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads are broken off after so long from here on."""
    monkeypatch.setattr(databases, "READ_S", seconds)
    monkeypatch.setattr(outages, "READ_S", seconds)


SHORT_S = 0.02
"""The lists above take a hundred times as long to compare."""
AMPLE_S = 60.0
"""For what is to succeed, on a busy machine as well."""


@pytest.fixture
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    allow(SHORT_S, monkeypatch)


def refused() -> Any:
    return pytest.raises(HTTPException, match="try again later")


@pytest.mark.usefixtures("_short")
async def test_a_statement_without_end_is_broken_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path) as database:
        with reader("ann"), refused() as error:
            async with database.reading() as connection:
                await connection.execute(ENDLESS)
        assert error.value.status_code == 503
        assert error.value.headers is not None
        assert error.value.headers["Retry-After"]
        allow(AMPLE_S, monkeypatch)
        with reader("ann"):  # the connection can be used again
            assert await database.count(threads, []) == 0


@pytest.mark.usefixtures("_short")
async def test_a_comparison_of_long_lists_is_broken_off(tmp_path: Path) -> None:
    """List containment takes time by the product of both lengths; the server's own has time."""
    async with opened(tmp_path) as database:
        async with database.writing() as connection:
            for _ in range(10):
                await add_thread(connection, "ann", uuid4(), {"a": NESTED})
        where = [has(threads.c.metadata, {"a": [*NESTED[-5:], *WANTED["a"]]})]
        with reader("ann"), refused():
            await database.count(threads, where)
        assert await database.count(threads, [has(threads.c.metadata, {"a": NESTED[:1]})]) == 10


@pytest.mark.usefixtures("_short")
async def test_no_connection_is_503_and_not_500(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path) as database, database.reading(), database.reading():
        async with database.reading(), database.reading():
            with reader("ann"), pytest.raises(exc.TimeoutError) as error:
                await database.count(threads, [])
            answer = refusal(error.value)
            assert answer is not None
            assert answer.status_code == 503
        allow(AMPLE_S, monkeypatch)
        with reader("ann"):
            assert await database.count(threads, []) == 0


async def test_a_hostile_search_is_503_and_others_go_on(
    it: Serving, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = {"x-agentrt-tenant": "greedy"}
    for _ in range(8):
        made = await http.post("/threads", json={"metadata": {"a": NESTED}}, headers=said)
        assert made.status_code == 200
    allow(SHORT_S, monkeypatch)
    search = {"metadata": WANTED}
    asked = [http.post("/threads/search", json=search, headers=said) for _ in range(4)]
    for answer in await asyncio.gather(*asked):
        assert (answer.status_code, "retry-after" in answer.headers) == (503, True), answer.text
        assert "try again later" in answer.json()["detail"]
    allow(AMPLE_S, monkeypatch)
    assert (await http.post("/threads/search", json=search)).status_code == 200
