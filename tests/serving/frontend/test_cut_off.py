"""A tool call that ends at the client's limit, at each of its tokens, in all three APIs."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from jiter import from_json

from tests.serving.local import MODEL, LocalServer, called, open_server

pytestmark = [pytest.mark.engine, pytest.mark.asyncio]

SAYS = called(("weather", {"city": "Rome", "days": 3}))
CITY = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
WEATHER = {"name": "weather", "description": "Weather."}
ASK = [{"role": "user", "content": "?"}]
Read = tuple[str, list[tuple[str, Any]], str]
"""The text, each call's name and arguments, and how the output ended."""


async def chat(server: LocalServer, limit: int, stream: bool) -> Read:
    tool = {"type": "function", "function": {**WEATHER, "parameters": CITY}}
    body = {"model": MODEL, "messages": ASK, "tools": [tool], "max_tokens": limit}
    if not stream:
        choice = (await server.post("/v1/chat/completions", body))["choices"][0]
        calls = [one["function"] for one in choice["message"].get("tool_calls") or ()]
        made = [(call["name"], call["arguments"]) for call in calls]
        return choice["message"]["content"] or "", made, choice["finish_reason"]
    text, name, arguments, end = "", "", "", ""
    async for event in events(server, "/v1/chat/completions", body):
        for choice in event["choices"]:
            delta = choice["delta"]
            text += delta.get("content") or ""
            for one in delta.get("tool_calls") or ():
                name += one["function"].get("name") or ""
                arguments += one["function"].get("arguments") or ""
            end = choice["finish_reason"] or end
    return text, [(name, arguments)] if name else [], end


async def responses(server: LocalServer, limit: int, stream: bool) -> Read:
    tool = {"type": "function", **WEATHER, "parameters": CITY}
    body = {"model": MODEL, "input": "?", "tools": [tool], "max_output_tokens": limit}
    if not stream:
        answer = await server.post("/v1/responses", body)
        calls = [one for one in answer["output"] if one["type"] == "function_call"]
        texts = [one["content"][0]["text"] for one in answer["output"] if one["type"] == "message"]
        made = [(one["name"], one["arguments"]) for one in calls]
        return "".join(texts), made, answer["status"]
    text, name, arguments, end = "", "", "", ""
    async for event in events(server, "/v1/responses", body):
        if event["type"] == "response.output_text.delta":
            text += event["delta"]
        elif event["type"] == "response.function_call_arguments.delta":
            arguments += event["delta"]
        elif event["type"] == "response.output_item.added":
            name += event["item"].get("name") or ""
        end = event.get("response", {}).get("status", end)
    return text, [(name, arguments)] if name else [], end


async def messages(server: LocalServer, limit: int, stream: bool) -> Read:
    tool = {**WEATHER, "input_schema": CITY}
    body = {"model": MODEL, "messages": ASK, "tools": [tool], "max_tokens": limit}
    if not stream:
        answer = await server.post("/v1/messages", body)
        text = "".join(one.get("text") or "" for one in answer["content"])
        uses = [one for one in answer["content"] if one["type"] == "tool_use"]
        return text, [(one["name"], one["input"]) for one in uses], answer["stop_reason"]
    text, name, arguments, end = "", "", "", ""
    async for event in events(server, "/v1/messages", body):
        name += event.get("content_block", {}).get("name") or ""
        delta = event.get("delta", {})
        text += delta.get("text") or ""
        arguments += delta.get("partial_json") or ""
        end = delta.get("stop_reason") or end
    made = from_json(arguments.encode() or b"{}", partial_mode=True)
    return text, [(name, made)] if name else [], end


async def events(server: LocalServer, path: str, body: Any) -> AsyncIterator[Any]:
    async with server.client.stream("POST", path, json={**body, "stream": True}) as answer:
        assert answer.status_code == 200
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                yield json.loads(line.removeprefix("data: "))


@pytest.mark.parametrize(
    ("ask", "cut", "ended"),
    [
        (chat, "length", "tool_calls"),
        (responses, "incomplete", "completed"),
        (messages, "max_tokens", "tool_use"),
    ],
)
async def test_a_call_is_cut_off_alike_whole_and_streamed(ask: Any, cut: str, ended: str) -> None:
    found = set()
    async with open_server(lambda call: SAYS) as server:
        for limit in range(1, 40):
            whole = await ask(server, limit, stream=False)
            assert await ask(server, limit, stream=True) == whole
            text, calls, end = whole
            assert text == ""
            found.add(str(calls))
            if end == ended:
                break
            assert end == cut
    assert [name for name, _ in calls] == ["weather"]
    assert len(found) > 3, "none, one without arguments, with some and with all"
