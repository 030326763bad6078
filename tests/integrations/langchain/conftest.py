"""A chat model on a borrowed runtime, whose engine says what the test tells it to."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from agentrt import Runtime, ToolCall
from agentrt.integrations.langchain import ChatAgentRT
from tests.doubles.scripted import ScriptedExecutor


@pytest.fixture
def script() -> dict[str, str | ToolCall]:
    """What the model says to anything, under ``say``."""
    return {"say": "one two three"}


@pytest.fixture
def executor(script: dict[str, str | ToolCall]) -> ScriptedExecutor:
    return ScriptedExecutor(lambda call: script["say"], model="lab/tiny")


@pytest.fixture
async def runtime(executor: ScriptedExecutor) -> AsyncIterator[Runtime]:
    async with Runtime(executor) as runtime:
        yield runtime
        assert not runtime.runs


@pytest.fixture
async def model(runtime: Runtime) -> ChatAgentRT:
    return ChatAgentRT(runtime=runtime)
