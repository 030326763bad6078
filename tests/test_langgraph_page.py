"""What docs/langgraph.md shows works: its graph runs, and its commands end as it says."""

from __future__ import annotations

import io
import json
import runpy
import shlex
from pathlib import Path

import pytest

from agentrt.cli.app import call
from agentrt.engines import EngineOptions
from tests.doubles.scripted import ScriptedExecutor
from tests.pages import blocks

pytestmark = pytest.mark.usefixtures("clean_imports")


GRAPH, CONFIG, _ = blocks("langgraph.md")
LINES = "".join(blocks("langgraph.md", "sh")).splitlines()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the reader stands, away from the terminal; the engine makes replies up."""

    def engine(options: EngineOptions) -> ScriptedExecutor:
        return ScriptedExecutor()

    monkeypatch.setattr("agentrt.engines.VLLMEngine", engine)
    monkeypatch.setattr("sys.stdin", io.StringIO())
    monkeypatch.chdir(tmp_path)
    (tmp_path / "writer.py").write_text(GRAPH + CONFIG, encoding="utf-8")
    return tmp_path


@pytest.mark.usefixtures("folder")
def test_the_commands_end_as_they_say(capsys: pytest.CaptureFixture[str]) -> None:
    """In their order, as they continue with each other's thread."""
    codes = []
    for line in LINES:
        codes.append(call(shlex.split(line, comments=True)[1:]))
        assert "Traceback" not in capsys.readouterr().err
    assert codes == [3 if "# exit code 3" in line else 0 for line in LINES]
    assert codes.count(3) == 2


@pytest.mark.usefixtures("folder")
def test_the_session_goes_on_with_the_threads_messages(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for line in LINES[2:]:
        call([*shlex.split(line, comments=True)[1:], "--json"])
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    said = [one["content"] for one in last["results"][-1]["messages"]]
    assert said[0::3] == ["An ode to tea.", "Shorter."]
    assert said[2::3] == ["Approved by Ann.", "Approved by Bob."]


def test_the_config_is_the_graphs(folder: Path) -> None:
    from agentrt.integrations.langgraph.graphs import program_terms

    graph = runpy.run_path(str(folder / "writer.py"))["graph"]
    assert program_terms(graph) == {"tenant": "ann", "size_hint": 2000}
