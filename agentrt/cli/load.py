"""Finds what to run in a user's file: ``PROGRAM.py`` or ``PROGRAM.py:name``.

That is a program, a LangGraph graph, or a graph of the project in ``langgraph.json``.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from glob import escape
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from agentrt.cli import project
from agentrt.cli.faults import ImportFailedError
from agentrt.errors import AgentrtError, ProgramLoadError
from agentrt.files import MOST, check_plain
from agentrt.program import Program


@dataclass(frozen=True, slots=True)
class GraphTarget:
    """A graph, its builder, or a function that makes one: ``value``, which is in ``path``.

    ``name`` is its type if it has no name of its own.
    """

    value: Any
    name: str
    path: Path


Found = Program | GraphTarget

_EXAMPLE = "put @program above an 'async def main(ctx)', or compile a LangGraph graph"
_NAMED = 5
"""So many of a folder's files are named where none is like the one that was asked for."""


def load_program(target: str) -> Found:
    """The program or the graph that ``target`` names.

    Raises `ProgramLoadError` if there is none or more than one fits, and
    `ImportFailedError` if the file's own code raised.
    """
    path, name = split_target(target)
    if path.suffix == ".json":
        return _of_project(path, name)
    module = import_file(path)
    own, foreign = _programs(module)
    graphs = _graphs(path, module)
    if name is not None:
        return _named(path, name, {**foreign, **own, **graphs}, module)
    return _only(path, {**own, **graphs} or {**foreign})


def load_all(target: str) -> dict[str, Found]:
    """All programs and graphs that ``target`` has, by their names; with a name in it, that one.

    Raises as `load_program` does, and `ProgramLoadError` where two have one name.
    """
    path, name = split_target(target)
    if name is not None:
        found: list[Found] = [load_program(target)]
    elif path.suffix == ".json":
        found = [_of_project(path, one) for one in project.graph_names(path)]
    else:
        module = import_file(path)
        own, foreign = _programs(module)
        named: dict[str, Found] = {**own, **_graphs(path, module)}
        found = list({_identity(one): one for one in (named or foreign).values()}.values())
    if not found:
        raise ProgramLoadError(f"{path}: no program in it; {_EXAMPLE}")
    return _by_name(path, found)


def project_of(target: str) -> Path | None:
    """The ``langgraph.json`` that a target is in, if it is of one."""
    path, _ = split_target(target)
    return path if path.suffix == ".json" else None


def _by_name(path: Path, found: Sequence[Found]) -> dict[str, Found]:
    named = {one.name: one for one in found}
    if len(named) < len(found):
        twice = next(one.name for one in found if named[one.name] is not one)
        raise ProgramLoadError(f"{path}: two programs are called {twice!r}; rename one")
    return named


def _of_project(path: Path, name: str | None) -> Found:
    entry = project.read_entry(path, name)
    module = import_file(entry.file)
    if not hasattr(module, entry.variable):
        raise ProgramLoadError(
            f"{path}: graph {entry.name!r} is {entry.variable!r} in {entry.file}, which has no "
            "such variable"
        )
    value = getattr(module, entry.variable)
    return value if isinstance(value, Program) else GraphTarget(value, entry.name, entry.file)


def split_target(target: str) -> tuple[Path, str | None]:
    """The file that a target names, and what is behind the colon. Raises `ProgramLoadError`."""
    path, name = Path(target), None
    head, colon, tail = target.rpartition(":")
    if colon and not path.exists():
        path, name = Path(head), tail
    if not path.exists():
        raise ProgramLoadError(f"{path}: no such file; {_way_out(path)}")
    if path.is_dir():
        if not (path / project.FILE).is_file():
            raise ProgramLoadError(
                f"{path}: that is a folder without a {project.FILE}; name a Python file in it"
            )
        path = path / project.FILE
    if path.suffix not in (".py", ".json"):
        raise ProgramLoadError(
            f"{path}: not a Python file; a program's file ends in .py, a project's in .json"
        )
    if name == "":
        raise ProgramLoadError(f"{target}: name a program after the colon, or leave it out")
    return path, name


def _way_out(path: Path) -> str:
    """What to name instead of a file that is not there."""
    folder = path.parent
    if not folder.is_dir():
        return f"there is no folder {str(folder)!r}, seen from {Path.cwd()}"
    files = sorted(file.name for file in folder.glob("*.py"))
    deeper = sorted(folder.glob(f"*/{escape(path.name)}"))
    alike = get_close_matches(path.name, files, n=1, cutoff=0.7)
    if found := deeper or [folder / name for name in alike]:
        return f"did you mean {found[0]}?"
    if not files:
        return f"there are no Python files in {folder.absolute()}; give the program's path"
    more = f" and {len(files) - _NAMED} more" if len(files) > _NAMED else ""
    return f"there is: {', '.join(files[:_NAMED])}{more} in {folder.absolute()}"


