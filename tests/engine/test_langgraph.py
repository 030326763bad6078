"""LangGraph's agents on a real engine, two at a time, and its stock clients, over loopback."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import warnings
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import uvicorn
from deepagents import create_deep_agent
from langchain.agents import create_agent
from langchain.agents.middleware import (
    HumanInTheLoopMiddleware,
    ModelCallLimitMiddleware,
    SummarizationMiddleware,
    TodoListMiddleware,
)
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import GraphRecursionError
from langgraph.warnings import LangGraphDeprecatedSinceV10
from langgraph_sdk import get_client
from langgraph_sdk.client import LangGraphClient
from langgraph_supervisor import create_supervisor
from langgraph_swarm import create_handoff_tool, create_swarm
from pydantic import BaseModel

from agentrt import Runtime
from agentrt.graph import NodeKind
from agentrt.integrations.langchain import ChatAgentRT
from agentrt.integrations.langgraph import follow
from agentrt.runtime.run import RunState
from agentrt.serving.langgraph import api
from agentrt.serving.server import ServedGraph, Server
from tests.integrations.langgraph.agents import AGENTS, TOOLS, TURNS, stages_of
from tests.integrations.langgraph.probe import strict, watched
from tests.serving.watchdog import opened_app

pytest.importorskip("vllm")
pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]
TURN_S = 120


class Verdict(BaseModel):
    good: bool


def question(text: str = "What is 3 + 4?") -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]}


def graphs() -> dict[str, Any]:
    limit = ModelCallLimitMiddleware(run_limit=TURNS, exit_behavior="end")
    return {
        "agent": create_agent(ChatAgentRT(max_tokens=32), TOOLS, middleware=[limit]),
        "judge": create_agent(ChatAgentRT(max_tokens=48), [], response_format=Verdict),
        "long": create_agent(ChatAgentRT(max_tokens=900), []),
    }


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def runtime() -> AsyncIterator[Runtime]:
    from agentrt.engines import EngineOptions, VLLMEngine
    from agentrt.scheduler.config import SchedulerConfig

    options = EngineOptions(max_num_seqs=4, scheduler=SchedulerConfig(policy="atlas"))
    async with Runtime(VLLMEngine(options)) as runtime:
        yield runtime


# -- agents ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", AGENTS)
async def test_the_dag_of_an_agent_is_the_true_one(runtime: Runtime, name: str) -> None:
    strict(follow())
    agent = AGENTS[name](ChatAgentRT(runtime=runtime, max_tokens=32))
    with watched() as runs:
        results = await asyncio.gather(*(agent.graph.ainvoke(agent.input) for _ in range(2)))
    found = sorted(stages_of(run.dag) for run in runs)
    assert found == sorted([sorted(s) for s in agent.truth(result)] for result in results)
    assert [run.state for run in runs] == [RunState.DONE] * 2
    assert all(run.dag.critical_path().seconds > 0 for run in runs)
    async with asyncio.timeout(60):  # the engine forgets them
        while (await runtime.executor.snapshot())["programs"]:
            await asyncio.sleep(0.005)


def middleware(model: ChatAgentRT) -> Any:
    """LangChain's own, all three that the model has to act by."""
    acts: Any = [
        SummarizationMiddleware(model, trigger=("messages", 3), keep=("messages", 1)),
        TodoListMiddleware(),
        HumanInTheLoopMiddleware({"add": True}),
        ModelCallLimitMiddleware(run_limit=TURNS, exit_behavior="end"),
    ]
    return create_agent(model, TOOLS, middleware=acts, checkpointer=InMemorySaver())


def supervised(model: ChatAgentRT) -> Any:
    return create_supervisor([create_agent(model, TOOLS, name="adder")], model=model).compile()


def swarm(model: ChatAgentRT) -> Any:
    alice = create_agent(model, [create_handoff_tool(agent_name="bob")], name="alice")
    bob = create_agent(model, TOOLS, name="bob")
    return create_swarm([alice, bob], default_active_agent="alice").compile()


