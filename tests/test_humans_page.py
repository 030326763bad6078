"""What docs/humans.md shows works: its program asks."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

from agentrt import Runtime
from agentrt.cli.load import load_program
from agentrt.program import Program
from tests.doubles.scripted import ScriptedExecutor

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "humans.md").read_text("utf-8")
[PROGRAM] = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


async def test_the_program_asks_twice(tmp_path: Path) -> None:
    (tmp_path / "waiter.py").write_text(PROGRAM)
    waiter = load_program(str(tmp_path / "waiter.py"))
    assert isinstance(waiter, Program)
    async with Runtime(ScriptedExecutor(), ask_human=None) as runtime:
        run = runtime.start(waiter)
        for answer in ({"drink": "tea", "cups": 6}, False):
            async with asyncio.timeout(60):
                while not runtime.questions.open:
                    await asyncio.sleep(0)
            [question] = runtime.questions.open
            runtime.questions.answer(question, answer)
        assert await run.wait() == "4 tea"
