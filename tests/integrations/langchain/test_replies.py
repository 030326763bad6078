"""ChatAgentRT: what comes back, as whole messages, as chunks, and as objects of a schema."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from typing import Any

import pytest
from langchain_core.caches import InMemoryCache
from langchain_core.exceptions import OutputParserException
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, ToolMessage

from agentrt import Runtime, ToolCall
from agentrt.errors import ConfigError
from agentrt.integrations.langchain import ChatAgentRT, RuntimeClient
from agentrt.integrations.langchain.replies import ChunkMaker
from agentrt.request import Call
from tests.doubles.choices import Output
from tests.doubles.scripted import ScriptedExecutor
from tests.integrations.langchain.samples import (
    JOKE,
    Joke,
    JokeDict,
    add,
    asked,
    ping,
    streamed,
    whole,
)

# -- what comes back -------------------------------------------------------------------------


async def test_a_message_says_what_it_cost_and_whose_it_was(
    model: ChatAgentRT, runtime: Runtime
) -> None:
    message = await model.ainvoke("hello")
    assert (message.text, message.id is not None) == ("one two three", True)
    assert message.usage_metadata == {
        "input_tokens": 2,
        "output_tokens": 4,
        "total_tokens": 6,
        "input_token_details": {"cache_read": 0},
    }
    assert message.response_metadata == {
        "model_name": "lab/tiny",
        "model_provider": "agentrt",
        "finish_reason": "stop",
        "token_usage": {"prompt_tokens": 2, "completion_tokens": 4, "total_tokens": 6},
        "agentrt": {
            "run_id": "chat-1",
            "program_id": "chat-1",
            "node": 0,
            "service_s": pytest.approx(0.12),
            "waiting_s": 0.0,
            "preemptions": 0,
        },
    }


async def test_a_stream_grows_and_says_its_usage_once(model: ChatAgentRT) -> None:
    chunks = await streamed(model)
    assert [chunk.text for chunk in chunks] == ["one", " two", " thre", "e", ""]
    assert [chunk.usage_metadata is not None for chunk in chunks] == [False] * 4 + [True]
    assert [chunk.chunk_position for chunk in chunks] == [None] * 4 + ["last"]
    assert len({chunk.id for chunk in chunks}) == 1
    message = await model.ainvoke("hello")
    assert whole(chunks).usage_metadata == message.usage_metadata
    metadata = whole(chunks).response_metadata
    assert metadata.pop("agentrt")["program_id"] == "chat-1"
    assert metadata == {
        "model_name": "lab/tiny",
        "model_provider": "agentrt",
        "finish_reason": "stop",
    }


async def test_thoughts_are_blocks_of_reasoning(
    model: ChatAgentRT, executor: ScriptedExecutor, script: dict[str, Any]
) -> None:
    script["say"] = Output("It is three.", reasoning="One and two.")
    chunks = await streamed(model)
    message = await model.ainvoke("hello")
    expected = [
        {"type": "reasoning", "reasoning": "One and two."},
        {"type": "text", "text": "It is three."},
    ]
    assert message.content_blocks == whole(chunks).content_blocks == expected
    assert (message.content, whole(chunks).content) == ("It is three.",) * 2
    assert chunks[0].content_blocks[0]["type"] == "reasoning"
    await model.ainvoke([("human", "hello"), message, ("human", "sure?")])
    assert asked(executor)["messages"][1] == {
        "role": "assistant",
        "content": "It is three.",
        "reasoning": "One and two.",
    }


async def test_content_blocks_may_be_the_content(
    model: ChatAgentRT, executor: ScriptedExecutor, script: dict[str, Any]
) -> None:
    script["say"] = Output("three", "hm", (ToolCall("add", {"a": 1, "b": 2}, "c"),))
    held = ChatAgentRT(runtime=model.runtime, output_version="v1")
    for message in (await held.ainvoke("hello"), whole(await streamed(held))):
        assert [block["type"] for block in message.content] == ["reasoning", "text", "tool_call"]  # type: ignore[index]
        asked_again = await held.ainvoke(
            [("human", "hello"), message, ToolMessage("3", tool_call_id="c")]
        )
        assert asked_again.tool_calls[0]["id"] == "c"


async def test_several_calls_come_back_and_stream_by_their_index(
    model: ChatAgentRT, script: dict[str, Any]
) -> None:
    made = (ToolCall("add", {"a": 1, "b": 2}, "c1"), ToolCall("ping", {}, "c2"))
    script["say"] = Output("I shall add.", tool_calls=made)
    bound = model.bind_tools([add, ping])
    chunks = await streamed(bound)
    message = await bound.ainvoke("hello")
    for one in (message, whole(chunks)):
        told = [(call["name"], call["args"], call["id"]) for call in one.tool_calls]
        assert told == [("add", {"a": 1, "b": 2}, "c1"), ("ping", {}, "c2")]
        assert (one.content, one.invalid_tool_calls) == ("I shall add.", [])
    parts = [part for chunk in chunks for part in chunk.tool_call_chunks]
    assert {part["index"] for part in parts} == {0, 1}


def test_parts_of_a_call_that_come_in_one_piece_are_one_call() -> None:
    """So vLLM's parsers give the name and the first arguments where its tokens are joined."""
    maker = ChunkMaker()
    named = {"index": 0, "id": "c1", "function": {"name": "add"}}
    parts = [{"index": 0, "function": {"arguments": text}} for text in ('{"a": ', "1}")]
    pieces = [[named, parts[0], {"index": 1, "id": "c2", "function": {"name": "ping"}}], [parts[1]]]
    chunks = [
        chunk.message
        for calls in pieces
        for chunk in maker.chunks({"choices": [{"index": 0, "delta": {"tool_calls": calls}}]})
    ]
    found = whole([one for one in chunks if isinstance(one, AIMessageChunk)]).tool_calls
    assert [(call["name"], call["args"], call["id"]) for call in found] == [
        ("add", {"a": 1}, "c1"),
        ("ping", {}, "c2"),
    ]


