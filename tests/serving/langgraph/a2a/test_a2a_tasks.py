"""Tasks of the Agent2Agent protocol that ask, are answered, listed and cancelled."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest
from a2a.helpers import get_artifact_text, get_data_parts, get_message_text
from a2a.types import CancelTaskRequest, GetTaskRequest, ListTasksRequest, TaskState
from a2a.utils.errors import (
    InternalError,
    InvalidParamsError,
    TaskNotCancelableError,
    UnsupportedOperationError,
)
from langgraph.graph import START, StateGraph
from langgraph_sdk.client import LangGraphClient

from agentrt.serving.langgraph.a2a import messages as a2a_values
from agentrt.serving.langgraph.a2a.messages import KnownTasks, TaskRecord
from agentrt.serving.langgraph.database.runs import Runs
from agentrt.serving.langgraph.runs.streams import EventLog, FellBehindError, StreamEvent
from tests.serving.langgraph.a2a.test_a2a import COMPLETED, WAITS, agent, sent, told
from tests.serving.langgraph.graphs import GATES, TURN_S, Gated, ask, wait
from tests.serving.langgraph.serve import Serving, serving


async def test_a_task_asks_and_continues_with_the_answer(it: Serving) -> None:
    async with agent(it, "ask") as ask:
        first = await sent(ask, {"steps": ["in"]})
        assert first.status.state == WAITS
        assert get_data_parts(first.status.message.parts) == [{"question": "which way?"}]
        assert await ask.get_task(GetTaskRequest(id=first.id)) == first
        done = await sent(ask, "left", task=first.id)
        assert (done.id, done.status.state) == (first.id, COMPLETED)
        (values,) = get_data_parts(done.artifacts[0].parts)
        assert values["steps"] == ["in", "first", "answered left", "last"]
        with pytest.raises(UnsupportedOperationError, match="has ended"):
            await sent(ask, "right", task=first.id)
        other = await sent(ask, {"steps": []}, context=first.context_id)
        listed = await ask.list_tasks(ListTasksRequest(context_id=first.context_id))
        assert [one.id for one in listed.tasks] == [other.id, first.id]
        answered = await sent(ask, {"resume": "right"}, task=other.id)
        assert answered.status.state == COMPLETED


async def test_a_task_that_waits_is_cancelled(it: Serving, client: LangGraphClient) -> None:
    """Nobody is asked any more, and the thread takes other messages."""
    async with agent(it, "ask") as ask:
        task = await sent(ask, {"steps": []})
        stopped = await ask.cancel_task(CancelTaskRequest(id=task.id))
        assert stopped.status.state == TaskState.TASK_STATE_CANCELED
        thread: Any = await client.threads.get(task.context_id)
        assert (thread["status"], thread["interrupts"]) == ("idle", {})
        with pytest.raises(TaskNotCancelableError):
            await ask.cancel_task(CancelTaskRequest(id=task.id))
        with pytest.raises(UnsupportedOperationError, match="has ended"):
            await sent(ask, "left", task=task.id)
        other = await sent(ask, {"steps": []}, context=task.context_id)
        assert other.status.state == WAITS


async def test_a_task_is_read_and_cancelled_while_the_disk_is_nearly_full(
    it: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with agent(it, "ask") as ask:
        task = await sent(ask, {"steps": []})
        free = SimpleNamespace(total=100 << 30, free=63 << 20)
        monkeypatch.setattr(shutil, "disk_usage", lambda folder: free)
        assert await ask.get_task(GetTaskRequest(id=task.id)) == task
        with pytest.raises(InternalError, match="63 MiB are free"):
            await sent(ask, "left", task=task.id)
        stopped = await ask.cancel_task(CancelTaskRequest(id=task.id))
        assert stopped.status.state == TaskState.TASK_STATE_CANCELED


async def test_an_answer_is_for_the_question_that_was_asked(
    it: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer that is sent twice is not taken for the answer to the next question."""
    find = KnownTasks.find
    async with agent(it, "twice") as twice:
        task = await sent(twice, {"steps": []})
        seen: list[Any] = []

        async def as_before(known: KnownTasks, context: Any, key: str) -> Any:
            seen[:] = seen or [await find(known, context, key)]
            return seen[0]

        monkeypatch.setattr(KnownTasks, "find", as_before)
        await sent(twice, "1", task=task.id)
        with pytest.raises(InvalidParamsError, match="answered already"):
            await sent(twice, "1", task=task.id)
        monkeypatch.undo()
        asked = await twice.get_task(GetTaskRequest(id=task.id))
        assert (asked.status.state, get_message_text(asked.status.message)) == (WAITS, "two")
        done = await sent(twice, "2", task=task.id)
        (values,) = get_data_parts(done.artifacts[0].parts)
        assert values["steps"] == ["1", "2"]


