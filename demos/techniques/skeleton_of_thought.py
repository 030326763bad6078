"""Skeleton of Thought: first the headings of an answer, and then the texts of all points at once.

    agentrt run demos/techniques/skeleton_of_thought.py --input "Why do cats purr?"

The points are written in parallel, in forks of one context with the question and the skeleton. So
all points together take as many steps as the longest point. (Ning et al., 2024,
https://arxiv.org/abs/2307.15337)
"""

from __future__ import annotations

import asyncio

from agentrt import Context, program
from agentrt.contexts import TokenContext


async def skeleton_of_thought(
    context: TokenContext, *, points: int = 4, heading: int = 8, tokens: int = 24
) -> list[str]:
    """Return each point with its heading."""
    headings = []
    for number in range(1, points + 1):
        await context.fill(f"\n{number}.")
        headings.append((await context.generate(heading, stop="\n", ignore_eos=True)).text)

    async def write(number: int, title: str) -> str:
        with context.fork() as own:
            await own.fill(f"\n\nPoint {number},{title}, in full:")
            return title + (await own.generate(tokens, ignore_eos=True)).text

    return list(await asyncio.gather(*(write(n, t) for n, t in enumerate(headings, start=1))))


@program
async def answer(ctx: Context, question: str = "Why do cats purr?") -> list[str]:
    return await skeleton_of_thought(await ctx.context(f"{question}\nIn a few points:"))
