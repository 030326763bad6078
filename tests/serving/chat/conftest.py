"""A server with an agent and programs, and a browser, for the tests of the chat page."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser

from tests.serving.chat.agent import ObligingExecutor, agent_graph, held, held_twice, mute, order
from tests.serving.chat.talks import APIS
from tests.serving.langgraph.graphs import approval, poem, steps_graph
from tests.serving.langgraph.serve import Serving, serving
from tests.serving.observability.browser import opened_browser


@pytest.fixture(scope="module")
def it(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """One server for the tests of a module."""
    database: Path = tmp_path_factory.mktemp("server") / "agentrt.db"
    programs = {"poem": poem, "approval": approval, "held": held, "order": order, "mute": mute}
    graphs = {"agent": agent_graph(), "steps": steps_graph()}
    things = {**graphs, **programs, "held_twice": held_twice}
    with serving(things, database, *APIS, executor=ObligingExecutor()) as it:
        yield it


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    """One browser for the tests of a module."""
    async with opened_browser() as browser:
        yield browser
