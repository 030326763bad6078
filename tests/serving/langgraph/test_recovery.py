"""Where a thread stood before a run, as it is noted."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest_asyncio
from langgraph.checkpoint.base import empty_checkpoint

from agentrt.serving.langgraph.recovery import Origin, current_origin, roll_back
from agentrt.serving.langgraph.storage import Storage, open_storage


@pytest_asyncio.fixture
async def storage(tmp_path: Path) -> AsyncIterator[Storage]:
    async with open_storage(f"sqlite:{tmp_path / 'a.db'}") as storage:
        yield storage


async def put(storage: Storage, space: str) -> Any:
    """A new checkpoint, in the graph's own namespace or a subgraph's."""
    config: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": space}}
    return await storage.saver.aput(config, empty_checkpoint(), {}, {})


async def written(storage: Storage, *places: Any) -> list[Any]:
    """What was written to each of these; None for one that is gone."""
    found = [await storage.saver.aget_tuple(place) for place in places]
    return [None if one is None else one.pending_writes for one in found]


async def test_what_is_noted_can_be_gone_back_to(storage: Storage) -> None:
    saver = storage.saver
    own, inner = await put(storage, ""), await put(storage, "sub:1")
    await saver.aput_writes(own, [("__interrupt__", ["one"])], "a")
    await saver.aput_writes(inner, [("__interrupt__", ["one"])], "b", "path")
    await saver.aput_writes(inner, [("x", 1), ("y", 2)], "c")
    before = await written(storage, own, inner)
    noted = (await current_origin(storage.database, "t", ())).as_json()
    await saver.aput_writes(own, [("__resume__", "1")], "nobody")
    await saver.aput_writes(inner, [("__interrupt__", ["two"]), ("__resume__", ["1"])], "b")
    await saver.aput_writes(inner, [("x", 1), ("y", 2), ("z", 3)], "c")
    late = await put(storage, "sub:1")
    await saver.aput_writes(late, [("x", 1)], "d")
    await roll_back(storage.database, "t", Origin.of(json.loads(json.dumps(noted))))
    assert await written(storage, own, inner, late) == [*before, None]


async def test_an_empty_thread_is_gone_back_to(storage: Storage) -> None:
    origin = await current_origin(storage.database, "t", ())
    assert (origin.checkpoint_id, origin.as_json()["checkpoint_id"]) == ("", None)
    own = await put(storage, "")
    await roll_back(storage.database, "t", origin)
    assert await written(storage, own) == [None]


async def test_the_past_is_noted_where_it_may_be_written_to(storage: Storage) -> None:
    past, _ = await put(storage, ""), await put(storage, "")
    await storage.saver.aput_writes(past, [("__interrupt__", ["one"])], "a")
    place = past["configurable"]["checkpoint_id"]
    assert (await current_origin(storage.database, "t", ())).writes == ()
    (row,) = (await current_origin(storage.database, "t", {place})).writes
    assert (row.task, row.channel) == (("", place, "a"), "__interrupt__")
