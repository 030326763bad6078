"""Every block and tool of Anthropic's API, in every place of a request: what this server cannot do
is left out, with a note in a header and the log, and the rest is answered.
"""

from __future__ import annotations

import copy
import json
import logging
import random
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
from anthropic.types.beta import BetaContentBlockParam, BetaToolUnionParam
from anthropic.types.beta.beta_tool_result_block_param import Content as ResultContent

from agentrt.request import Call
from agentrt.serving.frontend.conversations import MESSAGES
from agentrt.serving.frontend.messages import read_request
from agentrt.serving.server import Bounds
from tests.serving.frontend.anthropic_types import distinct, examples
from tests.serving.frontend.test_response_fuzz import spoiled
from tests.serving.local import MODEL, SAYS, LocalServer, called, open_server

pytestmark = pytest.mark.engine

COUNT = f"{MESSAGES}/count_tokens"
LEFT_OUT = "x-agentrt-left-out"
WEATHER = {
    "name": "get_weather",
    "description": "Say the weather.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}
HI = {"role": "user", "content": "hi"}
SAID = {"role": "assistant", "content": "Yes?"}
CALLED = {"type": "tool_use", "id": "a", "name": "get_weather", "input": {}}
NEW = [
    {"type": "brand_new"},
    {"type": "brand_new", "text": ["x"], "content": {"type": "text"}, "source": 5, "id": 7},
    {"type": "brand_new_tool_result", "tool_use_id": "s", "content": [{"type": "brand_new"}]},
    {"type": "brand_new_tool_result", "content": None},
    {"type": "server_tool_use", "id": "s", "name": "brand_new", "input": {"a": [1]}},
    {"text": "a text without a type"},
    "a text",
]
"""Blocks that no version of the API has yet, or that are almost those that it has."""
BLOCKS = [
    *distinct(examples(BetaContentBlockParam, whole=False)),
    *distinct(examples(BetaContentBlockParam, whole=True)),
    *NEW,
]
PARTS = [
    *distinct(examples(ResultContent, whole=False)),
    *distinct(examples(ResultContent, whole=True)),
    *NEW,
]
TOOLS = [
    *distinct(examples(BetaToolUnionParam, whole=False)),
    *distinct(examples(BetaToolUnionParam, whole=True)),
    {"type": "brand_new_20300101", "name": "brand_new", "options": {"a": 1}},
    {"type": "brand_new_20300101"},
]
PLACES: dict[str, Callable[[Any], dict[str, Any]]] = {
    "a user's turn": lambda block: {
        "messages": [HI, SAID, {"role": "user", "content": [block, {"type": "text", "text": "x"}]}]
    },
    "a user's turn alone": lambda block: {"messages": [{"role": "user", "content": [block]}]},
    "an assistant's turn": lambda block: {
        "messages": [HI, {"role": "assistant", "content": [block]}, HI]
    },
    "a system message": lambda block: {
        "messages": [HI, SAID, {"role": "system", "content": [block]}, HI]
    },
    "the system prompt": lambda block: {"messages": [HI], "system": [block]},
}


def body(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "max_tokens": 8, "tools": [WEATHER], "messages": [HI], **fields}


async def counted(local: LocalServer, **fields: Any) -> Any:
    """The answer to a request that counts tokens, which has the same chat and makes no call."""
    asked = body(**fields)
    del asked["max_tokens"]
    return await local.client.post(COUNT, json=asked)


@cache
def tokenizer() -> Any:
    from tokenizers import Tokenizer

    from agentrt.executors.vllm.default_model import embedded_model

    return Tokenizer.from_file(f"{embedded_model(lambda message: None)}/tokenizer.json")


def prompt_of(local: LocalServer) -> str:
    """The text of the newest call's prompt."""
    ids = local.engine.calls[-1].spec.prompt_token_ids
    return str(tokenizer().decode(list(ids), skip_special_tokens=False))


@pytest.mark.parametrize("place", PLACES)
async def test_every_block_in_every_place_is_answered(place: str) -> None:
    async with open_server() as local:
        for block in BLOCKS:
            answer = await counted(local, **PLACES[place](block))
            assert answer.status_code == 200, (block, answer.text)


async def test_every_part_of_a_result_is_answered() -> None:
    async with open_server() as local:
        for part in PARTS:
            result = {"type": "tool_result", "tool_use_id": "a", "content": [part]}
            chat = [HI, {"role": "assistant", "content": [CALLED]}]
            for content in ([part], part, [part, {"type": "text", "text": "x"}]):
                turn = {"role": "user", "content": [{**result, "content": content}]}
                answer = await counted(local, messages=[*chat, turn])
                assert answer.status_code == 200, (part, answer.text)


@pytest.mark.parametrize("stream", [False, True])
async def test_every_kind_of_block_is_answered_whole_and_streamed(stream: bool) -> None:
    kinds = {str(block.get("type")): block for block in BLOCKS if isinstance(block, dict)}
    async with open_server() as local:
        for block in kinds.values():
            for place in PLACES.values():
                asked = body(**place(block), stream=stream)
                answer = await local.client.post(MESSAGES, json=asked)
                assert answer.status_code == 200, (block, answer.text)
                assert SAYS.split()[-1] in answer.text
                assert "event: error" not in answer.text


@pytest.mark.parametrize("stream", [False, True])
async def test_every_tool_is_answered_alone_and_beside_another(stream: bool) -> None:
    kinds = {tool.get("type"): tool for tool in TOOLS}
    async with open_server() as local:
        for tool in kinds.values():
            several: list[dict[str, Any]] = [
                {"tools": [tool]},
                {"tools": [tool, WEATHER], "tool_choice": {"type": "auto"}},
                {"tools": [WEATHER, tool], "tool_choice": {"type": "none"}},
            ]
            for fields in several:
                answer = await local.client.post(MESSAGES, json=body(**fields, stream=stream))
                assert answer.status_code == 200, (tool, answer.text)
                assert "event: error" not in answer.text


async def test_every_form_of_a_tool_is_counted() -> None:
    async with open_server() as local:
        for tool in TOOLS:
            for tools in ([tool], [tool, WEATHER], [WEATHER, tool, tool]):
                answer = await counted(local, tools=tools)
                assert answer.status_code == 200, (tool, answer.text)


ODD_CHOICES: list[dict[str, Any]] = [
    *({"type": kind} for kind in ("auto", "any", "none", "tool", "brand_new")),
    *({"type": "tool", "name": name} for name in ("web_search", ["x"], {"a": 1})),
]


def spoiled_request(chance: random.Random) -> dict[str, Any]:
    """A request with blocks and tools that have values of wrong types in some places."""
    place = chance.choice(list(PLACES.values()))
    fields = place(spoiled(chance.choice(BLOCKS), chance))
    tools = [spoiled(tool, chance) for tool in chance.sample([*TOOLS, WEATHER], 3)]
    return {**fields, "tools": tools, "tool_choice": chance.choice(ODD_CHOICES)}


async def test_spoiled_blocks_and_tools_never_fail_the_server() -> None:
    chance = random.Random(3)
    for _ in range(3000):
        fields = spoiled_request(chance)
        before = copy.deepcopy(fields)
        read_request(fields)
        assert fields == before, "the client's own form is kept"
    async with open_server() as local:
        statuses = []
        for _ in range(200):
            answer = await counted(local, **spoiled_request(chance))
            statuses.append(answer.status_code)
            assert answer.status_code in (200, 400), answer.text
    assert statuses.count(200) > 40


@pytest.mark.parametrize(
    "block",
    [
        {"type": ["text"], "text": "x"},
        {"type": {"a": 1}},
        {"type": "document", "source": {"type": "url", "url": "http://[bad"}},
        {"type": "compaction", "content": "They met.", "tool_changes": 5},
        {"type": "compaction", "content": "They met.", "tool_changes": [{"type": ["x"]}]},
    ],
)
@pytest.mark.parametrize("place", PLACES)
async def test_blocks_with_values_of_wrong_types_are_answered(
    place: str, block: dict[str, Any]
) -> None:
    async with open_server() as local:
        answer = await counted(local, **PLACES[place](block))
        assert answer.status_code == 200, answer.text


async def test_a_turn_that_only_changes_the_tools_is_answered() -> None:
    computer = {
        "type": "computer_20250124",
        "name": "computer",
        "display_width_px": 8,
        "display_height_px": 8,
    }
    change = {
        "type": "tool_addition",
        "tool": {"type": "tool_definition", "definition": computer},
    }
    async with open_server() as local:
        answer = await local.client.post(
            MESSAGES, json=body(messages=[{"role": "user", "content": [change]}])
        )
        assert answer.status_code == 200, answer.text
        assert "Use a screen of 8 x 8 pixels" in prompt_of(local)


@pytest.mark.parametrize("tools", [[], [WEATHER]])
async def test_a_choice_of_an_unknown_type_is_left_out(tools: list[Any]) -> None:
    async with open_server() as local:
        asked = body(tools=tools, tool_choice={"type": "brand_new", "x": 1})
        answer = await local.client.post(MESSAGES, json=asked)
        assert (answer.status_code, answer.headers[LEFT_OUT]) == (200, "tool_choice:brand_new")


def call_weather(call: Call) -> str:
    return called(("get_weather", {"city": "Rome"}))


async def test_a_choice_of_a_tool_that_is_left_out_becomes_a_free_one() -> None:
    search = {"type": "web_search_20250305", "name": "web_search"}
    chosen = {"type": "tool", "name": "web_search"}
    async with open_server() as local:
        alone = await local.client.post(MESSAGES, json=body(tools=[search], tool_choice=chosen))
        assert alone.status_code == 200
        assert "web_search" in alone.headers[LEFT_OUT]
        any_tool = body(tools=[search], tool_choice={"type": "any"})
        assert (await local.client.post(MESSAGES, json=any_tool)).status_code == 200
    async with open_server(call_weather) as local:
        beside = await local.client.post(
            MESSAGES, json=body(tools=[search, WEATHER], tool_choice=chosen, max_tokens=64)
        )
        [call] = [b for b in beside.json()["content"] if b["type"] == "tool_use"]
        assert (call["name"], call["input"]) == ("get_weather", {"city": "Rome"})


async def test_omitted_parts_are_named_in_a_header_and_once_in_the_log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentrt.serving.frontend.left_out._logged", set())
    tools = [{"type": "web_search_20250305", "name": "web_search"}, WEATHER]
    turn = {"role": "user", "content": [{"type": "bränd\nnew"}, {"type": "text", "text": "hi"}]}
    async with open_server() as local:
        for stream in (False, True):
            asked = body(tools=tools, messages=[turn], stream=stream)
            answer = await local.client.post(MESSAGES, json=asked)
            assert answer.headers[LEFT_OUT] == "web_search_20250305, br?nd?new"
        plain = await local.client.post(MESSAGES, json=body())
        assert LEFT_OUT not in plain.headers
    [noted] = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert "web_search_20250305, br?nd?new" in noted
    assert noted.startswith(MESSAGES)


@pytest.mark.parametrize(
    ("kind", "name", "arguments"),
    [
        ("bash_20250124", "bash", {"command": "ls"}),
        ("text_editor_20250728", "str_replace_based_edit_tool", {"command": "view", "path": "/a"}),
        ("text_editor_20241022", "str_replace_editor", {"command": "undo_edit", "path": "/a"}),
        ("memory_20250818", "memory", {"command": "view", "path": "/memories"}),
        ("computer_20250124", "computer", {"action": "screenshot"}),
    ],
)
async def test_tools_that_the_client_runs_are_called(
    kind: str, name: str, arguments: dict[str, Any]
) -> None:
    tool: dict[str, Any] = {"type": kind, "name": name}
    if name == "computer":
        tool |= {"display_width_px": 800, "display_height_px": 600}
    async with open_server(lambda call: called((name, arguments))) as local:
        answer = await local.client.post(MESSAGES, json=body(tools=[tool, WEATHER], max_tokens=64))
        assert LEFT_OUT not in answer.headers
        [call] = [b for b in answer.json()["content"] if b["type"] == "tool_use"]
        assert (call["name"], call["input"]) == (name, arguments)
        assert name in prompt_of(local)


async def test_deferred_tools_are_shown_where_no_search_can_load_them() -> None:
    late = {**WEATHER, "defer_loading": True}
    search = {"type": "tool_search_tool_regex_20251119", "name": "tool_search_tool_regex"}
    async with open_server() as local:
        await local.post(MESSAGES, body(tools=[search, late]))
        assert "get_weather" in prompt_of(local)


SEARCHED: list[dict[str, Any]] = [
    {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "tides"}},
    {
        "type": "web_search_tool_result",
        "tool_use_id": "s1",
        "content": [
            {
                "type": "web_search_result",
                "url": "https://tides.example",
                "title": "Tides today",
                "encrypted_content": "opaque",
            }
        ],
    },
    {"type": "text", "text": "High at noon."},
]


