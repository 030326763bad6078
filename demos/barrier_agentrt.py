"""A research agent with branches as an agentrt program: a node starts when its inputs are there.

    agentrt run demos/barrier_agentrt.py --input "how tea came to Europe"

There is no graph to declare and no superstep: branches are coroutines, and `gather` joins them.
`barrier_langgraph.py` is the same agent in LangGraph; `docs/langgraph.md` compares them.
"""

from __future__ import annotations

import asyncio

from agentrt import Context, node, program
from barrier_common import TASKS, TOPIC, prompt


async def ask(ctx: Context, name: str, topic: str, *notes: str) -> str:
    reply = await ctx.llm(prompt(name, topic, *notes), max_tokens=TASKS[name].tokens)
    return reply.text


@node
async def outline(ctx: Context, topic: str) -> str:
    return await ask(ctx, "outline", topic)


@node
async def survey(ctx: Context, topic: str, plan: str) -> str:
    return await ask(ctx, "survey", topic, plan)


@node
async def search(ctx: Context, topic: str, plan: str) -> str:
    return await ask(ctx, "search", topic, plan)


@node
async def read(ctx: Context, topic: str, source: str) -> str:
    return await ask(ctx, "read", topic, source)


@node
async def compare(ctx: Context, topic: str, text: str) -> str:
    return await ask(ctx, "compare", topic, text)


@node
async def quotes(ctx: Context, topic: str, plan: str) -> str:
    return await ask(ctx, "quotes", topic, plan)


@node
async def check(ctx: Context, topic: str, quotation: str) -> str:
    return await ask(ctx, "check", topic, quotation)


@node
async def write(ctx: Context, topic: str, *notes: str) -> str:
    return await ask(ctx, "write", topic, *notes)


async def study_source(ctx: Context, topic: str, plan: str) -> str:
    """The longest branch. Nothing in it waits for the other two."""
    source = await search(ctx, topic, plan)
    text = await read(ctx, topic, source)
    return await compare(ctx, topic, text)


async def find_quotation(ctx: Context, topic: str, plan: str) -> str:
    quotation = await quotes(ctx, topic, plan)
    return await check(ctx, topic, quotation)


@program
async def barrier_agentrt(ctx: Context, topic: str = TOPIC) -> str:
    plan = await outline(ctx, topic)
    notes = await asyncio.gather(
        survey(ctx, topic, plan), study_source(ctx, topic, plan), find_quotation(ctx, topic, plan)
    )
    return await write(ctx, topic, *notes)
