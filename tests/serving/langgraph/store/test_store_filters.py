"""Filters of the store: at any depth, as LangGraph's own server compares them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from langgraph.store.base import GetOp, SearchOp
from langgraph_sdk.client import LangGraphClient
from langgraph_sdk.errors import UnprocessableEntityError

from agentrt.serving.langgraph.database.storage import open_storage
from agentrt.serving.langgraph.store import TenantStore

ITEMS: dict[str, Any] = {
    "1": {"user": {"name": "ann", "age": 9}, "n": 1, "tags": ["a", "b"], "s": "x"},
    "2": {"user": {"name": "bob", "age": 3, "deep": {"x": 1}}, "n": 2, "s": None, "a-b": 1},
    "3": {"user": "ann", "n": "1", "tags": ["a"], "a.b": 1, "list": [{"k": 1, "j": 2}]},
    "4": {"user": {"name": "ann", "deep": {"x": [1]}}, "n": 1.0},
    "5": {"user.name": "ann", "list": [{"j": 2, "k": 1}, 3]},
    "6": {"flag": True, "flags": [1]},
    "7": {"flag": 1, "flags": [True]},
    "8": {"flag": False},
    "9": {"flag": 0.0, "id": 2**62 + 1},
}
FILTERS: list[tuple[dict[str, Any], str]] = [
    ({"user": {"name": "ann"}}, "14"),
    ({"user": {"name": {"$eq": "ann"}}}, "14"),
    ({"user": {"name": {"$ne": "bob"}}}, "14"),
    ({"user": {"age": {"$gt": 5}}}, "1"),
    ({"user": {"age": {"$lte": 9}}, "n": {"$gte": 2}}, "2"),
    ({"user": {"name": "ann", "age": 9}}, "1"),
    ({"user": {"deep": {"x": [1]}}}, "4"),
    ({"user": {"deep": {"x": 1}}}, "2"),
    ({"user": {"$eq": {"age": 9, "name": "ann"}}}, "1"),
    ({"user": {"$ne": {"age": 9, "name": "ann"}}}, "23456789"),
    ({"user": {}}, "124"),
    ({"n": {}}, ""),
    ({"user.name": "ann"}, "5"),
    ({"a.b": 1}, "3"),
    ({"a-b": 1}, "2"),
    ({"list": [{"j": 2, "k": 1}]}, "3"),
    ({"tags": ["a"]}, "3"),
    ({"n": {"$gt": 1}}, "2"),
    ({"user": {"name": {"$gt": 5}}}, ""),
    ({"n": {"$ne": 1}}, "2356789"),
    ({"n": {"$ne": None}}, "1234"),
    ({"n": {"$eq": None}}, "56789"),
    ({"none": {"$ne": "x"}}, "123456789"),
    ({"none": {"$lt": 5}}, ""),
    ({"s": {"$lt": 5}}, ""),
    ({"s": {"$gte": "x"}}, "1"),
    ({"n": {"$lt": "x"}}, "3"),
    ({"n": {"$gte": 1, "$lt": 2}}, "14"),
    ({"n": {"$gte": 1, "$ne": 1}}, "2"),
    ({"user": {"$gt": 0}}, ""),
    ({"tags": {"$ne": ["a"]}}, "12456789"),
    ({"tags": {"$gt": "a"}}, ""),
    ({"flag": True}, "6"),
    ({"flag": 1}, "7"),
    ({"flag": False}, "8"),
    ({"flag": 0}, "9"),
    ({"flag": {"$eq": True}}, "6"),
    ({"flags": [1]}, "6"),
    ({"id": 2**62 + 1}, "9"),
    ({"id": 2**62}, ""),
]
"""The keys are those that LangGraph's own server (0.16.7) finds, where it answers."""


@pytest.mark.parametrize(("wanted", "keys"), FILTERS)
async def test_a_filter_compares_values_at_any_depth(
    client: LangGraphClient, wanted: dict[str, Any], keys: str
) -> None:
    folder = uuid4().hex
    for key, value in ITEMS.items():
        await client.store.put_item([folder], key, value)
    page = await client.store.search_items([folder], filter=wanted)
    assert "".join(sorted(item["key"] for item in page["items"])) == keys


@pytest.mark.parametrize("has_items", [True, False])
@pytest.mark.parametrize(
    ("wanted", "name"),
    [
        ({"user": {"name": {"$in": ["ann"]}}}, "$in"),
        ({"n": {"$in": [1]}}, "$in"),
        ({"n": 5, "user": {"$not": {"name": "x"}}}, "$not"),
        ({"user": {"name": {"$eq": "ann", "x": 1}}}, "x"),
        ({"list": [{"j": {"$in": []}}]}, "$in"),
        ({"$or": [{"n": 1}]}, "$or"),
        ({"n": 2, "$and": [{"n": 1}, {"n": 2}]}, "$and"),
    ],
)
async def test_an_operator_that_there_is_not_is_refused(
    client: LangGraphClient, wanted: dict[str, Any], name: str, has_items: bool
) -> None:
    """Whichever items there are."""
    folder = uuid4().hex
    if has_items:
        await client.store.put_item([folder], "1", ITEMS["1"])
    with pytest.raises(UnprocessableEntityError, match="filter: ") as raised:
        await client.store.search_items([folder], filter=wanted)
    assert repr(name) in str(raised.value)
    assert "$gte" in str(raised.value)


async def test_pages_of_nested_filters_follow_each_other(tmp_path: Path) -> None:
    """For graphs, too: both in coroutines and in threads, and in a batch with other operations."""
    async with open_storage(f"sqlite:{tmp_path / 'a.db'}") as storage:
        store = TenantStore(storage.store, "t")
        for number in range(250):
            value = {"at": {"third": number % 3 == 0}, "number": number}
            await store.aput(("n",), f"{number:03}", value)
        wanted: Any = {"at": {"third": True}}
        numbers = [n for n in range(249, -1, -1) if n % 3 == 0]
        pages = []
        for offset in range(0, 90, 30):
            page = await store.asearch(("n",), filter=wanted, limit=30, offset=offset)
            pages += [item.value["number"] for item in page]
        assert pages == numbers
        search = SearchOp(("n",), wanted, 2, 1)
        get = GetOp(("n",), "001")
        results: Any = await store.abatch([get, search, get])
        assert [result.value["number"] for result in (results[0], *results[1], results[2])] == [
            *(1, 246, 243, 1)
        ]
        assert await asyncio.to_thread(store.batch, [get, search, get]) == results
        assert await store.asearch(("n",), filter={**wanted, "number": 3}) != []
        assert await store.asearch(("n",), filter={**wanted, "number": 4}) == []
