"""The driver, which runs the shapes of programs on a backend. Most studies and benchmarks use it.

Programs arrive at the times in their shapes. A call is emitted when its parents have ended and its
gap is over. With the call, the backend gets the attained service of the program, and the length of
the call's critical path. Each program ends with an `Outcome`.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

from agentrt.errors import InvariantError
from agentrt.lab.backends.base import Backend
from agentrt.lab.outcome import Outcome, RunOutcome
from agentrt.lab.program import LiveProgram
from agentrt.lab.workloads.shape import ProgramShape
from agentrt.request import CallReport
from agentrt.scheduler.programs import ProgramStats
from agentrt.scheduler.table import ProcessTable

_CALL, _PROGRAM = range(2)
"""The order of arrivals at the same moment: calls whose gap is over come before new programs."""
_TAIL = -1
"""The index that stands for a program's end after its last call."""


def drive(backend: Backend, programs: Sequence[ProgramShape]) -> RunOutcome:
    """Run all programs to their end, in the backend's time. Raises `InvariantError` if a program
    cannot continue.
    """
    driver = Driver(backend, programs)
    while driver.advance(backend.next_moment(driver.next_arrival)):
        pass
    return driver.result()


class Driver:
    """A driver, which submits the calls of programs to a backend when they are due, and handles the
    ends of calls.
    """

    def __init__(self, backend: Backend, programs: Sequence[ProgramShape]) -> None:
        self.outcomes: list[Outcome] = []
        self.table = ProcessTable(ProgramStats)
        self._backend = backend
        self._moment = 0.0
        # (moment, kind, serial number, new or live program, index of its call)
        self._coming: list[tuple[float, int, int, ProgramShape | LiveProgram, int]] = []
        self._serial = 0
        for program in sorted(programs, key=lambda program: program.arrives_s):
            backend.expect(program)
            self._expect(backend.moments(program.arrives_s), program)

    @property
    def next_arrival(self) -> float:
        """The moment at which the next call or program arrives; infinity if there is none."""
        return self._coming[0][0] if self._coming else math.inf

    def advance(self, moment: float) -> bool:
        """Do all that happens at a moment. Return False when nothing is left to do."""
        if moment == math.inf:
            return False
        self._moment = moment
        # If calls arrive now only because other calls end now, they arrive after the free slots are
        # assigned.
        arrives = self.next_arrival <= moment or not self._backend.same_moment
        self._backend.serve(moment, self.call_ended)
        while arrives and self._coming and self._coming[0][0] <= moment:
            at, _, _, item, index = heapq.heappop(self._coming)
            if isinstance(item, LiveProgram) and index == _TAIL:
                self._tell_tail(item, "returned")
                self._end(item, at)
            elif isinstance(item, LiveProgram):
                self._emit(item, index)
            else:
                self._start(item, at)
        self._backend.choose()
        return True

    def result(self) -> RunOutcome:
        """Return the outcomes. Raises `InvariantError` if a program cannot continue."""
        if len(self.table):
            raise InvariantError(
                f"the simulation stopped at moment {self._moment:g}, but {len(self.table)} "
                "programs have not ended"
            )
        return RunOutcome(self.outcomes, self._backend.counts, self._backend.busy_s)

    @property
    def _now_s(self) -> float:
        return self._backend.seconds(self._moment)

    def _expect(self, moment: float, item: ProgramShape | LiveProgram, index: int = 0) -> None:
        self._serial += 1
        kind = _CALL if isinstance(item, LiveProgram) else _PROGRAM
        heapq.heappush(self._coming, (moment, kind, self._serial, item, index))

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
        """Emit a call whose parents have ended, after the gap before the call."""
        gap = self._backend.moments(live.shape.calls[index].gap_s)
        if not gap and self._backend.same_moment:
            self._emit(live, index)
        else:
            self._expect(since + gap, live, index)

    def _emit(self, live: LiveProgram, index: int) -> None:
        """Emit a call as the runtime does when a program calls its model."""
        self.table.call_arrived(live.row, live.call_id(index), self._now_s)
        self._tell(live, index, ("returned", "answered"))
        self._backend.submit(live, index)

    def call_ended(self, live: LiveProgram, index: int, report: CallReport) -> None:
        """Handle the end of a call: start its children, or end its program."""
        row = live.row
        name, path_s, now = live.call_id(index), live.path_s[index], self._now_s
        self.table.call_ended(row, name, now, path_s, report.service_s, report.waiting_s, report)
        live.call_ended(index, report)
        self._backend.call_ended(live, index, report)
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
        ended_s, ideal_s = self._backend.seconds(at), self._backend.ideal_s(live.shape)
        self.outcomes.append(Outcome.of(live.shape, live.arrived_s, ended_s, live.reports, ideal_s))

    def _tell(self, live: LiveProgram, index: int, changes: tuple[str, str]) -> None:
        """Tell the backend that the program's wait for a tool or a human before a call begins or
        has ended.
        """
        call = live.shape.calls[index]
        if call.after and call.gap_s > 0:
            self._backend.boundary(live.row.program_id, changes[call.human], call.tool or "tool")

    def _tell_tail(self, live: LiveProgram, change: str) -> None:
        if live.shape.tail_tool:
            self._backend.boundary(live.row.program_id, change, live.shape.tail_tool)
