"""Which program a call belongs to: by its headers, by a session, or by the conversation itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from langgraph.graph import StateGraph
from pydantic import BaseModel
from typing_extensions import TypedDict

from agentrt import Context, Runtime, program
from agentrt.engines import OpenAIEndpoint
from agentrt.graph import NodeKind
from agentrt.request import Call, Reply
from agentrt.scheduler.table import ProgramState, state_of
from agentrt.serving.programs.client_programs import ClientPrograms
from agentrt.serving.programs.identity import SESSION_HEADERS, Claim
from agentrt.serving.server import Bounds, ServedGraph, ServedProgram
from agentrt.serving.tenants import Limits
from tests.doubles.scripted import ScriptedExecutor
from tests.serving.local import Held, LocalServer, called, open_server

LOOK: Any = {
    "type": "function",
    "function": {
        "name": "look",
        "parameters": {
            "type": "object",
            "properties": {"at": {"type": "integer"}},
            "required": ["at"],
        },
    },
}


def looks(call: Call) -> str:
    """The model calls the tool, until it has its result."""
    return called(("look", {"at": 3}))


def headers(program: str, **more: str) -> dict[str, str]:
    return {"x-agentrt-run": program, **{f"x-agentrt-{k}": v for k, v in more.items()}}


def parents(local: LocalServer, program_id: str) -> list[tuple[int, ...]]:
    return [node.parents for node in local.runtime.runs[program_id].dag.nodes()]


# -- by headers ------------------------------------------------------------------------------


async def test_headers_give_type_session_node_and_true_parents() -> None:
    """Two branches and what joins them, sent one after the other: the edges are the headers'."""
    async with open_server() as local:
        for call, before in (("0", ""), ("1", "0"), ("2", "0"), ("7", "1,2")):
            said = headers("p@1", type="plan", session="s", call=call, parents=before, node="think")
            await local.chat(f"call {call}", headers=said)
        [row] = local.runtime.table
        assert (row.type, row.session, row.finished_calls) == ("plan", "s", 4)
        assert parents(local, row.program_id) == [(), (0,), (0,), (1, 2)]
        assert {call.identity.node for call in local.engine.calls} == {"think"}


async def test_without_edges_a_program_is_one_thread_and_parallel_calls_are_beside() -> None:
    async with open_server(kind=Held) as local:
        local.engine.go.set()
        await local.chat("one", headers=headers("p"))
        local.engine.go.clear()
        beside = [asyncio.create_task(local.chat(text, headers=headers("p"))) for text in "ab"]
        await local.until(lambda: len(local.engine.open) == 2)
        local.engine.go.set()
        await asyncio.gather(*beside)
        await local.chat("four", headers=headers("p"))
        assert parents(local, local.programs()[0]) == [(), (0,), (0,), (1, 2)]


async def test_unknown_parents_are_ignored() -> None:
    async with open_server() as local:
        await local.chat("one", headers=headers("p", call="0", parents=""))
        await local.chat("two", headers=headers("p", call="9", parents="5"))
        assert parents(local, local.programs()[0]) == [(), (0,)]


async def test_names_of_parents_are_percent_decoded() -> None:
    async with open_server() as local:
        names = ("step%20one", "b%2Cc", "%C3%A9t%C3%A9")
        for name in names:
            await local.chat(name, headers=headers("p", call=name, parents=""))
        await local.chat("last", headers=headers("p", call="d", parents=", ".join(names[:2])))
        assert parents(local, local.programs()[0]) == [(), (), (), (0, 1)]


async def test_session_headers_of_agent_clients_name_programs() -> None:
    async with open_server() as local:
        for header in SESSION_HEADERS:
            for name in ("abc", "abc", "other"):
                await local.chat("hello", headers={header.title(): f"{header} {name}"})
        found = [row.finished_calls for row in local.runtime.table]
        assert found == [2, 1] * len(SESSION_HEADERS)


async def test_the_header_of_a_run_has_its_former_name() -> None:
    async with open_server() as local:
        for name in ("x-agentrt-run", "x-agentrt-program"):
            await local.chat("hello", headers={name: "mine"})
        assert [row.finished_calls for row in local.runtime.table] == [2]
        body = {"model": "scripted", "messages": [{"role": "user", "content": "x"}]}
        sent = await local.client.post("/v1/chat/completions", json=body)
        assert sent.headers["x-agentrt-run"] == sent.headers["x-agentrt-program"]


