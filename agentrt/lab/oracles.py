"""Policies that know what no engine is told: the marks to come close to, in simulations only.

`Srpt` knows each program's future (Agentix, Fig. 20). `Gittins` knows the laws of sizes exactly,
from all programs of the run, and no program's own size: the mark for a policy that learns as much
from the past as there is in it. Where `Srpt` is far ahead of it, no past can tell who is next to
end. On one server and for one size after the other it is optimal in the mean (Gittins 1989); on
several slots, with programs of many calls, it is a guide.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

from agentrt.errors import ConfigError
from agentrt.lab.workloads.shape import ProgramShape
from agentrt.scheduler import policies
from agentrt.scheduler.config import SchedulerConfig
from agentrt.scheduler.policies import Policy, Priority
from agentrt.scheduler.records import EngineProgram

if TYPE_CHECKING:
    from agentrt.scheduler.records import QueuedCall


class Srpt(Policy):
    """The program with the least remaining service first; a call gives way to one with 16% less."""

    name: ClassVar[str] = "srpt"
    starving: ClassVar[bool] = False
    follows_program: ClassVar[bool] = True

    def __init__(
        self, config: SchedulerConfig, remaining_s: Callable[[EngineProgram], float]
    ) -> None:
        super().__init__(config)
        self._remaining_s = remaining_s

    def priority(self, call: QueuedCall, now: float) -> Priority:
        remaining = max(self._remaining_s(call.program), 1e-6)
        level = math.floor(4 * math.log2(remaining))
        return Priority(level, quantum_s=remaining / 8, order=remaining)


# -- the laws of sizes -----------------------------------------------------------------

_SMALLEST_S = 0.05
_AGES = [0.0, *(_SMALLEST_S * 2.0 ** (i / 4) for i in range(96))]
"""Attained services (seconds) that are told apart: quarters of a doubling."""
_FEW = 30
"""Programs below which a hint's own law is not looked at."""

Kind = tuple[str, int | None]
"""A program's type, and the half doubling of its hint; None for all of the type."""


class Laws:
    """The sizes of programs by type, and by type and hint; steps take ``step_s`` seconds."""

    def __init__(self, step_s: float) -> None:
        self._step_s = step_s
        self._sizes: dict[Kind, list[float]] = {}
        self._costs: dict[Kind, tuple[int, list[float]]] = {}

    def add(self, shape: ProgramShape) -> None:
        size = shape.output_tokens * self._step_s
        for kind in {(shape.type, None), (shape.type, _hint_bin(shape.hint_tokens))}:
            self._sizes.setdefault(kind, []).append(size)

    def cost_s(self, row: EngineProgram) -> float:
        """The seconds of service that an end costs, at best, of programs like this one: the
        inverse of the Gittins index at what it has had.
        """
        kind = (row.type, _hint_bin(row.size_hint))
        if len(self._sizes.get(kind, ())) < _FEW:
            kind = (row.type, None)
        sizes = self._sizes[kind]
        known = self._costs.get(kind)
        if known is None or len(sizes) > 1.1 * known[0]:
            known = self._costs[kind] = len(sizes), [_cost(sizes, age) for age in _AGES]
        return known[1][bisect_right(_AGES, row.attained_s) - 1]


def _hint_bin(hint: float | None) -> int | None:
    return None if hint is None or hint <= 0 else math.floor(2.0 * math.log2(hint))


def _cost(sizes: list[float], age: float) -> float:
    """Of all limits, the least expected service up to it over the chance to end within it."""
    left = sorted(size - age for size in sizes if size > age)
    spent, best = 0.0, math.inf
    for ended, rest in enumerate(left, 1):
        spent += rest
        best = min(best, (spent + (len(left) - ended) * rest) / ended)
    return max(best, _SMALLEST_S) if left else _SMALLEST_S


class Gittins(Policy):
    """The program that is likeliest to end soon for what it costs to find out; else the older."""

    name: ClassVar[str] = "gittins"
    starving: ClassVar[bool] = False
    follows_program: ClassVar[bool] = True

    def __init__(self, config: SchedulerConfig, laws: Laws) -> None:
        super().__init__(config)
        self._laws = laws

    def priority(self, call: QueuedCall, now: float) -> Priority:
        row = call.program
        cost = self._laws.cost_s(row)
        level = math.floor(2 * math.log2(cost))
        quantum_s = max(10 * _SMALLEST_S, max(row.attained_s, cost) / 8)
        return Priority(level, quantum_s=quantum_s, order=row.started_at)


# -- by name ---------------------------------------------------------------------------

KNOWING = (Gittins.name, Srpt.name)
"""The policies that know what no engine is told."""


def policy_names() -> list[str]:
    """All policies that the simulator knows: the engine's, and those that know more."""
    return [*policies.policy_names(), *KNOWING]


def is_policy(name: str) -> bool:
    """Whether the simulator knows the policy. Only for a name that is not ours it looks through all
    installed packages, which takes a while.
    """
    return name in KNOWING or name in policies.BUILT_IN or name in policy_names()


def check_policy(name: str) -> None:
    """Raise `ConfigError` for a policy that the simulator does not know, or that cannot be made."""
    if not is_policy(name):
        raise ConfigError(f"unknown policy {name!r}; known: {', '.join(policy_names())}")
    make_policy(SchedulerConfig(policy=name), lambda row: 0.0, Laws(1.0))


def make_policy(
    config: SchedulerConfig, remaining_s: Callable[[EngineProgram], float], laws: Laws
) -> Policy:
    """A fresh policy; one that knows more asks ``remaining_s`` or ``laws``."""
    if config.policy == Srpt.name:
        return Srpt(config, remaining_s)
    if config.policy == Gittins.name:
        return Gittins(config, laws)
    return policies.make_policy(config)
