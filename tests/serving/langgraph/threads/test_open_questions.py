"""Questions of threads that are still open when the stream of their run is no longer kept."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Sequence
from contextlib import aclosing, closing
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
from langgraph_sdk import get_client
from langgraph_sdk.client import LangGraphClient

from agentrt.serving.langgraph.database.connections import Address, open_database
from agentrt.serving.langgraph.database.runs import Runs
from agentrt.serving.langgraph.runs.streams import EventLog, StreamEvent
from agentrt.serving.langgraph.tenant_state import REPLAY_S
from tests.serving.langgraph.graphs import GATES, TURN_S, all_graphs
from tests.serving.langgraph.protocol.test_protocol import command, heard, start, told, until
from tests.serving.langgraph.runs.test_runs import IN
from tests.serving.langgraph.serve import serving

CHANNELS = ["values", "input", "lifecycle"]


def age(database: Path) -> None:
    """Let an hour pass since the ends of all runs."""
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("UPDATE agentrt_runs SET updated_at = ?", (time.time() - REPLAY_S - 1,))


async def sweep(database: Path) -> None:
    """Delete the streams that are no longer kept."""
    async with open_database(Address.parse(f"sqlite:{database}")) as opened:
        nothing: Any = None
        await Runs(opened, nothing).forget_streams(time.time() - REPLAY_S)


def questions(events: list[Any]) -> list[Any]:
    return [event for event in events if event["method"] == "input.requested"]


async def test_a_question_is_asked_again_when_its_stream_is_swept(tmp_path: Path) -> None:
    """1. An hour passes. 2. The stream is swept: the question has the number that it had. 3. A
    client that has seen it is not asked again. 4. The answer is accepted, and ends it.
    """
    database, thread = tmp_path / "a.db", str(uuid4())
    with serving(all_graphs(), database) as it:
        async with httpx.AsyncClient(base_url=it.url, timeout=60) as http:
            await start(http, thread, "twice")
            first = await until(http, thread, "interrupted", channels=CHANNELS)
            (question,) = questions(first)
            answer = {"interrupt_id": told(question)[1]["interrupt_id"], "response": "yes"}
            await command(http, thread, "input.respond", **answer)
            whole = await until(http, thread, "interrupted", "interrupted", channels=CHANNELS)
            age(database)
            aged = await until(http, thread, "interrupted", channels=CHANNELS)
    await sweep(database)
    two = questions(whole)[-1]
    with serving(all_graphs(), database) as it:
        async with httpx.AsyncClient(base_url=it.url, timeout=60) as http:
            swept = await until(http, thread, "interrupted", channels=CHANNELS)
            for events in (aged, swept):
                assert questions(events) == [two]
                assert events[-1] == whole[-1]
            listening = asyncio.create_task(
                until(http, thread, "completed", channels=CHANNELS, since=two["seq"])
            )
            answer = {"interrupt_id": told(two)[1]["interrupt_id"], "response": "no"}
            done = await command(http, thread, "input.respond", **answer)
            assert done["type"] == "success", done
            assert questions(await listening) == []
    age(database)
    await sweep(database)
    with closing(sqlite3.connect(database)) as connection:
        assert connection.execute("SELECT count(*) FROM agentrt_events").fetchone() == (0,)


async def test_questions_of_older_clients_runs_are_asked(tmp_path: Path) -> None:
    """Such a run has no events of the protocol; its questions have numbers to continue from."""
    with serving(all_graphs(), tmp_path / "a.db") as it:
        async with (
            get_client(url=it.url) as client,
            httpx.AsyncClient(base_url=it.url, timeout=60) as http,
        ):
            thread = (await client.threads.create())["thread_id"]
            await client.runs.wait(thread, "fan", input=IN)
            events = await until(http, thread, "interrupted", channels=CHANNELS)
            payloads = {told(event)[1]["payload"] for event in questions(events)}
            assert payloads == {"a", "b"}
            seqs = [event["seq"] for event in events]
            assert seqs == sorted(set(seqs))
            later = await until(
                http, thread, "interrupted", channels=CHANNELS, since=events[0]["seq"]
            )
            assert later == events[1:]


async def test_a_question_is_asked_once_to_who_joins_as_it_is_asked(
    http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. The question is stored in the thread and in the run's stream, but readers of the stream
    cannot get it yet. 2. A client joins. 3. The readers get it, and it is answered.
    """
    thread, publish = str(uuid4()), EventLog.publish

    async def slow(self: EventLog, new: Sequence[StreamEvent]) -> None:
        if any(b"input.requested" in event.data for event in new):
            await GATES.passing(thread)
        await publish(self, new)

    monkeypatch.setattr(EventLog, "publish", slow)
    await start(http, thread, "ask")
    await GATES.reached(thread)
    async with asyncio.timeout(TURN_S), aclosing(heard(http, thread)) as stream:
        events = [await anext(stream)]
        GATES.open(thread)
        for end in ("interrupted", "completed"):
            while told(events[-1]) != ("lifecycle", end):
                events.append(await anext(stream))
            (question,) = questions(events)
            if end == "interrupted":
                answer = {"interrupt_id": told(question)[1]["interrupt_id"], "response": "yes"}
                await command(http, thread, "input.respond", **answer)


