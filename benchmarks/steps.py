"""The step simulator: simulates only the order of calls, without vLLM, memory or prefill.

`agentrt simulate`, and all tables in which memory matters, use virtual time with vLLM's own
scheduler. The step simulator exists because it is about thirty times as fast: studies of dozens of
engines, or tests of the order on hundreds of generated workloads
(``tests/scheduler/test_lane_bounds.py``), would take days in virtual time. The step simulator skips
all steps at which nothing changes, whereas vLLM's scheduler must be called at each step.

Every step of continuous batching takes ``step_s`` and gives each running call one token. The
queues, the process table, the policies and the router are the same code as in agentrt's engines.
Between two events (an arrival, an end, a spent quantum, a starved call) nothing changes, so the
simulator jumps from event to event; it decides exactly as if it visited every step. At each moment,
calls end in the order of their priority, and each ended call is followed by its successors. Then
calls with a spent quantum are demoted, calls arrive after their gaps, and programs arrive. Finally,
the running calls are chosen.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, ClassVar

from agentrt.errors import ConfigError, InvariantError
from agentrt.lab.backends.base import Backend, CallEnded, ReplicaRouter
from agentrt.lab.driver import drive
from agentrt.lab.oracles import KNOWING, Laws, make_policy, policy_names
from agentrt.lab.outcome import RunOutcome
from agentrt.lab.program import LiveProgram
from agentrt.lab.runs.contenders import SIZE_HINTS, TRUE_SIZES, Contender
from agentrt.lab.runs.machine import Machine
from agentrt.lab.workloads.shape import CallShape, ProgramShape
from agentrt.request import CallReport
from agentrt.router import RouterCall, make_router
from agentrt.router.speed import Speed
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
from agentrt.scheduler.policies import Policy, level_ends
from agentrt.scheduler.programs import ProgramStats
from agentrt.scheduler.state import EngineProgram, QueuedCall
from agentrt.scheduler.table import ProgramTotals


@dataclass(frozen=True, slots=True)
class SlotMachine(Machine):
    """An engine with batch slots and steps of ``step_s`` seconds, without memory. It is described
    by plain values, like a `Machine` in virtual time.
    """

    step_s: float = 0.025

    def __post_init__(self) -> None:
        make_router(self.router)

    def in_words(self) -> str:
        return (
            f"**Step simulator**: {self.max_num_seqs} batch slots; every step takes "
            f"{1000 * self.step_s:.2f} ms and gives each\nrunning call a token. Only the order of "
            "calls is simulated: no memory, no prefill, no model."
        )

    def token_s(self) -> float:
        return self.step_s

    def capacity_per_s(self, programs: Sequence[ProgramShape]) -> float:
        tokens = sum(program.output_tokens for program in programs) / len(programs)
        return self.replicas * (self.max_num_seqs / self.step_s / tokens)

    def check(self, contenders: Iterable[Contender]) -> None:
        """Raise `ConfigError` for a contender that needs more than a policy of agentrt's scheduler:
        vLLM's or a rival's scheduler, a gate, more memory than other contenders, or host memory.
        """
        for contender in contenders:
            if contender.config is None or {*contender.parts} - {TRUE_SIZES, SIZE_HINTS}:
                raise ConfigError(
                    f"{contender.name!r} needs vLLM's scheduler or its memory, which the step "
                    "simulator does not have; use policies of agentrt's scheduler: "
                    f"{', '.join(policy_names())}"
                )

    def run(self, contender: Contender, programs: Sequence[ProgramShape]) -> RunOutcome:
        """Run programs on this engine. Raises `InvariantError` for vLLM's own scheduler."""
        if contender.config is None:
            raise InvariantError("the step simulator does not have vLLM's own scheduler")
        fleet: dict[str, Any] = {"replicas": self.replicas, "router": self.router}
        return drive(Steps(contender.config, self.max_num_seqs, self.step_s, **fleet), programs)

    def to_dict(self) -> dict[str, Any]:
        about = {"batch": self.max_num_seqs, "depth": "steps"}
        return about | self.fleet_dict() | {"step_s": self.step_s}


