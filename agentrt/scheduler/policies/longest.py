"""The policy ``longest-remaining``: the program with the longest expected remaining service first.

It is meant for batches, in which all programs are there from the beginning and only the end of the
last program counts. There, a long program that begins late runs alone at the end, while most of the
engine idles. In the measured batches with ample memory the last program ends up to 7% later than
under stock vLLM (docs/results/batch.md), so batches have `Fcfs` as their default.

The rule is *longest expected processing time first* (LEPT), which minimizes the expected makespan
of exponential jobs on parallel machines (Bruno, Downey and Frederickson 1981). The expectation is
that of `Adaptive`.
"""

from __future__ import annotations

import math
from typing import ClassVar

from agentrt.scheduler.config import LONGEST_REMAINING
from agentrt.scheduler.learned import BINS_PER_DOUBLING
from agentrt.scheduler.policies.adaptive import Adaptive
from agentrt.scheduler.promotion import Priority, Promoter
from agentrt.scheduler.records import QueuedCall


class LongestRemaining(Adaptive):
    """The longest expected remaining service first, without preemption for a slot.

    All calls have the same level, so no call is preempted for another, and no program loses its
    place in memory to a program of a better level. Expectations are rounded to steps of a factor of
    1.4. Of several programs with the same rounded expectation, the program that arrived first goes
    first, so that the samples of an input, which arrive one after the other, are admitted together.
    A short program can wait for as long as longer programs keep arriving.
    """

    name: ClassVar[str] = LONGEST_REMAINING
    settings: ClassVar[frozenset[str]] = frozenset({"quanta", "history"})

    def promoter(self, slots: int) -> Promoter | None:
        return None

    def priority(self, call: QueuedCall, now: float) -> Priority:
        expected_s = self.remaining_s(call)
        longest_first = -math.floor(BINS_PER_DOUBLING * math.log2(expected_s))
        quantum_s = self.quantum_s(call.program, expected_s)
        return Priority(0, quantum_s, (longest_first, call.program.started_at))