@pytest.mark.parametrize(("finish", "valid"), [("tool_calls", True), ("length", False)])
def test_a_streamed_call_without_arguments_is_valid_unless_it_was_cut(
    finish: str, valid: bool
) -> None:
    function = {"name": "ping", "arguments": ""}
    delta = {"tool_calls": [{"index": 0, "id": "call-1", "function": function}]}
    choices = [{"index": 0, "delta": delta, "finish_reason": finish}]
    pieces: list[dict[str, Any]] = [
        {"model": "m", "choices": choices},
        {"choices": [], "agentrt": {}},
    ]
    maker = ChunkMaker()
    first, last = [chunk.message for piece in pieces for chunk in maker.chunks(piece)]
    whole = first + last
    assert isinstance(whole, AIMessageChunk)
    assert [call["args"] for call in whole.tool_calls] == [{}] * valid
    assert len(whole.invalid_tool_calls) == (not valid)


def said_by(name: str, call: Call) -> str:
    return name


async def test_a_cache_does_not_mix_the_models_of_several_runtimes() -> None:
    cache = InMemoryCache()
    for name in ("first", "second", "first"):
        executor = ScriptedExecutor(partial(said_by, name), model=name)
        async with Runtime(executor) as runtime:
            assert (await ChatAgentRT(runtime=runtime, cache=cache).ainvoke("hi")).text == name


def test_a_cache_does_not_mix_clients_whose_models_are_not_known_yet() -> None:
    cache = InMemoryCache()

    def make(name: str) -> Runtime:
        return Runtime(ScriptedExecutor(partial(said_by, name), model=name))

    for name in ("first", "second"):
        client = RuntimeClient(partial(make, name))
        assert ChatAgentRT(runtime=client, cache=cache).invoke("hi").text == name
        client.close()


async def test_choices_are_generations(model: ChatAgentRT, executor: ScriptedExecutor) -> None:
    result = await model.agenerate([[HumanMessage("hello")]], n=3)
    assert [one.text for one in result.generations[0]] == ["one two three"] * 3
    assert asked(executor)["n"] == 3
    with pytest.raises(ConfigError, match="a stream has one answer"):
        await streamed(model, n=2)


