"""What the scripted executor makes up fits the call, and comes again."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from typing import Any

import pytest

from agentrt import Reply
from agentrt.executors.base import Executor
from agentrt.executors.chat_api import spec_of
from agentrt.executors.replies import reply_of
from agentrt.program.options import make_request
from agentrt.request import Call, CallSpec, Identity
from tests.doubles.madeup import made_up_value
from tests.doubles.scripted import ScriptedExecutor

TREE: dict[str, Any] = {
    "$defs": {
        "Sum": {
            "type": "object",
            "properties": {"left": {"$ref": "#/$defs/Term"}, "right": {"$ref": "#/$defs/Term"}},
            "required": ["left", "right"],
        },
        "Leaf": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]},
        "Term": {"anyOf": [{"$ref": "#/$defs/Sum"}, {"$ref": "#/$defs/Leaf"}]},
    },
    "$ref": "#/$defs/Term",
}


def validate(value: Any, schema: Any) -> None:
    # No dependency of ours, but vLLM's.
    pytest.importorskip("jsonschema").validate(value, schema)


def spec(**options: Any) -> CallSpec:
    return spec_of(make_request("hello there", **options))


async def ask(executor: Executor, given: CallSpec, call_id: str = "p/0") -> Reply:
    async for chunk in executor.generate(Call(Identity(call_id, "p", "demo"), given), stream=False):
        if chunk.reply is not None:
            reply = reply_of(chunk.output, as_json="response_format" in (given.request or {}))
            return replace(reply, report=chunk.reply.report)
    raise AssertionError("no reply")


async def started(*args: Any, **options: Any) -> ScriptedExecutor:
    executor = ScriptedExecutor(*args, **options)
    await executor.start(lambda message: None)
    return executor


SCHEMAS: list[dict[str, Any]] = [
    TREE,
    {"type": "integer", "minimum": 3, "maximum": 5},
    {"type": "integer", "exclusiveMinimum": 3, "exclusiveMaximum": 5},
    {"type": "number", "maximum": -7},
    {"type": "string", "minLength": 20, "maxLength": 22},
    {"type": ["boolean", "null"]},
    {"type": "array", "items": {"enum": [1, "a"]}, "minItems": 2, "maxItems": 3},
    {"type": "array", "prefixItems": [{"const": {"x": 1}}], "items": False, "maxItems": 1},
    {
        "$defs": {"p/q": {"type": "string"}},
        "properties": {
            "a": {"title": "one", "allOf": [{"$ref": "#/$defs/p~1q"}]},
            "b": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        },
        "required": ["a"],
        "additionalProperties": False,
    },
]


@pytest.mark.parametrize("schema", SCHEMAS, ids=str)
def test_made_up_values_obey_their_schema(schema: dict[str, Any]) -> None:
    for seed in range(50):
        validate(made_up_value(schema, random.Random(seed)), schema)


def test_what_cannot_be_made_is_said() -> None:
    endless = {"type": "object", "properties": {"x": {"$ref": "#"}}, "required": ["x"]}
    with pytest.raises(RecursionError, match="without end"):
        made_up_value(endless, random.Random(0))
    with pytest.raises(ValueError, match="pattern"):
        made_up_value({"type": "string", "pattern": "^a+$"}, random.Random(0))


async def ask_tools() -> Any:
    from agentrt.interrupts.schema import tool_specs

    def look(there: bool) -> None:
        """Look."""

    return tool_specs([look])


async def test_made_up_replies_fit_the_call_and_come_again() -> None:
    tools = await ask_tools()
    executor = await started(seed=7)
    required = await ask(executor, spec(tools=tools, tool_choice="required"), "p/1")
    assert required.tool_calls[0].name == "look"
    assert isinstance(required.tool_calls[0].arguments["there"], bool)
    assert (await ask(executor, spec(schema={"type": "null"}), "p/2")).parsed is None
    text = await ask(executor, spec(max_tokens=5), "p/3")
    assert text.report.output_tokens == 5
    full = await ask(executor, spec(max_tokens=40, ignore_eos=True), "p/4")
    assert full.report.output_tokens == 40
    again = await ask(await started(seed=7), spec(max_tokens=5), "p/3")
    assert again.text == text.text


async def test_calls_at_the_same_time_share_steps() -> None:
    executor = await started(lambda call: "one two three four")
    replies = await asyncio.gather(*(ask(executor, spec(), f"p/{i}") for i in range(3)))
    assert {reply.report.arrived_step for reply in replies} == {1}
    last = {reply.report.finished_step for reply in replies}
    assert (await executor.snapshot())["steps"] == max(last)
    assert max(last) < sum(reply.report.steps for reply in replies)
