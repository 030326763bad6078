"""What docs/humans.md shows works: its program asks."""

from __future__ import annotations

import asyncio
from pathlib import Path

from agentrt import Runtime
from tests.doubles.scripted import ScriptedExecutor
from tests.pages import blocks, saved


async def test_the_program_asks_twice(tmp_path: Path) -> None:
    [code] = blocks("humans.md")
    waiter = saved(code, tmp_path / "waiter.py")
    async with Runtime(ScriptedExecutor(), ask_human=None) as runtime:
        run = runtime.start(waiter)
        for answer in ({"drink": "tea", "cups": 6}, False):
            async with asyncio.timeout(60):
                while not runtime.questions.open:
                    await asyncio.sleep(0)
            [question] = runtime.questions.open
            runtime.questions.answer(question, answer)
        assert await run.wait() == "4 tea"
