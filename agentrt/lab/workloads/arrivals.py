"""Arrival times of programs (Poisson, in bursts, or all at once), and loads.

All functions that make arrivals return the programs in the same order, with ``arrives_s`` set.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, repeat
from random import Random
from typing import Literal

from agentrt.errors import ConfigError
from agentrt.lab.workloads.shape import ProgramShape


def at_once(programs: Sequence[ProgramShape]) -> list[ProgramShape]:
    """Return the programs with the arrival time 0."""
    return _at(programs, repeat(0.0))


def poisson(programs: Sequence[ProgramShape], rate_per_s: float, seed: int) -> list[ProgramShape]:
    """Return Poisson arrivals: independent exponential gaps with a mean of 1 / ``rate_per_s``
    seconds, including the gap before the first arrival.
    """
    times = (work / rate_per_s for work in _unit_poisson(Random(f"poisson/{seed}")))
    return _at(programs, times)


HIGH, LOW = 1.9, 0.1
"""The loads between which bursts alternate."""
_PERIOD = 1000.0
"""Mean number of programs in a burst together with the quiet phase after it. It is large enough for
a backlog of hundreds of programs.
"""


def bursts(
    programs: Sequence[ProgramShape],
    rate_per_s: float,
    seed: int,
    load: float = 0.8,
    period_programs: float = _PERIOD,
) -> list[ProgramShape]:
    """Return Poisson arrivals whose rate alternates between two values, with mean ``rate_per_s``.

    ``rate_per_s`` is the rate at the load ``load``. In the two phases, the rates are those at the
    loads `HIGH` and `LOW`. Both phases together are a period of ``period_programs / rate_per_s``
    seconds, in which ``period_programs`` programs arrive on average. The high phase takes the share
    (load - LOW) / (HIGH - LOW) of the period. The first period starts at a random phase.
    """
    rng = Random(f"bursts/{seed}")
    share = (load - LOW) / (HIGH - LOW)
    # Time is in periods; rates are the mean number of programs per period.
    wave = _Wave(share, period_programs * HIGH / load, period_programs * LOW / load)
    begin = rng.random()
    due = wave.due_by(begin)
    times = (
        (wave.time_of(due + work) - begin) * period_programs / rate_per_s
        for work in _unit_poisson(rng)
    )
    return _at(programs, times)


@dataclass(frozen=True, slots=True)
class _Wave:
    """A rate that is ``high`` during the first ``share`` of each period, and then ``low``."""

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
        """Return the inverse of `due_by`."""
        whole, within = divmod(due, self._each())
        late = within - self.high * self.share
        if late <= 0:
            return whole + within / self.high
        return whole + self.share + late / self.low

    def _each(self) -> float:
        return self.high * self.share + self.low * (1 - self.share)


def _unit_poisson(rng: Random) -> Iterator[float]:
    """Yield the times of a Poisson process with rate 1."""
    return accumulate(rng.expovariate(1.0) for _ in repeat(None))


def _at(programs: Sequence[ProgramShape], times: Iterator[float]) -> list[ProgramShape]:
    # There are more times than programs, because the times never end.
    return [program.arriving(at_s) for program, at_s in zip(programs, times, strict=False)]


# -- loads -------------------------------------------------------------------------------

Kind = Literal["load", "bursts", "rate", "at-once", "recorded"]

_HOW = "give a share of capacity such as 0.9, or b0.8 for a mean load in bursts"


@dataclass(frozen=True, slots=True)
class Pressure:
    """The way in which programs arrive, by ``kind``:

    - ``load``: a Poisson process at ``value`` times the engine's capacity.
    - ``bursts``: a mean load of ``value``, in phases with the loads 1.9 and 0.1. Two phases
      together have 1000 programs on average, or all programs if there are fewer.
    - ``rate``: a Poisson process with ``value`` programs per second.
    - ``at-once``: all programs at second 0.
    - ``recorded``: the times in the trace.

    A load is computed from the work of the arriving programs. Programs that pause between their
    calls bring their work later than other programs (`share_in_time`).
    """

    kind: Kind
    value: float = 0.0

    @classmethod
    def parse(cls, text: str) -> Pressure:
        """Parse a load such as ``0.9``, or a mean load in bursts such as ``b0.8``. Raises
        `ConfigError` for any other text.
        """
        bursty = text.startswith("b")
        value = _number(text.removeprefix("b"))
        if not 0 < value < math.inf:
            raise ConfigError(f"--load {text!r}: {_HOW}")
        if bursty and not LOW < value < HIGH:
            raise ConfigError(
                f"--load {text!r}: a mean load in bursts must be between {LOW} and {HIGH}"
            )
        return cls("bursts" if bursty else "load", value)

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
        """Return the programs with their arrival times, for an engine with this capacity in
        programs per second.
        """
        if self.kind == "at-once":
            return at_once(programs)
        rate = self.rate_per_s(capacity_per_s)
        if self.kind == "bursts":
            return bursts(programs, rate, seed, self.value, min(_PERIOD, len(programs)))
        return poisson(programs, rate, seed)

    def rate_per_s(self, capacity_per_s: float) -> float:
        """Return the mean arrival rate in programs per second."""
        return self.value if self.kind == "rate" else self.value * capacity_per_s


def share_in_time(programs: Sequence[ProgramShape], token_s: float) -> float:
    """Return the share of all output tokens that is generated before the last program arrives, if
    no call waits. ``token_s`` is the time per token in seconds.

    A load is an average over a long time. Programs that pause between their calls bring their work
    later. In a run with few programs, much of the work comes after the last arrival, so the engine
    gets only about this share of the load.
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
