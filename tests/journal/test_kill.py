"""A program that is killed at each write of its journal goes on, and does nothing twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.journal.killing import World, live, recorded_in

UNLIKE = ("chance", "order")
"""What is another one in each undisturbed run: random values, and which of two came first."""


def comparable(result: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in result.items() if name not in UNLIKE}


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_killed_at_each_write(tmp_path: Path, after: bool) -> None:
    """1. An undisturbed run. 2. One that is killed at write 1, 2, … goes on in a second life, with
    the same result. 3. What was recorded does not run again, and all else runs once.
    """
    undisturbed, kills = World(), 0
    whole = await live(tmp_path / "whole", undisturbed)
    assert whole is not None
    assert set(undisturbed.calls.values()) == set(undisturbed.tools.values()) == {1}
    while True:
        path, first, second = tmp_path / str(kills), World(), World()
        if await live(path, first, at=kills + 1, after=after) is not None:
            break
        kills += 1
        calls, tools = recorded_in(path) if kills > 1 or after else (set(), set())
        run = await live(path, second)
        assert run is not None
        assert run.error is None
        assert comparable(run.result) == comparable(whole.result)
        assert not calls & set(second.calls)
        assert not tools & set(second.tools)
        assert calls | set(second.calls) == set(undisturbed.calls)
        assert tools | set(second.tools) == set(undisturbed.tools)
        assert set(second.calls.values()) | set(second.tools.values()) <= {1}
    assert kills >= 20


async def test_killed_again_and_again(tmp_path: Path) -> None:
    """Each life gets three writes further, and does nothing that an earlier one has recorded; the
    values that were random stay what they were.
    """
    path, lives, run = tmp_path / "j", 0, None
    while run is None:
        calls, tools = recorded_in(path) if lives else (set(), set())
        run = await live(path, world := World(), at=4, after=lives % 2 == 0)
        assert not calls & set(world.calls)
        assert not tools & set(world.tools)
        lives += 1
    assert run.error is None
    assert lives > 5
    again = await live(path, untouched := World())
    assert again is not None
    assert again.result == run.result
    assert untouched.calls == untouched.tools == untouched.questions == {}


async def test_the_account_is_that_of_all_lives(tmp_path: Path) -> None:
    """What recorded calls had cost counts as the program's, and its DAG has the same edges."""
    whole = await live(tmp_path / "whole", World())
    await live(tmp_path / "j", World(), at=9)
    run = await live(tmp_path / "j", World())
    assert whole is not None
    assert run is not None
    assert run.row.service_s == pytest.approx(whole.row.service_s)
    assert run.row.finished_calls == whole.row.finished_calls
    assert len(run.dag) == len(whole.dag)
