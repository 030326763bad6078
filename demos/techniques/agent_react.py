"""ReAct: the model thinks, calls a tool, and sees the result, in one growing context.

    agentrt run demos/techniques/agent_react.py --input "How is the weather in Vienna?"

No token of the context is computed twice. The program chooses the tool by the scores of the
tools' names, so even a small model always names one of the tools. (Yao et al., 2023,
https://arxiv.org/abs/2210.03629)
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from agentrt import Context, program
from agentrt.contexts import TokenContext

HOW = "Answer the question. Write a thought, then an action, and you see an observation.\n"


async def choose(context: TokenContext, options: list[str]) -> str:
    """Append the option with the highest mean log probability of a token, and return it."""
    scores = await asyncio.gather(*(context.score(f" {option}") for option in options))
    worth = [score.total / len(score) for score in scores]
    chosen = options[worth.index(max(worth))]
    await context.fill(f" {chosen}")
    return chosen


async def react(
    ctx: Context, question: str, tools: Mapping[str, Callable[[str], Any]], *, turns: int = 4
) -> TokenContext:
    """Return the context with all thoughts and actions, at the latest up to ``finish``."""
    context = await ctx.context(f"{HOW}Actions: {', '.join(tools)}, finish\nQuestion: {question}")
    for _ in range(turns):
        await context.fill("\nThought:")
        thought = await context.generate(24, stop="\n")
        await context.fill("\nAction:")
        action = await choose(context, [*tools, "finish"])
        if action == "finish":
            break
        seen = await ctx.tool(tools[action], thought.text)
        await context.fill(f"\nObservation: {seen}")
    return context


@program
async def agent(ctx: Context, question: str = "How is the weather in Vienna?") -> str:
    tools = {"look": lambda what: "It is raining.", "count": lambda what: str(len(what.split()))}
    return await (await react(ctx, question, tools)).text()
