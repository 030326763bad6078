"""Graph of Thoughts: thoughts are generated in parallel, and then merged in pairs.

    agentrt run demos/techniques/graph_of_thought.py --input "cats; dogs; birds; fish"

Each merge waits for its own two thoughts only, and all merges share the instructions.
(Besta et al., 2024, https://arxiv.org/abs/2308.09687)
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

from agentrt import Context, program
from agentrt.contexts import TokenContext

HOW = "You write short notes, and you merge two notes into one.\n"


async def thought(trunk: TokenContext, about: str, tokens: int) -> str:
    with trunk.fork() as own:
        await own.fill(about)
        return (await own.generate(tokens, ignore_eos=True)).text


async def merged(
    trunk: TokenContext, notes: Sequence[Coroutine[Any, Any, str]], tokens: int
) -> str:
    """Merge all ``notes`` into one note."""
    if len(notes) == 1:
        return await notes[0]
    half = len(notes) // 2
    halves = (merged(trunk, part, tokens) for part in (notes[:half], notes[half:]))
    left, right = await asyncio.gather(*halves)
    return await thought(trunk, f"One: {left}\nOther: {right}\nMerged:", tokens)


async def graph_of_thought(trunk: TokenContext, topics: Sequence[str], tokens: int = 16) -> str:
    notes = [thought(trunk, f"A note on {topic}:", tokens) for topic in topics]
    return await merged(trunk, notes, tokens)


@program
async def note_on(ctx: Context, topics: str = "cats; dogs; birds; fish") -> str:
    return await graph_of_thought(await ctx.context(HOW), topics.split("; "))
