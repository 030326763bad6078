"""Reads ``langgraph.json``: which graphs a project has, and what they need around them."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dotenv.parser import parse_stream

from agentrt.errors import ProgramLoadError
from agentrt.files import read_json, read_text

FILE = "langgraph.json"
_SHAPE = '{"graphs": {"agent": "./agent.py:graph"}}'


@dataclass(frozen=True, slots=True)
class Entry:
    """One graph of a project: the variable in a file that its name stands for."""

    name: str
    file: Path
    variable: str


def graph_names(path: Path) -> list[str]:
    """The names of a project's graphs. Raises `ProgramLoadError` for a file that has none."""
    return list(_graphs(path, _read(path)))


def read_entry(path: Path, name: str | None) -> Entry:
    """The graph that a project file calls ``name``, or its only one.

    Its environment is set, and its local dependencies can be imported. Keys that are for
    other tools are left alone. Raises `ProgramLoadError` for what cannot be.
    """
    project = _read(path)
    graphs = _graphs(path, project)
    entry = _entry(path, _choose(path, graphs, name), graphs)
    _add_dependencies(path, project.get("dependencies", []))
    _set_environment(path, project.get("env", {}))
    return entry


def _read(path: Path) -> dict[str, Any]:
    try:
        project = read_json(path)
    except ValueError as error:
        raise ProgramLoadError(f"{path}: bad JSON: {error}") from error
    except OSError as error:
        raise ProgramLoadError(f"{path}: cannot be read: {error}") from error
    if not isinstance(project, dict):
        raise ProgramLoadError(f"{path}: a project is an object, such as {_SHAPE}")
    return project


def _graphs(path: Path, project: Mapping[str, Any]) -> dict[str, Any]:
    graphs = project.get("graphs")
    if not isinstance(graphs, dict) or not graphs:
        raise ProgramLoadError(f"{path}: it names no graphs, as in {_SHAPE}")
    return graphs


def _choose(path: Path, graphs: Mapping[str, Any], name: str | None) -> str:
    names = ", ".join(sorted(graphs))
    if name is None and len(graphs) > 1:
        raise ProgramLoadError(f"{path}: several graphs ({names}); name one: {path}:{min(graphs)}")
    chosen = next(iter(graphs)) if name is None else name
    if chosen not in graphs:
        raise ProgramLoadError(f"{path}: no graph {chosen!r} in it; there is: {names}")
    return chosen


def _entry(path: Path, name: str, graphs: Mapping[str, Any]) -> Entry:
    value = graphs[name]
    where = value.get("path") if isinstance(value, dict) else value
    file, colon, variable = where.rpartition(":") if isinstance(where, str) else ("", "", "")
    if not (file and colon and variable):
        raise ProgramLoadError(
            f"{path}: graph {name!r} is {json.dumps(where)}; it must be as './agent.py:graph'"
        )
    # A module's dotted name is allowed, too.
    as_path = file if file.endswith(".py") else f"{file.replace('.', '/')}.py"
    found = path.parent / as_path
    if not found.is_file():
        raise ProgramLoadError(f"{path}: graph {name!r} is in {file}, and there is no such file")
    return Entry(name, found, variable)


def _add_dependencies(path: Path, dependencies: Any) -> None:
    """Those that are folders; all others are packages, which must be installed."""
    if not isinstance(dependencies, list):
        raise ProgramLoadError(f'{path}: dependencies must be a list, such as ["."]')
    for one in dependencies:
        if not isinstance(one, str) or not one.startswith("."):
            continue
        folder = (path.parent / one).resolve()
        if not folder.is_dir():
            raise ProgramLoadError(f"{path}: dependency {one!r}: there is no such folder")
        sys.path.insert(0, str(folder))


def check_environment(path: Path) -> None:
    """Raise `ProgramLoadError` for what a project's ``env`` cannot be."""
    _environment(path, _read(path).get("env", {}))


def _set_environment(path: Path, env: Any) -> None:
    """What the caller's environment has already stays as it is."""
    for key, value in _environment(path, env).items():
        os.environ.setdefault(key, str(value))


def _environment(path: Path, env: Any) -> dict[str, Any]:
    values = _read_env(path, env) if isinstance(env, str) else env
    if not isinstance(values, dict):
        raise ProgramLoadError(f"{path}: env must be the name of a file, or an object")
    return values


def _read_env(path: Path, name: str) -> dict[str, str]:
    file = path.parent / name
    try:
        lines = list(parse_stream(io.StringIO(read_text(file))))
    except (OSError, ValueError) as error:
        raise ProgramLoadError(f"{path}: env {name!r} cannot be read: {error}") from error
    for line in lines:
        if line.error or (line.key is not None and line.value is None):
            raise ProgramLoadError(f"{file}:{line.original.line}: not as NAME=VALUE")
    return {line.key: line.value for line in lines if line.key and line.value is not None}
