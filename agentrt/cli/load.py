"""Loading the program or the LangGraph graph that a target names.

A target is ``PROGRAM.py``, a ``langgraph.json``, or the folder of a ``langgraph.json``. A name may
follow: ``PROGRAM.py:name``.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import re
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
from agentrt.former import show_warnings
from agentrt.program import Program


@dataclass(frozen=True, slots=True)
class LoadedGraph:
    """A loaded graph from the file ``path``. ``value`` is the graph, its builder, or a function
    that makes the graph.

    ``name`` is the type of the graph's runs if the graph has no name of its own.
    """

    value: Any
    name: str
    path: Path


LoadedTarget = Program | LoadedGraph

_EXAMPLE = "put @program above an 'async def main(ctx)', or compile a LangGraph graph"
_MODEL_FILE = "config.json"
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
"""A model's name on the Hugging Face hub."""
_NAMED = 5
"""Number of a folder's files that an error lists if no file has a similar name."""


def load_program(target: str) -> LoadedTarget:
    """Load the program or the graph that ``target`` names.

    Raises `ProgramLoadError` if no program or several programs match, and `ImportFailedError` if
    the file's own code raised an error.
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


def load_all(target: str) -> dict[str, LoadedTarget]:
    """Load all programs and graphs of ``target``, by their names. If the target names one of them,
    load only this one. The programs that a file imports are loaded only if it defines no programs
    and no graphs.

    Raises the errors of `load_program`, and `ProgramLoadError` if two programs have the same name.
    """
    path, name = split_target(target)
    if name is not None:
        loaded: list[LoadedTarget] = [load_program(target)]
    elif path.suffix == ".json":
        loaded = [_of_project(path, graph) for graph in project.graph_names(path)]
    else:
        module = import_file(path)
        own, foreign = _programs(module)
        named: dict[str, LoadedTarget] = {**own, **_graphs(path, module)}
        loaded = list({_identity(item): item for item in (named or foreign).values()}.values())
    if not loaded:
        raise ProgramLoadError(f"{path} has no program; {_EXAMPLE}")
    return _by_name(path, loaded)


def project_of(target: str) -> Path | None:
    """Return the path of the ``langgraph.json`` that a target names, or None."""
    path, _ = split_target(target)
    return path if path.suffix == ".json" else None


def _by_name(path: Path, loaded: Sequence[LoadedTarget]) -> dict[str, LoadedTarget]:
    named = {item.name: item for item in loaded}
    if len(named) < len(loaded):
        repeated = next(item.name for item in loaded if named[item.name] is not item)
        raise ProgramLoadError(
            f"{path}: two programs have the name {repeated!r}; rename one of them"
        )
    return named


def _of_project(path: Path, name: str | None) -> LoadedTarget:
    entry = project.read_entry(path, name)
    module = import_file(entry.file)
    if not hasattr(module, entry.variable):
        raise ProgramLoadError(
            f"{path}: {entry.file} has no variable {entry.variable!r} for graph {entry.name!r}; "
            "correct the path of the graph"
        )
    value = getattr(module, entry.variable)
    return value if isinstance(value, Program) else LoadedGraph(value, entry.name, entry.file)


def split_target(target: str) -> tuple[Path, str | None]:
    """Return a target's file and the name after the colon; None if there is no name. Raises
    `ProgramLoadError` for a file that does not exist or is of a wrong type.
    """
    path, name = Path(target), None
    head, colon, tail = target.rpartition(":")
    if colon and not path.exists():
        path, name = Path(head), tail
    if not path.exists():
        raise ProgramLoadError(f"{path}: no such file; {_suggestion(path)}")
    if path.is_dir():
        if not (path / project.FILE).is_file():
            if (path / _MODEL_FILE).is_file():
                raise ProgramLoadError(
                    f"{path} is the folder of a model, not of a program; use --model {path}"
                )
            raise ProgramLoadError(
                f"{path} is a folder without a {project.FILE}; name a Python file in it"
            )
        path = path / project.FILE
    if path.suffix not in (".py", ".json"):
        raise ProgramLoadError(
            f"{path} is neither a Python file nor a project; its name must end in .py or .json"
        )
    if name == "":
        raise ProgramLoadError(
            f"{target}: write a program's name after the colon, or leave the colon out"
        )
    return path, name


def _suggestion(path: Path) -> str:
    """Return a hint for the message that the file ``path`` does not exist."""
    folder = path.parent
    if not folder.is_dir():
        missing = f"the folder {str(folder)!r} does not exist in {Path.cwd()}"
        if _HUB_NAME.fullmatch(str(path)) and path.suffix not in (".py", ".json"):
            missing += f"; a model is named by --model {path}"
        return missing
    files = sorted(file.name for file in folder.glob("*.py"))
    deeper = sorted(folder.glob(f"*/{escape(path.name)}"))
    alike = get_close_matches(path.name, files, n=1, cutoff=0.7)
    if similar := deeper or [folder / name for name in alike]:
        return f"did you mean {similar[0]}?"
    if not files:
        return f"there are no Python files in {folder.absolute()}; write the program's path"
    rest = f" and {len(files) - _NAMED} more" if len(files) > _NAMED else ""
    return f"available in {folder.absolute()}: {', '.join(files[:_NAMED])}{rest}"


def import_file(path: Path) -> ModuleType:
    """Import a file as a module, with its folder first on the import path, as python does.

    A file that is loaded already and has not changed is not imported again, so that its classes
    exist only once. Raises `ProgramLoadError` for a file that cannot be imported, and
    `ImportFailedError` if the file's own code raised an error.
    """
    path = path.absolute()
    try:
        check_plain(path, MOST)
        source = path.read_bytes()
    except OSError as error:
        raise ProgramLoadError(f"cannot read {path}: {error.strerror}") from error
    known = _LOADED.get(path.resolve())
    if known is not None and sys.modules.get(known.module.__name__) is not known.module:
        known = None
    if known is not None and known.source == source:
        return known.module
    show_warnings()
    _check_neighbours(path)
    sys.path.insert(0, str(path.parent))
    name = _module_name(path) if known is None else known.module.__name__
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Dataclasses, pydantic and pickle look up a class's module in sys.modules.
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        where = f"{error.filename or path}:{error.lineno or 1}"
        raise ProgramLoadError(f"{where}: syntax error: {error.msg}") from error
    except SystemExit as error:
        raise ProgramLoadError(
            f"{path} exits while it is imported; move the code of the script under "
            "if __name__ == '__main__':"
        ) from error
    except AgentrtError as error:
        raise ProgramLoadError(f"{path}: {error}") from error
    except (OSError, UnicodeError, ValueError) as error:
        if error.__traceback__ is not None and _ran(error, path):
            raise ImportFailedError(str(path)) from error
        raise ProgramLoadError(f"cannot read {path}: {error}") from error
    except Exception as error:
        raise ImportFailedError(str(path)) from error
    _LOADED[path.resolve()] = _Loaded(module, source)
    return module


class _Loaded(NamedTuple):
    module: ModuleType
    source: bytes


_LOADED: dict[Path, _Loaded] = {}
"""The loaded files, with their modules and their content when they were loaded."""


def _check_neighbours(path: Path) -> None:
    """Raise `ProgramLoadError` if a file imports a module of its own folder, and another loaded
    file has imported a module with the same name from another folder.

    Python keeps one module for each name, so the file would silently get the module from the other
    folder.
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
                    f"{path} imports {name!r} and would get {there}, which another program has "
                    f"imported, instead of {own}; give the two modules different names, or serve "
                    "the programs by separate servers"
                )
            if own not in seen:
                left.append(own)


