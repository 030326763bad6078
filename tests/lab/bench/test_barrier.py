"""`agentrt bench barrier`: its arithmetic on a scripted executor, bad input."""

from __future__ import annotations

import pytest

from agentrt import Runtime
from agentrt.cli.app import call
from agentrt.integrations.langchain import ChatAgentRT
from agentrt.lab.bench.barrier import AGENTRT, COLUMNS, LANGGRAPH, BarrierBench, longest_path
from agentrt.lab.bench.engines import FixedLength
from agentrt.testing.scripted import ScriptedExecutor
from barrier_agentrt import barrier_agentrt
from barrier_langgraph import build
from tests.cli.test_bad_input import check

TOKENS = 456
"""All that one run of the agent says."""


async def measured(told: list[str]) -> tuple[BarrierBench, list[int]]:
    """The benchmark with one and with three programs, and how many calls came before each
    emptying of the prefix cache."""
    executor = ScriptedExecutor()
    forgot: list[int] = []

    async def forget() -> None:
        forgot.append(len(executor.calls))

    async with Runtime(FixedLength(executor)) as runtime:
        graph = build(ChatAgentRT(runtime=runtime))
        bench = BarrierBench(runtime, graph, barrier_agentrt, forget, told.append)
        await bench.run([1, 3], 2)
    return bench, forgot


async def test_latency_and_idle_share() -> None:
    bench, _ = await measured([])
    for count in (1, 3):
        sides = [bench.measured.samples[count, side] for side in (LANGGRAPH, AGENTRT)]
        for graph, program in zip(*sides, strict=True):
            assert (graph["path"], program["path"]) == (352, 224)
            assert graph["needed"] == program["needed"] == 224
            assert graph["idle"] == pytest.approx(1 - 224 / 352, abs=0.01)
            assert program["idle"] == pytest.approx(0, abs=0.01)
            assert graph["output_tokens"] == program["output_tokens"] == count * TOKENS
            assert graph["prompt_tokens"] == program["prompt_tokens"]


async def test_sides_take_turns_with_an_empty_cache() -> None:
    told: list[str] = []
    _, forgot = await measured(told)
    assert forgot == [0, 8, 16, 24, 32, 56, 80, 104]
    assert told[:4] == [
        "1 program at once, repeat 1 of 2: langgraph",
        "1 program at once, repeat 1 of 2: agentrt",
        "1 program at once, repeat 2 of 2: agentrt",
        "1 program at once, repeat 2 of 2: langgraph",
    ]


async def test_table_and_medians_say_the_same() -> None:
    bench, _ = await measured([])
    rows = [line.split("|")[1:-1] for line in bench.measured.table(COLUMNS).splitlines()[2:]]
    found = [(int(row[0]), row[1].strip(), float(row[6].split()[0])) for row in rows]
    medians = [
        (row["programs"], row["side"], round(row["steps_to_langgraph"], 2))
        for row in bench.measured.medians()
    ]
    assert found == medians
    assert [row[:2] for row in found] == [
        (1, "langgraph"), (1, "agentrt"), (3, "langgraph"), (3, "agentrt")
    ]  # fmt: skip
    assert found[1][2] == pytest.approx(0.64, abs=0.01)


async def test_the_longest_path_is_over_the_edges_that_are_given() -> None:
    async with Runtime(FixedLength(ScriptedExecutor())) as runtime:
        run = runtime.start(barrier_agentrt, "tea")
        await run.wait()
    alone: dict[str, set[str]] = {node: set() for node in ("outline", "survey", "search", "read")}
    alone |= {"quotes": set(), "check": set(), "compare": set(), "write": {"survey"}}
    assert longest_path(run, alone) == 128 + 48


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--programs", "0"], ["--programs '0'", "positive numbers"]),
        (["--demos", "no/such"], ["barrier_agentrt.py", "no such file"]),
    ],
)
def test_bad_input(args: list[str], words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    check(capsys, call(["bench", "barrier", *args]), *words)
