"""`Context.step`: when tools start, and what their results are."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

import pytest

from agentrt import Context, Runtime, ToolCall, program, tool
from agentrt.errors import ConfigError, EngineDiedError
from agentrt.graph import NodeKind, NodeState
from agentrt.program.definition import Program
from agentrt.request import Call, ToolSpec
from agentrt.runtime.run import Run
from tests.doubles.choices import Output
from tests.doubles.scripted import ScriptedExecutor
from tests.graph.integrity import check_integrity

FIRST = ToolCall("look", {"item": "lamp"}, "a")
LAST = ToolCall("order", {"item": 'a {} " chair', "count": 2}, "b")


async def run_with(made: Program, *calls: ToolCall, text: str = "") -> Run:
    """Run a program whose model asks for these calls, and check that nothing is left."""
    tasks = asyncio.all_tasks()
    async with Runtime(ScriptedExecutor(lambda call: Output(text, tool_calls=calls))) as runtime:
        run = runtime.start(made)
        await asyncio.wait([run.task] if run.task else [])
        assert runtime.table.get(run.id) is None
    check_integrity(run.dag)
    assert asyncio.all_tasks() == tasks
    return run


def agent(*, idempotent: bool, eager: bool = True) -> tuple[Program, list[Any]]:
    """A program of one step, and whether the call had ended when each tool began."""
    seen: list[Any] = []

    @program
    async def made(ctx: Context) -> Any:
        def saw(name: str) -> None:
            call = runs[0].dag.node(0)
            seen.append((name, call.state.ended))

        @tool(idempotent=idempotent)
        async def look(item: str) -> dict[str, int]:
            saw("look")
            return {item: 3}

        @tool
        async def order(item: str, count: int) -> str:
            saw("order")
            return f"{count} {item}"

        step = await ctx.step("?", tools=[look, order], eager=eager, max_tokens=400)
        return [result.value for result in step.results], step.messages

    runs: list[Run] = []
    start = made.function

    async def noting(ctx: Context) -> Any:
        emitter: Any = ctx._emitter
        runs.append(emitter.run)
        return await start(ctx)

    return program(noting), seen


async def test_an_idempotent_tool_starts_while_the_model_still_writes() -> None:
    made, seen = agent(idempotent=True)
    run = await run_with(made, FIRST, LAST)
    assert seen == [("look", False), ("order", True)]
    values, messages = run.result
    assert values == [{"lamp": 3}, '2 a {} " chair']
    assert [message["role"] for message in messages] == ["assistant", "tool", "tool"]
    assert [message.get("tool_call_id") for message in messages[1:]] == ["a", "b"]
    assert json.loads(messages[1]["content"]) == {"lamp": 3}
    call, look, order = run.dag.nodes()
    assert (call.kind, look.name, order.name) == (NodeKind.CALL, "look", "order")
    assert look.parents == ()
    assert call.id in order.parents


async def test_a_tool_that_started_early_runs_once_beside_a_call_that_is_not_valid() -> None:
    """The reply has its calls without those whose arguments are no object."""
    looks: list[str] = []

    @tool(idempotent=True)
    async def look(item: str) -> str:
        looks.append(item)
        return item

    @program
    async def made(ctx: Context) -> Any:
        step = await ctx.step("?", tools=[look], max_tokens=400)
        return [result.value for result in step.results], len(step.reply.invalid_tool_calls)

    wrong: Any = ["lamp"]
    run = await run_with(made, ToolCall("look", wrong, "x"), FIRST, ToolCall("look", {"item": "c"}))
    assert run.result == (["lamp", "c"], 1)
    assert looks == ["lamp", "c"]
    assert all(node.state is NodeState.DONE for node in run.dag.nodes())


@pytest.mark.parametrize(("idempotent", "eager"), [(False, True), (True, False)])
async def test_any_other_tool_waits_for_the_whole_reply(idempotent: bool, eager: bool) -> None:
    made, seen = agent(idempotent=idempotent, eager=eager)
    run = await run_with(made, FIRST, LAST)
    assert sorted(seen) == [("look", True), ("order", True)]
    assert [node.parents for node in run.dag.nodes()] == [(), (0,), (0,)]


async def test_the_model_reads_errors_and_unknown_tools() -> None:
    @tool(idempotent=True)
    async def look(item: str) -> str:
        raise LookupError(f"no {item} here")

    @program
    async def made(ctx: Context) -> Any:
        step = await ctx.step("?", tools=[look])
        return [(type(one.error).__name__, one.message["content"]) for one in step.results]

    wrong = ToolCall("look", {"thing": 1}, "c")
    run = await run_with(made, FIRST, ToolCall("fly", {}, "b"), wrong)
    first, unknown, arguments = run.result
    assert first == ("LookupError", "Error: LookupError: no lamp here")
    assert unknown[0] == "UnknownToolError"
    assert "'fly'; available: look" in unknown[1]
    assert arguments[0] == "ToolArgumentsError"


async def test_the_error_of_an_unknown_tool_says_that_there_are_none() -> None:
    @program
    async def made(ctx: Context) -> Any:
        step = await ctx.step("?", tools=[])
        return [str(one.error) for one in step.results]

    assert (await run_with(made, FIRST)).result == ["unknown tool 'look'; available: none"]


async def test_a_call_that_fails_stops_the_tools_that_it_started() -> None:
    started, stopped = asyncio.Event(), asyncio.Event()

    @tool(idempotent=True)
    async def look(item: str) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            stopped.set()
            raise

    @program
    async def made(ctx: Context) -> None:
        await ctx.step("?", tools=[look])

    class Dying(ScriptedExecutor):
        async def generate(self, call: Call, *, stream: bool) -> Any:
            async with contextlib.aclosing(super().generate(call, stream=stream)) as chunks:
                async for chunk in chunks:
                    yield chunk
                    if '"index": 1' in json.dumps(chunk.output):  # of its calls
                        await started.wait()
                        raise EngineDiedError("gone")

    async with Runtime(Dying(lambda call: Output(tool_calls=(FIRST, LAST)))) as runtime:
        run = runtime.start(made)
        with pytest.raises(EngineDiedError):
            await run.wait()
    assert {node.name: node.state for node in run.dag.nodes()} == {
        "llm": NodeState.FAILED,
        "look": NodeState.CANCELLED,
    }
    assert stopped.is_set()


async def test_a_reply_without_calls_is_a_step_without_results() -> None:
    @program
    async def made(ctx: Context) -> Any:
        step = await ctx.step("?", tools=[])
        return step.reply.text, step.results

    run = await run_with(made, text="four")
    assert run.result == ("four", ())


async def test_a_bare_description_cannot_be_run() -> None:
    @program
    async def made(ctx: Context) -> None:
        await ctx.step("?", tools=[ToolSpec("look", "", {})])  # type: ignore[list-item]

    run = await run_with(made)
    assert isinstance(run.error, ConfigError)
    assert "only a tool's description" in str(run.error)


async def test_two_tools_of_one_name_are_refused() -> None:
    @tool(name="look")
    def see(item: str) -> str:
        return item

    @tool
    def look(item: str) -> str:
        return item

    @program
    async def made(ctx: Context) -> None:
        await ctx.step("?", tools=[look, see])

    run = await run_with(made)
    assert isinstance(run.error, ConfigError)
    assert "two tools have the name 'look'" in str(run.error)
