"""Who is compared, and which runs that makes: every contender on the same programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

from agentrt.errors import ConfigError
from agentrt.lab.runs.grid import RunSpec, Setting
from agentrt.lab.runs.machine import Machine
from agentrt.lab.runs.stock import STOCK, Stock, stock_names
from agentrt.scheduler import SchedulerConfig, policy_names

DEFAULT_POLICIES = ("priority-service", "priority-path", "mlfq", "plas", "atlas", "adaptive")
"""Beside ``stock``, which always runs."""


@dataclass(frozen=True, slots=True)
class Contender:
    """vLLM's own scheduler, or if ``stock`` is None ours under these settings."""

    scheduler: SchedulerConfig
    stock: Stock | None = None

    @property
    def name(self) -> str:
        """What tables call it, and what `RunSpec.policy` says of its runs."""
        if self.stock is not None:
            return self.stock.name
        kept = self.scheduler.retention
        return self.scheduler.policy + ("" if kept == "lru" else f"+{kept}")

    def run(self, setting: Setting, seed: int, machine: Machine) -> RunSpec:
        """Its run under a setting with one seed's programs."""
        return RunSpec(setting, seed, self.scheduler, machine, stock=self.stock)


def contenders(
    names: Sequence[str], retentions: Sequence[str], scheduler: SchedulerConfig
) -> list[Contender]:
    """``stock``, and those named; each of our policies under every retention.

    Raises `ConfigError` for a name that is neither vLLM's own nor a policy of ours.
    """
    known = [*stock_names(), *policy_names()]
    for name in names:
        if name not in known:
            raise ConfigError(f"unknown policy {name!r}; known: {', '.join(known)}")
    found = [Contender(scheduler, Stock.named(name)) for name in names if name in stock_names()]
    ours = [name for name in names if name not in stock_names()]
    found += [
        Contender(replace(scheduler, policy=name, retention=retention))
        for name, retention in product(ours, retentions)
    ]
    stock = Contender(scheduler, Stock())
    return [stock, *(one for one in found if one.name != STOCK)]


def turns(everyone: Sequence[Contender], repeat: int) -> list[Contender]:
    """The order of a repeat: each repeat begins with another."""
    first = repeat % len(everyone)
    return [*everyone[first:], *everyone[:first]]


def all_runs(
    everyone: Sequence[Contender],
    settings: Sequence[Setting],
    seeds: Sequence[int],
    machine: Machine,
) -> list[RunSpec]:
    """Every contender under every setting with every seed; those of one seed side by side."""
    return [
        one.run(setting, seed, machine)
        for setting, (repeat, seed) in product(settings, enumerate(seeds))
        for one in turns(everyone, repeat)
    ]
