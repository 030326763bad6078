"""The row of a live program in a process table. The runtime and every engine keep such a table."""

from __future__ import annotations

from dataclasses import dataclass, field

from agentrt.request import Usage


@dataclass(slots=True, eq=False)
class ProgramStats:
    """The row of a live program in the process table. All times are seconds."""

    program_id: str
    type: str
    tenant: str = "default"
    session: str | None = None
    started_at: float = 0.0
    service_s: float = 0.0
    """The service of the program's ended calls (PLAS, Agentix Eq. 1)."""
    path_s: float = 0.0
    """The longest path of service seen so far (the scalar of ATLAS, Agentix Alg. 1)."""
    waiting_s: float = 0.0
    """The time that ended calls spent in queues: in the engine's queue, and in the queue of the
    program's tenant, if the server has tenants.
    """
    interrupt_s: float = 0.0
    """The time that the program's tools, questions to humans and waits for events took."""
    calls: dict[str, float] = field(default_factory=dict)
    """The program's active calls, each with its time of arrival."""
    tools: int = 0
    """The number of tools that the program waits for."""
    humans: int = 0
    """The number of questions to humans that the program waits for."""
    events: int = 0
    """The number of events that the program waits for."""
    size_hint: float | None = None
    """The client's estimate of the program's size, in a unit that all programs of its type
    share.
    """
    last_arrival: float = 0.0
    """When a call of the program last arrived or an interrupt last began; before that, when the
    program started.
    """
    last_completion: float = 0.0
    """When a call or an interrupt of the program last ended."""
    finished_calls: int = 0
    usage: Usage = field(default_factory=Usage)
    ended: bool = False

    @property
    def kind(self) -> tuple[str, str]:
        """The program's tenant and type, by which statistics are kept."""
        return self.tenant, self.type
