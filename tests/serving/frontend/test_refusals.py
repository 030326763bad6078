"""Requests that are refused before a call is made, in each API's own form, with the field named."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import FastAPI, HTTPException

from agentrt.errors import EngineDiedError
from agentrt.executors.vllm.entrypoints.models import open_frontend
from agentrt.request import Call
from agentrt.serving.error_responses import ApiError, describe
from agentrt.serving.frontend.bounds import (
    LONGEST_PATTERN,
    MOST_CALLS,
    MOST_CHOICES,
    MOST_ENUM_CHARACTERS,
    MOST_LENGTHS,
    MOST_NODES,
    MOST_OPTIONAL,
    MOST_REPEATS,
    calls_of,
    check_bounds,
)
from agentrt.serving.frontend.conversations import CHAT, COMPLETIONS, MESSAGES, RESPONSES
from agentrt.serving.tenants import Limits
from tests.serving.frontend.test_identity import ask
from tests.serving.local import MODEL, engine_and_fronts, open_server

pytestmark = pytest.mark.engine

APIS = [CHAT, COMPLETIONS, MESSAGES, RESPONSES]


def error_of(path: str, answer: Any) -> Any:
    body = answer.json()
    assert (body.get("type") == "error") == (path == MESSAGES)
    return body["error"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", APIS)
async def test_a_tenant_at_its_limit_gets_429_before_a_stream_begins(
    path: str, stream: bool
) -> None:
    async with open_server(limits=Limits(requests_per_minute=1)) as local:
        body = {**ask(path, "hello"), "stream": stream}
        assert (await local.client.post(path, json=body)).status_code == 200
        refused = await local.client.post(path, json=body)
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) >= 1
        assert error_of(path, refused)["type"] == "rate_limit_error"


@pytest.mark.parametrize("path", APIS)
async def test_a_dead_engine_gets_503_with_retry_after(path: str) -> None:
    def die(call: Call) -> str:
        raise EngineDiedError("the engine died")

    async with open_server(die) as local:
        refused = await local.client.post(path, json=ask(path, "hello"))
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
        assert "died" in error_of(path, refused)["message"]
        assert local.server.tenants.calls("default") == 0


@pytest.mark.parametrize(
    ("error", "seconds"),
    [
        (EngineDiedError("the engine died"), "5"),
        (ApiError(503, "the database cannot be read"), "5"),
        (ApiError(429, "too many"), "5"),
        (HTTPException(503, "busy", {"Retry-After": "1"}), "1"),
        (ApiError(400, "wrong"), None),
    ],
)
def test_only_errors_that_may_pass_say_when_to_try_again(
    error: Exception, seconds: str | None
) -> None:
    _, _, headers = describe(error)
    assert [*headers.values()] == ([seconds] if seconds else [])


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", APIS)
async def test_pages_of_strangers_are_refused_on_the_paths_of_vllm_too(
    path: str, stream: bool
) -> None:
    """And pages of this machine may read what they are answered, and ask before."""
    async with open_server() as local:
        body, origin = {**ask(path, "hello"), "stream": stream}, "http://localhost:3000"
        for stranger in ({"origin": "https://evil.example"}, {"host": "evil.example"}):
            refused = await local.client.post(path, json=body, headers=stranger)
            assert refused.status_code == 403
            assert error_of(path, refused)["type"] == "permission_error"
            assert "access-control-allow-origin" not in refused.headers
        assert local.engine.calls == []
        wants = {"access-control-request-method": "POST", "origin": origin}
        wants["access-control-request-headers"] = "authorization,x-agentrt-program"
        asked = await local.client.options(path, headers=wants)
        assert (asked.status_code, asked.headers["access-control-allow-origin"]) == (200, origin)
        answer = await local.client.post(path, json=body, headers={"origin": origin})
        assert answer.status_code == 200
        assert answer.headers["access-control-allow-origin"] == origin


@pytest.mark.parametrize("path", APIS)
async def test_the_error_of_a_long_prompt_has_the_words_that_agents_know(path: str) -> None:
    async with open_server() as local:
        refused = await local.client.post(path, json=ask(path, "word " * 9000))
        assert refused.status_code == 400
        error = error_of(path, refused)
        if path == MESSAGES:
            assert error["message"].startswith("prompt is too long")
        else:
            assert error["code"] == "context_length_exceeded"


@pytest.mark.parametrize("path", APIS)
async def test_the_log_has_what_an_engine_did_and_no_prompt_that_was_too_long(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM's logs of the Messages API had a traceback for each of these."""
    told: list[logging.LogRecord] = []
    log = logging.getLogger("vllm.entrypoints.anthropic.api_router")
    monkeypatch.setattr(log, "callHandlers", told.append)
    async with open_server() as local:
        refused = await local.client.post(path, json=ask(path, "word " * 9000))
    assert (refused.status_code, told) == (400, [])
    try:
        raise RuntimeError("it broke")
    except RuntimeError:
        log.exception("Error in create_messages")
    assert [record.getMessage() for record in told] == ["Error in create_messages"]


