"""Questions of served programs over HTTP: listed, shown and answered by those who may."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from pydantic import BaseModel

from agentrt import Context, program
from agentrt.serving.programs.api import api as programs
from agentrt.serving.questions.api import api as questions
from agentrt.serving.server import KeyCheck, ServedProgram
from agentrt.serving.tenants import Limits
from tests.serving.local import LocalServer, open_server
from tests.serving.tenants.plain_keys import PlainKeys


class Order(BaseModel):
    drink: str
    cups: int = 1


@program
async def waiter(ctx: Context, timeout: float | None = None) -> str:
    order = await ctx.human("What may I bring?", schema=Order, timeout=timeout)
    return f"{order.cups} {order.drink}"


@program
async def greeter(ctx: Context) -> str:
    return str(await ctx.human("Who is there?"))


@program
async def caller(ctx: Context, then: str = "ask") -> str:
    said = await ctx.llm("say")
    return str(await ctx.human("Enough?")) if then == "ask" else said.text


@asynccontextmanager
async def serving(
    keys: KeyCheck | None = None, limits: Limits | None = None
) -> AsyncIterator[LocalServer]:
    served = {one.name: ServedProgram(one, "tests.py") for one in (waiter, greeter, caller)}
    apis = (programs, questions)
    async with open_server(served=served, keys=keys, limits=limits, apis=apis) as local:
        yield local


async def start(local: LocalServer, name: str, key: str = "", **body: Any) -> Any:
    answer = await local.client.post(
        f"/v1/programs/{name}/runs", json={"wait": False, **body}, headers=by(key)
    )
    assert answer.status_code == 202
    await local.until(lambda: local.runtime.runs[answer.json()["id"]].row.humans)
    return answer.json()


async def run_of(local: LocalServer, run: Any, key: str = "") -> Any:
    url = f"/v1/programs/{run['program']}/runs/{run['id']}"
    return (await local.client.get(url, headers=by(key))).json()


async def listed(local: LocalServer, key: str = "", **wanted: Any) -> Any:
    answer = await local.client.get("/v1/questions", params=wanted, headers=by(key))
    assert answer.status_code == 200, answer.text
    return answer.json()["data"]


async def answered(local: LocalServer, question: Any, value: Any, key: str = "") -> Any:
    url = f"/v1/questions/{question['id']}"
    return await local.client.post(url, json=value, headers=by(key))


def by(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"} if key else {}


async def test_a_waiting_run_says_so_and_continues_after_the_answer() -> None:
    async with serving() as local:
        run = await start(local, "waiter")
        [question] = await listed(local)
        assert question == {
            "id": question["id"],
            "object": "question",
            "state": "open",
            "question": "What may I bring?",
            "schema": Order.model_json_schema(),
            "type": "waiter",
            "run": run["id"],
            "program": run["id"],
            "thread": None,
            "value": None,
            "tenant": "default",
            "created_at": question["created_at"],
            "expires_at": None,
        }
        shown = await run_of(local, run)
        assert (shown["state"], shown["questions"]) == ("waiting for a human", [question])
        done = await answered(local, question, {"answer": {"drink": "tea", "cups": 2}})
        assert done.json() == {"id": question["id"], "object": "question", "state": "answered"}
        await local.until(lambda: run["id"] not in local.runtime.runs)
        shown = await run_of(local, run)
        assert (shown["state"], shown["questions"], shown["result"]) == ("done", [], "2 tea")
        closed = await local.client.get(f"/v1/questions/{question['id']}")
        assert closed.json() == {**question, "state": "answered"}
        assert await listed(local) == []


async def test_questions_are_found_by_program_and_the_latest_come_first() -> None:
    async with serving() as local:
        runs = [await start(local, "greeter") for _ in range(3)]
        ids = [run["id"] for run in runs]
        assert [one["run"] for one in await listed(local)] == ids[::-1]
        assert [one["run"] for one in await listed(local, limit=1)] == ids[2:]
        assert [one["run"] for one in await listed(local, run=ids[1])] == [ids[1]]
        former = await listed(local, program=ids[1])
        assert [one["program"] for one in former] == [ids[1]]
        assert await listed(local, thread="none") == []


async def test_of_two_answers_at_once_one_is_taken_and_one_gets_409() -> None:
    async with serving() as local:
        run = await start(local, "greeter")
        [question] = await listed(local)
        answers = await asyncio.gather(*(answered(local, question, name) for name in "ab"))
        assert sorted(one.status_code for one in answers) == [200, 409]
        [late] = [one for one in answers if one.status_code == 409]
        assert late.json()["error"]["code"] == "question_closed"
        assert late.json()["error"]["message"].endswith("was answered already")
        await local.until(lambda: run["id"] not in local.runtime.runs)
        taken = "ab"[[one.status_code for one in answers].index(200)]
        assert (await run_of(local, run))["result"] == taken


async def test_a_bad_answer_is_refused_and_the_question_stays_open() -> None:
    async with serving() as local:
        await start(local, "waiter")
        [question] = await listed(local)
        for body, status, why in (
            (json.dumps({"answer": {"cups": 1}}), 422, "'drink' is a required property"),
            (json.dumps("tea"), 422, "'tea' is not of type 'object'"),
            ("tea", 400, "the body is not JSON"),
            ("", 400, "the body is not JSON"),
            (json.dumps("x" * 10_000_000), 413, "send at most 1048576 bytes"),
        ):
            refused = await local.client.post(f"/v1/questions/{question['id']}", content=body)
            assert refused.status_code == status
            assert why in refused.json()["error"]["message"]
            assert await listed(local) == [question]


async def test_an_answer_after_the_timeout_and_one_to_a_cancelled_program_get_409() -> None:
    async with serving() as local:
        expired = await local.post("/v1/programs/waiter/runs", {"input": 1e-6})
        assert expired["error"]["type"] == "InterruptExpiredError"
        cancelled = await start(local, "greeter")
        [question] = await listed(local)
        await local.post(f"/v1/programs/greeter/runs/{cancelled['id']}/cancel", {})
        states = {one.id: one.state for one in local.runtime.questions.closed.values()}
        assert sorted(states.values()) == ["expired", "withdrawn"]
        for key, state in states.items():
            late = await answered(local, {"id": key}, "yes")
            assert late.status_code == 409
            why = "it has expired" if state == "expired" else f"it was {state} already"
            assert late.json()["error"]["message"].endswith(why)
        assert question["id"] in states


async def test_another_tenant_sees_and_answers_nothing() -> None:
    async with serving(PlainKeys()) as local:
        run = await start(local, "greeter", "ann")
        [question] = await listed(local, "ann")
        assert question["tenant"] == "ann"
        assert await listed(local, "bob") == []
        assert (await answered(local, question, "bob", "bob")).status_code == 404
        shown = await local.client.get(f"/v1/questions/{question['id']}", headers=by("bob"))
        assert shown.status_code == 404
        assert shown.json()["error"]["code"] == "not_found"
        assert await listed(local, "root") == [question]
        assert (await answered(local, question, "ann", "ann")).status_code == 200
        assert (await answered(local, question, "bob", "bob")).status_code == 404
        await local.until(lambda: run["id"] not in local.runtime.runs)
        assert (await run_of(local, run, "ann"))["result"] == "ann"


async def test_a_program_that_waits_for_a_human_frees_its_tenants_slot() -> None:
    """One call at a time: that of another program goes in while the first one waits."""
    async with serving(limits=Limits(concurrency=1)) as local:
        run = await start(local, "caller")
        [question] = await listed(local)
        said = await local.post("/v1/programs/caller/runs", {"input": "say no more"})
        assert said["result"] == "one two three"
        assert (await run_of(local, run))["calls"] == 1
        assert (await answered(local, question, "yes")).status_code == 200


async def test_the_event_stream_tells_of_questions_as_they_open_and_are_closed() -> None:
    async with serving() as local:
        seen: list[tuple[str, Any]] = []
        url = "/v1/programs/greeter/runs"
        async with local.client.stream("POST", url, json={"stream": True}) as stream:
            async for line in stream.aiter_lines():
                kind, _, data = line.partition(": ")
                if kind == "event":
                    name = data
                elif kind == "data":
                    seen.append((name, json.loads(data)))
                    if name == "question" and seen[-1][1]["state"] == "open":
                        await answered(local, seen[-1][1], "Ann")
        assert [name for name, _ in seen] == ["node", "question", "question", "node", "run"]
        assert [body["state"] for name, body in seen if name == "question"] == ["open", "answered"]
        assert seen[-1][1]["result"] == "Ann"


async def test_a_server_that_drains_still_takes_answers() -> None:
    async with serving() as local:
        run = await start(local, "greeter")
        [question] = await listed(local)
        local.server.draining = True
        refused = await local.client.post("/v1/programs/greeter/runs", json={})
        assert refused.status_code == 503
        assert (await answered(local, question, "Ann")).status_code == 200
        await local.until(lambda: run["id"] not in local.runtime.runs)