def _files_of(folder: Path, name: str) -> tuple[Path, Path]:
    return folder / f"{name}.py", folder / name / "__init__.py"


def _imported(path: Path) -> Iterator[str]:
    """Yield the top-level names of the modules that a file imports."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):  # importing the file will report this error
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def _ran(error: Exception, path: Path) -> bool:
    """Return whether an error came from running the file's code and not from reading the file."""
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == str(path):
            return True
        trace = trace.tb_next
    return False


def _module_name(path: Path) -> str:
    """Return a module name for a file: the file's own name, or a name that begins with
    ``agentrt_program_`` if another module has the file's own name.

    Journals identify a class by its file and not by this name, so the name may differ between
    processes.
    """
    name = path.stem
    if not (name in sys.modules or name in sys.stdlib_module_names or name == "agentrt"):
        return name
    names = (f"agentrt_program_{name}{f'_{number}' * (number > 1)}" for number in count(1))
    return next(name for name in names if name not in sys.modules)


def _programs(module: ModuleType) -> tuple[dict[str, Program], dict[str, Program]]:
    """Return the programs that the module defines and the programs that it imports, each by the
    names of their variables.
    """
    own: dict[str, Program] = {}
    foreign: dict[str, Program] = {}
    for name, value in vars(module).items():
        if isinstance(value, Program):
            is_own = value.function.__module__ == module.__name__
            (own if is_own else foreign)[name] = value
    return own, foreign


def _graphs(path: Path, module: ModuleType) -> dict[str, LoadedGraph]:
    """Return the module's graphs, by the names of their variables."""
    if "langgraph.pregel" not in sys.modules:
        return {}  # without LangGraph there are no graphs, and importing it takes a second
    from agentrt.integrations.langgraph.graphs import graph_name, graphs_among

    graphs = graphs_among(vars(module))
    return {
        name: LoadedGraph(graph, graph_name(graph, name), path) for name, graph in graphs.items()
    }


def _only(path: Path, candidates: dict[str, LoadedTarget]) -> LoadedTarget:
    distinct = {_identity(item): name for name, item in reversed(candidates.items())}
    if not distinct:
        raise ProgramLoadError(f"{path} has no program; {_EXAMPLE}")
    names = sorted(distinct.values())
    if len(names) > 1:
        raise ProgramLoadError(
            f"{path} has several programs ({', '.join(names)}); choose one, such as "
            f"{path}:{names[0]}"
        )
    return candidates[names[0]]


def _identity(item: LoadedTarget) -> int:
    return id(item.value if isinstance(item, LoadedGraph) else item)


def _named(
    path: Path, name: str, candidates: dict[str, LoadedTarget], module: ModuleType
) -> LoadedTarget:
    if name in candidates:
        return candidates[name]
    for item in candidates.values():
        if item.name == name:
            return item
    value = vars(module).get(name)
    if inspect.isfunction(value) or _is_graph(value):
        return LoadedGraph(value, name, path)
    available = ", ".join(sorted(candidates)) or f"none; {_EXAMPLE}"
    raise ProgramLoadError(f"{path}: unknown program {name!r}; available: {available}")


def _is_graph(value: object) -> bool:
    """Return whether a value is a graph. Builders and subgraphs count as graphs, too: they run if
    the target names them.
    """
    if "langgraph.pregel" not in sys.modules:
        return False
    from agentrt.integrations.langgraph.graphs import is_graph

    return is_graph(value)
