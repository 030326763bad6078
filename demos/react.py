"""ReAct over a small shop: think, call a tool, read its result, until the answer is known.

    agentrt run demos/react.py --input "How much does honey cost?"

The tools run real SQL. A tool call is held to its tool's schema, and the answer must name the
observation that it rests on, so that even a tiny model stays in form. It may still be wrong.
"""

from __future__ import annotations

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
SYSTEM = "You answer questions about a shop. Find facts with tools, never guess."
Item = Literal["tea", "coffee", "sugar", "flour", "rice", "honey", "salt", "milk"]


class Shop:
    """The tools, and their database. A tool runs in a thread, hence `check_same_thread`."""

    def __init__(self) -> None:
        self.db = sqlite3.connect(":memory:", check_same_thread=False)
        self.db.executescript(TABLES)
        tools = (self.price_of, self.stock_of, self.origin_of, self.orders_of, self.calculate)
        self.tools = {tool.__name__: tool for tool in tools}
        self.close = self.db.close

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
        return (
            f"{customer} ordered {', '.join(f'{amount} packs of {item}' for amount, item in rows)}."
        )

    def calculate(self, a: int, operator: Literal["+", "-", "*", "/"], b: int) -> str:
        """Calculate with two numbers."""
        if operator == "/" and b == 0:
            return "Nothing can be divided by 0."
        value = {"+": a + b, "-": a - b, "*": a * b, "/": a / (b or 1)}[operator]
        return f"{a} {operator} {b} = {value:g}"


@node
async def think(ctx: Context, chat: list[dict[str, Any]]) -> Reply:
    ask = {"role": "user", "content": "Think in one sentence: which fact is needed next?"}
    return await ctx.llm([*chat, ask], max_tokens=48)


@node
async def act(ctx: Context, chat: list[dict[str, Any]], shop: Shop, first: bool) -> dict[str, Any]:
    reply = await ctx.llm(
        [*chat, {"role": "user", "content": "Call a tool" + (".", " or answer.")[not first]}],
        tools=shop.tools.values(),
        tool_choice="required" if first else "auto",
        max_tokens=64,
    )
    if not reply.tool_calls:
        return {}
    call = reply.tool_calls[0]
    observation = await ctx.tool(shop.tools[call.name], **call.arguments)
    return {"tool": call.name, "arguments": call.arguments, "observation": observation}


@node
async def conclude(ctx: Context, chat: list[dict[str, Any]], seen: list[str]) -> dict[str, Any]:
    """The answer, and the observation that it rests on; "nothing" when none of them helps."""
    fields = {
        "evidence": {"enum": [*seen, "nothing"]},
        "answer": {"type": "string", "maxLength": 60},
    }
    schema = {"type": "object", "properties": fields, "required": list(fields)}
    ask = {"role": "user", "content": "Which observation answers the question? Answer briefly."}
    reply = await ctx.llm([*chat, ask], schema=schema, max_tokens=128)
    return reply.parsed or {"evidence": "nothing", "answer": ""}


@program
async def react(ctx: Context, question: str | None = None) -> dict[str, Any]:
    question = question or QUESTIONS[sum(ctx.program_id.encode()) % len(QUESTIONS)]
    chat = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
    steps: list[dict[str, Any]] = []
    with closing(Shop()) as shop:
        while len(steps) < MAX_STEPS:
            thought = await think(ctx, chat)
            chat.append(thought.message)
            step = await act(ctx, chat, shop, first=not steps)
            if not step or step in steps:  # it wants to answer, or goes round in circles
                break
            steps.append(step)
            chat.append({"role": "user", "content": f"Observation: {step['observation']}"})
    end = await conclude(ctx, chat, [step["observation"] for step in steps])
    found = end["evidence"] != "nothing"
    answer = end["answer"] if found else None
    return {"question": question, "found": found, "answer": answer, **end, "steps": steps}
