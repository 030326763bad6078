"""BFCL's multi-turn tasks as ReAct programs: what is asked, which tools there are, what is right.

The Berkeley Function Calling Leaderboard (v4) asks an agent some things in turn, and gives it
the tools of one or two APIs. Its package ``bfcl-eval`` has the tasks, the tool calls that solve
them, and the tools themselves, which `Tools` runs for real. That package pins old versions of what
we and vLLM need, so it is no dependency: ``pip install --no-deps bfcl-eval``.
"""

from __future__ import annotations

import ast
import copy
import importlib
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.resources import files
from importlib.resources.abc import Traversable
from importlib.util import find_spec
from itertools import pairwise
from random import Random
from typing import Any

from agentrt.errors import ConfigError
from agentrt.lab.workloads.shape import CallShape, ProgramShape
from agentrt.request import ToolCall, ToolSpec

TYPE = "bfcl"
INSTRUCTIONS = (
    "You solve what the user asks with tools, one call at a time. Reply with one call of a tool, "
    "as in Python, or with an answer once all is done. The tools are:"
)
ANSWER = "All of this is done. Is there anything else that you need?"
"""What an agent says at the end of a turn. The tasks have no right answers, only right calls."""
RESULT = "Result: "
TOKENS_PER_MESSAGE = 5
"""What a chat template adds to a message."""
GAP_QUANTILES = (
    (0.0, 1.0),
    (0.05, 3.0),
    (0.1, 4.0),
    (0.25, 5.0),
    (0.5, 8.0),
    (0.6, 11.0),
    (0.7, 15.0),
    (0.8, 26.0),
    (0.9, 75.0),
    (0.95, 154.0),
)
"""Seconds between a call that ends in a tool's use and the next, by the share that is shorter:
17,182 gaps of 338 recorded sessions of coding agents. The longest twentieth is left out."""

_ASKED = "BFCL_v4_multi_turn_base.json"
_SCHEMA_TYPES = {"dict": "object", "float": "number", "tuple": "array", "any": None}
_INTRODUCTION = "Tool description: "


@dataclass(frozen=True, slots=True)
class Turn:
    """What the user asks, and the tool calls that solve it, one after another."""

    request: str
    calls: tuple[ToolCall, ...]


@dataclass(frozen=True, slots=True)
class Task:
    """A task: its turns, the APIs whose tools it has, and the state in which they begin."""

    task_id: str
    apis: tuple[str, ...]
    turns: tuple[Turn, ...]
    tools: tuple[ToolSpec, ...] = field(repr=False)
    scenario: dict[str, Any] = field(repr=False)

    @property
    def system(self) -> str:
        """The system prompt: instructions, and the tools' signatures."""
        return "\n".join([INSTRUCTIONS, *(_signature(tool) for tool in self.tools)])


def read_tasks() -> list[Task]:
    """The 200 tasks of the base category. Raises `ConfigError` where they are not installed."""
    _check_installed()
    data = files("bfcl_eval") / "data"
    solved = {one["id"]: one["ground_truth"] for one in _lines(data / "possible_answer" / _ASKED)}
    return [_task(one, solved[one["id"]], data) for one in _lines(data / _ASKED)]


def said(call: ToolCall) -> str:
    """A tool call as an agent says it, in Python's form."""
    return f"{call.name}({', '.join(f'{key}={value!r}' for key, value in call.arguments.items())})"


def code_tokens(text: str) -> int:
    """About how many tokens a tool call or its result has, as SmolLM2 splits those of BFCL."""
    return max(1, math.ceil(len(text) / 2.65))


def prose_tokens(text: str) -> int:
    """About how many tokens a text in English has, likewise; signatures with words are one."""
    return max(1, math.ceil(len(text) / 3.95))


