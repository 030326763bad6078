"""ReAct over a small shop: think, call a tool, read its result, until the answer is known.

    agentrt run demos/react.py --input "How much does honey cost?"

The tools run real SQL. A tool call is held to its tool's schema, and the answer must name the
observation that it rests on, so that even a tiny model stays in form. It may still be wrong.
"""

from __future__ import annotations

import json
import re
import sqlite3
from contextlib import closing
from typing import Any, Literal

from agentrt import Context, Reply, node, program

MAX_STEPS = 4
QUESTIONS = [  # which one is asked without an input depends on the program's id
    "How much does honey cost?",
    "How many packs of sugar are in stock?",
    "How much do 3 packs of coffee cost?",
    "From which city does the milk come?",
    "What did Bob order?",
    "What is the price of rice?",
    "How many packs of flour did Joe order?",
    "How many packs of coffee are in stock?",
]
EXAMPLES = [  # question, fact, tool, arguments
    ("How much is a pack of tea?", "the price of tea", "price_of", {"item": "tea"}),
    ("How much salt is in stock?", "the stock of salt", "stock_of", {"item": "salt"}),
    ("What did Ann buy?", "the orders of Ann", "orders_of", {"customer": "Ann"}),
    ("Which city is tea from?", "the origin of tea", "origin_of", {"item": "tea"}),
]
TABLES = """
    CREATE TABLE supplier (name TEXT, city TEXT);
    INSERT INTO supplier VALUES ('Hill Farm', 'Oslo'), ('Sun Mill', 'Rome'), ('Bay Trade', 'Lima');
    CREATE TABLE item (name TEXT, price INT, stock INT, supplier TEXT);
    INSERT INTO item VALUES
        ('tea', 4, 30, 'Bay Trade'), ('coffee', 7, 25, 'Bay Trade'), ('sugar', 2, 80, 'Sun Mill'),
        ('flour', 3, 65, 'Sun Mill'), ('rice', 5, 40, 'Bay Trade'), ('honey', 9, 12, 'Hill Farm'),
        ('salt', 1, 95, 'Sun Mill'), ('milk', 6, 18, 'Hill Farm');
    CREATE TABLE purchase (customer TEXT, amount INT, item TEXT);
    INSERT INTO purchase VALUES
        ('Ann', 3, 'tea'), ('Ann', 1, 'honey'), ('Bob', 6, 'rice'), ('Bob', 2, 'salt'),
        ('Eve', 5, 'coffee'), ('Eve', 4, 'milk'), ('Eve', 1, 'sugar'), ('Joe', 8, 'flour');
"""
THINK = "Which fact is needed? Think in two sentences."
Chat = list[dict[str, Any]]
Item = Literal["tea", "coffee", "sugar", "flour", "rice", "honey", "salt", "milk"]


class Shop:
    """The tools, and their database. A tool runs in a thread, hence `check_same_thread`."""

    def __init__(self) -> None:
        self.db = sqlite3.connect(":memory:", check_same_thread=False)
        self.db.executescript(TABLES)
        self.close = self.db.close
        tools = (self.price_of, self.stock_of, self.origin_of, self.orders_of, self.calculate)
        self.tools = {tool.__name__: tool for tool in tools}

    def price_of(self, item: Item) -> str:
        """What one pack of an item costs."""
        rows = self.db.execute("SELECT price FROM item WHERE name = ?", [item])
        return f"One pack of {item} costs {rows.fetchone()[0]} euros."

    def stock_of(self, item: Item) -> str:
        """How many packs of an item are in stock."""
        rows = self.db.execute("SELECT stock FROM item WHERE name = ?", [item])
        return f"There are {rows.fetchone()[0]} packs of {item} in stock."

    def origin_of(self, item: Item) -> str:
        """Which supplier and city an item comes from."""
        join = "SELECT s.name, city FROM item i JOIN supplier s ON s.name = supplier"
        name, city = self.db.execute(f"{join} WHERE i.name = ?", [item]).fetchone()
        return f"The {item} comes from {name} in {city}."

    def orders_of(self, customer: Literal["Ann", "Bob", "Eve", "Joe"]) -> str:
        """What a customer ordered."""
        rows = self.db.execute("SELECT amount, item FROM purchase WHERE customer = ?", [customer])
        return f"{customer} ordered " + ", ".join(f"{n} packs of {item}" for n, item in rows) + "."

    def calculate(self, a: int, operator: Literal["+", "-", "*"], b: int) -> str:
        """Calculate with two numbers."""
        return f"{a} {operator} {b} = { {'+': a + b, '-': a - b, '*': a * b}[operator] }"


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
    """One tool call, or None when the model would rather answer."""
    tools = shop.tools.values()
    reply = await ctx.llm(chat, tools=tools, tool_choice=choice, max_tokens=64)
    if not reply.tool_calls:
        return None
    call = reply.tool_calls[0]
    observation = await ctx.tool(shop.tools[call.name], **call.arguments)
    chat += [reply.message, user(f"Observation: {observation}")]
    return {"tool": call.name, "arguments": call.arguments, "observation": observation}


@node
async def answer(ctx: Context, question: str, seen: list[str]) -> dict[str, Any]:
    """The answer, and the observation that it rests on: "nothing" when none of them helps."""
    fields = {
        "evidence": {"enum": [*seen, "nothing"]},
        "answer": {"type": "string", "maxLength": 60},
    }
    schema = {"type": "object", "properties": fields, "required": list(fields)}
    example = {"evidence": "One pack of tea costs 4 euros.", "answer": "4 euros"}
    chat = [user(f"{example['evidence']} How much is a pack of tea?")]
    chat += [{"role": "assistant", "content": json.dumps(example)}]
    reply = await ctx.llm(
        [*chat, user(f"{' '.join(seen)} {question}")], schema=schema, max_tokens=128
    )
    return reply.parsed or {"evidence": "nothing", "answer": None}


def is_grounded(evidence: str, answer: str | None) -> bool:
    """Whether the answer shares words with its evidence, and has no number that is not in it."""
    said, known = (set(re.findall(r"\w+", text.lower())) for text in (answer or "", evidence))
    return evidence != "nothing" and bool(said & known) and set(filter(str.isdigit, said)) <= known


@program
async def react(ctx: Context, question: str | None = None) -> dict[str, Any]:
    question = question or QUESTIONS[sum(ctx.program_id.encode()) % len(QUESTIONS)]
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
