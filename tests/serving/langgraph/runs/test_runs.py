"""Runs by the stock client: in threads and without, their ends, their order, their strategies."""

from __future__ import annotations

import re
from collections import deque
from datetime import timedelta
from decimal import Decimal
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from uuid import uuid4
from zoneinfo import ZoneInfo

import pytest
from langgraph.graph import START, StateGraph
from langgraph.types import Send
from langgraph_sdk import get_client
from langgraph_sdk.client import LangGraphClient
from typing_extensions import TypedDict

from tests.serving.langgraph.graphs import GATES, Steps
from tests.serving.langgraph.serve import Serving, serving

IN: Any = {"steps": ["in"]}
DONE: Any = {"steps": ["in", "first", "inner", "last"]}


def given(**values: Any) -> Any:
    """An input; the client's own types leave out most of JSON."""
    return values


async def a_thread(client: LangGraphClient) -> str:
    return str((await client.threads.create())["thread_id"])


async def at_a_gate(client: LangGraphClient, *steps: str, **more: Any) -> tuple[str, str, str]:
    """A new thread, its run that waits at a gate, and the gate."""
    thread, gate = await a_thread(client), str(uuid4())
    run = await client.runs.create(thread, "gate", input=given(gate=gate, steps=[*steps]), **more)
    await GATES.reached(gate)
    return thread, run["run_id"], gate


async def test_a_run_whose_nodes_clash_ends(client: LangGraphClient) -> None:
    """The clashing writes are not part of the state, which is sent without them."""
    thread = await a_thread(client)
    result: Any = await client.runs.wait(
        thread, "clash", input=given(chosen="x"), raise_error=False
    )
    assert result["__error__"]["error"] == "InvalidUpdateError"
    (run,) = await client.runs.list(thread)
    kept: Any = await client.threads.get(thread)
    assert (run["status"], kept["status"]) == ("error", "error")
    state: Any = await client.threads.get_state(thread)
    assert kept["values"] == state["values"] == {"chosen": "x"}
    assert state["next"] == ["left", "right"]


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ValueError("no \ud800 text"), "no ? text"),
        (ValueError("no \0 text"), "no � text"),
        (
            ExceptionGroup("two", [OSError(1), ExceptionGroup("x", [KeyError(2)])]),
            "two (2 sub-exceptions): OSError: 1; ExceptionGroup: x (1 sub-exception): KeyError: 2",
        ),
    ],
)
async def test_an_error_of_a_node_reaches_the_client(
    tmp_path: Path, error: Exception, message: str
) -> None:
    """The text of an error may be one that no database stores, or tell nothing of its causes."""

    def fail(state: Any) -> Any:
        raise error

    graph = StateGraph(Steps).add_node("fail", fail).add_edge(START, "fail")
    with serving({"failing": graph}, tmp_path / "a.db") as it:
        async with get_client(url=it.url) as client:
            thread = await a_thread(client)
            failed: Any = await client.runs.wait(thread, "failing", input=IN, raise_error=False)
            kept: Any = await client.threads.get(thread)
    assert failed["__error__"] == kept["error"]
    assert kept["error"] == {"error": type(error).__name__, "message": message}


async def test_values_of_many_types_reach_the_client(tmp_path: Path) -> None:
    """In the form in which LangGraph's own server sends them."""
    values = {
        "whole": Decimal(3),
        "part": Decimal("1.50"),
        "none": Decimal("nan"),
        "large": Decimal("1e30"),
        "length": timedelta(seconds=90),
        "zone": ZoneInfo("Europe/Berlin"),
        "file": Path("/a/b"),
        "host": ip_address("::1"),
        "pattern": re.compile("a.*"),
        "queue": deque([Decimal(1)]),
        "next": Send("node", {"x": 1}),
    }

    class Values(TypedDict):
        value: Any

    graph = StateGraph(Values).add_node("fill", lambda _: {"value": values}).add_edge(START, "fill")
    with serving({"any": graph}, tmp_path / "a.db") as it:
        async with get_client(url=it.url) as client:
            result: Any = await client.runs.wait(None, "any", input=given(value=None))
    assert result["value"] == {
        "whole": 3,
        "part": 1.5,
        "none": None,
        "large": "1E+30",
        "length": 90.0,
        "zone": "Europe/Berlin",
        "file": "/a/b",
        "host": "::1",
        "pattern": "a.*",
        "queue": [1],
        "next": {"node": "node", "args": {"x": 1}},
    }


