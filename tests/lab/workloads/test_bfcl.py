"""BFCL's tasks: read as BFCL means them, and tools that do what BFCL's own runner does."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping
from importlib.resources import files
from itertools import islice
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from agentrt.errors import ConfigError
from agentrt.lab.workloads import bfcl
from agentrt.lab.workloads.bfcl import (
    GAP_QUANTILES,
    Task,
    Tools,
    gap_at,
    gaps,
    read_tasks,
    said,
    shape,
)
from agentrt.request import ToolCall


@pytest.fixture(scope="module")
def tasks() -> dict[str, Task]:
    return {task.task_id: task for task in read_tasks()}


def lines(name: str) -> list[dict[str, Any]]:
    text = (files("bfcl_eval") / "data" / name).read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def test_the_tools_do_what_bfcls_own_runner_does_with_every_task(tasks: dict[str, Task]) -> None:
    from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_utils import (
        execute_multi_turn_func_call,
    )

    solved = {one["id"]: one for one in lines("possible_answer/BFCL_v4_multi_turn_base.json")}
    calls = 0
    for asked in lines("BFCL_v4_multi_turn_base.json"):
        task = tasks[asked["id"]]
        tools, start = Tools(task), Tools(task).state()
        for turn, truth in zip(task.turns, solved[task.task_id]["ground_truth"], strict=True):
            results, instances = execute_multi_turn_func_call(
                truth, asked["initial_config"], asked["involved_classes"], "x", task.task_id
            )
            assert [tools.call(call) for call in turn.calls] == results
            calls += len(results)
        assert tools.state() == {name: public(one) for name, one in instances.items()}
        assert Tools(task).state() == start, "one task's tools changed another's scenario"
    assert calls > 1000


def public(instance: object) -> dict[str, Any]:
    return {key: value for key, value in vars(instance).items() if not key.startswith("_")}


def test_calls_change_the_state_they_are_run_on(tasks: dict[str, Task]) -> None:
    """1. The task makes a folder. 2. Its tools have it, and another instance has not."""
    task = tasks["multi_turn_base_0"]
    changed, fresh = Tools(task), Tools(task)
    for call in (ToolCall("cd", {"folder": "document"}), ToolCall("mkdir", {"dir_name": "temp"})):
        changed.call(call)
    look = ToolCall("ls", {})
    assert "temp" in changed.call(look)
    assert "temp" not in fresh.call(look)
    assert changed.state() != fresh.state()


def test_a_mistake_is_told_to_the_agent(tasks: dict[str, Task]) -> None:
    tools = Tools(tasks["multi_turn_base_0"])
    assert "no tool 'fly'" in tools.call(ToolCall("fly", {}))
    assert "no tool '_load_scenario'" in tools.call(ToolCall("_load_scenario", {}))
    assert tools.call(ToolCall("cd", {"where": 1})).startswith("Error during execution: ")


def test_what_a_task_leaves_out_is_not_offered_but_can_solve_it(tasks: dict[str, Task]) -> None:
    task = tasks["multi_turn_base_0"]
    assert "cp" not in {tool.name for tool in task.tools}
    assert "\nmv(source, destination): " in task.system
    assert "\ncp(" not in task.system


def test_tools_are_described_in_json_schema(tasks: dict[str, Task]) -> None:
    tools = {tool.name: tool for task in tasks.values() for tool in task.tools}
    assert len(tools) > 100
    for tool in tools.values():
        Draft202012Validator.check_schema(tool.parameters)
        assert tool.parameters["type"] == "object"
        assert not {"dict", "float", "tuple", "any"} & types(tool.parameters)


def types(part: object) -> set[str]:
    if not isinstance(part, Mapping):
        return set()
    own = {part["type"]} if isinstance(part.get("type"), str) else set()
    return own.union(*(types(one) for one in part.values()))


def test_a_call_is_said_as_python_says_it() -> None:
    assert said(ToolCall("mv", {"source": "a", "n": 1})) == "mv(source='a', n=1)"


def test_a_shape_has_a_call_for_each_tool_and_each_answer(tasks: dict[str, Task]) -> None:
    task = tasks["multi_turn_base_0"]
    tools = Tools(task)
    made = shape(task, tools.call, gaps(1, 1.0))
    assert [call.tool for call in made.calls] == [
        *("", "cd", "mkdir", "mv"),
        *("", "cd", "grep"),
        *("", "sort"),
        *("", "cd", "mv", "cd", "diff"),
    ]
    assert all((call.gap_s > 0) == bool(call.tool) for call in made.calls)
    assert [call.extends for call in made.calls[1:]] == list(range(len(made.calls) - 1))
    prompts = [call.prompt_tokens for call in made.calls]
    assert prompts == sorted(prompts)
    assert 0 < made.system_tokens < prompts[0]
    assert tools.state() != Tools(task).state(), "the results were real ones"


def test_gaps_are_those_of_recorded_agents() -> None:
    for share, seconds in GAP_QUANTILES:
        assert gap_at(share) == pytest.approx(seconds)
    drawn = list(islice(gaps(3, 0.5), 4000))
    assert drawn == list(islice(gaps(3, 0.5), 4000))
    below = 0.5 * gap_at(0.95 / 2)
    assert statistics.median(drawn) == pytest.approx(below, rel=0.1)
    assert max(drawn) <= 0.5 * GAP_QUANTILES[-1][1]
    with pytest.raises(ConfigError, match=r"up to a share of 0\.95, not 0\.99"):
        gap_at(0.99)


def test_without_the_package_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bfcl, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="pip install --no-deps bfcl-eval"):
        read_tasks()
