"""ChatAgentRT: what a call asks of the engine, what is refused, and what LangChain makes of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from pydantic import ValidationError

from agentrt import Runtime, ToolCall
from agentrt.errors import CallTimeoutError, ConfigError
from agentrt.integrations.langchain import ChatAgentRT
from tests.doubles.scripted import ScriptedExecutor
from tests.integrations.langchain.samples import (
    JOKE,
    Joke,
    JokeDict,
    add,
    asked,
    ping,
    streamed,
)
from tests.integrations.langchain.stub import HeldExecutor, copy_from_the_question

XML: Any = "xml"
CHAT = [{"role": "user", "content": "hello"}]
ADD_IT = {"type": "function", "function": {"name": "add"}}


# -- what is asked ---------------------------------------------------------------------------


async def test_options_of_the_model_are_those_of_its_calls(
    runtime: Runtime, executor: ScriptedExecutor
) -> None:
    """Unless a call says otherwise; `test_drop_in` has each option of both."""
    model = ChatAgentRT(
        runtime=runtime, model="lab/tiny", temperature=0.5, max_tokens=7, stop_sequences=["x"]
    )
    await model.ainvoke("hello")
    ours = {"messages": CHAT, "model": "lab/tiny", "temperature": 0.5}
    assert asked(executor) == {**ours, "max_completion_tokens": 7, "stop": ["x"]}
    await model.ainvoke("hello", stop=["y", "z"], temperature=0, model="tiny")
    theirs = {"messages": CHAT, "model": "tiny", "temperature": 0}
    assert asked(executor) == {**theirs, "max_completion_tokens": 7, "stop": ["y", "z"]}


async def test_by_default_a_call_is_greedy_and_as_long_as_it_takes(
    model: ChatAgentRT, executor: ScriptedExecutor
) -> None:
    await model.ainvoke("hello")
    assert asked(executor) == {"messages": CHAT, "temperature": 0}


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (None, None),
        ("auto", "auto"),
        (False, None),
        ("any", "required"),
        ("required", "required"),
        (True, "required"),
        ("none", "none"),
        ("add", ADD_IT),
        (ADD_IT, ADD_IT),
        ({"type": "tool", "name": "add"}, ADD_IT),
        ({"type": "any"}, "required"),
    ],
)
async def test_tool_choices(
    model: ChatAgentRT,
    executor: ScriptedExecutor,
    script: dict[str, Any],
    choice: Any,
    expected: Any,
) -> None:
    script["say"] = "free text" if expected == "none" else ToolCall("add", {"a": 1, "b": 2})
    bound = model.bind_tools(
        [add, ping], tool_choice=choice, strict=True, parallel_tool_calls=False
    )
    message = await bound.ainvoke("hello")
    request = asked(executor)
    assert request.get("tool_choice") == expected
    assert [tool["function"]["name"] for tool in request["tools"]] == ["add", "ping"]
    assert [tool["function"]["strict"] for tool in request["tools"]] == [True, True]
    assert request["parallel_tool_calls"] is False
    assert [call["name"] for call in message.tool_calls] == ([] if expected == "none" else ["add"])


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
    form = asked(executor)["response_format"]
    if options.get("response_format") == {"type": "json_object"}:
        assert form == {"type": "json_object"}
    else:
        schema = form["json_schema"]["schema"]
        assert (form["type"], schema["type"]) == ("json_schema", "object")
        assert "setup" in schema["properties"]


@pytest.mark.parametrize("method", ["json_schema", "json_mode"])
async def test_a_model_with_a_schema_may_call_tools(
    model: ChatAgentRT, executor: ScriptedExecutor, script: dict[str, Any], method: Any
) -> None:
    structured = model.with_structured_output(Joke, method=method, tools=[add], include_raw=True)
    script["say"] = ToolCall("add", {"a": 1, "b": 2})
    called = await structured.ainvoke("hello")
    assert [call["name"] for call in called["raw"].tool_calls] == ["add"]
    assert (called["parsed"], called["parsing_error"]) == (None, None)
    assert [tool["function"]["name"] for tool in asked(executor)["tools"]] == ["add"]
    script["say"] = '{"setup": "a cat"}'
    answered = await structured.ainvoke("hello")
    assert isinstance(answered["parsed"], Joke)


async def test_an_answer_in_a_schema_is_streamed_beside_tools(
    model: ChatAgentRT, script: dict[str, Any]
) -> None:
    schema = Joke.model_json_schema()
    structured = model.with_structured_output(schema, method="json_schema", tools=[add])
    script["say"] = '{"setup": "a cat in a tree"}'
    pieces = [piece async for piece in structured.astream("hello")]
    assert len(pieces) > 2
    assert pieces[-1] == {"setup": "a cat in a tree"}
    script["say"] = ToolCall("add", {"a": 1, "b": 2})
    assert [piece async for piece in structured.astream("hello")] == [None]
    assert await asyncio.to_thread(lambda: list(structured.stream("hello"))) == [None]


async def test_text_is_a_format_too(model: ChatAgentRT, executor: ScriptedExecutor) -> None:
    await model.ainvoke("hello", response_format={"type": "text"})
    assert asked(executor)["response_format"] == {"type": "text"}


# -- errors ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"colour": "red"}, r"'colour'.* model, max_tokens, temperature"),
        ({"model": "huge"}, "serves 'lab/tiny', not model 'huge'"),
        ({"timeout": (1, 2)}, "timeout .* seconds for the whole call, greater than 0"),
        ({"max_tokens": 1, "max_completion_tokens": 2}, "max_completion_tokens and max_tokens"),
        ({"max_completion_tokens": 2, "max_tokens": 1}, "max_tokens and max_completion_tokens"),
        ({"tools": [{"type": "web_search"}]}, "'web_search' is a service of another provider"),
        ({"tools": [{"type": "function", "name": "x"}]}, "but no object 'function'"),
        ({"tools": [{"name": "a", "input_schema": {}}]}, r"tool {'name': 'a', .* has no 'type';"),
        ({"tools": [{"type": "function", "function": {}}]}, r"tool .* has the name None; set func"),
        ({"tools": [5]}, "tool 5 is of type int; pass tools in OpenAI's form"),
        ({"tools": 5}, "tools is 5; pass a list of tools"),
        ({"tool_choice": "add"}, "tool_choice 'add' is not a tool of this call"),
        ({"tool_choice": {"function": {"nam": "add"}}}, "tool_choice {.* is not a tool"),
        ({"tool_choice": {"function": "add"}}, "tool_choice {.* is not a tool"),
        ({"schema": JOKE, "response_format": JOKE}, "both schema and response_format"),
        ({"response_format": {"type": "json_schema"}}, "has no json_schema.schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": "x"}},
            "has no json_schema.sch",
        ),
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
        (
            lambda: ChatAgentRT(colour="red"),  # type: ignore[call-arg]
            ConfigError,
            "'colour'.* model, temp",
        ),
        (lambda: ChatAgentRT(runtime="mine"), ConfigError, "runtime is of type str;"),
        (
            lambda: ChatAgentRT(runtime=Runtime(ScriptedExecutor())),
            ConfigError,
            "no event loop is running",
        ),
        (lambda: ChatAgentRT(temperature=-1), ValidationError, "temperature"),
        (lambda: ChatAgentRT(timeout=0), ValidationError, "timeout"),
        (lambda: ChatAgentRT(timeout=float("nan")), ValidationError, "timeout"),
        (
            lambda: ChatAgentRT().bind_tools([add], tool_choice="sub"),
            ConfigError,
            "'sub' is not a tool",
        ),
        (lambda: ChatAgentRT().bind_tools([5]), ConfigError, r"the tools \[5\]: Unsupported"),  # type: ignore[list-item]  # a wrong tool
        (
            lambda: ChatAgentRT().bind_tools([{"type": "function", "function": {}}]),
            ConfigError,
            "has the name None; set function.name",
        ),
        (
            lambda: ChatAgentRT().with_structured_output(Joke, method=XML),
            ConfigError,
            "'xml'; available: json_schema, ",
        ),
        (lambda: ChatAgentRT().with_structured_output(None), ConfigError, "needs a schema"),
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


async def test_a_timeout_of_the_engines_own_is_told_as_it_is() -> None:
    def late(call: Any) -> str:
        raise TimeoutError("the engine's own")

    async with Runtime(ScriptedExecutor(late)) as runtime:
        for own in (None, 30):
            with pytest.raises(TimeoutError, match=r"^the engine's own$"):
                await ChatAgentRT(runtime=runtime, timeout=own).ainvoke("hello")


async def test_leaving_a_stream_early_aborts_the_call() -> None:
    held = HeldExecutor()
    async with Runtime(held) as runtime:
        stream: Any = ChatAgentRT(runtime=runtime).astream("hello")
        async for _ in stream:
            break
        assert held.live == 1
        await stream.aclose()
        async with asyncio.timeout(60):
            while held.live:  # LangChain leaves it to the loop to close what it iterates over
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
    roles = [message["role"] for message in asked(executor)["messages"]]
    assert roles == ["user", "assistant", "tool"]
