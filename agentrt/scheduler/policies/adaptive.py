"""The policies that rank programs by their expected remaining service, the least first
(``adaptive``) or the longest first (``longest-remaining``).

The policy ``adaptive`` does not come from a paper. The expected remaining service is a mean
residual life (`agentrt.scheduler.learned`) by tenant and program type, refined by the size hint,
and by the node and the turn that the program has reached. Its prior is the *visible service*: the
service that the program's calls in the engine still need for the new parts of their prompts and for
outputs of the usual length (or of their maximum length, before any call has ended). If neither
limits nor lengths of outputs are known, the prior is the mean service of all ended programs, or the
service on the program's own critical path if that is more.

Each level covers a factor of 1.4 (the square root of two) of the expected remaining service. Within
a level, programs with the smaller total size go first (rounded down to a power of two), then
programs that arrived earlier. Until a program has ended, only the arrival counts. An `AgeingShare`
limits how long large and old programs wait.

The policy ``longest-remaining`` runs the program with the longest expected remaining service first.
It is meant for batches, in which all programs are there from the beginning and only the end of the
last program counts. There, a long program that begins late runs alone at the end, while most of the
engine idles. In the measured batches with ample memory, this policy takes up to 1.07 times as long
as stock vLLM (docs/results/batch.md), so batches have `Fcfs` as their default.

The rule is *longest expected processing time first* (LEPT), which minimizes the expected makespan
of exponential jobs on parallel machines (Bruno, Downey and Frederickson 1981). The expectation is
that of `Adaptive`.
"""

# A call of `min` or `max` takes longer than a comparison, and a priority needs eight of them.
# ruff: noqa: FURB136
from __future__ import annotations

import math
import sys
from functools import lru_cache
from typing import Any, ClassVar

from agentrt.scheduler.config import LONGEST_REMAINING, SchedulerConfig
from agentrt.scheduler.learned.durations import (
    BINS_PER_DOUBLING,
    LONGEST_S,
    RESOLUTION_S,
    Kind,
    age_bin,
)
from agentrt.scheduler.learned.means import DOUBT, WINDOW
from agentrt.scheduler.policies.base import Policy
from agentrt.scheduler.priority_queue import PriorityQueue
from agentrt.scheduler.queues import Priority, Promoter
from agentrt.scheduler.state import MANY_CALLS, NOT_ADMITTED, EngineProgram, QueuedCall

# The kind of the statistics of all programs, and a level that precedes all other levels.
_ALL, _FIRST = ("", "", ""), -sys.maxsize
_QUANTA_OF_LIFE = 8.0
"""A quantum is one eighth of the service that the program has had or is expected to need, whichever
is more, and at least the quantum of Q_1.
"""


