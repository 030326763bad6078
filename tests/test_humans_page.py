"""What docs/humans.md shows works: its program asks, and its commands are understood."""

from __future__ import annotations

import asyncio
import re
import shlex
from pathlib import Path

import pytest

from agentrt import Runtime
from agentrt.cli.app import COMMANDS, app
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


@pytest.mark.parametrize("line", re.findall(r"^agentrt (.+)$", PAGE, re.MULTILINE))
def test_a_command_is_understood(line: str) -> None:
    name, *args = shlex.split(line, comments=True)
    assert name in COMMANDS
    command = app.get_command(app.make_context("agentrt", [name]), name)
    assert command is not None
    command.make_context(name, args)
