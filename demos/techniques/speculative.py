"""Speculative decoding: guess the next tokens, and check them in one forward pass.

    agentrt run demos/techniques/speculative.py

The guess is the text that followed the last few tokens at their previous occurrence (prompt
lookup, Saxena, 2023). The result equals greedy decoding; a repetitive text gets many tokens a step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from agentrt import Context, program
from agentrt.contexts import TokenContext

Guess = Callable[[Sequence[int]], list[int]]
"""A function that drafts the tokens that follow these tokens; the draft may be empty."""


def look_up(ids: Sequence[int], *, ngram: int = 3, most: int = 10) -> list[int]:
    """Return what followed the previous occurrence of the last ``ngram`` or fewer tokens."""
    for size in range(min(ngram, len(ids) - 1), 0, -1):
        last = tuple(ids[-size:])
        for start in range(len(ids) - size - 1, -1, -1):
            if tuple(ids[start : start + size]) == last:
                return list(ids[start + size : start + size + most])
    return []


async def speculate(context: TokenContext, tokens: int, guess: Guess = look_up) -> int:
    """Add ``tokens`` greedy tokens to the context. Return the number of engine steps."""
    end, steps = len(context) + tokens, 0
    while len(context) < end:
        steps += 1
        draft = guess(context.token_ids)[: end - len(context) - 1]
        if not draft:
            await context.fill([(await context.next_tokens(1))[0][0]])
            continue
        scores = await context.score(draft, top=1)
        wanted = [score.top[0][0] for score in scores] + [scores.after[0][0]]
        right = next((i for i, one in enumerate(draft) if one != wanted[i]), len(draft))
        await context.fill(wanted[: right + 1])  # the right tokens, and the model's next token
    return steps


@program
async def count(ctx: Context, text: str = "one two three one two three one two") -> str:
    context = await ctx.context(text)
    steps = await speculate(context, 48)
    return f"{await context.text()}  [48 tokens in {steps} steps]"
