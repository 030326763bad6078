"""Programs of the usual shapes of asyncio are killed at random, and go the same way again."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from agentrt.journal.schema import DONE
from tests.journal.killing import World, ended, live, nodes, program_of
from tests.journal.shapes import SHAPES

KILLS = 9
"""Of each program: with 23 of them more than 200."""


@pytest.mark.parametrize("name", SHAPES)
async def test_killed_at_random_it_goes_the_same_way(tmp_path: Path, name: str) -> None:
    """Each life is killed at one of its writes, before or after it, until there were so many kills.
    Then a last life has the result of the one before, and asks nobody for anything.
    """
    rng, kills, number = random.Random(name), 0, 0
    while kills < KILLS:
        path, run = tmp_path / str(number), None
        number += 1
        while run is None:
            most = rng.choice((3, 8, 20, 40)) if kills < KILLS else 1 << 30
            run = await live(
                path,
                World(),
                made=program_of(SHAPES[name]),
                given=None,
                at=rng.randint(1, most),
                after=rng.random() < 0.5,
            )
            kills += run is None
        assert run.error is None, f"{name}, {number}: {run.error!r}"
        before = nodes(path, "node, attempt")
        world = World()
        again = await ended(path, world, made=program_of(SHAPES[name]), given=None)
        assert again.error is None, f"{name}, {number}: {again.error!r}"
        assert (again.result, world.calls) == (run.result, {})
        assert nodes(path, "node, attempt") == before
        assert [state for node, state in nodes(path, "node, state") if node == "0"] == [DONE]
