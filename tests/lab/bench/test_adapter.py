"""`agentrt bench adapter` at small sizes: what is compared with what. No test reads a clock."""

from __future__ import annotations

import json

import pytest

from agentrt.cli.app import call
from agentrt.integrations.langgraph import follow
from agentrt.lab.bench.adapter import fan_graph, loop_graph
from agentrt.lab.bench.following import idly_followed, runs_started, unfollowed


def test_every_case_is_in_the_table_and_in_the_json(capsys: pytest.CaptureFixture[str]) -> None:
    args = ["bench", "adapter", "--steps", "10", "--calls", "10", "--repeat", "2", "--json"]
    assert call(args) == 0
    out, err = capsys.readouterr()
    *table, line = out.splitlines()
    cases = json.loads(line)
    assert [case["per"] for case in cases] == ["step", "step", "step", "call", "call"]
    assert [row.split("|")[1].strip() for row in table[2:]] == [case["case"] for case in cases]
    for case in cases:
        assert case["cpu_ratio"] > 0
        assert case["langgraph_cpu_us"] > 0
        assert case["agentrt_wall_us"] > 0
    assert err.splitlines() == ["warming up", "repeat 1 of 2", "repeat 2 of 2"]


async def test_unfollowed_graphs_are_no_programs() -> None:
    given = {"goal": 3, "done": 0}
    with runs_started() as runs:
        with unfollowed():
            await loop_graph().ainvoke(given)
            await fan_graph().ainvoke(given)
        with idly_followed():
            await loop_graph().ainvoke(given)
        assert runs == []
        await loop_graph().ainvoke(given)
        await fan_graph().ainvoke(given)
    assert [run.type for run in runs] == ["loop", "fan"]


async def test_following_goes_on_after_an_error() -> None:
    with pytest.raises(KeyError), unfollowed():
        raise KeyError("mine")
    with runs_started() as runs:
        await loop_graph().ainvoke({"goal": 1, "done": 0})
    assert len(runs) == 1


async def test_a_run_that_began_before_is_followed_to_its_end() -> None:
    async def inner(state: object) -> None:
        with unfollowed():
            await fan_graph().ainvoke({"goal": 1, "done": 0})

    before = follow().open_runs()
    with runs_started() as runs:
        await loop_graph(inner).ainvoke({"goal": 1, "done": 0})
    assert [(run.type, run.state.value) for run in runs] == [("loop", "done")]
    assert follow().open_runs() == before
