"""When programs arrive: Poisson, in bursts, over a day, or at once, and how hard they press.

All ways to arrive return the programs with ``arrives_s`` set, in the order given.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from random import Random
from typing import Literal

from agentrt.errors import ConfigError
from agentrt.lab.workloads.shape import ProgramShape


def at_once(programs: Sequence[ProgramShape]) -> list[ProgramShape]:
    """All at 0."""
    return _at(programs, repeat(0.0))


def poisson(programs: Sequence[ProgramShape], rate_per_s: float, seed: int) -> list[ProgramShape]:
    """Independent exponential gaps with mean 1 / ``rate_per_s`` seconds, the first included."""
    times = (work / rate_per_s for work in _unit_poisson(Random(f"poisson/{seed}")))
    return _at(programs, times)


HIGH, LOW = 1.9, 0.1
"""The loads between which bursts alternate."""
_PERIOD = 1000.0
"""Programs per burst and lull: long enough for a backlog of hundreds of programs."""


def bursts(
    programs: Sequence[ProgramShape],
    rate_per_s: float,
    seed: int,
    load: float = 0.8,
    period_programs: float = _PERIOD,
) -> list[ProgramShape]:
    """Poisson arrivals whose rate alternates between two values; the mean is ``rate_per_s``.

    ``rate_per_s`` is the rate that means ``load``, and the two phases have the rates that mean
    `HIGH` and `LOW`. Both make a period of ``period_programs / rate_per_s`` seconds, in which
    ``period_programs`` programs arrive on average; the high phase is the share
    (load - low) / (high - low) of it. Time 0 is a random moment of a period.
    """
    rng = Random(f"bursts/{seed}")
    share = (load - LOW) / (HIGH - LOW)
    # In periods of time, and in programs that are due on average since a period's start.
    wave = _Wave(share, period_programs * HIGH / load, period_programs * LOW / load)
    begin = rng.random()
    due = wave.due_by(begin)
    times = (
        (wave.time_of(due + work) - begin) * period_programs / rate_per_s
        for work in _unit_poisson(rng)
    )
    return _at(programs, times)


SWING = 0.8
"""How far a day's rate goes up and down, as a share of its mean."""


def daily(programs: Sequence[ProgramShape], rate_per_s: float, seed: int) -> list[ProgramShape]:
    """Poisson arrivals whose rate swings once, from night to night; the mean is ``rate_per_s``.

    The day is as long as all programs take to arrive on average.
    """
    day_s = len(programs) / rate_per_s
    due = _unit_poisson(Random(f"daily/{seed}"))
    return _at(programs, (day_s * _hour(work / len(programs)) for work in due))


def _hour(due: float) -> float:
    """When so many days' programs are due, in days: the inverse of a sine on a line, halved to."""
    low, high = due - SWING, due + SWING
    for _ in range(50):
        middle = (low + high) / 2
        early = middle - SWING / math.tau * math.sin(math.tau * middle) < due
        low, high = (middle, high) if early else (low, middle)
    return high


@dataclass(frozen=True, slots=True)
class _Wave:
    """A rate that is ``high`` for the first ``share`` of each period, then ``low``."""

    share: float
    high: float
    low: float

    def due_by(self, time: float) -> float:
        whole = math.floor(time)
        within = time - whole
        return (
            whole * self._each()
            + self.high * min(within, self.share)
            + self.low * max(within - self.share, 0.0)
        )

    def time_of(self, due: float) -> float:
        """The inverse of `due_by`."""
        whole, within = divmod(due, self._each())
        late = within - self.high * self.share
        if late <= 0:
            return whole + within / self.high
        return whole + self.share + late / self.low

    def _each(self) -> float:
        return self.high * self.share + self.low * (1 - self.share)


def _unit_poisson(rng: Random) -> Iterator[float]:
    """The times of a Poisson process with rate 1."""
    now = 0.0
    while True:
        now += rng.expovariate(1.0)
        yield now


def _at(programs: Sequence[ProgramShape], times: Iterator[float]) -> list[ProgramShape]:
    # zip() takes from the times last, and they never end.
    return [program.arriving(at_s) for program, at_s in zip(programs, times, strict=False)]


# -- how hard programs press on an engine ------------------------------------------------

Kind = Literal["load", "bursts", "rate", "at-once", "recorded"]

_HOW = "give a share of capacity such as 0.9, or b0.8 for a mean load in bursts"


@dataclass(frozen=True, slots=True)
class Pressure:
    """When programs arrive.

    ``load``: a Poisson process at ``value`` times what the engine's slots can do.
    ``bursts``: that mean load, in bursts between the loads 1.9 and 0.1, of which one and
    the lull after it bring 1000 programs on average (or all, if they are fewer).
    ``rate``: a Poisson process with ``value`` programs per second. ``at-once``: all at
    second 0. ``recorded``: as the trace says.

    A load counts the work that arrives, not the programs that are there: programs that
    sleep between their calls press as hard as others in the long run (`share_in_time`).
    """

    kind: Kind
    value: float = 0.0

    @classmethod
    def parse(cls, text: str) -> Pressure:
        """Read ``0.9`` or ``b0.8``. Raises `ConfigError` for anything else."""
        bursty = text.startswith("b")
        value = _number(text.removeprefix("b"))
        if not 0 < value < math.inf:
            raise ConfigError(f"load {text!r}: {_HOW}")
        if bursty and not LOW < value < HIGH:
            raise ConfigError(f"load {text!r}: bursts swing between {LOW} and {HIGH}")
        return cls("bursts" if bursty else "load", value)

    @classmethod
    def parse_rate(cls, text: str) -> Pressure:
        """Read programs per second. Raises `ConfigError` for what is no positive number."""
        value = _number(text)
        if not 0 < value < math.inf:
            raise ConfigError(f"rate {text!r}: give programs per second, such as 0.5")
        return cls("rate", value)

    def __str__(self) -> str:
        match self.kind:
            case "load":
                return f"{self.value:g}"
            case "bursts":
                return f"b{self.value:g}"
            case "rate":
                return f"{self.value:g}/s"
            case _:
                return self.kind

    @property
    def paced(self) -> bool:
        """Whether programs arrive over time, at a rate."""
        return self.kind in ("load", "bursts", "rate")

    def arrange(
        self, programs: Sequence[ProgramShape], capacity_per_s: float, seed: int
    ) -> Sequence[ProgramShape]:
        """The programs, each at its time, for an engine that can do so many per second."""
        if self.kind == "at-once":
            return at_once(programs)
        rate = self.rate_per_s(capacity_per_s)
        if self.kind == "bursts":
            return bursts(programs, rate, seed, self.value, min(_PERIOD, len(programs)))
        return poisson(programs, rate, seed)

    def rate_per_s(self, capacity_per_s: float) -> float:
        """The mean rate of arrivals, in programs per second."""
        return self.value if self.kind == "rate" else self.value * capacity_per_s


def share_in_time(programs: Sequence[ProgramShape], token_s: float) -> float:
    """What share of the output is made before the last program arrives, if no call waits.

    A load is what arrives in the long run. Programs that sleep between their calls bring
    their work later, and of a run with few of them much comes when nobody arrives any
    more: the engine then sees about this share of the load.
    """
    last_s = max(program.arrives_s for program in programs)
    made_s = 0.0
    for program in programs:
        ends = program.ends(lambda call: call.output_tokens * token_s)
        for call, end_s in zip(program.calls, ends, strict=True):
            took_s = call.output_tokens * token_s
            made_s += min(took_s, max(0.0, last_s - program.arrives_s - end_s + took_s))
    return made_s / (token_s * sum(program.output_tokens for program in programs))


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
