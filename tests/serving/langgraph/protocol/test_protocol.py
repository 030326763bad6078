"""The streaming protocol of newer clients: `client.threads.stream`, its commands and its events."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, closing
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest
from langgraph_sdk.client import LangGraphClient

from agentrt.serving.langgraph.database.runs import Runs
from agentrt.serving.langgraph.protocol import routes as protocol_routes
from agentrt.serving.langgraph.runs import streams
from agentrt.serving.langgraph.tenant_state import REPLAY_S
from tests.serving.langgraph.graphs import GATES, TURN_S
from tests.serving.langgraph.runs.test_runs import DONE, IN, given
from tests.serving.langgraph.serve import Serving

ALL = ["values", "updates", "messages", "tools", "lifecycle", "input", "tasks", "custom"]
VALUES = ["values", "lifecycle"]
ANSWER = {"interrupt_id": "x", "response": 1}
STEPS: Any = [{"steps": DONE["steps"][: n + 1]} for n in range(4)]


async def command(http: httpx.AsyncClient, thread: str, method: str, **params: Any) -> Any:
    body = {"id": 7, "method": method, "params": params}
    answer = await http.post(f"/threads/{thread}/commands", json=body)
    assert answer.status_code == 200
    return answer.json()


async def start(
    http: httpx.AsyncClient, thread: str, graph: str, given: Any = IN, **more: Any
) -> str:
    done = await command(http, thread, "run.start", assistant_id=graph, input=given, **more)
    assert (done["type"], done["id"]) == ("success", 7)
    return str(done["result"]["run_id"])


async def heard(http: httpx.AsyncClient, thread: str, **asked: Any) -> AsyncGenerator[Any, None]:
    """The events of a thread, without an end."""
    body = {"channels": ALL, **asked}
    path = f"/threads/{thread}/stream/events"
    async with http.stream("POST", path, json=body) as stream:
        assert stream.status_code == 200
        async for line in stream.aiter_lines():
            if line.startswith("data:"):
                yield json.loads(line.removeprefix("data:"))


async def until(http: httpx.AsyncClient, thread: str, *ends: str, **asked: Any) -> list[Any]:
    """The events until the root graph has come to one of these ends for each of them."""
    found, left = [], list(ends)
    async with asyncio.timeout(TURN_S), aclosing(heard(http, thread, **asked)) as events:
        async for event in events:
            found.append(event)
            if left and told(event) == ("lifecycle", left[0]):
                left.pop(0)
            if not left:
                return found
    raise AssertionError(found)


def told(event: Any) -> tuple[str, Any]:
    """The method of an event, and what its data is about."""
    method, params = event["method"], event["params"]
    if method == "lifecycle":
        place = "".join(params["namespace"])
        return method, place.partition(":")[0] + params["data"]["event"]
    return method, params["data"]


# -- the client ---------------------------------------------------------------------------


@pytest.mark.parametrize("transport", ["sse", "websocket"])
async def test_the_client_answers_an_interrupt(client: LangGraphClient, transport: Any) -> None:
    async with asyncio.timeout(TURN_S):
        async with client.threads.stream(assistant_id="ask", transport=transport) as thread:
            await thread.run.start(input=IN)
            while not thread.interrupts:
                await asyncio.sleep(0.005)
            asked: Any
            (asked,) = thread.interrupts
            assert asked["value"] == {"question": "which way?"}
            await thread.run.respond("left")
            output: Any = await thread.output
    assert output["steps"] == ["in", "first", "answered left", "last"]


async def test_a_run_that_fails_fails_the_clients_output(client: LangGraphClient) -> None:
    async with asyncio.timeout(TURN_S):
        async with client.threads.stream(assistant_id="fail") as thread:
            await thread.run.start(input=IN)
            with pytest.raises(Exception, match="no such luck"):
                await thread.output


# -- events -------------------------------------------------------------------------------


async def test_values_outside_a_graphs_output_are_not_sent(
    client: LangGraphClient, http: httpx.AsyncClient
) -> None:
    thread = str(uuid4())
    run = await start(http, thread, "order", given(amount=1.25))
    events = await until(http, thread, "completed")
    assert [data for method, data in map(told, events) if method == "values"] == [{"total": 2.5}]
    assert "of the house" not in json.dumps(events)
    assert await client.runs.join(thread, run) == {"total": 2.5}
    kept: Any = await client.threads.get(thread)
    assert kept["values"]["secret"] == "of the house"


async def test_events_are_received_from_before_the_thread_exists(http: httpx.AsyncClient) -> None:
    thread = str(uuid4())
    listening = asyncio.create_task(until(http, thread, "completed", channels=VALUES))
    run = await start(http, thread, "steps")
    events = await listening
    assert [told(one) for one in events if not one["params"]["namespace"]] == [
        ("lifecycle", "running"),
        *(("values", values) for values in STEPS),
        ("lifecycle", "completed"),
    ]
    seqs = [event["seq"] for event in events]
    assert seqs == sorted(set(seqs))
    assert {event["event_id"].partition(":")[0] for event in events} == {run}


async def test_a_listener_before_the_run_is_queued_gets_its_events(
    http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. It is in the database. 2. Somebody reads the thread's runs. 3. It comes into the queue."""
    thread, entered, read = str(uuid4()), asyncio.Event(), asyncio.Event()
    enter, since = Runs.enter_all, Runs.since

    async def slow(self: Runs, *given: Any) -> Any:
        made = await enter(self, *given)
        entered.set()
        await read.wait()
        return made

    async def seen(self: Runs, *given: Any) -> Any:
        found = await since(self, *given)
        asyncio.get_running_loop().call_soon(read.set)
        return found

    monkeypatch.setattr(Runs, "enter_all", slow)
    monkeypatch.setattr(Runs, "since", seen)
    starting = asyncio.create_task(start(http, thread, "steps"))
    async with asyncio.timeout(TURN_S):
        while not entered.is_set():
            await asyncio.sleep(0.005)
    events = await until(http, thread, "completed", channels=VALUES)
    assert told(events[0]) == ("lifecycle", "running")
    await starting


