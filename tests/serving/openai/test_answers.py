"""Answers have OpenAI's shapes, as its own SDK's types say, whole and in pieces."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from agentrt.errors import EngineDiedError
from agentrt.request import Call, CallReport, ToolCall
from agentrt.serving.openai.answers import usage_of
from agentrt.testing.scripted import ScriptedExecutor
from tests.serving.local import MODEL, LocalServer, open_server

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "serve.md").read_text("utf-8")
HELLO: list[Any] = [{"role": "user", "content": "hello"}]
LOOK: Any = {
    "type": "function",
    "function": {
        "name": "look",
        "parameters": {"type": "object", "properties": {"at": {"type": "string"}}},
    },
}


def sdk(local: LocalServer) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{local.url}/v1", api_key="none", max_retries=0)


async def both_ways(
    local: LocalServer, **ask: Any
) -> tuple[ChatCompletion, list[ChatCompletionChunk]]:
    """The answer whole and in pieces, each checked against the SDK's types."""
    async with sdk(local) as client:
        create: Any = client.chat.completions.create
        whole = await create(model=MODEL, messages=HELLO, **ask)
        ChatCompletion.model_validate(whole.model_dump(), strict=True)
        usage = {"include_usage": True}
        events = await create(model=MODEL, messages=HELLO, stream=True, stream_options=usage, **ask)
        chunks = [chunk async for chunk in events]
    for chunk in chunks:
        ChatCompletionChunk.model_validate(chunk.model_dump(), strict=True)
    return whole, chunks


def joined(chunks: list[ChatCompletionChunk], index: int = 0) -> dict[str, Any]:
    """What a client puts together of the pieces of a choice."""
    text, name, arguments, finish = "", "", "", None
    for chunk in chunks:
        for choice in chunk.choices:
            if choice.index == index:
                text += choice.delta.content or ""
                finish = choice.finish_reason or finish
                for call in choice.delta.tool_calls or ():
                    assert call.function is not None
                    name += call.function.name or ""
                    arguments += call.function.arguments or ""
    return {"text": text, "name": name, "arguments": arguments, "finish": finish}


async def test_text() -> None:
    async with open_server(ScriptedExecutor(lambda call: "Hello, world.")) as local:
        whole, chunks = await both_ways(local, logprobs=True, top_logprobs=2)
        choice = whole.choices[0]
        assert joined(chunks) == {
            "text": choice.message.content,
            "name": "",
            "arguments": "",
            "finish": "stop",
        }
        assert choice.logprobs is not None
        tokens = [token.token for token in choice.logprobs.content or ()]
        assert "".join(tokens) == "Hello, world."
        streamed = [c.logprobs for chunk in chunks for c in chunk.choices if c.logprobs]
        assert [token.token for part in streamed for token in part.content or ()] == tokens
        assert chunks[-1].choices == []
        assert chunks[-1].usage == whole.usage


@pytest.mark.parametrize("n", [1, 4])
async def test_a_tool_call_and_an_answer_beside_tools(n: int) -> None:
    calls = ToolCall("look", {"at": "the ☂"})
    async with open_server(ScriptedExecutor(lambda call: calls)) as local:
        whole, chunks = await both_ways(local, tools=[LOOK], n=n)
        for index in range(n):
            message = whole.choices[index].message
            [call] = message.tool_calls or []
            assert call.type == "function"
            assert json.loads(call.function.arguments) == {"at": "the ☂"}
            assert (message.content, whole.choices[index].finish_reason) == (None, "tool_calls")
            streamed = joined(chunks, index)
            assert (streamed["name"], streamed["finish"]) == ("look", "tool_calls")
            assert json.loads(streamed["arguments"]) == {"at": "the ☂"}
    async with open_server(ScriptedExecutor(lambda call: '{"answer": "no need"}')) as local:
        whole, chunks = await both_ways(local, tools=[LOOK])
        assert whole.choices[0].message.content == joined(chunks)["text"] == "no need"
        assert whole.choices[0].message.tool_calls is None


async def test_a_tool_call_that_is_cut_off_comes_as_far_as_it_came() -> None:
    calls = ToolCall("look", {"at": "one two three four five six"})
    async with open_server(ScriptedExecutor(lambda call: calls)) as local:
        whole, chunks = await both_ways(local, tools=[LOOK], max_completion_tokens=12)
        choice = whole.choices[0]
        [call] = choice.message.tool_calls or []
        assert call.type == "function"
        assert choice.finish_reason == joined(chunks)["finish"] == "length"
        assert joined(chunks)["arguments"].strip() == call.function.arguments
        with pytest.raises(ValueError, match=r"Unterminated|Expecting"):
            json.loads(call.function.arguments)