@pytest.mark.parametrize("path", APIS)
async def test_models_are_listed_and_others_are_not_found(path: str) -> None:
    async with open_server() as local:
        refused = await local.client.post(path, json={**ask(path, "hi"), "model": "gpt-4"})
        assert refused.status_code == 404
        assert "gpt-4" in error_of(path, refused)["message"]
        listed = (await local.client.get("/v1/models")).json()["data"]
        assert [model["id"] for model in listed] == [MODEL]
        assert (await local.client.get(f"/v1/models/{MODEL}")).json()["id"] == MODEL
        assert (await local.client.get("/v1/models/other")).status_code == 404


@pytest.mark.parametrize("path", ["/v1/embeddings", "/rerank", "/classify"])
async def test_a_model_that_generates_says_that_it_has_no_embeddings(path: str) -> None:
    async with open_server() as local:
        refused = await local.client.post(path, json={"model": MODEL, "input": "hi"})
    assert refused.status_code == 404
    assert f"{MODEL!r} generates text, and has no {path}; it has /v1/chat/comp" in refused.text


@pytest.mark.parametrize(
    "path",
    ["/ping", "/invocations", "/kv_event_sources", "/sleep", "/reset_prefix_cache",
     "/collective_rpc", "/server_info", "/scale_elastic_ep", "/start_profile", "/nothing"],
)  # fmt: skip
async def test_routes_that_control_the_engine_are_not_public(path: str) -> None:
    async with open_server() as local:
        assert (await local.client.post(path, json={})).status_code == 404
        assert (await local.client.get(path)).status_code == 404


async def test_adapters_are_loaded_by_operators_only() -> None:
    """vLLM itself has the route only where its environment says so."""
    from agentrt.serving.frontend.dispatch import is_public

    assert is_public("/v1/load_lora_adapter", operator=True)
    assert not is_public("/v1/load_lora_adapter", operator=False)
    assert is_public(CHAT, operator=False)


