"""Programs, and an engine, that wait until a test of the dashboard lets them continue."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel

from agentrt import Context, Progress, ToolContext, program
from agentrt.errors import UsageError
from agentrt.request import Call
from tests.doubles.scripted import ScriptedExecutor


class Gates:
    """Steps that programs wait for, until the test opens them."""

    def __init__(self) -> None:
        self._gates: dict[str, asyncio.Event] = {}

    def close(self) -> None:
        """All of them, for the next test."""
        self._gates.clear()

    def __getitem__(self, name: str) -> asyncio.Event:
        return self._gates.setdefault(name, asyncio.Event())


gates = Gates()


@program
async def grower(ctx: Context) -> str:
    await ctx.llm("plan")
    await ctx.tool(first_step)
    await asyncio.gather(ctx.llm("left"), ctx.llm("right"))
    await ctx.tool(second_step)
    return "done"


async def first_step(context: ToolContext) -> None:
    context.progress(Progress(1, 3, "looking"))
    await gates["first"].wait()


async def second_step() -> None:
    await gates["second"].wait()


@program
async def sleeper(ctx: Context) -> None:
    await ctx.tool(second_step)


@program
async def sayer(ctx: Context, words: str) -> str:
    return words


@program
async def breaker(ctx: Context) -> None:
    raise UsageError("<b>no</b> such luck")


@program
async def caller(ctx: Context) -> None:
    await ctx.llm("wait for me")


class Staged(ScriptedExecutor):
    """Calls wait until ``gates["engine"]`` opens; meanwhile the engines say ``staged``."""

    def __init__(self) -> None:
        super().__init__()
        self.staged: Mapping[str, Any] | None = None

    async def generate(self, call: Call, *, stream: bool) -> Any:
        await gates["engine"].wait()
        async for chunk in super().generate(call, stream=stream):
            yield chunk

    async def snapshot(self) -> Mapping[str, Any]:
        return await super().snapshot() if self.staged is None else self.staged


class Order(BaseModel):
    drink: Literal["tea", "coffee"]
    cups: int = 1
    milk: bool | None = None
    name: str


@program
async def waiter(ctx: Context) -> Order:
    order: Order = await ctx.human("<b>What</b> may I bring?", schema=Order)
    return order


@program
async def asker(ctx: Context) -> list[Any]:
    return [
        await ctx.human("a text?"),
        await ctx.human("how many?", schema=int),
        await ctx.human("really?", schema=bool),
        await ctx.human("which?", choices=["red", "blue"]),
        await ctx.human("a list?", schema=list[int]),
    ]
