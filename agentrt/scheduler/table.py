"""The process table: one row per live program (Agentix, §4.2.1).

Pure and synchronous. The runtime keeps one over all engines; each engine core keeps
one for the programs whose calls it runs. Times are seconds; ``now`` is the caller's
clock, which must not run backwards.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Generic, NamedTuple, Self, TypeVar

from agentrt.errors import InvariantError
from agentrt.request import Usage
from agentrt.scheduler.programs import ProgramStats
from agentrt.scheduler.records import EngineProgram

ProgramT = TypeVar("ProgramT", bound=ProgramStats)


class ProgramState(StrEnum):
    """What a live program is doing, the engine first: a call outweighs a tool."""

    RUNNING = "running"
    IN_TOOL = "in tool"
    WAITING_FOR_EVENT = "waiting for an event"
    WAITING_FOR_HUMAN = "waiting for a human"
    STALE = "stale"


def state_of(row: ProgramStats, now: float, stale_after_s: float) -> ProgramState:
    """What a program is doing at ``now``."""
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
    """What an ended program's row in the process table over all engines says of its size.

    A policy that learns, learns sizes from these: an engine's own row knows only of the service
    that was over when the program last called there.
    """

    program_id: str
    type: str
    tenant: str = "default"
    size_hint: float | None = None
    service_s: float = 0.0

    @classmethod
    def of(cls, row: ProgramStats) -> Self:
        """Those of a row."""
        return cls(row.program_id, row.type, row.tenant, row.size_hint, row.service_s)

    def row(self) -> EngineProgram:
        """A row for an engine that never had one."""
        row = EngineProgram(self.program_id, self.type, self.tenant, size_hint=self.size_hint)
        row.service_s = row.attained_s = self.service_s
        return row


class ProcessTable(Generic[ProgramT]):
    """Rows by program id, the longest unheard-of first. ``row_type`` is what a row is."""

    def __init__(self, row_type: type[ProgramT]) -> None:
        self._row_type = row_type
        # A dict keeps insertion order; touching a row moves it to the end, so that
        # stale rows are found at the front without a scan.
        self._rows: dict[str, ProgramT] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, program_id: object) -> bool:
        return program_id in self._rows

    def __iter__(self) -> Iterator[ProgramT]:
        return iter(list(self._rows.values()))

    def get(self, program_id: str) -> ProgramT | None:
        """The row of a live program, else None."""
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
        """Add a row. Raises `InvariantError` if the program is live already."""
        if program_id in self._rows:
            raise InvariantError(f"program {program_id} is in the process table already")
        row = self._row_type(program_id, type, tenant, session, started_at=now, last_arrival=now)
        self._rows[program_id] = row
        return row

    def end_program(self, program_id: str) -> ProgramT | None:
        """Drop a program's row, whatever its state. Idempotent."""
        row = self._rows.pop(program_id, None)
        if row is not None:
            row.ended = True
        return row

    def call_arrived(self, row: ProgramT, call_id: str, now: float) -> None:
        """A call of the program was emitted."""
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
        """A call completed, failed or was aborted; ``usage`` is summed up where it is wanted.

        ``path_s`` is its p(c) of Eq. 2, None where its parents are unknown: then the
        paper's scalar takes its place (Alg. 1, line 4).
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
        """A ``tool`` call began, a question to a ``human``, or the wait for an ``event``."""
        self._count_interrupt(row, kind, 1)
        row.last_arrival = now
        self._touch(row)

    def interrupt_ended(self, row: ProgramT, now: float, kind: str, *, seconds: float) -> None:
        """It was over after ``seconds``."""
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

    def catch_up(
        self, row: ProgramT, service_s: float, path_s: float = 0.0, waiting_s: float = 0.0
    ) -> None:
        """Raise a row to what another table knows: service elsewhere counts here too."""
        row.service_s = max(row.service_s, service_s)
        row.attained_s = max(row.attained_s, service_s)
        row.path_s = max(row.path_s, path_s)
        row.waiting_s = max(row.waiting_s, waiting_s)

    def stale(self, now: float, stale_after_s: float, *, in_tools: bool = False) -> list[ProgramT]:
        """Rows with nothing active that were not heard of for ``stale_after_s``; cheap.

        With ``in_tools`` those too that wait for a tool, a human or an event.
        """
        found: list[ProgramT] = []
        for row in self._rows.values():
            if now - last_heard(row) < stale_after_s:
                break
            if not (row.calls or (not in_tools and (row.tools or row.humans or row.events))):
                found.append(row)
        return found

    def check_integrity(self) -> None:
        """For tests. Raises `InvariantError` on a state that must not be."""
        for program_id, row in self._rows.items():
            if row.program_id != program_id:
                raise InvariantError(f"row of {row.program_id} is filed under {program_id}")
            if min(row.tools, row.humans, row.events) < 0:
                raise InvariantError(f"program {program_id} ended more interrupts than it began")
            if row.path_s > row.service_s + 1e-6:
                raise InvariantError(f"program {program_id} has a path longer than its service")

    def _touch(self, row: ProgramT) -> None:
        # Another program may have come under the same id since this one ended.
        if self._rows.get(row.program_id) is row:
            del self._rows[row.program_id]
            self._rows[row.program_id] = row


def last_heard(row: ProgramStats) -> float:
    """When a program last began or ended something."""
    return max(row.last_arrival, row.last_completion)
