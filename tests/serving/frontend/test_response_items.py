"""Histories and tools of all kinds at ``/v1/responses``: what can be answered is answered."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio

from agentrt.request import Call
from tests.serving.frontend.harmony import encode, gpt_oss_in
from tests.serving.frontend.response_items import (
    ITEM_TYPES,
    ITEMS,
    ODD,
    SCHEMA,
    TOOL_TYPES,
    TOOLS,
)
from tests.serving.local import MODEL, LocalServer, open_server

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]

PATH = "/v1/responses"
TEMPLATE = (
    "{% if tools %}<|im_start|>system\n{% for t in tools %}{{ t.function.name }} "
    "{{ t.function.description }}\n{% endfor %}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content or [] %}"
    "{{ p.text or p }}{% endfor %}{% endif %}"
    "{% for c in m.tool_calls or [] %}{{ c.function.name }} {{ c.function.arguments | tojson }}"
    "{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""It shows tools at the front, as most do."""
ASK = {"type": "message", "role": "user", "content": "Go on."}
LEFT_OUT = "x-agentrt-left-out"


class Said:
    """The output of the model."""

    text = "Yes."

    def __call__(self, call: Call) -> Any:
        return self.text


@pytest.fixture(scope="module")
def said() -> Said:
    return Said()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def local(said: Said, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalServer]:
    # The same file in all modules, which share a front end with it.
    path = tmp_path_factory.getbasetemp() / "front.jinja"
    path.write_text(TEMPLATE, encoding="utf-8")
    flags = ("--enable-auto-tool-choice", "--tool-call-parser=hermes", f"--chat-template={path}")
    async with open_server(said, flags=flags) as opened:
        yield opened


