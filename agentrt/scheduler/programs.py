"""A live program's row in a process table: what the runtime and every engine know of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from agentrt.request import Usage


@dataclass(slots=True, eq=False)
class ProgramStats:
    """A live program's row in the process table. Times are seconds."""

    program_id: str
    type: str
    tenant: str = "default"
    session: str | None = None
    started_at: float = 0.0
    service_s: float = 0.0
    """The sum of its completed calls' service (PLAS, Agentix Eq. 1)."""
    attained_s: float = 0.0
    """The service of its running calls too, as far as this engine charged them."""
    path_s: float = 0.0
    """The longest path of service seen (ATLAS' scalar, Agentix Alg. 1)."""
    waiting_s: float = 0.0
    """Its completed calls' time in the engine's queue."""
    interrupt_s: float = 0.0
    """Time that its tools and humans took."""
    calls: dict[str, float] = field(default_factory=dict)
    """Its active calls, each with its time of arrival."""
    tools: int = 0
    """How many tools it waits for."""
    humans: int = 0
    """How many people's answers it waits for."""
    events: int = 0
    """How many events it waits for."""
    size_hint: float | None = None
    """Somebody's guess of its size, in a unit that all programs of its type share."""
    last_arrival: float = 0.0
    """When a call of it last arrived, or an interrupt of it last began."""
    last_completion: float = 0.0
    """When a call or an interrupt of it last ended."""
    finished_calls: int = 0
    usage: Usage = field(default_factory=Usage)
    ended: bool = False

    @property
    def kind(self) -> tuple[str, str]:
        """Its tenant and type: what is learned of others like it."""
        return self.tenant, self.type
