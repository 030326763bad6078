"""Gittins: the program that is likeliest to end soon for what it costs to find out.

It knows the laws of sizes exactly, from all programs of the run, and no program's own size: the
mark for a policy that learns as much from the past as there is in it. Where `Srpt` is far ahead
of it, no past can tell who is next to end. On one server and for one size after the other it is
optimal in the mean (Gittins 1989); on several slots, with programs of many calls, it is a guide.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from typing import TYPE_CHECKING, ClassVar

from agentrt.lab.workloads.shape import ProgramShape
from agentrt.scheduler.config import SchedulerConfig
from agentrt.scheduler.policies import Policy, Priority
from agentrt.scheduler.table import ProgramRow

if TYPE_CHECKING:
    from agentrt.scheduler.call import QueuedCall

_LEVELS_PER_DOUBLING = 2
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
        """A program that will come."""
        size = shape.output_tokens * self._step_s
        for kind in {(shape.type, None), (shape.type, _hint_bin(shape.hint_tokens))}:
            self._sizes.setdefault(kind, []).append(size)

    def cost_s(self, row: ProgramRow) -> float:
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
    """The best rank that the laws of sizes give; of equals, the older program."""

    name: ClassVar[str] = "gittins"
    starving: ClassVar[bool] = False
    follows_program: ClassVar[bool] = True

    def __init__(self, config: SchedulerConfig, laws: Laws) -> None:
        super().__init__(config)
        self._laws = laws

    def priority(self, call: QueuedCall, now: float) -> Priority:
        row = call.program
        cost = self._laws.cost_s(row)
        level = math.floor(_LEVELS_PER_DOUBLING * math.log2(cost))
        budget = max(10 * _SMALLEST_S, max(row.attained_s, cost) / 8)
        return Priority(level, quantum_s=budget, order=row.started_at)
