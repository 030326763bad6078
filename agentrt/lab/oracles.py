"""Policies with knowledge that no real engine has. In simulations, they show what is attainable.

`Srpt` (Agentix, Fig. 20) and `Lrpt` know the remaining service of each program. `Gittins` knows the
exact distributions of program sizes, computed from all programs of the run, but not the size of any
single program. So `Gittins` shows the best that a policy can do by learning from past programs. If
`Srpt` is far better than `Gittins`, past programs do not tell which program ends next. The Gittins
index minimizes the mean time for one server and jobs that consist of one part (Gittins 1989). For
several slots and programs of many calls it is only an approximation.
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
from agentrt.scheduler.state import EngineProgram

if TYPE_CHECKING:
    from agentrt.scheduler.state import QueuedCall


class _Oracle(Policy):
    """A policy that knows the remaining service of each program, in seconds (``remaining_s``)."""

    starving: ClassVar[bool] = False
    follows_program: ClassVar[bool] = True

    def __init__(
        self, config: SchedulerConfig, remaining_s: Callable[[EngineProgram], float]
    ) -> None:
        super().__init__(config)
        self._remaining_s = remaining_s


class Srpt(_Oracle):
    """Shortest remaining processing time: the program with the least remaining service runs first.

    A running call is preempted only for a call in a better level. Levels are 2 ** 0.25 apart, so
    the remaining service of programs in one level differs by less than 19%.
    """

    name: ClassVar[str] = "srpt"

    def priority(self, call: QueuedCall, now: float) -> Priority:
        remaining = max(self._remaining_s(call.program), 1e-6)
        level = math.floor(4 * math.log2(remaining))
        return Priority(level, quantum_s=remaining / 8, order=remaining)


class Lrpt(_Oracle):
    """Longest remaining processing time: the program with the most remaining service runs first.

    No call is preempted for a slot. This is `LongestRemaining` with known sizes.
    """

    name: ClassVar[str] = "lrpt"

    def priority(self, call: QueuedCall, now: float) -> Priority:
        return Priority(0, order=-self._remaining_s(call.program))


# -- distributions of sizes ------------------------------------------------------------

_SMALLEST_S = 0.05
_AGES = [0.0, *(_SMALLEST_S * 2.0 ** (i / 4) for i in range(96))]
"""The values of attained service, in seconds, for which costs are computed. After 0 and
`_SMALLEST_S`, each value is 2 ** 0.25 times the previous value.
"""
_FEW = 30
"""Minimum number of programs for which the distribution by hint is used. With fewer programs, the
distribution of the whole type is used.
"""
Kind = tuple[str, int | None]
"""A program's type, and the class of its size hint: the hint rounded down to a power of the square
root of two. None stands for all programs of the type.
"""


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
        """Return the inverse Gittins index of a program at its attained service, in seconds: the
        least expected service that is spent per ended program, over programs of the same kind.
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
    """Return the inverse Gittins index at an ``age``.

    For each limit, the expected service up to the limit is divided by the probability that the
    program ends within the limit. The result is the smallest of these quotients, and at least
    `_SMALLEST_S`.
    """
    left = sorted(size - age for size in sizes if size > age)
    spent, best = 0.0, math.inf
    for ended, rest in enumerate(left, 1):
        spent += rest
        best = min(best, (spent + (len(left) - ended) * rest) / ended)
    return max(best, _SMALLEST_S) if left else _SMALLEST_S


class Gittins(Policy):
    """The policy that runs the program with the largest Gittins index first. Levels are a factor of
    2 ** 0.5 of the index apart; within a level, the program that started first runs first.
    """

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
    """Return the names of all policies of the simulator: the policies of the engine, and the
    policies of this module.
    """
    return [*policies.policy_names(), *KNOWING]


def is_policy(name: str) -> bool:
    """Return whether the simulator has a policy with this name. For a name that is not built in,
    all installed packages are searched, which takes time.
    """
    return name in KNOWING or name in policies.BUILT_IN or name in policy_names()


def check_policy(name: str) -> None:
    """Raise `ConfigError` for an unknown policy, and for a policy that cannot be created."""
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