async def test_each_model_of_a_strict_server_knows_its_own_fields(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first model has no chats, as an embedding model."""
    app = FastAPI()

    @app.post("/v1/embeddings")
    async def embed(body: dict[str, Any]) -> None: ...

    embedder = SimpleNamespace(app=app, names=("embedder",))

    async def both(*args: Any, **options: Any) -> tuple[Any, Any]:
        engine, fronts = await engine_and_fronts(*args, **options)
        return engine, (embedder, *fronts)

    monkeypatch.setattr("tests.serving.local.engine_and_fronts", both)
    async with open_server(strict=True) as local:
        for path in APIS:
            fine = await local.client.post(path, json=ask(path, "hi"))
            assert fine.status_code == 200, fine.text
            refused = await local.client.post(path, json={**ask(path, "hi"), "top_kk": 5})
            assert refused.status_code == 400
            assert error_of(path, refused)["message"].startswith("top_kk: unknown field")


async def test_a_model_without_names_is_called_as_the_command_called_it_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Clients of `vllm serve FOLDER` name the folder."""
    opened: list[Any] = []

    async def unnamed(*args: Any, **options: Any) -> tuple[Any, Any]:
        engine, _ = await engine_and_fronts(*args, **options)
        first = replace(engine, front=None)
        opened.append(await open_frontend(first))
        opened.append(await open_frontend(first, (MODEL, "again")))
        return engine, opened

    monkeypatch.setattr("tests.serving.local.engine_and_fronts", unnamed)
    async with open_server() as local:
        for path in APIS:
            for model in (local.engine.model, local.engine.model.rpartition("/")[2]):
                answer = await local.client.post(path, json={**ask(path, "hi"), "model": model})
                assert answer.status_code == 200, answer.text
                assert answer.json()["model"] == local.engine.model.rpartition("/")[2]
        listed = (await local.client.get("/v1/models")).json()["data"]
        own_name = local.engine.model.rpartition("/")[2]
        assert [card["id"] for card in listed] == [own_name, MODEL, "again"]
        answer = await local.chat("hi", model="again")
        assert answer["model"] == MODEL
    for front in opened:
        await front.close()


@pytest.mark.parametrize("backend", ["guidance", "outlines", "lm-format-enforcer", "xgrammar"])
async def test_tools_are_answered_with_every_grammar_library(backend: str) -> None:
    """Not each of them can constrain the calls of tools that need not be strict."""
    library = ("--structured-outputs-config", json.dumps({"backend": backend}))
    async with open_server(flags=(*library, "--tool-call-parser", "hermes")) as local:
        schema = {"type": "object", "properties": {"city": {"type": "string"}}}
        tool = {"type": "function", "function": {"name": "weather", "parameters": schema}}
        answer = await local.chat("hi", tools=[tool])
        assert answer["choices"][0]["message"]["content"]
        (call,) = local.engine.calls
        assert (call.spec.rendered.params.structured_outputs is None) == (backend != "xgrammar")


async def test_strict_servers_name_the_field_that_they_do_not_know() -> None:
    cases: list[tuple[str, Any, str]] = [
        (CHAT, {"top_kk": 5}, "top_kk"),
        (CHAT, {"messages": [{"role": "user", "content": "x", "mood": "good"}]}, "messages.0.mood"),
        (CHAT, {"stream": True, "stream_options": {"usage": True}}, "stream_options.usage"),
        (MESSAGES, {"top_kk": 5}, "top_kk"),
        (RESPONSES, {"top_kk": 5}, "top_kk"),
        (COMPLETIONS, {"top_kk": 5}, "top_kk"),
    ]
    async with open_server(strict=True) as local:
        for path in APIS:
            more = {"metadata": {"a": "b"}} if path in (MESSAGES, RESPONSES) else {"top_k": 5}
            hints = {"program_id": "p", "nvext": {"agent_hints": {"osl": 5}}, "session_params": {}}
            fine = await local.client.post(path, json=ask(path, "hi", **more, **hints))
            assert fine.status_code == 200, fine.text
        for path, change, field in cases:
            refused = await local.client.post(path, json={**ask(path, "hi"), **change})
            assert refused.status_code == 400, (path, change)
            assert error_of(path, refused)["message"].startswith(f"{field}: unknown field")
    async with open_server() as local:
        for path, change, _ in cases:
            body = {**ask(path, "hi"), **change}
            answer = await local.client.post(path, json=body)
            assert answer.status_code == 200, answer.text


async def test_a_tenants_salt_and_a_clients_own_go_together() -> None:
    async with open_server(isolate=True) as local:
        for path in (CHAT, MESSAGES, RESPONSES):
            more = {"cache_salt": "mine"}
            said = {"x-agentrt-tenant": "a"}
            await local.client.post(path, json=ask(path, "hi", **more), headers=said)
        assert {call.spec.cache_salt for call in local.engine.calls} == {"a/mine"}


# -- bounds ----------------------------------------------------------------------------------


def chat_format(schema: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}}


