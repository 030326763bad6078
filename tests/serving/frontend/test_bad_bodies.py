"""A thousand bad bodies in all APIs: none fails the server, and each 4xx says what is wrong."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest

from agentrt import Context, program
from agentrt.serving.server import ServedProgram
from tests.serving.local import MODEL, LocalServer, open_server

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"
SESSION, RUN = "/v1/sessions", "/v1/programs/echo/runs"
CORPUS = 1200

GOOD: dict[str, dict[str, Any]] = {
    CHAT: {"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "n": 2},
    COMPLETION: {"model": MODEL, "prompt": "hello", "logprobs": 1},
    MESSAGES: {
        "model": MODEL,
        "max_tokens": 8,
        "messages": [{"role": "user", "content": "hello"}],
    },
    RESPONSES: {"model": MODEL, "input": "hello"},
    SESSION: {"type": "agent", "deadline": 5},
    RUN: {"input": "hello"},
}
NOT_TEXT: list[Any] = [1, True, [], {}, 1.5, [["x"]]]
NOT_NUMBERS: list[Any] = ["hot", [], {}, "", "NaN", [1]]
SAMPLING: dict[str, list[Any]] = {
    "model": [*NOT_TEXT, None, "", "gpt-4", f"{MODEL} ", "../etc/passwd", "x" * 5000],
    "n": [*NOT_NUMBERS, 0, -1, 33, 1.5, 10**30],
    "max_tokens": [*NOT_NUMBERS, 0, -5, 2**31, 0.5],
    "temperature": [*NOT_NUMBERS, -0.1, 2.1, 1e300],
    "top_p": [*NOT_NUMBERS, 0, -1, 1.01],
    "frequency_penalty": [*NOT_NUMBERS, -2.1, 2.1],
    "presence_penalty": [*NOT_NUMBERS, -2.1, 2.1],
    "seed": ["x", [], 2**63, -(2**63) - 1, 0.5],
    "stop": [5, {}, [5], [""], "", [["x"]], ["x"] * 17],
    "stream": ["maybe", [], {}, 7],
    "stream_options": [{"include_usage": True}, "x", {"unknown": 1}, []],
    "user": [5, [], {}],
    "metadata": ["x", {"a": 1}, {str(i): "x" for i in range(17)}],
    "service_tier": ["flex", 5],
    "session_id": [5, "x" * 257],
    "top_k": [5],
    "logit_bias": [{"5": 1}],
    "best_of": [2, "x"],
    "echo": [True, "x"],
    "__proto__": [{}],
    "model_": ["x"],
}
MESSAGES_OF_CHATS: list[Any] = [
    [],
    {},
    "hello",
    None,
    [5],
    ["hello"],
    [[]],
    [{}],
    [{"role": "user"}],
    [{"content": "x"}],
    [{"role": "user", "content": None}],
    [{"role": "user", "content": 5}],
    [{"role": "user", "content": []}],
    [{"role": "user", "content": ["x"]}],
    [{"role": "user", "content": [{"type": "text"}]}],
    [{"role": "user", "content": [{"type": "text", "text": 5}]}],
    [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]}],
    [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}],
    [{"role": "robot", "content": "x"}],
    [{"role": ["user"], "content": "x"}],
    [{"role": "function", "name": "f", "content": "x"}],
    [{"role": "tool", "content": "x"}],
    [{"role": "tool", "content": None, "tool_call_id": "1"}],
    [{"role": "user", "content": "x", "mood": "good"}],
    [{"role": "assistant", "content": "x", "tool_calls": [{}]}],
    [{"role": "assistant", "content": "x", "tool_calls": [{"id": "1", "function": {}}]}],
    [{"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": ""}}],
    [{"role": "system", "content": {"text": "x"}}],
]
FUNCTION = {"name": "f", "parameters": {"type": "object", "properties": {}}}


def tool(**changes: Any) -> list[Any]:
    return [{"type": "function", "function": {**FUNCTION, **changes}}]


TOOLS: list[Any] = [
    "f",
    5,
    {},
    ["f"],
    [{}],
    [{"type": "retrieval"}],
    [{"type": "function"}],
    [{"type": "function", "function": {}}],
    tool(name=5),
    tool(name=""),
    tool(name="two words"),
    tool(name="auto"),
    tool(name="x" * 200),
    tool(parameters=[]),
    tool(parameters={"type": "array"}),
    tool(parameters={"type": "object", "properties": 5}),
    tool(parameters={"type": "object", "properties": {"a": {"type": "text"}}}),
    tool(parameters={"type": "object", "required": "a"}),
    tool(color="red"),
    tool() * 2,
]
FORMATS: list[Any] = [
    "json",
    5,
    [],
    {},
    {"type": "xml"},
    {"type": "json_schema"},
    {"type": "json_schema", "json_schema": {}},
    {"type": "json_schema", "json_schema": {"name": "x"}},
    {"type": "json_schema", "json_schema": {"name": "x", "schema": []}},
    {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object?"}}},
    {"type": "json_schema", "json_schema": {"name": "x", "schema": {"minimum": "low"}}},
    {"type": "json_schema", "json_schema": {"name": "x y", "schema": {}}},
    {"type": "json_object", "schema": {}},
]
BAD: dict[str, dict[str, list[Any]]] = {
    CHAT: {
        **SAMPLING,
        "messages": MESSAGES_OF_CHATS,
        "tools": TOOLS,
        "response_format": FORMATS,
        "tool_choice": ["any", 5, [], {}, "required", {"type": "function", "function": {}}],
        "logprobs": ["x", 5, []],
        "top_logprobs": [5, "x", -1, 21],
        "store": [True],
        "modalities": [["audio"], "text"],
        "prediction": [{}],
        "functions": [[]],
        "audio": [{}],
    },
    COMPLETION: {
        **SAMPLING,
        "prompt": [None, 5, {}, [], "", [""], [[]], [-1], [["x"]], [1, "x"], [None], ["x"] * 33],
        "logprobs": ["x", 6, -1, []],
        "suffix": ["x"],
        "messages": [[{"role": "user", "content": "x"}]],
    },
    MESSAGES: {
        **SAMPLING,
        "messages": MESSAGES_OF_CHATS,
        "system": [5, {}, [5], [{}], [{"type": "text"}]],
        "tools": [*TOOLS, [{"name": "f", "input_schema": 5}], [{"input_schema": {}}]],
        "tool_choice": ["any", 5, {}, {"type": "tool"}, {"type": "tool", "name": "g"}],
        "stop_sequences": [5, [5], "x", [""]],
        "thinking": [5, {}, {"type": "enabled"}, {"type": "enabled", "budget_tokens": -1}],
    },
    RESPONSES: {
        **SAMPLING,
        "input": [*MESSAGES_OF_CHATS, [{"type": "function_call"}], [{"type": "reasoning"}]],
        "instructions": [5, [], {}],
        "tools": [*TOOLS, [{"type": "mcp"}], [{"type": "web_search_preview"}]],
        "tool_choice": ["any", 5, {}, {"type": "function", "name": "g"}],
        "previous_response_id": [5, "", "resp_none", "x" * 5000],
        "text": [5, {}, {"format": 5}, {"format": {"type": "json_schema"}}],
        "max_output_tokens": [*NOT_NUMBERS, 0, -1],
        "reasoning": [5, {"effort": "immense"}],
        "background": ["x", []],
    },
    SESSION: {
        "type": [5, "", [], "x" * 129, "tab\t", "ümlaut", " x"],
        "session": [5, "", "x" * 300],
        "deadline": ["soon", 0, -1, 1e12, []],
        "id": ["mine"],
    },
    RUN: {
        "stream": ["maybe", 5],
        "wait": ["maybe", []],
        "session": [5, ""],
        "deadline": ["soon", 0, -1],
        "inputs": ["x"],
        "input": [None],
    },
}
RAW: list[bytes] = [
    b"",
    b"{",
    b"[]",
    b"null",
    b"5",
    b'"text"',
    b"\xff\xfe\x00",
    b"{'model': 'x'}",
    b"[" * 100_000,
    b'{"a":' * 50_000,
    json.dumps(GOOD[CHAT]).encode()[:-1],
    b'{"model": "scripted", "messages": [{"role": "user", "content": "\\ud800"}]}',
    b'{"model": "scripted", "messages": [{"role": "user", "content": "x"}], "top_p": NaN}',
    b'{"model": "scripted", "messages": [{"role": "user", "content": "x"}], "top_p": 1e999}',
    b'{"model": "scripted", "messages": [{"role": "user", "content": "x"}], "n": 1' + b"0" * 5000,
    json.dumps(GOOD[CHAT]).encode("utf-16"),
]


@program(name="echo")
async def echo(ctx: Context, text: str) -> str:
    return text


def corpus(rng: random.Random) -> Iterator[tuple[str, bytes]]:
    """Each has a fault, or what some server takes for one."""
    for path in GOOD:
        yield from ((path, raw) for raw in RAW)
    for path, bad in BAD.items():
        for name in bad:
            for value in bad[name]:
                yield path, json.dumps({**GOOD[path], name: value}).encode()
        for name in GOOD[path]:
            yield path, json.dumps({k: v for k, v in GOOD[path].items() if k != name}).encode()
    while True:
        path = rng.choice(list(BAD))
        names = rng.sample(sorted(BAD[path]), rng.randint(2, 4))
        bad_ones = {name: rng.choice(BAD[path][name]) for name in names}
        yield path, json.dumps({**GOOD[path], **bad_ones}).encode()


async def post(local: LocalServer, path: str, body: bytes) -> Any:
    headers = {"content-type": "application/json"}
    return await local.client.post(path, content=body, headers=headers)


async def test_good_bodies_are_good() -> None:
    """Else the corpus would say nothing."""
    async with open_server(served={"echo": ServedProgram(echo, "here.py")}) as local:
        for path, body in GOOD.items():
            answer = await post(local, path, json.dumps(body).encode())
            assert answer.status_code < 300, answer.text


async def test_no_bad_body_fails_the_server() -> None:
    """What vLLM takes and OpenAI does not is answered; the rest is refused in the API's form."""
    rng, seen, refused = random.Random(7), set[tuple[str, bytes]](), 0
    async with open_server(served={"echo": ServedProgram(echo, "here.py")}) as local:
        for path, body in corpus(rng):
            if (path, body) in seen:
                continue
            seen.add((path, body))
            answer = await post(local, path, body)
            what = f"{path} {body[:300]!r} {answer.status_code} {answer.text[:300]}"
            assert answer.status_code < 500, what
            if answer.status_code >= 400:
                refused += 1
                answered = answer.json()
                assert len(answered["error"]["message"]) >= 5, what
                assert (answered.get("type") == "error") == (path == MESSAGES), what
            if len(seen) >= CORPUS:
                break
        await local.until(lambda: local.server.tenants.calls("default") == 0)
        assert refused > CORPUS // 2
        assert (await local.runtime.executor.snapshot())["tenants"] == {}


@pytest.mark.parametrize(
    ("path", "change", "says"),
    [
        (SESSION, {"top_k": 5}, "does not know the field 'top_k'"),
        (SESSION, {"deadline": "soon"}, "deadline: "),
        (CHAT, {"n": 129}, "n: 129"),
        (CHAT, {"messages": [{"role": "user", "content": 5}]}, "messages"),
        (CHAT, {"temperature": -3}, "temperature"),
        (CHAT, {"model": "gpt-4"}, "gpt-4"),
    ],
)
async def test_the_field_is_named(path: str, change: dict[str, Any], says: str) -> None:
    async with open_server() as local:
        answer = await post(local, path, json.dumps({**GOOD[path], **change}).encode())
        assert answer.status_code in (400, 404)
        assert says in answer.json()["error"]["message"]
