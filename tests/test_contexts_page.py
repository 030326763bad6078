"""What docs/contexts.md and docs/steering.md show works on a real engine."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from agentrt import Runtime
from agentrt.engines import TransformersExecutor
from tests.contexts.real import fresh
from tests.doubles.tinymodel import tiny_model
from tests.pages import blocks, saved

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="session")]
BEST_OF, STEERED, STREAM = (*blocks("contexts.md"), *blocks("steering.md"))


async def test_the_best_of_four_answers_goes_on(token_runtime: Runtime, tmp_path: Path) -> None:
    await fresh(token_runtime)
    run = token_runtime.start(saved(BEST_OF, tmp_path / "best_of.py"))
    assert await run.wait()
    names = [node.name for node in run.dag.nodes()]
    assert sorted(names) == ["generate"] * 5 + ["score"] * 4


async def test_texts_obey_what_steers_them(token_runtime: Runtime, tmp_path: Path) -> None:
    await fresh(token_runtime)
    steered = saved(STEERED, tmp_path / "steered.py")
    said, laugh, pairs = await token_runtime.start(steered).wait()
    assert said in ("yes", "no")
    assert re.fullmatch(r"ha( ha){0,8}!", laugh)
    assert len(pairs) in range(2, 11, 2)
    assert [token % 2 for token in pairs] == [0, 1] * (len(pairs) // 2)


async def test_a_text_goes_on_with_sinks_and_a_window(tmp_path: Path) -> None:
    read_on = saved(STREAM, tmp_path / "read_on.py")
    executor = TransformersExecutor(str(tiny_model(tmp_path / "tiny")))
    async with Runtime(executor) as runtime:
        assert await runtime.start(read_on, "word " * 100).wait()
        cached = (await executor.snapshot())["cached"]
    assert {each["positions"] for each in cached} == {63}
