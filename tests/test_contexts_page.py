"""What docs/contexts.md shows works on a real engine."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from agentrt import Runtime
from agentrt.cli.load import load_program
from agentrt.program import Program
from tests.contexts.real import fresh

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="session")]
PAGE = (Path(__file__).resolve().parent.parent / "docs" / "contexts.md").read_text("utf-8")
[PROGRAM] = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


async def test_the_best_of_four_answers_goes_on(token_runtime: Runtime, tmp_path: Path) -> None:
    await fresh(token_runtime)
    (tmp_path / "best_of.py").write_text(PROGRAM)
    best_of = load_program(str(tmp_path / "best_of.py"))
    assert isinstance(best_of, Program)
    run = token_runtime.start(best_of)
    assert await run.wait()
    names = [node.name for node in run.dag.nodes()]
    assert sorted(names) == ["generate"] * 5 + ["score"] * 4
