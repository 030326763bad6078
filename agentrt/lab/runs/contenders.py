"""Who is compared: our scheduler under some settings, or vLLM without us.

What a clever user of vLLM alone can do is to feed its policy ``priority``: see `Stock`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal

from agentrt.errors import ConfigError
from agentrt.lab.engine.virtual import StockPolicy
from agentrt.lab.program import LiveProgram
from agentrt.scheduler import SchedulerConfig, policy_names

BASELINE = "fcfs"
STOCK = "stock"
_Feed = Literal["none", "service", "path"]
_FEEDS: dict[str, _Feed] = {STOCK: "none", "priority-service": "service", "priority-path": "path"}

HINTED = "+hints"
"""What the name of a policy ends in that is told guesses of the programs' sizes."""
DEFAULT_HINTS = 0.5
"""How well guesses correlate with the truth when nobody says: see `with_hints`."""
DEFAULT_POLICIES = ("priority-service", "priority-path", "mlfq", "plas", "atlas", "adaptive")
"""Beside ``stock``, which always runs."""


@dataclass(frozen=True, slots=True)
class Stock:
    """vLLM's own scheduler class, as it is.

    With feed ``none`` it serves calls first come, first served. With the others it runs its
    policy ``priority``, and each call's integer priority (lower goes first) is set when the
    call is emitted: with ``service`` to the tokens that its program's finished calls have
    generated, with ``path`` to those on the longest path that leads to the call. A client
    can count both. Prompt tokens are not counted: a step computes many of them at once.
    """

    feed: _Feed = "none"

    @classmethod
    def named(cls, name: str) -> Stock:
        """Of one of `stock_names`. Raises `ConfigError` for any other."""
        if name not in _FEEDS:
            raise ConfigError(f"{name!r} is not vLLM's own; known: {', '.join(_FEEDS)}")
        return cls(_FEEDS[name])

    @property
    def name(self) -> str:
        return next(name for name, feed in _FEEDS.items() if feed == self.feed)

    @property
    def scheduling(self) -> StockPolicy:
        return "fcfs" if self.feed == "none" else "priority"

    def priority(self, program: LiveProgram, index: int) -> int:
        """What vLLM is told of a call that is emitted now."""
        match self.feed:
            case "service":
                return program.served_tokens
            case "path":
                return program.path_to(index)
            case _:
                return 0


def stock_names() -> tuple[str, ...]:
    """The names of all that vLLM can do without us."""
    return tuple(_FEEDS)


@dataclass(frozen=True, slots=True)
class Contender:
    """Our scheduler under these settings, or ``stock`` in its place.

    ``hints`` says how well the guesses of programs' sizes that it is told correlate with the
    truth; None: it is told no guess.
    """

    scheduler: SchedulerConfig
    stock: Stock | None = None
    hints: float | None = None

    @property
    def name(self) -> str:
        """What tables call it: what ranks the calls and keeps their blocks, and what it is told."""
        if self.stock is not None:
            return self.stock.name
        kept = "" if self.scheduler.retention == "lru" else f"+{self.scheduler.retention}"
        let_in = "" if self.scheduler.admission == "off" else f"+{self.scheduler.admission}"
        told = HINTED if self.hints is not None else ""
        return f"{self.scheduler.policy}{kept}{let_in}{told}"


def policies(
    names: Sequence[str], scheduler: SchedulerConfig, hints: float = DEFAULT_HINTS
) -> list[Contender]:
    """Our policies by name; one that ends in ``+hints`` is told guesses as good as ``hints``."""
    return [
        Contender(
            replace(scheduler, policy=name.removesuffix(HINTED)),
            hints=hints if name.endswith(HINTED) else None,
        )
        for name in names
    ]


def contenders(
    names: Sequence[str],
    retentions: Sequence[str],
    scheduler: SchedulerConfig,
    admissions: Sequence[str] = ("off",),
) -> list[Contender]:
    """``stock``, and those named; each of our policies under every retention and admission.

    Raises `ConfigError` for a name that is neither vLLM's own nor a policy of ours.
    """
    known = [*stock_names(), *policy_names()]
    for name in names:
        if name not in known:
            raise ConfigError(f"unknown policy {name!r}; known: {', '.join(known)}")
    found = [Contender(scheduler, Stock.named(name)) for name in names if name in stock_names()]
    ours = [name for name in names if name not in stock_names()]
    found += [
        Contender(replace(scheduler, policy=name, retention=retention, admission=admission))
        for name, retention, admission in product(ours, retentions, admissions)
    ]
    return [Contender(scheduler, Stock()), *(one for one in found if one.name != STOCK)]