def gaps(seed: int | str, scale: float) -> Iterator[float]:
    """Seconds that tools take, drawn from `GAP_QUANTILES`, times ``scale``; without end."""
    rng = Random(f"gaps/{seed}")
    while True:
        yield scale * gap_at(rng.uniform(0.0, GAP_QUANTILES[-1][0]))


def gap_at(share: float) -> float:
    """The gap than which a ``share`` is shorter (seconds), between known ones by ratio."""
    for (low, below_s), (high, above_s) in pairwise(GAP_QUANTILES):
        if share <= high:
            return float(below_s * (above_s / below_s) ** ((share - low) / (high - low)))
    raise ConfigError(f"gaps are known up to a share of {GAP_QUANTILES[-1][0]}, not {share:g}")


def shape(task: Task, results: Callable[[ToolCall], str], seconds: Iterator[float]) -> ProgramShape:
    """The task as a shape, for virtual time: tokens are estimated from its texts.

    ``results`` runs a tool. Programs of one type share their whole system prompt here, so
    tasks with other tools are of another type.
    """
    system = prose_tokens(task.system) + TOKENS_PER_MESSAGE
    calls: list[CallShape] = []
    prompt, gap_s, tool = system, 0.0, ""
    for turn in task.turns:
        prompt += prose_tokens(turn.request) + TOKENS_PER_MESSAGE
        for call in turn.calls:
            prompt = _extend(calls, prompt, code_tokens(said(call)), gap_s, tool)
            prompt += code_tokens(RESULT + results(call)) + TOKENS_PER_MESSAGE
            gap_s, tool = next(seconds), call.name
        prompt = _extend(calls, prompt, prose_tokens(ANSWER), gap_s, tool)
        gap_s, tool = 0.0, ""
    kind = f"{TYPE} {' '.join(task.apis)} {len(task.tools)}"
    return ProgramShape(task.task_id, kind, tuple(calls), system_tokens=system)


def _extend(calls: list[CallShape], prompt: int, output: int, gap_s: float, tool: str) -> int:
    """Add a call to a chain; the tokens of its prompt and output together."""
    last = len(calls) - 1
    after = () if last < 0 else (last,)
    extends = None if last < 0 else last
    calls.append(CallShape(output, prompt, after, gap_s, "act", extends, tool=tool))
    return prompt + output + TOKENS_PER_MESSAGE


class Tools:
    """The tools of one task, in the state that its scenario says."""

    def __init__(self, task: Task) -> None:
        self._apis = {name: _instance(name, task.scenario.get(name, {})) for name in task.apis}
        offered = {tool.name for tool in task.tools}
        solving = {call.name for turn in task.turns for call in turn.calls}
        self._known: dict[str, Callable[..., Any]] = {
            name: getattr(api, name)
            for api in self._apis.values()
            for name in offered | solving
            if callable(getattr(api, name, None))
        }

    def call(self, call: ToolCall) -> str:
        """Run a tool; its result, or what it complains of, as BFCL shows them to a model."""
        tool = self._known.get(call.name)
        if tool is None:
            return f"Error during execution: there is no tool {call.name!r}"
        try:
            result = tool(**call.arguments)
        except Exception as error:  # whatever a tool raises is for the agent to read
            return f"Error during execution: {error}"
        if not isinstance(result, dict):
            return str(result)
        try:
            return json.dumps(result)
        except TypeError:
            return str(result)

    def state(self) -> dict[str, dict[str, Any]]:
        """The public attributes of each API: what BFCL compares at the end of a turn."""
        return {
            name: {key: value for key, value in vars(api).items() if not key.startswith("_")}
            for name, api in self._apis.items()
        }


def solved(task: Task) -> Tools:
    """The tools of a task, after all calls that solve it."""
    tools = Tools(task)
    for turn in task.turns:
        for call in turn.calls:
            tools.call(call)
    return tools


