"""Histories and tools of all kinds at ``/v1/responses``: what can be answered is answered."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio

from agentrt.request import Call
from tests.serving.frontend.harmony import encode, harmony_model, vocabulary
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
FLAGS = ("--enable-auto-tool-choice", "--tool-call-parser=hermes")
ASK = {"type": "message", "role": "user", "content": "Go on."}
LEFT_OUT = "x-agentrt-left-out"


class Said:
    """What the model says."""

    text = "Yes."

    def __call__(self, call: Call) -> Any:
        return self.text


@pytest.fixture(scope="module")
def said() -> Said:
    return Said()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def local(said: Said) -> AsyncIterator[LocalServer]:
    async with open_server(said, flags=FLAGS) as opened:
        yield opened


@pytest.fixture(scope="module")
def gpt_oss(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("gpt-oss")
    words = vocabulary(folder / "words")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TIKTOKEN_ENCODINGS_BASE", str(words))
        yield str(harmony_model(folder / "model", words))


class Harmony(Said):
    """The same in gpt-oss's format."""

    def __call__(self, call: Call) -> Any:
        return encode(super().__call__(call))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def harmony(gpt_oss: str) -> AsyncIterator[LocalServer]:
    says = Harmony()
    says.text = "<|channel|>final<|message|>Yes.<|return|>"
    async with open_server(says, model=gpt_oss) as opened:
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
    function = {"type": "function", "name": "plain", "parameters": SCHEMA}
    for tools in ([tool], [function, tool], [{"type": kind}, function]):
        for choice in ("auto", "none"):
            answer = await respond(either, tools=tools, tool_choice=choice)
            if kind == "function" and {"type": kind} in tools:
                assert answer.status_code == 400  # it has no name
                continue
            assert answer.status_code == 200, answer.text
            assert [one["type"] for one in answer.json()["tools"]] == [t["type"] for t in tools]
            assert (kind in answer.headers.get(LEFT_OUT, "")) == (kind in LEFT or tool not in tools)


LEFT = TOOLS.keys() - {
    *("function", "custom", "namespace", "local_shell", "shell", "apply_patch", "tool_search")
}
