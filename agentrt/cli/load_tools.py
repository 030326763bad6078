"""Finds the tools in a user's file: ``TOOLS.py``, or ``TOOLS.py:NAME,NAME``."""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import Any

from agentrt.cli.load import import_file, split_target
from agentrt.errors import ConfigError, ProgramLoadError
from agentrt.interrupts import Tool, tool


def load_tools(target: str) -> list[Tool]:
    """The file's ``@tool`` functions; with names behind it, those, and plain functions too.

    Raises `ProgramLoadError` if there is none, or for what cannot be a tool, and
    `ImportFailedError` if the file's own code raised.
    """
    path, names = split_target(target)
    if path.suffix != ".py":
        raise ProgramLoadError(f"{path}: tools are in a Python file")
    module = import_file(path)
    if names is not None:
        found = [_named(target, module, name.strip()) for name in names.split(",")]
    else:
        found = list(
            {id(one): one for one in vars(module).values() if _is_own(one, module)}.values()
        )
    if not found:
        raise ProgramLoadError(
            f"{path}: no tool in it; mark functions with @tool, or name some: {path}:NAME,NAME"
        )
    if twice := {one.name for one in found if [other.name for other in found].count(one.name) > 1}:
        raise ProgramLoadError(f"{path}: two tools are called {twice.pop()!r}; rename one")
    return found


def _is_own(value: Any, module: ModuleType) -> bool:
    return isinstance(value, Tool) and value.__module__ == module.__name__


def _named(target: str, module: ModuleType, name: str) -> Tool:
    value = vars(module).get(name)
    if isinstance(value, Tool):
        return value
    if not inspect.isfunction(value):
        known = [one for one, value in vars(module).items() if _may_be(one, value, module)]
        there = f"there is: {', '.join(known)}" if known else "it has none"
        raise ProgramLoadError(f"{target}: no function {name!r} in it; {there}")
    try:
        return tool(value)
    except ConfigError as error:
        raise ProgramLoadError(f"{target}: {error}") from error


def _may_be(name: str, value: Any, module: ModuleType) -> bool:
    is_own = getattr(value, "__module__", None) == module.__name__
    return is_own and (isinstance(value, Tool) or (inspect.isfunction(value) and name[0] != "_"))
