"""How hard programs press on an engine: when they arrive."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from agentrt.errors import ConfigError
from agentrt.lab.workloads.arrivals import at_once, bursts, poisson
from agentrt.lab.workloads.shape import ProgramShape

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

    @property
    def paced(self) -> bool:
        """Whether programs arrive over time, at a rate."""
        return self.kind in ("load", "bursts", "rate")

    def arrange(
        self, programs: Sequence[ProgramShape], capacity_per_s: float, seed: int
    ) -> Sequence[ProgramShape]:
        """The programs, each at its time, for an engine that can do so many per second."""
        if self.kind == "recorded":
            return programs
        if self.kind == "at-once":
            return at_once(programs)
        rate = self.rate_per_s(capacity_per_s)
        if self.kind == "bursts":
            return bursts(
                programs,
                rate,
                seed,
                load=self.value,
                high=_HIGH,
                low=_LOW,
                period_programs=min(_PERIOD, len(programs)),
            )
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
