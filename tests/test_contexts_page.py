"""What docs/contexts.md and docs/steering.md show works on a real engine."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from agentrt import Runtime
from agentrt.cli.load import load_program
from agentrt.executors.transformers import TransformersExecutor
from agentrt.program import Program
from tests.contexts.real import fresh
from tests.doubles.tinymodel import tiny_model

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="session")]
DOCS = Path(__file__).resolve().parent.parent / "docs"
BEST_OF, STEERED, STREAM = (
    block
    for page in ("contexts.md", "steering.md")
    for block in re.findall(
        r"^```python\n(.*?)^```", (DOCS / page).read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
)


async def test_the_best_of_four_answers_goes_on(token_runtime: Runtime, tmp_path: Path) -> None:
    await fresh(token_runtime)
    (tmp_path / "best_of.py").write_text(BEST_OF)
    best_of = load_program(str(tmp_path / "best_of.py"))
    assert isinstance(best_of, Program)
    run = token_runtime.start(best_of)
    assert await run.wait()
    names = [node.name for node in run.dag.nodes()]
    assert sorted(names) == ["generate"] * 5 + ["score"] * 4


async def test_texts_obey_what_steers_them(token_runtime: Runtime, tmp_path: Path) -> None:
    await fresh(token_runtime)
    (tmp_path / "steered.py").write_text(STEERED)
    steered = load_program(str(tmp_path / "steered.py"))
    assert isinstance(steered, Program)
    said, laugh, pairs = await token_runtime.start(steered).wait()
    assert said in ("yes", "no")
    assert re.fullmatch(r"ha( ha){0,8}!", laugh)
    assert len(pairs) in range(2, 11, 2)
    assert [token % 2 for token in pairs] == [0, 1] * (len(pairs) // 2)


async def test_a_text_goes_on_with_sinks_and_a_window(tmp_path: Path) -> None:
    (tmp_path / "read_on.py").write_text(STREAM)
    read_on = load_program(str(tmp_path / "read_on.py"))
    assert isinstance(read_on, Program)
    executor = TransformersExecutor(str(tiny_model(tmp_path / "tiny")))
    async with Runtime(executor) as runtime:
        assert await runtime.start(read_on, "word " * 100).wait()
        cached = (await executor.snapshot())["cached"]
    assert {each["positions"] for each in cached} == {63}
