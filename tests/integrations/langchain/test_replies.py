"""ChatAgentRT: what comes back, as whole messages, as chunks, and as objects of a schema."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from langchain_core.exceptions import OutputParserException
from langchain_core.messages import AIMessage

from agentrt import Runtime, ToolCall
from agentrt.integrations.langchain import ChatAgentRT
from agentrt.testing.scripted import ScriptedExecutor
from tests.integrations.langchain.samples import (
    JOKE,
    Joke,
    JokeDict,
    add,
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
        "finish_reason": "stop",
        "agentrt": {
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
    assert metadata == {"model_name": "lab/tiny", "finish_reason": "stop"}


async def test_an_answer_streams_as_text_when_there_are_tools(
    model: ChatAgentRT, script: dict[str, Any]
) -> None:
    script["say"] = '{"answer": "It is three."}'
    chunks = await streamed(model.bind_tools([add]))
    assert whole(chunks).content == "It is three."
    assert len([chunk for chunk in chunks if chunk.content]) > 2
    assert whole(chunks).tool_calls == []
    assert (await model.bind_tools([add]).ainvoke("hello")).content == "It is three."


async def test_a_call_streams_as_chunks_of_a_call(
    model: ChatAgentRT, script: dict[str, Any]
) -> None:
    script["say"] = ToolCall("add", {"a": 1, "b": 2})
    chunks = await streamed(model.bind_tools([add]))
    parts = [part for chunk in chunks for part in chunk.tool_call_chunks]
    assert (parts[0]["name"], parts[0]["args"]) == ("add", "")
    assert len(parts) > 2
    assert {part["index"] for part in parts} == {0}
    full = whole(chunks)
    [call] = full.tool_calls
    assert (call["name"], call["args"], full.content) == ("add", {"a": 1, "b": 2}, "")
    assert full.response_metadata["finish_reason"] == "tool_calls"
    assert [block["type"] for block in full.content_blocks] == ["tool_call"]


async def test_ids_of_tool_calls_differ_and_come_again_in_a_new_process(
    script: dict[str, Any],
) -> None:
    script["say"] = ToolCall("ping", {})

    async def ids() -> list[str | None]:
        async with Runtime(ScriptedExecutor(lambda call: script["say"])) as runtime:
            model = ChatAgentRT(runtime=runtime).bind_tools([ping])
            messages = [
                await model.ainvoke("a"),
                await model.ainvoke("a"),
                await model.ainvoke("b"),
            ]
            messages.append(whole(await streamed(model, "b")))
            return [message.tool_calls[0]["id"] for message in messages]

    first = await ids()
    assert first == await ids()
    assert len(set(first)) == 4
    assert all(call_id is not None and call_id.startswith("call_") for call_id in first)


async def test_an_output_that_is_cut_off_keeps_what_it_has(
    model: ChatAgentRT, script: dict[str, Any]
) -> None:
    bound = model.bind_tools([add])
    script["say"] = '{"answer": "It is three."}'
    cut = await bound.ainvoke("hello", max_tokens=6)
    assert cut.response_metadata["finish_reason"] == "length"
    assert cut.text
    assert "It is three.".startswith(cut.text)
    assert cut.text == whole(await streamed(bound, max_tokens=6)).text
    script["say"] = ToolCall("add", {"a": 1, "b": 2})
    cut = await bound.ainvoke("hello", max_tokens=10)
    assert (cut.tool_calls, cut.content) == ([], "")
    [bad] = cut.invalid_tool_calls
    assert (bad["name"], bad["args"]) == ("add", '{"a": 1,')


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
