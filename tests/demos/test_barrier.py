"""The barrier demos are one agent: equal calls, but only LangGraph's wait for each other."""

from __future__ import annotations

from typing import Any

from agentrt import Runtime
from agentrt.integrations.langchain import ChatAgentRT
from agentrt.lab.bench.barrier import edges, runs_started
from agentrt.runtime.run import Run
from agentrt.testing.scripted import ScriptedExecutor
from barrier_agentrt import barrier_agentrt
from barrier_common import TASKS
from barrier_langgraph import build

TOPIC = "how coffee came to Vienna"

DATA = {
    "outline": set[str](),
    "survey": {"outline"},
    "search": {"outline"},
    "quotes": {"outline"},
    "read": {"search"},
    "check": {"quotes"},
    "compare": {"read"},
    "write": {"survey", "compare", "check"},
}
FIRST = {"survey", "search", "quotes"}
SUPERSTEPS = {
    **{name: {"outline"} for name in FIRST},
    "outline": set[str](),
    "read": FIRST,
    "check": FIRST,
    "compare": {"read", "check"},
    "write": {"compare"},
}


def say(call: Any) -> str:
    """Words enough for any call, that tell its question from the others."""
    ask = str(call.spec.messages[-1]["content"]).splitlines()[-1]
    return f"{ask} " + "word " * 200


async def both() -> tuple[Run, Run, ScriptedExecutor]:
    executor = ScriptedExecutor(say)
    async with Runtime(executor) as runtime:
        run = runtime.start(barrier_agentrt, TOPIC)
        text = await run.wait()
        graph = build(ChatAgentRT(runtime=runtime))
        with runs_started() as found:
            state = await graph.ainvoke({"topic": TOPIC, "notes": {}})
    assert state["notes"]["write"] == text
    [guest] = found
    return run, guest, executor


async def test_the_program_has_only_its_data_edges() -> None:
    run, _, _ = await both()
    assert edges(run) == DATA


async def test_the_graph_has_the_edges_of_its_supersteps() -> None:
    _, guest, _ = await both()
    assert edges(guest) == SUPERSTEPS


async def test_both_make_the_same_calls() -> None:
    _, _, executor = await both()
    calls = [(str(call.spec.messages), call.spec.max_tokens) for call in executor.calls]
    assert sorted(calls[: len(TASKS)]) == sorted(calls[len(TASKS) :])


async def test_the_barrier_costs_what_the_lengths_say() -> None:
    """The graph: outline, survey, check, compare, write. The program: outline, the branch of
    search, read and compare, write."""
    run, guest, _ = await both()
    steps = {name: task.tokens for name, task in TASKS.items()}
    slow = ("outline", "survey", "check", "compare", "write")
    quick = ("outline", "search", "read", "compare", "write")
    for one, path in ((guest, slow), (run, quick)):
        assert one.first_step is not None
        assert one.last_step - one.first_step + 1 == sum(steps[name] for name in path)


def test_the_common_part_says_the_data_edges() -> None:
    assert {name: set(task.needs) for name, task in TASKS.items()} == DATA
