"""The report at the end, from hand-made programs."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass, replace

import pytest
from rich.console import Console

from agentrt.batch.plain import tidy
from agentrt.cli.engine_log import root_cause
from agentrt.cli.execute import CommandOutcome
from agentrt.cli.report import to_json
from agentrt.cli.tables import (
    Shares,
    fit_name,
    percentile,
    print_report,
    share_bar,
    split_wall,
)
from agentrt.graph import ExecutionDAG, NodeKind, NodeState
from agentrt.request import CallReport, Usage
from agentrt.runtime.run import Run, RunRegistry, RunState
from agentrt.scheduler.programs import ProgramStats


def chain(dag: ExecutionDAG) -> None:
    """A call that waits 1 s and runs 2 s, a tool of 3 s, 1 s of own code, a call of 1 s."""
    dag.add(NodeKind.CALL, "llm", "react", (), 0.0)
    dag.start(0, 1.0)
    dag.finish(0, 3.0, CallReport(service_s=2.0, waiting_s=1.0))
    dag.add(NodeKind.TOOL, "search", "react/look", (0,), 3.0)
    dag.start(1, 3.0)
    dag.finish(1, 6.0)
    dag.add(NodeKind.CALL, "llm", "react", (1,), 7.0)
    dag.start(2, 7.0)
    dag.finish(2, 8.0, CallReport(service_s=1.0))


def ended_run(number: int = 1, wall_s: float = 8.0) -> Run:
    run_id = f"react-{number}"
    dag = ExecutionDAG(run_id, "react")
    chain(dag)
    dag.close(wall_s, NodeState.DONE)
    row = ProgramStats(run_id, "react", service_s=3.0, waiting_s=1.0, interrupt_s=3.0)
    row.finished_calls, row.usage = 2, Usage(prompt_tokens=40, output_tokens=30, cached_tokens=16)
    run = Run(run_id, "react", row, dag, 0.0, RunRegistry())
    run.state, run.ended_at, run.result = RunState.DONE, wall_s, f"answer {number}"
    return run


def text_of(*runs: Run, width: int = 120) -> str:
    console = Console(width=width, file=io.StringIO(), record=True)
    print_report(CommandOutcome(runs, {}, "atlas"), console)
    return console.export_text()


def test_wall_time_is_split_without_rest() -> None:
    dag = ended_run().dag
    assert split_wall(dag, 0.0, 8.0) == Shares(service=3.0, waiting=1.0, tools=3.0, other=1.0)
    assert split_wall(dag, 0.0, 9.5) == Shares(service=3.0, waiting=1.0, tools=3.0, other=2.5)


def test_of_things_at_one_time_the_engine_counts_first() -> None:
    """A call is served from 1 to 3; another waits from 0 to 4; a tool runs from 0 to 6."""
    dag = ExecutionDAG("p-1", "p")
    for kind in (NodeKind.CALL, NodeKind.CALL, NodeKind.TOOL):
        dag.add(kind, "x", "p", (), 0.0)
    dag.start(0, 1.0)
    dag.start(2, 0.0)
    dag.finish(0, 3.0)
    dag.cancel(1, 4.0)
    dag.finish(2, 6.0)
    assert split_wall(dag, 0.0, 6.0) == Shares(service=2.0, waiting=2.0, tools=2.0)


def test_a_program_without_nodes_is_its_own_code() -> None:
    assert split_wall(ExecutionDAG("p-1", "p"), 2.0, 5.0) == Shares(other=3.0)


@pytest.mark.parametrize(
    ("shares", "bar"),
    [
        (Shares(3, 1, 4, 2), "███▓▒▒▒▒░░"),
        (Shares(1, 1, 1, 0), "███▓▓▓▓▒▒▒"),
        (Shares(), ""),
    ],
)
def test_a_bar_has_as_many_cells_as_it_should(shares: Shares, bar: str) -> None:
    assert share_bar(shares, 10).plain == bar


def test_a_few_programs_get_a_row_each() -> None:
    text = text_of(ended_run(1), ended_run(2))
    head = " ".join(text.splitlines()[1].split())
    assert "█ service ▓ waiting ▒ tools ░ other" in head
    for line in text.splitlines()[2:4]:
        assert line.split()[1:7] == ["done", "8.00", "3.00", "1.00", "3.00", "1.00"]
    assert "██████▓▓▒▒▒▒▒▒░░" in text
    assert [line.split() for line in text.splitlines()[6:8]] == [
        ["react-1", "2", "40", "16", "30", "0", "0", "3.00"],
        ["react-2", "2", "40", "16", "30", "0", "0", "3.00"],
    ]


HEADERS = [
    "seconds share of",
    "run state wall █ service ▓ waiting ▒ tools ░ other wall time",
    "tokens tokens tokens tokens critical",
    "run calls in cached out recomputed preempted path s",
]


@pytest.mark.parametrize("name", ["react", "customer_support_agent"])
def test_eight_programs_are_legible_in_80_columns(name: str) -> None:
    """Long ids give way, but for the number that tells them apart. Figures and words do not."""
    runs = [ended_run(number, wall_s=300.0 * number) for number in range(3, 11)]
    for run in runs:
        run.id = f"{name}-{run.id.removeprefix('react-')}"
        run.state, run.row.finished_calls = RunState.CANCELLED, 12345
        run.row.usage = replace(run.row.usage, prompt_tokens=1234567, output_tokens=234567)
    lines = text_of(*runs, width=80).splitlines()
    time, work = lines[2:10], lines[12:20]
    assert [" ".join(lines[i].split()) for i in (0, 1, 10, 11)] == HEADERS
    for number, (first, second) in enumerate(zip(time, work, strict=True), 3):
        assert first.split()[0].endswith(f"-{number}")
        assert first.split()[1:3] == ["cancelled", f"{300 * number}.00"]
        assert second.split()[0].endswith(f"-{number}")
        assert second.split()[1:] == ["12345", "1234567", "16", "234567", "0", "0", "3.00"]
    assert max(map(len, lines)) <= 80


def test_an_id_loses_its_middle_before_its_number() -> None:
    assert fit_name("support-agent-12", 16).plain == "support-agent-12"
    assert fit_name("support-agent-12", 12).plain == "support-…-12"
    assert fit_name("support-agent-12", 3).plain == "s…-12"
    assert fit_name("supportagent", 6).plain == "suppo…"
    assert fit_name("support-agentsmith", 10).plain == "support-a…"
    assert fit_name("support-agent-e3f0", 10).plain == "supp…-e3f0"


def test_the_critical_path_is_a_chain_of_nodes() -> None:
    chain_text = "react/llm 2.00 s → look/search → react/llm 1.00 s"
    flat = " ".join(text_of(ended_run()).split())
    assert f"critical path of react-1, 3.00 s in the engine: {chain_text}" in flat
    runs = [ended_run(number, wall_s=8.0 * number) for number in (1, 2)]
    flat = " ".join(text_of(*runs).split())
    assert f"critical path of the slowest run, react-2, 3.00 s in the engine: {chain_text}" in flat


def test_a_long_critical_path_loses_its_middle() -> None:
    run = ended_run()
    dag = run.dag = ExecutionDAG("react-1", "react")
    for node in range(50):
        dag.add(NodeKind.CALL, f"step{node}", "", (node - 1,) if node else (), node)
        dag.finish(node, node + 1, CallReport(service_s=1.0))
    flat = " ".join(text_of(run).split())
    assert "step3 1.00 s → … 42 more … → step46 1.00 s" in flat


def test_many_programs_are_summed_and_the_slowest_named() -> None:
    runs = [ended_run(number, wall_s=7.0 + number) for number in range(1, 21)]
    text = text_of(*runs)
    assert "20 runs (20 done)" in text
    wall = next(line.split() for line in text.splitlines() if line.startswith("wall s"))
    assert wall[2:] == ["17.50", "26.00", "350.00"]
    assert "react-20" in text
    assert "react-18" in text
    assert "react-17" not in text


def test_percentile_is_a_value_that_was_there() -> None:
    assert percentile([1.0, 2.0, 3.0], 95) == 3.0
    assert percentile([1.0], 50) == 1.0


def test_json_holds_what_people_see() -> None:
    @dataclass
    class Odd:
        words: set[str]

    run = ended_run()
    run.result = {"odd": Odd({"b", "a"}), "bytes": b"x"}
    failed = ended_run(2)
    failed.state, failed.error, failed.result = RunState.FAILED, ValueError("no\ntea"), None
    engine = {"table": {"runtime": 0, "engine": 0}}
    value = to_json(CommandOutcome([run, failed], engine, "atlas"))
    read = json.loads(json.dumps(value, default=tidy))
    assert read["results"] == [{"odd": {"words": ["a", "b"]}, "bytes": "b'x'"}, None]
    assert read["programs"][0]["wall_s"] == 8.0
    assert read["programs"][0]["critical_path_s"] == 3.0
    assert read["programs"][1]["error"] == "ValueError: no tea"
    assert read["engine"] == engine


LOG = """\
(EngineCore pid=7) ERROR 11-21 14:00:00 [core.py:9] EngineCore failed to start.
(EngineCore pid=7) ERROR 11-21 14:00:00 [core.py:9] Traceback (most recent call last):
(EngineCore pid=7) ERROR 11-21 14:00:00 [core.py:9]   File "core.py", line 9, in run
(EngineCore pid=7) ERROR 11-21 14:00:00 [core.py:9] ValueError: the cache is too small
(EngineCore pid=7) Process EngineCore:
Traceback (most recent call last):
RuntimeError: something else
"""


def test_the_first_error_in_a_log_is_the_cause() -> None:
    assert root_cause(LOG.splitlines()) == "ValueError: the cache is too small"
    assert root_cause(LOG.splitlines()[4:]) == "RuntimeError: something else"
    assert root_cause(["all is well"]) is None


def test_a_result_may_have_any_keys_and_contain_itself() -> None:
    odd: dict[object, object] = {(1, 2): "pair", "list": [{3: 4}]}
    odd["self"] = odd
    assert tidy(odd) == {"(1, 2)": "pair", "list": [{"3": 4}], "self": "…"}
    json.dumps(tidy(odd))
