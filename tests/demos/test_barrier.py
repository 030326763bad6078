"""The barrier demos are one agent: equal calls, but only LangGraph's wait for each other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from agentrt import Runtime
from agentrt.integrations.langchain import ChatAgentRT
from agentrt.integrations.langgraph import follow
from agentrt.runtime.events import Event, ProgramStarted
from agentrt.runtime.run import Run
from barrier_agentrt import barrier_agentrt
from barrier_common import TASKS
from barrier_langgraph import build
from tests.doubles.scripted import ScriptedExecutor

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


def edges(run: Run) -> dict[str, set[str]]:
    """The parents of each step, by the last names of their scopes."""
    names = [node.scope.rpartition("/")[2] for node in run.dag.nodes()]
    return {names[n.id]: {names[parent] for parent in n.parents} for n in run.dag.nodes()}


@contextmanager
def runs_started() -> Iterator[list[Run]]:
    """The runs of LangGraph's graphs that start meanwhile; they stay after their end."""
    runs: list[Run] = []
    registry = follow().registry

    def saw(event: Event) -> None:
        if isinstance(event, ProgramStarted):
            runs.append(registry.runs[event.program_id])

    registry.listen(saw)
    try:
        yield runs
    finally:
        registry.unlisten(saw)


async def both() -> tuple[Run, Run, ScriptedExecutor]:
    executor = ScriptedExecutor(say)
    async with Runtime(executor) as runtime:
        run = runtime.start(barrier_agentrt, TOPIC)
        text = await run.wait()
        graph = build(ChatAgentRT(runtime=runtime))
        with runs_started() as found:
            state = await graph.ainvoke({"topic": TOPIC, "notes": {}})
    assert state["notes"]["write"] == text
    [client] = found
    return run, client, executor


async def test_the_program_has_only_its_data_edges() -> None:
    run, _, _ = await both()
    assert edges(run) == DATA


async def test_the_graph_has_the_edges_of_its_supersteps() -> None:
    _, client, _ = await both()
    assert edges(client) == SUPERSTEPS


async def test_both_make_the_same_calls() -> None:
    _, _, executor = await both()
    calls = [(str(call.spec.messages), call.spec.max_tokens) for call in executor.calls]
    assert sorted(calls[: len(TASKS)]) == sorted(calls[len(TASKS) :])


async def test_the_barrier_costs_what_the_lengths_say() -> None:
    """The graph: outline, survey, check, compare, write. The program: outline, the branch of
    search, read and compare, write."""
    run, client, _ = await both()
    steps = {name: task.tokens for name, task in TASKS.items()}
    slow = ("outline", "survey", "check", "compare", "write")
    quick = ("outline", "search", "read", "compare", "write")
    for one, path in ((client, slow), (run, quick)):
        assert one.first_step is not None
        assert one.last_step - one.first_step + 1 == sum(steps[name] for name in path)


def test_the_common_part_says_the_data_edges() -> None:
    assert {name: set(task.needs) for name, task in TASKS.items()} == DATA
