"""One server for all clients of these tests. Its loop is the session's, and so is the tests'."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.serving.local import LocalServer


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def local() -> AsyncIterator[LocalServer]:
    pytest.importorskip("vllm")
    from tests.clients.server import open_scripted

    async with open_scripted() as opened:
        yield opened