async def test_a_call_that_a_server_ran_is_a_call_with_its_result() -> None:
    """The chat template shows it like the call of an ordinary tool."""
    own = [
        {"role": "assistant", "content": [{**SEARCHED[0], "type": "tool_use"}]},
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "s1",
                    "content": "Tides today\nhttps://tides.example",
                }
            ],
        },
        {"role": "assistant", "content": "High at noon."},
    ]
    async with open_server() as local:
        await local.post(
            MESSAGES, body(messages=[HI, {"role": "assistant", "content": SEARCHED}, HI])
        )
        theirs = prompt_of(local)
        await local.post(MESSAGES, body(messages=[HI, *own, HI]))
        assert theirs == prompt_of(local)
        assert "Tides today" in theirs
        assert "opaque" not in theirs


@pytest.mark.parametrize(
    ("block", "texts"),
    [
        (
            {
                "type": "document",
                "title": "Notes",
                "context": "of May",
                "source": {"type": "text", "media_type": "text/plain", "data": "It rained."},
            },
            ["Notes", "of May", "It rained."],
        ),
        (
            {
                "type": "document",
                "source": {"type": "content", "content": [{"type": "text", "text": "It rained."}]},
            },
            ["It rained."],
        ),
        (
            {
                "type": "search_result",
                "source": "https://a.example",
                "title": "Rain",
                "content": [{"type": "text", "text": "It rained."}],
            },
            ["https://a.example", "Rain", "It rained."],
        ),
        (
            {
                "type": "document",
                "title": "report.pdf",
                "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBE"},
            },
            ["report.pdf", "not shown"],
        ),
    ],
)
async def test_documents_and_search_results_are_read(
    block: dict[str, Any], texts: list[str]
) -> None:
    places = [
        [{"role": "user", "content": [block]}],
        [HI, {"role": "assistant", "content": [block]}, HI],
        [
            HI,
            {"role": "assistant", "content": [CALLED]},
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": "a", "content": [block]}],
            },
        ],
    ]
    async with open_server() as local:
        for chat in places:
            answer = await local.client.post(MESSAGES, json=body(messages=chat))
            assert ("pdf" in answer.headers.get(LEFT_OUT, "")) == ("not shown" in texts)
            prompt = prompt_of(local)
            assert all(text in prompt for text in texts), prompt


