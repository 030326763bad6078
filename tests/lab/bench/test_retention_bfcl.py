"""BFCL's tasks as programs: tools really run, and decisions are replayed or the model's own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from agentrt.errors import ConfigError
from agentrt.graph import NodeKind
from agentrt.lab.bench.retention_bfcl import BfclProgram, drawn, shapes
from agentrt.lab.workloads.bfcl import Task, code_tokens, read_tasks, said
from agentrt.request import Call, ToolCall
from agentrt.runtime import Runtime
from agentrt.testing.scripted import ScriptedExecutor


@pytest.fixture(scope="module")
def task() -> Task:
    return read_tasks()[0]


async def test_replayed_decisions_run_every_tool_and_end_in_the_right_state(task: Task) -> None:
    executor = ScriptedExecutor()
    calls = [call for turn in task.turns for call in turn.calls]
    async with Runtime(executor) as runtime:
        run = runtime.start(BfclProgram(task, 0.0, gap_scale=0.0).program())
        assert await run.wait() == {"task": task.task_id, "called": len(calls), "right": True}
    tools = [node.name for node in run.dag.nodes() if node.kind is NodeKind.TOOL]
    assert tools == [call.name for call in calls]
    assert len(executor.calls) == len(calls) + len(task.turns)
    first, second = executor.calls[0].spec, executor.calls[1].spec
    assert first.max_tokens == code_tokens(said(calls[0]))
    assert first.ignore_eos
    assert first.messages is not None
    assert second.messages is not None
    assert second.messages[: len(first.messages)] == first.messages
    result = second.messages[-1]["content"]
    assert result == 'Result: {"current_working_directory": "document"}'


async def test_a_wrong_end_state_is_told(task: Task) -> None:
    """The agent calls nothing, and says that it is done."""
    program = BfclProgram(task, 0.0, gap_scale=0.0, decide="model").program()
    async with Runtime(ScriptedExecutor(lambda call: '{"answer":"no"}')) as runtime:
        result = await runtime.start(program).wait()
    assert result == {"task": task.task_id, "called": 0, "right": False}


async def test_a_model_that_decides_well_solves_the_task(task: Task) -> None:
    sayings = solution(task)
    executor = ScriptedExecutor(lambda call: next(sayings))
    async with Runtime(executor) as runtime:
        program = BfclProgram(task, 0.0, gap_scale=0.0, decide="model").program()
        result = await runtime.start(program).wait()
    assert result["right"]
    assert {tool.name for tool in executor.calls[0].spec.tools} >= {"cd", "mkdir", "mv"}


def solution(task: Task) -> Iterator[str | ToolCall]:
    for turn in task.turns:
        yield from turn.calls
        yield '{"answer":"done"}'


async def test_a_model_that_never_answers_is_stopped(task: Task) -> None:
    one = replace(task, turns=task.turns[:1])

    def again(call: Call) -> ToolCall:
        return ToolCall("ls", {})

    async with Runtime(ScriptedExecutor(again)) as runtime:
        program = BfclProgram(one, 0.0, gap_scale=0.0, decide="model").program()
        assert (await runtime.start(program).wait())["called"] == 20


def test_tasks_are_drawn_once_each_the_same_for_all_clocks() -> None:
    real, virtual = drawn(12, 9, 2.0, 5, 0.1), shapes(12, 9, 2.0, 5, 0.1)
    assert len({one.task.task_id for one in real}) == 12
    assert [one.task.task_id for one in real] == [one.program_id for one in virtual]
    assert [one.arrives_s for one in real] == [one.arrives_s for one in virtual]
    assert drawn(12, 9, 2.0, 5, 0.1) == real != drawn(12, 9, 2.0, 6, 0.1)
    with pytest.raises(ConfigError, match="200 tasks of this kind, not 201 programs"):
        shapes(201, 9, 2.0, 5, 0.1)


def test_a_task_is_cut_between_its_turns() -> None:
    lengths = [len(one.calls) for one in shapes(50, 6, 1.0, 0, 1.0)]
    whole = [len(one.calls) for one in shapes(50, 99, 1.0, 0, 1.0)]
    assert min(lengths) >= 1
    assert all(
        cut <= max(6, full) and cut <= full for cut, full in zip(lengths, whole, strict=True)
    )
    assert sum(lengths) < sum(whole)
    tasks = {one.task.task_id: one.task for one in drawn(50, 6, 1.0, 0, 1.0)}
    for task in tasks.values():
        total = sum(len(turn.calls) + 1 for turn in task.turns)
        assert total <= 6 or len(task.turns) == 1
