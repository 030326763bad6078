"""Beam search: keep the likeliest few texts, and continue each with its likeliest tokens.

    agentrt run demos/techniques/beam_search.py --input "The capital of France is"

Beams are forks, so they share the computed tokens of their common beginning. (Freitag and
Al-Onaizan, 2017, https://arxiv.org/abs/1702.01806)
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Sequence

from agentrt import Context, program
from agentrt.contexts import TokenContext

Beam = tuple[float, TokenContext]
"""The log probability of what was added, and the context with it."""


async def beam_search(
    context: TokenContext, *, beams: int, tokens: int, allowed: Sequence[int] | None = None
) -> list[Beam]:
    """Return the best continuations of ``tokens`` tokens that the search finds, best first."""
    found: list[Beam] = [(0.0, context)]
    for _ in range(tokens):
        likely = await asyncio.gather(
            *(beam.next_tokens(beams, allowed=allowed) for _, beam in found)
        )
        longer = [
            (score + logprob, beam, token)
            for (score, beam), nexts in zip(found, likely, strict=True)
            for token, logprob in nexts
        ]
        best = heapq.nlargest(beams, longer, key=lambda each: each[0])
        found = [(score, await extended(beam, token)) for score, beam, token in best]
    return found


async def extended(context: TokenContext, token: int) -> TokenContext:
    branch = context.fork()
    await branch.fill([token])
    return branch


@program
async def search(ctx: Context, text: str = "The capital of France is") -> list[tuple[float, str]]:
    context = await ctx.context(text)
    found = await beam_search(context, beams=3, tokens=12)
    return [(round(score, 2), await beam.text()) for score, beam in found]
