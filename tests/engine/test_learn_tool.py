"""The demo that trains: its loop on a real engine, in short form."""

from __future__ import annotations

import re

import pytest

from learn_tool import train

pytestmark = pytest.mark.engine


async def test_weights_go_into_the_running_engine_and_its_tokens_are_exact(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The log probabilities of the engine are those of the trainer's model after each update, so
    that the engine has the trainer's weights.
    """
    curve, scores = await train(
        seed=1, steps=3, inputs=4, samples=4, rate=1e-2, epochs=1, warm=60, questions=20
    )
    assert len(curve) == 3
    assert set(scores) == {
        f"{name}, {when}" for name in ("seen", "held out") for when in ("before", "after")
    }
    lines = capsys.readouterr().out
    steps = re.findall(r"step (\d+): .* weights (\d+), .* differ by ([\d.]+)", lines)
    assert [version for _, version, _ in steps] == ["1", "3"]
    assert all(float(difference) < 1e-3 for *_, difference in steps)
