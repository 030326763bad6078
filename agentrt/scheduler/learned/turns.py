"""The time of the turns of a program type whose calls run."""

from __future__ import annotations


class Turn:
    """A turn whose call runs: it began with the end of the program's previous call."""

    __slots__ = ("_of", "_since")

    def __init__(self, of: RunningTurns, since: float) -> None:
        self._of, self._since = of, since

    def end(self, now: float) -> None:
        """Stop counting the turn, because its call has ended or was preempted."""
        self._of.end(self._since, now)


class RunningTurns:
    """The turns of one program type whose calls run.

    If only ended turns counted, turns would seem too short while a type is new, because its short
    turns end first.
    """

    __slots__ = ("_count", "_since", "seconds")

    def __init__(self) -> None:
        self._count = 0
        self._since = 0.0
        """The sum of the times at which the turns began."""
        self.seconds = 0.0
        """How long the turns have lasted in all, when one last began or ended. The time that calls
        waited in the queue does not count.
        """

    def begin(self, since: float, now: float) -> Turn:
        """Count a turn that began at ``since``."""
        self._count += 1
        self._since += since
        self._sum_up(now)
        return Turn(self, since)

    def end(self, since: float, now: float) -> None:
        """See `Turn.end`."""
        self._count -= 1
        self._since = self._since - since if self._count else 0.0
        self._sum_up(now)

    def _sum_up(self, now: float) -> None:
        self.seconds = max(self._count * now - self._since, 0.0)