class Steps(Backend):
    """A backend of ``replicas`` engines with ``batch`` slots each. Several engines are behind a
    router.

    Moments are whole steps.
    """

    same_moment: ClassVar[bool] = True

    def __init__(
        self,
        config: SchedulerConfig,
        batch: int,
        step_s: float,
        *,
        replicas: int = 1,
        router: str = "round-robin",
    ) -> None:
        self.step_s = step_s
        self.at = 0
        self.now = 0.0
        self._laws = Laws(step_s)
        self.engines = [
            Slots(self, config, make_policy(config, self.remaining_s, self._laws), batch)
            for _ in range(replicas)
        ]
        self._router: ReplicaRouter | None = None
        if replicas > 1:
            # In this simulator, prompts cost nothing, and other calls do not slow a call down.
            speed = Speed(step_s, beside_s=0.0, prefill_s=0.0)
            ends = level_ends(config) if config.policy not in KNOWING else ()
            self._router = ReplicaRouter(router, replicas, batch, ends, speed)
        self._needs_s: dict[str, float] = {}
        self._due: list[tuple[int, int, Callable[[], None]]] = []
        self._touched: dict[Slots, None] = {}
        self._served: dict[Slots, None] = {}
        self._ended: CallEnded
        self._serial = 0

    def remaining_s(self, row: EngineProgram) -> float:
        """Return the seconds of service that a program still needs, for `Srpt`."""
        return self._needs_s[row.program_id] - row.attained_s

    # -- time --------------------------------------------------------------------------

    def moments(self, seconds: float) -> float:
        return step_of(seconds, self.step_s)

    def seconds(self, moment: float) -> float:
        return moment * self.step_s

    def ideal_s(self, program: ProgramShape) -> float:
        return max(program.ends(lambda call: call.output_tokens * self.step_s)) + program.tail_s

    def next_moment(self, arrival: float) -> float:
        return min(arrival, self._due[0][0] if self._due else math.inf)

    def serve(self, moment: float, ended: CallEnded) -> None:
        self.at, self.now, self._ended = int(moment), moment * self.step_s, ended
        while self._due and self._due[0][0] == self.at:
            heapq.heappop(self._due)[2]()
        served, self._served = self._served, {}
        for engine in served:
            engine.serve()

    def choose(self) -> None:
        touched, self._touched = self._touched, {}
        for engine in touched if self._router else self.engines:
            engine.choose()

    # -- calls and programs ------------------------------------------------------------

    def expect(self, program: ProgramShape) -> None:
        self._laws.add(program)

    def program_started(self, live: LiveProgram) -> None:
        live.row.size_hint = live.shape.hint_tokens
        self._needs_s[live.row.program_id] = live.shape.output_tokens * self.step_s

    def submit(self, live: LiveProgram, index: int) -> None:
        shape, call_id = live.shape.calls[index], live.call_id(index)
        engine = self.engines[self._route(live, index) if self._router else 0]
        call = QueuedCall(
            call_id,
            self._program(engine, live.row),
            Job(live, index, shape.output_tokens),
            live.path_s[index],
            self.now,
            node=shape.node,
            prompt_tokens=_fresh_tokens(live.shape, shape),
        )
        engine.core.handle(CallArrived(call, self.now))
        engine.core.queue.put(call)
        self.touch(engine)

    def _program(self, engine: Slots, row: ProgramStats) -> EngineProgram:
        """Return an engine's record of a program. It includes the service that the program got on
        other engines.
        """
        table = engine.core.table
        program = table.get(row.program_id) or table.start_program(
            row.program_id, row.type, self.now, tenant=row.tenant, session=row.session
        )
        program.size_hint = row.size_hint
        program.catch_up(row.service_s, row.path_s, row.waiting_s)
        return program

    def _route(self, live: LiveProgram, index: int) -> int:
        assert self._router is not None
        call = live.shape.calls[index]
        question = RouterCall(
            live.row.program_id,
            max(1, call.prompt_tokens),
            level_service_s=live.path_s[index],
            kind=f"{live.shape.type}/{call.node}",
        )
        return self._router.send(live.call_id(index), question)

    def call_ended(self, live: LiveProgram, index: int, report: CallReport) -> None:
        if self._router:
            self._router.ended(live.call_id(index), report)

    def program_ended(self, live: LiveProgram) -> None:
        program_id = live.row.program_id
        served = self.engines
        if self._router:
            served = [self.engines[index] for index in self._router.served(program_id)]
            self._router.program_ended(program_id)
        for engine in served:
            engine.core.handle(ProgramEnded(ProgramTotals.of(live.row), self.now))
        del self._needs_s[program_id]

    # -- called by the engines ---------------------------------------------------------

    def when(self, step: int, action: Callable[[], None]) -> None:
        """Call ``action`` at a step."""
        self._serial += 1
        heapq.heappush(self._due, (step, self._serial, action))

    def touch(self, engine: Slots) -> None:
        """Mark the engine, so that it chooses its running calls at this moment."""
        self._touched[engine] = None

    def served(self, engine: Slots) -> None:
        """Mark the engine, so that it ends calls at this moment."""
        self._served[engine] = None
        self.touch(engine)

    def leave(self, call: QueuedCall) -> None:
        """Handle the end of a call, after the call's engine has handled it."""
        job: Job = call.item
        report = CallReport(
            service_s=call.served_s,
            waiting_s=call.waited_s,
            steps=call.steps,
            preemptions=call.preemptions,
            output_tokens=job.live.shape.calls[job.index].output_tokens,
        )
        self._ended(job.live, job.index, report)

    # -- counts ------------------------------------------------------------------------

    @property
    def busy_s(self) -> list[float]:
        return [engine.busy_steps * self.step_s for engine in self.engines]


@dataclass(slots=True, eq=False)
class Job:
    """The payload of a queued call: the call's index in its program, and the number of steps that
    the call still needs (``left``).

    ``settled_at`` is the step up to which the call was charged. ``stamp`` changes when the call
    starts or is preempted, so that a wake-up scheduled before has no effect.
    """

    live: LiveProgram
    index: int
    left: int
    settled_at: int = 0
    stamp: int = 0

    @property
    def ends_at(self) -> int:
        """The step at which the call ends if it keeps running."""
        return self.settled_at + self.left


