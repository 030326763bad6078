"""Programs and graphs as tools at /mcp, called by the official client in both generations."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import httpx
import httpx2
import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.func import entrypoint
from langgraph.graph import END, START, StateGraph
from langgraph.store.base import BaseStore
from langgraph.types import interrupt
from langgraph_sdk.runtime import ServerRuntime
from mcp import MCPError
from mcp.client import Client, ClientRequestContext
from mcp.client.streamable_http import streamable_http_client
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.types import CallToolResult, ElicitRequestFormParams, ElicitResult, TextContent
from pydantic import BaseModel
from typing_extensions import TypedDict

from agentrt import Context, Progress, Runtime, ToolContext, program, tool
from agentrt.interrupts.schema import mistake_in
from agentrt.runtime.run import RunState
from agentrt.serving import mcp as served_mcp
from agentrt.serving.listen import Listener
from agentrt.serving.mcp import Endpoint
from agentrt.serving.mcp import calls as served_mcp_calls
from agentrt.serving.programs.runs import ProgramRuns
from agentrt.serving.questions.api import api as questions
from agentrt.serving.server import Bounds, KeyCheck, ServedGraph, ServedProgram, Server
from agentrt.serving.tenants import Limits, Tenants
from tests.doubles.scripted import ScriptedExecutor
from tests.serving.tenants.plain_keys import PlainKeys
from tests.serving.watchdog import opened_app

MODES = ("legacy", "auto")
WAIT_S = 60.0


@program
async def shout(ctx: Context, words: str) -> str:
    """Say it loudly.

    Twice.
    """
    await ctx.llm(words)
    await ctx.tool(len, words)
    return words.upper()


@program
async def count(ctx: Context) -> dict[str, int]:
    return {"one": 1}


@program
async def fail(ctx: Context) -> None:
    raise ValueError("no luck")


@program
async def choose(ctx: Context) -> str:
    colour = await ctx.human("Which colour?", choices=["red", "blue"])
    size = await ctx.human("How large?", schema={"type": "integer", "minimum": 1})
    return f"{colour} {size}"


@program
async def hang(ctx: Context) -> None:
    await asyncio.Event().wait()


@program
async def works_on(ctx: Context) -> str:
    async def work() -> str:
        for _ in range(600):  # two events each, of which 1,024 may wait
            await ctx.sleep(0)
        return str(await ctx.human("Which size?"))

    working = asyncio.create_task(work())
    return f"{await ctx.human('Which colour?')} {await working}"


class State(TypedDict):
    colour: str


def ask(state: State) -> State:
    return {"colour": f"{state['colour']} and {interrupt('Which other?')}"}


BUILDER = StateGraph(State)
BUILDER.add_node("ask", ask)
BUILDER.add_edge(START, "ask")
BUILDER.add_edge("ask", END)
PROGRAMS = (shout, count, fail, choose, hang)


@dataclass
class Local:
    server: Server
    runtime: Runtime
    url: str

    async def until(self, done: Any) -> None:
        async with asyncio.timeout(WAIT_S):
            while not done():
                await asyncio.sleep(0)

    @asynccontextmanager
    async def client(self, mode: str = "auto", **options: Any) -> AsyncIterator[Client]:
        headers = options.pop("headers", {})
        async with (
            asyncio.timeout(WAIT_S),
            httpx2.AsyncClient(headers=headers, timeout=WAIT_S) as http,
        ):
            transport = streamable_http_client(f"{self.url}/mcp", http_client=http)
            async with Client(transport, mode=mode, **options) as client:
                yield client


@asynccontextmanager
async def serving(
    keys: KeyCheck | None = None,
    served: Mapping[str, Any] | None = None,
    *,
    keep_alive_s: float = 10.0,
    **limits: Any,
) -> AsyncIterator[Local]:
    if served is None:
        served = {one.name: ServedProgram(one, "test") for one in PROGRAMS}
        served = {**served, "graph": ServedGraph(BUILDER, "test")}
    async with Runtime(ScriptedExecutor(lambda call: "one"), ask_human=None) as runtime:
        tenants = Tenants(runtime.now, Limits(**limits))
        bounds = Bounds(body_bytes=10_000)
        server = Server(runtime, ("m",), served, tenants=tenants, keys=keys, bounds=bounds)
        server.keep_alive_s = keep_alive_s
        listener = Listener("127.0.0.1", 0)
        async with (
            opened_app(server, [questions, served_mcp.api]) as app,
            listener.serving(app, server.bounds),
        ):
            yield Local(server, runtime, listener.url)
        assert not runtime.runs


@pytest.fixture
async def local() -> AsyncIterator[Local]:
    async with serving() as local:
        yield local


def text_of(result: CallToolResult) -> str:
    [block] = result.content
    assert isinstance(block, TextContent)
    return block.text


def answering(*contents: Mapping[str, Any] | str) -> Any:
    """A client's human, who gives these forms, or declines; ``asked`` has the questions."""
    left, asked = list(contents), []

    async def answer(context: ClientRequestContext, params: Any) -> ElicitResult:
        assert isinstance(params, ElicitRequestFormParams)
        asked.append((params.message, params.requested_schema))
        given = left.pop(0)
        if isinstance(given, str):
            return ElicitResult.model_validate({"action": given})
        return ElicitResult(action="accept", content=dict(given))

    answer.asked = asked  # type: ignore[attr-defined]
    return answer


