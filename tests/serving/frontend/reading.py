"""Read an answer as a client does, whole or streamed, in the same form for the three APIs."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, NamedTuple

from jiter import from_json

from tests.serving.local import MODEL, LocalServer

CITY = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
TOOLS = {"weather": CITY, "time": {"type": "object"}}
ASK = [{"role": "user", "content": "?"}]


class Read(NamedTuple):
    """The thought, the text, each call's name and arguments, and how the output ended."""

    reasoning: str
    text: str
    calls: list[tuple[str, Any]]
    end: str


Ask = Callable[[LocalServer, int], Awaitable[Read]]


class _Stream:
    """A stream that is being read; ``calls`` by what the API numbers them by."""

    def __init__(self) -> None:
        self.reasoning, self.text, self.end = "", "", ""
        self.calls: dict[int, list[str]] = defaultdict(lambda: ["", ""])

    def called(self, number: int, name: str | None, arguments: str | None) -> None:
        made = self.calls[number]
        made[0] += name or ""
        made[1] += arguments or ""

    def read(self, arguments: Callable[[str], Any] = str) -> Read:
        calls = [(name, arguments(given)) for _, (name, given) in sorted(self.calls.items())]
        return Read(self.reasoning, self.text, calls, self.end)


async def chat(server: LocalServer, limit: int) -> Read:
    choice = (await server.post("/v1/chat/completions", _chat(limit)))["choices"][0]
    message = choice["message"]
    calls = [one["function"] for one in message.get("tool_calls") or ()]
    made = [(one["name"], one["arguments"]) for one in calls]
    text, reasoning = message["content"] or "", message.get("reasoning") or ""
    return Read(reasoning, text, made, choice["finish_reason"])


async def chat_stream(server: LocalServer, limit: int) -> Read:
    read = _Stream()
    async for event in _events(server, "/v1/chat/completions", _chat(limit)):
        for choice in event["choices"]:
            delta = choice["delta"]
            read.reasoning += delta.get("reasoning") or ""
            read.text += delta.get("content") or ""
            for one in delta.get("tool_calls") or ():
                made = one["function"]
                read.called(one["index"], made.get("name"), made.get("arguments"))
            read.end = choice["finish_reason"] or read.end
    return read.read()


async def responses(server: LocalServer, limit: int) -> Read:
    answer = await server.post("/v1/responses", _responses(limit))
    items = defaultdict(list)
    for one in answer["output"]:
        items[one["type"]].append(one)
    said = {
        kind: "".join(part["text"] for one in items[kind] for part in one["content"])
        for kind in ("reasoning", "message")
    }
    made = [(one["name"], one["arguments"]) for one in items["function_call"]]
    return Read(said["reasoning"], said["message"], made, answer["status"])


async def responses_stream(server: LocalServer, limit: int) -> Read:
    read = _Stream()
    async for event in _events(server, "/v1/responses", _responses(limit)):
        match event["type"]:
            case "response.reasoning_text.delta":
                read.reasoning += event["delta"]
            case "response.output_text.delta":
                read.text += event["delta"]
            case "response.function_call_arguments.delta":
                read.called(event["output_index"], None, event["delta"])
            case "response.output_item.added" if event["item"]["type"] == "function_call":
                read.called(event["output_index"], event["item"]["name"], None)
        read.end = event.get("response", {}).get("status", read.end)
    return read.read()


async def messages(server: LocalServer, limit: int) -> Read:
    answer = await server.post("/v1/messages", _messages(limit))
    said = {
        kind: "".join(one.get(kind) or "" for one in answer["content"])
        for kind in ("thinking", "text")
    }
    made = [(one["name"], one["input"]) for one in answer["content"] if one["type"] == "tool_use"]
    return Read(said["thinking"], said["text"], made, answer["stop_reason"])


async def messages_stream(server: LocalServer, limit: int) -> Read:
    read = _Stream()
    async for event in _events(server, "/v1/messages", _messages(limit)):
        delta = event.get("delta", {})
        read.reasoning += delta.get("thinking") or ""
        read.text += delta.get("text") or ""
        if name := event.get("content_block", {}).get("name"):
            read.called(event["index"], name, None)
        if arguments := delta.get("partial_json"):
            read.called(event["index"], None, arguments)
        read.end = delta.get("stop_reason") or read.end
    return read.read(_as_far_as_json)


def _as_far_as_json(arguments: str) -> Any:
    try:
        return from_json(arguments.encode() or b"{}", partial_mode=True)
    except ValueError:
        return {}


APIS: Mapping[str, tuple[Ask, Ask]] = {
    "chat": (chat, chat_stream),
    "responses": (responses, responses_stream),
    "messages": (messages, messages_stream),
}
"""Of each API, what a client reads of a whole answer and of a stream."""


def _chat(limit: int) -> dict[str, Any]:
    tools = [
        {"type": "function", "function": {"name": name, "parameters": schema}}
        for name, schema in TOOLS.items()
    ]
    return {"model": MODEL, "messages": ASK, "tools": tools, "max_tokens": limit}


def _responses(limit: int) -> dict[str, Any]:
    tools = [
        {"type": "function", "name": name, "parameters": schema} for name, schema in TOOLS.items()
    ]
    return {"model": MODEL, "input": "?", "tools": tools, "max_output_tokens": limit}


def _messages(limit: int) -> dict[str, Any]:
    tools = [{"name": name, "input_schema": schema} for name, schema in TOOLS.items()]
    return {"model": MODEL, "messages": ASK, "tools": tools, "max_tokens": limit}


async def _events(server: LocalServer, path: str, body: Any) -> AsyncIterator[Any]:
    async with server.client.stream("POST", path, json={**body, "stream": True}) as answer:
        assert answer.status_code == 200
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                yield json.loads(line.removeprefix("data: "))
