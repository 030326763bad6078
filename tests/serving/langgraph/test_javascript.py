"""The streaming protocol by the JavaScript client; `test_corpus` has all else that it asks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.clients.processes import NODE_CLIENTS, Script, environment, installed, script
from tests.serving.langgraph.runs.test_runs import DONE
from tests.serving.langgraph.serve import Serving


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node(it: Serving, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Script]:
    home: Path = tmp_path_factory.mktemp("home")
    installed(NODE_CLIENTS / "@langchain/langgraph-sdk")
    environ = environment(
        home,
        AGENTRT_URL=it.url,
        NODE_PATH=str(NODE_CLIENTS),
        NODE_OPTIONS="--experimental-websocket --no-warnings",  # Node.js before 22 hides it
    )
    async with script("node/langgraph_sdk", environ) as running:
        yield running


@pytest.mark.parametrize(
    ("scenario", "result"),
    [
        ("protocol", DONE),
        ("protocol_socket", DONE),
        ("protocol_reconnect", [2, "ask", "input.answered"]),
        (
            "protocol_answer",
            [{"question": "which way?"}, {"steps": ["in", "first", "answered left", "last"]}],
        ),
    ],
)
@pytest.mark.asyncio(loop_scope="module")
async def test_a_scenario(node: Script, scenario: str, result: Any) -> None:
    assert await node.play(scenario) == result
