"""Reading ``langgraph.json``: a project's graphs, dependencies and environment."""

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
class GraphEntry:
    """A graph of a project: its name, and the file and variable that hold it."""

    name: str
    file: Path
    variable: str


def graph_names(path: Path) -> list[str]:
    """Return the names of a project's graphs. Raises `ProgramLoadError` if there are none."""
    return list(_graphs(path, _read(path)))


def read_entry(path: Path, name: str | None) -> GraphEntry:
    """Return the graph called ``name``, or the project's only graph if ``name`` is None.

    Also sets the project's environment variables and makes its local dependencies importable.
    Keys for other tools are ignored. Raises `ProgramLoadError` for an invalid project.
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
        raise ProgramLoadError(f"cannot read {path}: {error}") from error
    if not isinstance(project, dict):
        raise ProgramLoadError(f"{path}: must contain a JSON object, such as {_SHAPE}")
    return project


def _graphs(path: Path, project: Mapping[str, Any]) -> dict[str, Any]:
    graphs = project.get("graphs")
    if not isinstance(graphs, dict) or not graphs:
        raise ProgramLoadError(f"{path}: 'graphs' must be an object with graphs, as in {_SHAPE}")
    return graphs


def _choose(path: Path, graphs: Mapping[str, Any], name: str | None) -> str:
    names = ", ".join(sorted(graphs))
    if name is None and len(graphs) > 1:
        raise ProgramLoadError(
            f"{path} has several graphs ({names}); choose one, such as {path}:{min(graphs)}"
        )
    chosen = next(iter(graphs)) if name is None else name
    if chosen not in graphs:
        raise ProgramLoadError(f"{path}: unknown graph {chosen!r}; available: {names}")
    return chosen


def _entry(path: Path, name: str, graphs: Mapping[str, Any]) -> GraphEntry:
    value = graphs[name]
    where = value.get("path") if isinstance(value, dict) else value
    file, colon, variable = where.rpartition(":") if isinstance(where, str) else ("", "", "")
    if not (file and colon and variable):
        raise ProgramLoadError(
            f"{path}: graph {name!r} is {json.dumps(where)}; write FILE:VARIABLE, such as "
            "'./agent.py:graph'"
        )
    # FILE may also be the dotted name of a module.
    as_path = file if file.endswith(".py") else f"{file.replace('.', '/')}.py"
    source = path.parent / as_path
    if not source.is_file():
        raise ProgramLoadError(
            f"{path}: the file of graph {name!r} does not exist: {file}; correct its path"
        )
    return GraphEntry(name, source, variable)


def _add_dependencies(path: Path, dependencies: Any) -> None:
    """Make the dependencies that are folders importable. Other dependencies are packages, which the
    user must install.
    """
    if not isinstance(dependencies, list):
        raise ProgramLoadError(f"{path}: 'dependencies' must be a list, such as [\".\"]")
    for dependency in dependencies:
        if not isinstance(dependency, str) or not dependency.startswith("."):
            continue
        folder = (path.parent / dependency).resolve()
        if not folder.is_dir():
            raise ProgramLoadError(
                f"{path}: the folder of dependency {dependency!r} does not exist; correct its path"
            )
        sys.path.insert(0, str(folder))


def check_environment(path: Path) -> None:
    """Raise `ProgramLoadError` if a project's ``env`` is invalid."""
    _environment(path, _read(path).get("env", {}))


def _set_environment(path: Path, env: Any) -> None:
    """Set a project's environment variables. Variables that are already set keep their values."""
    for key, value in _environment(path, env).items():
        os.environ.setdefault(key, str(value))


def _environment(path: Path, env: Any) -> dict[str, Any]:
    values = _read_env(path, env) if isinstance(env, str) else env
    if not isinstance(values, dict):
        raise ProgramLoadError(f"{path}: 'env' must be the name of a file, or an object")
    for key, value in values.items():
        is_value = isinstance(value, str | int | float) and "\0" not in str(value)
        if not is_value or not key or set(key) & {"=", "\0"}:
            raise ProgramLoadError(
                f"{path}: 'env' sets {key!r} to {json.dumps(value)}; the name must not be empty or "
                "contain '=' or NUL, and the value must be a number, or a text without NUL"
            )
    return values


def _read_env(path: Path, name: str) -> dict[str, str]:
    file = path.parent / name
    try:
        lines = list(parse_stream(io.StringIO(read_text(file))))
    except (OSError, ValueError) as error:
        raise ProgramLoadError(f"{path}: cannot read 'env' file {name!r}: {error}") from error
    for line in lines:
        if line.error or (line.key is not None and line.value is None):
            raise ProgramLoadError(
                f"{file}:{line.original.line}: this line is not in the form NAME=VALUE"
            )
    return {line.key: line.value for line in lines if line.key and line.value is not None}
