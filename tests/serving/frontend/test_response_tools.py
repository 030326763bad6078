"""Tools of a client's own kinds are called by models that know functions only: in each family, the
answer has the client's form, whole and streamed.
"""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from agentrt.serving.frontend import response_answers, response_tools
from agentrt.serving.frontend.response_tools import INPUT
from tests.serving.frontend.response_items import GRAMMAR, SCHEMA
from tests.serving.frontend.test_response_items import (  # noqa: F401
    PATH,
    Harmony,
    HeldSaid,
    Said,
    gpt_oss,
    harmony,
    harmony_said,
    held,
    held_said,
    local,
    prompt_of,
    said,
)
from tests.serving.local import MODEL, LocalServer

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]

PATCH = '*** Begin Patch\n"a" ü\\n\n*** End Patch'
TOOLS: list[dict[str, Any]] = [
    {"type": "custom", "name": "patch", "description": "Patch.", "format": GRAMMAR},
    {"type": "local_shell"},
    {"type": "shell", "environment": {"type": "local"}},
    {"type": "apply_patch"},
    {"type": "tool_search", "execution": "client"},
    {
        "type": "namespace",
        "name": "agents",
        "description": "Agents.",
        "tools": [
            {"type": "function", "name": "spawn", "parameters": SCHEMA},
            {"type": "custom", "name": "tell"},
        ],
    },
]
UPDATE = {"type": "update_file", "path": "a.py", "diff": "+b"}
CALLS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "custom": (
        "patch",
        {"input": PATCH},
        {"type": "custom_tool_call", "name": "patch", "input": PATCH},
    ),
    "local_shell": (
        "local_shell",
        {"command": ["ls"]},
        {"type": "local_shell_call", "action": {"type": "exec", "command": ["ls"], "env": {}}},
    ),
    "shell": (
        "shell",
        {"commands": ["ls"]},
        {"type": "shell_call", "action": {"commands": ["ls"]}},
    ),
    "apply_patch": ("apply_patch", UPDATE, {"type": "apply_patch_call", "operation": UPDATE}),
    "tool_search": (
        "tool_search",
        {"query": "tides"},
        {"type": "tool_search_call", "execution": "client", "arguments": {"query": "tides"}},
    ),
    "a namespace": (
        "agents__spawn",
        {"at": 1},
        {"type": "function_call", "namespace": "agents", "name": "spawn", "arguments": '{"at": 1}'},
    ),
    "a custom tool of a namespace": (
        "agents__tell",
        {"input": "hi"},
        {"type": "custom_tool_call", "namespace": "agents", "name": "tell", "input": "hi"},
    ),
}
OUTPUTS = {
    "custom_tool_call": "custom_tool_call_output",
    "local_shell_call": "local_shell_call_output",
    "shell_call": "shell_call_output",
    "apply_patch_call": "apply_patch_call_output",
    "tool_search_call": "tool_search_output",
    "function_call": "function_call_output",
}


@pytest.fixture(params=["local", "harmony", "held"])
def either(request: pytest.FixtureRequest) -> LocalServer:
    """A server of each kind of family: with a format of vLLM's, gpt-oss's, and our own."""
    server: LocalServer = request.getfixturevalue(request.param)
    return server


@pytest.fixture
def says(either: LocalServer, request: pytest.FixtureRequest) -> Said:
    """The output of the server's model."""
    family = request.node.callspec.params["either"]
    name = {"local": "said", "held": "held_said"}.get(family, "harmony_said")
    speaker: Said = request.getfixturevalue(name)
    return speaker


def calling(says: Said, name: str, arguments: Any) -> str:
    """An output that calls a function, in the family's form."""
    if isinstance(says, Harmony):
        text = json.dumps(arguments, ensure_ascii=False)
        head = f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>"
        return f"{head}{text}<|call|>"
    called = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    if isinstance(says, HeldSaid):
        return called
    return f"<tool_call>\n{called}\n</tool_call>"


async def streamed(server: LocalServer, body: Any) -> list[dict[str, Any]]:
    """The events of a streamed answer."""
    return events_in(await server.client.post(PATH, json={**body, "stream": True}))


def events_in(answer: httpx.Response) -> list[dict[str, Any]]:
    assert answer.status_code == 200, answer.text
    lines = [line for line in answer.text.splitlines() if line.startswith("data: {")]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def same(item: dict[str, Any], expected: dict[str, Any]) -> bool:
    return {name: item.get(name) for name in expected} == expected


