"""A swarm: agents with different roles, which speak in rounds and hear each other.

    agentrt run demos/techniques/agent_swarm.py --input "Where should we build the bridge?"

All agents hear the same words in the same order, so the conversation is computed once for all of
them. An agent's role comes last in its prompt. (Zhuge et al., https://arxiv.org/abs/2402.16823)
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from agentrt import Context, program
from agentrt.contexts import TokenContext

PARTS = ("an engineer", "a farmer", "the mayor", "a child")


async def speak(heard: TokenContext, part: str, tokens: int) -> str:
    """Return what the agent with this part says after all that it has heard."""
    with heard.fork() as own:
        await own.fill(f"\n{part}:")
        return (await own.generate(tokens, stop="\n", ignore_eos=True)).text


async def swarm(
    context: TokenContext, parts: Sequence[str] = PARTS, *, rounds: int = 2, tokens: int = 16
) -> str:
    """Return the decision of the agents. All that was said is added to ``context``."""
    for _ in range(rounds):
        said = await asyncio.gather(*(speak(context, part, tokens) for part in parts))
        for part, words in zip(parts, said, strict=True):
            await context.fill(f"\n{part}:{words}")
    await context.fill("\nTogether they decide:")
    return (await context.generate(tokens, ignore_eos=True)).text


@program
async def meeting(ctx: Context, question: str = "Where should we build the bridge?") -> str:
    return await swarm(await ctx.context(f"A meeting of {', '.join(PARTS)}. {question}"))
