"""Windowed attention: each token sees only the last few tokens, however long the text is.

    agentrt run demos/techniques/windowed_attention.py --engine transformers --input @notes.txt

Work and memory for a token do not grow with the text. Each layer passes information on by one
window, so earlier text has an influence, too. (Beltagy et al., https://arxiv.org/abs/2004.05150)
"""

from __future__ import annotations

from agentrt import Context, program
from agentrt.contexts import Attention

NOTES = "Monday: sow the beans. Tuesday: water the beans. Wednesday: water the beans. Thursday:"


async def windowed(ctx: Context, text: str, *, window: int, tokens: int = 16) -> tuple[int, ...]:
    """Return the tokens that follow a text if each token sees only ``window`` tokens."""
    context = await ctx.context(text)
    done = await context.generate(tokens, attention=Attention(window), ignore_eos=True)
    return done.token_ids


@program
async def windowed_attention(ctx: Context, text: str = NOTES) -> dict[str, str]:
    """Return what the model writes with windows of several sizes."""
    found = {}
    for window in (4, 16, 64, 256):
        context = await ctx.context(await windowed(ctx, text, window=window))
        found[f"window {window}"] = await context.text()
    return found
