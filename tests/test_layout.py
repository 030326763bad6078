"""What is said of the tree agrees with it: the packages and links of docs/adr/0001, the layers."""

from __future__ import annotations

import ast
import os
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
from setuptools import find_packages

ROOT = Path(__file__).resolve().parent.parent
LINKED_ROOMS = ("executors", "graph", "integrations", "serving")


def settings_of(tool: str) -> dict[str, Any]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    settings: dict[str, Any] = project["tool"][tool]
    return settings


def python_files(folder: str) -> Iterator[Path]:
    """The files of one top-level folder. Links are not followed."""
    for path, folders, names in os.walk(ROOT / folder):
        folders[:] = [name for name in folders if name != "__pycache__"]
        yield from (Path(path) / name for name in names if name.endswith(".py"))


def import_name(folder: Path) -> str:
    return ".".join(folder.relative_to(ROOT).parts)


def test_setuptools_finds_every_package() -> None:
    where = settings_of("setuptools")["packages"]["find"]
    found = find_packages(str(ROOT), include=where["include"])
    assert set(found) == {import_name(file.parent) for file in python_files("agentrt")}


def test_every_package_has_an_init_file() -> None:
    folders = {file.parent for room in ("agentrt", "benchmarks") for file in python_files(room)}
    assert [folder for folder in sorted(folders) if not (folder / "__init__.py").is_file()] == []


@pytest.mark.parametrize("room", LINKED_ROOMS)
def test_room_is_linked_at_the_top_level(room: str) -> None:
    link = ROOT / room
    assert link.is_symlink()
    assert link.readlink() == Path("agentrt", room)
    assert (link / "__init__.py").is_file()


def test_the_package_has_no_links() -> None:
    assert [path for path in (ROOT / "agentrt").rglob("*") if path.is_symlink()] == []


def modules() -> dict[str, Path]:
    files = python_files("agentrt")
    names = {file: f"{import_name(file.parent)}.{file.stem}" for file in files}
    return {name.removesuffix(".__init__"): file for file, name in names.items()}


def imports_of(file: Path) -> set[str]:
    """The modules that a file imports, inside functions and for type checkers, too."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            full = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= full & MODULES.keys()
            found |= {node.module} if full - MODULES.keys() else set()
    return found & MODULES.keys()


MODULES = modules()


def test_no_file_imports_itself_by_way_of_others() -> None:
    graph = nx.DiGraph((name, to) for name, file in MODULES.items() for to in imports_of(file))
    circles = [sorted(part) for part in nx.strongly_connected_components(graph) if len(part) > 1]
    assert len(graph) > 100
    assert circles == []


def test_contributing_lists_the_layers_that_are_enforced() -> None:
    contracts = settings_of("importlinter")["contracts"]
    [layers] = [
        contract["layers"] for contract in contracts if contract.get("containers") == ["agentrt"]
    ]
    enforced = [re.findall(r"\w+", layer) for layer in layers]
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| (.+) \|$", text, re.MULTILINE)
    assert [re.findall(r"`(\w+)`", names) for _, names in rows] == enforced
    assert [int(number) for number, _ in rows] == list(range(1, len(rows) + 1))
