"""Filters of authorization hooks: what is understood, and the same answer of Python and of SQL."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrt.serving.langgraph.database.connections import Address, Database, open_database
from agentrt.serving.langgraph.database.filters import (
    FilterError,
    parse_filter,
    same_json,
    stamped,
    visible,
)
from agentrt.serving.langgraph.database.tables import threads
from agentrt.serving.langgraph.database.threads import add_thread

ITEMS: dict[str, dict[str, Any]] = {
    "ann": {"owner": "ann"},
    "bob": {"owner": "bob"},
    "shared": {"owner": "bob", "shared": True},
    "one": {"owner": "bob", "shared": 1, "n": 1},
    "list": {"owner": ["ann", "bob"]},
    "nest": {"owner": {"id": "ann", "org": "x"}},
    "none": {},
    "null": {"owner": None},
    "float": {"n": 1.0},
    "text": {"n": "1"},
    "tags": {"tags": ["a", "b"]},
    "objects": {"tags": [{"k": 1, "j": 2}]},
    "case": {"owner": "Ann"},
    "dots": {"a.b": "ann", "a": {"b": "ann"}},
    "long": {"owner": "ann-2"},
}
ID = UUID(int=7)
EVERYTHING = set(ITEMS)
WITH_ANSWERS: list[tuple[dict[str, Any], set[str]]] = [
    ({}, EVERYTHING),
    ({"owner": "ann"}, {"ann"}),
    ({"owner": {"$eq": "ann"}}, {"ann"}),
    ({"owner": {"$contains": "ann"}}, {"list"}),
    ({"owner": {"$contains": ["bob", "ann"]}}, {"list"}),
    ({"owner": {"$contains": ("ann", "eve")}}, set()),
    ({"owner": {"$contains": []}}, {"list"}),
    ({"none": {"$contains": []}}, set()),
    ({"owner": None}, {"null"}),
    ({"owner": ["ann", "bob"]}, {"list"}),
    ({"owner": ["ann"]}, set()),
    ({"owner": ["bob", "ann"]}, set()),
    ({"owner": {"$eq": {"org": "x", "id": "ann"}}}, {"nest"}),
    ({"owner": {"$eq": {"id": "ann"}}}, set()),
    ({"shared": True}, {"shared"}),
    ({"shared": 1}, {"one"}),
    ({"n": 1}, {"one", "float"}),
    ({"n": "1"}, {"text"}),
    ({"tags": {"$contains": "a"}}, {"tags"}),
    ({"tags": {"$contains": {"j": 2, "k": 1}}}, {"objects"}),
    ({"tags": {"$contains": {"k": 1}}}, set()),
    ({"a.b": "ann"}, {"dots"}),
    ({"owner": "bob", "shared": True}, {"shared"}),
    ({"owner": {"$eq": "ann", "$contains": "ann"}}, set()),
    ({"$or": [{"owner": "ann"}, {"shared": True}]}, {"ann", "shared"}),
    ({"$or": ({"owner": "ann"}, {"n": {"$eq": 1}})}, {"ann", "one", "float"}),
    ({"$and": [{"owner": "bob"}, {"shared": True}]}, {"shared"}),
    ({"$and": [{"owner": "bob"}, {"owner": "ann"}]}, set()),
    ({"owner": "bob", "$or": [{"shared": True}, {"n": 1}]}, {"shared", "one"}),
    (
        {"$or": [{"$and": [{"owner": "bob"}, {"shared": True}]}, {"owner": "ann"}]},
        {"ann", "shared"},
    ),
    ({"$and": [{"$or": [{"owner": "ann"}, {"owner": "bob"}]}, {"shared": True}]}, {"shared"}),
    ({"$or": [{}, {"owner": "nobody"}]}, EVERYTHING),
]
"""Filters with the items that LangGraph's own server shows for them (version 0.16.7), but that
`true` is not 1 here.
"""
NOT_UNDERSTOOD: list[tuple[Any, str]] = [
    ([], "not a filter"),
    (["owner"], "not a filter"),
    ("ann", "not a filter"),
    (0, "not a filter"),
    ("", "not a filter"),
    ({"$or": []}, "two or more"),
    ({"$or": [{"owner": "ann"}]}, "two or more"),
    ({"$or": {"owner": "ann"}}, "two or more"),
    ({"$or": ["ann", {"owner": "ann"}]}, "two or more"),
    ({"$and": [{"owner": "ann"}]}, "two or more"),
    ({"$or": [{"owner": "ann"}, {"owner": {"$ne": "bob"}}]}, r"'\$ne'"),
    ({"$not": {"owner": "ann"}}, r"'\$not'"),
    ({"$eq": "ann"}, r"'\$eq'"),
    ({1: "ann"}, "unknown key"),
    ({"owner": {}}, "empty object"),
    ({"owner": {"$in": ["ann"]}}, r"'\$in'"),
    ({"owner": {"$or": ["ann", "bob"]}}, r"'\$or'"),
    ({"owner": {"id": "ann"}}, r"use \$eq"),
    ({"owner": {"$eq": "ann", "id": 1}}, r"use \$eq"),
    ({"owner": object()}, "not JSON"),
    ({"owner": {"ann"}}, "not JSON"),
    ({"owner": float("nan")}, "not JSON"),
    ({"owner": {"$contains": [object()]}}, "not JSON"),
]


@pytest.mark.parametrize("returned", [None, True])
def test_a_hook_without_a_filter(returned: Any) -> None:
    assert parse_filter(returned) is None


@pytest.mark.parametrize(("filters", "names"), WITH_ANSWERS)
def test_the_values_that_a_filter_allows(filters: dict[str, Any], names: set[str]) -> None:
    only = parse_filter(filters)
    allowed = {name for name, item in ITEMS.items() if only is None or only.allows(item)}
    assert allowed == names


@pytest.mark.parametrize(("returned", "message"), NOT_UNDERSTOOD)
def test_an_unknown_operator_is_an_error(returned: Any, message: str) -> None:
    with pytest.raises(FilterError, match=message):
        parse_filter(returned)


def test_ids_and_times_are_texts_as_in_metadata() -> None:
    only = parse_filter({"owner": ID, "since": datetime(2026, 1, 2, tzinfo=UTC)})
    assert only is not None
    assert only.allows({"owner": str(ID), "since": "2026-01-02T00:00:00+00:00"})


@pytest.mark.parametrize(
    ("filters", "metadata", "expected"),
    [
        ({"owner": "ann"}, {"n": 1}, {"n": 1, "owner": "ann"}),
        ({"owner": "ann"}, {"owner": "bob"}, {"owner": "ann"}),
        ({"members": {"$contains": "ann"}}, {}, {"members": ["ann"]}),
        ({"$and": [{"owner": "ann"}, {"org": "x"}]}, {}, {"owner": "ann", "org": "x"}),
        # Not the part that would show the thread to everybody.
        ({"$or": [{"shared": True}, {"owner": "ann"}]}, {}, {"owner": "ann"}),
        ({"$or": [{"shared": True}, {"org": "x"}]}, {}, {}),
        ({"$or": [{"shared": True}, {"owner": "ann"}]}, {"shared": True}, {"shared": True}),
    ],
)
def test_a_new_item_gets_what_its_user_needs_to_see_it(
    filters: Any, metadata: dict[str, Any], expected: dict[str, Any]
) -> None:
    assert stamped(metadata, parse_filter(filters), "ann") == expected


# -- the same in SQL -----------------------------------------------------------------------

values = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 2) | st.sampled_from(["", "a", "1"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("ab"), inner),
    max_leaves=4,
)
keys = st.sampled_from(["a", "b"])
plain = st.dictionaries(keys, values, max_size=2)
leaves = st.one_of(
    st.builds(lambda key, value: {key: {"$eq": value}}, keys, values),
    st.builds(lambda key, value: {key: {"$contains": value}}, keys, st.lists(values, max_size=2)),
)
filter_trees = st.recursive(
    leaves,
    lambda inner: st.builds(
        lambda operator, parts: {operator: parts},
        st.sampled_from(["$and", "$or"]),
        st.lists(inner, min_size=2, max_size=2),
    ),
    max_leaves=4,
)


@asynccontextmanager
async def with_items(
    address: str, items: dict[str, dict[str, Any]]
) -> AsyncIterator[tuple[Database, dict[str, str]]]:
    """A database with a thread for each item, and the items' names by the ids of their threads."""
    names = {str(UUID(int=number)): name for number, name in enumerate(items)}
    async with open_database(Address.parse(address)) as database:
        async with database.writing() as connection:
            await connection.execute(sa.delete(threads))
            for key, name in names.items():
                await add_thread(connection, "t", UUID(key), items[name])
        yield database, names