@pytest.mark.parametrize("mode", MODES)
async def test_programs_and_graphs_are_tools(local: Local, mode: str) -> None:
    async with local.client(mode) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert set(tools) == {"shout", "count", "fail", "choose", "hang", "graph"}
        assert tools["shout"].description == "Say it loudly.\n\nTwice."
        schema = tools["shout"].input_schema
        assert schema["properties"] == {"words": {"type": "string"}}
        assert schema["required"] == ["words"]
        assert tools["graph"].input_schema["properties"]["colour"]["type"] == "string"
        assert (client.protocol_version >= "2026") == (mode == "auto")


@pytest.mark.parametrize("mode", MODES)
async def test_a_call_is_a_run_with_its_nodes_and_its_progress(local: Local, mode: str) -> None:
    told = []

    async def progressed(progress: float, total: float | None, message: str | None) -> None:
        told.append((progress, message))

    runs = []
    local.runtime.listen(lambda event: runs.append(event.program_id))
    async with local.client(mode) as client:
        result = await client.call_tool("shout", {"words": "hey"}, progress_callback=progressed)
        assert not result.is_error
        assert result.structured_content == {"result": "HEY"}
        assert text_of(result) == "HEY"
        assert result.meta is not None
        assert result.meta["io.agentrt/run"] == runs[0]
        assert told == [(1, "llm: done"), (2, "len: done")]
        result = await client.call_tool("count", {})
        assert result.structured_content == {"one": 1}
        assert text_of(result) == '{"one": 1}'


@pytest.mark.parametrize("mode", MODES)
async def test_a_waiting_call_reports_progress(mode: str) -> None:
    """While a node waits, and while the program itself does something else."""
    told: list[tuple[float, str | None]] = []
    gone_on = {"hang": "running", "choose": "Which colour?: running"}

    for name, words in gone_on.items():
        enough = asyncio.Event()

        async def progressed(
            progress: float,
            total: float | None,
            message: str | None,
            on: asyncio.Event = enough,
            words: str = words,
        ) -> None:
            told.append((progress, message))
            if sum(message == words for _, message in told) >= 3:
                on.set()

        told.clear()
        async with serving(keep_alive_s=0.01) as local, local.client(mode) as client:
            calling = client.call_tool(name, {}, progress_callback=progressed)
            call = asyncio.create_task(calling)
            await enough.wait()
            call.cancel()
            await asyncio.wait([call])
            for run in tuple(local.runtime.runs.values()):
                run.cancel()
            await local.until(lambda runtime=local.runtime: not runtime.runs)
        numbers = [progress for progress, _ in told]
        assert numbers == sorted(set(numbers))
        # The first messages may come before the program has begun its node.
        assert {message for _, message in told} <= {words, "running"}


@pytest.mark.parametrize("mode", MODES)
async def test_a_call_reports_progress_beside_events_that_come_all_the_time(mode: str) -> None:
    """A tool that itself reports progress again and again ends no node."""
    enough = asyncio.Event()

    @tool
    async def busy(context: ToolContext) -> None:
        while not enough.is_set():
            context.progress(Progress(1))
            await asyncio.sleep(0)

    @program
    async def waits(ctx: Context) -> None:
        await ctx.tool(busy)

    told = []

    async def progressed(progress: float, total: float | None, message: str | None) -> None:
        told.append(message)
        if len(told) == 3:
            enough.set()

    served = {"waits": ServedProgram(waits, "test")}
    async with serving(served=served, keep_alive_s=0.2) as local, local.client(mode) as client:
        await client.call_tool("waits", {}, progress_callback=progressed)
    assert told[-1] == "busy: done"


