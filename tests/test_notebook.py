"""demos/first_steps.ipynb runs from top to bottom in a kernel of its own, on a scripted engine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOK = ROOT / "demos" / "first_steps.ipynb"
ENGINE = """
from agentrt import engines
from tests.doubles.scripted import ScriptedExecutor

engines.VLLMEngine = lambda options: ScriptedExecutor(lambda call: "So be it.")
"""
SVG = "{http://www.w3.org/2000/svg}"


def pictures(cell: Any) -> list[ElementTree.Element]:
    """The drawings of graphs below a cell."""
    data = (output.get("data", {}) for output in cell.outputs)
    return [ElementTree.fromstring(each["image/svg+xml"]) for each in data if len(each) > 1]


def printed(cell: Any) -> str:
    return "".join(o.text for o in cell.outputs if o.output_type == "stream" and o.name == "stdout")


def test_the_notebook_runs_and_draws(tmp_path: Path) -> None:
    """A kernel has an event loop that runs, and no script: an engine must start all the same."""
    startup = tmp_path / "profile_default" / "startup"
    startup.mkdir(parents=True)
    (startup / "engine.py").write_text(ENGINE)
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.outputs for cell in cells if cell.outputs] == []
    paths = {"IPYTHONDIR": str(tmp_path), "JUPYTER_RUNTIME_DIR": str(tmp_path / "runtime")}
    NotebookClient(
        notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": tmp_path}}
    ).execute(env={**os.environ, **paths, "PYTHONPATH": str(ROOT)})
    opened, _, ran, _, graphs, closed = cells
    assert "ready" in printed(opened)
    [critic] = pictures(ran)
    assert len(critic.findall(f"{SVG}g")) == 4
    assert "critic critic-1: done" in ElementTree.tostring(critic, "unicode")
    assert "So be it." in printed(ran)
    [letters] = pictures(graphs)
    assert len(letters.findall(f"{SVG}g")) == 2
    assert printed(graphs).count("So be it.") == 2
    assert closed.outputs == []
