"""The step simulator: programs on B batch slots, in virtual time, without a model.

Every step of continuous batching takes ``step_s`` and gives each running call one
token; memory and prefill are left out. The queues, the table and the policies are the
real ones. Between two events (an arrival, an end, a budget used up, a starved call)
nothing changes, so the simulator jumps from event to event; it decides exactly as one
that visits every step. At one moment calls end, best first, each followed by its
successors; then calls with no budget left sink, calls come after their gaps, programs
arrive; and then it is decided who runs.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter

from agentrt.errors import InvariantError
from agentrt.request import CallReport
from agentrt.scheduler.call import QueuedCall
from agentrt.scheduler.config import SchedulerConfig
from agentrt.scheduler.queues import LevelQueues
from agentrt.scheduler.table import ProcessTable
from agentrt.scheduler.victims import Room
from agentrt.simulator.clairvoyant import make_policy
from agentrt.simulator.live import Job, Live, fresh_tokens
from agentrt.simulator.outcome import Outcome
from agentrt.workloads.arrivals import Arrivals, Open
from agentrt.workloads.shape import ProgramShape

_SERVED, _CALL, _PROGRAM = range(3)
"""What comes first at one moment: service that is over, calls after gaps, programs."""


@dataclass(frozen=True, slots=True)
class SimResult:
    """The programs in the order of their ends, and how much there was to do."""

    outcomes: list[Outcome]
    steps: int
    events: int
    preemptions: int


@dataclass(slots=True)
class Simulator:
    """One engine of ``batch`` slots. `run` runs programs to their end."""

    config: SchedulerConfig
    batch: int
    step_s: float
    table: ProcessTable = field(default_factory=ProcessTable)
    running: list[QueuedCall] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    queues: LevelQueues = field(init=False)
    live: dict[str, Live] = field(default_factory=dict)
    _events: list[tuple[int, int, int, Callable[[], None]]] = field(default_factory=list)
    _over: list[QueuedCall] = field(default_factory=list)
    now: float = 0.0
    _at: int = 0
    _serial: int = 0
    _done: int = 0
    _unsorted: bool = False
    _wakes: set[int] = field(default_factory=set)
    _arrivals: Arrivals = field(default_factory=lambda: Open(()))

    def __post_init__(self) -> None:
        policy = make_policy(self.config, self.remaining_s)
        self.queues = LevelQueues(self.config, policy, slots=self.batch)

    def run(self, arrivals: Arrivals, progress: Callable[[int], None] | None = None) -> SimResult:
        """Run all programs to their end; ``progress`` hears how many have ended."""
        self._arrivals = arrivals
        self._expect(arrivals.first())
        while self._events:
            self._at = self._events[0][0]
            self.now = self._at * self.step_s
            self._happen()
            self._choose()
            if progress is not None:
                progress(len(self.outcomes))
        if len(self.table) or self.running:
            raise InvariantError(f"{len(self.table)} programs are stuck at step {self._at}")
        return SimResult(
            self.outcomes, self._at, self._done, sum(o.preemptions for o in self.outcomes)
        )

    def remaining_s(self, program_id: str) -> float:
        """What a clairvoyant knows: the seconds of service that a program still needs."""
        live = self.live[program_id]
        return live.left_s - (live.row.attained_s - live.row.service_s)

    # -- events ------------------------------------------------------------------------

    def _happen(self) -> None:
        """All that happens at this step, in the order of `_SERVED`, `_CALL`, `_PROGRAM`."""
        while self._events and self._events[0][0] == self._at:
            _, kind, _, what = heapq.heappop(self._events)
            if kind != _SERVED:
                self._serve()
            what()
            self._done += 1
        self._serve()

    def _when(self, step: int, kind: int, what: Callable[[], None]) -> None:
        self._serial += 1
        heapq.heappush(self._events, (max(step, self._at), kind, self._serial, what))

    def _step_of(self, seconds: float) -> int:
        return math.ceil(seconds / self.step_s - 1e-9)

    def _expect(self, shapes: Sequence[ProgramShape]) -> None:
        for shape in shapes:
            at = self._step_of(shape.arrives_s)
            self._when(at, _PROGRAM, partial(self._arrive, shape))

    def _arrive(self, shape: ProgramShape) -> None:
        row = self.table.start_program(
            shape.program_id, shape.type, self.now, tenant=shape.tenant, session=shape.session
        )
        row.size_hint = shape.hint_tokens
        live = self.live[shape.program_id] = Live.of(shape, row, self.step_s)
        for index, call in enumerate(shape.calls):
            if not call.after:
                self._ready(live, index)

    def _ready(self, live: Live, index: int) -> None:
        gap = self._step_of(live.shape.calls[index].gap_s)
        if gap:
            self._when(self._at + gap, _CALL, lambda: self._emit(live, index))
        else:
            self._emit(live, index)

    def _emit(self, live: Live, index: int) -> None:
        shape = live.shape.calls[index]
        call_id = f"{live.shape.program_id}/{index}"
        self.table.call_arrived(live.row, call_id, self.now)
        job = Job(live, index, shape.output_tokens)
        path_s = live.path_s[index]
        self.queues.put(
            self.queues.add(
                call_id,
                live.row,
                job,
                path_s,
                self.now,
                node=shape.node,
                prompt_tokens=fresh_tokens(live.shape, shape),
            )
        )

    # -- who runs ----------------------------------------------------------------------

    def _choose(self) -> None:
        self.queues.promote(self.now)
        if self._unsorted:
            self.running.sort(key=_key)
            self._unsorted = False
        self._make_room()
        while len(self.running) < self.batch and self.queues.head() is not None:
            self._start(self.queues.take())
        # A running call may be safe from preemption for some steps only: look again.
        head = self.queues.head()
        if head is not None:
            if self.config.preemption and any(head.level < c.level for c in self.running):
                self._wake(self._at + 1)
            starving = self.queues.next_promotion(self.now)
            if starving is not None:
                self._wake(self._step_of(starving))

    def _wake(self, step: int) -> None:
        """Choose again at a step at which nothing else may happen."""
        step = max(step, self._at + 1)
        if step not in self._wakes:
            self._wakes.add(step)
            self._when(step, _SERVED, lambda: self._wakes.discard(step))

    def _make_room(self) -> None:
        head = self.queues.head()
        if head is None or not self.running or head.level >= self.running[-1].level:
            return
        for call in self.running:
            if call.level > head.level:
                self._settle(call)
        self.running.sort(key=_key)
        free = self.batch - len(self.running)
        for call in self.queues.victims(self.running, free, 1, _ROOM):
            self.running.remove(call)
            call.item.stamp += 1
            self.queues.stop(call, self.now)
            self.queues.put(call)

    def _start(self, call: QueuedCall) -> None:
        self.queues.start(call, self.now)
        self.running.append(call)
        self._unsorted = True
        job: Job = call.item
        job.settled_at = self._at
        job.stamp += 1
        self._watch(call)

    def _watch(self, call: QueuedCall) -> None:
        """Wake up when the call ends, or has used up its budget, whichever is first."""
        job: Job = call.item
        budget = job.left
        if not math.isinf(call.quantum_left):
            budget = max(1, math.ceil(call.quantum_left / self.step_s - 1e-9))
        stamp = job.stamp
        self._when(self._at + min(job.left, budget), _SERVED, lambda: self._due(call, stamp))

    def _due(self, call: QueuedCall, stamp: int) -> None:
        if stamp == call.item.stamp:
            self._over.append(call)

    def _serve(self) -> None:
        """End the calls whose service is over, then let those sink whose budget is."""
        if not self._over:
            return
        over, self._over = sorted(self._over, key=_key), []
        for call in (call for call in over if call.item.ends_at == self._at):
            self._settle(call)
            self._end(call)
        for call in (call for call in over if call.item.left):
            self._settle(call)
            self._watch(call)

    def _settle(self, call: QueuedCall) -> None:
        """Charge a running call for the steps since it was last charged."""
        job: Job = call.item
        steps = self._at - job.settled_at
        if not steps:
            return
        job.settled_at = self._at
        job.left -= steps
        if self.queues.charge(call, steps * self.step_s, self.now, steps):
            self._unsorted = True

    # -- ends --------------------------------------------------------------------------

    def _end(self, call: QueuedCall) -> None:
        job: Job = call.item
        live = job.live
        self.running.remove(call)
        self.queues.remove(call, self.now)
        report = CallReport(service_s=call.served_s, waiting_s=call.waited_s)
        self.table.call_ended(live.row, call.call_id, self.now, call.path_s, report)
        live.left_s -= call.served_s
        live.waiting_s += call.waited_s
        live.preemptions += call.preemptions
        live.unfinished -= 1
        self.queues.call_ended(call, self.now)
        end_s = (call.path_s or 0.0) + call.served_s
        for child in live.children[job.index]:
            live.path_s[child] = max(live.path_s[child], end_s)
            live.parents_left[child] -= 1
            if not live.parents_left[child]:
                self._ready(live, child)
        if not live.unfinished:
            self._end_program(live)

    def _end_program(self, live: Live) -> None:
        shape = live.shape
        self.table.end_program(shape.program_id)
        self.queues.program_ended(live.row, self.now)
        del self.live[shape.program_id]
        self.outcomes.append(
            Outcome(
                program_id=shape.program_id,
                type=shape.type,
                tenant=shape.tenant,
                arrived_s=live.row.started_at,
                ended_s=self.now,
                ideal_s=shape.ideal_s(self.step_s),
                output_tokens=shape.output_tokens,
                service_s=live.row.service_s,
                waiting_s=live.waiting_s,
                tool_s=sum(call.gap_s for call in shape.calls),
                preemptions=live.preemptions,
            )
        )
        self._expect(self._arrivals.after_end(shape.program_id, self.now))


def simulate(
    programs: Sequence[ProgramShape] | Arrivals,
    config: SchedulerConfig,
    *,
    batch: int,
    step_s: float,
    progress: Callable[[int], None] | None = None,
) -> SimResult:
    """Run programs on one simulated engine of ``batch`` slots, ``step_s`` seconds a step."""
    arrivals = Open(programs) if isinstance(programs, Sequence) else programs
    return Simulator(config, batch, step_s).run(arrivals, progress)


_key = attrgetter("key")
_ROOM = Room()
