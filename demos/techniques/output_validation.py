"""Output validation: several answers at once, a check of each, and another try with the fault.

    agentrt run demos/techniques/output_validation.py

The forks share the question. The best answer is taken if it passes the check. Otherwise the chat
continues with the fault of this answer. (Guardrails, https://github.com/guardrails-ai/guardrails)
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable

from agentrt import Context, program
from agentrt.contexts import Completion, TokenContext

Verify = Callable[[str], tuple[float, str]]
"""A function that returns an answer's score, and its fault; "" if the answer passes."""


async def best_of(
    context: TokenContext, verify: Verify, *, answers: int, max_tokens: int = 32
) -> tuple[TokenContext, Completion]:
    """Return the branch with the best of several answers, and this answer."""
    branches = [context.fork() for _ in range(answers)]
    done = await asyncio.gather(
        *(branch.generate(max_tokens, temperature=1.0) for branch in branches)
    )
    return max(zip(branches, done, strict=True), key=lambda each: verify(each[1].text)[0])


async def validated(
    context: TokenContext, verify: Verify, *, answers: int = 4, tries: int = 3
) -> Completion | None:
    """Return an answer that passes; None if no answer passes in ``tries`` rounds."""
    for _ in range(tries):
        context, best = await best_of(context, verify, answers=answers)
        if not (wrong := verify(best.text)[1]):
            return best
        await context.fill([{"role": "user", "content": f"That is wrong: {wrong}. Try again."}])
    return None


def a_year(text: str) -> tuple[float, str]:
    """Return the score of an answer, which should be short, and its fault if it has no year."""
    found = re.search(r"\b1\d{3}\b", text)
    return (1.0 if found else 0.0) - len(text) / 1000, "" if found else "there is no year in it"


@program
async def dated(ctx: Context, question: str = "When did Columbus sail to America?") -> str | None:
    context = await ctx.context([{"role": "user", "content": question}])
    found = await validated(context, a_year)
    return None if found is None else found.text
