"""Tools that a chat loads later leave what is cached as it is, and come to the model all the same.

The template shows tools at the front, as most do.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from agentrt.request import Call
from agentrt.serving.frontend.conversations import CHAT, MESSAGES, RESPONSES
from tests.serving.frontend.test_reminders import shared, tokens
from tests.serving.local import MODEL, LocalServer, open_server

pytestmark = pytest.mark.engine

FRONT = (
    "{% if tools %}<|im_start|>system\n{% for t in tools %}{{ t | tojson }}\n{% endfor %}<|im_end|>"
    "\n{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content or [] %}"
    "{{ p.text or p }}{% endfor %}{% endif %}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function.name }}</tool_call>{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
KNOWS = FRONT + "{# It renders tool_reference by itself. #}"


@pytest.fixture(scope="module")
def flags(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    return flags_of(tmp_path_factory.mktemp("templates") / "front.jinja", FRONT)


def flags_of(path: Path, template: str) -> tuple[str, ...]:
    path.write_text(template, encoding="utf-8")
    return ("--chat-template", str(path), "--tool-call-parser", "hermes")


def tool(name: str, **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "description": f"It is called {name}.",
        "input_schema": {"type": "object", "properties": {"x": {"type": "string"}}},
        **more,
    }


def search(number: int, *names: str, text: str | None = None) -> list[dict[str, Any]]:
    """A search for tools, and its result as Claude Code sends it."""
    found: list[Any] = [{"type": "tool_reference", "tool_name": name} for name in names]
    if text is not None:
        found.insert(0, {"type": "text", "text": text})
    use = {"type": "tool_use", "id": f"t{number}", "name": "ToolSearch", "input": {}}
    result = {"type": "tool_result", "tool_use_id": f"t{number}", "content": found}
    return [
        {"role": "assistant", "content": [use]},
        {"role": "user", "content": [result]},
        {"role": "user", "content": "Tool loaded."},
    ]


async def message(local: LocalServer, chat: list[Any], tools: list[Any]) -> str:
    """Send a message; its whole prompt."""
    body = {"model": MODEL, "max_tokens": 32, "messages": chat, "tools": tools}
    headers = {"x-claude-code-session-id": "s1"}
    await local.post(MESSAGES, body, headers)
    return await text_of(local, local.engine.calls[-1])


async def text_of(local: LocalServer, call: Call) -> str:
    answer = await local.client.post("/detokenize", json={"model": MODEL, "tokens": tokens(call)})
    return str(answer.json()["prompt"])


@pytest.mark.parametrize("lists_all", [True, False])
async def test_deferred_tools_stand_behind_what_is_cached(
    flags: tuple[str, ...], lists_all: bool
) -> None:
    """Whether the client lists all deferred tools from the beginning, or only those it loaded."""
    usual = [tool("Edit"), tool("ToolSearch")]
    late = [tool("Alpha", defer_loading=True), tool("Beta", defer_loading=True)]
    hidden = [tool("Zeta", defer_loading=True)] if lists_all else []
    chat: list[Any] = [{"role": "user", "content": "Find what you need."}]
    async with open_server(lambda call: "fine", flags=flags) as local:
        first = await message(local, chat, [*(late if lists_all else ()), *usual, *hidden])
        chat += search(1, "Beta")
        second = await message(local, chat, [*(late if lists_all else late[1:]), *usual, *hidden])
        chat += [{"role": "assistant", "content": "fine"}, {"role": "user", "content": "More?"}]
        chat += search(2, "Alpha", "Beta")
        third = await message(local, chat, [*late, *usual, *hidden])
        calls = [tokens(call) for call in local.engine.calls]
        for earlier, later in itertools.pairwise(calls):
            assert shared(earlier, later) == len(earlier)
    assert "It is called Alpha." not in first + second
    assert third.count("It is called Alpha.") == third.count("It is called Beta.") == 1
    assert second.index("Find what you need.") < second.index("It is called Beta.")
    assert "Zeta" not in third
    assert "defer_loading" not in third
    assert "tool_reference" not in third
    assert "Tool loaded." not in third
    assert "<|im_start|>tool\n<|im_end|>" not in third
    assert third.count("<|im_start|>tool\n") == 2


async def test_a_result_with_text_and_references_is_one_message(flags: tuple[str, ...]) -> None:
    chat: list[Any] = [{"role": "user", "content": "hi"}]
    chat += search(1, "Beta", "Gone", text="Two tools.")
    async with open_server(lambda call: "fine", flags=flags) as local:
        prompt = await message(local, chat, [tool("Beta", defer_loading=True), tool("ToolSearch")])
    assert prompt.count("<|im_start|>tool\n") == 1
    assert prompt.index("Two tools.") < prompt.index("It is called Beta.")


@pytest.mark.parametrize(
    ("texts", "left"),
    [
        (["Tool loaded."], ""),
        (["Tool loaded.\n"], ""),
        (["Tool loaded.", "<system-reminder>x</system-reminder>"], "x"),
        (["<system-reminder>x</system-reminder>", " Tool loaded."], "x"),
        (["Use it.\nTool loaded.\nNow."], "Use it.\nNow."),
    ],
)
async def test_a_placeholder_is_not_shown_with_whatever_it_comes(
    flags: tuple[str, ...], texts: list[str], left: str
) -> None:
    chat: list[Any] = [{"role": "user", "content": "hi"}, *search(1, "Beta")[:-1]]
    chat[-1]["content"] += [{"type": "text", "text": text} for text in texts]
    async with open_server(lambda call: "fine", flags=flags) as local:
        prompt = await message(local, chat, [tool("Beta", defer_loading=True), tool("ToolSearch")])
    assert "Tool loaded." not in prompt
    assert "<|im_start|>user\n<|im_end|>" not in prompt
    assert left in prompt


async def test_users_may_write_what_a_placeholder_says(flags: tuple[str, ...]) -> None:
    use = {"type": "tool_use", "id": "t1", "name": "Edit", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": "done"}
    said = {"type": "text", "text": "Tool loaded."}
    chat = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": [use]},
        {"role": "user", "content": [result, said]},
    ]
    async with open_server(lambda call: "fine", flags=flags) as local:
        prompt = await message(local, chat, [tool("Beta", defer_loading=True), tool("Edit")])
    assert "<|im_start|>user\nTool loaded.<|im_end|>" in prompt


async def test_references_that_load_nothing_say_so(flags: tuple[str, ...]) -> None:
    chat: list[Any] = [{"role": "user", "content": "hi"}, *search(1, "Gone", "Edit")]
    chat[2]["content"][0]["content"] += [
        {"type": "tool_reference", "tool_name": name} for name in (5, ["Beta"], None)
    ]
    async with open_server(lambda call: "fine", flags=flags) as local:
        prompt = await message(local, chat, [tool("Beta", defer_loading=True), tool("Edit")])
    assert "Loaded: Edit\nNot available: Gone<|im_end|>" in prompt


async def test_a_tool_that_is_not_deferred_does_not_say_so(flags: tuple[str, ...]) -> None:
    chat: list[Any] = [{"role": "user", "content": "hi"}]
    async with open_server(lambda call: "fine", flags=flags) as local:
        for more in ({}, {"defer_loading": False}, {"defer_loading": None}):
            await message(local, chat, [tool("Edit", **more)])
        first, *others = [tokens(call) for call in local.engine.calls]
    assert others == [first] * 2


async def test_a_reference_to_a_tool_that_is_shown_already_is_a_name(
    flags: tuple[str, ...],
) -> None:
    chat: list[Any] = [{"role": "user", "content": "hi"}, *search(1, "Beta")]
    async with open_server(lambda call: "fine", flags=flags) as local:
        prompt = await message(local, chat, [tool("Beta"), tool("ToolSearch")])
    assert prompt.count("It is called Beta.") == 1
    assert "<|im_start|>tool\nLoaded: Beta<|im_end|>" in prompt


async def test_a_template_that_knows_references_gets_them(tmp_path: Path) -> None:
    flags = flags_of(tmp_path / "knows.jinja", KNOWS)
    chat: list[Any] = [{"role": "user", "content": "hi"}, *search(1, "Beta")]
    async with open_server(lambda call: "fine", flags=flags) as local:
        prompt = await message(local, chat, [tool("Beta", defer_loading=True), tool("ToolSearch")])
    assert "can be called from now on" not in prompt
    assert prompt.count("It is called Beta.") == 1  # at the front, where this template has it


async def test_the_model_can_call_a_tool_that_was_loaded_later(flags: tuple[str, ...]) -> None:
    said = '<tool_call>\n{"name": "Beta", "arguments": {"x": "y"}}\n</tool_call>'
    chat: list[Any] = [{"role": "user", "content": "hi"}, *search(1, "Beta")]
    tools = [tool("Beta", defer_loading=True), tool("ToolSearch")]
    async with open_server(lambda call: said, flags=flags) as local:
        body = {"model": MODEL, "max_tokens": 64, "messages": chat, "tools": tools}
        answer = await local.post(MESSAGES, body)
    assert [b["name"] for b in answer["content"] if b["type"] == "tool_use"] == ["Beta"]


def as_api(path: str, name: str) -> dict[str, Any]:
    plain = tool(name)
    if path == MESSAGES:
        return plain
    function = {"name": name, "description": plain["description"]}
    function["parameters"] = plain["input_schema"]
    return {"type": "function", **(function if path == RESPONSES else {"function": function})}


@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])
async def test_new_tools_come_behind_those_of_earlier_requests(
    path: str, flags: tuple[str, ...]
) -> None:
    """Without a word of deferring: a client that sorts its tools has new ones of an MCP server."""
    chat = [{"role": "user", "content": "hi"}]
    lists = ["c d e", "a c d e", "a b d e", "c d e", "a b c d e"]
    async with open_server(lambda call: "fine", flags=flags) as local:
        for names in lists:
            body: dict[str, Any] = {
                "model": MODEL,
                "tools": [as_api(path, n) for n in names.split()],
            }
            body["input" if path == RESPONSES else "messages"] = chat
            if path == MESSAGES:
                body["max_tokens"] = 32
            await local.post(path, body, {"x-agentrt-run": "p"})
        seen = [order_in(await text_of(local, call)) for call in local.engine.calls]
        await local.post(path, body, {"x-agentrt-run": "other"})
        other = order_in(await text_of(local, local.engine.calls[-1]))
    assert seen == ["c d e", "c d e a", "d e a b", "c d e", "c d e a b"]
    assert other == "a b c d e"


def order_in(prompt: str) -> str:
    places = {n: prompt.find(f"It is called {n}.") for n in "abcde"}
    return " ".join(sorted((n for n in places if places[n] >= 0), key=lambda n: places[n]))


def test_malformed_tools_are_passed_on_unchanged() -> None:
    from agentrt.serving.programs.client_programs import ClientProgram

    program: Any = object.__new__(ClientProgram)
    program.tools = {}
    odd: list[Any] = [None, 1, "x", {}, {"function": 3}, {"type": "mcp", "server_label": "s"}]
    assert list(program.in_order(odd)) == odd
    again = list(program.in_order(list(reversed(odd))))
    assert sorted(map(str, again)) == sorted(map(str, odd))
