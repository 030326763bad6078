"""Adaptive: the program that is expected to need the least service still, learned from its kin.

Ours. The expectation is a mean residual life (`agentrt.scheduler.learned`), by tenant and type,
refined by a hint's size, and by the node and the turn that the program has come to. The prior is
what its calls in the engine need, as far as it is visible: the new part of their prompts, and the
usual length of outputs, or their limit before any call has ended. An engine that says neither has
the mean of all programs that ended, or what the program has had along its critical path, if more.

Programs whose expectations are within a factor of 1.4 stand in one level. There, those go first
that are small in all, to a factor of two, then those that arrived first. An `AgeingShare` bounds
how long the large and old wait.
"""

from __future__ import annotations

import math
import sys
from functools import lru_cache
from typing import ClassVar

from agentrt.scheduler.config import SchedulerConfig
from agentrt.scheduler.heap import Heap
from agentrt.scheduler.learned import (
    BINS_PER_DOUBLING,
    DOUBT,
    LONGEST_S,
    RESOLUTION_S,
    WINDOW,
    Kind,
    age_bin,
)
from agentrt.scheduler.policies.base import Policy
from agentrt.scheduler.promotion import Priority, Promoter
from agentrt.scheduler.records import NOT_ADMITTED, EngineProgram, QueuedCall

_ALL, _FIRST = ("", "", ""), -sys.maxsize  # the kind of all programs; the level before all others
_QUANTA_OF_LIFE = 8.0
"""A quantum is this part of what the program had, or of what it is expected to need."""


class Adaptive(Policy):
    """Expected remaining service, with a share of the batch for the oldest."""

    name: ClassVar[str] = "adaptive"
    starving: ClassVar[bool] = False
    follows_program: ClassVar[bool] = True
    learns: ClassVar[bool] = True
    settings: ClassVar[frozenset[str]] = frozenset({"quanta", "lane", "history"})

    def __init__(self, config: SchedulerConfig) -> None:
        super().__init__(config)
        self._least_quantum_s = config.level_quanta[0]
        self._visits: dict[EngineProgram, dict[tuple[Kind, int], float]] = {}
        """By running program: where it was seen, and what it had attained then."""

    def promoter(self, slots: int) -> Promoter | None:
        return AgeingShare(self.config, slots) if self.config.lane else None

    def priority(self, call: QueuedCall, now: float) -> Priority:
        row = call.program
        path_s = row.path_s if call.path_s is None else call.path_s
        visible_s = self._visible_s(row)
        expected = self._expected_s(row, call.node, path_s + call.served_s, visible_s)
        level = math.floor(BINS_PER_DOUBLING * math.log2(expected))
        quantum_s = max(self._least_quantum_s, max(row.attained_s, expected) / _QUANTA_OF_LIFE)
        unknown = not visible_s and self.learned.service.at(_ALL, 0) is None
        size = 0 if unknown else math.floor(math.log2(row.attained_s + expected))
        return Priority(level, quantum_s, (size, row.started_at))

    @property
    def revision(self) -> int:  # type: ignore[override]
        """Once for the first steps, and whenever the number of calls that have ended doubles.

        After `WINDOW` calls it stays: another call changes the means by little then.
        """
        return bool(self.learned.costs.token_s) + min(self.learned.calls, int(WINDOW)).bit_length()

    def _visible_s(self, row: EngineProgram) -> float:
        """The seconds of service that a program's calls in the engine are expected to need still.

        That is their outputs (`Learned.output_within`) and the new part of their prompts, less
        what they had. 0 where the engine says neither limits nor outputs.
        """
        output_within, costs, kind = self.learned.output_within, self.learned.costs, row.kind
        step_s, token_s = costs.decode_s or RESOLUTION_S, costs.token_s
        seconds = 0.0
        for call in row.queued.values():
            if outputs := output_within(kind, call.max_tokens):
                left_s = outputs * step_s - call.served_s
                if (new := call.prompt_tokens - call.known_tokens) > 0:
                    left_s += new * token_s
                seconds += max(step_s, left_s)
        return seconds

    def _expected_s(
        self, row: EngineProgram, node: str, path_s: float, visible_s: float = 0.0
    ) -> float:
        """The seconds of service that it is expected to need still; ATLAS ranks by ``path_s``."""
        at, age = self.learned.service.at, age_bin(row.attained_s)
        tenant, type, visits = row.tenant, row.type, self._visits.setdefault(row, {})
        expected, factor = visible_s, 1.0
        if (known := at(_ALL, 0)) is not None:
            # What is visible counts for less, the more programs of its type have ended.
            kin = at((tenant, type, ""), 0)
            n = 0.0 if kin is None else kin.left_s.n
            if expected and not n:
                # Programs of other types have ended and none of this type: its calls say little of
                # how many will follow, and what it has had is the least that it may need again.
                expected = max(expected, path_s)
            weight = n / (n + DOUBT) if expected else 1.0
            expected += (max(known.left_s.value, path_s) - expected) * weight
        expected = max(expected, RESOLUTION_S)
        if (known := at((tenant, type, ""), age)) is not None:
            expected = max(known.left_s.refine(expected), RESOLUTION_S)
        place = _place(row.finished_calls, node)
        for what in (place,) if row.size_hint is None else (*_hint(row), place):
            kind = tenant, type, what
            if len(visits) < WINDOW:
                visits.setdefault((kind, age), row.attained_s)
            if (known := at(kind, age)) is not None:
                factor *= max(known.left_s.refine(expected), RESOLUTION_S) / expected
        return min(max(expected * factor, RESOLUTION_S), LONGEST_S)

    def program_ended(self, row: EngineProgram, now: float) -> None:
        service, total = self.learned.service, row.service_s
        service.entry(_ALL, 0).learn(total, well=True)
        service.learn((*row.kind, ""), total)
        for (kind, age), attained in self._visits.pop(row, {}).items():
            service.entry(kind, age).learn(total - attained, well=True)

    def program_lost(self, row: EngineProgram) -> None:
        self._visits.pop(row, None)


