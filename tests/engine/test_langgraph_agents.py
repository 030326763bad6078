"""The five LangGraph agents on the real engine, eight at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from agentrt import Runtime
from agentrt.integrations.langchain import ChatAgentRT
from agentrt.integrations.langgraph import follow
from agentrt.runtime.run import RunState
from tests.integrations.langgraph.agents import AGENTS, stages_of
from tests.integrations.langgraph.probe import strict, watched

pytest.importorskip("vllm")
pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def runtime() -> AsyncIterator[Runtime]:
    from agentrt.executors.vllm.engine import VLLMEngine
    from agentrt.executors.vllm.options import EngineOptions
    from agentrt.scheduler.config import SchedulerConfig

    options = EngineOptions(max_num_seqs=4, scheduler=SchedulerConfig(policy="atlas"))
    async with Runtime(VLLMEngine(options)) as runtime:
        yield runtime


@pytest.mark.parametrize("name", AGENTS)
async def test_the_dag_of_an_agent_is_the_true_one(runtime: Runtime, name: str) -> None:
    strict(follow())
    agent = AGENTS[name](ChatAgentRT(runtime=runtime, max_tokens=48))
    with watched() as runs:
        results = await asyncio.gather(*(agent.graph.ainvoke(agent.input) for _ in range(8)))
    found = sorted(stages_of(run.dag) for run in runs)
    assert found == sorted([sorted(s) for s in agent.truth(result)] for result in results)
    assert [run.state for run in runs] == [RunState.DONE] * 8
    assert all(run.dag.critical_path().seconds > 0 for run in runs)


async def test_the_engine_forgets_them(runtime: Runtime) -> None:
    agent = AGENTS["map_reduce"](ChatAgentRT(runtime=runtime, max_tokens=48))
    with watched():
        await agent.graph.ainvoke(agent.input)
    async with asyncio.timeout(60):
        while (await runtime.executor.snapshot())["programs"]:
            await asyncio.sleep(0)