async def test_the_error_names_an_invalid_header() -> None:
    body = {"model": "scripted", "messages": [{"role": "user", "content": "x"}]}
    async with open_server() as local:
        for name, value in (
            ("x-agentrt-program", "x" * 300),
            ("x-agentrt-type", "x" * 200),
            ("x-agentrt-deadline", "soon"),
            ("x-agentrt-deadline", "-1"),
            ("x-agentrt-parents", ",".join(map(str, range(2000)))),
            ("x-session-id", "%00"),
        ):
            said = {name: value}
            answer = await local.client.post("/v1/chat/completions", json=body, headers=said)
            assert answer.status_code == 400
            assert name in answer.json()["error"]["message"]
        assert not local.runtime.runs


async def test_our_own_client_and_the_server_agree() -> None:
    """A program that runs elsewhere, with a tool between its calls, has the same edges here."""

    @program(name="far")
    async def far(ctx: Context) -> None:
        first = await ctx.llm("one")
        sides = [ctx.spawn(side, n) for n in range(2)]
        for task in sides:
            await task
        await ctx.llm(f"sum {first}")

    def look(n: int) -> int:
        return n

    async def side(ctx: Context, n: int) -> Reply:
        await ctx.tool(look, n)
        return await ctx.llm(f"side {n}")

    async with open_server() as local, Runtime(OpenAIEndpoint(f"{local.url}/v1")) as away:
        await away.start(far).wait()
        [row] = local.runtime.table
        assert row.type == "far"
        assert parents(local, row.program_id) == [(), (0,), (0,), (1, 2)]


# -- by the conversation ---------------------------------------------------------------------


def said(role: str, text: str) -> dict[str, str]:
    return {"role": role, "content": text}


async def test_a_continued_chat_is_the_same_program() -> None:
    async with open_server() as local:
        chat: list[Any] = [said("system", "You are kind."), said("user", "hello")]
        for turn in range(3):
            answer = await local.chat(*chat)
            chat += [answer["choices"][0]["message"], said("user", f"and {turn}?")]
        await local.chat(said("system", "You are kind."), said("user", "something else"))
        assert [row.finished_calls for row in local.runtime.table] == [3, 1]
        assert parents(local, local.programs()[0]) == [(), (0,), (1,)]


async def test_a_fork_of_a_chat_makes_siblings() -> None:
    async with open_server() as local:
        answer = await local.chat("hello")
        before = [said("user", "hello"), answer["choices"][0]["message"]]
        for text in ("left", "right"):
            await local.chat(*before, said("user", text))
        assert parents(local, local.programs()[0]) == [(), (0,), (0,)]


async def test_the_reply_distinguishes_programs_that_began_alike() -> None:
    replies = iter(["red", "blue", "red again", "blue again"])
    async with open_server(lambda call: next(replies)) as local:
        for _ in range(2):
            await local.chat("a colour")
        for colour in ("red", "blue"):
            await local.chat("a colour", said("assistant", colour), said("user", "more"))
        assert [row.finished_calls for row in local.runtime.table] == [2, 2]


async def test_a_tool_call_is_found_again_however_it_is_spaced() -> None:
    async with open_server(looks) as local:
        tools = [LOOK]
        answer = await local.chat("look", tools=tools, tool_choice="required")
        message = answer["choices"][0]["message"]
        assert answer["choices"][0]["finish_reason"] == "tool_calls"
        call = message["tool_calls"][0]
        call["function"]["arguments"] = call["function"]["arguments"].replace(":", " :  ")
        [row] = local.runtime.table
        assert state_of(row, local.runtime.now(), 60.0) is ProgramState.IN_TOOL
        result = {"role": "tool", "content": "a bird", "tool_call_id": call["id"]}
        more = ["look", {**message, "content": ""}, result]
        await local.chat(*more, tools=tools, tool_choice="none")
        assert parents(local, row.program_id) == [(), (0,), (1,)]
        nodes = local.runtime.runs[row.program_id].dag.nodes()
        assert [(node.kind, node.name) for node in nodes][1] == (NodeKind.TOOL, "look")
        assert row.tools == 0
        await local.chat(*more, said("user", "and?"))
        assert parents(local, row.program_id)[-1] == (2,)


