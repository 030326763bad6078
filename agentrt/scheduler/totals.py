"""What a program came to: plain values, for those who had none or only some of its calls."""

from __future__ import annotations

from typing import NamedTuple, Self

from agentrt.scheduler.table import ProgramRow


class Visit(NamedTuple):
    """Where an engine asked what a program needs still, having attained so much service.

    ``age`` is a bin of `agentrt.scheduler.ages`, ``what`` the turn, node or session, "" for any.
    """

    age: int
    what: str
    attained_s: float


Visits = tuple[Visit, ...]


class ProgramTotals(NamedTuple):
    """An ended program's row in the process table over all engines. Times are seconds.

    A policy that learns, learns sizes from these: an engine's own row knows only of the service
    that was over when the program last called there. ``visits`` are what engines that had it
    noted on its way.
    """

    program_id: str
    type: str
    tenant: str = "default"
    session: str | None = None
    size_hint: float | None = None
    service_s: float = 0.0
    path_s: float = 0.0
    waiting_s: float = 0.0
    finished_calls: int = 0
    visits: Visits = ()

    @classmethod
    def of(cls, row: ProgramRow) -> Self:
        """Those of a row."""
        return cls(*(getattr(row, name) for name in cls._fields[:-1]))

    def row(self) -> ProgramRow:
        """A row for those who never had one."""
        row = ProgramRow(self.program_id, self.type, self.tenant, self.session)
        row.size_hint, row.finished_calls = self.size_hint, self.finished_calls
        row.service_s = row.attained_s = self.service_s
        row.path_s, row.waiting_s = self.path_s, self.waiting_s
        return row
