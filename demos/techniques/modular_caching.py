"""Modular caching: prompts of named modules, which are computed once where that is possible.

    agentrt run demos/techniques/modular_caching.py --input "rules, tools, weather"

vLLM's cache finds a token only at its position, after the same tokens. So a module is used again
only if the same modules precede it, in the same order. Put the modules that change least first.
`assemble` returns which modules it found. (Gim et al., 2024,
https://arxiv.org/abs/2311.04934, which also uses modules again at other positions)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agentrt import Context, program
from agentrt.contexts import TokenContext
from agentrt.errors import UnknownContextError

MODULES = {
    "rules": "You are polite, and you answer in one sentence.\n" * 6,
    "tools": "You may look up the weather, and you may count.\n" * 6,
    "weather": "It is raining in Vienna.\n" * 6,
    "news": "A cat has won the marathon.\n" * 6,
}


async def assemble(
    ctx: Context, names: Sequence[str], modules: Mapping[str, str]
) -> tuple[TokenContext, list[str]]:
    """Return a context of these modules, and the first modules, which were already saved."""
    for known in range(len(names), -1, -1):
        try:
            context = await ctx.open("/".join(names[:known])) if known else await ctx.context()
            break
        except UnknownContextError:
            continue
    for at in range(known, len(names)):
        await context.fill(modules[names[at]])
        await context.save("/".join(names[: at + 1]))
    return context, list(names[:known])


@program
async def ask(ctx: Context, names: str = "rules, tools, weather") -> str:
    context, found = await assemble(ctx, names.split(", "), MODULES)
    await context.fill("What should I wear?")
    return f"used again: {found}; {await context.generate(24, ignore_eos=True)}"