@pytest.mark.parametrize("mode", MODES)
async def test_errors_are_results_that_the_model_reads(local: Local, mode: str) -> None:
    async with local.client(mode) as client:
        for name, arguments, words in (
            ("fail", {}, "ValueError: no luck"),
            ("shout", {"words": 1}, "tool shout: wrong arguments"),
            ("shout", {}, "'words' is a required property"),
            ("count", {"x": 1}, "tool count: wrong arguments"),
            ("graph", {}, "tool graph: missing arguments: colour"),
            ("graph", {"colour": "red", "size": 1}, "unknown arguments: size; use colour"),
        ):
            result = await client.call_tool(name, arguments)
            assert result.is_error
            assert words in text_of(result)
        with pytest.raises(MCPError, match=r"unknown tool 'sing'; available: shout, count"):
            await client.call_tool("sing", {})


class Item(BaseModel):
    name: str
    parts: list[Item] = []


class Order(BaseModel):
    items: list[Item]


@program
async def pack(ctx: Context, order: Order) -> str:
    return order.items[0].parts[0].name


@pytest.mark.parametrize("mode", MODES)
async def test_an_input_may_have_models_within_models(mode: str) -> None:
    """The references of the input's schema led nowhere, so that each call was refused."""
    item = {"name": "box", "parts": [{"name": "nail"}]}
    packed.__annotations__["order"] = Order  # LangGraph evaluates no annotations that are texts
    graph = entrypoint()(packed)
    served = {"pack": ServedProgram(pack, "test"), "graph": ServedGraph(graph, "test")}
    async with serving(served=served) as at, at.client(mode) as client:
        for tool in (await client.list_tools()).tools:
            [name] = tool.input_schema["properties"]
            assert mistake_in({name: {"items": [item]}}, tool.input_schema) is None
            wrong = mistake_in({name: {"items": [{"name": 1}]}}, tool.input_schema)
            assert wrong == f"$.{name}.items[0].name: 1 is not of type 'string'"
            result = await client.call_tool(tool.name, {name: {"items": [item]}})
            assert (result.is_error, text_of(result)) == (False, "nail")
        result = await client.call_tool("pack", {"order": {"items": [{"name": 1}]}})
        assert "items[0].name: 1 is not of type 'string'" in text_of(result)


async def packed(order: Order) -> str:
    return Order.model_validate(order).items[0].parts[0].name


class MuteError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@program
async def mute(ctx: Context) -> None:
    raise MuteError


class NoFields(TypedDict):
    pass


def unasked(state: NoFields) -> State:
    return {"colour": "red"}


async def test_errors_without_a_text_or_a_field_are_results_too() -> None:
    builder = StateGraph(State, input_schema=NoFields)
    builder.add_node("unasked", unasked)
    builder.add_edge(START, "unasked")
    served = {"mute": ServedProgram(mute, "test"), "unasked": ServedGraph(builder, "test")}
    async with serving(served=served) as local, local.client() as client:
        result = await client.call_tool("mute", {})
        assert result.is_error
        assert text_of(result) == "MuteError: the error has no text (RuntimeError)"
        result = await client.call_tool("unasked", {"size": 1})
        assert result.is_error
        assert text_of(result) == "tool unasked: unknown arguments: size; use none"


@pytest.mark.parametrize("mode", MODES)
async def test_half_a_surrogate_pair_is_replaced_in_all_that_is_sent(mode: str) -> None:
    """UTF-8 has none, so the client got no answer."""

    @program
    async def broken(ctx: Context) -> None:
        answer = await ctx.human("Which \ud800?", choices=["a\ud800", "b"])
        raise ValueError(f"{answer}: half \ud800")

    asked = []

    async def answer(context: ClientRequestContext, params: Any) -> ElicitResult:
        asked.append((params.message, params.requested_schema["properties"]["answer"]["enum"]))
        async with httpx.AsyncClient() as http:
            listed = (await http.get(f"{at.url}/v1/questions")).json()["data"]
        asked.append((listed[0]["question"], listed[0]["schema"]["enum"]))
        return ElicitResult(action="accept", content={"answer": "b"})

    async def progressed(progress: float, total: float | None, message: str | None) -> None: ...

    async with (
        serving(None, {"broken": ServedProgram(broken, "test")}) as at,
        at.client(mode, elicitation_callback=answer) as client,
    ):
        result = await client.call_tool("broken", {}, progress_callback=progressed)
    assert asked == [("Which ??", ["a?", "b"])] * 2
    assert text_of(result) == "ValueError: b: half ?"


