"""Counts of what programs did that were killed, beside one that was not."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentrt.executors.base import Executor
from agentrt.request import Call
from agentrt.runtime.run import Run
from tests.journal.killing import At, Engine, World, asked_of, everything, live, recorded_in

UNLIKE = ("chance", "order")
"""What is another one in each undisturbed run: random values, and which of two came first."""
_TO_ITS_END = (-1, False)
_USER = re.compile(r"<\|im_start\|>user\n(.*?)<\|im_end\|>", re.DOTALL)


def asked_in(text: str, call: Call) -> str:
    """What a call asks, as a `World` counts it; its token ids are this ``text``, in ChatML."""
    said = _USER.findall(text)
    return str(said[-1]) if said else asked_of(call)  # a context is no chat


def comparable(result: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in result.items() if name not in UNLIKE}


def known_in(path: Path) -> tuple[set[str], set[str]]:
    """The calls and tools that are recorded; none where nothing has begun."""
    return recorded_in(path) if path.exists() else (set(), set())


@dataclass(slots=True)
class Counts:
    """How often programs were killed, and their ``faults``: what was done again that was recorded,
    done twice in one life, or never; and results that are not those of the ``whole`` run. Its calls
    had at ``most`` so many tokens.
    """

    whole: Run
    undisturbed: World
    engine: Callable[[World], Executor] = Engine
    most: int = 256
    kills: int = 0
    faults: Counter[str] = field(default_factory=Counter)

    async def lives(self, path: Path, deaths: Sequence[tuple[At, bool]]) -> int:
        """A program lives in this journal: it is killed at these writes (and whether after them),
        each in a life of its own, and then gets to its end. How often it was killed.
        """
        kills = 0
        for at, after in (*deaths, _TO_ITS_END):
            recorded = known_in(path)
            world = World()
            made, engine = everything(world, self.most), self.engine(world)
            run = await live(path, world, made=made, at=at, after=after, engine=engine)
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