@pytest.mark.parametrize("kind", CALLS)
async def test_a_call_has_the_form_of_the_clients_tool(
    either: LocalServer,
    says: Said,
    kind: str,
) -> None:
    name, arguments, expected = CALLS[kind]
    says.text = calling(says, name, arguments)
    ask = {"type": "message", "role": "user", "content": "Work."}
    body = {"model": MODEL, "input": [ask], "tools": TOOLS, "max_output_tokens": 300}
    whole = await either.post(PATH, body)
    [call] = whole["output"]
    assert same(call, expected), call
    assert whole["tools"] == TOOLS
    assert (await either.client.get(f"{PATH}/{whole['id']}")).json() == whole

    events = await streamed(either, body)
    assert events[-1]["type"] == "response.completed"
    [last] = events[-1]["response"]["output"]
    assert same(last, expected), last
    [begun] = [event["item"] for event in events if event["type"].endswith("item.added")]
    [done] = [event["item"] for event in events if event["type"].endswith("item.done")]
    assert begun["type"] == done["type"] == expected["type"]
    assert begun["id"] == done["id"]
    assert same(done, expected), done
    inputs = [e for e in events if e["type"].startswith("response.custom_tool_call_input.")]
    if expected["type"] == "custom_tool_call":
        text = "".join(e["delta"] for e in inputs if e["type"].endswith("delta"))
        assert text == inputs[-1]["input"] == expected["input"]
        assert len(inputs) > (2 if text == PATCH else 1)
    else:
        assert not inputs

    # The next turn, by the history and by the response's id: the same prompt.
    output: dict[str, Any] = {"type": OUTPUTS[expected["type"]], "output": "well done"}
    if call["type"] == "local_shell_call":
        output["id"] = call["id"]
    else:
        output["call_id"] = call["call_id"]
    if call["type"] == "tool_search_call":
        output = {**output, "tools": [], "execution": "client"}
    elif call["type"] == "shell_call":
        output["output"] = [{"stdout": "well done", "stderr": "", "outcome": {"type": "exit"}}]
    answer = await either.client.post(PATH, json={**body, "input": [ask, call, output]})
    assert answer.status_code == 200, answer.text
    assert "x-agentrt-left-out" not in answer.headers
    prompt = prompt_of(either)
    assert name in prompt
    assert "well done" in prompt or call["type"] == "tool_search_call"
    more = {**body, "input": [output], "previous_response_id": whole["id"]}
    answer = await either.post(PATH, more)
    assert answer["previous_response_id"] == whole["id"]
    assert prompt_of(either) == prompt


@pytest.mark.parametrize("kind", CALLS)
async def test_a_stream_that_is_resumed_within_a_call_continues_in_the_same_form(
    either: LocalServer, says: Said, kind: str
) -> None:
    name, arguments, _ = CALLS[kind]
    says.text = calling(says, name, arguments)
    body = {"model": MODEL, "input": "Work.", "tools": TOOLS, "background": True}
    events = await streamed(either, body)
    at = f"{PATH}/{events[0]['response']['id']}"
    for number in {event["sequence_number"] for event in events}:
        params = {"stream": "true", "starting_after": number}
        rest = events_in(await either.client.get(at, params=params))
        later = [event for event in events if event["sequence_number"] > number]
        assert [kept_of(event) for event in rest] == [kept_of(event) for event in later]