@pytest.mark.parametrize("mode", MODES)
async def test_questions_are_asked_of_the_client(local: Local, mode: str) -> None:
    """The second one until the answer fits."""
    human = answering({"answer": "red"}, {"answer": 0}, {"answer": 2})
    async with local.client(mode, elicitation_callback=human) as client:
        result = await client.call_tool("choose", {})
        assert text_of(result) == "red 2"
        (first, form), (second, _), third = human.asked
        assert (first, second) == ("Which colour?", "How large?")
        assert form["properties"]["answer"]["enum"] == ["red", "blue"]
        assert third[0] == second


async def test_a_form_whose_field_may_have_any_value_is_asked_as_one_text() -> None:
    @program
    async def notes(ctx: Context) -> Any:
        return await ctx.human("Notes?", schema={"type": "object", "properties": {"note": True}})

    human = answering({"answer": '{"note": [1]}'})
    served = {"notes": ServedProgram(notes, "test")}
    async with serving(served=served) as local, local.client(elicitation_callback=human) as client:
        result = await client.call_tool("notes", {})
    assert (result.is_error, result.structured_content) == (False, {"note": [1]})
    assert human.asked[0][1]["properties"] == {"answer": {"type": "string"}}


@pytest.mark.parametrize("mode", MODES)
async def test_a_graph_asks_too(local: Local, mode: str) -> None:
    human = answering({"answer": "blue"})
    async with local.client(mode, elicitation_callback=human) as client:
        result = await client.call_tool("graph", {"colour": "red"})
        assert result.structured_content == {"colour": "red and blue"}
        assert human.asked[0][0] == "Which other?"


def remembering(runtime: ServerRuntime[Any]) -> Any:
    """A graph that is made with the store, and keeps colours there."""
    runtime.store.put(("made",), runtime.access_context, {})

    def keep(state: State, *, store: BaseStore) -> State:
        store.put(("colours",), state["colour"], {})
        seen = [item.key for item in store.search(("colours",))]
        made = [item.key for item in runtime.store.search(("made",))]
        return {"colour": f"{', '.join(seen)}; made for {', '.join(made)}"}

    return StateGraph(State).add_node("keep", keep).add_edge(START, "keep")


async def test_a_function_that_makes_a_graph_has_a_store_when_it_is_listed_and_when_it_runs() -> (
    None
):
    """Each run has a store of its own: a caller does not find another caller's items."""
    served = {"memory": ServedGraph(remembering, "test")}
    async with serving(served=served) as local, local.client() as client:
        for colour in ("red", "blue"):
            result = await client.call_tool("memory", {"colour": colour})
            expected = f"{colour}; made for threads.create_run"
            assert result.structured_content == {"colour": expected}


def only_for_runs(runtime: ServerRuntime[Any]) -> Any:
    """A graph that is made for runs only."""
    if runtime.execution_runtime is None:
        raise ValueError("no run, no graph")
    builder = StateGraph(State)
    builder.add_node("paint", lambda state: {"colour": f"{state['colour']} paint"})
    builder.add_node("ask", ask)
    return builder.add_edge(START, "paint").add_edge("paint", "ask")


def with_breakpoint(config: RunnableConfig) -> Any:
    return BUILDER.compile(interrupt_before=["ask"])


async def test_a_function_that_makes_graphs_for_runs_only_is_listed_and_runs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    served = {"needy": ServedGraph(only_for_runs, "test")}
    human = answering({"answer": "blue"})
    async with serving(served=served) as local, local.client(elicitation_callback=human) as client:
        [tool] = (await client.list_tools()).tools
        assert tool.input_schema == {"type": "object"}
        result = await client.call_tool("needy", {"colour": "red"})
        assert result.structured_content == {"colour": "red paint and blue"}
    assert "no run, no graph" in caplog.text