async def test_a_run_without_a_thread_leaves_none_unless_told(client: LangGraphClient) -> None:
    before = await client.threads.count()
    created: list[Any] = []
    result = await client.runs.wait(None, "steps", input=IN, on_run_created=created.append)
    assert result == DONE
    assert await client.threads.count() == before
    (about,) = created
    assert await client.runs.join(about["thread_id"], about["run_id"]) == DONE
    await client.runs.wait(None, "steps", input=IN, on_completion="keep")
    assert await client.threads.count() == before + 1


async def test_what_older_and_other_clients_send_is_understood(client: LangGraphClient) -> None:
    """A batch of JavaScript's client has the names of that language."""
    thread, http = await a_thread(client), client.http.client
    body = {"input": IN, "checkpoint_during": False, "on_completion": "keep"}
    for path in (f"/threads/{thread}/runs/wait", "/runs/wait"):
        more = {} if "threads" in path else {"multitask_strategy": "reject", "strict_resume": True}
        done = await http.post(path, json={"assistant_id": "steps", **body, **more})
        assert done.json() == DONE
    (run,) = await client.runs.list(thread)
    assert run["kwargs"]["durability"] == "exit"  # type: ignore[typeddict-item]
    one = {"assistantId": "steps", "assistant_id": "steps", "input": IN, "streamMode": "updates"}
    (made,) = (await http.post("/runs/batch", json=[{**one, "onCompletion": "keep"}])).json()
    assert await client.runs.join(made["thread_id"], made["run_id"]) == DONE
    assert (await client.threads.get(made["thread_id"]))["status"] == "idle"
    assert made["kwargs"]["stream_mode"] == ["updates"]
    bad = await http.post("/runs/batch", json=[{**one, "noSuchField": 1}])
    assert (bad.status_code, "no_such_field" in bad.text) == (422, True)


async def test_a_run_waits_its_seconds(client: LangGraphClient) -> None:
    thread = await a_thread(client)
    late = await client.runs.create(thread, "steps", input=IN, after_seconds=3600)
    soon = await client.runs.wait(thread, "steps", input=IN)
    assert soon == DONE
    assert (await client.runs.get(thread, late["run_id"]))["status"] == "pending"
    short = await client.runs.create(thread, "steps", input=IN, after_seconds=0.1)  # type: ignore[call-overload]  # not whole, as its type has it
    assert len((await client.runs.join(thread, short["run_id"]))["steps"]) == 8
    await client.runs.cancel(thread, late["run_id"], wait=True)


# -- several runs in one thread -----------------------------------------------------------


async def test_a_threads_runs_run_in_the_order_of_their_coming(client: LangGraphClient) -> None:
    thread = await a_thread(client)
    runs = [
        await client.runs.create(thread, "bare", input={"messages": []}, metadata={"n": n})
        for n in range(8)
    ]
    for run in runs:
        await client.runs.join(thread, run["run_id"])
    listed = await client.runs.list(thread, limit=20)
    assert [(run["metadata"] or {})["n"] for run in listed] == list(range(7, -1, -1))
    ended = [run["updated_at"] for run in reversed(listed)]
    assert ended == sorted(ended)


# -- programs of the runtime --------------------------------------------------------------