@pytest.mark.parametrize("door", ["protocol", "questions"])
@pytest.mark.parametrize("how", ["copied", "deleted"])
async def test_a_question_without_its_run_is_asked_and_answered(
    client: LangGraphClient, http: httpx.AsyncClient, how: str, door: str
) -> None:
    """The question of a copied thread, and of a thread whose only run has been deleted."""
    thread = str(uuid4())
    run = await start(http, thread, "ask")
    await until(http, thread, "interrupted", channels=CHANNELS)
    if how == "copied":
        thread = (await http.post(f"/threads/{thread}/copy")).json()["thread_id"]
    else:
        await client.runs.delete(thread, run)
    events = await until(http, thread, "interrupted", channels=CHANNELS)
    (question,) = questions(events)
    assert told(question)[1]["payload"] == {"question": "which way?"}
    interrupt_id = told(question)[1]["interrupt_id"]
    if door == "protocol":
        answer = {"interrupt_id": interrupt_id, "response": "left"}
        done = await command(http, thread, "input.respond", **answer)
        assert done["type"] == "success", done
        after = await until(http, thread, "completed", channels=CHANNELS, since=events[-1]["seq"])
        assert questions(after) == []
    else:
        [listed] = (await http.get("/v1/questions", params={"thread": thread})).json()["data"]
        answered = await http.post(f"/v1/questions/{listed['id']}", json={"answer": "left"})
        assert answered.status_code == 200, answered.text
        await client.runs.join(thread, answered.json()["run"])
    state: Any = await client.threads.get_state(thread)
    assert state["values"]["steps"] == ["in", "first", "answered left", "last"]


@pytest.mark.parametrize("how", ["gather", "group"])
async def test_questions_that_a_program_asks_at_once_are_all_seen(
    client: LangGraphClient, how: str
) -> None:
    """They are answered in any order, and an answered question is not asked again."""
    thread = (await client.threads.create())["thread_id"]
    request: Any = {"names": ["a", "b", "c"], "how": how}

    async def open_ids() -> dict[str, str]:
        tasks = (await client.threads.get(thread))["interrupts"].values()
        return {str(each["value"]): str(each["id"]) for task in tasks for each in task}

    async def answered(resume: Any) -> Any:
        return await client.runs.wait(thread, "approvals", command={"resume": resume})

    result: Any = await client.runs.wait(thread, "approvals", input=request)
    ids = {each["value"]: each["id"] for each in result["__interrupt__"]}
    assert ids.keys() == {"approve a?", "approve b?", "approve c?"}
    assert await open_ids() == ids
    (task,) = (await client.threads.get_state(thread))["tasks"]
    assert {str(each["value"]) for each in task["interrupts"]} == ids.keys()
    await answered({ids["approve c?"]: "C"})
    left = await open_ids()
    assert left == {name: key for name, key in ids.items() if name != "approve c?"}
    await answered({left["approve b?"]: "B", left["approve a?"]: "A"})
    assert (await open_ids()).keys() == {"all in all?"}
    assert await answered("yes") == ["A", "B", "C", "yes"]
    assert await open_ids() == {}


async def test_the_client_finds_a_question_an_hour_later(tmp_path: Path) -> None:
    database = tmp_path / "a.db"
    with serving(all_graphs(), database) as it:
        async with (
            get_client(url=it.url) as client,
            httpx.AsyncClient(base_url=it.url, timeout=60) as http,
            asyncio.timeout(TURN_S),
        ):
            thread = str(uuid4())
            await start(http, thread, "ask")
            await until(http, thread, "interrupted", channels=CHANNELS)
            age(database)
            async with client.threads.stream(thread, assistant_id="ask") as stream:
                while not stream.interrupts:
                    await asyncio.sleep(0.005)
                assert [each["value"] for each in stream.interrupts] == [{"question": "which way?"}]
                await stream.run.respond("left")
                output: Any = await stream.output
    assert output["steps"] == ["in", "first", "answered left", "last"]
