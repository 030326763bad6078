"""How a call comes to vLLM and back: the functions that hand it on, on each of three ways.

docs/architecture.md lists them, and a way that becomes longer needs a reason.
"""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio
from langchain.agents import create_agent

from agentrt import Context, Runtime, program
from agentrt.executors.identity import VLLM_KEY
from agentrt.executors.replicas import RestartedEngine
from agentrt.executors.vllm.engine_core.scheduler import ProgramScheduler
from agentrt.integrations.langchain import ChatAgentRT
from agentrt.journal import Journal
from agentrt.journal.store import SQLiteStore
from agentrt.lab.engine.headless import HeadlessEngine, make_scheduler
from agentrt.runtime.durable import Durable
from agentrt.serving.app import opened_app
from agentrt.serving.frontend.dispatch import FrontendApp, fronts_of
from agentrt.serving.langgraph import api
from agentrt.serving.server import ServedGraph, Server
from agentrt.serving.tenants import Limits, Tenants
from agentrt.serving.tenants.sharing import FairSharing
from tests.doubles.tinymodel import tiny_model
from tests.engine.lent import Lent
from tests.engine.ways import Way, returned, walked
from tests.pages import DOCS

pytest.importorskip("vllm")
pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]
FLAGS = ("--dtype", "float32", "--max-model-len", "1024", "--block-size", "32")
CHAT = {"messages": [{"role": "user", "content": "Hello?"}], "max_tokens": 2}
_HOP = re.compile(r"^\d+\. `([^`]+)` `([^`]+)`", re.MULTILINE)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def runtime(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Runtime]:
    from agentrt.engines import EngineOptions, VLLMEngine

    model = str(tiny_model(tmp_path_factory.mktemp("ways") / "tiny"))
    async with Runtime(VLLMEngine(EngineOptions(model=model, flags=FLAGS))) as runtime:
        yield runtime


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def http(
    runtime: Runtime, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[httpx.AsyncClient]:
    """A client of what `agentrt serve` serves."""
    database = f"sqlite:{tmp_path_factory.mktemp('served') / 'ways.db'}"
    served = {"agent": ServedGraph(create_agent(ChatAgentRT(max_tokens=2), []), "agents.py")}
    tenants = Tenants(time.monotonic, Limits(), dict)
    executor = FairSharing(RestartedEngine(lambda: Lent(runtime.executor)), tenants)
    async with Runtime(executor) as serving:
        server = Server(serving, ("tiny",), served, database, tenants=tenants)
        front = FrontendApp(server, fronts_of(await serving.frontend()))
        # Without the watchdog of other tests: to be walked makes each step slower.
        async with opened_app(server, [api], front) as app:
            transport, url = httpx.ASGITransport(app), "http://127.0.0.1"
            async with httpx.AsyncClient(transport=transport, base_url=url, timeout=60) as client:
                yield client


def listed(title: str) -> list[tuple[str, str]]:
    """The functions that the page lists under a title."""
    page = (DOCS / "architecture.md").read_text("utf-8")
    section = page.partition(f"\n### {title}\n")[2].partition("\n#")[0]
    return _HOP.findall(section)


def check(way: Way, title: str, *, hops: int, files: int) -> None:
    """The way is that of the page, and no longer than this."""
    assert way.hops == listed(title)
    assert len(way.hops) <= hops
    assert len(way.files) <= files


async def test_a_call_of_a_program(runtime: Runtime) -> None:
    @program
    async def asks(ctx: Context) -> str:
        return (await ctx.llm("Hello?", max_tokens=2)).text

    await runtime.start(asks).wait()
    with walked() as way:
        await runtime.start(asks).wait()
    check(way.since("Context.llm"), "A program's call", hops=12, files=15)


async def test_the_way_back_to_a_program(runtime: Runtime) -> None:
    @program
    async def asks(ctx: Context) -> str:
        return (await ctx.llm("Hello?", max_tokens=2)).text

    await runtime.start(asks).wait()
    with returned("VLLMEngine._reply") as order:
        await runtime.start(asks).wait()
    way = listed("In the process of the program")
    assert [function for function in order if function in way] == way


async def test_the_way_back_in_the_engine_core() -> None:
    engine = HeadlessEngine(make_scheduler(ProgramScheduler, blocks=20, max_num_seqs=1))
    engine.add("a", range(5), 2, {VLLM_KEY: {"program_id": "p", "call_id": "p/1", "report": True}})
    with returned("ProgramScheduler._connector_finished") as order:
        reports = [report for step in engine.run() for report in step.reports.values()]
    way = listed("In the engine core")
    assert [function for function in order if function in way] == way
    assert [report["output_tokens"] for report in reports] == [2]


async def test_a_journal_adds_its_emitter_alone(runtime: Runtime, tmp_path: Path) -> None:
    @program
    async def asks(ctx: Context) -> str:
        return (await ctx.llm("Hello?", max_tokens=2)).text

    journal = await Journal.open(lambda: SQLiteStore(tmp_path / "journal"))
    async with Runtime(Lent(runtime.executor), journal=journal) as recorded:
        await recorded.frontend()
        with walked() as way:
            await recorded.start(asks, durable=Durable()).wait()
        with walked() as bare:
            await recorded.start(asks).wait()
    await journal.close()
    added = [function for _, function in set(way.hops) - set(bare.hops)]
    assert sorted(added) == ["Recorded._recall_or_run", "Recorded.call"]
    assert len(way.hops) == len(bare.hops) + len(added)


async def test_a_streamed_chat_over_http(http: httpx.AsyncClient) -> None:
    with walked() as way:
        answer = await http.post("/v1/chat/completions", json={**CHAT, "stream": True})
    answer.raise_for_status()
    check(way, "A streamed chat over HTTP", hops=16, files=15)


async def test_a_run_of_a_graph_over_http(http: httpx.AsyncClient) -> None:
    """Each hop decides something, or is the door of another room."""
    body = {"assistant_id": "agent", "input": {"messages": CHAT["messages"]}}
    with walked() as way:
        answer = await http.post("/runs/wait", json=body)
    answer.raise_for_status()
    check(way, "A run of a LangGraph graph over HTTP", hops=25, files=18)
