"""BFCL's tools, run for real: each task has instances of its own, whose state its calls change."""

from __future__ import annotations

import copy
import importlib
import json
from collections.abc import Callable
from typing import Any

from agentrt.errors import ConfigError
from agentrt.lab.workloads.bfcl import Task, check_installed
from agentrt.request import ToolCall


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
    check_installed()
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
