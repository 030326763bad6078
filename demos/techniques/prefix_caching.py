"""Prefix caching by name: a long text is computed once, and many programs ask about it.

    agentrt run demos/techniques/prefix_caching.py --input "Who wrote it?"

A saved context outlives its program, for all programs of the same tenant. They share its computed
tokens, which are computed again only if they were evicted. (Zheng et al., 2024,
https://arxiv.org/abs/2312.07104)
"""

from __future__ import annotations

from agentrt import Context, program
from agentrt.contexts import Completion, TokenContext
from agentrt.errors import UnknownContextError

MANUAL = "The pump must be vented before it is started, and greased once in a week.\n" * 8


async def remembered(ctx: Context, name: str, text: str) -> TokenContext:
    """Return the context that is saved as ``name``. If there is none, save one with ``text``."""
    try:
        return await ctx.open(name)
    except UnknownContextError:
        context = await ctx.context(text)
        await context.save(name)
        return context


async def ask(ctx: Context, question: str, tokens: int = 24) -> Completion:
    context = await remembered(ctx, "manual", MANUAL)
    await context.fill(f"Question: {question}\nAnswer:")
    return await context.generate(tokens, ignore_eos=True)


@program
async def ask_the_manual(ctx: Context, question: str = "How often is it greased?") -> str:
    return str(await ask(ctx, question))
