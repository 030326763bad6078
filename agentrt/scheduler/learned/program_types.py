"""Statistics of the calls and programs of one type: outputs, turns, and the growth of contexts."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from agentrt.scheduler.learned.means import DOUBT, WINDOW, Mean
from agentrt.scheduler.learned.silences import Silences
from agentrt.scheduler.learned.turns import RunningTurns

BRANCHING = 0.25
"""A program type counts as branching if more than this share of its calls arrives while another
call of the same program is in the engine.
"""
_LEAST_VARIATION = 0.01
"""Lower limit of the squared coefficient of variation of the number of calls of a program, so that
the estimate stays finite for programs that are all alike.
"""


@dataclass(slots=True)
class TypeStats:
    """Typical values for the calls and programs of one type.

    For calls: the output tokens (``output``), the prompt tokens that all programs of the type share
    (``shared``), and the share of calls that arrive while another call of the same program is in
    the engine (``beside``). For programs: the number of calls (``calls``) and its square
    (``calls_squared``). For a turn, which lasts from the end of a call to the end of the program's
    next call: the tokens by which the context grows (``grown``), and the seconds without waiting in
    the queue (``turn_s``).
    """

    output: Mean = field(default_factory=Mean)
    shared: Mean = field(default_factory=Mean)
    beside: Mean = field(default_factory=Mean)
    calls: Mean = field(default_factory=Mean)
    calls_squared: Mean = field(default_factory=Mean)
    grown: Mean = field(default_factory=Mean)
    turn_s: Mean = field(default_factory=Mean)
    turns: float = 0.0
    """The number of ended turns since the type is known. ``turn_s`` counts only the latest."""
    running: RunningTurns = field(default_factory=RunningTurns)
    silences: Silences = field(default_factory=Silences)

    @property
    def branches(self) -> bool:
        """Whether programs of this type often have several calls at the same time."""
        return self.beside.value > BRANCHING

    def turn_ended(self, seconds: float) -> None:
        """Add a turn that ended after ``seconds``."""
        before = self.turn_s.n if self.turn_s.n < WINDOW else max(self.turns, WINDOW)
        self.turns = before + 1.0
        self.turn_s.add(seconds)

    def growth(self, context_tokens: int, finished_calls: int, seconds: float) -> int:
        """Return the number of tokens by which the context of a chain of calls is expected to grow
        within ``seconds``.

        A chain that ends frees its context. So the result is the largest difference, over the
        period, between the expected size of the context then (0 after the chain's end) and its size
        now, ``context_tokens``. To save time, only the whole, the half and a quarter of the period
        are compared. The result is 0 for a type that branches, and until the duration of a turn is
        known.

        The mean duration of a turn is the time spent in turns, ended or not, divided by the number
        of turns that ended. This estimate is unbiased if the probability that a turn ends does not
        depend on how long it has lasted. The running turns are divided by the number of all turns
        that ended, and not by the at most `WINDOW` turns in the mean ``turn_s``: otherwise, a type
        with as many running turns as that would seem to have far longer turns than it has.
        """
        ended = max(self.turns, self.turn_s.n)
        turn_s = self.turn_s.value + self.running.seconds / ended if self.turn_s.n else 0.0
        if turn_s <= 0.0 or self.branches:
            return 0
        turns = seconds / turn_s
        periods = turns, turns / 2, turns / 4
        growth = 0.0
        for later, share in zip(periods, self._survival(finished_calls, periods), strict=True):
            tokens = context_tokens + self.grown.value * later
            growth = max(growth, tokens * share - context_tokens)
        return int(growth)

    def _survival(self, finished_calls: int, periods: tuple[float, ...]) -> list[float]:
        """Return, for each number of turns in ``periods``, the probability that a chain goes on for
        so many more turns after ``finished_calls``.

        The number of calls of a program is taken to have a Weibull distribution, with the mean and
        the spread of the programs that have ended. Its shape is the usual power of the coefficient
        of variation (Justus et al. 1978, "Methods for estimating wind speed frequency
        distributions"). With few samples the shape is near 1, so that a chain ends with the same
        probability after each call.

        A client may never report that a program has ended. So the probability is at most the one
        that follows from silences (`Silences.ends`).
        """
        goes_on = 1.0 - self.silences.ends
        silent = [goes_on**turns for turns in periods]
        if not self.calls.n:
            return silent
        mean = max(self.calls.value, 1.0)
        shape, samples = 1.0, self.calls_squared.n - 1.0  # a single program has no spread
        if samples > 0.0:
            squared = max(self.calls_squared.value / mean**2 - 1.0, _LEAST_VARIATION)
            shape += (math.pow(squared, -1.086 / 2) - 1.0) * samples / (samples + DOUBT)
        scale = mean / math.gamma(1.0 + 1.0 / shape)
        now = (finished_calls / scale) ** shape
        later = [((finished_calls + turns) / scale) ** shape for turns in periods]
        return [min(most, math.exp(now - then)) for most, then in zip(silent, later, strict=True)]
