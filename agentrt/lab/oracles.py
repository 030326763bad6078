"""Policies with knowledge that no real engine has. They show in simulations what is attainable.

`Srpt` (Agentix, Fig. 20) and `Lrpt` know the remaining service of each program. `Gittins` knows the
exact distributions of program sizes, taken from all programs of the run, but not the size of any
single program: this is the best that a policy can do that learns from past programs. If `Srpt` is
far better, past programs do not tell which program ends next. The Gittins index is optimal in the
mean for one server and jobs of one part (Gittins 1989); for several slots and programs of many
calls it is only a guide.
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
    """Shortest remaining processing time: the program with the least remaining service first.

    A running call is preempted for a call whose program has at least 16% less.
    """

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


class Lrpt(Policy):
    """Longest remaining processing time: the program with the most remaining service first.

    No call is preempted for a slot. This is `LongestRemaining` with known sizes.
    """

    name: ClassVar[str] = "lrpt"
    starving: ClassVar[bool] = False
    follows_program: ClassVar[bool] = True

    def __init__(
        self, config: SchedulerConfig, remaining_s: Callable[[EngineProgram], float]
    ) -> None:
        super().__init__(config)
        self._remaining_s = remaining_s

    def priority(self, call: QueuedCall, now: float) -> Priority:
        return Priority(0, order=-self._remaining_s(call.program))


# -- distributions of sizes ------------------------------------------------------------

_SMALLEST_S = 0.05
_AGES = [0.0, *(_SMALLEST_S * 2.0 ** (i / 4) for i in range(96))]
"""The attained services, in seconds, for which costs are computed. Each is 2 ** 0.25 times the
previous one.
"""
_FEW = 30
"""Number of programs below which the distribution of a hint is not used."""

Kind = tuple[str, int | None]
"""A program's type, and the class of its hint in half doublings; None for all of the type."""


class Laws:
    """The distributions of program sizes by type, and by type and hint. Steps take ``step_s``
    seconds.
    """

    def __init__(self, step_s: float) -> None:
        self._step_s = step_s
        self._sizes: dict[Kind, list[float]] = {}
        self._costs: dict[Kind, tuple[int, list[float]]] = {}

    def add(self, shape: ProgramShape) -> None:
        size = shape.output_tokens * self._step_s
        for kind in {(shape.type, None), (shape.type, _hint_bin(shape.hint_tokens))}:
            self._sizes.setdefault(kind, []).append(size)

    def cost_s(self, row: EngineProgram) -> float:
        """Return the inverse Gittins index of a program at its attained service: the least expected
        service, in seconds, for each end of a program like this one.
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
    """Return the minimum over all limits of the expected service up to the limit, divided by the
    probability of an end within the limit.
    """
    left = sorted(size - age for size in sizes if size > age)
    spent, best = 0.0, math.inf
    for ended, rest in enumerate(left, 1):
        spent += rest
        best = min(best, (spent + (len(left) - ended) * rest) / ended)
    return max(best, _SMALLEST_S) if left else _SMALLEST_S


class Gittins(Policy):
    """The program with the largest Gittins index first; of equal ones the older."""

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

KNOWING = (Gittins.name, Lrpt.name, Srpt.name)
"""The policies with knowledge that no real engine has."""


def policy_names() -> list[str]:
    """Return the names of all policies of the simulator: the engine's, and those of this module."""
    return [*policies.policy_names(), *KNOWING]


def is_policy(name: str) -> bool:
    """Return whether the simulator has a policy of this name. For a name that is not built in, this
    searches all installed packages, which takes a while.
    """
    return name in KNOWING or name in policies.BUILT_IN or name in policy_names()


def check_policy(name: str) -> None:
    """Raise `ConfigError` for an unknown policy, or one that cannot be created."""
    if not is_policy(name):
        raise ConfigError(f"unknown policy {name!r}; known: {', '.join(policy_names())}")
    make_policy(SchedulerConfig(policy=name), lambda row: 0.0, Laws(1.0))


def make_policy(
    config: SchedulerConfig, remaining_s: Callable[[EngineProgram], float], laws: Laws
) -> Policy:
    """Create the policy of a configuration. The policies of this module use ``remaining_s`` or
    ``laws``.
    """
    if config.policy == Srpt.name:
        return Srpt(config, remaining_s)
    if config.policy == Lrpt.name:
        return Lrpt(config, remaining_s)
    if config.policy == Gittins.name:
        return Gittins(config, laws)
    return policies.make_policy(config)
