"""Tools whose schemas the grammar compiler refuses: their arguments are free, and the session goes
on; a tool that is strict is refused, by its name.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("vllm")

from tests.serving.local import MODEL, open_server

pytestmark = [pytest.mark.engine, pytest.mark.asyncio]

HERMES = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")
QWEN = ("--enable-auto-tool-choice", "--tool-call-parser", "qwen3_coder")
ODD: dict[str, Any] = {
    "regex": {"type": "object", "properties": {"a": {"type": "string", "pattern": "["}}},
    "reference": {"type": "object", "properties": {"a": {"$ref": "#/$defs/none"}}},
    "range": {
        "type": "object",
        "properties": {"a": {"type": "integer", "minimum": 5, "maximum": 1}},
    },
    "false": {"type": "object", "properties": {"a": False}, "required": ["a"]},
    "type": {"type": "objekt"},
}
PLAIN = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 7}}}


def chat_of(schema: Any, **fields: Any) -> dict[str, Any]:
    functions = [{"name": "plain", "parameters": PLAIN}, {"name": "odd", "parameters": schema}]
    functions[1] |= fields.pop("function", {})
    tools = [{"type": "function", "function": function} for function in functions]
    return {"model": MODEL, "messages": [{"role": "user", "content": "?"}], "tools": tools} | fields


def constraint_of(call: Any) -> str:
    outputs = call.spec.rendered.params.structured_outputs
    return str(outputs.structural_tag or outputs.json).replace("\\", "")


FORMS = [("form", ()), ("hermes", HERMES), ("qwen3_coder", QWEN)]
REFUSED = [
    pytest.param(kind, flags, id=f"{kind}-{name}")
    for name, flags in FORMS
    for kind in ODD
    # The tool form is a plain JSON schema, for which vLLM has a second compiler, that takes these.
    if name != "form" or kind not in ("range", "false")
]


@pytest.mark.parametrize(("kind", "flags"), REFUSED)
async def test_only_the_odd_tool_is_left_unconstrained(kind: str, flags: tuple[str, ...]) -> None:
    async with open_server(lambda call: "hi", flags=flags) as server:
        for choice in ("auto", "required"):
            body = chat_of(ODD[kind], tool_choice=choice)
            answer = await server.client.post("/v1/chat/completions", json=body)
            assert answer.status_code == 200, answer.text
            assert answer.headers["x-agentrt-left-out"] == "schema:odd"
            constraint = constraint_of(server.engine.calls[-1])
            assert "maxLength" in constraint, "the other tool is constrained as before"
            assert "minimum" not in constraint
        body = chat_of(PLAIN)
        answer = await server.client.post("/v1/chat/completions", json=body)
        assert "x-agentrt-left-out" not in answer.headers


async def test_a_stream_and_the_other_apis_go_on_as_well() -> None:
    odd, fields = ODD["regex"], {"name": "odd", "description": "?"}
    messages = chat_of(odd)["messages"]
    bodies: dict[str, dict[str, Any]] = {
        "/v1/chat/completions": chat_of(odd, stream=True),
        "/v1/messages": {
            "max_tokens": 9,
            "messages": messages,
            "tools": [fields | {"input_schema": odd}],
        },
        "/v1/responses": {
            "input": "?",
            "tools": [fields | {"type": "function", "parameters": odd}],
        },
    }
    async with open_server(lambda call: "hi", flags=HERMES) as server:
        for path, body in bodies.items():
            answer = await server.client.post(path, json={"model": MODEL} | body)
            assert answer.status_code == 200, answer.text
            assert answer.headers["x-agentrt-left-out"] == "schema:odd"


@pytest.mark.parametrize("flags", [(), HERMES], ids=["form", "hermes"])
async def test_a_strict_tool_is_refused_with_its_name_and_the_place(flags: tuple[str, ...]) -> None:
    """vLLM refuses it, too, with "Invalid grammar specification: 'triggers'"."""
    deep = {"type": "object", "properties": {"list": {"type": "array", "items": ODD["regex"]}}}
    async with open_server(lambda call: "hi", flags=flags) as server:
        body = chat_of(deep, function={"strict": True})
        answer = await server.client.post("/v1/chat/completions", json=body)
        assert answer.status_code == 400
        said = answer.json()["error"]["message"]
        assert "'odd'" in said
        assert "parameters.properties.list.items.properties.a: Regex parsing error" in said
        assert ".cc:" not in said
        assert "without strict" in said


async def test_a_schema_that_only_the_second_compiler_takes_stays_a_constraint() -> None:
    """In a plain JSON schema, vLLM tries another compiler after the first."""
    async with open_server(lambda call: json.dumps({"answer": "hi"})) as server:
        answer = await server.client.post("/v1/chat/completions", json=chat_of(ODD["range"]))
        assert answer.status_code == 200
        assert "x-agentrt-left-out" not in answer.headers
        assert "minimum" in constraint_of(server.engine.calls[-1])
