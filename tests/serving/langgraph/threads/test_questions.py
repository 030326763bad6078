"""Interrupts of threads among the questions of the server, and answers that resume the threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal
from uuid import UUID

import httpx
import pytest
from langgraph.graph import START, StateGraph
from langgraph.runtime import Runtime as GraphRuntime
from langgraph.types import interrupt
from langgraph_sdk import get_client
from langgraph_sdk.client import LangGraphClient
from pydantic import BaseModel

from agentrt import Context, program
from agentrt.errors import QuestionClosedError
from agentrt.serving.langgraph import api_with
from agentrt.serving.langgraph.auth.hooks import load_auth
from agentrt.serving.langgraph.database.interrupts import is_open
from agentrt.serving.langgraph.tenant_state import _SWEEP_S
from agentrt.serving.langgraph.threads import questions as thread_questions
from agentrt.serving.langgraph.threads.questions import ThreadQuestions
from tests.serving.langgraph.graphs import (
    Settings,
    Steps,
    ask_graph,
    fan_graph,
    gate_graph,
    twice_graph,
)
from tests.serving.langgraph.runs.test_runs import IN, a_thread
from tests.serving.langgraph.serve import Serving, serving
from tests.serving.langgraph.test_auth import a_project
from tests.serving.tenants.plain_keys import PlainKeys

ID, OTHER = "0" * 32, "1" * 32


class Order(BaseModel):
    drink: Literal["tea", "coffee"]


@program
async def waiter(ctx: Context) -> str:
    order: Order = await ctx.human("What may I bring?", schema=Order)
    return order.drink


@program
async def patient(ctx: Context, options: dict[str, Any]) -> Any:
    return await ctx.human("Well?", **{"timeout": 1e-6, **options})


GOING_ON = threading.Event()


@program
async def busy_after_its_question(ctx: Context) -> None:
    await ctx.human("Well?", timeout=1e-6, default=None)
    while not GOING_ON.is_set():
        await asyncio.sleep(0.01)


async def tell_who(state: Steps, runtime: GraphRuntime[Settings]) -> Steps:
    """Its question has a schema, as LangGraph's own `interrupt` takes one."""
    answer = interrupt({"ask": "how many?"}, response_schema={"type": "integer"})
    return {"steps": [f"{runtime.context['who']}: {answer}"]}


def graphs() -> dict[str, Any]:
    who = StateGraph(Steps, context_schema=Settings).add_node("tell_who", tell_who)
    return {
        "ask": ask_graph(),
        "fan": fan_graph(),
        "twice": twice_graph(),
        "gate": gate_graph,
        "who": who.add_edge(START, "tell_who"),
        "waiter": waiter,
        "patient": patient,
        "busy": busy_after_its_question,
    }


