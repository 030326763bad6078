"""Jacobi decoding: guess many tokens, let the model correct all of them at once, and repeat.

    agentrt run demos/techniques/jacobi.py

One forward pass over a guess gives the greedy token at each position. The tokens up to the first
wrong guess are final, and the rest is the next guess. (Santilli et al., 2023,
https://arxiv.org/abs/2305.10427)
"""

from __future__ import annotations

from agentrt import Context, program
from agentrt.contexts import TokenContext


async def jacobi(context: TokenContext, tokens: int, *, window: int = 8) -> int:
    """Add ``tokens`` greedy tokens to the context. Return the number of engine steps."""
    end, steps = len(context) + tokens, 0
    guess: list[int] = []
    while len(context) < end:
        steps += 1
        filler = guess[-1:] or [context.token_ids[-1]]
        guess = (guess + filler * window)[: min(window, end - len(context))]
        scores = await context.score(guess, top=1)
        wanted = [score.top[0][0] for score in scores]
        right = next((i for i, one in enumerate(guess) if one != wanted[i]), len(guess))
        sure = min(right + 1, len(wanted))  # the first wrong token is corrected, too
        await context.fill(wanted[:sure])
        guess = wanted[sure:]
    return steps


@program
async def count(ctx: Context, text: str = "one two three one two three one two") -> str:
    context = await ctx.context(text)
    steps = await jacobi(context, 48)
    return f"{await context.text()}  [48 tokens in {steps} steps]"
