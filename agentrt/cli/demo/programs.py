"""The two small agent programs of `agentrt demo`. They work with any model's answers."""

from __future__ import annotations

import asyncio

from agentrt import Context, node, program


async def search(question: str) -> str:
    """Pretend to search the web. Takes as long as a fast web search."""
    await asyncio.sleep(0.4)
    return f"Three pages speak of: {question}"


@node
async def think(ctx: Context, question: str) -> str:
    """Ask the model what to search for."""
    reply = await ctx.llm(f"{question} What is to be looked up?", max_tokens=24)
    return reply.text


@node
async def section(ctx: Context, plan: str, number: int) -> str:
    """Write one section of the report."""
    reply = await ctx.llm(f"{plan}\n\nWrite section {number} in short.", max_tokens=40)
    return reply.text


@program
async def lookup(ctx: Context, question: str = "Why is the sky blue?") -> str:
    """Think and call a tool twice, then answer."""
    notes = [question]
    for _ in range(2):
        thought = await think(ctx, "\n".join(notes))
        notes.append(await ctx.tool(search, thought[:40]))
    reply = await ctx.llm("\n".join([*notes, "Answer in a sentence."]), max_tokens=16)
    return reply.text


@program
async def report(ctx: Context, topic: str = "The sky") -> str:
    """Make a plan, write eight sections in parallel, and sum them up."""
    plan = await ctx.llm(f"Plan a report with eight sections: {topic}", max_tokens=32)
    parts = await asyncio.gather(*(section(ctx, plan.text, number) for number in range(1, 9)))
    whole = await ctx.llm("\n".join([*parts, "Sum this up in a sentence."]), max_tokens=16)
    return whole.text
