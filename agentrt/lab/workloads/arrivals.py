"""When programs arrive: Poisson, in bursts, over a day, or at once.

All return the programs with ``arrives_s`` set, in the order given.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from random import Random

from agentrt.errors import ConfigError
from agentrt.lab.workloads.shape import ProgramShape


def at_once(programs: Sequence[ProgramShape]) -> list[ProgramShape]:
    """All at 0."""
    return _at(programs, repeat(0.0))


def poisson(programs: Sequence[ProgramShape], rate_per_s: float, seed: int) -> list[ProgramShape]:
    """Independent exponential gaps with mean 1 / ``rate_per_s`` seconds, the first included."""
    _positive("a rate of arrival (programs/s)", rate_per_s)
    times = (work / rate_per_s for work in _unit_poisson(Random(f"poisson/{seed}")))
    return _at(programs, times)


def bursts(
    programs: Sequence[ProgramShape],
    rate_per_s: float,
    seed: int,
    *,
    load: float = 0.8,
    high: float = 1.9,
    low: float = 0.1,
    period_programs: float = 200.0,
) -> list[ProgramShape]:
    """Poisson arrivals whose rate alternates between two values; the mean is ``rate_per_s``.

    ``load``, ``high`` and ``low`` are loads in one unit: ``rate_per_s`` is the rate that
    means ``load``, and the two phases have the rates that mean ``high`` and ``low``. The
    defaults are a mean load of 0.8 in bursts between 1.9 and 0.1 (``b0.8`` for short).
    With ``load=1`` the two are factors of the mean rate.

    A high and a low phase make a period of ``period_programs / rate_per_s`` seconds, in
    which ``period_programs`` programs arrive on average; the high phase is the share
    (load - low) / (high - low) of it. Time 0 is a random moment of a period.
    """
    _positive("a rate of arrival (programs/s)", rate_per_s)
    _positive("a period (programs)", period_programs)
    if not 0 <= low < load < high < math.inf:
        raise ConfigError(f"bursts need low < load < high, not {low}, {load}, {high}")
    rng = Random(f"bursts/{seed}")
    share = (load - low) / (high - low)
    # In periods of time, and in programs that are due on average since a period's start.
    wave = _Wave(share, period_programs * high / load, period_programs * low / load)
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
    _positive("a rate of arrival (programs/s)", rate_per_s)
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


def rate_for_load(
    programs: Sequence[ProgramShape], load: float, batch: int, seconds_per_token: float
) -> float:
    """Programs per second whose output tokens are ``load`` times what an engine can make.

    An engine makes ``batch / seconds_per_token`` tokens per second: ``batch`` calls, each
    a token every ``seconds_per_token``. Prompts cost nothing here.
    """
    _positive("a load", load)
    _positive("a batch (calls)", batch)
    _positive("a token's time (seconds)", seconds_per_token)
    if not programs:
        raise ConfigError("no programs, so no rate loads an engine with them")
    tokens = sum(program.output_tokens for program in programs) / len(programs)
    return load * batch / seconds_per_token / tokens


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
        """The inverse of `due_by`; at a low rate of 0, the end of the high phase."""
        whole, within = divmod(due, self._each())
        late = within - self.high * self.share
        if late <= 0 or self.low == 0:
            return whole + min(within / self.high, self.share)
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
    refuse_twins(programs)
    # zip() takes from the times last, and they never end.
    return [program.arriving(at_s) for program, at_s in zip(programs, times, strict=False)]


def refuse_twins(programs: Sequence[ProgramShape]) -> None:
    """Raise `ConfigError` where two programs have one id."""
    seen: set[str] = set()
    for program in programs:
        if program.program_id in seen:
            raise ConfigError(f"two programs have the id {program.program_id!r}")
        seen.add(program.program_id)


def _positive(what: str, value: float) -> None:
    if not 0 < value < math.inf:
        raise ConfigError(f"{what} is a positive number, not {value}")