async def test_a_graph_that_is_made_for_a_run_may_stop_at_a_breakpoint() -> None:
    """As for a graph that is made once, the values so far are no result."""
    served = {
        "made": ServedGraph(with_breakpoint, "test"),
        "fixed": ServedGraph(BUILDER.compile(interrupt_before=["ask"]), "test"),
    }
    async with serving(served=served) as local, local.client() as client:
        made = await client.call_tool("made", {"colour": "red"})
        fixed = await client.call_tool("fixed", {"colour": "red"})
        assert made.is_error
        assert text_of(made).replace("made", "fixed") == text_of(fixed)


@pytest.mark.parametrize("mode", MODES)
async def test_a_question_that_is_declined_ends_the_run(local: Local, mode: str) -> None:
    async with local.client(mode, elicitation_callback=answering("decline")) as client:
        result = await client.call_tool("choose", {})
        assert result.is_error
        assert "declined" in text_of(result)


@pytest.mark.parametrize("mode", MODES)
async def test_a_client_without_forms_leaves_questions_to_others(local: Local, mode: str) -> None:
    open_ones = local.runtime.questions.open
    async with (
        local.client(mode) as client,
        httpx.AsyncClient(base_url=local.url, timeout=60) as http,
    ):
        call = asyncio.create_task(client.call_tool("choose", {}))
        for answer in ("red", 3):
            await local.until(lambda: len(open_ones) == 1)
            [question] = open_ones
            answered = await http.post(f"/v1/questions/{question}", json={"answer": answer})
            assert answered.status_code == 200
        assert text_of(await call) == "red 3"


@pytest.mark.parametrize("mode", MODES)
async def test_a_cancelled_call_cancels_its_run(local: Local, mode: str) -> None:
    async with local.client(mode) as client:
        call = asyncio.create_task(client.call_tool("hang", {}))
        await local.until(lambda: local.runtime.runs)
        [run] = local.runtime.runs.values()
        call.cancel()
        await asyncio.wait([call])
        await local.until(lambda: not local.runtime.runs)
        assert run.state is RunState.CANCELLED


async def test_a_cancelled_call_whose_run_ignores_the_cancellation_is_cancelled_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("agentrt.runtime.run._AGAIN_S", 0.01)

    @program
    async def stubborn(ctx: Context) -> None:
        for _ in range(3):
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()

    served = {"stubborn": ServedProgram(stubborn, "test")}
    async with serving(served=served) as local, local.client() as client:
        call = asyncio.create_task(client.call_tool("stubborn", {}))
        await local.until(lambda: local.runtime.runs)
        call.cancel()
        await asyncio.wait([call])
        await local.until(lambda: not local.runtime.runs)


@pytest.mark.parametrize("mode", MODES)
async def test_a_call_belongs_to_its_keys_tenant(mode: str) -> None:
    async with serving(PlainKeys(), programs=1) as local:
        async with httpx.AsyncClient(base_url=local.url, timeout=60) as http:
            assert (await http.post("/mcp")).status_code == 401
        headers = {"authorization": "Bearer ann"}
        async with local.client(mode, headers=headers) as client:
            call = asyncio.create_task(client.call_tool("hang", {}))
            await local.until(lambda: local.runtime.runs)
            [run] = local.runtime.runs.values()
            assert run.row.tenant == "ann"
            busy = await client.call_tool("count", {})
            assert "tenant 'ann' has 1 live programs" in text_of(busy)
            call.cancel()
            await asyncio.wait([call])


def initialize() -> dict[str, Any]:
    client = {"name": "test", "version": "1"}
    params = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client}
    return {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}


async def test_a_session_or_a_question_is_of_no_use_to_another_tenant() -> None:
    async with (
        serving(PlainKeys()) as local,
        httpx.AsyncClient(base_url=local.url, timeout=60) as http,
    ):
        ann, bob = ({"authorization": f"Bearer {name}"} for name in ("ann", "bob"))
        json = {"accept": "application/json, text/event-stream"}
        body = initialize()
        began = await http.post("/mcp", json=body, headers={**ann, **json})
        session = {"mcp-session-id": began.headers["mcp-session-id"], **json}
        listing = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
        for key, status in ((bob, 404), (ann, 200)):
            answer = await http.post("/mcp", json=listing, headers={**key, **session})
            assert answer.status_code == status
        async with local.client(headers=ann, elicitation_callback=answering()) as client:
            first = await client.session.call_tool("choose", {}, allow_input_required=True)
            state = first.request_state  # type: ignore[union-attr]
        async with local.client(headers=bob) as client:
            with pytest.raises(MCPError, match="no call waits"):
                await client.call_tool("choose", {}, request_state=state)


