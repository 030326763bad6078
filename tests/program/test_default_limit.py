"""An answer that the default limit cuts is not cut in silence; the warning comes once."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from agentrt import Context, Runtime, program
from agentrt.program import context as context_module
from tests.doubles.scripted import ScriptedExecutor


@pytest.fixture(autouse=True)
def _forget_the_warning() -> None:
    context_module._warn_of_default_limit.cache_clear()


@pytest.mark.parametrize(
    ("options", "words", "warnings"),
    [({}, 300, 1), ({}, 20, 0), ({"max_tokens": 9}, 300, 0), ({"max_tokens": None}, 300, 0)],
)
async def test_a_cut_at_the_default_limit_is_said_once(
    options: Any, words: int, warnings: int, caplog: pytest.LogCaptureFixture
) -> None:
    @program
    async def agent(ctx: Context) -> list[str]:
        return [(await ctx.llm("Tell.", **options)).finish_reason for _ in range(3)]

    with caplog.at_level(logging.WARNING):
        async with Runtime(ScriptedExecutor(lambda call: "so " * words)) as runtime:
            reasons = await runtime.start(agent).wait()
    cut_by_a_limit = words > 256 and options.get("max_tokens", 256) is not None
    assert reasons == ["length" if cut_by_a_limit else "stop"] * 3
    cut = [one.getMessage() for one in caplog.records if "default limit" in one.getMessage()]
    assert len(cut) == warnings
    assert all("max_tokens=None" in text for text in cut)
