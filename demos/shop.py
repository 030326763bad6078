"""A small shop: what `react.py` is asked about, and the tools that know it.

The tools run SQL on a database in memory. Their signatures and docstrings are all that the model
learns of them.
"""

from __future__ import annotations

import sqlite3
from typing import Literal

Item = Literal["tea", "coffee", "sugar", "flour", "rice", "honey", "salt", "milk"]
Customer = Literal["Ann", "Bob", "Eve", "Joe"]
QUESTIONS = [
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

    def orders_of(self, customer: Customer) -> str:
        """What a customer ordered."""
        rows = self.db.execute("SELECT amount, item FROM purchase WHERE customer = ?", [customer])
        return f"{customer} ordered " + ", ".join(f"{n} packs of {item}" for n, item in rows) + "."

    def calculate(self, a: int, operator: Literal["+", "-", "*"], b: int) -> str:
        """Calculate with two numbers."""
        return f"{a} {operator} {b} = { {'+': a + b, '-': a - b, '*': a * b}[operator] }"