async def test_a_run_is_a_program_of_the_runtime(client: LangGraphClient, it: Serving) -> None:
    """The thread is the program's session; the program's row is removed at its end."""
    thread, run, gate = await at_a_gate(client)
    assert it.server is not None
    live = [one for one in it.server.runtime.runs.values() if one.row.session == thread]
    assert [(one.type, one.row.tenant, str(one.state)) for one in live] == [
        ("gate", "default", "running")
    ]
    GATES.open(gate)
    await client.runs.join(thread, run)
    assert live[0].ended_at is not None
    assert live[0].id not in it.server.runtime.runs


async def test_keys_that_a_graph_ignores_are_named(
    client: LangGraphClient, caplog: pytest.LogCaptureFixture
) -> None:
    """LangGraph ignores unknown keys: a run that fails names them, one that does not is warned of,
    and both have the fields that there are. A resume has no input, and needs no warning.
    """
    misspelt = given(gat="x", steps=[])
    wrong: Any = await client.runs.wait(None, "gate", input=misspelt, raise_error=False)
    assert wrong["__error__"]["error"] == "KeyError"
    message = wrong["__error__"]["message"]
    assert "graph 'gate' has no field 'gat'; its input has the fields 'gate', 'steps'" in message
    assert await client.runs.wait(None, "steps", input={**IN, "extra": 1, "much": 2}) == DONE
    [warned] = [it.message for it in caplog.records if "'extra'" in it.message]
    assert "graph 'steps' has no field 'extra', 'much'; its input has the field" in warned
    before = len(caplog.records)
    assert await client.runs.wait(None, "steps", input=IN) == DONE
    assert not any("no field" in it.message for it in caplog.records[before:])


async def test_native_programs_run_as_graphs_do(client: LangGraphClient) -> None:
    topic: Any = "rain"
    result = await client.runs.wait(None, "poem", input=topic)
    assert isinstance(result, dict)
    assert result["topic"] == "rain"
    default = await client.runs.wait(None, "poem")
    assert isinstance(default, dict)
    assert default["topic"] == "tea"


async def test_a_program_streams_its_tokens(client: LangGraphClient) -> None:
    """The tokens are chunks of one message with the reply's text; the result is as usual."""
    runs: Any = client.runs
    stream = runs.stream(None, "poem", input="sea", stream_mode=["messages-tuple", "values"])
    told = [(part.event, part.data) async for part in stream]
    chunks = [data[0] for name, data in told if name == "messages"]
    assert len(chunks) > 1
    assert {one["type"] for one in chunks} == {"AIMessageChunk"}
    assert len({one["id"] for one in chunks}) == 1
    assert {data[1]["langgraph_node"] for name, data in told if name == "messages"} == {"poem"}
    name, result = told[-1]
    assert (name, result["topic"]) == ("values", "sea")
    assert result["poem"] == "".join(one["content"] for one in chunks)


@pytest.mark.parametrize("last", ["busy", "unknown", "invalid"])
async def test_a_batch_starts_all_of_its_runs_or_none(client: LangGraphClient, last: str) -> None:
    """The client could not know the ids of runs that have started when a later run is refused."""
    thread, busy = await a_thread(client), await a_thread(client)
    await client.runs.create(busy, "steps", input=IN, after_seconds=3600)
    faults: dict[str, dict[str, Any]] = {
        "busy": {"thread_id": busy, "multitask_strategy": "reject"},
        "unknown": {"thread_id": str(uuid4())},
        "invalid": {"thread_id": busy, "command": {"resume": None}},
    }
    first = {"assistant_id": "steps", "input": IN, "thread_id": thread}
    http = client.http.client
    answer = await http.post("/runs/batch", json=[first, {"assistant_id": "steps", **faults[last]}])
    assert answer.status_code in (404, 409, 422)
    assert await client.runs.list(thread) == []
    assert (await client.threads.get(thread))["status"] == "idle"
    answer = await http.post("/runs/batch", json=[first, first])
    ids = [run["run_id"] for run in answer.json()]
    for run in ids:
        await client.runs.join(thread, run)
    assert [run["run_id"] for run in await client.runs.list(thread)] == ids[::-1]
    await client.threads.delete(busy)