@pytest.mark.parametrize("text", ["", PATCH, "\\\\u00fc\N{SNOWMAN}\N{OCTOPUS}\t{", '"}'])
@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("form", ["ascii", "utf-8", "plain", "second", "cut off"])
async def test_the_input_of_a_custom_tool_is_read_once(
    text: str, size: int, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The arguments are not read again from their beginning for each of their pieces."""
    values = {"other": 1, INPUT: text} if form == "second" else {INPUT: text}
    whole = text if form == "plain" else json.dumps(values, ensure_ascii=form == "ascii")
    if form == "cut off":
        whole = whole[:-3]
    pieces = [whole[at : at + size] for at in range(0, len(whole), size)]
    read: list[str] = []

    def custom_input(arguments: str) -> str:
        read.append(arguments)
        return response_tools.custom_input(arguments)

    monkeypatch.setattr(response_answers, "custom_input", custom_input)
    edit = response_answers.AnswerEdit({"patch": response_tools.Carrier("custom", "patch")}, {})
    call = {"type": "function_call", "id": "c", "name": "patch", "arguments": whole}
    about = {"item_id": "c", "type": "response.function_call_arguments.delta"}
    sent = [
        {"type": "response.output_item.added", "item": {**call, "arguments": ""}},
        *({**about, "delta": piece} for piece in pieces),
        {**about, "type": "response.function_call_arguments.done", "arguments": whole},
    ]
    answers = [edit.events(b"data: %b\n\n" % json.dumps(event).encode()) for event in sent]
    events = [
        json.loads(line[6:]) for line in b"".join(answers).split(b"\n") if line[:5] == b"data:"
    ]
    *deltas, done = events[1:]
    assert read == [whole]
    assert "".join(event["delta"] for event in deltas) == done["input"]
    assert done["input"] == response_tools.custom_input(whole)
    assert len(deltas) > (1 if form != "second" and len(text) > 3 * size else -1)


def kept_of(event: dict[str, Any]) -> dict[str, Any]:
    """An event without its response, whose status has changed since then."""
    return {name: value for name, value in event.items() if name != "response"}


@pytest.mark.parametrize(
    ("choice", "name"),
    [
        ({"type": "custom", "name": "patch"}, "patch"),
        ({"type": "function", "name": "spawn"}, "agents__spawn"),
        ({"type": "function", "name": "spawn", "namespace": "agents"}, "agents__spawn"),
        ({"type": "local_shell"}, "local_shell"),
        ({"type": "apply_patch"}, "apply_patch"),
        ({"type": "shell"}, "shell"),
    ],
)
async def test_a_tool_can_be_chosen(
    either: LocalServer,
    says: Said,
    choice: Any,
    name: str,
) -> None:
    """The model has to call it: its output is read as a call, and may be held to its form."""
    arguments: dict[str, Any] = {"input": "x"} if name == "patch" else {}
    says.text = calling(says, name, arguments)
    body = {"model": MODEL, "input": "Work.", "tools": TOOLS, "tool_choice": choice}
    answer = await either.post(PATH, body)
    assert answer["tool_choice"] == choice
    assert [item["type"] for item in answer["output"]] == [
        "custom_tool_call"
        if name == "patch"
        else "function_call"
        if "__" in name
        else f"{name}_call"
    ]


async def test_allowed_tools_are_the_only_tools(
    either: LocalServer,
    says: Said,
) -> None:
    says.text = calling(says, "agents__spawn", {})
    allowed = [{"type": "function", "name": "spawn"}, {"type": "image_generation"}]
    choice = {"type": "allowed_tools", "mode": "auto", "tools": allowed}
    body = {"model": MODEL, "input": "Work.", "tools": TOOLS, "tool_choice": choice}
    answer = await either.client.post(PATH, json=body)
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-agentrt-left-out"] == "image_generation"
    assert "spawn" in prompt_of(either)
    assert "local_shell" not in prompt_of(either)


async def test_the_model_reads_the_grammar_of_a_custom_tool(either: LocalServer) -> None:
    body = {"model": MODEL, "input": "Work.", "tools": TOOLS}
    await either.post(PATH, body)
    assert "*** Begin Patch" in prompt_of(either)


@pytest.mark.parametrize("length", [1, 12, 20])
async def test_a_call_that_was_cut_off_has_the_form_too(
    either: LocalServer,
    says: Said,
    length: int,
) -> None:
    says.text = calling(says, "patch", {"input": PATCH})
    body = {"model": MODEL, "input": "Work.", "tools": TOOLS, "max_output_tokens": length}
    whole = await either.post(PATH, body)
    events = await streamed(either, body)
    assert events[-1]["response"]["status"] == whole["status"] == "incomplete"
    kinds = [item["type"] for item in events[-1]["response"]["output"]]
    assert "function_call" not in kinds + [item["type"] for item in whole["output"]]
    calls = [i for i in whole["output"] if i["type"] == "custom_tool_call"]
    assert all(PATCH.startswith(call["input"]) for call in calls)


@pytest.mark.parametrize("tools", [[], [TOOLS[0]], [{"type": "web_search"}]])
@pytest.mark.parametrize("text_input", [True, False])
@pytest.mark.parametrize(
    ("choice", "left_out"),
    [
        (None, None),
        ("brand_new", "tool_choice.brand_new"),
        ({"type": "web_search"}, "tool_choice.web_search"),
        ({"type": "brand_new", "x": 1}, "tool_choice.brand_new"),
        ({"type": "local_shell"}, "tool_choice.local_shell"),
        ({"type": "allowed_tools", "mode": "brand", "tools": []}, "tool_choice.brand"),
        ({"type": "allowed_tools", "mode": "required", "tools": [{"type": "mcp"}]}, "mcp"),
    ],
)
async def test_choices_that_cannot_be_used_are_left_out(
    either: LocalServer,
    choice: Any,
    left_out: str | None,
    text_input: bool,
    tools: list[Any],
) -> None:
    """With an input of either form, and whichever tools there are."""
    asked = "hi" if text_input else [{"role": "user", "content": "hi"}]
    body = {"model": MODEL, "input": asked, "tool_choice": choice, "max_output_tokens": 16}
    answer = await either.client.post(PATH, json=body | ({"tools": tools} if tools else {}))
    assert answer.status_code == 200, answer.text
    types = answer.headers.get("x-agentrt-left-out", "")
    assert left_out is None or left_out in types


@pytest.mark.parametrize(
    ("fields", "left_out"),
    [
        ({"reasoning": {"effort": "ultra", "summary": "auto"}}, "reasoning.effort.ultra"),
        ({"reasoning": {"context": "brand_new"}}, "reasoning.context.brand_new"),
        ({"reasoning": {"effort": "low", "summary": "none"}}, "reasoning.summary.none"),
        ({"text": {"verbosity": "brand_new"}}, "text.verbosity.brand_new"),
        ({"truncation": "brand_new"}, "truncation.brand_new"),
        ({"service_tier": "brand_new"}, "service_tier.brand_new"),
        ({"include": ["brand_new"]}, "include.brand_new"),
    ],
)
@pytest.mark.parametrize("text_input", [True, False])
async def test_values_of_later_versions_are_left_out(
    either: LocalServer, fields: dict[str, Any], left_out: str, text_input: bool
) -> None:
    asked = "hi" if text_input else [{"role": "user", "content": "hi"}]
    body = {"model": MODEL, "input": asked, "max_output_tokens": 16, **fields}
    answer = await either.client.post(PATH, json=body)
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-agentrt-left-out"] == left_out