def stale_once(monkeypatch: pytest.MonkeyPatch, task: TaskRecord) -> None:
    """The next search for a task finds what it was before something else happened."""
    find, stale = KnownTasks.find, [task]

    async def found(known: KnownTasks, context: Any, key: str) -> TaskRecord:
        return stale.pop() if stale else await find(known, context, key)

    monkeypatch.setattr(KnownTasks, "find", found)


@asynccontextmanager
async def records(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[list[TaskRecord]]:
    """What the searches for tasks find, while the block runs."""
    find, found = KnownTasks.find, list[TaskRecord]()

    async def noted(known: KnownTasks, context: Any, key: str) -> TaskRecord:
        found.append(await find(known, context, key))
        return found[-1]

    with monkeypatch.context() as patch:
        patch.setattr(KnownTasks, "find", noted)
        yield found


async def test_a_task_is_cancelled_that_is_answered_meanwhile(
    it: Serving, client: LangGraphClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with agent(it, "ask") as ask:
        async with records(monkeypatch) as found:
            task = await sent(ask, {"steps": []})
        thread, _, first = task.id.partition(":")
        answer = await client.runs.create(
            thread, "ask", command={"resume": "left"}, after_seconds=3600
        )
        stale_once(monkeypatch, found[-1])
        stopped = await ask.cancel_task(CancelTaskRequest(id=task.id))
        assert stopped.status.state == TaskState.TASK_STATE_CANCELED
        assert (await client.runs.get(thread, answer["run_id"]))["status"] == "interrupted"
        assert (await client.runs.get(thread, first))["status"] == "success"


async def test_a_task_is_cancelled_that_asks_meanwhile(
    it: Serving, client: LangGraphClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with agent(it, "ask") as ask:
        async with records(monkeypatch) as found:
            task = await sent(ask, {"steps": []})
        running = replace(found[-1], row={**found[-1].row, "status": "running"}, questions=())
        stale_once(monkeypatch, running)
        stopped = await ask.cancel_task(CancelTaskRequest(id=task.id))
        assert stopped.status.state == TaskState.TASK_STATE_CANCELED
        thread: Any = await client.threads.get(task.context_id)
        assert (thread["status"], thread["interrupts"]) == ("idle", {})


async def test_all_runs_of_a_task_are_cancelled(it: Serving, client: LangGraphClient) -> None:
    """Its first run is running, and the run of a later message waits for it."""
    gate = str(uuid4())
    async with agent(it, "gate") as gated:
        given = {"gate": gate, "steps": []}
        task = await sent(gated, given, return_immediately=True)
        await GATES.reached(gate)
        await sent(gated, given, task=task.id, return_immediately=True)
        stopped = await gated.cancel_task(CancelTaskRequest(id=task.id))
        assert stopped.status.state == TaskState.TASK_STATE_CANCELED
        runs = await client.runs.list(task.context_id)
        assert [run["status"] for run in runs] == ["interrupted", "interrupted"]


async def test_an_answer_by_another_api_continues_the_task(
    it: Serving, client: LangGraphClient, http: httpx.AsyncClient
) -> None:
    """The answers come from the list of questions, and by LangGraph's API."""
    async with agent(it, "twice") as twice:
        task = await sent(twice, {"steps": []})
        questions = (await http.get("/v1/questions", params={"thread": task.context_id})).json()
        (question,) = questions["data"]
        answered = await http.post(f"/v1/questions/{question['id']}", json={"answer": "1"})
        await client.runs.join(task.context_id, answered.json()["run"])
        asked = await twice.get_task(GetTaskRequest(id=task.id))
        assert (asked.status.state, get_message_text(asked.status.message)) == (WAITS, "two")
        await client.runs.wait(task.context_id, "twice", command={"resume": "2"})
        done = await twice.get_task(GetTaskRequest(id=task.id))
        (values,) = get_data_parts(done.artifacts[0].parts)
        assert (done.status.state, values["steps"]) == (COMPLETED, ["1", "2"])
        listed = await twice.list_tasks(ListTasksRequest(context_id=task.context_id))
        assert [one.id for one in listed.tasks] == [task.id]


async def test_a_task_that_begins_to_ask_never_seems_to_have_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its run ends between two reads of the database."""
    builder = StateGraph(Gated).add_node("wait", wait).add_node("ask", ask)
    builder.add_edge(START, "wait").add_edge("wait", "ask")
    gate, get = str(uuid4()), Runs.get
    with serving({"late": builder}, tmp_path / "a.db") as it:

        async def ends_now(runs: Runs, tenant: str, thread: UUID, run: UUID) -> Any:
            monkeypatch.undo()
            GATES.open(gate)
            async with httpx.AsyncClient(base_url=it.url, timeout=TURN_S) as own:
                await own.get(f"/threads/{thread}/runs/{run}/join")
            return await get(runs, tenant, thread, run)

        async with agent(it, "late") as late:
            task = await sent(late, {"gate": gate, "steps": []}, return_immediately=True)
            monkeypatch.setattr(Runs, "get", ends_now)
            asked = await late.get_task(GetTaskRequest(id=task.id))
            assert asked.status.state == WAITS


async def test_an_answer_names_its_question_if_several_are_open(
    it: Serving, client: LangGraphClient
) -> None:
    """A text would fail the run, and with it the task; what is missing is told instead."""
    async with agent(it, "fan") as fan:
        task = await sent(fan, {"steps": ["a", "b"]})
        thread: Any = await client.threads.get(task.context_id)
        ids = [one["id"] for asked in thread["interrupts"].values() for one in asked]
        with pytest.raises(InvalidParamsError, match=ids[0]):
            await sent(fan, "x", task=task.id)
        half = await sent(fan, {"resume": {ids[0]: "x"}}, task=task.id)
        assert half.status.state == WAITS
        done = await sent(fan, "y", task=task.id)
        (values,) = get_data_parts(done.artifacts[0].parts)
        assert {"x", "y"} <= set(values["steps"])


async def test_tasks_of_a_long_thread_are_found_and_listed(
    it: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many runs came after them, and however an id is spelled."""
    async with agent(it, "ask") as ask, agent(it, "chat") as chat:
        asks = await sent(ask, {"steps": []})
        done = await sent(ask, "left", task=asks.id)
        waits = await sent(ask, {"steps": []}, context=asks.context_id)
        await sent(chat, "hi", context=(await sent(chat, "hi")).context_id)
        get = GetTaskRequest(id=asks.id.upper())
        assert await ask.get_task(get) == done

        async def listed(**wanted: Any) -> list[str]:
            request = ListTasksRequest(context_id=asks.context_id, **wanted)
            found = await ask.list_tasks(request)
            assert found.total_size == len(found.tasks)
            return [one.id for one in found.tasks]

        assert await listed() == [waits.id, asks.id]
        assert await listed(status=WAITS) == [waits.id]
        assert await listed(status=COMPLETED) == [asks.id]
        after = waits.status.timestamp
        assert await listed(status_timestamp_after=after) == [waits.id]
        request = ListTasksRequest(context_id=asks.context_id, page_size=1)
        first = await ask.list_tasks(request)
        assert (first.tasks[0].id, first.total_size) == (waits.id, 2)
        request = ListTasksRequest(
            context_id=asks.context_id, page_token=first.next_page_token, include_artifacts=True
        )
        (second,) = (await ask.list_tasks(request)).tasks
        assert second == done
        request.ClearField("include_artifacts")
        assert not (await ask.list_tasks(request)).tasks[0].artifacts
        request.page_token = "second"
        with pytest.raises(InvalidParamsError, match="pageToken 'second'"):
            await ask.list_tasks(request)
        monkeypatch.setattr(a2a_values, "_MOST_RUNS", 1)
        assert await listed() == [waits.id]
        assert await ask.get_task(get) == done


async def test_a_slow_reader_gets_the_whole_task(
    it: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def follow(log: EventLog, after: int) -> AsyncIterator[StreamEvent]:
        raise FellBehindError("they are gone")
        yield

    monkeypatch.setattr(EventLog, "follow", follow)
    async with agent(it, "chat", streaming=True) as chat:
        events = await told(chat, "hi")
    (whole,) = [one.artifact_update for one in events if one.HasField("artifact_update")]
    assert get_artifact_text(whole.artifact)
    assert events[-1].status_update.status.state == COMPLETED