@pytest.mark.parametrize("more", [[], [{"type": "text", "text": "I go on."}]])
async def test_a_compaction_replaces_all_messages_before_it(more: list[Any]) -> None:
    compacted = [{"type": "compaction", "content": "They met."}, *more]
    old = [{"role": "user", "content": "a long story"}]
    async with open_server() as local:
        chat = [*old, {"role": "assistant", "content": compacted}, HI]
        await local.post(MESSAGES, body(messages=chat))
        prompt = prompt_of(local)
        assert "They met." in prompt
        assert "a long story" not in prompt
        assert ("I go on." in prompt) == bool(more)
        failed = [*old, {"role": "assistant", "content": [{"type": "compaction"}, *more]}, HI]
        await local.post(MESSAGES, body(messages=failed))
        assert "a long story" in prompt_of(local)


async def test_a_chat_with_blocks_of_servers_stays_one_program() -> None:
    async with open_server() as local:
        chat = [HI, {"role": "assistant", "content": SEARCHED}, HI]
        answer = await local.post(MESSAGES, body(messages=chat))
        chat += [{"role": "assistant", "content": answer["content"]}, {**HI, "content": "and?"}]
        await local.post(MESSAGES, body(messages=chat))
        compacted = {"role": "assistant", "content": [{"type": "compaction", "content": "Sum."}]}
        await local.post(MESSAGES, body(messages=[*chat, compacted, HI]))
        assert len(local.programs()) == 1


