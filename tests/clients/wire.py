"""The three chat APIs on the wire: what a client sends, and what it makes of an answer's events."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tests.serving.local import MODEL

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FUNCTION = {"name": "get_weather", "description": "The weather in a city", "parameters": CITY}
RESULT = "21 degrees"
Body = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Turn:
    """What came of a request: its text, ids of the tools that it calls, and how the first
    choice continues, as this API wants it sent back.
    """

    texts: Sequence[str]
    tool_ids: Sequence[str]
    back: Sequence[Any]


class Wire(Protocol):
    """One API: ``path``, how it is asked, and how its answers are read."""

    path: str

    def ask(self, messages: Sequence[Any], *, tools: bool) -> Body: ...

    def read(self, body: Body) -> Turn: ...

    def joined(self, events: Sequence[Body]) -> Body: ...

    def results(self, tool_ids: Sequence[str]) -> list[Any]: ...


class Chat:
    """OpenAI's chat completions."""

    path = "/v1/chat/completions"

    def ask(self, messages: Sequence[Any], *, tools: bool) -> Body:
        given = {"tools": [{"type": "function", "function": FUNCTION}]} if tools else {}
        return {"model": MODEL, "messages": list(messages), **given}

    def read(self, body: Body) -> Turn:
        messages = [choice["message"] for choice in body["choices"]]
        calls = messages[0].get("tool_calls") or []
        back = {"role": "assistant", "content": messages[0]["content"]}
        return Turn(
            [message["content"] or "" for message in messages],
            [call["id"] for call in calls],
            [{**back, "tool_calls": calls} if calls else back],
        )

    def joined(self, events: Sequence[Body]) -> Body:
        messages: dict[int, Any] = {}
        for choice in (choice for event in events for choice in event["choices"]):
            message = messages.setdefault(choice["index"], {"content": "", "tool_calls": []})
            message["content"] += choice["delta"].get("content") or ""
            for call in choice["delta"].get("tool_calls") or ():
                _add_call(message["tool_calls"], call)
        return {"choices": [{"message": messages[index]} for index in sorted(messages)]}

    def results(self, tool_ids: Sequence[str]) -> list[Any]:
        return [{"role": "tool", "tool_call_id": one, "content": RESULT} for one in tool_ids]


def _add_call(calls: list[Any], delta: Mapping[str, Any]) -> None:
    if delta["index"] == len(calls):
        function = {"name": delta["function"]["name"], "arguments": ""}
        calls.append({"id": delta["id"], "type": "function", "function": function})
    calls[delta["index"]]["function"]["arguments"] += delta["function"].get("arguments") or ""


class Responses:
    """OpenAI's Responses."""

    path = "/v1/responses"

    def ask(self, messages: Sequence[Any], *, tools: bool) -> Body:
        given = {"tools": [{"type": "function", **FUNCTION}]} if tools else {}
        return {"model": MODEL, "input": list(messages), **given}

    def read(self, body: Body) -> Turn:
        texts = [
            part["text"]
            for item in body["output"]
            if item["type"] == "message"
            for part in item["content"]
        ]
        calls = [item for item in body["output"] if item["type"] == "function_call"]
        return Turn(texts or [""], [item["call_id"] for item in calls], body["output"])

    def joined(self, events: Sequence[Body]) -> Body:
        whole: Body = events[-1]["response"]
        return whole

    def results(self, tool_ids: Sequence[str]) -> list[Any]:
        kind = "function_call_output"
        return [{"type": kind, "call_id": one, "output": RESULT} for one in tool_ids]


class Messages:
    """Anthropic's Messages."""

    path = "/v1/messages"

    def ask(self, messages: Sequence[Any], *, tools: bool) -> Body:
        tool = {"name": FUNCTION["name"], "input_schema": CITY}
        given = {"tools": [tool]} if tools else {}
        return {"model": MODEL, "max_tokens": 200, "messages": list(messages), **given}

    def read(self, body: Body) -> Turn:
        texts = [block["text"] for block in body["content"] if block["type"] == "text"]
        calls = [block["id"] for block in body["content"] if block["type"] == "tool_use"]
        return Turn(texts or [""], calls, [{"role": "assistant", "content": body["content"]}])

    def joined(self, events: Sequence[Body]) -> Body:
        blocks: list[Any] = []
        for event in events:
            if event["type"] == "content_block_start":
                blocks.append({**event["content_block"], "given": ""})
            elif event["type"] == "content_block_delta":
                delta = event["delta"]
                blocks[-1]["given"] += delta.get("text", "") + delta.get("partial_json", "")
        return {"content": [_block(**block) for block in blocks]}

    def results(self, tool_ids: Sequence[str]) -> list[Any]:
        kind = "tool_result"
        blocks = [{"type": kind, "tool_use_id": one, "content": RESULT} for one in tool_ids]
        return [{"role": "user", "content": blocks}]


def _block(given: str, **block: Any) -> Body:
    if block["type"] == "text":
        return {**block, "text": given}
    return {**block, "input": json.loads(given)}


def events_of(text: str) -> list[Body]:
    """The data of a stream's events, less its end's mark."""
    lines = (line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: "))
    return [json.loads(line) for line in lines if line != "[DONE]"]


def keys_of(value: Any) -> Iterator[str]:
    """All keys in a body that have a value."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if inner is not None:
                yield key
            yield from keys_of(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from keys_of(inner)


OURS = {"kv_transfer_params", "extra_args", "vllm_xargs"}
"""Where our marks travel inside, beside keys that have our name in them."""


def is_clean(body: Any) -> bool:
    """No key of ours is in a body."""
    return not any(key in OURS or "agentrt" in key for key in keys_of(body))
