"""The benchmark that kills: what it counts. Its lives are those of a scripted engine here."""

from __future__ import annotations

import asyncio
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from benchmarks import kills
from benchmarks.__main__ import call
from tests.journal.killing import World, live


@pytest.mark.parametrize(("forgets", "code"), [(False, 0), (True, 1)])
def test_what_is_done_again_is_counted(
    forgets: bool,
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Killed at a tenth write, and again at the one after. With journals that do not know of the
    life before, all is done again.
    """
    lives = count()

    def life(folder: Path, journal: str, dies: int = 0, after_s: float = 0.0) -> Any:
        world, number = World(), next(lives)
        path = tmp_path / f"{number}" if forgets and number > 1 else folder / journal
        run = asyncio.run(live(path, world, at=10 if dies else -1))
        return None if run is None else run.result, [*world.calls, *world.tools]

    monkeypatch.setattr(kills, "_life", life)
    monkeypatch.setattr(kills, "tiny_model", lambda folder: folder)
    assert call(["kills", "--kills", "2"]) == code
    told = dict(one.split(": ") for one in capsys.readouterr().out.strip().split(", "))
    assert (told["kills"], told["wrong results"]) == ("2", "0")
    assert (told["done again"] != "0") == forgets
