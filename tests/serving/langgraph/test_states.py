"""States, histories, forks: time travel."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
from langgraph_sdk.client import LangGraphClient
from langgraph_sdk.errors import ConflictError, NotFoundError, UnprocessableEntityError

from tests.serving.langgraph.graphs import GATES
from tests.serving.langgraph.test_runs import DONE, IN, a_thread, given


async def a_done_thread(client: LangGraphClient) -> str:
    thread = await a_thread(client)
    await client.runs.wait(thread, "steps", input=IN)
    return thread


async def test_the_state_of_a_new_thread_is_empty(client: LangGraphClient) -> None:
    thread = await a_thread(client)
    state = await client.threads.get_state(thread)
    assert (state["values"], state["next"], state["tasks"]) == ({}, [], [])
    assert await client.threads.get_history(thread) == []


async def test_a_history_goes_back_to_the_start(client: LangGraphClient) -> None:
    thread = await a_done_thread(client)
    states: list[Any] = list(await client.threads.get_history(thread))
    assert [len(one["values"].get("steps", [])) for one in states] == [4, 3, 2, 1, 0]
    assert [one["metadata"]["step"] for one in states] == [3, 2, 1, 0, -1]
    parents = [one["parent_checkpoint"] for one in states]
    assert parents[:-1] == [one["checkpoint"] for one in states[1:]]
    assert parents[-1] is None
    two = await client.threads.get_history(thread, limit=2)
    assert two == states[:2]
    older = await client.threads.get_history(thread, before=states[1]["checkpoint"])
    assert older == states[2:]
    http = client.http.client
    assert (await http.get(f"/threads/{thread}/history?limit=2")).json() == two
    before = states[1]["checkpoint"]["checkpoint_id"]
    assert (await http.get(f"/threads/{thread}/history?before={before}")).json() == older
    (first,) = await client.threads.get_history(thread, metadata={"step": 0})
    assert first == states[3]


async def test_a_state_is_read_at_a_checkpoint(client: LangGraphClient) -> None:
    thread = await a_done_thread(client)
    states: list[Any] = list(await client.threads.get_history(thread))
    place = states[2]["checkpoint"]
    by_place = await client.threads.get_state(thread, place)
    by_id = await client.threads.get_state(thread, checkpoint_id=place["checkpoint_id"])
    assert by_place["values"] == by_id["values"] == {"steps": ["in", "first"]}
    with pytest.raises(NotFoundError, match="checkpoint"):
        await client.threads.get_state(thread, checkpoint_id=str(uuid4()))


async def test_a_run_starts_from_the_past(client: LangGraphClient) -> None:
    thread = await a_done_thread(client)
    states: list[Any] = list(await client.threads.get_history(thread))
    again = await client.runs.wait(
        thread, "steps", input=None, checkpoint_id=states[2]["checkpoint"]["checkpoint_id"]
    )
    assert again == DONE
    place = states[1]["checkpoint"]
    other = await client.runs.wait(thread, "steps", input=given(steps=["x"]), checkpoint=place)
    assert isinstance(other, dict)
    assert other["steps"][:4] == ["in", "first", "inner", "x"]


async def test_the_past_is_changed(client: LangGraphClient) -> None:
    thread = await a_done_thread(client)
    states: list[Any] = list(await client.threads.get_history(thread))
    forked = await client.threads.update_state(
        thread, {"steps": ["edited"]}, checkpoint=states[2]["checkpoint"], as_node="first"
    )
    state: Any = await client.threads.get_state(thread)
    assert forked["checkpoint"]["checkpoint_id"] == state["checkpoint"]["checkpoint_id"]
    assert state["next"] == ["sub"]
    done = await client.runs.wait(thread, "steps", input=None)
    assert done == {"steps": ["in", "first", "edited", "inner", "last"]}


async def test_a_state_is_changed_as_a_node_would(client: LangGraphClient) -> None:
    thread = await a_thread(client)
    await client.runs.wait(thread, "ask", input=IN)
    await client.threads.update_state(thread, {"steps": ["by hand"]}, as_node="ask")
    kept: Any = await client.threads.get(thread)
    assert kept["values"]["steps"] == ["in", "first", "by hand"]
    assert (kept["status"], kept["interrupts"]) == ("interrupted", {})
    done = await client.runs.wait(thread, "ask", input=None)
    assert done == {"steps": ["in", "first", "by hand", "last"]}


async def test_values_that_do_not_fit_are_refused(client: LangGraphClient) -> None:
    thread = await a_done_thread(client)
    for values, node in (({"steps": 3}, "first"), ({"steps": ["x"]}, "nobody")):
        with pytest.raises(UnprocessableEntityError, match="values"):
            await client.threads.update_state(thread, values, as_node=node)
    empty = await a_thread(client)
    with pytest.raises(UnprocessableEntityError, match="no graph yet"):
        await client.threads.update_state(empty, {"steps": ["x"]})


async def test_a_state_is_not_changed_under_a_run(client: LangGraphClient) -> None:
    thread, gate = await a_thread(client), str(uuid4())
    run = await client.runs.create(thread, "gate", input={"gate": gate, "steps": []})
    await GATES.reached(gate)
    with pytest.raises(ConflictError, match="under way"):
        await client.threads.update_state(thread, {"steps": ["x"]})
    with pytest.raises(ConflictError, match="under way"):
        await client.threads.copy(thread)
    GATES.open(gate)
    await client.runs.join(thread, run["run_id"])


async def test_parts_of_a_state(client: LangGraphClient) -> None:
    thread = await a_done_thread(client)
    chosen: Any = await client.threads.get_state(thread, select=["next", "values.steps"])
    assert chosen == {"next": [], "values": DONE}
    history: Any = await client.threads.get_history(thread, select=["checkpoint"], limit=1)
    assert [list(one) for one in history] == [["checkpoint"]]
    with pytest.raises(UnprocessableEntityError, match="select"):
        await client.threads.get_state(thread, select=["everything"])


async def test_a_thread_is_made_with_a_history(client: LangGraphClient) -> None:
    made: Any = await client.threads.create(
        graph_id="steps",
        supersteps=[
            {"updates": [{"values": {"steps": ["a"]}, "as_node": "__start__"}]},
            {"updates": [{"values": {"steps": ["b"]}, "as_node": "first"}]},
        ],
    )
    assert (made["values"], made["status"]) == ({"steps": ["a", "b"]}, "interrupted")
    done = await client.runs.wait(made["thread_id"], "steps", input=None)
    assert done == {"steps": ["a", "b", "inner", "last"]}
    with pytest.raises(UnprocessableEntityError, match="supersteps"):
        await client.threads.create(
            graph_id="steps",
            supersteps=[{"updates": [{"values": {"x": 1}, "as_node": "nobody"}]}],
        )


@pytest.mark.parametrize("node", ["first", "nobody"])
async def test_a_history_is_not_given_to_a_thread_that_is_there(
    client: LangGraphClient, node: str
) -> None:
    thread = await a_done_thread(client)
    before = await client.threads.get(thread)
    again = await client.threads.create(
        thread_id=thread,
        graph_id="steps",
        if_exists="do_nothing",
        supersteps=[{"updates": [{"values": {"steps": ["x"]}, "as_node": node}]}],
    )
    assert again == before == await client.threads.get(thread)
    assert len(await client.runs.list(thread)) == 1


async def test_another_threads_checkpoint_is_refused(client: LangGraphClient) -> None:
    mine, other = await a_done_thread(client), await a_done_thread(client)
    place: Any = {"thread_id": other}
    with pytest.raises(UnprocessableEntityError, match="thread_id"):
        await client.threads.get_state(mine, place)
    with pytest.raises(UnprocessableEntityError, match="thread_id"):
        await client.threads.update_state(mine, {"steps": ["x"]}, checkpoint=place)
    with pytest.raises(UnprocessableEntityError, match="thread_id"):
        await client.runs.create(mine, "steps", input=IN, checkpoint=place)
    config: Any = {"configurable": {"thread_id": other}}
    with pytest.raises(UnprocessableEntityError, match="thread_id"):
        await client.runs.create(mine, "steps", input=IN, config=config)
