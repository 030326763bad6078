"""What gaps between calls teach: how likely a program returns, and in how many seconds.

A gap is filed under its tenant, its program's type and its tool, in bins of half a
doubling. Of a gap that has lasted for ``e`` seconds already, those count that lasted
longer: the share of them that ended with a return, and the mean of what was left. Few
samples shrink towards the type's other gaps, and those towards a prior that needs none: a
gap goes on for as long as it has lasted (Lindy's rule), and ends well nine times in ten.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass, field

SHORTEST_S = 0.05
"""Seconds below which gaps are not told apart."""
PRIOR_S = 9.0
"""A gap of which nothing is known: the median tool call of recorded coding agents."""
PRIOR_CHANCE = 0.9
_BINS = 44
_MEMORY = 256.0
_KINDS = 1024
_DOUBT = 4.0
"""Samples that a file needs to count for half."""
_ANY = "(any)"

Kind = tuple[str, str, str]
"""Tenant, type, gap: per tenant, so that nobody can teach falsehoods about others."""


@dataclass(frozen=True, slots=True)
class Outlook:
    """The ``chance`` that a program returns, and in how many ``seconds`` if it does."""

    chance: float
    seconds: float


@dataclass(slots=True)
class _File:
    """Faded counts by the length of the gap: those that ended in a return, and the others."""

    back: list[float] = field(default_factory=lambda: [0.0] * _BINS)
    gone: list[float] = field(default_factory=lambda: [0.0] * _BINS)
    count: float = 0.0

    def add(self, seconds: float, *, returned: bool) -> None:
        if self.count >= _MEMORY:
            self.back = [value / 2 for value in self.back]
            self.gone = [value / 2 for value in self.gone]
            self.count /= 2
        (self.back if returned else self.gone)[_bin(seconds)] += 1.0
        self.count += 1.0

    def refine(self, outlook: Outlook, elapsed: float) -> Outlook:
        """An outlook, moved towards this file's as far as its samples count."""
        first = _bin(elapsed)
        back = gone = left_s = 0.0
        for index in range(first, _BINS):
            back += self.back[index]
            gone += self.gone[index]
            left_s += self.back[index] * max(_middle(index) - elapsed, SHORTEST_S)
        chance = (back + _DOUBT * outlook.chance) / (back + gone + _DOUBT)
        return Outlook(chance, (left_s + _DOUBT * outlook.seconds) / (back + _DOUBT))


class Gaps:
    """Learns from gaps that end; asked about those that go on. Bounded in size."""

    def __init__(self) -> None:
        self._files: OrderedDict[Kind, _File] = OrderedDict()

    def __len__(self) -> int:
        return len(self._files)

    def learn(self, tenant: str, type: str, gap: str, seconds: float, *, returned: bool) -> None:
        """A gap ended after ``seconds``: with a call, or with the program."""
        for name in (_ANY, gap):
            self._file((tenant, type, name)).add(seconds, returned=returned)

    def expect(
        self, tenant: str, type: str, gap: str, elapsed: float, prior_s: float = PRIOR_S
    ) -> Outlook:
        """What is to be expected of a gap that has lasted for ``elapsed`` seconds."""
        outlook = Outlook(PRIOR_CHANCE, max(elapsed, prior_s))
        for name in (_ANY, gap):
            file = self._files.get((tenant, type, name))
            if file is not None:
                outlook = file.refine(outlook, elapsed)
        return outlook

    def _file(self, kind: Kind) -> _File:
        file = self._files.get(kind)
        if file is None:
            file = self._files[kind] = _File()
            if len(self._files) > _KINDS:
                self._files.popitem(last=False)
        self._files.move_to_end(kind)
        return file


def _bin(seconds: float) -> int:
    if seconds <= SHORTEST_S:
        return 0
    return min(_BINS - 1, math.ceil(2.0 * math.log2(seconds / SHORTEST_S)))


def _middle(index: int) -> float:
    """The middle of a bin, as a ratio, in seconds."""
    return SHORTEST_S * _ratio(index - 0.5) if index else SHORTEST_S


def _ratio(half_doublings: float) -> float:
    return math.pow(2.0, half_doublings / 2.0)
