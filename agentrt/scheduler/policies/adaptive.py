"""Adaptive: the program that is expected to need the least service still, learned from its kin.

Ours. The expectation is a mean residual life (`agentrt.scheduler.learned`): what programs of the
same tenant and type needed still when they had attained as much, refined by a hint's size, and by
the node and the turn that the program has come to. Where few have been there it shrinks to what
needs no past at all: a program that was served for ``a`` seconds along its critical path is
expected to need ``a`` more, which ranks as ATLAS does.

Programs whose expectations are within a factor of 1.4 stand in one level: there, those that are
small by what they had and by what they need go first, and then the older ones, but nobody is
preempted for that.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

from agentrt.scheduler.config import SchedulerConfig
from agentrt.scheduler.lane import Lane
from agentrt.scheduler.learned import (
    BINS_PER_DOUBLING,
    LONGEST_S,
    RESOLUTION_S,
    WINDOW,
    Kind,
    age_bin,
)
from agentrt.scheduler.policies.base import Policy
from agentrt.scheduler.promotion import Priority
from agentrt.scheduler.records import ProgramRow

if TYPE_CHECKING:
    from agentrt.scheduler.promotion import Promoter
    from agentrt.scheduler.records import QueuedCall

_QUANTA_OF_LIFE = 8.0
"""A quantum is this part of what the program had, or of what it is expected to need."""


class Adaptive(Policy):
    """Expected remaining service, with a lane for the oldest."""

    name: ClassVar[str] = "adaptive"
    starving: ClassVar[bool] = False
    follows_program: ClassVar[bool] = True
    learns: ClassVar[bool] = True
    settings: ClassVar[frozenset[str]] = frozenset({"quanta", "lane", "history"})

    def __init__(self, config: SchedulerConfig) -> None:
        super().__init__(config)
        self._least_quantum_s = config.level_quanta[0]
        self._visits: dict[ProgramRow, dict[tuple[Kind, int], float]] = {}
        """By running program: where it was seen, and what it had attained then."""

    def promoter(self, slots: int) -> Promoter | None:
        return Lane(self.config, slots) if self.config.lane else None

    def priority(self, call: QueuedCall, now: float) -> Priority:
        row = call.program
        path_s = row.path_s if call.path_s is None else call.path_s
        expected = self._expected_s(row, call.node, path_s + call.served_s)
        attained = max(row.attained_s, RESOLUTION_S)
        doublings = math.log2(expected)
        return Priority(
            math.floor(BINS_PER_DOUBLING * doublings),
            max(self._least_quantum_s, max(attained, expected) / _QUANTA_OF_LIFE),
            (math.floor((math.log2(attained) + doublings) / 2.0), row.started_at),
        )

    def _expected_s(self, row: ProgramRow, node: str, path_s: float) -> float:
        """The seconds of service that a program is expected to need still.

        ``path_s`` is what ATLAS would rank by: the expectation where nothing is known.
        """
        at, age = self.learned.service.at, age_bin(row.attained_s)
        tenant, type, visits = *row.kind, self._visits.setdefault(row, {})
        expected, factor = max(path_s, RESOLUTION_S), 1.0
        if (known := at((tenant, type, ""), age)) is not None:
            expected = max(known.left_s.refine(expected), RESOLUTION_S)
        for what in (*_hint(row), _place(row.finished_calls, node)):
            kind = tenant, type, what
            if len(visits) < WINDOW:
                visits.setdefault((kind, age), row.attained_s)
            if (known := at(kind, age)) is not None:
                factor *= max(known.left_s.refine(expected), RESOLUTION_S) / expected
        return min(max(expected * factor, RESOLUTION_S), LONGEST_S)

    def program_ended(self, row: ProgramRow, now: float) -> None:
        service, total = self.learned.service, row.service_s
        service.learn((*row.kind, ""), total)
        for (kind, age), attained in self._visits.pop(row, {}).items():
            service.learn_at(kind, age, total - attained)

    def program_lost(self, row: ProgramRow) -> None:
        self._visits.pop(row, None)


@lru_cache(maxsize=1024)
def _place(finished_calls: int, node: str) -> str:
    """How many calls a program had, to half a doubling, and the node that it has come to."""
    return f"turn {int(BINS_PER_DOUBLING * math.log2(finished_calls + 1))} {node}"


def _hint(row: ProgramRow) -> tuple[str, ...]:
    """The size that somebody guessed, to a factor of two; none where it is no positive number."""
    hint: object = row.size_hint
    if isinstance(hint, int | float) and 0.0 < hint < math.inf:
        return (f"hint {math.floor(math.log2(hint))}",)
    return ()