async def found(database: Database, names: dict[str, str], filters: Any) -> set[str]:
    query = sa.select(threads.c.thread_id)
    query = query.where(*visible(threads.c.metadata, parse_filter(filters)))
    return {names[row[0]] for row in await database.rows(query)}


async def test_sqlite_finds_what_a_filter_allows(tmp_path: Path) -> None:
    async with with_items(f"sqlite:{tmp_path / 'a.db'}", ITEMS) as (database, names):
        for filters, expected in WITH_ANSWERS:
            assert await found(database, names, filters) == expected, filters


async def test_postgres_finds_what_a_filter_allows(url: str) -> None:
    async with with_items(url, ITEMS) as (database, names):
        for filters, expected in WITH_ANSWERS:
            assert await found(database, names, filters) == expected, filters


async def test_postgres_agrees_with_python_for_any_filter(url: str) -> None:
    """Many filters and items in one go: each filter is compared with all items."""
    drawn: list[tuple[dict[str, Any], Any]] = []

    @settings(max_examples=60, database=None, derandomize=True)
    @given(plain, filter_trees)
    def draw(item: dict[str, Any], filters: Any) -> None:
        drawn.append((item, filters))

    draw()
    items = {str(number): item for number, (item, _) in enumerate(drawn)}
    async with with_items(url, items) as (database, names):
        for _, filters in drawn:
            only = parse_filter(filters)
            assert only is not None
            expected = {name for name, item in items.items() if only.allows(item)}
            assert await found(database, names, filters) == expected, filters


@given(values, values)
def test_json_is_the_same_if_it_is_equal_and_of_the_same_types(a: Any, b: Any) -> None:
    assert same_json(a, a)
    assert same_json(a, b) == same_json(b, a)
    assert same_json({"x": [a]}, {"x": [b]}) == same_json(a, b)
    if same_json(a, b):
        assert a == b