def test_a_chat_that_vllm_takes_is_not_copied() -> None:
    asked = body(
        messages=[
            HI,
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "x"}, CALLED]},
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": "a", "content": "r"}],
            },
        ],
        system=[{"type": "text", "text": "s"}],
    )
    assert read_request(asked).body is asked


@pytest.mark.parametrize(
    "fields",
    [
        {"thinking": {"type": "between_tools"}},
        {"thinking": {"type": "brand_new", "x": 1}},
        {"thinking": {"type": "adaptive", "display": "brand_new"}},
        {"output_config": {"effort": "brand_new"}},
        {"output_config": {"format": {"type": "brand_new"}, "effort": "low"}},
        {"mcp_servers": [{"type": "url", "url": "https://x.example", "name": "x"}]},
        {"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}},
    ],
)
async def test_settings_of_later_versions_are_answered(fields: dict[str, Any]) -> None:
    async with open_server() as local:
        answer = await local.client.post(MESSAGES, json=body(**fields))
        assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(
    "wrong",
    [
        {"messages": "hi"},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]},
        {"messages": [{"role": "nobody", "content": "x"}]},
        {"tools": [{"name": "x"}]},
        {"tools": [{"type": "function", "function": {"name": "x", "parameters": {}}}]},
        {"model": "gpt-4"},
        {"messages": [{"role": "user", "content": "word " * 9000}]},
    ],
)
async def test_mistakes_are_refused_in_the_same_form_when_tokens_are_counted(
    wrong: dict[str, Any],
) -> None:
    async with open_server() as local:
        made = await local.client.post(MESSAGES, json=body(**wrong))
        counts = await counted(local, **wrong)
        if "word" in json.dumps(wrong):  # a count has no limit
            assert counts.json().get("input_tokens", 9000) >= 9000
            return
        for answer in (made, counts):
            error = answer.json()
            assert answer.status_code in (400, 404)
            assert (error["type"], sorted(error["error"])) == ("error", ["message", "type"])
            assert error["error"]["type"] in ("invalid_request_error", "not_found_error")


async def test_every_refusal_below_messages_has_anthropic_s_form() -> None:
    json_type = {"content-type": "application/json"}
    async with open_server(bounds=Bounds(body_bytes=4096)) as local:
        client = local.client
        for path in (MESSAGES, COUNT):
            answers = {
                "invalid_request_error": [
                    await client.get(path),
                    await client.post(path, content=b"{", headers=json_type),
                    await client.post(path, content=b"{}", headers={"content-type": "text/plain"}),
                    await client.post(
                        path, content=b"x", headers={**json_type, "content-encoding": "rot13"}
                    ),
                    await client.post(path, json=[]),
                ],
                "request_too_large": [
                    await client.post(path, content=b" " * 5000, headers=json_type)
                ],
                "not_found_error": [
                    await client.post(f"{MESSAGES}/batches", json={}),
                    await client.post(path, json={**body(), "model": "other"}),
                ],
                "permission_error": [
                    await client.post(path, json={}, headers={"origin": "https://evil.example"})
                ],
            }
            for kind, refusals in answers.items():
                for answer in refusals:
                    error = answer.json()
                    assert error["type"] == "error", answer.text
                    assert error["error"]["type"] == kind, (answer.status_code, answer.text)
                    assert error["error"]["message"]
