"""Random sizes with a published mean: lognormals cut to a range, calibrated after the cut."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from random import Random
from statistics import NormalDist

from agentrt.errors import ConfigError

_NORMAL = NormalDist()
_EDGE = 1e-12
"""As near as a probability may come to 0 and 1 for its quantile to be finite."""


@dataclass(frozen=True)
class Sizes:
    """A lognormal on [``low``, ``high``] whose mean, with both ends cut off, is ``mean``.

    ``spread`` is the standard deviation of the logarithm before the cut: 0.3 is narrow,
    1 long-tailed.
    """

    mean: float
    spread: float
    low: float = 1.0
    high: float = 1e5

    def at(self, z: float) -> float:
        """The value as far up this distribution as ``z`` is up the standard normal."""
        location, bottom, width = self._cut
        share = min(max(bottom + _NORMAL.cdf(z) * width, _EDGE), 1 - _EDGE)
        value = math.exp(location + self.spread * _NORMAL.inv_cdf(share))
        return min(max(value, self.low), self.high)

    def draw(self, rng: Random, z: float | None = None) -> int:
        """A whole number with this mean: rounded up or down by chance, so not biased."""
        value = self.at(rng.gauss(0.0, 1.0) if z is None else z)
        return math.floor(value + rng.random())

    def square(self) -> float:
        """The mean of the squares of what `draw` gives, without the bits lost to rounding."""
        # Rounding by chance adds f (1 - f) for a fraction f: about 1/6 over all fractions.
        return _moment(self, self._cut[0], 2) + 1 / 6

    @cached_property
    def _cut(self) -> tuple[float, float, float]:
        """The location that gives the mean; the probability below ``low``; that inside."""
        if not (0 < self.low < self.mean < self.high and self.spread > 0):
            raise ConfigError(f"no lognormal has these sizes: {self}")
        reach = 6 * self.spread
        low, high = math.log(self.low) - reach, math.log(self.high) + reach
        for _ in range(80):
            middle = (low + high) / 2
            low, high = (low, middle) if _moment(self, middle, 1) > self.mean else (middle, high)
        bottom = _NORMAL.cdf((math.log(self.low) - low) / self.spread)
        top = _NORMAL.cdf((math.log(self.high) - low) / self.spread)
        return low, bottom, top - bottom


@dataclass(frozen=True, slots=True)
class Gaps:
    """How long programs are outside the engine: medians of lognormals, in seconds.

    ``human_s`` is 0 by default: programs are replayed without thinking time, as in the
    paper's experiments (Agentix, §6.1).
    """

    tool_s: float = 1.0
    human_s: float = 0.0

    def tool(self, rng: Random) -> float:
        """One tool's time: median ``tool_s``, one in a hundred ten times as long."""
        return self.tool_s * rng.lognormvariate(0.0, 1.0)

    def human(self, rng: Random) -> float:
        """One human's pause: median ``human_s``, with a longer tail than a tool's."""
        return self.human_s * rng.lognormvariate(0.0, 1.3)


def _moment(sizes: Sizes, location: float, order: int) -> float:
    """The mean of the ``order``-th power under the cut: textbook truncated lognormal."""
    spread = sizes.spread
    low = (math.log(sizes.low) - location) / spread
    high = (math.log(sizes.high) - location) / spread
    shift = order * spread
    inside = _NORMAL.cdf(high) - _NORMAL.cdf(low)
    moved = _NORMAL.cdf(high - shift) - _NORMAL.cdf(low - shift)
    if inside <= 0 or moved <= 0:  # all the mass is at one end
        return (sizes.low if high > 0 else sizes.high) ** order
    return math.exp(order * location + shift * shift / 2) * moved / inside
