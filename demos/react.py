"""ReAct over a small shop: think, call a tool, read its result, until the answer is known.

    agentrt run demos/react.py --input "How much does honey cost?"

The tools run real SQL. A tool call is held to its tool's schema, and the answer must name the
observation that it rests on, so that even a tiny model stays in form. It may still be wrong.
If you copy this file, copy `shop.py`, too: it has the shop and its tools.
"""

from __future__ import annotations

import json
import re
from contextlib import closing
from typing import Any

from agentrt import Context, Reply, node, program
from shop import QUESTIONS, Shop

MAX_STEPS = 4
EXAMPLES = [  # question, fact, tool, arguments
    ("How much is a pack of tea?", "the price of tea", "price_of", {"item": "tea"}),
    ("How much salt is in stock?", "the stock of salt", "stock_of", {"item": "salt"}),
    ("What did Ann buy?", "the orders of Ann", "orders_of", {"customer": "Ann"}),
    ("Which city is tea from?", "the origin of tea", "origin_of", {"item": "tea"}),
]
THINK = "Which fact is needed? Think in two sentences."
Chat = list[dict[str, Any]]


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def worked_examples() -> Chat:
    """What a first step looks like: a small model copies the form."""
    chat = [{"role": "system", "content": "You work in a shop. Find facts with tools."}]
    for question, fact, name, arguments in EXAMPLES:
        thought = f"I do not know this yet, so I need {fact}. The tool {name} will tell me {fact}."
        call = json.dumps({"name": name, "arguments": arguments})
        chat += [user(f"{question} {THINK}"), {"role": "assistant", "content": thought}]
        chat += [user("Call a tool."), {"role": "assistant", "content": call}]
    return chat


@node
async def think(ctx: Context, chat: Chat) -> Reply:
    return await ctx.llm(chat, max_tokens=48)


@node
async def act(ctx: Context, chat: Chat, shop: Shop, choice: str) -> dict[str, Any] | None:
    """Make one tool call; return None if the model prefers to answer."""
    tools = shop.tools.values()
    reply = await ctx.llm(chat, tools=tools, tool_choice=choice, max_tokens=64)
    if not reply.tool_calls:
        return None
    call = reply.tool_calls[0]
    observation = await ctx.call_tool(shop.tools[call.name], call.arguments)
    chat += [reply.message, user(f"Observation: {observation}")]
    return {"tool": call.name, "arguments": call.arguments, "observation": observation}


@node
async def answer(ctx: Context, question: str, seen: list[str]) -> dict[str, Any]:
    """The answer, and the observation that supports it; "nothing" if no observation does."""
    fields = {
        "evidence": {"enum": [*seen, "nothing"]},
        "answer": {"type": "string", "maxLength": 60},
    }
    schema = {"type": "object", "properties": fields, "required": list(fields)}
    example = {"evidence": "One pack of tea costs 4 euros.", "answer": "4 euros"}
    chat = [user(f"{example['evidence']} How much is a pack of tea?")]
    chat += [{"role": "assistant", "content": json.dumps(example)}]
    chat += [user(f"{' '.join(seen)} {question}")]
    reply = await ctx.llm(chat, schema=schema, max_tokens=128)
    return reply.parsed or {"evidence": "nothing", "answer": None}


def is_grounded(evidence: str, answer: str | None) -> bool:
    """Whether the answer shares words with its evidence, which has all numbers of the answer."""
    said, known = (set(re.findall(r"\w+", text.lower())) for text in (answer or "", evidence))
    return evidence != "nothing" and bool(said & known) and set(filter(str.isdigit, said)) <= known


@program
async def react(ctx: Context, question: str | None = None) -> dict[str, Any]:
    # Without an input, the program's id decides which question it is: a fork's is its origin's.
    origin = ctx.run_id.partition("-fork-")[0]
    question = question or QUESTIONS[sum(origin.encode()) % len(QUESTIONS)]
    chat = [*worked_examples(), user(f"{question} {THINK}")]
    seen: list[str] = []
    steps: list[dict[str, Any]] = []
    with closing(Shop()) as shop:
        while len(steps) < MAX_STEPS:
            thought = await think(ctx, chat)
            chat += [thought.message, user("Call a tool, or answer." if seen else "Call a tool.")]
            step = await act(ctx, chat, shop, "auto" if seen else "required")
            if step is None or step["observation"] in seen:  # knows enough, or goes in circles
                break
            steps.append({"thought": thought.text, **step})
            seen.append(step["observation"])
            chat.append(user(THINK))
    end = await answer(ctx, question, seen)
    return {"question": question, "found": is_grounded(**end), **end, "steps": steps}
