"""Graphs that a langgraph.json names."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.cli.graphs import ECHO, HEAD

pytestmark = pytest.mark.usefixtures("clean_imports")

HELPED = """
import os
from tea_words import WORD
def one(state: Tea) -> Tea:
    return {"text": f"{WORD} {os.environ['TEA_KIND']} {os.environ['TEA_CUPS']}"}
graph = chain(Tea, one)
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project as its author's folder has it, with keys that are for other tools."""
    for name in ("TEA_KIND", "TEA_CUPS"):
        monkeypatch.setenv(name, "")  # so that it is put back
        monkeypatch.delenv(name)
    (tmp_path / "src" / "pkg").mkdir(parents=True)
    (tmp_path / "src" / "tea_words.py").write_text("WORD = 'good'\n")
    (tmp_path / "src" / "pkg" / "helped.py").write_text(HEAD + HELPED)
    (tmp_path / "agent.py").write_text(ECHO)
    (tmp_path / ".env").write_text("# tea\n\nexport TEA_KIND='green tea'\nTEA_CUPS=2  # or 3\n")
    settings = {
        "dependencies": ["langchain-openai", "./src"],
        "graphs": {
            "echo": "./agent.py:graph",
            "helped": {"path": "src.pkg.helped:graph", "description": "from a module"},
        },
        "env": "./.env",
        "python_version": "3.11",
        "store": {"index": {}},
    }
    (tmp_path / "langgraph.json").write_text(json.dumps(settings))
    return tmp_path


@pytest.mark.parametrize("target", ["langgraph.json:echo", ".:echo", "prod.json:echo"])
def test_a_graph_is_named_by_its_key(
    target: str, project: Path, command: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    shutil.copy("langgraph.json", "prod.json")
    ran = command("run", target, "--input", '{"text": "a"}')
    assert ran.json["text"] == "a!"
    assert "echo-1 done" in ran.err


def test_dependencies_and_environment_are_there(project: Path, command: Run) -> None:
    ran = command("run", f"{project}:helped", "--input", '{"text": "a"}')
    assert ran.json["text"] == "good green tea 2"


def test_the_callers_environment_comes_first(
    project: Path, command: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = json.loads((project / "langgraph.json").read_text())
    settings["env"] = {"TEA_KIND": "black", "TEA_CUPS": 4}
    (project / "langgraph.json").write_text(json.dumps(settings))
    monkeypatch.setenv("TEA_KIND", "white")
    ran = command("run", f"{project}:helped", "--input", '{"text": "a"}')
    assert ran.json["text"] == "good white 4"
    assert os.environ["TEA_CUPS"] == "4"


def test_a_project_may_name_a_program(project: Path, command: Run) -> None:
    (project / "own.py").write_text(
        "from agentrt import program\n@program\nasync def own(ctx): return 'mine'\n"
    )
    (project / "langgraph.json").write_text('{"graphs": {"it": "./own.py:own"}}')
    assert command("run", project).out == "mine\n"
