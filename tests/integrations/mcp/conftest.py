"""One server of each kind for all tests, in each generation of the protocol."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from tests.integrations.mcp.servers import Client, connected, http, serving_http, stdio

KINDS = ("stdio", "stdio-legacy", "http", "http-legacy")


@pytest.fixture(scope="session")
def http_url() -> Iterator[str]:
    with serving_http() as (_, url):
        yield url


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=KINDS)
async def client(request: pytest.FixtureRequest, http_url: str) -> AsyncIterator[Client]:
    kind: str = request.param
    server = stdio() if kind.startswith("stdio") else http(http_url)
    async with connected(server, "legacy" if kind.endswith("legacy") else "auto") as client:
        yield client