def _instance(name: str, scenario: dict[str, Any]) -> Any:
    _check_installed()
    from bfcl_eval.constants import executable_backend_config as known

    try:
        module = importlib.import_module(known.CLASS_FILE_PATH_MAPPING[name])
    except ImportError as error:
        raise ConfigError(
            f"BFCL's tools {name} need {error.name}, which is not installed: "
            f"pip install {error.name}"
        ) from error
    api = getattr(module, name)()
    if name not in known.STATELESS_CLASSES:
        api._load_scenario(copy.deepcopy(scenario), long_context=False)
    return api


# -- reading the package's files --------------------------------------------------------


def _check_installed() -> None:
    """Raise `ConfigError` where BFCL's package is missing."""
    if find_spec("bfcl_eval") is None:
        raise ConfigError(
            "BFCL's tasks and tools are in the package bfcl-eval, which is not installed; "
            "install it without what it pins: pip install --no-deps bfcl-eval mpmath"
        )


def _lines(file: Traversable) -> list[dict[str, Any]]:
    try:
        return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{file}: {error}; this reads the files of bfcl-eval 2026.3.23"
        ) from error


def _task(asked: dict[str, Any], solved: list[list[str]], data: Traversable) -> Task:
    turns = zip(asked["question"], solved, strict=True)
    left_out = asked.get("excluded_function", ())
    apis = tuple(sorted(asked["involved_classes"]))
    return Task(
        task_id=asked["id"],
        apis=apis,
        turns=tuple(_turn(messages, calls, apis, data) for messages, calls in turns),
        tools=tuple(tool for tool in _tools(apis, data) if tool.name not in left_out),
        scenario=asked["initial_config"],
    )


def _turn(
    messages: list[dict[str, str]], calls: list[str], apis: tuple[str, ...], data: Traversable
) -> Turn:
    request = "\n".join(message["content"] for message in messages)
    parameters = {tool.name: list(tool.parameters["properties"]) for tool in _tools(apis, data)}
    return Turn(request, tuple(_parsed(call, parameters) for call in calls))


def _parsed(text: str, parameters: dict[str, list[str]]) -> ToolCall:
    """A call in Python's form, as values: nothing is evaluated."""
    call = ast.parse(text.strip(), mode="eval").body
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        raise ConfigError(f"{text!r} is not the call of a tool")
    by_place = zip(parameters[call.func.id], call.args, strict=False)
    arguments = {name: ast.literal_eval(value) for name, value in by_place}
    arguments |= {str(one.arg): ast.literal_eval(one.value) for one in call.keywords}
    return ToolCall(call.func.id, arguments)


_READ: dict[tuple[str, ...], tuple[ToolSpec, ...]] = {}


def _tools(apis: tuple[str, ...], data: Traversable) -> tuple[ToolSpec, ...]:
    if apis not in _READ:
        from bfcl_eval.constants import executable_backend_config as known

        names = [known.MULTI_TURN_FUNC_DOC_FILE_MAPPING[api] for api in apis]
        found = [one for name in names for one in _lines(data / "multi_turn_func_doc" / name)]
        _READ[apis] = tuple(_spec(one) for one in found)
    return _READ[apis]


def _spec(entry: dict[str, Any]) -> ToolSpec:
    # What stands before is the same for all tools of an API.
    description = entry["description"].split(_INTRODUCTION)[-1]
    return ToolSpec(entry["name"], description, _as_json_schema(entry["parameters"]))


def _as_json_schema(part: Any) -> Any:
    """BFCL names types as Python does, and JSON schema in its own way."""
    if not isinstance(part, dict):
        return part
    schema = {key: _as_json_schema(value) for key, value in part.items() if key != "default"}
    if isinstance(part.get("type"), str):
        kind = _SCHEMA_TYPES.get(part["type"], part["type"])
        schema.pop("type")
        schema |= {} if kind is None else {"type": kind}
    return schema


def _signature(tool: ToolSpec) -> str:
    return f"{tool.name}({', '.join(tool.parameters['properties'])}): {tool.description}"
