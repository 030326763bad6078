"""What gaps between calls teach: how likely a program returns, and in how many seconds.

A gap's kind is its tenant, its program's type and its tool, in bins of half a
doubling. Of a gap that has lasted for ``e`` seconds already, those count that lasted
longer: the share of them that ended with a return, and the mean of what was left. Few
samples shrink towards the type's other gaps, and those towards a prior that needs none: a
gap goes on for as long as it has lasted (Lindy's rule), and ends well nine times in ten.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

from agentrt.errors import ConfigError

SHORTEST_S = 0.05
"""Seconds below which gaps are not told apart."""
PRIOR_S = 9.0
"""A gap of which nothing is known: the median tool call of recorded coding agents."""
PRIOR_CHANCE = 0.9
_BINS = 44
_MEMORY = 256.0
_KINDS = 1024
_DOUBT = 4.0
"""Samples that a kind needs to count for half."""
_ANY = "(any)"

Kind = tuple[str, str, str]
"""Tenant, type, gap: per tenant, so that nobody can teach falsehoods about others."""


class Forecast(NamedTuple):
    """The ``chance`` that a program returns, and in how many ``seconds`` if it does."""

    chance: float
    seconds: float


@dataclass(slots=True)
class _Counts:
    """Faded counts of gaps: of those at least as long as each bin, so that a question is cheap.

    ``back`` ended in a return, ``gone`` did not; ``seconds`` is how long those in ``back`` were.
    """

    back: list[float] = field(default_factory=lambda: [0.0] * (_BINS + 1))
    gone: list[float] = field(default_factory=lambda: [0.0] * (_BINS + 1))
    seconds: list[float] = field(default_factory=lambda: [0.0] * (_BINS + 1))
    count: float = 0.0

    @property
    def counts(self) -> tuple[list[float], ...]:
        """All that is counted by bin."""
        return self.back, self.gone, self.seconds

    def add(self, seconds: float, *, returned: bool) -> None:
        if self.count >= _MEMORY:
            for counts in self.counts:
                counts[:] = [value / 2 for value in counts]
            self.count /= 2
        last = _bin(seconds)
        for index in range(last + 1):
            if returned:
                self.back[index] += 1.0
                self.seconds[index] += _MIDDLES[last]
            else:
                self.gone[index] += 1.0
        self.count += 1.0

    def refine(self, forecast: Forecast, elapsed: float, first: int) -> Forecast:
        """An forecast, moved towards this kind's as far as its samples count.

        ``first`` is the bin of ``elapsed``.
        """
        back, longer = self.back[first], self.back[first + 1]
        here_s = max(_MIDDLES[first] - elapsed, SHORTEST_S) * (back - longer)
        longer_s = max(self.seconds[first + 1] - longer * elapsed, SHORTEST_S * longer)
        chance = (back + _DOUBT * forecast.chance) / (back + self.gone[first] + _DOUBT)
        seconds = (here_s + longer_s + _DOUBT * forecast.seconds) / (back + _DOUBT)
        return Forecast(chance, seconds)


class Gaps:
    """Learns from gaps that end; asked about those that go on. Bounded in size."""

    def __init__(self) -> None:
        self._kinds: OrderedDict[Kind, _Counts] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kinds)

    def learn(self, tenant: str, type: str, gap: str, seconds: float, *, returned: bool) -> None:
        """A gap ended after ``seconds``: with a call, or with the program."""
        for name in (_ANY, gap):
            self._counts((tenant, type, name)).add(seconds, returned=returned)

    def expect(
        self, tenant: str, type: str, gap: str, elapsed: float, prior_s: float = PRIOR_S
    ) -> Forecast:
        """What is to be expected of a gap that has lasted for ``elapsed`` seconds."""
        forecast = Forecast(PRIOR_CHANCE, max(elapsed, prior_s))
        first = _bin(elapsed)
        for name in (_ANY, gap):
            counts = self._kinds.get((tenant, type, name))
            if counts is not None:
                forecast = counts.refine(forecast, elapsed, first)
        return forecast

    def to_rows(self) -> list[list[Any]]:
        """As JSON-able values: what survives a restart."""
        return [
            [*kind, one.count, *(_trimmed(counts) for counts in one.counts)]
            for kind, one in self._kinds.items()
        ]

    def load(self, rows: Sequence[Sequence[Any]]) -> None:
        """Take over what `to_rows` gave. Raises `ConfigError` for anything else."""
        try:
            kinds = {_kind(*row[:3]): _counts_of(*row[3:]) for row in rows}
        except (TypeError, ValueError, OverflowError) as error:
            raise ConfigError(f"these are not learned gaps: {error!r}") from error
        self._kinds = OrderedDict(list(kinds.items())[-_KINDS:])

    def _counts(self, kind: Kind) -> _Counts:
        found = self._kinds.get(kind)
        if found is None:
            found = self._kinds[kind] = _Counts()
        self._kinds.move_to_end(kind)
        if len(self._kinds) > _KINDS:
            self._kinds.popitem(last=False)
        return found


def _kind(*names: Any) -> Kind:
    """A kind from its row. Raises `TypeError` or `ValueError` for what cannot be one."""
    tenant, type, gap = names
    if not all(isinstance(name, str) for name in names):
        raise TypeError(f"{names} are not all strings")
    return tenant, type, gap


def _trimmed(counts: list[float]) -> list[float]:
    """Without the zeros at the end: the longest bins are mostly empty."""
    return [value for value in counts if value]


def _counts_of(count: Any, *counts: Any) -> _Counts:
    """Counts from their row. Raises `ValueError` or `TypeError` for what cannot be one."""
    back, gone, seconds = (_padded(values) for values in counts)
    if not 0 <= count < math.inf:
        raise ValueError(f"{count!r} samples")
    return _Counts(back, gone, seconds, float(count))


def _padded(values: Any) -> list[float]:
    counts = [float(value) for value in values]
    falling = all(more >= less for more, less in pairwise([math.inf, *counts, 0.0]))
    if len(counts) > _BINS or not falling or math.inf in counts:
        raise ValueError(f"counts that never were: {values!r}")
    return counts + [0.0] * (_BINS + 1 - len(counts))


def _bin(seconds: float) -> int:
    if seconds <= SHORTEST_S:
        return 0
    return min(_BINS - 1, math.ceil(2.0 * math.log2(seconds / SHORTEST_S)))


_MIDDLES = (SHORTEST_S, *(SHORTEST_S * 2.0 ** ((n - 0.5) / 2.0) for n in range(1, _BINS)))
"""The middle of each bin, as a ratio, in seconds."""