@pytest.fixture(scope="module")
def gpt_oss(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with gpt_oss_in(tmp_path_factory.getbasetemp() / "gpt-oss") as model:
        yield model


class Harmony(Said):
    """The same in gpt-oss's format."""

    text = "<|channel|>final<|message|>Yes.<|return|>"

    def __call__(self, call: Call) -> Any:
        return encode(super().__call__(call))


@pytest.fixture(scope="module")
def harmony_said() -> Harmony:
    return Harmony()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def harmony(gpt_oss: str, harmony_said: Harmony) -> AsyncIterator[LocalServer]:
    async with open_server(harmony_said, model=gpt_oss) as opened:
        yield opened


class HeldSaid(Said):
    """The output of a model that must obey our tool format."""

    text = json.dumps({"answer": "Yes."})


@pytest.fixture(scope="module")
def held_said() -> HeldSaid:
    return HeldSaid()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def held(held_said: HeldSaid) -> AsyncIterator[LocalServer]:
    async with open_server(held_said) as opened:
        yield opened


@pytest.fixture(params=["local", "harmony"])
def either(request: pytest.FixtureRequest) -> LocalServer:
    """A server of a model with a chat template, and of one of gpt-oss's family."""
    server: LocalServer = request.getfixturevalue(request.param)
    return server


async def respond(server: LocalServer, *items: Any, **more: Any) -> Any:
    """The answer to a request whose last item is `ASK`."""
    body = {"model": MODEL, "input": [*items, ASK], "max_output_tokens": 200, **more}
    return await server.client.post(PATH, json=body)


def prompt_of(server: LocalServer) -> str:
    """The prompt that the engine got last."""
    spec = server.engine.calls[-1].spec
    tokenizer = server.engine._renderer.get_tokenizer()
    return str(tokenizer.decode(list(spec.prompt_token_ids)))


def text_of(answer: Any) -> str:
    assert answer.status_code == 200, answer.text
    [message] = [item for item in answer.json()["output"] if item["type"] == "message"]
    return str(message["content"][0]["text"])


async def test_each_type_of_the_package_is_tried() -> None:
    assert ITEMS.keys() >= ITEM_TYPES
    assert TOOLS.keys() >= TOOL_TYPES


@pytest.mark.parametrize("kind", [name for name in ITEMS if name != "compaction_trigger"])
async def test_an_item_of_any_type_stands_beside_a_message(either: LocalServer, kind: str) -> None:
    item = {"type": kind, **ITEMS[kind]}
    assert text_of(await respond(either, item)) == "Yes."
    assert text_of(await respond(either, ASK, item, item)) == "Yes."
    for strange in ({"type": kind}, {**item, "call_id": 7, "id": None, "output": 1}):
        assert text_of(await respond(either, strange)) == "Yes."


@pytest.mark.parametrize("what", ODD)
async def test_a_message_or_call_of_an_odd_form_stands_beside_a_message(
    either: LocalServer, what: str
) -> None:
    assert text_of(await respond(either, ASK, ODD[what])) == "Yes."


async def test_all_items_at_once(either: LocalServer) -> None:
    history = [{"type": kind, **item} for kind, item in ITEMS.items()]
    answer = await respond(either, *history[:27], *history[28:], *ODD.values())
    assert text_of(answer) == "Yes."


@pytest.mark.parametrize("kind", TOOLS)
async def test_a_tool_of_any_type_stands_beside_a_function(either: LocalServer, kind: str) -> None:
    tool = {"type": kind, **TOOLS[kind]}
    function: dict[str, Any] = {"type": "function", "name": "plain", "parameters": SCHEMA}
    for tools in ([tool], [function, tool], [{"type": kind}, function]):
        for choice in ("auto", "none"):
            answer = await respond(either, tools=tools, tool_choice=choice)
            if kind == "function" and {"type": kind} in tools:
                assert answer.status_code == 400  # it has no name
                continue
            assert answer.status_code == 200, answer.text
            assert [one["type"] for one in answer.json()["tools"]] == [t["type"] for t in tools]
            if tool in tools:
                assert (answer.headers.get(LEFT_OUT) == kind) == (kind in LEFT)


LEFT = TOOLS.keys() - {
    *("function", "custom", "namespace", "local_shell", "shell", "apply_patch", "tool_search")
}


async def test_the_header_names_what_was_left_out(local: LocalServer) -> None:
    answer = await respond(
        local,
        {"type": "web_search_call", "id": "w", "status": "completed"},
        {"type": "ghost_snapshot"},
        {"type": "ghost snap\nshot"},
        tools=[{"type": "image_generation"}],
        include=["web_search_call.action.sources", "reasoning.encrypted_content"],
        tool_choice={"type": "image_generation"},
        service_tier="fast",
    )
    assert answer.status_code == 200, answer.text
    assert answer.headers[LEFT_OUT] == ", ".join(
        [
            *("image_generation", "web_search_call", "ghost_snapshot", "ghost?snap?shot"),
            *("tool_choice.image_generation", "include.web_search_call.action.sources"),
            "service_tier.fast",
        ]
    )
    assert LEFT_OUT not in (await respond(local)).headers


async def test_an_input_of_which_nothing_can_be_read_is_refused(either: LocalServer) -> None:
    body = {"model": MODEL, "input": [{"type": "ghost_snapshot"}]}
    answer = await either.client.post(PATH, json=body)
    assert answer.status_code == 400
    assert "ghost_snapshot" in answer.json()["error"]["message"]


async def test_the_prompt_has_what_items_say(either: LocalServer) -> None:
    """Calls and their outputs, whoever ran them; a refusal; and all parts of a message."""
    history: list[dict[str, Any]] = [
        {"type": kind, **ITEMS[kind]}
        for kind in ("local_shell_call", "local_shell_call_output", "mcp_call", "shell_call")
    ]
    history.append({"type": "shell_call_output", **ITEMS["shell_call_output"]})
    history += [ODD["a refusal"], ODD["a summary of reasoning"]]
    parts = [{"type": "output_text", "text": text} for text in ("first ", "second")]
    history.append({"type": "message", "role": "assistant", "content": parts})
    answer = await respond(either, ASK, *history)
    assert answer.status_code == 200, answer.text
    assert LEFT_OUT not in answer.headers
    prompt = prompt_of(either)
    for words in ("made.txt", "s__look", "seen words", "[exit code 2]", "I will not."):
        assert words in prompt
    assert "first second" in prompt
    assert '"command": ["ls"]' in prompt


async def test_reasoning_that_only_its_server_can_read_is_left_out(either: LocalServer) -> None:
    answer = await respond(either, ASK, {"type": "reasoning", **ITEMS["reasoning"]})
    assert answer.headers[LEFT_OUT] == "reasoning"
    own = {"type": "reasoning_text", "text": "I wonder."}
    item = {"type": "reasoning", "id": "r", "summary": [], "content": [own]}
    answer = await respond(either, ASK, {**item, "encrypted_content": "gAAAA"})
    assert answer.status_code == 200, answer.text
    assert LEFT_OUT not in answer.headers


async def test_agents_read_messages_of_other_agents(either: LocalServer) -> None:
    """Codex declares a sub-agent's task to be encrypted, and sends what the model wrote."""
    message = {"type": "agent_message", **ITEMS["agent_message"]}
    answer = await respond(either, ASK, message)
    assert LEFT_OUT not in answer.headers
    assert "Payload:\nLook around." in prompt_of(either)
    sealed = {"type": "encrypted_content", "encrypted_content": "gAAAAABxyz"}
    answer = await respond(either, {**message, "content": [*message["content"][:1], sealed]})
    assert answer.headers[LEFT_OUT] == "encrypted_content"
    assert "gAAAAABxyz" not in prompt_of(either)


async def test_a_reference_is_to_an_item_of_a_stored_response(either: LocalServer) -> None:
    made = await respond(either, {**ASK, "id": "msg-mine", "content": "My own words."})
    [message] = [item for item in made.json()["output"] if item["type"] == "message"]
    answer = await respond(
        either, {"type": "item_reference", "id": "msg-mine"}, {"id": message["id"]}
    )
    assert LEFT_OUT not in answer.headers
    assert "My own words." in prompt_of(either)
    assert "Yes." in prompt_of(either)
    other = {"x-agentrt-tenant": "other"}
    body = {"model": MODEL, "input": [{"type": "item_reference", "id": "msg-mine"}, ASK]}
    answer = await either.client.post(PATH, json=body, headers=other)
    assert answer.headers[LEFT_OUT] == "item_reference"


async def test_a_loaded_tool_is_shown_where_it_was_loaded(local: LocalServer) -> None:
    """And is not at the front of the prompt, so that what is cached stays."""
    search = {"type": "tool_search", "execution": "client"}
    late = {**TOOLS["function"], "type": "function", "name": "tides", "defer_loading": True}
    tools = [search, {"type": "function", **TOOLS["function"]}, late]
    assert (await respond(local, ASK, tools=tools)).status_code == 200
    before = prompt_of(local)
    assert "tides" not in before
    found = [{"type": kind, **ITEMS[kind]} for kind in ("tool_search_call", "tool_search_output")]
    assert (await respond(local, ASK, *found, tools=tools)).status_code == 200
    after = prompt_of(local)
    assert after.count("tides") == 1
    assert after.startswith(before[: before.index("Go on.")])
    tools = tools[1:]  # without a search that the client runs, no tool can be loaded later
    assert (await respond(local, tools=tools)).status_code == 200
    assert "tides" in prompt_of(local)
