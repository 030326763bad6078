"""A server for all tests that need none of their own, and clients of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio
from langgraph_sdk import get_client
from langgraph_sdk.client import LangGraphClient

from tests.serving.langgraph.graphs import all_graphs, approval, approvals, poem
from tests.serving.langgraph.postgres import cluster
from tests.serving.langgraph.serve import Serving, serving


@pytest.fixture(scope="session")
def url() -> Iterator[str]:
    """An empty database in PostgreSQL."""
    with cluster() as url:
        yield url


@pytest.fixture(scope="session")
def it(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """A server of all graphs. All tests share it: what one needs to itself, it makes."""
    folder: Path = tmp_path_factory.mktemp("server")
    things = {**all_graphs(), "poem": poem, "approval": approval, "approvals": approvals}
    with serving(things, folder / "agentrt.db") as it:
        yield it


@pytest_asyncio.fixture
async def client(it: Serving) -> AsyncIterator[LangGraphClient]:
    """The stock client."""
    async with get_client(url=it.url) as client:
        yield client


@pytest_asyncio.fixture
async def http(it: Serving) -> AsyncIterator[httpx.AsyncClient]:
    """Bare HTTP."""
    async with httpx.AsyncClient(base_url=it.url, timeout=60) as http:
        yield http