@pytest.fixture(scope="module")
def it(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("questions")
    with serving(graphs(), folder / "agentrt.db", keys=PlainKeys()) as it:
        yield it


@asynccontextmanager
async def clients(
    it: Serving, key: str
) -> AsyncIterator[tuple[LangGraphClient, httpx.AsyncClient]]:
    """The stock client, and bare HTTP, with a tenant's key."""
    headers = {"authorization": f"Bearer {key}"} if key else {}
    async with (
        get_client(url=it.url, headers=headers) as client,
        httpx.AsyncClient(base_url=it.url, headers=headers, timeout=60) as http,
    ):
        yield client, http


async def listed(http: httpx.AsyncClient, **wanted: Any) -> list[Any]:
    answer = await http.get("/v1/questions", params=wanted)
    assert answer.status_code == 200, answer.text
    found: list[Any] = answer.json()["data"]
    return found


async def answered(http: httpx.AsyncClient, question: Any, value: Any) -> httpx.Response:
    return await http.post(f"/v1/questions/{question['id']}", json={"answer": value})


async def state_of(http: httpx.AsyncClient, question: Any) -> str:
    state: str = (await http.get(f"/v1/questions/{question['id']}")).json()["state"]
    return state


async def joined(client: LangGraphClient, answer: httpx.Response) -> Any:
    """Return the result of the run that an answer has started."""
    assert answer.status_code == 200, answer.text
    return await client.runs.join(answer.json()["thread"], answer.json()["run"])


async def test_an_answer_resumes_the_thread(it: Serving) -> None:
    async with clients(it, "ann") as (client, http):
        thread = await a_thread(client)
        await client.runs.wait(thread, "ask", input=IN)
        [question] = await listed(http)
        assert question == {
            "id": question["id"],
            "object": "question",
            "state": "open",
            "question": "which way?",
            "schema": {},
            "type": "ask",
            "run": None,
            "program": None,
            "thread": thread,
            "value": {"question": "which way?"},
            "tenant": "ann",
            "created_at": question["created_at"],
            "expires_at": None,
        }
        shown = await http.get(f"/v1/questions/{question['id']}")
        assert shown.json() == question
        done = await joined(client, await answered(http, question, "left"))
        assert done == {"steps": ["in", "first", "answered left", "last"]}
        assert (await client.threads.get(thread))["status"] == "idle"
        assert await listed(http, thread=thread) == []
        assert await state_of(http, question) == "answered"
        late = await answered(http, question, "right")
        assert (late.status_code, late.json()["error"]["code"]) == (409, "question_closed")
        assert late.json()["error"]["message"].endswith("it was answered already")


async def test_threads_without_an_open_question_do_not_count_for_the_limit(
    it: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thread_questions, "_PAGE", 1)
    async with clients(it, "zoe") as (client, http):
        asking = [await a_thread(client) for _ in range(4)]
        for thread in asking:
            await client.runs.wait(thread, "ask", input=IN)
        for thread in asking[2:]:
            answer: Any = {"resume": "later"}
            await client.runs.create(thread, "ask", command=answer, after_seconds=3600)
        for limit in (1, 2, 100):
            shown = [question["thread"] for question in await listed(http, limit=limit)]
            assert shown == asking[1::-1][:limit]


async def test_of_two_answers_at_once_one_starts_a_run(it: Serving) -> None:
    async with clients(it, "ann") as (client, http):
        thread = await a_thread(client)
        await client.runs.wait(thread, "ask", input=IN)
        [question] = await listed(http, thread=thread)
        answers = await asyncio.gather(*(answered(http, question, side) for side in "ab"))
        assert sorted(one.status_code for one in answers) == [200, 409]
        taken = [one.status_code for one in answers].index(200)
        done = await joined(client, answers[taken])
        assert done["steps"][2] == f"answered {'ab'[taken]}"
        assert len(await client.runs.list(thread)) == 2


async def test_questions_of_one_thread_are_answered_in_any_order(it: Serving) -> None:
    """Also at once: the second answer's run waits for that of the first."""
    async with clients(it, "ann") as (client, http):
        thread = await a_thread(client)
        await client.runs.wait(thread, "fan", input=IN)
        both = {one["question"]: one for one in await listed(http, thread=thread)}
        assert both.keys() == {"a", "b"}
        answers = await asyncio.gather(
            answered(http, both["b"], "2"), answered(http, both["a"], "1")
        )
        await asyncio.gather(*(joined(client, one) for one in answers))
        values = (await client.threads.get(thread))["values"]
        assert isinstance(values, dict)
        assert values["steps"] == ["in", "1", "2"]


async def test_a_late_answer_is_not_given_to_the_nodes_next_question(it: Serving) -> None:
    async with clients(it, "ann") as (client, http):
        thread = await a_thread(client)
        await client.runs.wait(thread, "twice", input=IN)
        [first] = await listed(http, thread=thread)
        await joined(client, await answered(http, first, "1"))
        [second] = await listed(http, thread=thread)
        assert (first["question"], second["question"]) == ("one", "two")
        assert (await answered(http, first, "again")).status_code == 409
        done = await joined(client, await answered(http, second, "2"))
        assert done == {"steps": ["in", "1", "2"]}


async def test_an_answer_over_the_langgraph_api_closes_the_question(it: Serving) -> None:
    async with clients(it, "ann") as (client, http):
        thread = await a_thread(client)
        await client.runs.wait(thread, "ask", input=IN)
        [question] = await listed(http, thread=thread)
        changes = it.server.questions.changes if it.server else 0
        await client.runs.wait(thread, "ask", command={"resume": "left"})
        assert it.server is not None
        assert it.server.questions.changes > changes
        assert (await answered(http, question, "right")).status_code == 409


async def test_a_copy_of_a_thread_has_a_question_of_its_own(it: Serving) -> None:
    async with clients(it, "ann") as (client, http):
        thread = await a_thread(client)
        await client.runs.wait(thread, "ask", input=IN)
        copy = (await http.post(f"/threads/{thread}/copy")).json()["thread_id"]
        [first] = await listed(http, thread=thread)
        [second] = await listed(http, thread=copy)
        assert first["id"] != second["id"]
        done = await joined(client, await answered(http, first, "left"))
        assert done["steps"][2] == "answered left"
        assert [one["id"] for one in await listed(http, thread=copy)] == [second["id"]]


async def test_the_answer_of_a_program_is_checked_by_its_schema(it: Serving) -> None:
    async with clients(it, "ann") as (client, http):
        thread = await a_thread(client)
        await client.runs.wait(thread, "waiter")
        [question] = await listed(http, thread=thread)
        assert question["question"] == "What may I bring?"
        assert question["schema"] == Order.model_json_schema()
        refused = await answered(http, question, {"drink": "beer"})
        assert refused.status_code == 422
        assert "'beer' is not one of" in refused.json()["error"]["message"]
        assert await listed(http, thread=thread) == [question]
        assert await joined(client, await answered(http, question, {"drink": "tea"})) == "tea"


async def test_the_run_that_answers_has_the_context_of_the_one_that_asked(it: Serving) -> None:
    async with clients(it, "ann") as (client, http):
        thread = await a_thread(client)
        await client.runs.wait(thread, "who", input=IN, context={"who": "Ann"})
        [question] = await listed(http, thread=thread)
        assert (question["question"], question["schema"]) == (
            '{"ask": "how many?"}',
            {"type": "integer"},
        )
        assert (await answered(http, question, "many")).status_code == 422
        done = await joined(client, await answered(http, question, 3))
        assert done == {"steps": ["in", "Ann: 3"]}


async def test_at_its_deadline_a_program_goes_on_without_an_answer(it: Serving) -> None:
    """The server looks at once, and not with its next sweep."""
    async with clients(it, "ann") as (client, _), asyncio.timeout(_SWEEP_S / 2):
        thread = await a_thread(client)
        default: Any = "nothing"
        await client.runs.wait(thread, "patient", input={"timeout": 0.2, "default": default})
        while len(found := await client.runs.list(thread)) < 2:
            await asyncio.sleep(0.01)
        assert await client.runs.join(thread, found[0]["run_id"]) == default


async def test_a_program_goes_on_only_once_after_its_deadline(
    it: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server looks again while the program runs. Otherwise each look would ask the hooks, and
    count as a request of the tenant.
    """
    assert it.server is not None
    assert it.loop is not None
    [source] = [one for one in it.server.questions.sources if isinstance(one, ThreadQuestions)]
    resume, resumed = source._resume, list[str]()

    async def counted(question: Any, *answer: Any) -> str:
        resumed.append(question.thread)
        return await resume(question, *answer)

    monkeypatch.setattr(source, "_resume", counted)
    async with clients(it, "ann") as (client, _), asyncio.timeout(_SWEEP_S / 2):
        thread = await a_thread(client)
        await client.runs.wait(thread, "busy")
        while len(found := await client.runs.list(thread)) < 2:
            await asyncio.sleep(0.01)
        for _ in range(3):
            looking = asyncio.run_coroutine_threadsafe(source.expire(), it.loop)
            await asyncio.wrap_future(looking)
        assert resumed.count(thread) == 1
        GOING_ON.set()
        await client.runs.join(thread, found[0]["run_id"])


async def test_past_its_time_a_programs_question_gets_no_answer_any_more(
    it: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. Two questions are over their time; one has a default. 2. The server looks: both
    programs continue without an answer.
    """

    async def busy(*question: Any) -> str:
        raise QuestionClosedError("not now")

    async with clients(it, "ann") as (client, http):
        threads = [await a_thread(client) for _ in range(2)]
        default: Any = "nothing"
        assert it.server is not None
        assert it.loop is not None
        [source] = [one for one in it.server.questions.sources if isinstance(one, ThreadQuestions)]
        monkeypatch.setattr(source, "_resume", busy)
        questions = []
        await client.runs.wait(threads[0], "patient", input={"default": default})
        await client.runs.wait(threads[1], "patient", input={})
        for thread in threads:
            assert await listed(http, thread=thread) == []
            [[interrupt]] = (await client.threads.get(thread))["interrupts"].values()
            question = {"id": f"{UUID(thread).hex}-{interrupt['id']}"}
            questions.append(question)
            late = await answered(http, question, "late")
            assert late.status_code == 409
            assert "it has expired" in late.json()["error"]["message"]
        monkeypatch.undo()
        looking = asyncio.run_coroutine_threadsafe(source.expire(), it.loop)
        await asyncio.wrap_future(looking)
        with_default, without = [(await client.runs.list(one))[0] for one in threads]
        assert await client.runs.join(threads[0], with_default["run_id"]) == default
        failed: Any = await client.runs.join(threads[1], without["run_id"])
        assert failed["__error__"]["error"] == "InterruptExpiredError"
        assert [await state_of(http, one) for one in questions] == ["expired", "expired"]


@pytest.mark.parametrize("value", ["a\0b", 2**70])
async def test_an_answer_that_cannot_be_stored_is_refused(it: Serving, value: Any) -> None:
    async with clients(it, "ann") as (client, http):
        thread = await a_thread(client)
        await client.runs.wait(thread, "ask", input=IN)
        [question] = await listed(http, thread=thread)
        refused = await answered(http, question, value)
        assert refused.status_code == 422
        assert "the answer cannot be stored" in refused.json()["error"]["message"]


async def test_another_tenant_sees_nothing_and_the_operator_all(it: Serving) -> None:
    async with (
        clients(it, "bob") as (client, http),
        clients(it, "eve") as (_, foreign),
        clients(it, "root") as (_, operator),
    ):
        thread = await a_thread(client)
        await client.runs.wait(thread, "ask", input=IN)
        [question] = await listed(http)
        assert await listed(foreign, thread=thread) == []
        assert (await answered(foreign, question, "left")).status_code == 404
        assert (await foreign.get(f"/v1/questions/{question['id']}")).status_code == 404
        assert await listed(operator, thread=thread) == [question]
        answer = await answered(operator, question, "left")
        assert (await joined(client, answer))["steps"][2] == "answered left"


@pytest.mark.parametrize("name", [f"{ID}-{ID}", ID, "x"])
async def test_a_question_that_never_was_is_not_found(it: Serving, name: str) -> None:
    async with clients(it, "ann") as (_, http):
        assert (await answered(http, {"id": name}, "left")).status_code == 404


async def test_hooks_say_who_may_see_and_answer(tmp_path: Path) -> None:
    auth = load_auth(a_project(tmp_path))
    with serving({"ask": ask_graph()}, tmp_path / "agentrt.db", api_with(auth)) as it:
        async with (
            clients(it, "a") as (client, ann),
            clients(it, "e") as (_, eve),
            clients(it, "x") as (_, nobody),
        ):
            thread = (await client.threads.create(metadata={}))["thread_id"]
            await client.runs.wait(thread, "ask", input=IN)
            [question] = await listed(ann)
            assert await listed(eve) == await listed(nobody) == []
            assert (await answered(eve, question, "left")).status_code == 404
            refused = await answered(nobody, question, "left")
            assert refused.status_code == 401
            assert refused.json()["error"]["message"] == "who are you?"
            answer = await answered(ann, question, "left")
            assert (await joined(client, answer))["steps"][2] == "answered left"
            [run, _] = await client.runs.list(thread)
            assert (run["metadata"] or {})["by"] == "ann"


@pytest.mark.parametrize(
    ("active", "expected"),
    [
        ([], True),
        ([{"command": {"resume": {OTHER: "x"}}}], True),
        ([{"command": {"resume": {ID: "x"}}}], False),
        ([{"command": {"resume": {OTHER: "x"}}}, {"command": {"resume": {ID: "x"}}}], False),
        ([{"command": {"resume": "x"}}], False),
        ([{"command": {"goto": "last"}}], False),
        ([{"input": {}}], False),
    ],
)
def test_a_run_that_is_under_way_may_close_a_question(active: Any, expected: bool) -> None:
    assert is_open(ID, {"task": [{"id": ID}, {"id": OTHER}]}, active) is expected


def test_what_no_task_asks_is_not_open() -> None:
    assert not is_open(ID, {"task": [{"id": OTHER}]}, [])
    assert not is_open(ID, None, [])