async def test_a_returning_client_gets_missed_events(http: httpx.AsyncClient) -> None:
    """The client gets events of all runs of the thread, since a number or from the start."""
    thread = str(uuid4())
    await start(http, thread, "steps")
    await start(http, thread, "bare", {"messages": []})
    whole = await until(http, thread, "completed", "completed")
    again = await until(http, thread, "completed", "completed")
    assert again == whole
    for at in (0, 2, len(whole) - 2):
        late = await until(http, thread, "completed", since=whole[at]["seq"])
        assert late == whole[at + 1 : at + 1 + len(late)]


async def test_runs_without_events_are_not_looked_into(
    it: Serving, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chat has a thousand, and a page listens several times over."""
    thread, looked = str(uuid4()), list[str]()
    old, new = [await start(http, thread, "steps") for _ in range(2)]
    for run in (old, new):
        await http.get(f"/threads/{thread}/runs/{run}/join")
    replay = streams.replay

    def counted(database: Any, run_id: str, after: int, *, may_skip: bool) -> AsyncIterator[Any]:
        looked.append(run_id)
        return replay(database, run_id, after, may_skip=may_skip)

    monkeypatch.setattr(protocol_routes, "replay", counted)
    assert it.server is not None
    with closing(sqlite3.connect(it.server.database.partition(":")[2])) as database, database:
        past = (time.time() - REPLAY_S - 1, old)
        database.execute("UPDATE agentrt_runs SET updated_at = ? WHERE run_id = ?", past)
    await until(http, thread, "completed")
    assert looked == [new]


async def test_deleted_events_of_a_long_run_do_not_break_the_stream(
    http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "MAX_STORED", 3)
    monkeypatch.setattr(streams, "_PAGE", 1)
    thread = str(uuid4())
    run = await start(http, thread, "steps")
    await http.get(f"/threads/{thread}/runs/{run}/join")
    await until(http, thread, "completed")


async def test_a_question_is_an_event_and_its_answer_a_command(http: httpx.AsyncClient) -> None:
    """A client that comes back gets the question again, and sees that it is older than its answer,
    which all clients of the thread hear of.
    """
    thread = str(uuid4())
    await start(http, thread, "ask")
    events = await until(http, thread, "interrupted")
    asked = next(one for one in events if one["method"] == "input.requested")
    data = asked["params"]["data"]
    assert data["payload"] == {"question": "which way?"}
    given = {"namespace": [], "interrupt_id": data["interrupt_id"], "response": "left"}
    done = await command(http, thread, "input.respond", **given)
    through = done["meta"]["applied_through_seq"]
    whole = await until(http, thread, "interrupted", "completed")
    assert [one for one in whole if one["seq"] <= through] == events
    answered = {"interrupt_ids": [data["interrupt_id"]]}
    assert told(whole[len(events)]) == ("input.answered", answered)
    values = [told(one)[1] for one in whole if one["method"] == "values"]
    assert values[-1] == {"steps": ["in", "first", "answered left", "last"]}
    again = await command(http, thread, "input.respond", **given)
    assert (again["type"], again["error"]) == ("error", "no_such_interrupt")


async def test_checkpoints_say_where_to_go_back_to(http: httpx.AsyncClient) -> None:
    thread = str(uuid4())
    await start(http, thread, "bare", {"messages": [{"role": "user", "content": "hi"}]})
    events = await until(http, thread, "completed", channels=["checkpoints", "lifecycle"])
    places = [told(one)[1] for one in events if one["method"] == "checkpoints"]
    assert [(one["step"], one["source"]) for one in places] == [
        (-1, "input"),
        (0, "loop"),
        (1, "loop"),
    ]
    ids = [one["id"] for one in places]
    assert [one.get("parent_id") for one in places] == [None, *ids[:-1]]
    history = (await http.get(f"/threads/{thread}/history")).json()
    assert [one["checkpoint"]["checkpoint_id"] for one in history] == ids[::-1]


async def test_the_state_is_told_and_a_run_forks_from_a_checkpoint(http: httpx.AsyncClient) -> None:
    thread = str(uuid4())
    await start(http, thread, "ask", IN)
    events = await until(http, thread, "interrupted", channels=["checkpoints", "lifecycle"])
    places = [told(one)[1] for one in events if one["method"] == "checkpoints"]
    state = (await command(http, thread, "state.get", namespace=[]))["result"]
    assert state["values"] == {"steps": ["in", "first"]}
    assert state["checkpoint"] == {"id": places[-1]["id"], "ns": ""}
    some = (await command(http, thread, "state.get", namespace=[], keys=["none"]))["result"]
    assert some["values"] == {}
    none = await command(http, thread, "state.get", namespace=["none:1"])
    assert none["error"] == "no_such_namespace"
    listed = await command(http, thread, "state.listCheckpoints", limit=2)
    ids = [one["id"] for one in listed["result"]["checkpoints"]]
    assert ids == [one["id"] for one in places[::-1]][:2]
    older = await command(http, thread, "state.listCheckpoints", before=ids[-1])
    (first,) = older["result"]["checkpoints"]
    assert (first["id"], first["step"]) == (places[0]["id"], -1)
    forked = await command(http, thread, "state.fork", checkpoint_id=ids[-1])
    assert forked["result"]["thread_id"] == thread
    since = forked["meta"]["applied_through_seq"]
    again = await until(http, thread, "interrupted", since=since, channels=VALUES)
    assert told(again[-2])[1] == {"steps": ["in", "first"]}


async def test_the_graphs_of_a_run_are_a_tree(http: httpx.AsyncClient) -> None:
    thread = str(uuid4())
    run = await start(http, thread, "nested")
    await until(http, thread, "completed")
    tree = (await command(http, thread, "agent.getTree", run_id=run))["result"]["tree"]
    (inside,) = tree.pop("children")
    assert tree == {"namespace": [], "status": "completed", "graph_name": "nested"}
    assert inside["status"] == "completed"
    assert inside["namespace"][0].startswith("sub:")
    assert (await command(http, thread, "agent.getTree"))["result"]["tree"]["children"] == [inside]


async def test_several_questions_are_answered_at_once(http: httpx.AsyncClient) -> None:
    thread = str(uuid4())
    await start(http, thread, "fan", {"steps": ["in"]})
    events = await until(http, thread, "interrupted", channels=["input", "lifecycle"])
    asked = {told(one)[1]["payload"]: told(one)[1]["interrupt_id"] for one in events[1:-1]}
    assert asked.keys() == {"a", "b"}
    responses = [
        {"namespace": [], "interrupt_id": key, "response": name * 2} for name, key in asked.items()
    ]
    done = await command(http, thread, "input.respond", responses=responses)
    assert done["type"] == "success"
    events = await until(http, thread, "completed", since=events[-1]["seq"], channels=VALUES)
    assert sorted(told(events[-2])[1]["steps"]) == ["aa", "bb", "in"]


async def test_answers_are_refused_if_any_of_their_questions_was_answered(
    http: httpx.AsyncClient, client: LangGraphClient
) -> None:
    """The run with the first answer waits."""
    thread = str(uuid4())
    await start(http, thread, "fan", {"steps": ["a", "b"]})
    events = await until(http, thread, "interrupted", channels=["input", "lifecycle"])
    keys = [told(one)[1]["interrupt_id"] for one in events if one["method"] == "input.requested"]
    command_of: Any = {"resume": {keys[1]: "first"}}
    run = await client.runs.create(thread, "fan", command=command_of, after_seconds=3600)
    responses = [{"namespace": [], "interrupt_id": key, "response": "second"} for key in keys]
    done = await command(http, thread, "input.respond", responses=responses)
    assert (done["type"], done["error"]) == ("error", "no_such_interrupt")
    await client.runs.cancel(thread, run["run_id"])


@pytest.mark.parametrize("as_map", [False, True])
async def test_only_one_run_start_answers_a_question(
    http: httpx.AsyncClient, client: LangGraphClient, as_map: bool
) -> None:
    """The run with the first answer waits, so the second answer would be for the next question."""
    thread = str(uuid4())
    await start(http, thread, "twice", {"steps": []})
    events = await until(http, thread, "interrupted", channels=["input", "lifecycle"])
    (key,) = [told(one)[1]["interrupt_id"] for one in events if one["method"] == "input.requested"]
    given: Any = {key: "1"} if as_map else "1"
    first = await client.runs.create(thread, "twice", command={"resume": "1"}, after_seconds=3600)
    done = await command(http, thread, "run.start", assistant_id="twice", input=given)
    assert (done["type"], done["error"]) == ("error", "no_such_interrupt")
    assert "answered already" in done["message"]
    await client.runs.cancel(thread, first["run_id"])
    done = await command(http, thread, "run.start", assistant_id="twice", input=given)
    await client.runs.join(thread, done["result"]["run_id"])
    asked = await client.threads.get(thread)
    assert [one["value"] for asks in asked["interrupts"].values() for one in asks] == ["two"]


async def test_a_message_arrives_token_by_token(http: httpx.AsyncClient) -> None:
    thread = str(uuid4())
    await start(http, thread, "chat", {"messages": [{"role": "user", "content": "hi"}]})
    events = await until(http, thread, "completed", channels=["messages", "values", "lifecycle"])
    parts = [told(one)[1] for one in events if one["method"] == "messages"]
    kinds = [one["event"] for one in parts]
    assert (kinds[0], kinds[1], kinds[-2:]) == (
        "message-start",
        "content-block-start",
        ["content-block-finish", "message-finish"],
    )
    deltas = [one["delta"]["text"] for one in parts[2:-2]]
    assert len(deltas) > 1
    assert "".join(deltas) == parts[-2]["content"]["text"]
    assert parts[-1]["usage"]["output_tokens"] == 16
    reply = told(events[-2])[1]["messages"][-1]
    assert reply["id"] == parts[0]["id"]


async def test_the_channel_of_messages_has_what_the_protocol_names(http: httpx.AsyncClient) -> None:
    """The results of tools, as messages below the tool, also where a tool gives a command; and no
    whole message, which the protocol does not know.
    """
    thread = str(uuid4())
    await start(http, thread, "tools", {"messages": []})
    events = await until(http, thread, "completed", channels=["messages", "tools", "lifecycle"])
    messages = [event["params"] for event in events if event["method"] == "messages"]
    assert [(part["namespace"], part["data"]["event"]) for part in messages] == [
        ([f"tools:{call}"], event)
        for call in ("c1", "c2")
        for event in (
            "message-start",
            "content-block-start",
            "content-block-delta",
            "content-block-finish",
            "message-finish",
        )
    ]
    starts = [part["data"] for part in messages if part["data"]["event"] == "message-start"]
    assert [(start["role"], start["tool_call_id"], start["id"]) for start in starts] == [
        ("tool", "c1", "tool-c1"),
        ("tool", "c2", "m9"),
    ]
    ends = [part["data"] for part in messages if part["data"]["event"] == "content-block-finish"]
    assert [end["content"]["text"] for end in ends] == ["sunny in Rome", "moved to Rome"]


async def test_events_of_subgraphs_have_their_namespaces(http: httpx.AsyncClient) -> None:
    thread = str(uuid4())
    await start(http, thread, "nested")
    events = await until(http, thread, "completed", channels=VALUES)
    inside = [one for one in events if one["params"]["namespace"]]
    place = inside[0]["params"]["namespace"]
    assert [told(one)[1] for one in inside if one["method"] == "lifecycle"] == [
        "substarted",
        "subcompleted",
    ]
    for namespaces in ([place], [["sub"]], [["other"], ["sub"]]):
        only = await until(http, thread, "subcompleted", namespaces=namespaces, channels=VALUES)
        assert only == inside
    root = await until(http, thread, "completed", namespaces=[[]], depth=0, channels=VALUES)
    assert root == [one for one in events if not one["params"]["namespace"]]


async def test_custom_events_and_updates_have_channels(http: httpx.AsyncClient) -> None:
    thread = str(uuid4())
    await start(http, thread, "steps")
    events = await until(http, thread, "completed", channels=["custom", "updates", "lifecycle"])
    found = [told(one) for one in events if one["method"] != "lifecycle"]
    assert ("custom", {"note": "from first"}) in found
    assert ("updates", {"first": {"steps": ["first"]}}) in found


async def test_a_run_that_is_stopped_ends_as_interrupted(
    http: httpx.AsyncClient, client: LangGraphClient
) -> None:
    thread, gate = str(uuid4()), str(uuid4())
    run = await start(http, thread, "gate", {"gate": gate, "steps": []})
    await GATES.reached(gate)
    listening = asyncio.create_task(until(http, thread, "interrupted"))
    await client.runs.cancel(thread, run, wait=True)
    await listening
    assert (await client.runs.get(thread, run))["status"] == "interrupted"


async def test_older_clients_follow_such_a_run_to_its_end(
    http: httpx.AsyncClient, client: LangGraphClient
) -> None:
    """Older clients get the run's result, and no event in an unknown form."""
    thread = str(uuid4())
    run = await start(http, thread, "steps")
    assert await client.runs.join(thread, run) == DONE
    stream = client.runs.join_stream(thread, run, last_event_id="-1")
    assert [part.event async for part in stream] == ["metadata"]


# -- what is refused ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "params", "code"),
    [
        ("run.begin", {}, "unknown_command"),
        ("input.inject", {"namespace": [], "message": {}}, "not_supported"),
        ("state.get", {"keys": "steps"}, "invalid_argument"),
        ("state.listCheckpoints", {"limit": 0}, "invalid_argument"),
        ("state.fork", {}, "invalid_argument"),
        ("state.fork", {"checkpoint_id": str(UUID(int=1))}, "no_such_checkpoint"),
        ("agent.getTree", {}, "no_such_run"),
        ("agent.getTree", {"run_id": str(UUID(int=1))}, "no_such_run"),
        ("run.start", {"input": {}}, "invalid_argument"),
        ("run.start", {"assistant_id": "none"}, "unknown_error"),
        ("run.start", {"assistant_id": "steps", "teapot": 1}, "invalid_argument"),
        ("input.respond", {"response": 1}, "invalid_argument"),
        ("input.respond", {"interrupt_id": "x"}, "no_such_interrupt"),
        ("input.respond", {"interrupt_id": "x", "responses": [ANSWER]}, "invalid_argument"),
    ],
)
async def test_an_invalid_command_gets_an_error(
    http: httpx.AsyncClient, method: str, params: Any, code: str
) -> None:
    thread = (await http.post("/threads", json={})).json()["thread_id"]
    answer = await command(http, thread, method, **params)
    assert (answer["type"], answer["id"], answer["error"]) == ("error", 7, code)
    assert answer["message"]


async def test_a_subscription_over_http_is_told_where_the_events_are(
    http: httpx.AsyncClient,
) -> None:
    thread = (await http.post("/threads", json={})).json()["thread_id"]
    answer = await command(http, thread, "subscription.subscribe", channels=["values"])
    assert answer["error"] == "not_supported"
    assert "over a WebSocket only" in answer["message"]
    assert "/stream/events" in answer["message"]


@pytest.mark.parametrize("body", [{}, {"id": "1", "method": "run.start"}, {"id": 1}])
async def test_an_unknown_command_is_refused(http: httpx.AsyncClient, body: Any) -> None:
    answer = await http.post(f"/threads/{uuid4()}/commands", json=body)
    assert (answer.status_code, answer.json()["error"]) == (400, "invalid_argument")


@pytest.mark.parametrize("asked", [{}, {"channels": []}, {"channels": ["teapot"]}])
async def test_unknown_channels_are_refused(http: httpx.AsyncClient, asked: Any) -> None:
    answer = await http.post(f"/threads/{uuid4()}/stream/events", json=asked)
    assert (answer.status_code, "channels" in answer.json()["detail"]) == (422, True)
