"""``agentrt bench eager``: what it gains that tools start while the model still writes.

A scripted model writes two tool calls, a token a step. The first tool takes its time, and may start
when its own arguments are complete. The same step with and without that, in turns.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable
from itertools import product
from typing import Any

import click

from agentrt import Context, Runtime, ToolCall, program
from agentrt.executors.base import Chunk
from agentrt.interrupts import tool
from agentrt.lab.bench.results import SPREAD, Column, Results, ratios, show
from agentrt.lab.commands.options import count_option, json_option, note
from agentrt.lab.runs.grid import turns
from agentrt.program import Program
from agentrt.request import Call
from agentrt.testing.scripted import Output, ScriptedExecutor

STEP_S = 0.01
SHARES = (0.25, 0.5, 1.0, 2.0, 4.0)
"""How long the first tool takes, over the time of the second call's tokens."""
SIDES = {"whole": False, "eager": True}
COLUMNS = (
    Column("step s", "step_s", "{:.2f}"),
    Column("step / whole", "step_to_whole", SPREAD),
)


class Paced(ScriptedExecutor):
    """Its tokens come ``STEP_S`` seconds after one another."""

    async def generate(self, call: Call, *, stream: bool) -> AsyncGenerator[Chunk, None]:
        async with contextlib.aclosing(super().generate(call, stream=stream)) as chunks:
            async for chunk in chunks:
                await asyncio.sleep(STEP_S)
                yield chunk


@click.command()
@count_option("--tokens", default=60, about="Of the second call's arguments.")
@count_option("--repeat", default=5)
@json_option
def eager(**options: Any) -> None:
    """An agent's step whose tools start while the model writes, over one that waits for it.

    Needs no model: a scripted one writes 100 tokens a second.
    """
    measured = Results({"tool": "tool / rest of the reply", "side": "side"})
    asyncio.run(measure(measured, options["tokens"], options["repeat"], note))
    show(measured.table(COLUMNS), measured.medians(), as_json=options["as_json"])


async def measure(
    measured: Results, tokens: int, repeats: int, tell: Callable[[str], None]
) -> None:
    """Time both sides for each length of the first tool, so many times."""
    measured.expect((share, side) for share in SHARES for side in SIDES)
    words = " ".join(["word"] * tokens)
    calls = (ToolCall("look", {"item": "lamp"}, "a"), ToolCall("write", {"text": words}, "b"))
    async with Runtime(Paced(lambda call: Output(tool_calls=calls))) as runtime:
        for share, repeat in product(SHARES, range(repeats)):
            seconds = share * tokens * STEP_S
            tell(f"a tool of {seconds:.2f} s: repeat {repeat + 1} of {repeats}")
            took = {
                side: {"step_s": await runtime.start(one_step(seconds, eager=SIDES[side])).wait()}
                for side in turns(list(SIDES), repeat)
            }
            for side, mine in took.items():
                over = ratios(mine, took["whole"], ["step"], "_to_whole", of="_s")
                measured.add(share, side, figures={**mine, **over})


def one_step(seconds: float, *, eager: bool) -> Program:
    """A program that gives the seconds that its step took."""

    @tool(idempotent=True)
    async def look(item: str) -> str:
        await asyncio.sleep(seconds)
        return item

    @tool
    async def write(text: str) -> int:
        return len(text)

    @program
    async def step(ctx: Context) -> float:
        began = time.perf_counter()
        done = await ctx.step("?", tools=[look, write], eager=eager, max_tokens=4096)
        assert [result.error for result in done.results] == [None, None]
        return time.perf_counter() - began

    return step
