"""ChatAgentRT: what a call asks of the engine, and what comes back as messages."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any, TypedDict

import pytest
from langchain.agents import create_agent
from langchain_core.exceptions import OutputParserException
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, ToolMessage
from langchain_core.tools import tool
from pydantic import BaseModel, ValidationError

from agentrt import Runtime, ToolCall
from agentrt.errors import CallTimeoutError, ConfigError
from agentrt.integrations.langchain import ChatAgentRT
from agentrt.request import NO_LIMIT, CallSpec
from agentrt.testing.scripted import ScriptedExecutor
from tests.integrations.langchain.stub import HeldExecutor, copy_from_the_question

JOKE = {"type": "object", "properties": {"setup": {"type": "string"}}, "required": ["setup"]}


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool
def ping() -> str:
    """Say pong."""
    return "pong"


class Joke(BaseModel):
    """A joke."""

    setup: str


class JokeDict(TypedDict):
    """A joke."""

    setup: str


@pytest.fixture
def script() -> dict[str, str | ToolCall]:
    """What the model says to anything, under ``say``."""
    return {"say": "one two three"}


@pytest.fixture
def executor(script: dict[str, str | ToolCall]) -> ScriptedExecutor:
    return ScriptedExecutor(lambda call: script["say"], model="lab/tiny")


@pytest.fixture
async def runtime(executor: ScriptedExecutor) -> AsyncIterator[Runtime]:
    async with Runtime(executor) as runtime:
        yield runtime
        assert not runtime.runs


@pytest.fixture
async def model(runtime: Runtime) -> ChatAgentRT:
    return ChatAgentRT(runtime=runtime)


def asked(executor: ScriptedExecutor) -> CallSpec:
    return executor.calls[-1].spec


async def streamed(chat: Any, ask: str = "hello", /, **options: Any) -> list[AIMessageChunk]:
    return [chunk async for chunk in chat.astream(ask, **options)]


def whole(chunks: list[AIMessageChunk]) -> AIMessageChunk:
    return sum(chunks[1:], chunks[0])


# -- what is asked ---------------------------------------------------------------------------


async def test_options_of_the_model_are_those_of_its_calls(
    runtime: Runtime, executor: ScriptedExecutor
) -> None:
    model = ChatAgentRT(
        runtime=runtime,
        model="lab/tiny",
        temperature=0.5,
        top_p=0.9,
        max_tokens=7,
        stop_sequences=["x"],
        seed=3,
    )
    await model.ainvoke("hello")
    chat = ({"role": "user", "content": "hello"},)
    assert asked(executor) == CallSpec(
        messages=chat, temperature=0.5, top_p=0.9, max_tokens=7, stop=("x",), seed=3
    )
    await model.ainvoke(
        "hello", stop=["y", "z"], max_tokens=2, temperature=0, top_p=1.0, seed=4, model="tiny"
    )
    assert asked(executor) == CallSpec(messages=chat, max_tokens=2, stop=("y", "z"), seed=4)


async def test_by_default_a_call_is_greedy_and_as_long_as_it_takes(
    model: ChatAgentRT, executor: ScriptedExecutor
) -> None:
    await model.ainvoke("hello")
    assert asked(executor) == CallSpec(
        messages=({"role": "user", "content": "hello"},), max_tokens=NO_LIMIT
    )


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (None, "auto"),
        ("auto", "auto"),
        (False, "auto"),
        ("any", "required"),
        ("required", "required"),
        (True, "required"),
        ("none", "none"),
        ("add", "add"),
        ({"type": "function", "function": {"name": "add"}}, "add"),
        ({"type": "tool", "name": "add"}, "add"),
        ({"type": "any"}, "required"),
    ],
)
async def test_tool_choices(
    model: ChatAgentRT,
    executor: ScriptedExecutor,
    script: dict[str, Any],
    choice: Any,
    expected: str,
) -> None:
    script["say"] = "free text" if expected == "none" else ToolCall("add", {"a": 1, "b": 2})
    bound = model.bind_tools(
        [add, ping], tool_choice=choice, strict=True, parallel_tool_calls=False
    )
    message = await bound.ainvoke("hello")
    assert asked(executor).tool_choice == expected
    assert [spec.name for spec in asked(executor).tools] == ["add", "ping"]
    assert [call["name"] for call in message.tool_calls] == ([] if expected == "none" else ["add"])


async def test_a_tool_takes_no_arguments_that_it_does_not_have(
    model: ChatAgentRT, executor: ScriptedExecutor, script: dict[str, Any]
) -> None:
    script["say"] = ToolCall("ping", {})
    await model.bind_tools([ping]).ainvoke("hello")
    assert asked(executor).tools[0].parameters == {
        "type": "object",
        "properties": {},
        "additionalProperties": False,
    }


@pytest.mark.parametrize(
    "options",
    [
        {"schema": JOKE},
        {"schema": Joke},
        {"response_format": JokeDict},
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "joke", "schema": JOKE},
            }
        },
        {"response_format": {"type": "json_object"}},
    ],
)
async def test_schemas_are_held_to(
    model: ChatAgentRT, executor: ScriptedExecutor, script: dict[str, Any], options: dict[str, Any]
) -> None:
    script["say"] = '{"setup": "a cat"}'
    assert (await model.ainvoke("hello", **options)).text == script["say"]
    schema = asked(executor).schema
    assert schema is not None
    assert schema["type"] == "object"
    assert ("setup" in schema.get("properties", {})) is (
        options.get("response_format") != {"type": "json_object"}
    )


async def test_text_is_a_format_too(model: ChatAgentRT, executor: ScriptedExecutor) -> None:
    await model.ainvoke("hello", response_format={"type": "text"})
    assert asked(executor).schema is None


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


# -- errors ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"colour": "red"}, "no option 'colour' for a call; it has model, timeout, temperature"),
        ({"model": "huge"}, "serves 'lab/tiny', not model 'huge'"),
        ({"max_tokens": 0}, "max_tokens must be at least 1"),
        ({"temperature": -1}, "temperature must be at least 0"),
        ({"tools": [{"type": "web_search"}]}, "'web_search' is a service of another provider"),
        ({"tool_choice": "add"}, "tool_choice 'add' is no tool of this call"),
        ({"schema": JOKE, "response_format": JOKE}, "schema or response_format, not both"),
        ({"response_format": {"type": "json_schema"}}, "needs json_schema.schema"),
    ],
)
async def test_a_call_that_cannot_be_is_refused_in_one_line(
    model: ChatAgentRT, executor: ScriptedExecutor, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        await model.ainvoke("hello", **options)
    assert "\n" not in str(refused.value)
    with pytest.raises(ConfigError, match=message):
        await streamed(model, **options)
    assert executor.calls == []


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: ChatAgentRT(colour="red"), ConfigError, "no option 'colour'; it has model, temp"),
        (lambda: ChatAgentRT(runtime="mine"), ConfigError, "runtime is a str; give an open"),
        (
            lambda: ChatAgentRT(runtime=Runtime(ScriptedExecutor())),
            ConfigError,
            "its own event loop",
        ),
        (lambda: ChatAgentRT(temperature=-1), ValidationError, "temperature"),
        (lambda: ChatAgentRT(timeout=0), ValidationError, "timeout"),
        (
            lambda: ChatAgentRT().bind_tools([add], tool_choice="sub"),
            ConfigError,
            "'sub' is no tool",
        ),
        (
            lambda: ChatAgentRT().with_structured_output(Joke, method="xml"),
            ConfigError,
            "'xml' is none",
        ),
        (lambda: ChatAgentRT().with_structured_output(None), ConfigError, "needs a schema"),
        (
            lambda: ChatAgentRT().with_structured_output(Joke, tools=[]),
            ConfigError,
            "no option 'tools'",
        ),
    ],
)
def test_a_model_that_cannot_be_is_refused(
    make: Callable[[], Any], error: Any, message: str
) -> None:
    with pytest.raises(error, match=message):
        make()


async def test_a_call_past_its_timeout_is_aborted() -> None:
    held = HeldExecutor()
    async with Runtime(held) as runtime:
        model = ChatAgentRT(runtime=runtime, timeout=30)
        with pytest.raises(CallTimeoutError, match=r"its timeout of 0.01 s and was aborted"):
            await model.ainvoke("hello", timeout=0.01)
        with pytest.raises(TimeoutError):
            await streamed(model, timeout=0.01)
        assert (held.live, len(runtime.runs)) == (0, 0)


async def test_leaving_a_stream_early_aborts_the_call() -> None:
    held = HeldExecutor()
    async with Runtime(held) as runtime:
        stream: Any = ChatAgentRT(runtime=runtime).astream("hello")
        async for _ in stream:
            break
        await stream.aclose()
        while held.live:  # LangChain leaves it to the event loop to close what it iterates over
            await asyncio.sleep(0)


# -- with LangChain around it ----------------------------------------------------------------


async def test_what_langchain_asks_about_it(model: ChatAgentRT) -> None:
    params = model._get_ls_params(stop=["x"], max_tokens=3, model="tiny")
    assert params["ls_provider"] == "agentrt"
    assert (params["ls_model_name"], params["ls_max_tokens"], params["ls_stop"]) == (
        "tiny",
        3,
        ["x"],
    )
    assert model.profile is not None
    assert (model.profile["tool_calling"], model.profile["structured_output"]) == (True, True)
    assert "runtime" not in model.model_dump()
    assert "runtime" not in repr(model)
    assert model._identifying_params["temperature"] == 0


async def test_an_agent_uses_a_tool_and_gives_a_structured_answer() -> None:
    executor = ScriptedExecutor(copy_from_the_question)
    async with Runtime(executor) as runtime:
        agent = create_agent(ChatAgentRT(runtime=runtime), [add], response_format=Joke)
        state = await agent.ainvoke({"messages": [HumanMessage("What is 3 + 4?")]})
    kinds = [type(message) for message in state["messages"]]
    assert kinds == [HumanMessage, AIMessage, ToolMessage, AIMessage]
    assert state["messages"][2].content == "7"
    assert isinstance(state["structured_response"], Joke)
    roles = [message["role"] for message in asked(executor).messages or ()]
    assert roles == ["user", "assistant", "tool"]


async def test_a_call_to_another_model_is_refused_before_it_runs(
    runtime: Runtime, executor: ScriptedExecutor
) -> None:
    with pytest.raises(ConfigError, match="leave model out, or name 'lab/tiny'"):
        await ChatAgentRT(runtime=runtime, model="gpt-4o").ainvoke("hello")
    assert executor.calls == []
