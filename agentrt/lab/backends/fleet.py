"""Several virtual engines in one virtual time, behind the real router.

Each engine is vLLM's scheduler over a KV cache of its own, and tells what it holds by its KV
events. An engine's step begins when the one before it has ended; what arrives in between
is let in before the next.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from agentrt.lab.driver import Driver, Progress
from agentrt.lab.engine.counts import EngineCounts, sum_counts
from agentrt.lab.engine.step_time import StepTimeModel
from agentrt.lab.engine.virtual import VirtualEngine, VirtualOptions
from agentrt.lab.outcome import Outcome
from agentrt.lab.workloads.arrivals import Arrivals, Open
from agentrt.lab.workloads.shape import ProgramShape
from agentrt.request import Call, CallReport
from agentrt.router import Dispatcher, ReplicaView, RouterCall, Trip, make_router
from agentrt.router.kv_events import KVEventBatch, KVEventStream, short
from agentrt.scheduler.config import SchedulerConfig
from agentrt.scheduler.policies import level_ends
from agentrt.scheduler.table import ProgramTotals

_DONE, _ARRIVAL, _BEGIN = range(3)
"""What comes first at one moment: a step's end, what arrives, the next step."""


@dataclass(frozen=True, slots=True)
class FleetRun:
    """What came of a run on several engines: its programs, each engine's counts and busy time."""

    outcomes: list[Outcome]
    counts: list[EngineCounts]
    busy_s: list[float]
    routed: list[int]

    @property
    def total(self) -> EngineCounts:
        """What the engines counted, together."""
        return sum_counts(self.counts)


@dataclass(slots=True, eq=False)
class _Lane:
    """An engine, what the router sees of it, and its calls under way."""

    engine: VirtualEngine
    view: ReplicaView
    stream: KVEventStream = field(default_factory=KVEventStream)
    trips: dict[str, Trip] = field(default_factory=dict)
    programs: set[str] = field(default_factory=set)
    reports: dict[str, CallReport] = field(default_factory=dict)
    routed: int = 0
    awake: bool = False


def run_fleet(
    programs: Sequence[ProgramShape] | Arrivals,
    config: SchedulerConfig,
    *,
    replicas: int,
    router: str,
    engine: VirtualOptions | None = None,
    step_time: StepTimeModel | None = None,
    progress: Progress | None = None,
) -> FleetRun:
    """Run all programs to their end on so many virtual engines, all alike.

    Raises `ConfigError` for a router that there is not, and a call that does not fit an engine.
    """
    arrivals = Open(programs) if isinstance(programs, Sequence) else programs
    options, times = engine or VirtualOptions(), step_time or StepTimeModel()
    dispatcher = Dispatcher(make_router(router), level_ends(config))
    return _Fleet(arrivals, config, options, times, dispatcher, replicas).run(progress)


class _Fleet(Driver):
    """Drives programs over several engines."""

    def __init__(
        self,
        arrivals: Arrivals,
        config: SchedulerConfig,
        options: VirtualOptions,
        step_time: StepTimeModel,
        dispatcher: Dispatcher,
        replicas: int,
    ) -> None:
        super().__init__(arrivals, options, step_time)
        self._dispatcher = dispatcher
        self._now = 0.0
        self._due: list[tuple[float, int, int, _Lane]] = []
        reads = dispatcher.router.reads_blocks
        self._lanes = [
            _Lane(
                VirtualEngine(config, options, step_time, kv_events=reads),
                dispatcher.join(f"replica-{index}", options.max_num_seqs),
            )
            for index in range(replicas)
        ]
        for lane in self._lanes if reads else ():
            lane.stream.take(KVEventBatch.from_wire(lane.engine.scheduler.control("held")))
        self._by_name = {lane.view.name: lane for lane in self._lanes}
        self._views = [lane.view for lane in self._lanes]

    @property
    def now(self) -> float:
        return self._now

    def run(self, progress: Progress | None) -> FleetRun:
        self._welcome(self._arrivals.first())
        told = 0
        while self._coming or self._due:
            if self._coming and self._arrival_is_next():
                self._now = max(self._now, self._coming[0][0])
                self._arrive()
                continue
            self._now, what, _, lane = heapq.heappop(self._due)
            if what == _BEGIN:
                self._begin(lane)
            else:
                self._done(lane)
            if progress is not None and len(self.outcomes) > told:
                told = len(self.outcomes)
                progress(told, self._known)
        lanes = self._lanes
        return FleetRun(
            self.outcomes,
            [lane.engine.counts for lane in lanes],
            [lane.engine.busy_s for lane in lanes],
            [lane.routed for lane in lanes],
        )

    def _arrival_is_next(self) -> bool:
        return not self._due or (self._coming[0][0], _ARRIVAL) < self._due[0][:2]

    def _when(self, at: float, what: int, lane: _Lane) -> None:
        self._serial += 1
        heapq.heappush(self._due, (at, what, self._serial, lane))

    # -- engines -----------------------------------------------------------------------

    def _begin(self, lane: _Lane) -> None:
        """Take a step now, whose outcome is known to the others when it is over."""
        lane.reports = lane.engine.step()
        self._when(lane.engine.now, _DONE, lane)

    def _done(self, lane: _Lane) -> None:
        for note in lane.engine.held:
            self._heard(lane, note)
        reports, lane.reports = lane.reports, {}
        for call_id, report in reports.items():
            self._dispatcher.ended(lane.trips.pop(call_id), report)
        for call_id, report in reports.items():
            self._ended(call_id, report)
        lane.awake = lane.engine.busy
        if lane.awake:
            self._when(self._now, _BEGIN, lane)

    def _heard(self, lane: _Lane, note: KVEventBatch) -> None:
        for ready in lane.stream.take(note):
            self._dispatcher.cache_changed(lane.view, ready)

    # -- programs ----------------------------------------------------------------------

    def _submit(self, call: Call, prompt: Sequence[int]) -> None:
        request = self._lanes[0].engine.prepare(call, prompt)
        question = RouterCall(
            program_id=call.program_id,
            prompt_tokens=len(prompt),
            attained_s=call.identity.attained_s,
            kind=f"{call.identity.program_type}/{call.identity.node}",
            block_size=self._options.block_size,
            blocks=partial(_hashes, request.block_hashes),
        )
        trip = self._dispatcher.send(question, self._views)
        lane = self._by_name[trip.replica.name]
        lane.trips[call.call_id] = trip
        lane.programs.add(call.program_id)
        lane.routed += 1
        if not lane.engine.busy:
            lane.engine.wait_until(self._now)
        lane.engine.submit(request)
        if not lane.awake:
            lane.awake = True
            self._when(self._now, _BEGIN, lane)

    def _boundary(self, program_id: str, what: str, name: str) -> None:
        for lane in self._lanes:
            if program_id in lane.programs:
                lane.engine.boundary(program_id, what, name)

    def _forget(self, totals: ProgramTotals) -> None:
        self._dispatcher.program_ended(totals.program_id)
        for lane in self._lanes:
            if totals.program_id in lane.programs:
                lane.programs.discard(totals.program_id)
                lane.engine.end_program(totals)


def _hashes(block_hashes: Sequence[bytes]) -> list[int]:
    return [short(value) for value in block_hashes]
