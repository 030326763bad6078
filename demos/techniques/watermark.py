"""Watermarking: with the key, a program's output can be told from other text.

    agentrt run demos/techniques/watermark.py -- --logits-processors green_list:GreenList

A logits processor in the engine (on a GPU, `green_list_v2:GreenList`) favours half of the tokens,
chosen by the token before. A text with far more than half of such tokens has the
watermark. (Kirchenbauer et al., 2023, https://arxiv.org/abs/2301.10226)
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from agentrt import Context, program
from agentrt.contexts import TokenContext

KEY = 15_485_863
GREEN = 0.5  # the part of the vocabulary that is favoured
_PRIME = 2**31 - 1


def secret_of(key: int) -> int:
    return pow(48_271, key, _PRIME)


def is_green(previous: Any, token: Any, secret: Any) -> Any:
    """Whether ``token`` is favoured after ``previous``. Both may be integers or tensors."""
    factor = 1 + (previous * 1_103_515_245 + secret) % (_PRIME - 1)
    return (factor * token + previous * 69_069 + secret) % _PRIME < GREEN * _PRIME


def z_score(ids: Sequence[int], key: int = KEY) -> float:
    """Return by how many standard deviations the green tokens exceed the number by chance."""
    pairs = set(pairwise(ids))  # a pair that comes again tells nothing new
    secret = secret_of(key)
    green = sum(is_green(before, token, secret) for before, token in pairs)
    expected = GREEN * len(pairs)
    return float((green - expected) / (expected * (1 - GREEN)) ** 0.5)


async def marked_text(context: TokenContext, tokens: int, delta: float = 4.0) -> list[int]:
    """Return the last token of the context, and the generated tokens; 0 as ``delta``: no mark."""
    first = len(context)
    logits = {"GreenList": {"key": KEY, "delta": delta}}
    await context.generate(tokens, temperature=1.0, ignore_eos=True, logits=logits)
    return list(context.token_ids[first - 1 :])


@program
async def watermark(ctx: Context, text: str = "Once upon a time") -> dict[str, object]:
    """Return the text and the z-score of an answer with and of an answer without a watermark."""
    context = await ctx.context(text)
    found: dict[str, object] = {}
    for name, delta in (("marked", 4.0), ("plain", 0.0)):
        branch = context.fork()
        z = z_score(await marked_text(branch, 100, delta))
        found[name] = {"z": round(z, 2), "text": await branch.text()}
    return found
