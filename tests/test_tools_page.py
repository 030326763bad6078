"""What docs/tools.md shows works, and it has all errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrt import Runtime, errors
from agentrt.graph import Progress
from tests.doubles.scripted import ScriptedExecutor
from tests.pages import blocks, saved, text_of


async def test_the_pages_program_measures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)  # undone afterwards, with what loading adds
    lab = saved(blocks("tools.md")[0], tmp_path / "lab_of_the_page.py")
    async with Runtime(ScriptedExecutor()) as runtime:
        run = runtime.start(lab)
        assert await run.wait() == 6.0
    (node,) = run.dag.nodes()
    assert node.interrupt is not None
    assert (node.interrupt.transport, node.interrupt.attempt) == ("process", 1)
    assert node.interrupt.progress == Progress(3, 3, "measuring copper")


@pytest.mark.parametrize("error", [e.__name__ for e in errors.ToolError.__subclasses__()])
def test_each_error_of_a_tool_is_on_the_page(error: str) -> None:
    assert f"| `{error}` |" in text_of("tools.md") or error == "QuestionClosedError"