async def test_a_named_program_is_in_its_tool_until_it_calls_again() -> None:
    async with open_server(looks) as local:
        ask: Any = {"tools": [LOOK], "tool_choice": "required", "headers": {"session-id": "s"}}
        await local.chat("look", **ask)
        [row] = local.runtime.table
        assert row.tools == 1
        await local.chat("something else altogether", **ask)
        assert row.tools == 1
        assert parents(local, row.program_id) == [(), (0,), (1,), (2,)]
        await local.client.post("/v1/client-runs")
        said = {"x-agentrt-run": "mine", "x-agentrt-call": "1"}
        await local.chat("look", **{**ask, "headers": said})
        assert [row.tools for row in local.runtime.table if row.session == "mine"] == [0]


async def test_tenants_do_not_find_each_others_conversations() -> None:
    async with open_server() as local:
        answer = await local.chat("hello", headers={"x-agentrt-tenant": "a"})
        more = [said("user", "hello"), answer["choices"][0]["message"], said("user", "more")]
        await local.chat(*more, headers={"x-agentrt-tenant": "b"})
        assert [(r.tenant, r.finished_calls) for r in local.runtime.table] == [("a", 1), ("b", 1)]


@pytest.mark.parametrize("name", ["ann@example.com", "Ann Smith", "a%2Fb", "-a", "x" * 65])
async def test_a_name_that_no_tenant_can_have_is_refused(name: str) -> None:
    """It would be the default tenant, whose programs and threads everybody without a name has."""
    async with open_server() as local:
        for path in ("/v1/chat/completions", "/v1/messages", "/v1/client-runs", "/mcp"):
            refused = await local.client.post(path, json={}, headers={"x-agentrt-tenant": name})
            assert (refused.status_code, "x-agentrt-tenant" in refused.text) == (400, True), path
        health = await local.client.get("/health", headers={"x-agentrt-tenant": name})
        assert health.status_code == 404  # not refused: this server has no such page
        for nobody in ({}, {"x-agentrt-tenant": ""}):
            assert (await local.client.post("/v1/client-runs", headers=nobody)).is_success
        assert {row.tenant for row in local.runtime.table} == {"default"}


# -- ends ------------------------------------------------------------------------------------


async def test_silent_programs_expire_and_named_ones_later() -> None:
    bounds = Bounds(silent_idle_s=0.05, idle_s=1000)
    async with open_server(bounds=bounds) as local:
        await local.chat("hello")
        await local.chat("hello", headers=headers("p"))
        await local.until(lambda: len(local.runtime.table) == 1)
        await local.until(lambda: local.engine.ended == ["chat-1"])
        assert local.programs() == ["chat-2"]


async def test_too_many_programs_drop_those_of_one_request_the_oldest_first() -> None:
    """With a name, or without: a name is invented for nothing."""
    async with open_server(limits=Limits(programs=2)) as local:
        for text in ("one", "two", "three"):
            await local.chat(text)
        assert local.programs() == ["chat-2", "chat-3"]
        await local.chat("four", headers=headers("a"))
        await local.chat("five", headers=headers("b"))
        await local.chat("six", headers=headers("c"))
        assert local.programs() == ["chat-5", "chat-6"]


async def test_a_client_begins_and_ends_a_run() -> None:
    async with open_server() as local:
        begun = (await local.client.post("/v1/client-runs", json={"type": "agent"})).json()
        for _ in range(2):
            await local.chat("hello", headers=headers(begun["id"]))
        at = f"/v1/client-runs/{begun['id']}"
        run = (await local.client.get(at)).json()
        assert (run["object"], run["type"]) == ("client_run", "agent")
        assert (run["calls"], run["state"]) == (2, "running")
        strange = {"x-agentrt-tenant": "other"}
        assert (await local.client.get(at, headers=strange)).status_code == 404
        assert (await local.client.delete(at, headers=strange)).status_code == 404
        ended = (await local.client.delete(at)).json()
        assert (ended["deleted"], ended["state"], ended["calls"]) == (True, "done", 2)
        assert len(local.runtime.table) == 0
        assert (await local.client.delete(at)).status_code == 404