@lru_cache(maxsize=1024)
def _place(finished_calls: int, node: str) -> str:
    """How many calls a program had, to half a doubling, and the node that it has come to."""
    return f"turn {int(BINS_PER_DOUBLING * math.log2(finished_calls + 1))} {node}"


def _hint(row: EngineProgram) -> tuple[str, ...]:
    """The size that somebody guessed, to a factor of two; none where it is no positive number."""
    hint: object = row.size_hint
    if isinstance(hint, int | float) and 0.0 < hint < math.inf:
        return (f"hint {math.floor(math.log2(hint))}",)
    return ()


class AgeingShare(Promoter):
    """A share of the batch for the oldest programs, first come, first served.

    It bounds the tail of a policy that prefers the short: whatever comes after it, the oldest
    program whose calls may run is served at this rate at least. The share is a token bucket
    of slot-seconds: it fills at ``lane * slots`` per second and is drawn on by the share's calls,
    so that a share of less than one slot works too. A call keeps its place until it ends.

    A share that nobody needed saves up two quanta of Q_1, of its own rate or of one slot, and no
    more: hence its calls' quantum.
    """

    keeps: ClassVar[bool] = True

    def __init__(self, config: SchedulerConfig, slots: int) -> None:
        quantum_s = config.level_quanta[0]
        self.priority = Priority(_FIRST, quantum_s / 2.0)
        self._rate = config.lane * slots
        self._most = math.ceil(self._rate)
        self._most_credit = 2.0 * quantum_s * max(1.0, self._rate)
        self._credit = 0.0
        self._at = 0.0
        self._inside = 0
        self._line: Heap[QueuedCall] = Heap()

    def waits(self, call: QueuedCall) -> None:
        # A streaming session may stay for as long as its client likes: it would hold up the others.
        if not (call.promoted or call.resumable) and call not in self._line:
            self._line.put(call, (call.program.started_at, call.key[2]))

    def started(self, call: QueuedCall, now: float) -> None:
        self._line.discard(call)

    def left(self, call: QueuedCall) -> None:
        self._line.discard(call)
        self._inside -= call.promoted

    def charged(self, call: QueuedCall, seconds: float) -> None:
        self._credit -= seconds

    def promote(self, now: float) -> QueuedCall | None:
        self._credit = min(self._most_credit, self._credit + self._rate * (now - self._at))
        self._at = now
        if self._credit <= 0 or self._inside >= self._most:
            return None
        while self._line:
            first = self._line.pop()
            if first.state is not NOT_ADMITTED:  # it will line up again when it comes in
                self._inside += 1
                return first
        return None

    def next_moment(self, now: float) -> float | None:
        if self._inside >= self._most or not self._line:
            return None
        return max(now, self._at - self._credit / self._rate)