async def test_log_probabilities_are_metadata(model: ChatAgentRT) -> None:
    message = await model.ainvoke("hello", logprobs=True, top_logprobs=2)
    tokens = message.response_metadata["logprobs"]["content"]
    assert "".join(token["token"] for token in tokens) == "one two three"
    assert len(tokens[0]["top_logprobs"]) == 2
    chunks = await streamed(model, top_logprobs=2)
    assert whole(chunks).response_metadata["logprobs"]["content"] == tokens
    assert "logprobs" not in (await model.ainvoke("hello")).response_metadata


async def test_usage_is_left_out_of_a_stream_where_it_is_not_wanted(model: ChatAgentRT) -> None:
    assert whole(await streamed(model, stream_usage=False)).usage_metadata is None


@pytest.mark.parametrize("tokens", range(1, 9))
async def test_a_call_that_is_cut_off_cannot_be_made(
    model: ChatAgentRT, script: dict[str, Any], tokens: int
) -> None:
    bound = model.bind_tools([add])
    script["say"] = ToolCall("add", {"a": [{"b": 'say "hi"\\'}, 2]})
    cut = await bound.ainvoke("hello", max_tokens=tokens)
    assert cut.response_metadata["finish_reason"] == "length"
    assert (cut.tool_calls, cut.content) == ([], "")
    [bad] = cut.invalid_tool_calls
    assert bad["name"] == "add"
    streamed_cut = whole(await streamed(bound, max_tokens=tokens))
    assert (streamed_cut.tool_calls, streamed_cut.content) == ([], "")
    [same] = streamed_cut.invalid_tool_calls
    assert str(same["args"]).startswith(str(bad["args"]))


async def test_batches_run_side_by_side(model: ChatAgentRT, executor: ScriptedExecutor) -> None:
    messages = await model.abatch(["a", "b", "c"])
    assert [message.text for message in messages] == ["one two three"] * 3
    assert sorted(executor.ended) == ["chat-1", "chat-2", "chat-3"]
    first = await asyncio.to_thread(model.batch, ["a", "b"])
    assert len(first) == 2


# -- structured output -----------------------------------------------------------------------


@pytest.mark.parametrize("method", ["json_schema", "json_mode", "function_calling"])
@pytest.mark.parametrize(
    "schema", [Joke, JokeDict, {"title": "Joke", "description": "A joke.", **JOKE}]
)
async def test_structured_output_by_every_method(
    model: ChatAgentRT, script: dict[str, Any], method: Any, schema: Any
) -> None:
    setup = {"setup": "a cat"}
    script["say"] = ToolCall("Joke" if schema is not JokeDict else "JokeDict", setup)
    if method != "function_calling":
        script["say"] = json.dumps(setup)
    expected = Joke(**setup) if schema is Joke else setup
    held = model.with_structured_output(schema, method=method)
    assert await held.ainvoke("hello") == expected
    assert [part async for part in held.astream("hello")][-1] == expected
    raw: Any = await model.with_structured_output(schema, method=method, include_raw=True).ainvoke(
        "hello"
    )
    assert (raw["parsed"], raw["parsing_error"]) == (expected, None)
    assert isinstance(raw["raw"], AIMessage)


async def test_json_mode_needs_no_schema(model: ChatAgentRT, script: dict[str, Any]) -> None:
    script["say"] = '{"anything": 1}'
    assert await model.with_structured_output(None, method="json_mode").ainvoke("hello") == {
        "anything": 1
    }


async def test_what_cannot_be_parsed_is_told(model: ChatAgentRT, script: dict[str, Any]) -> None:
    script["say"] = '{"setup": '
    with pytest.raises(OutputParserException):
        await model.with_structured_output(Joke, method="json_schema").ainvoke("hello")
    told = model.with_structured_output(Joke, method="json_schema", include_raw=True)
    raw: Any = await told.ainvoke("hello")
    assert raw["parsed"] is None
    assert isinstance(raw["parsing_error"], OutputParserException)
