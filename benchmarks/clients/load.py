"""The conversations of clients, and the counts of their calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

CALLS = 3
"""The number of calls of a conversation, one after the other without a pause."""
QUARTER_S = 15.0


@dataclass(frozen=True, slots=True)
class Conversation:
    """The numbers of tokens of a conversation: in its first prompt, in each answer, and in each
    later message.
    """

    prompt: int
    output: int
    message: int


@dataclass(slots=True)
class Counted:
    """The number of calls of a run in each quarter of a minute. If the last calls of a quarter
    ended late, the quarter's number is scaled to a quarter of a minute.
    """

    minutes: float
    quarters: list[float] = field(default_factory=list)
    failed: int = 0

    def __post_init__(self) -> None:
        self.quarters = [0] * max(1, round(self.minutes * 60.0 / QUARTER_S))

    @property
    def seconds(self) -> float:
        """The length of the run in seconds."""
        return len(self.quarters) * QUARTER_S

    def ended(self, at_s: float) -> None:
        """Count a call that ended ``at_s`` seconds after the start of the run. A call after the end
        of the run does not count.
        """
        quarter = int(at_s / QUARTER_S)
        if quarter < len(self.quarters):
            self.quarters[quarter] += 1

    @property
    def calls(self) -> float:
        """The number of calls in all quarters."""
        return sum(self.quarters)


def by_minute(mine: Counted, base: Counted) -> Sequence[float]:
    """Return the number of calls in each minute, as a ratio to the number of ``base`` in this
    minute.
    """
    per_minute = round(60.0 / QUARTER_S)
    starts = range(0, len(mine.quarters), per_minute)
    return [
        sum(mine.quarters[start : start + per_minute])
        / max(sum(base.quarters[start : start + per_minute]), 1)
        for start in starts
    ]
