"""A program that is killed at each write of its journal continues, and does nothing twice."""

from __future__ import annotations

import random
from itertools import count
from pathlib import Path

import pytest

from tests.journal.counting import Counts
from tests.journal.killing import World, ended, live, recorded_in


async def test_killed_at_each_write(tmp_path: Path) -> None:
    """1. An undisturbed run. 2. One that is killed at write 1, 2, …, before or after it, resumes in
    a second life, with the same result. 3. Programs that are killed at a random write, and again
    at one of the next life. What was recorded does not run again, and all else runs once.
    """
    undisturbed, paths = World(), (tmp_path / str(n) for n in count())
    whole = await ended(tmp_path / "whole", undisturbed)
    assert set(undisturbed.calls.values()) == set(undisturbed.tools.values()) == {1}
    counts = Counts(whole, undisturbed)
    for after in (False, True):
        write = 1
        while await counts.lives(next(paths), [(write, after)]):
            write += 1
        assert write > 20
    rng = random.Random(33)
    for _ in range(8):
        deaths = [(rng.randint(2, 16), rng.random() < 0.5), (rng.randint(2, 6), rng.random() < 0.5)]
        await counts.lives(next(paths), deaths)
    assert counts.kills >= 50
    assert counts.faults == {}


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
    again = await ended(path, untouched := World())
    assert again.result == run.result
    assert untouched.calls == untouched.tools == untouched.questions == {}


async def test_the_account_is_that_of_all_lives(tmp_path: Path) -> None:
    """What recorded calls had cost counts as the program's, and its DAG has the same edges."""
    whole = await ended(tmp_path / "whole")
    await live(tmp_path / "j", World(), at=9)
    run = await ended(tmp_path / "j")
    assert run.row.service_s == pytest.approx(whole.row.service_s)
    assert run.row.finished_calls == whole.row.finished_calls
    assert len(run.dag) == len(whole.dag)
