"""How much service the programs of a kind still need at each age, learned from the living too.

The mean of those that have ended is too small while many wait: the short ones end first. A life
table asks of each age how many came there and how many of them ended there, so that those that
still live count for the ages that they have reached (the actuarial form of the estimate of
Kaplan and Meier, 1958).
"""

from __future__ import annotations

from agentrt.scheduler.ages import bin_edge

_MEMORY = 400.0
"""Ends that a table remembers; older ones fade, so that a kind may change."""
_DOUBT = 2.0
"""Samples that an age needs to count for half."""
_DOUBTED = 0.5
"""The share that ends within half a doubling where as much is still to come as was attained."""


class LifeTable:
    """The programs of one kind, by age. Services are in units: seconds, unless hinted.

    ``rest`` is the mean service still to come from the beginning of each age on. Where few have
    ended, and past the age that anyone has reached, as much is expected as was attained.
    ``left_s`` is what all that live still need, in seconds. What changes it returns by how much.
    """

    __slots__ = ("_here", "_units", "ended", "left_s", "passed", "rest")

    def __init__(self) -> None:
        self.left_s = 0.0
        self.rest: list[float] = []
        self.passed: list[float] = []
        """Of the programs that ended: how many had come to each age. They fade."""
        self.ended: list[float] = []
        """How many of them ended there."""
        self._here: list[int] = []
        self._units: list[float] = []  # of those that live at each age, summed

    @property
    def reached(self) -> int:
        """How many ages programs came to that have ended."""
        return sum(count > 0.0 for count in self.passed)

    def come(self, age: int, unit: float) -> float:
        """A live program is at this age from now on."""
        self._reach(age)
        self._here[age] += 1
        return self._add(age, unit)

    def leave(self, age: int, unit: float) -> float:
        """A live program that came to this age with this unit is there no more."""
        self._here[age] -= 1
        return self._add(age, -unit)

    def end(self, age: int) -> float:
        """A program, no more among the living, ended at this age. O(ages)."""
        self._reach(age)
        fade = 1.0 - 1.0 / _MEMORY
        for one in range(len(self.rest)):
            self.passed[one] = self.passed[one] * fade + (one <= age)
            self.ended[one] = self.ended[one] * fade + (one == age)
        return self._estimate()

    def learned(self, passed: list[float], ended: list[float]) -> float:
        """Know what another table learned: its ``passed`` and ``ended``, and nothing else."""
        self._reach(len(passed) - 1)
        unknown = [0.0] * (len(self.rest) - len(passed))
        self.passed, self.ended = passed + unknown, ended + unknown
        return self._estimate()

    def _add(self, age: int, units: float) -> float:
        self._units[age] += units
        change_s = units * self.rest[age]
        self.left_s += change_s
        return change_s

    def _estimate(self) -> float:
        """Work out ``rest`` and ``left_s`` anew."""
        alive, before = 0, self.left_s
        rest = bin_edge(len(self.rest))
        for age in range(len(self.rest) - 1, -1, -1):
            alive += self._here[age]
            # Those that are in a bin have been through half of it, on average.
            exposed = max(self.passed[age] + alive - self._here[age] / 2.0, 0.0)
            share = (self.ended[age] + _DOUBTED * _DOUBT) / (exposed + _DOUBT)
            width = bin_edge(age + 1) - bin_edge(age)
            ends = min(share, 1.0)
            rest = ends * width / 2.0 + (1.0 - ends) * (width + rest)
            self.rest[age] = rest
        self.left_s = sum(u * r for u, r in zip(self._units, self.rest, strict=True))
        return self.left_s - before

    def _reach(self, age: int) -> None:
        while len(self.rest) <= age:
            self.rest.append(bin_edge(len(self.rest) + 1))
            self.passed.append(0.0)
            self.ended.append(0.0)
            self._here.append(0)
            self._units.append(0.0)
