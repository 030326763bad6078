"""Each field of each door with values of other types: an answer or a refusal, and never a fault of
the server.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

pytest.importorskip("vllm")

from agentrt.executors.vllm.entrypoints.families import TOOL_FORM
from tests.serving.local import MODEL, WAIT_S, LocalServer, open_server

pytestmark = [pytest.mark.engine, pytest.mark.asyncio]

USER = {"role": "user", "content": "?"}
TOOL = {"name": "t", "description": "?"}
SCHEMA = {"type": "object"}
COMMON = ("model", "stream", "temperature", "top_p", "tools", "tool_choice", "metadata", "user")
DOORS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "/v1/chat/completions": (
        {
            "messages": [USER],
            "tools": [{"type": "function", "function": TOOL | {"parameters": SCHEMA}}],
        },
        (
            *("messages", "n", "stop", "seed", "max_tokens", "max_completion_tokens", "logprobs"),
            *("response_format", "parallel_tool_calls", "stream_options", "logit_bias"),
            *("structured_outputs", "chat_template_kwargs", "reasoning_effort"),
        ),
    ),
    "/v1/completions": (
        {"prompt": "?"},
        ("prompt", "n", "stop", "seed", "max_tokens", "logprobs", "echo", "suffix", "best_of"),
    ),
    "/v1/messages": (
        {"messages": [USER], "max_tokens": 9, "tools": [TOOL | {"input_schema": SCHEMA}]},
        (
            *("messages", "system", "max_tokens", "thinking", "stop_sequences", "top_k"),
            *("output_config", "context_management", "mcp_servers", "container"),
        ),
    ),
    "/v1/messages/count_tokens": (
        {"messages": [USER], "tools": [TOOL | {"input_schema": SCHEMA}]},
        ("messages", "system", "thinking"),
    ),
    "/v1/responses": (
        {"input": "?", "tools": [TOOL | {"type": "function", "parameters": SCHEMA}]},
        (
            *("input", "instructions", "max_output_tokens", "previous_response_id", "store"),
            *("text", "reasoning", "include", "truncation", "background", "context_management"),
            *("parallel_tool_calls", "prompt", "conversation", "max_tool_calls"),
        ),
    ),
    "/v1/responses/compact": (
        {"input": "?"},
        ("input", "instructions", "previous_response_id", "max_output_tokens", "text"),
    ),
}
VALUES: tuple[Any, ...] = (
    *(None, True, 3, -1, 10**30, 1e300, "", "x", "\ud7ff"),
    *([], {}, [None], [3], [[]], [{}], ["x"], {"type": "x"}, {"type": None}, {"x": [None]}),
)


async def asked(server: LocalServer, path: str, body: Any) -> Any:
    async with asyncio.timeout(WAIT_S):
        return await server.client.post(path, json=body)


@pytest.mark.parametrize("path", DOORS)
async def test_a_field_of_another_type_is_no_fault_of_the_server(path: str) -> None:
    body, fields = DOORS[path]
    async with open_server(lambda call: "hi") as server:
        for field in (*COMMON, *fields):
            for value in VALUES:
                answer = await asked(server, path, {"model": MODEL} | body | {field: value})
                assert answer.status_code < 500, (field, value, answer.text)
        assert (await asked(server, path, {"model": MODEL} | body)).status_code == 200


FLAWED_DEFINITIONS = {"type": "object", "$defs": []}
FUNCTION = {"type": "function", "function": TOOL | {"parameters": SCHEMA}}
REFERENCES = ["abc", {"type": "tool_reference", "tool_name": "t"}]
NESTED: tuple[tuple[str, dict[str, Any]], ...] = (
    ("/v1/chat/completions", {"messages": [{"role": "system"}, USER]}),
    ("/v1/chat/completions", {"messages": [USER | {"content": [{"type": "text"}]}]}),
    ("/v1/chat/completions", {"messages": [{"role": "system", "content": [{"type": "text"}]}]}),
    ("/v1/chat/completions", {"messages": [USER, {"role": "tool", "content": REFERENCES}]}),
    ("/v1/chat/completions", {"structured_outputs": {"json": "[1]"}}),
    (
        "/v1/chat/completions",
        {"tools": [FUNCTION | {"function": TOOL | {"parameters": FLAWED_DEFINITIONS}}]},
    ),
    ("/v1/messages", {"tools": [TOOL | {"input_schema": FLAWED_DEFINITIONS}]}),
    (
        "/v1/responses",
        {"tools": [TOOL | {"type": "function", "parameters": FLAWED_DEFINITIONS}]},
    ),
)


async def test_a_wrong_message_or_tool_is_no_fault_of_a_server_with_our_tool_form() -> None:
    flags = ("--tool-call-parser", TOOL_FORM)
    async with open_server(lambda call: "hi", flags=flags) as server:
        for path, fields in NESTED:
            body = {"model": MODEL} | DOORS[path][0] | fields
            answer = await asked(server, path, body)
            assert answer.status_code < 500, (path, fields, answer.text)


@pytest.mark.parametrize("path", DOORS)
async def test_a_body_that_is_no_request_is_refused(path: str) -> None:
    async with open_server(lambda call: "hi") as server:
        for body in (b"", b"null", b"[]", b"{}", b"3", b'"x"', b"true", b"{", b"nul", b"\xff"):
            headers = {"content-type": "application/json"}
            answer = await server.client.post(path, content=body, headers=headers)
            assert 400 <= answer.status_code < 500, (body, answer.text)
            error = answer.json()["error"]
            assert error["message"]


async def test_a_field_that_vllms_checks_cannot_read_is_named() -> None:
    async with open_server(lambda call: "hi") as server:
        body = {"model": MODEL, "messages": [USER], "structured_outputs": True}
        answer = await asked(server, "/v1/chat/completions", body)
        assert answer.status_code == 400
        assert "structured_outputs" in answer.text


async def test_a_compaction_of_no_chat_names_the_missing_field() -> None:
    async with open_server(lambda call: "hi") as server:
        bodies: list[Any] = [{}, {"model": MODEL}, {"input": None}, {"input": []}, {"input": ""}]
        for body in bodies:
            answer = await server.client.post("/v1/responses/compact", json=body)
            if body.get("input") == "":
                assert answer.status_code == 200
                continue
            error = answer.json()["error"]
            assert (answer.status_code, error["param"]) == (400, "input")
            assert error["code"] == "missing_required_parameter"
            assert error["message"].startswith("Missing required parameter: 'input'.")
        values: list[Any] = [{}, 3, True]
        for value in values:
            answer = await server.client.post("/v1/responses/compact", json={"input": value})
            error = answer.json()["error"]
            assert (answer.status_code, error["param"]) == (400, "input"), json.dumps(value)
            assert error["code"] == "invalid_type"
