"""Counts of what programs did that were killed, beside one that was not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentrt.executors.base import Executor
from agentrt.runtime.run import Run
from tests.journal.killing import At, Engine, World, live, recorded_in

UNLIKE = ("chance", "order")
"""What is another one in each undisturbed run: random values, and which of two came first."""
_TO_ITS_END = (-1, False)


def comparable(result: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in result.items() if name not in UNLIKE}


@dataclass(slots=True)
class Counts:
    """How often programs were killed, and their ``faults``: what was done again that was recorded,
    done twice in one life, or never; and results that are not those of the ``whole`` run.
    """

    whole: Run
    undisturbed: World
    engine: Callable[[World], Executor] = Engine
    kills: int = 0
    faults: Counter[str] = field(default_factory=Counter)

    async def lives(self, path: Path, deaths: Sequence[tuple[At, bool]]) -> int:
        """A program lives in this journal: it is killed at these writes (and whether after them),
        each in a life of its own, and then gets to its end. How often it was killed.
        """
        kills, run, world = 0, None, World()
        recorded: tuple[set[str], set[str]] = (set(), set())
        for at, after in (*deaths, _TO_ITS_END):
            if path.exists():
                recorded = recorded_in(path)
            world = World()
            run = await live(path, world, at=at, after=after, engine=self.engine(world))
            self._count("call", recorded[0], world.calls)
            self._count("tool", recorded[1], world.tools)
            if run is not None:
                break
            kills += 1
        assert run is not None
        self._ended(run, recorded, world)
        self.kills += kills
        return kills

    def _count(self, kind: str, recorded: set[str], done: Counter[str]) -> None:
        """Of one life: what was ``done`` that was recorded before, or more than once."""
        for name, times in done.items():
            if name in recorded:
                self.faults[f"{kind} again: {name}"] += 1
            if times > 1:
                self.faults[f"{kind} twice: {name}"] += 1

    def _ended(self, run: Run, recorded: tuple[set[str], set[str]], world: World) -> None:
        """What the last life did, and the program's result."""
        for done, last, all_of_it in (
            (recorded[0], world.calls, self.undisturbed.calls),
            (recorded[1], world.tools, self.undisturbed.tools),
        ):
            for name in (done | set(last)) ^ set(all_of_it):
                self.faults[f"other work: {name}"] += 1
        if run.error is not None or comparable(run.result) != comparable(self.whole.result):
            self.faults["result"] += 1