async def test_completions_of_several_prompts() -> None:
    def say(call: Call) -> str:
        return f"after {call.spec.prompt or call.spec.prompt_token_ids}"

    async with open_server(ScriptedExecutor(say)) as local, sdk(local) as client:
        ask: Any = {"model": MODEL, "prompt": ["a", "b"], "n": 2, "logprobs": 1}
        whole = await client.completions.create(**ask)
        Completion.model_validate(whole.model_dump(), strict=True)
        assert [c.text for c in whole.choices] == ["after a", "after a", "after b", "after b"]
        assert whole.usage is not None
        assert whole.usage.prompt_tokens == 2
        texts = dict.fromkeys(range(4), "")
        async for event in await client.completions.create(**ask, stream=True):
            texts[event.choices[0].index] += event.choices[0].text
        assert list(texts.values()) == [choice.text for choice in whole.choices]
        tokens = await client.completions.create(model=MODEL, prompt=[5, 6])
        assert tokens.choices[0].text == "after (5, 6)"


async def test_choices_have_seeds_of_their_own() -> None:
    async with open_server() as local:
        await local.chat("x", n=3, seed=2**63 - 2)
        seeds = [call.spec.seed for call in local.engine.calls]
        assert seeds == [2**63 - 2, 2**63 - 1, -(2**63)]
        parents = [n.parents for run in local.runtime.runs.values() for n in run.dag.nodes()]
        assert parents == [(), (), ()]


async def test_an_engine_that_dies_is_told_as_503_or_in_the_stream() -> None:
    def die(call: Call) -> str:
        raise EngineDiedError("the engine died")

    class DiesLater(ScriptedExecutor):
        async def _step(self, state: Any) -> None:
            await super()._step(state)
            if state.steps == 3:
                raise EngineDiedError("the engine died")

    body: dict[str, Any] = {"model": MODEL, "messages": HELLO}
    async with open_server(ScriptedExecutor(die)) as local:
        for stream in (False, True):
            answer = await local.client.post(
                "/v1/chat/completions", json={**body, "stream": stream}
            )
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "engine_died")
    async with open_server(DiesLater(lambda call: "one two three four")) as local:
        answer = await local.client.post("/v1/chat/completions", json={**body, "stream": True})
        last = [line for line in answer.text.splitlines() if line.startswith("data: ")][-1]
        assert json.loads(last[6:])["error"]["code"] == "engine_died"


async def test_a_bug_is_a_500_that_says_nothing_of_the_inside() -> None:
    def bug(call: Call) -> str:
        raise RuntimeError("secret")

    async with open_server(ScriptedExecutor(bug)) as local:
        for stream in (False, True):
            body = {"model": MODEL, "messages": HELLO, "stream": stream}
            answer = await local.client.post("/v1/chat/completions", json=body)
            assert answer.status_code == 500
            assert answer.json()["error"]["code"] == "internal_error"
            assert "secret" not in answer.text
        assert not any(row.calls for row in local.runtime.table)


async def test_nothing_grows_under_load() -> None:
    """Sixty clients, two programs each: then all is as it was before."""
    tls = httpx.create_ssl_context()  # made once: it takes longer than all else
    async with open_server() as local:

        async def client(name: str) -> None:
            # One for each: a pool of many connections is slow.
            async with httpx.AsyncClient(base_url=local.url, verify=tls, timeout=60) as own:
                for number in range(2):
                    said = {"x-agentrt-program": f"{name}-{number}"}
                    for stream in (False, True):
                        body = {"model": MODEL, "messages": HELLO, "stream": stream}
                        answer = await own.post("/v1/chat/completions", json=body, headers=said)
                        assert answer.status_code == 200
                    await own.delete(f"/v1/sessions/{name}-{number}")

        await client("first")
        tasks = len(asyncio.all_tasks())
        await asyncio.gather(*(client(f"c{n}") for n in range(60)))
        assert len(local.engine.calls) == 61 * 4
        assert len(local.runtime.table) == len(local.runtime.runs) == 0
        assert local.server.tenants.calls("default") == 0
        assert (await local.runtime.executor.snapshot())["tenants"] == {}
        await local.until(lambda: len(asyncio.all_tasks()) <= tasks)
        assert len(local.engine.ended) == 61 * 2


async def test_the_page_shows_a_client_that_works() -> None:
    code = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)[0]
    async with open_server(ScriptedExecutor(lambda call: "Hello!")) as local:
        said: list[str] = []
        code = code.replace("http://127.0.0.1:8000", local.url)
        await asyncio.to_thread(exec, code, {"print": said.append})
        assert said == ["Hello!"]


def test_no_prompt_has_more_cached_tokens_than_it_has() -> None:
    """A call of two was preempted, and found more than its prompt: that is no other's."""
    reports = [
        CallReport(prompt_tokens=10, cached_tokens=15, output_tokens=7),
        CallReport(prompt_tokens=10, cached_tokens=2, output_tokens=1),
    ]
    assert usage_of(reports, prompts=2) == {
        "prompt_tokens": 20,
        "completion_tokens": 8,
        "total_tokens": 28,
        "prompt_tokens_details": {"cached_tokens": 12},
    }
