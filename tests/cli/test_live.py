"""The live view, drawn from hand-made programs."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from agentrt.cli.live import render
from agentrt.graph import ExecutionDAG, Interrupt, NodeKind, NodeState, Progress
from agentrt.request import CallReport
from agentrt.runtime.run import Run, RunRegistry, RunState
from agentrt.scheduler.programs import ProgramStats


def make_run(number: int = 1) -> Run:
    run_id = f"react-{number}"
    dag = ExecutionDAG(run_id, "react")
    return Run(run_id, "react", ProgramStats(run_id, "react"), dag, 0.0, RunRegistry())


def emit(run: Run, name: str, scope: str, kind: NodeKind = NodeKind.CALL, at: float = 1.0) -> int:
    node = run.dag.add(kind, name, scope, (), at)
    if kind is NodeKind.CALL:
        run.row.calls[f"{run.id}/{node.id}"] = at
    return node.id


def finish(run: Run, node_id: int, at: float) -> None:
    run.dag.finish(node_id, at, CallReport(service_s=0.5))
    run.row.calls.pop(f"{run.id}/{node_id}", None)
    run.row.finished_calls += 1


def draw(
    runs: Sequence[Run], snapshot: Mapping[str, Any] | None = None, height: int = 30, now: float = 3
) -> list[str]:
    console = Console(width=100, height=height, record=True, file=open_nowhere())
    console.print(render(runs, snapshot or {}, now, height))
    return [line.rstrip() for line in console.export_text().splitlines()]


def open_nowhere() -> Any:
    import io

    return io.StringIO()


def test_nodes_hang_under_the_functions_that_emitted_them() -> None:
    """One call runs, one waits behind two, a third is not known to the engine yet."""
    run = make_run()
    for scope in ("react/plan", "react/plan/expand", "react"):
        emit(run, "llm", scope)
    snapshot = {
        "named_levels": True,
        "running": [{"call_id": "react-1/0", "level": 0}],
        "waiting": [{"call_id": "react-1/1", "level": 2, "ahead": 2}],
    }
    assert draw([run], snapshot) == [
        "react-1  running  3.0 s  3 calls  0 → 0 tokens",
        "├── plan",
        "│   ├── llm  running, Q1, 2.0 s",
        "│   └── expand",
        "│       └── llm  waiting at Q3, behind 2 calls, 2.0 s",
        "└── llm  being sent, 2.0 s",
    ]


def test_without_numbered_levels_only_the_lane_has_a_name() -> None:
    run = make_run()
    emit(run, "llm", "react")
    call = {"call_id": "react-1/0", "level": -7, "ahead": 0}
    snapshot = {"named_levels": False, "waiting": [call]}
    assert draw([run], snapshot)[1] == "└── llm  waiting, next, 2.0 s"
    call["promoted"] = True
    assert draw([run], snapshot)[1] == "└── llm  waiting at lane, next, 2.0 s"


def test_tools_and_humans() -> None:
    run = make_run()
    for kind, name in ((NodeKind.TOOL, "search"), (NodeKind.HUMAN, "Which\n[b]colour?")):
        run.dag.start(emit(run, name, "react", kind), 1.5)
    run.row.tools, run.row.humans = 1, 1
    assert draw([run]) == [
        "react-1  in tool  3.0 s  0 calls  0 → 0 tokens",
        "├── search  tool, 2.0 s",
        "└── Which [b]colour?  waits for a human, 2.0 s",
    ]


def test_what_becomes_of_a_tool_is_told() -> None:
    """One waits for its slot, one is at it for the second time, one was too late."""
    run = make_run()
    ids = [emit(run, name, "react", NodeKind.TOOL) for name in ("drill", "saw", "glue")]
    for node_id in ids:
        run.dag.start(node_id, 1.0)
        asked = Interrupt("mqtt", attempt=2, progress=Progress(3, 10, "cutting"))
        run.dag.node(node_id).interrupt = asked
    run.dag.requeue(ids[0], "for one of 2 calls of drill")
    run.dag.expire(ids[2], 2.0, "not over after 1 s")
    run.row.tools = 2
    assert draw([run])[1:] == [
        "├── drill  waiting for one of 2 calls of drill, 2.0 s",
        "├── saw  tool, attempt 2, 3/10 cutting, 2.0 s",
        "└── glue  expired: not over after 1 s",
    ]


def test_only_the_last_few_ended_nodes_stay() -> None:
    run = make_run()
    for _ in range(5):
        finish(run, emit(run, "llm", "react"), 2.0)
    run.dag.fail(emit(run, "calc", "react", NodeKind.TOOL), 2.0, "ValueError: no")
    assert draw([run]) == [
        "react-1  between calls  3.0 s  5 calls  0 → 0 tokens",
        "├── llm  done in 1.0 s",
        "├── llm  done in 1.0 s",
        "└── calc  failed: ValueError: no",
    ]


def test_an_ended_program_takes_one_line() -> None:
    run = make_run()
    finish(run, emit(run, "llm", "react"), 2.0)
    run.state, run.ended_at = RunState.DONE, 2.0
    run.dag.close(2.0, NodeState.DONE)
    assert draw([run], now=9) == ["react-1  done  2.0 s  1 call  0 → 0 tokens"]


def test_many_programs_fit_the_height() -> None:
    """20 programs, 5 of them over, in 10 rows: the running ones come first."""
    runs = [make_run(number) for number in range(1, 21)]
    for run in runs[:5]:
        run.state, run.ended_at = RunState.DONE, 2.0
    for run in runs[5:]:
        emit(run, "llm", "react")
    lines = draw(runs, height=10)
    assert len(lines) == 10
    assert lines[0].startswith("react-6  running")
    assert lines[-1] == "… and 11 more: 6 running, 5 done"


def test_rows_are_shared_between_programs() -> None:
    """3 programs with 9 open calls each, in 12 rows: each shows some of its calls."""
    runs = [make_run(number) for number in range(1, 4)]
    for run in runs:
        for _ in range(9):
            emit(run, "llm", "react/deep")
    lines = draw(runs, height=12)
    assert len(lines) == 12
    assert sum("llm" in line for line in lines) == 6


def test_a_view_that_lives_follows_its_programs() -> None:
    """The screen animates on the loop, gives way to a question, and is gone at its end."""
    from agentrt.cli.screen import LiveScreen

    out = open_nowhere()
    run = make_run()
    emit(run, "llm", "react")

    async def nothing() -> Mapping[str, Any]:
        return {}

    async def shown(words: str) -> None:
        async with asyncio.timeout(60):
            while words not in out.getvalue():
                await asyncio.sleep(0)

    async def story() -> None:
        screen = LiveScreen(Console(file=out, force_terminal=True, width=80, height=20))
        async with screen.showing():
            screen.progress("loading a model")
            await shown("loading a model")
            screen.watch([run], nothing, lambda: 4.0)
            await shown("react-1")
            with screen.paused() as terminal:
                terminal.write("asked\n")

    asyncio.run(story())
    text = out.getvalue()
    assert "asked" in text
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h")  # the cursor is back