class Slots:
    """One engine: ``batch`` slots that give each running call one token per step.

    As in a real engine, where preemptions have a cost, a running call is preempted only for a
    strictly better level. ``busy_steps`` is the sum of the served steps of all slots.
    """

    def __init__(self, clock: Steps, config: SchedulerConfig, policy: Policy, batch: int) -> None:
        self.core = SchedulerCore(config, policy, slots=batch)
        self.running: list[QueuedCall] = []
        self.busy_steps = 0
        self._batch = batch
        self._clock = clock
        self._preemption = config.preemption
        self._over: list[QueuedCall] = []
        self._unsorted = False
        self._wakes: set[int] = set()

    # -- which calls run -----------------------------------------------------------------

    def choose(self) -> None:
        """Promote, preempt and admit, as an engine does before a step."""
        clock = self._clock
        self.core.refresh_priorities(clock.now)
        self.core.promote(clock.now)
        if self._unsorted:
            self.running.sort(key=_key)
            self._unsorted = False
        for call in self._victims():
            self._stop(call)
        while len(self.running) < self._batch and self.core.queue.head() is not None:
            self._start(self.core.queue.take())
        # A running call may be protected from preemption for some steps only, so choose again then.
        head = self.core.queue.head()
        if head is not None:
            if self._preemption and any(head.level < c.level for c in self.running):
                self._wake(clock.at + 1)
            starving = self.core.next_promotion(clock.now)
            if starving is not None:
                self._wake(step_of(starving, clock.step_s))

    def _wake(self, step: int) -> None:
        """Choose the running calls again at a step, even if nothing else happens then."""
        step = max(step, self._clock.at + 1)
        if step not in self._wakes:
            self._wakes.add(step)
            self._clock.when(step, lambda: self._woken(step))

    def _woken(self, step: int) -> None:
        self._wakes.discard(step)
        self._clock.touch(self)

    def _victims(self) -> list[QueuedCall]:
        head = self.core.queue.head()
        if head is None or not self.running or head.level >= self.running[-1].level:
            return []
        for call in self.running:
            if call.level > head.level:
                self._settle(call)
        self.running.sort(key=_key)
        free = self._batch - len(self.running)
        return [decision.call for decision in self.core.victims(self.running, free)]

    def _start(self, call: QueuedCall) -> None:
        self.core.handle(CallStarted(call, self._clock.now))
        self.running.append(call)
        self._unsorted = True
        job: Job = call.item
        job.settled_at = self._clock.at
        job.stamp += 1
        self._watch(call)

    def _stop(self, call: QueuedCall) -> None:
        self.running.remove(call)
        call.item.stamp += 1
        self.core.handle(CallPreempted(call, self._clock.now))
        self.core.queue.put(call)

    # -- service -----------------------------------------------------------------------

    def _watch(self, call: QueuedCall) -> None:
        """Schedule a wake-up for the step at which the call ends or has spent its quantum,
        whichever is first.
        """
        job: Job = call.item
        clock = self._clock
        budget = job.left
        if not math.isinf(left := call.quantum_ends_s - call.served_s):
            budget = max(1, step_of(left, clock.step_s))
        stamp = job.stamp
        clock.when(clock.at + min(job.left, budget), lambda: self._due(call, stamp))

    def _due(self, call: QueuedCall, stamp: int) -> None:
        if stamp == call.item.stamp:
            self._over.append(call)
            self._clock.served(self)

    def serve(self) -> None:
        """End the calls whose service is complete, then demote the calls whose quantum is spent."""
        over, self._over = sorted(self._over, key=_key), []
        for call in (call for call in over if call.item.ends_at == self._clock.at):
            self._settle(call)
            self.running.remove(call)
            self.core.handle(CallFinished(call, self._clock.now))
            self._clock.leave(call)
        for call in (call for call in over if call.item.left):
            self._settle(call)
            self._watch(call)

    def _settle(self, call: QueuedCall) -> None:
        """Charge a running call for the steps since it was last charged."""
        job: Job = call.item
        steps = self._clock.at - job.settled_at
        if not steps:
            return
        job.settled_at = self._clock.at
        job.left -= steps
        self.busy_steps += steps
        seconds, key = steps * self._clock.step_s, call.key
        self.core.handle(StepFinished([call.call_id], seconds, self._clock.now, steps=steps))
        if call.key is not key:
            self._unsorted = True


def step_of(seconds: float, step_s: float) -> int:
    """Return the first step that begins at ``seconds`` or later."""
    return math.ceil(seconds / step_s - 1e-9)


def _fresh_tokens(program: ProgramShape, call: CallShape) -> int:
    """Return the number of prompt tokens that no earlier call of the program has computed."""
    if call.extends is None:
        return call.prompt_tokens
    parent = program.calls[call.extends]
    return max(1, call.prompt_tokens - parent.prompt_tokens - parent.output_tokens)


_key = attrgetter("key")
