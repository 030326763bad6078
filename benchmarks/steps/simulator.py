"""The step simulator: programs on batch slots, in virtual time, without a model.

Every step of continuous batching takes ``step_s`` and gives each running call one token. Memory and
prefill are left out. The queues, the process table, the policies and the router are the real ones.
Between two events (an arrival, an end, a spent quantum, a starved call) nothing changes, so the
simulator jumps from event to event; it decides exactly as if it visited every step. At each moment,
calls end, best first, each followed by its successors. Then calls with a spent quantum are demoted,
calls arrive after their gaps, and programs arrive. Finally, the running calls are chosen.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from typing import ClassVar

from agentrt.lab.backends.base import Backend, CallEnded, Replicas
from agentrt.lab.oracles import KNOWING, Laws, make_policy
from agentrt.lab.program import LiveProgram
from agentrt.lab.workloads.shape import CallShape, ProgramShape
from agentrt.request import CallReport
from agentrt.router import RouterCall
from agentrt.router.speed import Speed
from agentrt.scheduler.config import SchedulerConfig
from agentrt.scheduler.events import CallArrived, ProgramEnded
from agentrt.scheduler.policies import level_ends
from agentrt.scheduler.programs import ProgramStats
from agentrt.scheduler.records import EngineProgram, QueuedCall
from agentrt.scheduler.table import ProgramTotals
from benchmarks.steps.slots import Job, Slots, step_of


class Steps(Backend):
    """A backend of ``replicas`` engines with ``batch`` slots each, behind a router if several.

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
        self._replicas = _routed(config, router, replicas, batch, step_s) if replicas > 1 else None
        self._needs_s: dict[str, float] = {}
        self._due: list[tuple[int, int, Callable[[], None]]] = []
        self._touched: dict[Slots, None] = {}
        self._served: dict[Slots, None] = {}
        self._ended: CallEnded = _nobody
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
        return program.ideal_s(self.step_s)

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
        for engine in touched if self._replicas else self.engines:
            engine.choose()

    # -- calls and programs ------------------------------------------------------------

    def expect(self, program: ProgramShape) -> None:
        self._laws.add(program)

    def program_started(self, live: LiveProgram) -> None:
        live.row.size_hint = live.shape.hint_tokens
        self._needs_s[live.row.program_id] = live.shape.output_tokens * self.step_s

    def submit(self, live: LiveProgram, index: int) -> None:
        shape, call_id = live.shape.calls[index], live.call_id(index)
        engine = self.engines[self._route(live, index) if self._replicas else 0]
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
        """Return the program of a row in the form for an engine, with its service elsewhere."""
        table = engine.core.table
        program = table.get(row.program_id) or table.start_program(
            row.program_id, row.type, self.now, tenant=row.tenant, session=row.session
        )
        program.size_hint = row.size_hint
        table.catch_up(program, row.service_s, row.path_s, row.waiting_s)
        return program

    def _route(self, live: LiveProgram, index: int) -> int:
        assert self._replicas is not None
        call = live.shape.calls[index]
        question = RouterCall(
            live.row.program_id,
            max(1, call.prompt_tokens),
            attained_s=live.path_s[index],
            kind=f"{live.shape.type}/{call.node}",
        )
        return self._replicas.send(live.call_id(index), question)

    def call_ended(self, live: LiveProgram, index: int, report: CallReport) -> None:
        if self._replicas:
            self._replicas.ended(live.call_id(index), report)

    def program_ended(self, live: LiveProgram) -> None:
        program_id = live.row.program_id
        served = self.engines
        if self._replicas:
            served = [self.engines[index] for index in self._replicas.served(program_id)]
            self._replicas.program_ended(program_id)
        for engine in served:
            engine.core.handle(ProgramEnded(ProgramTotals.of(live.row), self.now))
        del self._needs_s[program_id]

    # -- called by the engines ---------------------------------------------------------

    def when(self, step: int, action: Callable[[], None]) -> None:
        """Call ``action`` at a step."""
        self._serial += 1
        heapq.heappush(self._due, (step, self._serial, action))

    def touch(self, engine: Slots) -> None:
        """Let the engine choose its running calls at this moment."""
        self._touched[engine] = None

    def served(self, engine: Slots) -> None:
        """Let the engine end the service of calls at this moment."""
        self._served[engine] = None
        self.touch(engine)

    def leave(self, engine: Slots, call: QueuedCall) -> None:
        """Handle the end of a call, after its engine did."""
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


def _nobody(live: LiveProgram, index: int, report: CallReport) -> None:
    """Do nothing; replaced at the first moment."""


def _routed(
    config: SchedulerConfig, router: str, count: int, batch: int, step_s: float
) -> Replicas:
    # In this simulator, prompts cost nothing, and other calls do not slow a call down.
    speed = Speed(step_s, beside_s=0.0, prefill_s=0.0)
    ends = level_ends(config) if config.policy not in KNOWING else ()
    return Replicas(router, count, batch, ends, speed)


def _fresh_tokens(program: ProgramShape, call: CallShape) -> int:
    """Return the number of prompt tokens that no earlier call of the program has computed."""
    if call.extends is None:
        return call.prompt_tokens
    parent = program.calls[call.extends]
    return max(1, call.prompt_tokens - parent.prompt_tokens - parent.output_tokens)
