"""Attention sinks: read an endless text with bounded memory.

    agentrt run demos/techniques/attention_sink.py --engine transformers --input @book.txt

A model gives surplus attention to the first tokens. If it sees these tokens and a window over the
last tokens, a text of any length stays as likely as a short text; with the window alone it does
not. (Xiao et al., 2024, https://arxiv.org/abs/2309.17453)
"""

from __future__ import annotations

import math
from pathlib import Path

from agentrt import Context, program
from agentrt.contexts import Attention, TokenContext

LICENSE = Path(__file__).parents[2] / "LICENSE"
SINKS, WINDOW = 4, 60


async def perplexity(
    ctx: Context, text: str, attention: Attention | None = None, *, tokens: int = 640
) -> list[float]:
    """Return the perplexity of each quarter of the text's first ``tokens`` tokens."""
    ids = (await ctx.context(text)).token_ids[:tokens]
    scores = await (await ctx.context(ids[:1])).score(ids[1:], attention=attention)
    size = len(scores) // 4
    parts = [scores.tokens[start : start + size] for start in range(0, 4 * size, size)]
    return [math.exp(-sum(token.logprob for token in part) / size) for part in parts]


async def stream(context: TokenContext, tokens: int) -> str:
    """Return the text that the model writes if it sees only the sinks and the last tokens."""
    done = await context.generate(tokens, attention=Attention(WINDOW, sinks=SINKS), ignore_eos=True)
    return done.text


@program
async def attention_sink(ctx: Context, text: str | None = None) -> dict[str, object]:
    text = text or LICENSE.read_text(encoding="utf-8")
    kinds = {
        "all tokens": None,
        "sinks and window": Attention(WINDOW, sinks=SINKS),
        "window alone": Attention(SINKS + WINDOW),
    }
    found: dict[str, object] = {
        name: [round(part, 1) for part in await perplexity(ctx, text, attention)]
        for name, attention in kinds.items()
    }
    return {"perplexity": found, "on": await stream(await ctx.context(text), 40)}
