"""Tree of Thoughts: several thoughts from each state; the best few are continued.

    agentrt run demos/techniques/tree_of_thought.py --input "How can four cats share three fish?"

Thoughts are forks, so the engine computes their common beginning once. A state is better the
more "good" is likelier than "bad" after it. (Yao et al., 2023, https://arxiv.org/abs/2305.10601)
"""

from __future__ import annotations

import asyncio

from agentrt import Context, program
from agentrt.contexts import TokenContext

State = tuple[float, TokenContext]
"""The worth of a state, and the thoughts that lead to it."""
VERDICT = "\nThis way of thinking is"


async def think(state: TokenContext, seed: int, tokens: int) -> State:
    """Return the state after one more thought."""
    thought = state.fork()
    await thought.generate(tokens, temperature=0.8, seed=seed, ignore_eos=True)
    with thought.fork() as judge:
        await judge.fill(VERDICT)
        good, bad = await asyncio.gather(judge.score(" good"), judge.score(" bad"))
    return good.total - bad.total, thought


async def tree_of_thought(
    root: TokenContext, *, depth: int = 2, width: int = 3, keep: int = 2, tokens: int = 16
) -> list[State]:
    """Return the best states of the last level, the best one first."""
    level: list[State] = [(0.0, root)]
    for _ in range(depth):
        thoughts = (think(state, seed, tokens) for _, state in level for seed in range(width))
        found = sorted(await asyncio.gather(*thoughts), key=lambda each: -each[0])
        for _, lost in found[keep:]:
            lost.drop()
        level = found[:keep]
    return level


@program
async def think_it_over(ctx: Context, question: str = "How can four cats share three fish?") -> str:
    root = await ctx.context([{"role": "user", "content": f"{question} Think step by step."}])
    worth, best = (await tree_of_thought(root))[0]
    return f"{worth:.2f} {await best.text()}"
