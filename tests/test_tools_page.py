"""What docs/tools.md shows works, and it has all errors."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from agentrt import Runtime, errors
from agentrt.cli.load import load_program
from agentrt.graph import Progress
from agentrt.program import Program
from agentrt.testing.scripted import ScriptedExecutor

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "tools.md").read_text("utf-8")


async def test_the_pages_program_measures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = re.search(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None
    file = tmp_path / "lab_of_the_page.py"
    file.write_text(found[1], encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)  # undone afterwards, with what load_program adds
    lab = load_program(str(file))
    assert isinstance(lab, Program)
    async with Runtime(ScriptedExecutor()) as runtime:
        run = runtime.start(lab)
        assert await run.wait() == 6.0
    (node,) = run.dag.nodes()
    assert node.interrupt is not None
    assert (node.interrupt.transport, node.interrupt.attempt) == ("process", 1)
    assert node.interrupt.progress == Progress(3, 3, "measuring copper")


@pytest.mark.parametrize("error", [e.__name__ for e in errors.ToolError.__subclasses__()])
def test_each_error_of_a_tool_is_on_the_page(error: str) -> None:
    assert f"| `{error}` |" in PAGE or error == "QuestionClosedError"
