"""Recursion of Thought: a problem is divided, and each part is solved in a context of its own.

    agentrt run demos/techniques/recursion_of_thought.py --input "3 1 4 1 5 9 2 6"

So no context grows with the whole problem: the thoughts about a part are dropped, and only the
answer to this part is returned. (Lee and Kim, 2023, https://arxiv.org/abs/2306.06891)
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from agentrt import Context, program
from agentrt.contexts import TokenContext

HOW = "Sort the numbers in ascending order. Merge sorted lists if you are given some.\n"


async def ask(trunk: TokenContext, question: str, tokens: int) -> str:
    """Return the model's answer, a single line. The context of the answer is dropped."""
    with trunk.fork() as own:
        await own.fill(question)
        return (await own.generate(tokens, stop="\n")).text


async def solve(
    trunk: TokenContext, numbers: Sequence[int], *, most: int = 2, tokens: int = 16
) -> str:
    """Return the answer for ``numbers``. Up to ``most`` numbers are sorted without division."""
    if len(numbers) <= most:
        return await ask(trunk, f"Numbers: {numbers}\nSorted:", tokens)
    half = len(numbers) // 2
    parts = (
        solve(trunk, part, most=most, tokens=tokens) for part in (numbers[:half], numbers[half:])
    )
    left, right = await asyncio.gather(*parts)
    return await ask(trunk, f"Lists: {left} and {right}\nMerged:", tokens)


@program
async def sort(ctx: Context, numbers: str = "3 1 4 1 5 9 2 6") -> str:
    trunk = await ctx.context(HOW)
    return await solve(trunk, [int(number) for number in numbers.split()])