class Adaptive(Policy):
    """A policy that runs the program with the smallest expected remaining service first, and
    reserves a share of the batch for the oldest programs.
    """

    name: ClassVar[str] = "adaptive"
    starving: ClassVar[bool] = False
    follows_program: ClassVar[bool] = True
    learns: ClassVar[bool] = True
    settings: ClassVar[frozenset[str]] = frozenset({"quanta", "lane"})

    def __init__(self, config: SchedulerConfig) -> None:
        super().__init__(config)
        self._least_quantum_s = config.level_quanta[0]
        self._visits: dict[EngineProgram, dict[tuple[Kind, int], float]] = {}
        """For each live program: the kinds and ages by which its remaining service was estimated,
        each with the attained service at the first such estimate. At the program's end, its true
        remaining service is added to these statistics.
        """
        self._visible: tuple[Any, float] = None, 0.0
        """The visible service that was computed last: the values on which it depends, and the
        service in seconds.
        """

    def promoter(self, slots: int) -> Promoter | None:
        return AgeingShare(self.config, slots) if self.config.lane else None

    def priority(self, call: QueuedCall, now: float) -> Priority:
        row = call.program
        path_s = row.path_s if call.path_s is None else call.path_s
        visible_s = self._visible_s(row)
        expected = self._expected_s(row, call.node, path_s + call.served_s, visible_s)
        level = math.floor(BINS_PER_DOUBLING * math.log2(expected))
        quantum_s = self.quantum_s(row, expected)
        # Until a program has ended, nothing says which of two programs of a level ends first. So
        # the older program goes first.
        known = 0 in self.learned.service.ages(_ALL)
        size = math.floor(math.log2(row.attained_s + expected)) if known else 0
        return Priority(level, quantum_s, (size, row.started_at))

    def preempts_by(self, better: QueuedCall, call: QueuedCall) -> int:
        """Return 2 if the type of one of the programs, or of both, is unknown, because no program
        of this type has ended, and else 1.

        The levels of unknown types come only from the calls in the engine and from the service so
        far, so programs of neighbouring levels may need the same service. If the levels differ by
        two or more, the expected remaining service of one program is more than 1.4 times that of
        the other.
        """
        at = self.learned.service.at
        for program in (better.program, call.program):
            if at((program.tenant, program.type, ""), 0) is None:
                return 2
        return 1

    @property
    def revision(self) -> int:  # type: ignore[override]
        """A number that grows when the cost of prefill is first measured, and whenever the number
        of ended calls doubles.

        After `WINDOW` calls the number stays the same, because further calls change the means only
        a little.
        """
        return self.learned.costs.measured + min(self.learned.calls, int(WINDOW)).bit_length()

    def quantum_s(self, row: EngineProgram, expected_s: float) -> float:
        """Return the service in seconds after which a call gets a new priority, if its program is
        expected to need ``expected_s`` seconds.
        """
        life_s = expected_s if expected_s > row.attained_s else row.attained_s
        quantum_s = life_s / _QUANTA_OF_LIFE
        return quantum_s if quantum_s > self._least_quantum_s else self._least_quantum_s

    def remaining_s(self, call: QueuedCall, visible_s: float | None = None) -> float:
        """Return the expected remaining service of the program of a call, in seconds.

        ``visible_s`` is the service that the program's calls in the engine need, if the caller has
        computed it already.
        """
        row = call.program
        path_s = row.path_s if call.path_s is None else call.path_s
        if visible_s is None:
            visible_s = self._visible_s(row)
        return self._expected_s(row, call.node, path_s + call.served_s, visible_s)

    def _visible_s(self, row: EngineProgram) -> float:
        """Return the seconds of service that a program's calls in the engine are expected to need.

        This is the time for the outputs of the calls (`Learned.output_within`) and for the new
        parts of their prompts, minus the service that the calls have had. The result is 0 if the
        engine reports neither limits nor outputs.

        An event ranks several calls of its program, so the last result is kept.
        """
        output_within, costs = self.learned.output_within, self.learned.costs
        step_s, token_s = costs.decode_s or RESOLUTION_S, costs.token_s
        kind, key = (row.tenant, row.type), None
        if (calls := len(row.queued)) > 1:
            newest = next(reversed(row.queued))
            key = row, row.attained_s, calls, newest, self.learned.calls, step_s, token_s
            if self._visible[0] == key:
                return self._visible[1]
        seconds = 0.0
        for call in row.queued.values():
            if outputs := output_within(kind, call.max_tokens):
                left_s = outputs * step_s - call.served_s
                if (new := call.prompt_tokens - call.known_tokens) > 0:
                    left_s += new * token_s
                seconds += left_s if left_s > step_s else step_s
        if key is not None:
            self._visible = key, seconds
        return seconds

    def _expected_s(
        self, row: EngineProgram, node: str, path_s: float, visible_s: float = 0.0
    ) -> float:
        """Return the expected remaining service of a program, in seconds. ``path_s`` is the service
        on its critical path, by which ATLAS ranks.
        """
        ages, age = self.learned.service.ages, age_bin(row.attained_s)
        tenant, type = row.tenant, row.type
        if (visits := self._visits.get(row)) is None:
            visits = self._visits[row] = {}
        expected, factor = visible_s, 1.0
        if expected and row.finished_calls >= MANY_CALLS and path_s > expected:
            # The program may never end. Then its visible calls do not show what it still needs.
            expected = path_s
        of_type = ages((tenant, type, ""))
        if (known := ages(_ALL).get(0)) is not None:
            # The more programs of the type have ended, the less the visible service counts.
            n = of_type[0].left_s.n if 0 in of_type else 0.0
            if expected and not n and path_s > expected:
                # Programs of other types have ended, but no program of this type. The visible calls
                # say little about how many calls will follow. So assume that the program needs at
                # least as much service again as it has had.
                expected = path_s
            weight = n / (n + DOUBT) if expected else 1.0
            mean_s = known.left_s.value
            expected += ((path_s if path_s > mean_s else mean_s) - expected) * weight
        if not expected > RESOLUTION_S:
            expected = RESOLUTION_S
        if age in of_type:
            expected = max(of_type[age].left_s.refine(expected), RESOLUTION_S)
        place = _place(row.finished_calls, node)
        for subject in (place,) if row.size_hint is None else (*_hint(row), place):
            kind = tenant, type, subject
            if (kind, age) not in visits and len(visits) < WINDOW:
                visits[kind, age] = row.attained_s
            if (known := ages(kind).get(age)) is not None:
                factor *= max(known.left_s.refine(expected), RESOLUTION_S) / expected
        expected *= factor
        if not expected > RESOLUTION_S:
            return RESOLUTION_S
        return expected if expected < LONGEST_S else LONGEST_S

    def program_ended(self, row: EngineProgram, now: float) -> None:
        service, total = self.learned.service, row.service_s
        service.entry(_ALL, 0).learn(total, well=True)
        service.learn((*row.kind, ""), total)
        for (kind, age), attained in self._visits.pop(row, {}).items():
            service.entry(kind, age).learn(total - attained, well=True)
        self.program_lost(row)

    def program_lost(self, row: EngineProgram) -> None:
        self._visits.pop(row, None)
        if self._visible[0] is not None and self._visible[0][0] is row:
            self._visible = None, 0.0


