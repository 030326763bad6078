"""The process table, which has a row for each live program (Agentix, §4.2.1).

Pure and synchronous. The runtime keeps a table over all engines, and each engine core a table of
the programs whose calls it runs. Times are seconds. ``now`` is the time on the caller's clock,
which must not run backwards.

The service of an ended call reaches the priority of its program's next call in these steps, from
the engine core to the runtime and back. The modules are relative to `agentrt`:

1. In the engine core, vLLM calls `ProgramScheduler._connector_finished` for the ended request
   (`executors.vllm.engine_core.scheduler`). `SchedulerCore.handle` gets a `CallFinished`, and adds
   the service to the program's row in the core's table (`call_ended`). The call's last output takes
   a report along (`report_of` in `executors.vllm.reports`).
2. In the program's process, `VLLMEngine.generate` reads the report (`executors.vllm.engine`), and
   `RunCaller.chunks` passes it on (`runtime.emitter`) to `RunRegistry.end_call`
   (`runtime.run`). This method adds the service to the node in the program's DAG, and to the
   row in the runtime's table (`call_ended`).
3. For the program's next call, `RunRegistry.begin_call` opens a node, and the DAG computes the
   service on the longest path to it (`graph.dag`). `identity_of` (`runtime.run`) puts this
   service and the values of the row into the call's `Identity`, which `engine_input`
   (`executors.vllm.calls`) puts into vLLM's request.
4. The call may arrive in another engine core than the program's last call. There,
   `ProgramScheduler._call_arrived` raises the values of the row in the core's table to those of the
   `Identity` (`EngineProgram.catch_up`). Then `SchedulerCore.handle` gets a `CallArrived`, and the
   policy ranks the call.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Generic, NamedTuple, Self, TypeVar

from agentrt.errors import InvariantError
from agentrt.request import Usage
from agentrt.scheduler.programs import ProgramStats
from agentrt.scheduler.state import EngineProgram

ProgramT = TypeVar("ProgramT", bound=ProgramStats)


class ProgramState(StrEnum):
    """The state of a live program. A program with a call in the engine and a running tool counts as
    running.
    """

    RUNNING = "running"
    IN_TOOL = "in tool"
    WAITING_FOR_EVENT = "waiting for an event"
    WAITING_FOR_HUMAN = "waiting for a human"
    STALE = "stale"


def state_of(row: ProgramStats, now: float, stale_after_s: float) -> ProgramState:
    """Return the state of a program at ``now``."""
    if row.calls:
        return ProgramState.RUNNING
    if row.tools:
        return ProgramState.IN_TOOL
    if row.events:
        return ProgramState.WAITING_FOR_EVENT
    if row.humans:
        return ProgramState.WAITING_FOR_HUMAN
    if now - last_heard(row) >= stale_after_s:
        return ProgramState.STALE
    return ProgramState.RUNNING


class ProgramTotals(NamedTuple):
    """The size of an ended program, from its row in the runtime's process table. If a single
    request belongs to no program, its size comes from the engine's own row.

    Policies learn the sizes of programs from these totals and not from an engine's own row. An
    engine knows the service in other engines only up to the program's last call in this engine.
    """

    program_id: str
    type: str
    tenant: str = "default"
    size_hint: float | None = None
    service_s: float = 0.0

    @classmethod
    def of(cls, row: ProgramStats) -> Self:
        """Return the totals of a row."""
        return cls(row.program_id, row.type, row.tenant, row.size_hint, row.service_s)

    def row(self) -> EngineProgram:
        """Make a row with these totals, for an engine that has no row of the program."""
        row = EngineProgram(self.program_id, self.type, self.tenant, size_hint=self.size_hint)
        row.service_s = row.attained_s = self.service_s
        return row


class ProcessTable(Generic[ProgramT]):
    """The rows of live programs by their ids. The row whose last event is longest ago comes first.

    ``row_type`` is the class of the rows.
    """

    def __init__(self, row_type: type[ProgramT]) -> None:
        self._row_type = row_type
        # Each event moves a row to the end of the dict, so that stale rows are at the front and are
        # found without a scan.
        self._rows: dict[str, ProgramT] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, program_id: object) -> bool:
        return program_id in self._rows

    def __iter__(self) -> Iterator[ProgramT]:
        return iter(list(self._rows.values()))

    def get(self, program_id: str) -> ProgramT | None:
        """Return the row of a live program, or None."""
        return self._rows.get(program_id)

    def start_program(
        self,
        program_id: str,
        type: str,
        now: float,
        *,
        tenant: str = "default",
        session: str | None = None,
    ) -> ProgramT:
        """Add a row. Raises `InvariantError` if the program is already live."""
        if program_id in self._rows:
            raise InvariantError(f"program {program_id} is already in the process table")
        row = self._row_type(program_id, type, tenant, session, started_at=now, last_arrival=now)
        self._rows[program_id] = row
        return row

    def end_program(self, program_id: str) -> ProgramT | None:
        """Remove a program's row, in any state, and return it; None if there is no row."""
        row = self._rows.pop(program_id, None)
        if row is not None:
            row.ended = True
        return row

    def call_arrived(self, row: ProgramT, call_id: str, now: float) -> None:
        """Record the arrival of a call."""
        row.calls[call_id] = now
        row.last_arrival = now
        self._touch(row)

    def call_ended(
        self,
        row: ProgramT,
        call_id: str,
        now: float,
        path_s: float | None,
        service_s: float,
        waiting_s: float,
        usage: Usage | None = None,
    ) -> None:
        """Record that a call completed, failed or was aborted. If ``usage`` is set, add it to the
        row.

        ``path_s`` is p(c) of Eq. 2 in the Agentix paper, in seconds. If it is None because the
        call's parents are unknown, the longest path of the program so far is used instead (Alg. 1,
        line 4).
        """
        row.calls.pop(call_id, None)
        start = row.path_s if path_s is None else path_s
        row.path_s = max(row.path_s, start + service_s)
        row.service_s += service_s
        row.waiting_s += waiting_s
        row.finished_calls += 1
        if usage is not None:
            row.usage += usage
        row.last_completion = now
        self._touch(row)

    def interrupt_started(self, row: ProgramT, now: float, kind: str) -> None:
        """Record the start of a ``tool``, of a question to a ``human``, or of a wait for an
        ``event``.
        """
        self._count_interrupt(row, kind, 1)
        row.last_arrival = now
        self._touch(row)

    def interrupt_ended(self, row: ProgramT, now: float, kind: str, *, seconds: float) -> None:
        """Record the end of an interrupt that took ``seconds``."""
        self._count_interrupt(row, kind, -1)
        row.interrupt_s += seconds
        row.last_completion = now
        self._touch(row)

    @staticmethod
    def _count_interrupt(row: ProgramT, kind: str, by: int) -> None:
        if kind == "human":
            row.humans += by
        elif kind == "event":
            row.events += by
        else:
            row.tools += by

    def stale(self, now: float, stale_after_s: float, *, in_tools: bool = False) -> list[ProgramT]:
        """Return the rows that have no active call and had no event for ``stale_after_s`` seconds.

        With ``in_tools``, also return rows that wait for a tool, a human or an event. The method
        looks only at stale rows, so it may be called often.
        """
        stale_rows: list[ProgramT] = []
        for row in self._rows.values():
            if now - last_heard(row) < stale_after_s:
                break
            if not (row.calls or (not in_tools and (row.tools or row.humans or row.events))):
                stale_rows.append(row)
        return stale_rows

    def check_integrity(self) -> None:
        """Raise `InvariantError` if the table is inconsistent. For tests."""
        for program_id, row in self._rows.items():
            if row.program_id != program_id:
                raise InvariantError(f"the row of {row.program_id} has the key {program_id}")
            if min(row.tools, row.humans, row.events) < 0:
                raise InvariantError(f"program {program_id} has ended more interrupts than started")
            if row.path_s > row.service_s + 1e-6:
                raise InvariantError(f"program {program_id} has a path longer than its service")

    def _touch(self, row: ProgramT) -> None:
        # The program may have ended, and another program may have started with the same id since.
        if self._rows.get(row.program_id) is row:
            del self._rows[row.program_id]
            self._rows[row.program_id] = row


def last_heard(row: ProgramStats) -> float:
    """Return the time of a program's last event."""
    return max(row.last_arrival, row.last_completion)
