"""Tasks of the Agent2Agent protocol that ask, are answered, listed and cancelled."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from a2a.helpers import get_artifact_text, get_data_parts, get_message_text
from a2a.types import CancelTaskRequest, GetTaskRequest, ListTasksRequest, TaskState
from a2a.utils.errors import (
    InternalError,
    InvalidParamsError,
    TaskNotCancelableError,
    UnsupportedOperationError,
)
from langgraph_sdk.client import LangGraphClient

from agentrt.serving.langgraph.a2a import messages as a2a_values
from agentrt.serving.langgraph.a2a.messages import KnownTasks
from agentrt.serving.langgraph.runs.streams import EventLog, FellBehindError, StreamEvent
from tests.serving.langgraph.a2a.test_a2a import COMPLETED, WAITS, agent, sent, told
from tests.serving.langgraph.serve import Serving


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