async def test_the_former_path_of_client_runs_works_with_a_notice(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with open_server() as local:
        begun = await local.client.post("/v1/sessions", json={"type": "agent"})
        at = f"/v1/sessions/{begun.json()['id']}"
        answers = [begun, await local.client.get("/v1/sessions"), await local.client.get(at)]
        answers.append(await local.client.delete(at))
        unknown = await local.client.get(at)
        now = await local.client.get("/v1/client-runs")
    assert [answer.status_code for answer in answers] == [201, 200, 200, 200]
    assert [answer.json()["object"] for answer in answers] == ["session", "list"] + ["session"] * 2
    for answer in answers:
        assert answer.headers["deprecation"].startswith("@")
        assert answer.headers["link"] == '</v1/client-runs>; rel="successor-version"'
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "session_not_found")
    assert "deprecation" not in now.headers
    text = "/v1/sessions is now /v1/client-runs; the old path works until version 0.4"
    assert [record.getMessage() for record in caplog.records].count(text) == 1


async def test_calls_that_outlive_their_program_leave_nothing() -> None:
    """The program ends, and its tenant is forgotten, before the program's call has ended."""
    async with Runtime(ScriptedExecutor()) as runtime:
        programs = ClientPrograms(
            runtime, lambda tenant: Limits(), idle_s=900.0, silent_idle_s=120.0
        )
        program = programs.begin("a", Claim())
        entry = programs.enter("a", Claim(program=program.name), ())
        programs.end(program)
        programs.sweep()
        programs.leave(entry)
        assert (len(programs), len(runtime.table), entry.program.open) == (0, 0, 0)


# -- programs that are served ----------------------------------------------------------------


@program(name="sum")
async def total(ctx: Context, numbers: list[int]) -> dict[str, Any]:
    reply = await ctx.llm(f"add {numbers}")
    if not numbers:
        raise ValueError("nothing to add")
    return {"sum": sum(numbers), "said": reply}


@program(name="forever")
async def forever(ctx: Context) -> None:
    await ctx.llm("wait")
    await asyncio.Event().wait()


SERVED = {one.name: ServedProgram(one, "here.py") for one in (total, forever)}


@program
async def stubborn(ctx: Context) -> str:
    for _ in range(3):
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
    return "done at last"


RUNS = "/v1/programs/sum/runs"


async def test_a_served_program_runs_and_gives_its_result() -> None:
    async with open_server(served=SERVED) as local:
        listed = (await local.client.get("/v1/programs")).json()["data"]
        assert {one["id"]: one["needs_input"] for one in listed} == {"sum": True, "forever": False}
        run = (await local.client.post(RUNS, json={"input": [1, 2]})).json()
        assert (run["state"], run["calls"], run["result"]["sum"]) == ("done", 1, 3)
        assert run["result"]["said"]["text"]
        again = (await local.client.get(f"{RUNS}/{run['id']}")).json()
        assert again == run
        strange = {"x-agentrt-tenant": "other"}
        at = f"{RUNS}/{run['id']}"
        assert (await local.client.get(at, headers=strange)).status_code == 404


async def test_a_program_says_what_it_is() -> None:
    """The description has the input's schema and the routes; a graph is told from a program."""

    class State(TypedDict):
        text: str

    class Trip(BaseModel):
        city: str
        days: int = 3

    async def travel(ctx: Context, trip: Trip) -> int:
        """Plan a trip."""
        return trip.days

    async def odd(ctx: Context, thing: Callable[[], int]) -> None: ...

    travels, odds = program(name="trip plan")(travel), program(odd)
    travel.__annotations__["trip"] = Trip
    served: dict[str, Any] = {**SERVED}
    served |= {one.name: ServedProgram(one, "here.py") for one in (travels, odds)}
    graph = StateGraph(State).add_node("n", lambda state: state).set_entry_point("n").compile()
    async with open_server(served=served | {"agent": ServedGraph(graph, "g.py")}) as local:

        async def described(name: str) -> dict[str, Any]:
            answer = await local.client.get(f"/v1/programs/{name}")
            assert answer.status_code == 200, answer.text
            said: dict[str, Any] = answer.json()
            return said

        whole = await described("trip%20plan")
        assert whole["description"] == "Plan a trip."
        assert whole["input_schema"]["required"] == ["city"]
        assert whole["links"]["runs"] == "/v1/programs/trip%20plan/runs"
        assert (await described("sum"))["input_schema"]["items"] == {"type": "integer"}
        assert (await described("forever"))["input_schema"] is None
        assert (await described("odd"))["input_schema"] == {}
        listed = (await local.client.get("/v1/programs")).json()["data"]
        assert listed == [await described(quote(name, safe="")) for name in served]
        for name, words in (("none", "served programs: sum, forever"), ("agent", "is a graph")):
            missing = await local.client.get(f"/v1/programs/{name}")
            assert missing.status_code == 404
            assert words in missing.json()["error"]["message"]


