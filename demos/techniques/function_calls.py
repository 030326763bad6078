"""Function calls with three optimisations that a program can make, and a chat API cannot.

    agentrt run demos/techniques/function_calls.py --input "Is it raining in Vienna?"

Documentation of functions that are used often is computed once and saved under a name. A function
runs as soon as its call is written, while the model writes the next call. Documentation that is
needed only once is on a fork, and is dropped with it. (Pie, SOSP 2025, Figure 7)
"""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any

from agentrt import Context, program
from agentrt.contexts import TokenContext, regex
from prefix_caching import remembered

Functions = Mapping[str, Callable[[str], Any]]
CALL = re.compile(r"(\w+)\(([^)\n]*)\)\n")


def manual(functions: Functions) -> str:
    return "".join(f"{name}(what): {inspect.getdoc(f)}\n" for name, f in functions.items())


async def call_functions(
    ctx: Context, request: str, often: Functions, once: Functions, calls: int = 3
) -> TokenContext:
    """Return the request with ``calls`` calls and results, without the manual of ``once``."""
    context = await remembered(ctx, "functions", f"Functions:\n{manual(often)}")
    await context.fill(f"Request: {request}\n")
    names = "|".join([*often, *once])
    started: list[tuple[str, asyncio.Task[Any]]] = []
    with context.fork() as branch:
        await branch.fill(f"For this request also:\n{manual(once)}Calls:\n")
        wrote, form = "", regex(rf"(({names})\([a-z ]{{1,12}}\)\n){{{calls}}}")
        async for piece in branch.generate(32 * calls, constrain=form):
            wrote += piece
            for name, what in CALL.findall(wrote)[len(started) :]:
                tool = ctx.tool({**often, **once}[name], what)
                started.append((f"{name}({what})", asyncio.create_task(tool)))
    for call, task in started:
        await context.fill(f"{call} = {await task}\n")
    return context


def weather(place: str) -> str:
    """The weather at a place, now and in the next hours."""
    return f"rain in {place}"


@program
async def functions(ctx: Context, request: str = "Is it raining in Vienna?") -> str:
    return await (await call_functions(ctx, request, {"weather": weather}, {"count": len})).text()
