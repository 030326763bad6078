"""Which programs may use the KV cache now: what an admission is."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any, ClassVar, NamedTuple

from agentrt.scheduler.config import SchedulerConfig
from agentrt.scheduler.events import Part
from agentrt.scheduler.heap import Heap
from agentrt.scheduler.learned import Learned
from agentrt.scheduler.records import NOT_ADMITTED, CachedBlocks, EngineProgram, QueuedCall


class Capacity(NamedTuple):
    """An engine's KV cache, in ``blocks`` of ``block_size`` tokens, and its batch ``slots``."""

    blocks: int
    block_size: int
    slots: int


class Admit(NamedTuple):
    """A decision: this program becomes resident, and those ``expelled`` for it leave."""

    program: EngineProgram
    expelled: tuple[EngineProgram, ...] = ()


class Keep(NamedTuple):
    """A decision: a program stays out, at least ``until`` then if nothing happens.

    ``tool_of`` is the resident program for whose tool an idle engine keeps it out.
    """

    until: float = math.inf
    tool_of: EngineProgram | None = None


class Admission(Part):
    """Decides which programs are *resident*: their calls may run and use the KV cache.

    All calls of a program wait for its admission, or none does. A subclass answers two questions,
    `may_stay` and `decide`, and changes nothing in them; this class applies the answers.
    ``changed`` is called with the cached blocks of programs that became resident or ceased to be.
    """

    name: ClassVar[str]

    def __init__(self, config: SchedulerConfig, capacity: Capacity, learned: Learned) -> None:
        self.config, self.capacity, self.learned = config, capacity, learned
        self.changed: Callable[[CachedBlocks], None] = lambda blocks: None
        self.residents: dict[EngineProgram, None] = {}
        """The resident programs, in the order of their admission."""
        self._not_admitted: Heap[QueuedCall] = Heap()

    # -- what a subclass decides -----------------------------------------------------------

    @abstractmethod
    def may_stay(self, call: QueuedCall) -> bool:
        """Whether the resident program of a call that arrives or comes back may stay."""

    @abstractmethod
    def decide(self, call: QueuedCall, now: float, running: int) -> Admit | Keep:
        """Whether the program of a call becomes resident now.

        ``running`` counts the calls that run or could start. Where it is 0 the answer has to be
        `Admit`, or a `Keep` that ends.
        """

    def rank(self, call: QueuedCall) -> tuple[Any, ...]:
        """A call's place among those not admitted; the least is asked about first."""
        return call.key

    def candidates(self, now: float, running: int) -> Iterable[QueuedCall]:
        """The calls whose programs may be admitted next, the first first."""
        return islice(self._not_admitted, 1)

    def next_moment(self) -> float:
        """When a program may be admitted at the earliest, if nothing happens till then; or inf."""
        return math.inf

    # -- what the queue and the core do with it ----------------------------------------------

    def stays(self, call: QueuedCall) -> bool:
        """Whether a call's program is resident; one that may not stay leaves."""
        program = call.program
        if program.resident and not self.may_stay(call):
            self.expel(program)
        return program.resident

    def wait(self, call: QueuedCall) -> None:
        """A call waits for admission, or has another priority there. O(log n)."""
        self._not_admitted.put(call, self.rank(call))

    def leave(self, call: QueuedCall) -> None:
        """A call waits for admission no longer."""
        self._not_admitted.discard(call)

    def admit(self, now: float, running: int) -> list[QueuedCall]:
        """Admit the next program; return its calls, which wait for admission no longer."""
        for call in self.candidates(now, running):
            decision = self.decide(call, now, running)
            if isinstance(decision, Admit):
                self._apply(decision)
                calls = [
                    waiting
                    for waiting in call.program.queued.values()
                    if waiting.state is NOT_ADMITTED
                ]
                for waiting in calls:
                    self.leave(waiting)
                return calls
            self._keep(call.program, decision)
        return []

    def _apply(self, decision: Admit) -> None:
        for program in decision.expelled:
            self.expel(program)
        self.join(decision.program)

    def _keep(self, program: EngineProgram, decision: Keep) -> None:
        """Note that a program stays out."""

    def join(self, program: EngineProgram) -> None:
        """Make a program resident. Idempotent."""
        if not program.resident:
            self._set_resident(program, True)

    def expel(self, program: EngineProgram) -> None:
        """Make a resident program leave. Idempotent."""
        if program.resident:
            self._set_resident(program, False)

    def _set_resident(self, program: EngineProgram, resident: bool) -> None:
        program.resident = resident
        if resident:
            self.residents[program] = None
        else:
            del self.residents[program]
        if program.cached is not None:
            self.changed(program.cached)
