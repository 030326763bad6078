"""Statistics of durations: how much longer a duration lasts that has reached a certain age.

They are kept for the service of whole programs, and for gaps.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

from agentrt.scheduler.learned.means import Mean
from agentrt.scheduler.limits import Recent

RESOLUTION_S = 0.05
"""Resolution of durations, in seconds: shorter durations are treated as equal."""
BINS_PER_DOUBLING = 2
"""Number of bins of a duration for each doubling of the duration. It is also the number of priority
levels of the policy `adaptive` for each doubling of the expected service.
"""
LONGEST_S = 1e9
"""Upper limit, in seconds, of the expected service of a program, of the durations in a history
file, and of the ages that are distinguished (`age_bin`).
"""

Kind = tuple[str, str, str]
"""Tenant, program type, and subject of a statistic: a tool, a size, a node; "" for all."""


class Forecast(NamedTuple):
    """A forecast for a duration that has not ended: the ``chance`` that it ends well, and the
    expected ``seconds`` until its end.

    A gap ends well if the program makes another call. The service of a program always ends well.
    """

    chance: float
    seconds: float


@dataclass(slots=True)
class Age:
    """Statistics of the durations that have reached a certain age: the mean remaining duration, and
    the share of durations that ended well (`Forecast`).
    """

    left_s: Mean = field(default_factory=Mean)
    well: Mean = field(default_factory=Mean)

    def learn(self, left_s: float, *, well: bool) -> None:
        """Add a duration that lasted ``left_s`` seconds from this age on. The mean remaining
        duration changes only if the duration ended well.
        """
        self.well.add(well)
        if well:
            self.left_s.add(max(left_s, 0.0))


_NO_AGES: Mapping[int, Age] = {}


class Durations:
    """Statistics of remaining durations (mean residual lives), by kind and by the age that a
    duration has already reached.
    """

    def __init__(self) -> None:
        self._kinds: Recent[Kind, defaultdict[int, Age]] = Recent(lambda: defaultdict(Age))

    def ages(self, kind: Kind) -> Mapping[int, Age]:
        """Return the statistics of a kind by age (`age_bin`)."""
        return self._kinds.get(kind, _NO_AGES)

    def at(self, kind: Kind, age: int) -> Age | None:
        """Return the statistics of a kind at an age (`age_bin`); None if there are none."""
        return self.ages(kind).get(age)

    def expect(self, kinds: Iterable[Kind], elapsed_s: float) -> Forecast:
        """Return the forecast for a duration that has lasted ``elapsed_s`` seconds so far and
        belongs to all of ``kinds``.

        ``kinds`` are ordered from general to specific. Each kind refines the forecast of the kinds
        before it.
        """
        forecast, age = Forecast(1.0, max(elapsed_s, RESOLUTION_S)), age_bin(elapsed_s)
        for kind in kinds:
            known = self.at(kind, age)
            if known is not None:
                left_s = max(known.left_s.refine(forecast.seconds), RESOLUTION_S)
                forecast = Forecast(known.well.refine(forecast.chance), left_s)
        return forecast

    def learn(self, kind: Kind, total_s: float, *, well: bool = True) -> None:
        """Add a duration that ended after ``total_s`` seconds. The remaining duration is added to
        the statistics of each age that the duration had reached.
        """
        ages = self._kinds.of(kind)
        for age in range(age_bin(total_s) + 1):
            ages[age].learn(total_s - bin_edge(age), well=well)

    def entry(self, kind: Kind, age: int) -> Age:
        """Return the statistics of a kind at an age, so that the caller can add samples. Creates
        the statistics if needed. If there are too many kinds then, the least recently used kind is
        dropped.
        """
        return self._kinds.of(kind)[age]

    def entries(self) -> Iterator[tuple[Kind, int, Age]]:
        """Yield all statistics. The least recently used kind comes first."""
        for kind, ages in self._kinds.items():
            for age, known in ages.items():
                yield kind, age, known


def age_bin(seconds: float) -> int:
    """Return the bin of a duration; 0 for durations up to `RESOLUTION_S`."""
    if not seconds > RESOLUTION_S:
        return 0
    return 1 + int(BINS_PER_DOUBLING * math.log2(min(seconds, LONGEST_S) / RESOLUTION_S))


@cache
def bin_edge(age: int) -> float:
    """Return the smallest duration of a bin, in seconds."""
    return RESOLUTION_S * 2.0 ** ((age - 1) / BINS_PER_DOUBLING) if age else 0.0
