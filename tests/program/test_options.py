"""Options of a call that cannot be used: each is named, with its value and what is allowed."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from agentrt import Context, Reply, Runtime, program
from agentrt.contexts import json_schema
from agentrt.errors import ConfigError
from tests.doubles.scripted import ScriptedExecutor


class Opaque:
    """A class that has no JSON schema."""


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": "hot"}, "temperature must be a number, got 'hot'"),
        ({"temperature": -1}, "temperature must be at least 0, got -1"),
        ({"temperature": math.nan}, "temperature must be at least 0, got nan"),
        ({"max_tokens": "10"}, "max_tokens must be a number, got '10'"),
        ({"frequency_penalty": "low"}, "frequency_penalty must be a number, got 'low'"),
        ({"presence_penalty": 3}, "presence_penalty must be from -2 to 2, got 3"),
        ({"stop": 5}, "stop must be a string or several strings, got 5"),
        ({"tools": 5}, "tools must be a list of functions, Tools or ToolSpecs, got 5"),
        ({"tools": [5]}, "5 cannot be a tool: .*; pass a Python function"),
        ({"schema": 5}, "schema: 5 has no JSON schema"),
        ({"schema": Opaque}, "Opaque'> has no JSON schema; use a pydantic model"),
        ({"extra_body": "seed"}, "extra_body must be a mapping of further fields"),
        ({"ask": 5}, "the prompt must be a text, a reply or a list of messages, got 5"),
        ({"ask": {"role": "user", "content": "Tell."}}, "must be a list of messages, got the mess"),
        ({"model": 5}, "model must be the name of a model, got 5"),
        ({"after": ["Tell."]}, "after= takes a list of replies, but it has 'Tell.'"),
        (
            {"after": Reply("Told.")},
            "a list of replies, got 'Told.'; put a single reply into a list",
        ),
    ],
)
async def test_a_wrong_option_of_a_call_is_named_with_its_value(
    options: dict[str, Any], message: str
) -> None:
    @program
    async def agent(ctx: Context) -> None:
        await ctx.llm(**{"ask": "Tell.", **options})

    async with Runtime(ScriptedExecutor()) as runtime:
        with pytest.raises(ConfigError, match=message):
            await runtime.start(agent).wait()


async def test_a_message_with_tool_calls_needs_no_content() -> None:
    """OpenAI's client leaves out fields that are None, with ``model_dump(exclude_none=True)``."""
    call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    chat: list[dict[str, Any]] = [
        {"role": "user", "content": "Look."},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "tea"},
    ]

    @program
    async def agent(ctx: Context) -> None:
        await ctx.llm(chat)

    executor = ScriptedExecutor(lambda call: "tea")
    async with Runtime(executor) as runtime:
        await runtime.start(agent).wait()
        assert list(executor.calls[0].spec.messages) == chat

        @program
        async def lacking(ctx: Context) -> None:
            await ctx.llm([{"role": "assistant", "tool_calls": []}])

        with pytest.raises(ConfigError, match="a mapping with role and content"):
            await runtime.start(lacking).wait()


async def test_a_choice_of_tools_that_is_none_is_left_to_the_model() -> None:
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    @program
    async def agent(ctx: Context) -> str:
        unset: dict[str, Any] = {"tool_choice": None}
        reply: Reply = await ctx.llm("Tell.", tools=[add], **unset)
        return reply.text

    async with Runtime(ScriptedExecutor(lambda call: "tea")) as runtime:
        assert await runtime.start(agent).wait() == "tea"


async def test_options_that_are_none_have_their_defaults() -> None:
    @program
    async def agent(ctx: Context) -> str:
        unset: dict[str, Any] = dict.fromkeys(("temperature", "top_p", "frequency_penalty", "stop"))
        reply: Reply = await ctx.llm("Tell.", **unset)
        return reply.text

    async with Runtime(ScriptedExecutor(lambda call: "tea")) as runtime:
        assert await runtime.start(agent).wait() == "tea"


def test_a_type_without_a_json_schema_is_not_a_constraint() -> None:
    with pytest.raises(ConfigError, match="has no JSON schema"):
        json_schema(Opaque)


def measure() -> int:
    return 3


@pytest.mark.parametrize(
    ("operation", "message"),
    [
        (lambda ctx: ctx.human(5), "question of human.. must be a text, got 5"),
        (lambda ctx: ctx.human("?", timeout="3"), "timeout of human.. must be a number .* got '3'"),
        (lambda ctx: ctx.human("?", choices=3), "choices must be a list .* not 3"),
        (lambda ctx: ctx.sleep("3"), "finite number of at least 0 seconds, got '3'"),
        (lambda ctx: ctx.event(5), "topic of event.. must be a text, got 5"),
        (lambda ctx: ctx.event("tea", timeout="3"), "must be a number of seconds, got '3'"),
        (lambda ctx: ctx.tool(None), "None cannot be called as a tool; pass a function"),
        (lambda ctx: ctx.tool(measure, timeout="3"), "a tool's timeout must be a number, got '3'"),
        (lambda ctx: ctx.tool(measure, after=[3]), "after= takes a list of replies, but it has 3"),
        (lambda ctx: ctx.tool(measure, after=3), "after= takes a list of replies, got 3; put"),
    ],
)
async def test_a_wrong_argument_of_another_operation_is_named_with_its_value(
    operation: Callable[[Any], Any], message: str
) -> None:
    @program
    async def agent(ctx: Context) -> None:
        await operation(ctx)

    async with Runtime(ScriptedExecutor()) as runtime:
        with pytest.raises(ConfigError, match=message):
            await runtime.start(agent).wait()


def test_the_name_of_a_program_is_a_text() -> None:
    async def agent(ctx: Context) -> None: ...

    with pytest.raises(ConfigError, match="a program's name must be a text, got 5"):
        program(name=5)(agent)  # type: ignore[call-overload]


async def test_a_program_is_not_changed_by_attributes_of_its_function() -> None:
    """Other decorators set attributes, such as ``name``."""

    async def made(ctx: Context, drink: str = "tea") -> str:
        return drink

    vars(made).update(name="cup", function=None, takes_input=False, owner="ann")
    decorated: Any = program(made)
    async with Runtime(ScriptedExecutor()) as runtime:
        run = runtime.start(decorated, "cocoa")
        assert await run.wait() == "cocoa"
    assert (run.type, decorated.owner) == ("made", "ann")
