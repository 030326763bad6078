"""Hierarchical attention: tokens see their neighbours, and only a summary of each section.

    agentrt run demos/techniques/hierarchical_attention.py --engine transformers

The text is a tree of two levels: sections of equal length, each with a mark at its end that sees
the whole section. Later tokens see the marks only, so a section costs a few tokens of memory.
(After Tang et al., 2021, with the syntax trees of programs: https://arxiv.org/abs/2112.01184)
"""

from __future__ import annotations

from collections.abc import Sequence

from agentrt import Context, program
from agentrt.contexts import Attention, TokenContext

SECTION = 32
MARK = "\nIn short:"
SECTIONS = (
    "The kiln is heated to 900 degrees, slowly, over a day and a night.",
    "The bowls are glazed with ash and clay, twice, and dried in the sun.",
    "On Sunday the kiln is opened, and the bowls are sold at the market.",
)


async def outline(ctx: Context, sections: Sequence[str]) -> tuple[TokenContext, Attention]:
    """Return a context of all sections, and the attention that makes it a tree."""
    mark = (await ctx.context(MARK)).token_ids
    space = (await ctx.context("\n")).token_ids[:1]
    context = await ctx.context()
    for section in sections:
        ids = (await ctx.context(section)).token_ids[: SECTION - len(mark)]
        rest = SECTION - len(mark) - len(ids)
        await context.fill([*ids, *space * rest, *mark])
    return context, Attention(SECTION, chunk=SECTION, summary=len(mark))


async def answer(
    ctx: Context, sections: Sequence[str], question: str, tokens: int = 24
) -> tuple[int, ...]:
    """Return the token ids of the model's answer after it has read the sections."""
    context, attention = await outline(ctx, sections)
    await context.fill(question)
    return (await context.generate(tokens, attention=attention, ignore_eos=True)).token_ids


@program
async def hierarchical_attention(ctx: Context, question: str = "\nOn Sunday") -> dict[str, object]:
    ids = await answer(ctx, SECTIONS, question)
    _, attention = await outline(ctx, SECTIONS)
    length = SECTION * len(SECTIONS)
    seen = sum(attention.sees(length, key) for key in range(length))
    return {"text": await (await ctx.context(ids)).text(), "tokens": length, "seen": seen}
