"""A search reads only the columns that it shows, and the rows that may match."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
import sqlalchemy as sa
from langgraph_sdk.client import LangGraphClient

from agentrt.serving.langgraph.database import connections as databases
from agentrt.serving.langgraph.database.connections import Address, Database, open_database
from agentrt.serving.langgraph.database.filters import parse_filter, visible
from agentrt.serving.langgraph.database.tables import has, is_within, json_contains, threads
from agentrt.serving.langgraph.database.threads import add_thread
from tests.serving.langgraph.runs.test_runs import IN

SCALARS: list[Any] = [
    *(None, True, False, 0, 1, -1, 1.0, 1.5, 10**15, 10**16, 2**60, -(2**60)),
    *("", "a", "A", "aa", "1", "true", "a%", "_", 'q"', "b\\", "ö", "😀", "line\n", "/", "a" * 300),
    *("*", "?", "[a]", "[", "]", "a*?", "[^a]"),
]
KEYS = ["a", "b", "A", "a.b", 'q"', "ö", "%", "_", "a b", "0", "", "*", "[a]"]


def value(chance: random.Random, depth: int) -> Any:
    kind = chance.random()
    if depth and kind < 0.3:
        return {chance.choice(KEYS): value(chance, depth - 1) for _ in range(chance.randrange(3))}
    if depth and kind < 0.45:
        return [value(chance, depth - 1) for _ in range(chance.randrange(3))]
    return chance.choice(SCALARS)


def part_of(chance: random.Random, whole: Any) -> Any:
    """A value that ``whole`` contains, or nearly."""
    if chance.random() < 0.15:
        return value(chance, 1)
    if isinstance(whole, dict):
        kept = [key for key in whole if chance.random() < 0.7]
        return {key: part_of(chance, whole[key]) for key in kept}
    if isinstance(whole, list):
        return [part_of(chance, element) for element in whole if chance.random() < 0.7]
    return whole


async def fill(database: Database, items: list[dict[str, Any]]) -> None:
    async with database.writing() as connection:
        for number, item in enumerate(items):
            await add_thread(connection, "t", UUID(int=number), item)


async def matches(database: Database, *conditions: sa.ColumnElement[bool]) -> set[int]:
    rows = await database.rows(sa.select(threads.c.thread_id).where(*conditions))
    return {UUID(row[0]).int for row in rows}


async def test_sqlite_finds_what_contains_a_value(tmp_path: Path) -> None:
    """And what a filter of a hook allows: the same as Python, for values of every kind."""
    chance = random.Random(11)
    items = [{key: value(chance, 2) for key in KEYS if chance.random() < 0.5} for _ in range(60)]
    hits = 0
    async with open_database(Address.parse(f"sqlite:{tmp_path / 'a.db'}")) as database:
        await fill(database, items)
        for _ in range(300):
            part = part_of(chance, chance.choice(items))
            if not isinstance(part, dict) or not part:
                continue
            wanted = {number for number, item in enumerate(items) if is_within(part, item)}
            assert await matches(database, has(threads.c.metadata, part)) == wanted, part
            key = chance.choice([*part])
            for operator in ("$eq", "$contains"):
                only = parse_filter({key: {operator: part[key]}}) if key else None
                if only is not None:
                    allowed = {number for number, item in enumerate(items) if only.allows(item)}
                    shown = await matches(database, *visible(threads.c.metadata, only))
                    assert shown == allowed, only
            hits += bool(wanted)
    assert hits > 100


async def test_python_compares_few_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """None for values that SQLite compares itself, and of lists those that may have them."""
    compared = 0
    inner = json_contains

    def counted(*args: Any, **options: Any) -> bool:
        nonlocal compared
        compared += 1
        return inner(*args, **options)

    monkeypatch.setattr(databases, "json_contains", counted)
    items = [{"n": n, "kind": {"name": f"k{n}"}, "messages": [{"id": f"m{n}"}]} for n in range(200)]
    async with open_database(Address.parse(f"sqlite:{tmp_path / 'a.db'}")) as database:
        await fill(database, items)
        for part in ({"n": 7}, {"kind": {"name": "k7"}}, {"n": 7, "kind": {}}):
            assert await matches(database, has(threads.c.metadata, part)) == {7}
        assert compared == 0
        in_list = has(threads.c.metadata, {"messages": [{"id": "m7"}]})
        assert await matches(database, in_list) == {7}
        assert compared == 1


@contextmanager
def statements() -> Iterator[list[str]]:
    """The SQL statements while the block lasts."""
    seen: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        seen.append(statement)

    sa.event.listen(sa.Engine, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", note)


def columns_of(seen: list[str], table: str) -> str:
    """Return the columns that the only query of a page selects."""
    (query,) = (text for text in seen if text.startswith("SELECT") and " LIMIT " in text)
    names, _, rest = query.partition("FROM")
    assert table in rest
    return names


async def test_a_search_reads_what_it_selects(client: LangGraphClient) -> None:
    mine = {"mine": str(uuid4())}
    thread = (await client.threads.create(metadata=mine))["thread_id"]
    await client.runs.wait(thread, "steps", input=IN)
    with statements() as seen:
        page: Any = await client.threads.search(metadata=mine, select=["thread_id", "status"])
    assert page == [{"thread_id": thread, "status": "idle"}]
    names = columns_of(seen, "agentrt_threads")
    assert [name in names for name in ("thread_id", "status", "values", "metadata", "config")] == [
        *(True, True, False, False, False)
    ]
    with statements() as seen:
        page = await client.threads.search(
            metadata=mine, select=["thread_id"], extract={"last": "values.steps[-1]"}
        )
    assert page == [{"thread_id": thread, "extracted": {"last": "last"}}]
    assert "metadata" not in columns_of(seen, "agentrt_threads")
    with statements() as seen:
        listed: Any = await client.runs.list(thread, select=["run_id", "status"])
    assert [run.keys() for run in listed] == [{"run_id", "status"}]
    names = columns_of(seen, "agentrt_runs")
    assert "result" not in names
    assert "kwargs" not in names
    with statements() as seen:
        await client.assistants.search(select=["assistant_id"])
    assert "config" not in columns_of(seen, "agentrt_assistants")


async def test_a_page_has_the_whole_threads(client: LangGraphClient) -> None:
    """The same as each thread by itself, also one without values, and with a part extracted."""
    mine = {"mine": str(uuid4()), "text": 'ö "😀"\n', "n": 1.5, "none": None}
    first = (await client.threads.create(metadata=mine))["thread_id"]
    second = (await client.threads.create(metadata=mine))["thread_id"]
    await client.runs.wait(first, "steps", input=IN)
    search: Any = {"metadata": {"mine": mine["mine"]}, "sort_order": "asc"}
    whole = [await client.threads.get(key) for key in (first, second)]
    assert await client.threads.search(**search) == whole
    page: Any = await client.threads.search(**search, extract={"text": "metadata.text"})
    assert page == [{**thread, "extracted": {"text": mine["text"]}} for thread in whole]
