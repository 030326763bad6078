"""Stub engines: one copies into schemas what the question says, one holds its calls."""

from __future__ import annotations

import asyncio
import json
import random
import re
import threading
from collections.abc import AsyncGenerator, Mapping
from dataclasses import replace
from typing import Any

from agentrt import Runtime
from agentrt.executors.base import Chunk, Progress
from agentrt.integrations.langchain import RuntimeClient
from agentrt.request import Call, ToolCall
from tests.doubles.madeup import made_up_output
from tests.doubles.scripted import ScriptedExecutor


def copy_from_the_question(call: Call) -> str | ToolCall:
    """What `answer_to` has for its request."""
    return answer_to(call.spec.request or {})


def answer_to(request: Mapping[str, Any]) -> str | ToolCall:
    """Made-up text; under a schema a value that obeys it, with the question's own words.

    It uses a tool if it may, once: when the tool's result is there, it answers.
    """
    *_, last = request["messages"]
    question = str(last["content"])
    if request.get("tools") and last["role"] != "tool" and request.get("tool_choice") != "none":
        request = {**request, "tool_choice": request.get("tool_choice", "required")}
        if request["tool_choice"] == "auto":
            request["tool_choice"] = "required"
    elif request.get("tool_choice", "auto") == "auto":
        request = {name: value for name, value in request.items() if name != "tools"}
    made = made_up_output(request, random.Random(question))
    numbers = [int(number) for number in re.findall(r"-?\d+", question)]
    quotes = re.findall(r"'([^']+)'", question)
    if isinstance(made, ToolCall):
        return replace(made, arguments=filled(made.arguments, numbers, quotes))
    return (
        "amber birch cloud"
        if made is None
        else json.dumps(filled(json.loads(made), numbers, quotes))
    )


def filled(value: Any, numbers: list[int], quotes: list[str]) -> Any:
    if isinstance(value, dict):
        return {name: filled(part, numbers, quotes) for name, part in value.items()}
    if isinstance(value, int) and not isinstance(value, bool) and numbers:
        return numbers.pop(0)
    return quotes.pop(0) if isinstance(value, str) and quotes else value


def stub_client() -> RuntimeClient:
    return RuntimeClient(
        lambda: Runtime(ScriptedExecutor(copy_from_the_question, model="stub/one"))
    )


class HeldExecutor(ScriptedExecutor):
    """Holds every call, a token before its end, until `let_go`; ``live`` counts its calls."""

    def __init__(self) -> None:
        super().__init__(lambda call: "one two three")
        self.live = 0
        self.began = threading.Event()
        self._let_go: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def start(self, progress: Progress) -> None:
        await super().start(progress)
        self._let_go, self._loop = asyncio.Event(), asyncio.get_running_loop()

    async def generate(self, call: Call, *, stream: bool) -> AsyncGenerator[Chunk, None]:
        assert self._let_go is not None
        self.live += 1
        try:
            async for chunk in super().generate(call, stream=stream):
                if chunk.reply is not None:
                    self.began.set()
                    await self._let_go.wait()
                yield chunk
        finally:
            self.live -= 1

    def let_go(self) -> None:
        assert self._loop is not None
        assert self._let_go is not None
        self._loop.call_soon_threadsafe(self._let_go.set)