def extractor(model: ChatAgentRT) -> Any:
    with warnings.catch_warnings():  # it still imports from where LangGraph once had it
        warnings.simplefilter("ignore", LangGraphDeprecatedSinceV10)
        from trustcall import create_extractor
    return create_extractor(model, tools=[Verdict], tool_choice="Verdict")


@pytest.mark.filterwarnings("ignore:create_react_agent has been moved")
@pytest.mark.parametrize("make", [middleware, create_deep_agent, supervised, swarm, extractor])
async def test_agents_of_others_run_as_they_are(runtime: Runtime, make: Any) -> None:
    """What so small a model has them do is its own affair: it may call tools until it is stopped.
    Each run is one program, and no call of it is refused.
    """
    graph = make(ChatAgentRT(runtime=runtime, max_tokens=32))
    config: Any = {"configurable": {"thread_id": "1"}, "recursion_limit": 8}
    chat = [HumanMessage("Hi."), AIMessage("Hello."), HumanMessage("What is 3 + 4?")]
    with watched() as runs, contextlib.suppress(GraphRecursionError):
        await graph.ainvoke({"messages": chat}, config)
    [run] = runs
    calls = [node for node in run.dag.nodes() if node.kind is NodeKind.CALL]
    assert [call.error for call in calls] == [None] * len(calls) != []
    assert all(call.report is not None and call.report.output_tokens > 0 for call in calls)


# -- a server -------------------------------------------------------------------------------


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def url(runtime: Runtime, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    file: Path = tmp_path_factory.mktemp("serving") / "agentrt.db"
    served = {name: ServedGraph(graph, "agents.py") for name, graph in graphs().items()}
    server = Server(runtime, ("tiny",), served, f"sqlite:{file}")
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    async with opened_app(server, [api]) as app:
        web = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off"))
        task = asyncio.create_task(web.serve(sockets=[listening]))
        while not web.started:
            await asyncio.sleep(0.01)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        web.should_exit = True
        await task


@pytest_asyncio.fixture(loop_scope="module")
async def client(url: str) -> AsyncIterator[LangGraphClient]:
    async with get_client(url=url, timeout=TURN_S) as client:
        yield client


async def test_an_agent_runs_streams_and_remembers(client: LangGraphClient) -> None:
    """1. It answers. 2. The next run of the thread streams, token by token, and knows the first."""
    thread = (await client.threads.create())["thread_id"]
    first: Any = await client.runs.wait(thread, "agent", input=question())
    assert first["messages"][1]["type"] == "ai"
    assert first["messages"][1]["usage_metadata"]["output_tokens"] > 0
    parts = [
        part
        async for part in client.runs.stream(
            thread, "agent", input=question("And 5?"), stream_mode=["messages-tuple", "values"]
        )
    ]
    chunks = [part.data[0] for part in parts if part.event == "messages"]
    assert sum(chunk["type"] == "AIMessageChunk" for chunk in chunks) > 1
    state: Any = await client.threads.get_state(thread)
    before = [message["id"] for message in first["messages"]]
    assert [message["id"] for message in state["values"]["messages"]][: len(before)] == before


async def test_structured_output(client: LangGraphClient) -> None:
    result: Any = await client.runs.wait(None, "judge", input=question("Is tea good?"))
    assert isinstance(result["structured_response"]["good"], bool)


async def test_a_stopped_run_frees_the_engine(client: LangGraphClient, runtime: Runtime) -> None:
    thread = (await client.threads.create())["thread_id"]
    run = await client.runs.create(
        thread, "long", input=question("Write a long story."), stream_mode="messages-tuple"
    )
    async for part in client.runs.join_stream(thread, run["run_id"]):
        if part.event == "messages":
            break
    await client.runs.cancel(thread, run["run_id"], wait=True)
    assert (await client.runs.get(thread, run["run_id"]))["status"] == "interrupted"
    async with asyncio.timeout(TURN_S):
        while (await runtime.executor.snapshot())["programs"]:
            await asyncio.sleep(0.005)
    assert len(runtime.table) == 0
