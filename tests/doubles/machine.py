"""A machine whose clocks a test moves: time passes, the clock is set, and the machine boots."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from agentrt.steady import MachineClocks

NOON = 1_800_000_000.0
"""The time of day when it was switched on, in seconds since 1970."""
_LOOKS = 40


@dataclass(slots=True, eq=False)
class Machine:
    """It is ``up`` for so many seconds in its ``boot``; programs look at its clocks all the time,
    which is counted.
    """

    time_of_day: float = NOON
    up: float = 500.0
    boot: int = 1
    looks: int = 0

    def clocks(self) -> MachineClocks:
        """Its clocks, until it boots again."""
        return MachineClocks(lambda: self.time_of_day, self._look, f"boot {self.boot}", 0.001)

    def _look(self) -> float:
        self.looks += 1
        return self.up

    def passes(self, seconds: float) -> None:
        """Time passes."""
        self.time_of_day += seconds
        self.up += seconds

    def is_set(self, seconds: float) -> None:
        """Somebody sets the time of day, by so much."""
        self.time_of_day += seconds

    def boots(self, off_s: float) -> None:
        """It boots again after so long."""
        self.time_of_day += off_s
        self.up, self.boot = 5.0, self.boot + 1

    async def looked(self) -> None:
        """Whoever waits for a time of its clocks has seen what they show now."""
        before = self.looks
        while self.looks < before + _LOOKS:
            await asyncio.sleep(0.001)


def passes(seconds: float) -> Callable[[Machine], None]:
    """Time passes on a machine."""
    return lambda machine: machine.passes(seconds)


def is_set(seconds: float) -> Callable[[Machine], None]:
    """Somebody sets a machine's time of day, by so much."""
    return lambda machine: machine.is_set(seconds)


def boots(off_s: float, set_by: float = 0.0) -> Callable[[Machine], None]:
    """A machine boots again after so long, and its time of day is set by so much then."""

    def booted(machine: Machine) -> None:
        machine.boots(off_s)
        machine.is_set(set_by)

    return booted
