"""The scripted executor says what it is told, or makes up what fits, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from typing import Any, Literal

import pytest

from agentrt import Context, Reply, Runtime, ToolCall, program
from agentrt.errors import EngineDiedError
from agentrt.executors.base import Executor
from agentrt.executors.frontend import spec_of
from agentrt.executors.replies import StreamedAnswer, reply_of
from agentrt.graph import NodeState
from agentrt.program.options import make_request
from agentrt.request import Call, CallReport, CallSpec, Identity
from tests.doubles.choices import Output
from tests.doubles.madeup import made_up_value
from tests.doubles.scripted import ScriptedExecutor
from tests.graph.integrity import check_integrity

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


async def test_script_is_told_the_call_and_its_words_come_back() -> None:
    executor = await started(lambda call: f"{call.program_id} heard you", step_s=0.5)
    reply = await ask(executor, spec())
    assert reply.text == "p heard you"
    assert reply.report.output_tokens == reply.report.steps == 4
    assert reply.report.service_s == 2.0
    assert reply.report.prompt_tokens == 4
    assert [call.call_id for call in executor.calls] == ["p/0"]


async def test_script_can_call_a_tool() -> None:
    def price_of(item: Literal["tea", "rice"]) -> int:
        """Price of an item."""
        return len(item)

    @program
    async def shop(ctx: Context) -> Any:
        reply = await ctx.llm("tea?", tools=[price_of])
        return [await ctx.call_tool(price_of, call.arguments) for call in reply.tool_calls]

    async with Runtime(ScriptedExecutor(lambda call: ToolCall("price_of", {"item": "tea"}))) as rt:
        assert await rt.start(shop).wait() == [3]


async def test_scripted_text_ends_at_stop_strings_and_max_tokens() -> None:
    executor = await started(lambda call: "one two three. four")
    assert (await ask(executor, spec(stop=(".",)))).text == "one two three"
    short = await ask(executor, spec(max_tokens=2))
    assert (short.text, short.finish_reason) == ("one two", "length")


async def test_script_can_think_and_call_several_tools() -> None:
    calls = ToolCall("look", {"there": True}), ToolCall("look", {"there": False})
    executor = await started(lambda call: Output("well", "hm", calls))
    given = spec(tools=await ask_tools(), n=2, logprobs=1)
    reply = await ask(executor, given)
    assert (reply.text, reply.reasoning, reply.finish_reason) == ("well", "hm", "tool_calls")
    assert [call.arguments for call in reply.tool_calls] == [{"there": True}, {"there": False}]
    assert len({call.id for choice in reply.choices for call in choice.tool_calls}) == 4
    assert [(one.token, one.top) for one in reply.logprobs] == [("well", (("well", 0.0),))]
    whole = StreamedAnswer()
    call = Call(Identity("p/0", "p", "demo"), given)
    async for chunk in executor.generate(call, stream=True):
        whole.add(chunk.output)
    streamed = reply_of(whole.answer())
    assert replace(streamed, report=reply.report) == reply


async def test_a_tool_call_that_is_cut_off_is_invalid() -> None:
    executor = await started(lambda call: ToolCall("look", {"there": True}))
    reply = await ask(executor, spec(tools=await ask_tools(), max_tokens=1))
    assert (reply.text, reply.tool_calls, reply.finish_reason) == ("", (), "length")
    assert [(bad.name, bad.arguments) for bad in reply.invalid_tool_calls] == [("look", '{"th')]


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


async def test_stream_gives_the_text_piece_by_piece() -> None:
    executor = await started(lambda call: "one two")
    chunks = [
        c async for c in executor.generate(Call(Identity("p/0", "p", "demo"), spec()), stream=True)
    ]
    assert [chunk.text for chunk in chunks] == ["one", " two", ""]
    assert chunks[-1].reply is not None
    assert chunks[-1].reply.text == "one two"


async def test_calls_at_the_same_time_share_steps() -> None:
    executor = await started(lambda call: "one two three four")
    replies = await asyncio.gather(*(ask(executor, spec(), f"p/{i}") for i in range(3)))
    assert {reply.report.arrived_step for reply in replies} == {1}
    last = {reply.report.finished_step for reply in replies}
    assert (await executor.snapshot())["steps"] == max(last)
    assert max(last) < sum(reply.report.steps for reply in replies)


async def test_cancelled_program_leaves_nothing_behind() -> None:
    """1. a call runs 2. its program is cancelled 3. its service counts, and nothing is left."""
    executor = ScriptedExecutor()

    @program
    async def endless(ctx: Context) -> None:
        await ctx.llm("count", max_tokens=20_000, ignore_eos=True)

    async with Runtime(executor) as runtime:
        run = runtime.start(endless)
        for _ in range(10):
            await asyncio.sleep(0)
        assert [c["program_id"] for c in (await executor.snapshot())["running"]] == [run.id]
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run.wait()
        assert run.dag.node(0).state is NodeState.CANCELLED
        assert run.dag.node(0).service_s > 0
        assert (await executor.snapshot())["running"] == []
        assert await executor.aborted(f"{run.id}/0") == CallReport()
        assert executor.ended == [run.id]
        assert len(runtime.table) == 0
        check_integrity(run.dag)


async def test_what_the_script_raises_the_program_sees() -> None:
    def dead(call: Call) -> str:
        raise EngineDiedError("gone")

    @program
    async def hopeful(ctx: Context) -> str:
        try:
            return (await ctx.llm("hello")).text
        except EngineDiedError as error:
            return f"sorry: {error}"

    async with Runtime(ScriptedExecutor(dead)) as runtime:
        run = runtime.start(hopeful)
        assert await run.wait() == "sorry: gone"
        assert run.dag.node(0).state is NodeState.FAILED


async def test_it_runs_only_between_start_and_close() -> None:
    executor = ScriptedExecutor()
    with pytest.raises(EngineDiedError):
        await ask(executor, spec())
    await executor.start(lambda message: None)
    await ask(executor, spec())
    await executor.close()
    await executor.close()
    with pytest.raises(EngineDiedError):
        await ask(executor, spec())