async def test_requests_that_are_refused(local: Local) -> None:
    async with httpx.AsyncClient(base_url=local.url, timeout=60) as http:
        assert (await http.get("/mcp")).status_code == 405
        elsewhere = await http.post("/mcp", json={}, headers={"origin": "https://example.org"})
        assert elsewhere.status_code == 403
        assert (await http.post("/mcp", content=b"x" * 20_000)).status_code == 413


async def test_a_server_that_stops_takes_no_new_call(local: Local) -> None:
    async with local.client(
        elicitation_callback=answering({"answer": "red"}, {"answer": 1})
    ) as client:
        first = await client.session.call_tool("choose", {}, allow_input_required=True)
        local.server.draining = True
        state = first.request_state  # type: ignore[union-attr]
        [question] = local.runtime.questions.open
        local.runtime.questions.answer(question, "red")
        assert text_of(await client.call_tool("choose", {}, request_state=state)) == "red 1"
        assert "the server is stopping" in text_of(await client.call_tool("count", {}))


async def test_a_call_that_waits_for_an_answer_misses_no_question() -> None:
    """While it waits for the first answer, its run has more events than are kept."""
    human = answering({"answer": "large"})
    async with (
        serving(served={"works_on": ServedProgram(works_on, "test")}) as local,
        local.client(elicitation_callback=human) as client,
    ):
        first = await client.session.call_tool("works_on", {}, allow_input_required=True)
        state = first.request_state  # type: ignore[union-attr]
        await local.until(lambda: len(local.runtime.questions.open) == 2)
        [colour] = (
            key for key, asked in local.runtime.questions.open.items() if "colour" in asked.text
        )
        local.runtime.questions.answer(colour, "red")
        result = await client.call_tool("works_on", {}, request_state=state)
        assert text_of(result) == "red large"


def test_a_server_starts_without_the_sdks() -> None:
    """The SDKs take a second to import, and most servers never need them."""
    code = (
        "import sys, agentrt.serving.mcp.offers, agentrt.serving.langgraph.router\n"
        "print({'mcp', 'a2a'} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


async def test_a_first_request_during_the_shutdown_is_answered() -> None:
    """Nobody loads the SDK any more, and nobody waits for it."""
    async with serving() as local:
        endpoint = Endpoint(local.server, {}, ProgramRuns(local.server))
        running = asyncio.create_task(endpoint.run())
        await asyncio.sleep(0)
        running.cancel()
        await asyncio.wait([running])
        transport = httpx.ASGITransport(endpoint)
        async with httpx.AsyncClient(transport=transport, base_url="http://local") as http:
            async with asyncio.timeout(60):
                assert (await http.post("/mcp", json=initialize())).status_code == 503


@pytest.mark.parametrize("rest_s", [0.0, 1000.0])
async def test_a_server_of_the_sdk_that_fails_is_started_again(
    monkeypatch: pytest.MonkeyPatch, rest_s: float
) -> None:
    """Until it has begun anew, clients are told to try again."""
    made: list[StreamableHTTPSessionManager] = []

    class Noted(StreamableHTTPSessionManager):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            made.append(self)

    async def fail() -> None:
        raise ValueError("a bug of the SDK")

    monkeypatch.setattr(served_mcp_calls, "StreamableHTTPSessionManager", Noted)
    async with serving() as local:
        background = local.server.background
        background._rest_s = rest_s
        async with httpx.AsyncClient(base_url=local.url, timeout=60) as http:
            assert (await http.post("/mcp", json=initialize())).is_success
        assert made[0]._task_group is not None
        made[0]._task_group.start_soon(fail)
        await local.until(lambda: "mcp" in background.failing())
        if rest_s:
            async with httpx.AsyncClient(base_url=local.url, timeout=60) as http:
                answer = await http.post("/mcp", json=initialize())
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
            return
        await local.until(lambda: len(made) > 1 and made[1]._task_group is not None)
        async with local.client() as client:
            assert text_of(await client.call_tool("shout", {"words": "a"})) == "A"
