"""The five agents on a scripted engine, with parallel tools and several rounds."""

from __future__ import annotations

import asyncio
import random

import pytest

from agentrt import Runtime
from agentrt.integrations.langchain import ChatAgentRT
from agentrt.integrations.langgraph import follow
from agentrt.request import Call, ToolCall
from agentrt.runtime.run import Run, RunState
from tests.doubles.choices import Output
from tests.doubles.madeup import made_up_output
from tests.doubles.scripted import ScriptedExecutor
from tests.integrations.langgraph.agents import AGENTS, stages_of
from tests.integrations.langgraph.probe import strict


def say(call: Call) -> Output | str:
    """Something that fits, different for each call; tools are called twice at once."""
    rng = random.Random(call.call_id)
    made = made_up_output(call.spec.request or {}, rng)
    if isinstance(made, ToolCall):
        other = made_up_output({**(call.spec.request or {}), "tool_choice": "required"}, rng)
        assert isinstance(other, ToolCall)
        return Output(tool_calls=(made, other))
    return "one two three" if made is None else made


@pytest.mark.parametrize("name", AGENTS)
async def test_the_dag_of_an_agent_is_the_true_one(name: str, runs: list[Run]) -> None:
    """Eight at a time; each is a program, and nothing of any is left."""
    strict(follow())
    async with Runtime(ScriptedExecutor(say)) as runtime:
        agent = AGENTS[name](ChatAgentRT(runtime=runtime, max_tokens=64))
        results = await asyncio.gather(*(agent.graph.ainvoke(agent.input) for _ in range(8)))
        executor = runtime.executor
        assert isinstance(executor, ScriptedExecutor)
    assert len(runs) == 8
    found = sorted(stages_of(run.dag) for run in runs)
    assert found == sorted([sorted(s) for s in agent.truth(result)] for result in results)
    assert {run.state for run in runs} == {RunState.DONE}
    assert sorted(executor.ended) == sorted(run.id for run in runs)
    assert {call.identity.program_type for call in executor.calls} == {runs[0].type}


async def test_the_true_path_reaches_the_engine(runs: list[Run]) -> None:
    """A call's p(c) is its longest path through the graph, in seconds of service."""
    async with Runtime(ScriptedExecutor(say)) as runtime:
        agent = AGENTS["map_reduce"](ChatAgentRT(runtime=runtime, max_tokens=64))
        await agent.graph.ainvoke(agent.input)
        executor = runtime.executor
        assert isinstance(executor, ScriptedExecutor)
    [run] = runs
    plan, *jokes, choose = run.dag.nodes()
    assert [call.identity.path_s for call in executor.calls] == [
        node.path_s for node in run.dag.nodes()
    ]
    assert {joke.path_s for joke in jokes} == {plan.service_s}
    assert choose.path_s == plan.service_s + max(joke.service_s for joke in jokes)
    assert [call.identity.node for call in executor.calls] == [
        "plan",
        *["joke"] * len(jokes),
        "choose",
    ]