OPTIONAL = {"type": "object", "properties": {f"p{i}": {} for i in range(MOST_OPTIONAL + 1)}}
WIDE = {"enum": list(range(MOST_NODES))}
LONG = {"type": "string", "minLength": MOST_REPEATS + 1}
PATTERN = {"type": "string", "pattern": "a" * (LONGEST_PATTERN + 1)}
REPEATS = {"type": "string", "pattern": f"(a{{1,{MOST_REPEATS}}}){{2}}"}
LENGTHS = {"items": [{"type": "string", "maxLength": 9 + i} for i in range(MOST_LENGTHS + 1)]}
ENUM = {"enum": ["a" * (MOST_ENUM_CHARACTERS // 2), "a" * (MOST_ENUM_CHARACTERS // 2 + 1)]}


@pytest.mark.parametrize("schema", [OPTIONAL, WIDE, LONG, PATTERN, REPEATS, LENGTHS, ENUM])
@pytest.mark.parametrize(
    ("path", "where"),
    [
        (CHAT, lambda s: chat_format(s)),
        (CHAT, lambda s: {"tools": [{"function": {"parameters": s}}]}),
        (CHAT, lambda s: {"structured_outputs": {"json": s}}),
        (MESSAGES, lambda s: {"output_config": {"format": {"schema": s}}}),
        (MESSAGES, lambda s: {"tools": [{"input_schema": s}]}),
        (RESPONSES, lambda s: {"text": {"format": {"schema": s}}}),
        (RESPONSES, lambda s: {"tools": [{"parameters": s}]}),
    ],
)
def test_a_schema_that_would_keep_a_core_busy_is_refused(
    path: str, where: Any, schema: Any
) -> None:
    with pytest.raises(ApiError, match=r"this server takes \d+ at most") as refused:
        check_bounds(path, where(schema))
    assert str(refused.value.param).split(".")[0] in where(schema)


def test_a_text_may_be_as_long_as_an_agent_allows() -> None:
    """Claude Code has a tool whose argument may have half a million characters."""
    longest = {"properties": {"script": {"type": "string", "maxLength": 524_288}}}
    check_bounds(MESSAGES, {"tools": [{"name": "run", "input_schema": longest}]})


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"stop": ["x" * 2000]}, "stop"),
        ({"stop": "x" * 2000}, "stop"),
        ({"stop_token_ids": [1] * 2000}, "stop_token_ids"),
        ({"logit_bias": {str(n): 1 for n in range(2000)}}, "logit_bias"),
        ({"tools": [{}] * 2000}, "tools"),
        ({"messages": [{"role": "user", "content": "a"}] * 2049}, "messages"),
        ({"messages": [[]] * 2_000_000}, "messages"),
        ({"messages": [{"role": "user", "content": [{}] * 9000}]}, "messages"),
        ({"input": [{"role": "user", "content": "a"}] * 2049}, "input"),
        ({"structured_outputs": {"grammar": "x" * 70_000}}, "structured_outputs.grammar"),
        ({"structured_outputs": {"json": "x" * 70_000}}, "structured_outputs.json"),
        ({"structured_outputs": {"regex": "x" * 5000}}, "structured_outputs"),
        ({"structured_outputs": {"choice": ["x"] * 30_000}}, "structured_outputs.choice"),
    ],
)
def test_long_lists_and_texts_are_refused(body: dict[str, Any], field: str) -> None:
    with pytest.raises(ApiError) as refused:
        check_bounds(CHAT, body)
    assert refused.value.param == field
    with pytest.raises(ApiError) as refused:
        check_bounds(MESSAGES, {"stop_sequences": ["x" * 2000]})
    assert refused.value.param == "stop_sequences"


def test_how_many_calls_a_request_makes() -> None:
    assert calls_of(CHAT, {"n": 3}) == 3
    assert calls_of(COMPLETIONS, {"prompt": ["a", "b"], "n": 2}) == 4
    assert calls_of(COMPLETIONS, {"prompt": [[1, 2], [3]]}) == 2
    assert (
        calls_of(COMPLETIONS, {"prompt": [1, 2, 3]}) == calls_of(COMPLETIONS, {"prompt": []}) == 1
    )
    assert calls_of(f"{CHAT}/batch", {"messages": [[], []]}) == 2
    with pytest.raises(ApiError, match="n: "):
        calls_of(CHAT, {"n": MOST_CHOICES + 1})
    with pytest.raises(ApiError, match="prompt: "):
        calls_of(COMPLETIONS, {"prompt": ["x"] * (MOST_CALLS // 2 + 1), "n": 2})
    with pytest.raises(ApiError, match=r"messages: \d+ choices times chats") as refused:
        calls_of(f"{CHAT}/batch", {"messages": [[]] * (MOST_CALLS + 1)})
    assert refused.value.param == "messages"


@pytest.mark.parametrize("count", [1000, "1000", 1000.0])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_the_limit_on_choices_holds_however_the_number_is_written(
    path: str, count: Any
) -> None:
    """vLLM reads ``"1000"`` and ``1000.0`` as the number."""
    async with open_server() as local:
        refused = await local.client.post(path, json=ask(path, "hi", n=count, temperature=1))
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "n")
        assert not local.engine.calls
        chosen = await local.client.post(path, json=ask(path, "hi", n="2", temperature=1))
        assert len(chosen.json()["choices"]) == 2
        assert local.server.tenants.calls("default") == 0
