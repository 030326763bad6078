"""Distributions of sizes and gaps for generators, and the builder of programs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from random import Random
from statistics import NormalDist

from agentrt.errors import ConfigError
from agentrt.lab.workloads.shape import CallShape, ProgramShape

_NORMAL = NormalDist()
_EDGE = 1e-12
"""Minimum distance of a probability from 0 and 1, so that its quantile is finite."""


@dataclass(frozen=True)
class Sizes:
    """A lognormal distribution, truncated to [``low``, ``high``], whose mean is ``mean``.

    ``spread`` is the standard deviation of the logarithm before the truncation: 0.3 is narrow, 1 is
    long-tailed.
    """

    mean: float
    spread: float
    low: float = 1.0
    high: float = 1e5

    def at(self, z: float) -> float:
        """Return the value at the quantile that ``z`` has in the standard normal distribution."""
        location, bottom, width = self._cut
        share = min(max(bottom + _NORMAL.cdf(z) * width, _EDGE), 1 - _EDGE)
        value = math.exp(location + self.spread * _NORMAL.inv_cdf(share))
        return min(max(value, self.low), self.high)

    def draw(self, rng: Random, z: float | None = None) -> int:
        """Draw a whole number. The drawn value is rounded up or down at random, so that the mean is
        unbiased.
        """
        value = self.at(rng.gauss(0.0, 1.0) if z is None else z)
        return math.floor(value + rng.random())

    def square(self) -> float:
        """Return the mean of the squares of drawn numbers, including the effect of rounding."""
        # Random rounding adds f (1 - f) for a fraction f, which is about 1/6 on average.
        return _moment(self, self._cut[0], 2) + 1 / 6

    @cached_property
    def _cut(self) -> tuple[float, float, float]:
        """Return the location that gives the mean, and the probabilities of values below ``low``
        and inside the limits.
        """
        if not (0 < self.low < self.mean < self.high and self.spread > 0):
            raise ConfigError(
                f"no lognormal distribution has these sizes: {self}; low must be above 0, mean "
                "between low and high, and spread above 0"
            )
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
    """The times of programs outside the engine: medians of lognormal distributions, in seconds.

    ``human_s`` is 0 by default, because the paper's experiments have no thinking time (Agentix,
    §6.1).
    """

    tool_s: float = 1.0
    human_s: float = 0.0

    def tool(self, rng: Random) -> float:
        """Draw the time of a tool: the median is ``tool_s``, and one tool in a hundred takes at
        least ten times as long.
        """
        return self.tool_s * rng.lognormvariate(0.0, 1.0)

    def human(self, rng: Random) -> float:
        """Draw the pause of a human: the median is ``human_s``, and the tail is longer than the
        tail of tools.
        """
        return self.human_s * rng.lognormvariate(0.0, 1.3)


def _moment(sizes: Sizes, location: float, order: int) -> float:
    """Return the moment of this order of the truncated lognormal distribution."""
    spread = sizes.spread
    low = (math.log(sizes.low) - location) / spread
    high = (math.log(sizes.high) - location) / spread
    shift = order * spread
    inside = _NORMAL.cdf(high) - _NORMAL.cdf(low)
    moved = _NORMAL.cdf(high - shift) - _NORMAL.cdf(low - shift)
    if inside <= 0 or moved <= 0:  # almost all probability is outside one limit
        return (sizes.low if high > 0 else sizes.high) ** order
    return math.exp(order * location + shift * shift / 2) * moved / inside


_SHARED = 0.4
"""Correlation of the sizes within a program. It represents users and models that are verbose or
terse.
"""


class ProgramBuilder:
    """The calls of one program so far. All randomness comes from ``rng``.

    The token counts of one program are correlated: the quantile of each count comes from a normal
    variable, and the normal variables of two counts have the correlation ``shared``. This
    correlation does not change the distributions.
    """

    def __init__(self, rng: Random, *, system_tokens: int = 0, shared: float = _SHARED) -> None:
        self.calls: list[CallShape] = []
        self._rng = rng
        self._system_tokens = system_tokens
        self._verbosity = rng.gauss(0.0, 1.0)
        self._shared = math.sqrt(shared)
        self._own = math.sqrt(1.0 - shared)

    def draw(self, sizes: Sizes) -> int:
        z = self._shared * self._verbosity + self._own * self._rng.gauss(0.0, 1.0)
        return sizes.draw(self._rng, z)

    def call(
        self,
        node: str,
        output: Sizes,
        fresh: Sizes | int,
        *,
        after: Sequence[int] = (),
        extends: int | None = None,
        quotes: Sequence[int] = (),
        gap_s: float = 0.0,
        human: bool = False,
        tool: str = "",
    ) -> int:
        """Add a call and return its index.

        The call's prompt consists of three parts: the prompt and the output of the call that it
        ``extends`` (or the program's system prompt), the outputs of the calls that it ``quotes``,
        and ``fresh`` tokens.
        """
        new = fresh if isinstance(fresh, int) else self.draw(fresh)
        prompt = self._begin(extends) + sum(self.calls[i].output_tokens for i in quotes) + new
        self.calls.append(
            CallShape(
                output_tokens=self.draw(output),
                prompt_tokens=prompt,
                after=tuple(after),
                gap_s=gap_s,
                node=node,
                extends=extends,
                human=human and gap_s > 0,
                tool=tool,
            )
        )
        return len(self.calls) - 1

    def build(self, program_id: str, type: str) -> ProgramShape:
        return ProgramShape(program_id, type, tuple(self.calls), system_tokens=self._system_tokens)

    def _begin(self, extends: int | None) -> int:
        if extends is None:
            return self._system_tokens
        parent = self.calls[extends]
        return parent.prompt_tokens + parent.output_tokens
