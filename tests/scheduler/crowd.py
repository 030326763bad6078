"""A made-up crowd of live programs in the real queues and the real table, kept at its size.

Every step serves the calls of a full batch, ends one of them at random, and lets the next
call arrive: of the same program, or of a new one if the program was done. A program of the
crowd has a past drawn from the same numbers, so that the crowd looks from the start much as
it will later, and spreads over the queue levels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from operator import attrgetter
from random import Random

from agentrt.scheduler.config import SchedulerConfig
from agentrt.scheduler.core import SchedulerCore
from agentrt.scheduler.events import (
    CallArrived,
    CallFinished,
    CallPreempted,
    CallStarted,
    ProgramEnded,
    StepFinished,
)
from agentrt.scheduler.policies import Policy
from agentrt.scheduler.state import EngineProgram, QueuedCall
from agentrt.scheduler.table import ProgramTotals

SLOTS = 64
STEP_S = 0.025
TYPES = 8
CALLS_A_PROGRAM = 8
"""The mean. A program is done after any of its calls with the same chance."""
_LEAST_PAST_S = 2.0
"""Who had less service than this does not wait long, and is not in a crowd that stands."""
_MOST_PROMPT_TOKENS = 2048


class Crowd:
    """``live`` programs with a waiting call each, and `SLOTS` more whose calls run.

    β grows with the crowd, as waits do: it is the waiting over service that a fair share of
    the batch would mean. With one β for all sizes, nobody starves in a small crowd and
    everybody in a large one, and a comparison of sizes would compare these.

    A step is `prepare`, then the `parts`; what is not the scheduler's work is in `prepare`.
    ``started`` counts the calls that were chosen: one a step, and one more per preemption.
    """

    def __init__(
        self, config: SchedulerConfig, live: int, seed: int = 0, policy: Policy | None = None
    ) -> None:
        config = replace(config, beta=max(1.0, live / SLOTS))
        self.live = live
        self.core = SchedulerCore(config, policy, slots=SLOTS)
        self.table = self.core.table
        self.running: list[QueuedCall] = []
        self.now = 0.0
        self.started = 0
        self.parts: Mapping[str, Callable[[], None]] = {
            "charge": self.charge,
            "end": self.end,
            "arrive": self.arrive,
            "choose": self.choose,
        }
        self._rng = Random(seed)
        self._names = 0
        self._unsorted = False
        self._ending: QueuedCall | None = None
        self._next_program: str | None = None
        self._next_call = ("", "", 0)
        for _ in range(live + SLOTS):
            self._settle()
        self.choose()

    def prepare(self) -> None:
        """Draw the call that ends in this step, and the call that follows it."""
        self.now += STEP_S
        at = self._rng.randrange(len(self.running))
        self._ending = self.running.pop(at)
        is_last = self._rng.random() < 1 / CALLS_A_PROGRAM
        self._next_program = self._name("p") if is_last else None
        self._next_call = self._draw_call()

    def step(self) -> None:
        self.prepare()
        for act in self.parts.values():
            act()

    # -- the parts of a step -----------------------------------------------------------

    def charge(self) -> None:
        """Charge every running call for a step."""
        for call in self.running:
            key = call.key
            self.core.handle(StepFinished([call.call_id], STEP_S, self.now))
            self._unsorted |= call.key is not key

    def end(self) -> None:
        """End a call, and possibly its program."""
        call = self._ended()
        row = call.program
        self.core.handle(CallFinished(call, self.now))
        if self._next_program is not None:
            self.core.handle(ProgramEnded(ProgramTotals.of(row), self.now))

    def arrive(self) -> None:
        """The next call of that program arrives, or the first of a new one."""
        row = self._ended().program
        if self._next_program is not None:
            row = self.table.start_program(self._next_program, row.type, self.now)
        self._emit(row, *self._next_call)

    def choose(self) -> None:
        """Choose the calls of the next step: promote, preempt, fill the batch."""
        self.core.refresh_priorities(self.now)
        self.core.promote(self.now)
        if self._unsorted:
            self.running.sort(key=_key)
            self._unsorted = False
        for call, _ in self.core.victims(self.running, SLOTS - len(self.running)):
            self.running.remove(call)
            self.core.handle(CallPreempted(call, self.now))
            self.core.queue.put(call)
        while len(self.running) < SLOTS and self.core.queue.head() is not None:
            call = self.core.queue.take()
            self.core.handle(CallStarted(call, self.now))
            self.running.append(call)
            self.started += 1
            self._unsorted = True

    # -- inside ------------------------------------------------------------------------

    def _settle(self) -> None:
        """A program of the crowd begins, with its past, and its next call waits."""
        self.now += STEP_S
        kind = f"type-{self._rng.randrange(TYPES)}"
        row = self.table.start_program(self._name("p"), kind, self.now)
        row.catch_up(*self._draw_past())
        self._emit(row, *self._draw_call())

    def _draw_past(self) -> tuple[float, float, float]:
        """Draw service, path and waiting in seconds. The past calls are random in number and in
        length.
        """
        service_s = _LEAST_PAST_S
        while self._rng.random() >= 1 / CALLS_A_PROGRAM:
            service_s += self._rng.expovariate(1 / (SLOTS * STEP_S))
        waited_s = self._rng.random() * self.core.config.beta * service_s
        return service_s, service_s, waited_s

    def _draw_call(self) -> tuple[str, str, int]:
        node = f"node-{self._rng.randrange(TYPES)}"
        return self._name("c"), node, self._rng.randint(1, _MOST_PROMPT_TOKENS)

    def _emit(self, row: EngineProgram, call_id: str, node: str, tokens: int) -> None:
        call = QueuedCall(call_id, row, None, row.path_s, self.now, node=node, prompt_tokens=tokens)
        self.core.handle(CallArrived(call, self.now))
        self.core.queue.put(call)

    def _ended(self) -> QueuedCall:
        assert self._ending is not None, "prepare comes first"
        return self._ending

    def _name(self, kind: str) -> str:
        self._names += 1
        return f"{kind}{self._names}"


_key = attrgetter("key")
