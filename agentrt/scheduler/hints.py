"""What a hint of a program's size is worth, learned from the programs of its kind that ended.

A hint has any unit. The law is a power of it: the regression line of the logarithm of a
program's service on that of its hint. Hints that say nothing get the power 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

_MEMORY = 400.0
"""Programs that a law remembers; older ones fade."""
_DOUBT = 8.0
"""Samples that a law needs to count for half."""
_SAME = 1e-9
"""Spread of the hints' logarithms below which they are all one."""
_FARTHEST = 64.0
"""No hint makes a program more times as large, or as small, as its kind's usual one."""


@dataclass(slots=True)
class HintLaw:
    """Faded moments of the logarithms of hints and of services (seconds).

    ``unhinted`` is what `times` comes to on average: how large a program without a hint is.
    """

    n: float = 0.0
    hint: float = 0.0
    service: float = 0.0
    spread: float = 0.0
    together: float = 0.0
    unhinted: float = 1.0

    def add(self, hint: float, service_s: float) -> None:
        """A program of the kind ended."""
        off_hint, off_service = math.log(hint) - self.hint, math.log(service_s) - self.service
        self.n = min(self.n, _MEMORY - 1.0) + 1.0
        self.hint += off_hint / self.n
        self.service += off_service / self.n
        # Welford's moments: one difference from the mean before, one from the mean after.
        rest = 1.0 - 1.0 / self.n
        self.spread += (off_hint * off_hint * rest - self.spread) / self.n
        self.together += (off_hint * off_service * rest - self.together) / self.n
        self.unhinted += (self.times(hint) - self.unhinted) / self.n

    def times(self, hint: float) -> float:
        """How many times the usual size of its kind a program with this hint is expected to be."""
        if self.spread <= _SAME:
            return 1.0
        power = self.together / self.spread * self.n / (self.n + _DOUBT)
        times = power * (math.log(hint) - self.hint)
        return math.exp(min(max(times, -math.log(_FARTHEST)), math.log(_FARTHEST)))

    def to_list(self) -> list[float]:
        """As JSON-able values."""
        moments = [self.hint, self.service, self.spread, self.together]
        return [self.n, *moments, self.unhinted]

    @classmethod
    def of(cls, values: Sequence[float]) -> HintLaw:
        """What `to_list` gave. Raises `ValueError` for what no programs can have taught."""
        law = cls(*map(float, values))
        sound = all(map(math.isfinite, law.to_list())) and law.spread >= 0.0
        if not sound or not 0.0 <= law.n <= _MEMORY or law.unhinted <= 0.0:
            raise ValueError(f"{values} is no law of hints")
        return law
