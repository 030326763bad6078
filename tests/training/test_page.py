"""What docs/training.md shows works."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

from agentrt import Runtime
from agentrt.training import TrainingArrays
from tests.doubles.letters import LettersEngine
from tests.pages import blocks


async def test_the_trainer_of_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Half of the samples have the right answer, so that no group is dropped."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "trainer_of_the_page.py").write_text(blocks("training.md")[0], "utf-8")
    page = import_module("trainer_of_the_page")
    answers = iter(["42", "none"] * 100)
    seen: list[tuple[int, int]] = []

    def learn(table: TrainingArrays) -> str:
        seen.append((len(set(table.rollout.tolist())), int(table.versions.max())))
        assert set(table.advantages.tolist()) == {-1.0, 1.0}
        return str(tmp_path)

    async with Runtime(LettersEngine(lambda prompt, call: next(answers))) as runtime:
        await page.train(runtime, [f"question {number}" for number in range(20)], learn)
        assert runtime.weights_version == 2
    assert [count for count, _ in seen] == [16 * 8, 4 * 8]
    assert "taken=20" in capsys.readouterr().out