@lru_cache(maxsize=1024)
def _place(finished_calls: int, node: str) -> str:
    """Return a name for the turn and the node that a program has reached. The number of the turn is
    rounded down to a power of the square root of two.
    """
    return f"turn {int(BINS_PER_DOUBLING * math.log2(finished_calls + 1))} {node}"


def _hint(row: EngineProgram) -> tuple[str, ...]:
    """Return a tuple with a name for the size hint, rounded down to a power of two; an empty tuple
    if the hint is not a positive finite number.
    """
    hint: object = row.size_hint
    if isinstance(hint, int | float) and 0.0 < hint < math.inf:
        return (f"hint {math.floor(math.log2(hint))}",)
    return ()


class AgeingShare(Promoter):
    """A promoter that reserves a share of the batch for the oldest programs, first come, first
    served.

    The share limits the longest waiting times of a policy that prefers short programs: whatever
    arrives later, the oldest programs whose calls may run get at least the share. The share is a
    token bucket of slot-seconds. The bucket fills at ``lane * slots`` per second, and the service
    of promoted calls is taken out of it. So a share of less than one slot works, too. A call keeps
    its promotion until it ends, unless the engine takes the call and cannot start it. At most as
    many calls are promoted at the same time as the share has slots, rounded up.

    The bucket holds at most two quanta of Q_1, times the slots of the share (at least one slot).
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
        self._line: PriorityQueue[QueuedCall] = PriorityQueue()

    def waits(self, call: QueuedCall) -> None:
        # Leave out streaming sessions: they last for as long as the client likes, and would keep
        # the share from all other calls.
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
            if first.state is not NOT_ADMITTED:  # it is queued again when it is admitted
                self._inside += 1
                return first
        return None

    def next_moment(self, now: float) -> float | None:
        if self._inside >= self._most or not self._line:
            return None
        return max(now, self._at - self._credit / self._rate)


class LongestRemaining(Adaptive):
    """The longest expected remaining service first, without preemption for a slot.

    All calls have the same level, so no call is preempted for another, and no program loses its
    place in memory to a program of a better level. Expectations are rounded to steps of a factor of
    1.4. Of several programs with the same rounded expectation, the program that arrived first goes
    first, so that the samples of an input, which arrive one after the other, are admitted together.
    A short program can wait for as long as longer programs keep arriving.
    """

    name: ClassVar[str] = LONGEST_REMAINING
    settings: ClassVar[frozenset[str]] = frozenset({"quanta"})

    def promoter(self, slots: int) -> Promoter | None:
        return None

    def priority(self, call: QueuedCall, now: float) -> Priority:
        expected_s = self.remaining_s(call)
        longest_first = -math.floor(BINS_PER_DOUBLING * math.log2(expected_s))
        quantum_s = self.quantum_s(call.program, expected_s)
        return Priority(0, quantum_s, (longest_first, call.program.started_at))
