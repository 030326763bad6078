"""Silences of programs: the chance that a program without a call makes another call."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import deque
from itertools import islice

from agentrt.scheduler.learned.means import DOUBT, Mean

SILENCES = 2048
"""Number of latest silences (`Silence`) that are kept per type: enough for a few turns of many
clients.
"""


class Silence:
    """A silence: a period in which a program has no call, and the engine is not told what the
    program waits for.
    """

    __slots__ = ("_of", "counted", "length", "returned", "since")

    def __init__(self, of: Silences, since: float) -> None:
        self._of, self.since = of, since
        self.counted = True
        """Whether the silence is among the latest silences of its type."""
        self.length: float | None = None
        """Duration in seconds; None while the silence lasts."""
        self.returned = False
        """Whether the silence ended with a call."""

    def end(self, now: float, *, returned: bool) -> None:
        """End the silence: the program has made a call (``returned``), or will make none."""
        if self.counted:
            self._of.end(self, now, returned=returned)

    def drop(self) -> None:
        """Drop the silence, because the engine was told what the program waits for."""
        if self.counted:
            self._of.drop(self)

    def chance(self, now: float, prior: float) -> float:
        """Return the probability that the program makes another call. ``prior`` is the probability
        to assume while no other silence of the type is known; its weight falls with the number of
        silences.
        """
        return self._of.chance(self, now, prior)


class Silences:
    """The latest silences of the programs of one type: how many ended with a call, and after how
    long.

    Clients rarely report the end of a conversation. If many programs have been silent for longer
    than the programs that returned, then a silent program will probably not return.
    """

    def __init__(self) -> None:
        self._latest: deque[Silence] = deque()
        self._open: list[float] = []
        """The start times of the silences that still last, sorted."""
        self._returned: list[float] = []
        """The durations, in seconds, of the silences that ended with a call, sorted."""
        self._gone: list[float] = []
        """The durations of the silences that ended with their program, sorted."""
        self._explained = Mean()
        """The share of silences that were dropped, because the engine was told what the program
        waits for."""
        self._until_look = 0
        self._ends = 0.0

    def begin(self, now: float) -> Silence:
        """Start a silence of a program."""
        self._until_look -= 1
        silence = Silence(self, now)
        insort(self._open, now)
        self._latest.append(silence)
        if len(self._latest) > SILENCES:
            self._forget(self._latest.popleft())
        return silence

    def end(self, silence: Silence, now: float, *, returned: bool) -> None:
        """See `Silence.end`."""
        self._explained.add(0.0)
        self._remove_open(silence)
        silence.length, silence.returned = now - silence.since, returned
        insort(self._returned if returned else self._gone, silence.length)

    def drop(self, silence: Silence) -> None:
        """See `Silence.drop`."""
        self._explained.add(1.0)
        self._remove_open(silence)
        self._latest.remove(silence)
        silence.counted = False

    def chance(self, silence: Silence, now: float, prior: float) -> float:
        """See `Silence.chance`.

        The probability is the share of silences that ended with a call, among the silences that
        lasted at least as long as this silence has lasted. If this silence has lasted for a long
        time, few of the latest silences began early enough to have lasted as long. So a silence
        that has not ended with a call then counts in the share as soon as it has lasted for half
        the time since the oldest silence began.

        If few of the silences that ended with a call lasted as long as this silence, the prior
        counts less, and this silence itself counts as a silence without a call.
        """
        age = now - silence.since
        returned = _at_least(self._returned, age)
        usual = (returned + 1.0) / (len(self._returned) + 1.0)
        reached = min(age, (now - self._latest[0].since) / 2.0) if self._latest else age
        others = bisect_right(self._open, now - reached)
        if silence.counted and silence.since <= now - reached:
            others -= 1
        never = _at_least(self._gone, reached) + others + (1.0 - usual)
        return (returned + usual * DOUBT * prior) / (returned + never + usual * DOUBT)

    @property
    def ends(self) -> float:
        """The share of calls after which a program makes no further call; 0 if there are few
        samples.

        A call that is followed by a tool call is never the last call, if the engine was told about
        the tool call.
        """
        if len(self._latest) >= DOUBT and self._until_look <= 0:
            self._until_look = len(self._latest) // 16
            older = [*islice(self._latest, len(self._latest) // 2)]
            # The rule of succession: that no chain has ended yet does not mean that none will.
            self._ends = (sum(not silence.returned for silence in older) + 1.0) / (len(older) + 2.0)
        return self._ends * (1.0 - self._explained.value)

    def _forget(self, silence: Silence) -> None:
        silence.counted = False
        if silence.length is None:
            self._remove_open(silence)
        else:
            ended = self._returned if silence.returned else self._gone
            del ended[bisect_left(ended, silence.length)]

    def _remove_open(self, silence: Silence) -> None:
        del self._open[bisect_left(self._open, silence.since)]


def _at_least(lengths: list[float], age: float) -> int:
    """Return how many of the sorted durations are at least ``age``."""
    return len(lengths) - bisect_left(lengths, age)
