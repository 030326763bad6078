"""Tools whose parameters have the names of options of `Context.tool`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from agentrt import Context, Runtime, Tool, ToolCall, program, tool
from agentrt.errors import AmbiguousOptionError, ConfigError, InterruptExpiredError
from agentrt.request import ToolSpec
from agentrt.runtime.run import Run
from tests.doubles.choices import Output
from tests.doubles.scripted import ScriptedExecutor
from tests.interrupts.scripted import Scripted, never

PARAMETERS = {name: {"type": "integer"} for name in ("timeout", "after", "tool", "self")}
GIVEN = {name: number for number, name in enumerate(PARAMETERS)}
ELSEWHERE = Scripted(
    lambda request, context: _given(dict(request.arguments)), name="scripted"
)  # fmt: skip


async def _given(arguments: Any) -> Any:
    return arguments


@tool
def in_a_thread(timeout: int, after: int, tool: int, self: int) -> dict[str, int]:
    return {"timeout": timeout, "after": after, "tool": tool, "self": self}


def plain(timeout: int, after: int, **more: int) -> dict[str, int]:
    return {"timeout": timeout, "after": after, **more}


elsewhere = Tool(
    "elsewhere",
    spec=ToolSpec("elsewhere", "", {"type": "object", "properties": PARAMETERS}),
    transport=ELSEWHERE,
)


async def run(body: Callable[[Context], Awaitable[Any]], *calls: ToolCall) -> Run:
    @program
    async def main(ctx: Context) -> Any:
        return await body(ctx)

    async with Runtime(ScriptedExecutor(lambda call: Output(tool_calls=calls))) as runtime:
        started = runtime.start(main)
        await started.wait()
        return started


@pytest.mark.parametrize("which", [in_a_thread, plain, elsewhere])
async def test_a_model_may_name_its_arguments_as_options_are_named(which: Any) -> None:
    assert (await run(lambda ctx: ctx.call_tool(which, GIVEN))).result == GIVEN


async def test_a_model_may_use_the_names_of_options_in_a_step() -> None:
    async def body(ctx: Context) -> Any:
        step = await ctx.step("?", tools=[in_a_thread, elsewhere])
        return [result.value for result in step.results]

    calls = [ToolCall(name, dict(GIVEN)) for name in ("in_a_thread", "elsewhere")]
    assert (await run(body, *calls)).result == [GIVEN, GIVEN]


@pytest.mark.parametrize("which", [in_a_thread, plain, elsewhere])
@pytest.mark.parametrize("option", [{"timeout": 5}, {"timeout": None}, {"after": []}])
async def test_an_option_that_may_be_an_argument_is_refused(which: Any, option: Any) -> None:
    (name,) = option

    async def body(ctx: Context) -> None:
        with pytest.raises(TypeError, match=rf"ctx\.call_tool\(tool, {{'{name}': …}}\)") as got:
            await ctx.tool(which, **option)
        assert isinstance(got.value, AmbiguousOptionError)

    assert not (await run(body)).dag.nodes()


async def test_an_unambiguous_argument_stays_as_it_is() -> None:
    def with_default(x: int, timeout: int = 7, **more: int) -> Any:
        return x, timeout, more

    async def body(ctx: Context) -> Any:
        first = await ctx.llm("?")
        return [
            await ctx.tool(in_a_thread, 0, 1, tool=2, self=3),
            await ctx.tool(with_default, 1, timeout=60, after=[first], self=2),
            await ctx.tool(min, [1, 2], timeout=60),
        ]

    assert (await run(body)).result == [GIVEN, (1, 7, {"self": 2}), 1]


async def test_options_and_arguments_are_passed_together() -> None:
    slow = Tool("slow", spec=elsewhere.spec, transport=Scripted(never))

    async def body(ctx: Context) -> None:
        with pytest.raises(InterruptExpiredError, match=r"within 0.01 s"):
            await ctx.call_tool(slow, {"timeout": 60}, timeout=0.01)
        with pytest.raises(ConfigError, match="arguments by name"):
            await ctx.call_tool(slow, ToolCall("slow", {}))  # type: ignore[arg-type]

    await run(body)
