"""How hard programs press on an engine: when they arrive."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from agentrt.errors import ConfigError
from agentrt.workloads.arrivals import at_once, bursts, poisson, rate_for_load
from agentrt.workloads.shape import ProgramShape

Kind = Literal["load", "bursts", "rate", "at-once", "recorded"]

_HIGH, _LOW = 1.9, 0.1  # the loads between which bursts alternate
_PERIOD = 1000.0
"""Programs per burst and lull: long enough for a backlog of hundreds of programs."""
_HOW = "give a share of capacity such as 0.9, or b0.8 for a mean load in bursts"


@dataclass(frozen=True, slots=True)
class Pressure:
    """When programs arrive.

    ``load``: a Poisson process at ``value`` times what the engine's slots can do.
    ``bursts``: that mean load, in bursts between the loads 1.9 and 0.1, of which one and
    the lull after it bring 1000 programs on average. ``rate``: a Poisson process with
    ``value`` programs per second. ``at-once``: all at second 0. ``recorded``: as the trace says.
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
        if bursty and not _LOW < value < _HIGH:
            raise ConfigError(f"load {text!r}: bursts swing between {_LOW} and {_HIGH}")
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

    def arrange(
        self, programs: Sequence[ProgramShape], batch: int, step_s: float, seed: int
    ) -> Sequence[ProgramShape]:
        """The programs, each at its time, on an engine of so many slots and steps so long."""
        if self.kind == "recorded":
            return programs
        if self.kind == "at-once":
            return at_once(programs)
        rate = self.rate_per_s(programs, batch, step_s)
        if self.kind == "bursts":
            return bursts(
                programs,
                rate,
                seed,
                load=self.value,
                high=_HIGH,
                low=_LOW,
                period_programs=_PERIOD,
            )
        return poisson(programs, rate, seed)

    def rate_per_s(self, programs: Sequence[ProgramShape], batch: int, step_s: float) -> float:
        """The mean rate of arrivals, in programs per second."""
        if self.kind == "rate":
            return self.value
        return rate_for_load(programs, self.value, batch, step_s)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
