"""What is said of the tree agrees with it: the packages and links of docs/adr/0001, the layers."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
from setuptools import find_packages

from tests.importers import import_name, imports_of, modules_of, python_files

ROOT = Path(__file__).resolve().parent.parent
LINKED_ROOMS = ("executors", "graph", "integrations", "serving")


def settings_of(tool: str) -> dict[str, Any]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    settings: dict[str, Any] = project["tool"][tool]
    return settings


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


def test_no_file_imports_itself_by_way_of_others() -> None:
    modules = modules_of("agentrt")
    graph = nx.DiGraph(
        (name, to) for name, file in modules.items() for to in imports_of(file, modules)
    )
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