async def test_a_program_that_fails_says_so(caplog: pytest.LogCaptureFixture) -> None:
    async with open_server(served=SERVED) as local:
        run = (await local.client.post(RUNS, json={"input": []})).json()
        assert run["state"] == "failed"
        assert run["error"] == {"type": "ValueError", "message": "nothing to add"}
        assert f"run {run['id']} failed: ValueError at {__file__}:" in caplog.text
        assert "nothing to add" not in caplog.text  # it may be a tenant's data
        missing = await local.client.post(RUNS, json={})
        assert (missing.status_code, missing.json()["error"]["param"]) == (400, "input")


async def test_an_input_of_the_wrong_type_is_refused_and_starts_no_run() -> None:
    async def double(ctx: Context, n: int) -> int:
        return 2 * n

    served = {"double": ServedProgram(program(double), "double.py")}
    async with open_server(served=served) as local:
        wrong = await local.client.post("/v1/programs/double/runs", json={"input": "three"})
        error = wrong.json()["error"]
        assert (wrong.status_code, error["param"]) == (400, "input")
        assert "'n' must be int" in error["message"]
        assert not local.runtime.runs
        run = (await local.client.post("/v1/programs/double/runs", json={"input": "3"})).json()
        assert run["result"] == 6


async def test_runs_are_refused_to_a_tenant_at_its_limits() -> None:
    own = {
        "few": Limits(programs=1),
        "slow": Limits(requests_per_minute=1),
        "spent": Limits(tokens_per_minute=1),
    }
    async with open_server(served=SERVED, limits_of=own) as local:

        async def started(tenant: str) -> httpx.Response:
            said, held = {"x-agentrt-tenant": tenant}, tenant == "few"
            at = "/v1/programs/forever/runs" if held else RUNS
            body: dict[str, Any] = {"wait": False} if held else {"input": [1]}
            return await local.client.post(at, json=body, headers=said)

        why = {"few": "1 live programs", "slow": "requests per", "spent": "tokens per"}
        for tenant, fault in why.items():
            assert (await started(tenant)).status_code < 300
            refused = await started(tenant)
            assert (refused.status_code, int(refused.headers["retry-after"]) >= 1) == (429, True)
            assert fault in refused.json()["error"]["message"]


async def test_a_run_is_cancelled_by_hand_and_by_its_deadline() -> None:
    async with open_server(served=SERVED) as local:
        at = "/v1/programs/forever/runs"
        run = (await local.client.post(at, json={"wait": False})).json()
        assert run["state"] == "running"
        ended = (await local.client.post(f"{at}/{run['id']}/cancel")).json()
        assert ended["state"] == "cancelled"
        late = (await local.client.post(at, json={"deadline": 0.05})).json()
        assert (late["state"], late["error"]["type"]) == ("cancelled", "DeadlineExceeded")
        assert len(local.runtime.table) == 0


@pytest.mark.parametrize("how", ["cancels", "stops waiting", "leaves the stream"])
async def test_a_run_that_ignores_a_cancellation_is_cancelled_again(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentrt.runtime.run._AGAIN_S", 0.01)
    path = "/v1/programs/stubborn/runs"
    served = {"stubborn": ServedProgram(stubborn, "here.py")}
    async with open_server(served=served) as local:
        if how == "cancels":
            run_id = (await local.client.post(path, json={"wait": False})).json()["id"]
            ended = (await local.client.post(f"{path}/{run_id}/cancel")).json()
            assert (ended["state"], ended["result"]) == ("done", "done at last")
            return
        body = {"stream": how == "leaves the stream"}
        following = asyncio.create_task(local.client.post(path, json=body))
        await local.until(lambda: local.runtime.runs)
        following.cancel()
        await local.until(lambda: not local.runtime.runs)