def import_file(path: Path) -> ModuleType:
    """The file as a module, with its folder first on the import path, as python does. A file that
    is loaded already, and has not changed, is the same module: its classes are there once.

    Raises `ProgramLoadError`, and `ImportFailedError` if the file's own code raised.
    """
    path = path.absolute()
    try:
        check_plain(path, MOST)
        source = path.read_bytes()
    except OSError as error:
        raise ProgramLoadError(f"{path}: cannot be read: {error.strerror}") from error
    known = _LOADED.get(path.resolve())
    if known is not None and sys.modules.get(known.module.__name__) is not known.module:
        known = None
    if known is not None and known.source == source:
        return known.module
    _check_neighbours(path)
    sys.path.insert(0, str(path.parent))
    name = _module_name(path) if known is None else known.module.__name__
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Dataclasses, pydantic and pickle look their module up here.
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        where = f"{error.filename or path}:{error.lineno or 1}"
        raise ProgramLoadError(f"{where}: syntax error: {error.msg}") from error
    except SystemExit as error:
        raise ProgramLoadError(
            f"{path}: it exits while it is imported; put what it does as a script under "
            "if __name__ == '__main__':"
        ) from error
    except AgentrtError as error:
        raise ProgramLoadError(f"{path}: {error}") from error
    except (OSError, UnicodeError, ValueError) as error:
        if error.__traceback__ is not None and _ran(error, path):
            raise ImportFailedError(str(path)) from error
        raise ProgramLoadError(f"{path}: cannot be read: {error}") from error
    except Exception as error:
        raise ImportFailedError(str(path)) from error
    _LOADED[path.resolve()] = _Loaded(module, source)
    return module


class _Loaded(NamedTuple):
    module: ModuleType
    source: bytes


_LOADED: dict[Path, _Loaded] = {}
"""The files that were loaded, with what they were then."""


def _check_neighbours(path: Path) -> None:
    """Raise `ProgramLoadError` where a file would import the neighbours of another one: Python has
    one module of a name, and what is imported first stays.
    """
    folder = path.resolve().parent
    others = {file.parent for file in _LOADED if file.parent != folder}
    left, seen = [path], set[Path]()
    while others and left:
        file = left.pop()
        seen.add(file)
        for name in _imported(file):
            own = next((each for each in _files_of(folder, name) if each.is_file()), None)
            if own is None:
                continue
            there = getattr(sys.modules.get(name), "__file__", None)
            if there is not None and any(
                Path(there).resolve() in _files_of(f, name) for f in others
            ):
                raise ProgramLoadError(
                    f"{path}: it imports {name!r}, which another program has imported already from "
                    f"{there}, and would get that instead of {own}: give the two modules different "
                    "names, or serve the programs apart"
                )
            if own not in seen:
                left.append(own)


def _files_of(folder: Path, name: str) -> tuple[Path, Path]:
    return folder / f"{name}.py", folder / name / "__init__.py"


def _imported(path: Path) -> Iterator[str]:
    """The first parts of what a file imports."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):  # which importing it tells
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def _ran(error: Exception, path: Path) -> bool:
    """Whether the error came from the file's code, and not from reading the file."""
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == str(path):
            return True
        trace = trace.tb_next
    return False


def _module_name(path: Path) -> str:
    """The file's own name, unless that would hide a module that exists already. Journals know
    classes by the file that they are in: the name may be another one each time.
    """
    name = path.stem
    if not (name in sys.modules or name in sys.stdlib_module_names or name == "agentrt"):
        return name
    names = (f"agentrt_program_{name}{f'_{number}' * (number > 1)}" for number in count(1))
    return next(name for name in names if name not in sys.modules)


def _programs(module: ModuleType) -> tuple[dict[str, Program], dict[str, Program]]:
    """The module's own programs, and those it imported, each by its variable's name."""
    own: dict[str, Program] = {}
    foreign: dict[str, Program] = {}
    for name, value in vars(module).items():
        if isinstance(value, Program):
            is_own = value.function.__module__ == module.__name__
            (own if is_own else foreign)[name] = value
    return own, foreign


def _graphs(path: Path, module: ModuleType) -> dict[str, GraphTarget]:
    """The module's graphs, each by its variable's name."""
    if "langgraph.pregel" not in sys.modules:
        return {}  # without LangGraph there is none, and to look would take a second
    from agentrt.integrations.langgraph.graphs import graph_name, graphs_among

    found = graphs_among(vars(module))
    return {name: GraphTarget(one, graph_name(one, name), path) for name, one in found.items()}


def _only(path: Path, found: dict[str, Found]) -> Found:
    distinct = {_identity(one): name for name, one in reversed(found.items())}
    if not distinct:
        raise ProgramLoadError(f"{path}: no program in it; {_EXAMPLE}")
    names = sorted(distinct.values())
    if len(names) > 1:
        raise ProgramLoadError(
            f"{path}: several programs ({', '.join(names)}); name one: {path}:{names[0]}"
        )
    return found[names[0]]


def _identity(one: Found) -> int:
    return id(one.value if isinstance(one, GraphTarget) else one)


def _named(path: Path, name: str, found: dict[str, Found], module: ModuleType) -> Found:
    if name in found:
        return found[name]
    for one in found.values():
        if one.name == name:
            return one
    value = vars(module).get(name)
    if inspect.isfunction(value) or _is_graph(value):
        return GraphTarget(value, name, path)
    known = f"there is: {', '.join(sorted(found))}" if found else f"it has none; {_EXAMPLE}"
    raise ProgramLoadError(f"{path}: no program {name!r} in it; {known}")


def _is_graph(value: object) -> bool:
    """A builder, or a part of another graph: to be run only if it is named."""
    if "langgraph.pregel" not in sys.modules:
        return False
    from agentrt.integrations.langgraph.graphs import is_graph

    return is_graph(value)
