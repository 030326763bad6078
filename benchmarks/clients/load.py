"""What the clients ask for, and how many calls they get through."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

CALLS = 3
"""Calls of a conversation, one after the other without a pause."""
QUARTER_S = 15.0


@dataclass(frozen=True, slots=True)
class Conversation:
    """The tokens of a conversation's first prompt, of each answer, and of each later message."""

    prompt: int
    output: int
    message: int


@dataclass(slots=True)
class Counted:
    """The calls of one run, by quarter of a minute. Where the last calls of a quarter ended after
    it, its figure is those that would have ended in a quarter of a minute at that rate.
    """

    minutes: float
    quarters: list[float] = field(default_factory=list)
    failed: int = 0

    def __post_init__(self) -> None:
        self.quarters = [0] * max(1, round(self.minutes * 60.0 / QUARTER_S))

    @property
    def seconds(self) -> float:
        """How long the run is."""
        return len(self.quarters) * QUARTER_S

    def ended(self, at_s: float) -> None:
        """Count a call that ended ``at_s`` seconds after the run began; a late one is left out."""
        quarter = int(at_s / QUARTER_S)
        if quarter < len(self.quarters):
            self.quarters[quarter] += 1

    @property
    def calls(self) -> float:
        """All calls that ended in time."""
        return sum(self.quarters)


def by_minute(mine: Counted, base: Counted) -> Sequence[float]:
    """Each minute's calls over those of ``base`` in that minute."""
    per_minute = round(60.0 / QUARTER_S)
    starts = range(0, len(mine.quarters), per_minute)
    return [
        sum(mine.quarters[start : start + per_minute])
        / max(sum(base.quarters[start : start + per_minute]), 1)
        for start in starts
    ]
