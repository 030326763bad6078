"""Drives shapes of programs over a backend: the one loop behind every study and benchmark.

Programs arrive; a call is emitted when its parents are done and its gap is over, and carries the
program's account so far and its own critical path; each program's end is an `Outcome`.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence

from agentrt.errors import InvariantError
from agentrt.lab.backends.base import Backend
from agentrt.lab.backends.gates import Gate
from agentrt.lab.outcome import Outcome, Ran
from agentrt.lab.program import LiveProgram
from agentrt.lab.workloads.shape import ProgramShape
from agentrt.request import CallReport
from agentrt.scheduler.programs import ProgramStats
from agentrt.scheduler.table import ProcessTable

_CALL, _PROGRAM = range(2)
"""What comes first at one moment: calls after their gaps, then programs."""
_TAIL = -1
"""In place of a call's index: a program's end after its last call."""


def drive(backend: Backend, programs: Sequence[ProgramShape], gate: Gate | None = None) -> Ran:
    """Run all programs to their end, in the backend's own time."""
    driver = Driver(backend, programs, gate)
    while driver.advance(backend.next_moment(driver.next_arrival)):
        pass
    return driver.result()


class Driver:
    """Takes programs' calls to a backend when they are due, and the calls' ends back.

    A ``gate`` before the backend holds calls back until it lets their programs go on.
    """

    def __init__(
        self, backend: Backend, programs: Sequence[ProgramShape], gate: Gate | None = None
    ) -> None:
        self.outcomes: list[Outcome] = []
        self.table = ProcessTable(ProgramStats)
        self._backend = backend
        self._gate = gate
        self._held: dict[str, list[tuple[LiveProgram, int]]] = {}
        self._next_tick_s = gate.every_s if gate else math.inf
        self._moment = 0.0
        # (moment, kind, serial number, program, index of its call): the program may be new.
        self._coming: list[tuple[float, int, int, ProgramShape | LiveProgram, int]] = []
        self._serial = 0
        for program in sorted(programs, key=lambda program: program.arrives_s):
            backend.expect(program)
            self._expect(backend.moments(program.arrives_s), program)

    @property
    def next_arrival(self) -> float:
        """When the next call or program comes, or the gate may free one; inf if nothing will."""
        tick = self._backend.moments(self._next_tick_s) if self._held else math.inf
        return min(tick, self._coming[0][0] if self._coming else math.inf)

    def advance(self, moment: float) -> bool:
        """All that happens at a moment. False when nothing is to happen any more."""
        if moment == math.inf:
            return False
        self._moment = moment
        # Who follows on another's end alone comes once the free slots are given out.
        arrives = self.next_arrival <= moment or not self._backend.same_moment
        self._backend.serve(moment, self.call_ended)
        self._tick()
        while arrives and self._coming and self._coming[0][0] <= moment:
            at, _, _, what, index = heapq.heappop(self._coming)
            if isinstance(what, LiveProgram) and index == _TAIL:
                self._tell_tail(what, "returned")
                self._end(what, at)
            elif isinstance(what, LiveProgram):
                self._emit(what, index)
            else:
                self._start(what, at)
        self._backend.choose()
        return True

    def result(self) -> Ran:
        """What came of it. Raises `InvariantError` if programs are left that cannot go on."""
        if len(self.table):
            raise InvariantError(f"{len(self.table)} programs are stuck at {self._moment}")
        return Ran(self.outcomes, self._backend.counts, self._backend.busy_s)

    @property
    def _now_s(self) -> float:
        return self._backend.seconds(self._moment)

    def _expect(self, moment: float, what: ProgramShape | LiveProgram, index: int = 0) -> None:
        self._serial += 1
        kind = _CALL if isinstance(what, LiveProgram) else _PROGRAM
        heapq.heappush(self._coming, (moment, kind, self._serial, what, index))

    def _start(self, program: ProgramShape, at: float) -> None:
        backend = self._backend
        row = self.table.start_program(
            f"{program.program_id}{backend.run_name}",
            program.type,
            self._now_s,
            tenant=program.tenant,
        )
        live = LiveProgram(program, row, backend.seconds(at), backend.words)
        backend.program_started(live)
        for index in live.first():
            self._ready(live, index, at)

    def _ready(self, live: LiveProgram, index: int, since: float) -> None:
        """Nothing but its gap holds a call back."""
        gap = self._backend.moments(live.shape.calls[index].gap_s)
        if not gap and self._backend.same_moment:
            self._emit(live, index)
        else:
            self._expect(since + gap, live, index)

    def _emit(self, live: LiveProgram, index: int) -> None:
        """What the runtime does when a program calls its model."""
        self.table.call_arrived(live.row, live.call_id(index), self._now_s)
        self._tell(live, index, ("returned", "answered"))
        name = live.row.program_id
        if self._gate and not self._gate.called(name, len(live.prompt(index)), self._now_s):
            self._held.setdefault(name, []).append((live, index))
        else:
            self._backend.submit(live, index)

    def _tick(self) -> None:
        """Ask the gate as often as it wants to be asked."""
        while self._gate and self._next_tick_s <= self._now_s:
            self._free(self._gate.tick(self._next_tick_s))
            self._next_tick_s += self._gate.every_s

    def _free(self, programs: Iterable[str]) -> None:
        """The gate lets these go on."""
        for program_id in programs:
            for live, index in self._held.pop(program_id, ()):
                self._backend.submit(live, index)

    def call_ended(self, live: LiveProgram, index: int, report: CallReport) -> None:
        """A call ended; its children come, or its program ends."""
        row = live.row
        name, path_s, now = live.call_id(index), live.path_s[index], self._now_s
        self.table.call_ended(row, name, now, path_s, report.service_s, report.waiting_s, report)
        live.call_ended(index, report)
        self._backend.call_ended(live, index, report)
        if self._gate:
            tokens = len(live.prompt(index)) + live.shape.calls[index].output_tokens
            self._gate.answered(row.program_id, tokens, now)
        for child in live.ready_after(index):
            self._tell(live, child, ("tool", "human"))
            self._ready(live, child, self._moment)
        if live.ended and live.shape.tail_s:
            self._tell_tail(live, "tool")
            self._expect(self._moment + self._backend.moments(live.shape.tail_s), live, _TAIL)
        elif live.ended:
            self._end(live, self._moment)

    def _end(self, live: LiveProgram, at: float) -> None:
        self.table.end_program(live.row.program_id)
        self._backend.program_ended(live)
        if self._gate:
            self._free(self._gate.ended(live.row.program_id))
        ended_s, ideal_s = self._backend.seconds(at), self._backend.ideal_s(live.shape)
        self.outcomes.append(Outcome.of(live.shape, live.arrived_s, ended_s, live.reports, ideal_s))

    def _tell(self, live: LiveProgram, index: int, what: tuple[str, str]) -> None:
        """Tell the engine that the tool or the human before a call begins, or is done."""
        call = live.shape.calls[index]
        if call.after and call.gap_s > 0:
            self._backend.boundary(live.row.program_id, what[call.human], call.tool or "tool")

    def _tell_tail(self, live: LiveProgram, what: str) -> None:
        if live.shape.tail_tool:
            self._backend.boundary(live.row.program_id, what, live.shape.tail_tool)
