"""`agentrt bench langgraph` on scripted executors: equal work, its arithmetic, its server."""

from __future__ import annotations

import statistics
from contextlib import nullcontext
from itertools import pairwise

import pytest

from agentrt import Runtime
from agentrt.cli.app import call
from agentrt.errors import EngineStartError, InvariantError
from agentrt.executors.vllm.options import EngineOptions
from agentrt.executors.vllm.processes import descendants
from agentrt.graph import NodeKind
from agentrt.integrations.langchain import ChatAgentRT
from agentrt.lab.bench.engines import FixedLength
from agentrt.lab.bench.following import runs_started
from agentrt.lab.bench.langgraph import COLUMNS, FCFS, Side, measure
from agentrt.lab.bench.react import (
    LEAST_TOKENS,
    LEAST_TURNS,
    MIXES,
    MOST_TOKENS,
    MOST_TURNS,
    draw_plans,
    first_state,
    react_graph,
)
from agentrt.lab.bench.results import Results
from agentrt.lab.bench.servers import StockServer, stock_flags
from agentrt.testing.scripted import ScriptedExecutor
from tests.cli.test_bad_input import check


@pytest.mark.parametrize("mix", MIXES)
def test_courses_are_of_unequal_lengths_and_the_same_again(mix: str) -> None:
    plans = draw_plans(200, 1, mix)
    assert plans == draw_plans(200, 1, mix)
    assert plans != draw_plans(200, 2, mix)
    turns = [len(plan.turns) for plan in plans]
    tokens = [n for plan in plans for n in plan.turns]
    assert (min(turns), max(turns)) == (LEAST_TURNS, MOST_TURNS)
    assert (min(tokens), max(tokens)) == (LEAST_TOKENS, MOST_TOKENS)
    assert sorted(turns)[100] < MOST_TURNS, "most are short"
    means = [statistics.fmean(plan.turns) for plan in plans]
    assert (statistics.correlation(turns, means) > 0.7) is (mix == "sized")


async def test_an_agent_takes_its_course_whatever_the_model_says() -> None:
    plan = max(draw_plans(16, seed=0), key=lambda plan: len(plan.turns))
    async with Runtime(FixedLength(ScriptedExecutor())) as runtime:
        with runs_started() as runs:
            graph = react_graph(ChatAgentRT(runtime=runtime))
            state = await graph.ainvoke(first_state(plan))
    assert tuple(output for _, output in state["used"]) == plan.turns
    [run] = runs
    nodes = run.dag.nodes()
    kinds = [NodeKind.CALL, NodeKind.TOOL] * (len(plan.turns) - 1) + [NodeKind.CALL]
    assert [node.kind for node in nodes] == kinds
    assert [node.parents for node in nodes] == [(), *((i,) for i in range(len(kinds) - 1))]
    assert run.dag.totals.failed == 0
    said = [message.text for message in state["messages"] if message.type == "tool"]
    assert said[0].startswith(f"One pack of {plan.item} costs ")


async def bench(
    stock: Runtime,
    ours: Runtime,
    told: list[str],
    agents: int = 4,
    names: tuple[str, str] = ("stock", "ours"),
) -> Results:
    async def ready() -> None:
        told.append("ready")

    sides = [
        Side(names[0], ChatAgentRT(runtime=stock), ready, followed=False),
        Side(names[1], ChatAgentRT(runtime=ours), ready),
    ]
    return await measure(sides, agents, "sized", 2, 3, told.append)


def medians(measured: Results) -> dict[str, dict[str, float]]:
    return {row.pop("side"): row for row in measured.medians()}


async def test_outcomes_of_both_sides() -> None:
    told: list[str] = []
    async with Runtime(FixedLength(ScriptedExecutor())) as runtime:
        measured = await bench(runtime, runtime, told)
    assert told == [
        *("warming up: stock", "ready", "warming up: ours", "ready"),
        *("repeat 1 of 2: 4 agents, stock", "ready", "repeat 1 of 2: 4 agents, ours", "ready"),
        *("repeat 2 of 2: 4 agents, ours", "ready", "repeat 2 of 2: 4 agents, stock", "ready"),
    ]
    work = [sum(sum(plan.turns) for plan in draw_plans(4, seed)) for seed in (3, 4)]
    for side in ("stock", "ours"):
        assert [one["output_tokens"] for one in measured.samples[side,]] == work
    head, _, stock, ours = measured.table(COLUMNS).splitlines()
    assert stock.count("1.00 (1.00-1.00)") == 4
    assert [line.count("|") for line in (head, stock, ours)] == [16] * 3
    found = medians(measured)
    assert found["stock"]["mean_s_to_stock"] == 1.0
    assert "mean_steps" not in found["stock"]
    assert "mean_steps_to_fcfs" not in found["ours"]
    assert found["ours"]["preemptions"] == 0


async def test_steps_are_compared_with_those_of_fcfs() -> None:
    async with Runtime(FixedLength(ScriptedExecutor())) as runtime:
        measured = await bench(runtime, runtime, [], names=("stock", FCFS))
    found = medians(measured)
    assert found[FCFS]["mean_steps_to_fcfs"] == found[FCFS]["p95_steps_to_fcfs"] == 1.0
    stock, fcfs = measured.table(COLUMNS).splitlines()[2:]
    assert stock.count("1.00 (1.00-1.00)") == 4
    assert "".join(fcfs.split("|")[11:13]).split() == ["1.00", "(1.00-1.00)"] * 2


async def test_an_agent_alone_takes_a_step_a_token() -> None:
    async with Runtime(FixedLength(ScriptedExecutor())) as runtime:
        measured = await bench(runtime, runtime, [], agents=1)
    for seed, found in enumerate(measured.samples["ours",], start=3):
        [plan] = draw_plans(1, seed)
        assert found["mean_steps"] == found["p95_steps"] == sum(plan.turns) - 1


async def test_unequal_work_is_no_result() -> None:
    async with (
        Runtime(ScriptedExecutor(lambda call: "short")) as stock,
        Runtime(FixedLength(ScriptedExecutor())) as ours,
    ):
        with pytest.raises(InvariantError, match="unequal tokens"):
            await bench(stock, ours, [])


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--policy", "lifo"], ["unknown policy 'lifo'", "plas"]),
        (["--agents", "0"], ["'--agents'", "x>=1"]),
        (["--repeat", "0"], ["'--repeat'", "x>=1"]),
    ],
)
def test_bad_input(args: list[str], words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    check(capsys, call(["bench", "langgraph", *args]), *words)


@pytest.mark.engine
def test_stock_gets_the_options_of_the_embedded_engine() -> None:
    flags = ("--dtype", "float32", "--no-enable-prefix-caching")
    found = stock_flags(EngineOptions(max_num_seqs=3, flags=flags), "some/model")
    assert ("--max-num-seqs", "3") in pairwise(found)
    assert ("--dtype", "float32") in pairwise(found)
    assert "--no-enable-prefix-caching" in found
    assert not {"--scheduler-cls", "--additional-config", "--model"} & set(found)


@pytest.mark.engine
async def test_a_server_that_ends_is_an_error_and_leaves_nothing() -> None:
    before = set(descendants())
    async with StockServer(EngineOptions(), "no/such/model") as server:
        with pytest.raises(EngineStartError, match="ended with exit code"):
            await server.start(nullcontext)
    assert set(descendants()) <= before
