"""The step simulator: programs on B batch slots, in virtual time, without a model.

Every step of continuous batching takes ``step_s`` and gives each running call one
token; memory and prefill are left out. The queues, the table, the policies and the router are
the real ones. Between two events (an arrival, an end, a budget used up, a starved call)
nothing changes, so the simulator jumps from event to event; it decides exactly as one
that visits every step. At one moment calls end, best first, each followed by its
successors; then calls with no budget left sink, calls come after their gaps, programs
arrive; and then it is decided who runs. Several engines share the time and the table.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from agentrt.errors import InvariantError
from agentrt.lab.backends.live import Job, Live, fresh_tokens
from agentrt.lab.backends.slots import CALL, PROGRAM, SERVED, Slots, step_of
from agentrt.lab.gittins import Laws
from agentrt.lab.oracles import KNOWING, make_policy
from agentrt.lab.outcome import Outcome
from agentrt.lab.workloads.arrivals import Arrivals, Open
from agentrt.lab.workloads.shape import ProgramShape
from agentrt.request import CallReport
from agentrt.router import Dispatcher, RouterCall, make_router
from agentrt.router.speed import Speed
from agentrt.scheduler.call import QueuedCall
from agentrt.scheduler.config import SchedulerConfig
from agentrt.scheduler.policies import level_ends
from agentrt.scheduler.table import ProcessTable


@dataclass(frozen=True, slots=True)
class SimResult:
    """The programs in the order of their ends, and how much there was to do.

    ``busy_s`` are the seconds that each engine's slots have served, all together; ``most_live``
    is how many programs were under way at a time.
    """

    outcomes: list[Outcome]
    steps: int
    events: int
    preemptions: int
    busy_s: tuple[float, ...] = ()
    most_live: int = 0


class Simulator:
    """``replicas`` engines of ``batch`` slots each, behind a router if there are several.

    `run` runs programs to their end.
    """

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
        self.now = 0.0
        self.at = 0
        self.table = ProcessTable()
        self.outcomes: list[Outcome] = []
        self.live: dict[str, Live] = {}
        self._laws = Laws(step_s)
        self.engines = [
            Slots(self, config, make_policy(config, self.remaining_s, self._laws), batch, index)
            for index in range(replicas)
        ]
        self._router = _Routed(config, router, self.engines, step_s) if replicas > 1 else None
        self._events: list[tuple[int, int, int, Callable[[], None]]] = []
        self._touched: dict[Slots, None] = {}
        self._served: dict[Slots, None] = {}
        self._serial = 0
        self._done = 0
        self._most_live = 0
        self._arrivals: Arrivals = Open(())

    def run(self, arrivals: Arrivals, progress: Callable[[int], None] | None = None) -> SimResult:
        """Run all programs to their end; ``progress`` hears how many have ended."""
        self._arrivals = arrivals
        self._expect(arrivals.first())
        while self._events:
            self.at = self._events[0][0]
            self.now = self.at * self.step_s
            self._happen()
            self._choose()
            if progress is not None:
                progress(len(self.outcomes))
        if len(self.table) or any(engine.running for engine in self.engines):
            raise InvariantError(f"{len(self.table)} programs are stuck at step {self.at}")
        return SimResult(
            self.outcomes,
            self.at,
            self._done,
            sum(o.preemptions for o in self.outcomes),
            tuple(engine.busy_steps * self.step_s for engine in self.engines),
            self._most_live,
        )

    def remaining_s(self, program_id: str) -> float:
        """What a clairvoyant knows: the seconds of service that a program still needs."""
        live = self.live[program_id]
        return live.left_s - (live.row.attained_s - live.row.service_s)

    # -- events ------------------------------------------------------------------------

    def _happen(self) -> None:
        """All that happens at this step, in the order of `SERVED`, `CALL`, `PROGRAM`."""
        while self._events and self._events[0][0] == self.at:
            _, kind, _, what = heapq.heappop(self._events)
            if kind != SERVED:
                self._serve()
            what()
            self._done += 1
        self._serve()

    def _serve(self) -> None:
        if self._served:
            served, self._served = self._served, {}
            for engine in served:
                engine.serve()

    def _choose(self) -> None:
        touched, self._touched = self._touched, {}
        for engine in touched if self._router else self.engines:
            engine.choose()

    def when(self, step: int, kind: int, what: Callable[[], None]) -> None:
        self._serial += 1
        heapq.heappush(self._events, (max(step, self.at), kind, self._serial, what))

    def touch(self, engine: Slots) -> None:
        self._touched[engine] = None

    def served(self, engine: Slots) -> None:
        self._served[engine] = None
        self._touched[engine] = None

    # -- programs ----------------------------------------------------------------------

    def _expect(self, shapes: Sequence[ProgramShape]) -> None:
        for shape in shapes:
            self._laws.add(shape)
            at = step_of(shape.arrives_s, self.step_s)
            self.when(at, PROGRAM, partial(self._arrive, shape))

    def _arrive(self, shape: ProgramShape) -> None:
        row = self.table.start_program(
            shape.program_id, shape.type, self.now, tenant=shape.tenant, session=shape.session
        )
        row.size_hint = shape.hint_tokens
        live = self.live[shape.program_id] = Live.of(shape, row, self.step_s)
        self._most_live = max(self._most_live, len(self.live))
        for index, call in enumerate(shape.calls):
            if not call.after:
                self._ready(live, index)

    def _ready(self, live: Live, index: int) -> None:
        gap = step_of(live.shape.calls[index].gap_s, self.step_s)
        if gap:
            self.when(self.at + gap, CALL, lambda: self._emit(live, index))
        else:
            self._emit(live, index)

    def _emit(self, live: Live, index: int) -> None:
        shape = live.shape.calls[index]
        call_id = f"{live.shape.program_id}/{index}"
        self.table.call_arrived(live.row, call_id, self.now)
        job = Job(live, index, shape.output_tokens)
        path_s = live.path_s[index]
        engine = self._router.send(job, path_s) if self._router else self.engines[0]
        engine.queues.put(
            engine.queues.add(
                call_id,
                live.row,
                job,
                path_s,
                self.now,
                node=shape.node,
                prompt_tokens=fresh_tokens(live.shape, shape),
            )
        )
        self.touch(engine)

    def call_ended(self, engine: Slots, call: QueuedCall) -> None:
        job: Job = call.item
        live = job.live
        report = CallReport(
            service_s=call.served_s,
            waiting_s=call.waited_s,
            steps=call.steps,
            output_tokens=live.shape.calls[job.index].output_tokens,
        )
        self.table.call_ended(live.row, call.call_id, self.now, call.path_s, report)
        if self._router:
            self._router.ended(job, report)
        live.left_s -= call.served_s
        live.waiting_s += call.waited_s
        live.preemptions += call.preemptions
        live.unfinished -= 1
        engine.queues.call_ended(call, self.now)
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
        served = self._router.program_ended(shape.program_id) if self._router else self.engines
        for engine in served:
            engine.queues.program_ended(live.row, self.now)
        del self.live[shape.program_id]
        self.outcomes.append(_outcome(live, self.now, self.step_s))
        self._expect(self._arrivals.after_end(shape.program_id, self.now))


class _Routed:
    """The router of several engines, and which of them have served whom."""

    def __init__(
        self, config: SchedulerConfig, router: str, engines: Sequence[Slots], step_s: float
    ) -> None:
        ends = level_ends(config) if config.policy not in KNOWING else ()
        # Here prompts cost nothing, and a call is no slower for those beside it.
        speed = Speed(step_s, beside_s=0.0, prefill_s=0.0)
        self._dispatcher = Dispatcher(make_router(router), ends, speed)
        self._engines = engines
        self._views = [
            self._dispatcher.join(f"replica-{engine.index}", engine.batch) for engine in engines
        ]
        self._served: dict[str, dict[Slots, None]] = {}

    def send(self, job: Job, path_s: float) -> Slots:
        """The engine that a call goes to."""
        shape, call = job.live.shape, job.live.shape.calls[job.index]
        question = RouterCall(
            shape.program_id,
            max(1, call.prompt_tokens),
            attained_s=path_s,
            kind=f"{shape.type}/{call.node}",
        )
        job.trip = self._dispatcher.send(question, self._views)
        engine = self._engines[job.trip.replica.index]
        self._served.setdefault(shape.program_id, {})[engine] = None
        return engine

    def ended(self, job: Job, report: CallReport) -> None:
        """A call has ended."""
        if job.trip is not None:
            self._dispatcher.ended(job.trip, report)

    def program_ended(self, program_id: str) -> dict[Slots, None]:
        """The program has ended. The engines that have served it."""
        self._dispatcher.program_ended(program_id)
        return self._served.pop(program_id, {})


def _outcome(live: Live, now: float, step_s: float) -> Outcome:
    shape = live.shape
    return Outcome(
        program_id=shape.program_id,
        type=shape.type,
        tenant=shape.tenant,
        arrived_s=live.row.started_at,
        ended_s=now,
        ideal_s=shape.ideal_s(step_s),
        output_tokens=shape.output_tokens,
        service_s=live.row.service_s,
        waiting_s=live.waiting_s,
        tool_s=sum(call.gap_s for call in shape.calls),
        preemptions=live.preemptions,
    )


def simulate(
    programs: Sequence[ProgramShape] | Arrivals,
    config: SchedulerConfig,
    *,
    batch: int,
    step_s: float,
    replicas: int = 1,
    router: str = "round-robin",
    progress: Callable[[int], None] | None = None,
) -> SimResult:
    """Run programs on simulated engines of ``batch`` slots, ``step_s`` seconds a step."""
    arrivals = Open(programs) if isinstance(programs, Sequence) else programs
    simulator = Simulator(config, batch, step_s, replicas=replicas, router=router)
    return simulator.run(arrivals, progress)
