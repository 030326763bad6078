"""A context: what is known of the cached blocks of one program, session, or shared prefix."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

Key = tuple[str, ...]

BETWEEN = ""
"""The gap between two calls of a program of which no tool is known."""
RETURNED = "(returned)"
"""The moment between a tool's return and the call that follows."""
HUMAN = "(human)"
SESSION = "(session)"
"""The gap between two programs of a session."""


class Phase(IntEnum):
    """Where a context's program stands; the lower, the sooner its blocks go."""

    ENDED = 0
    IDLE = 1
    AWAY = 2
    CALLING = 3


@dataclass(slots=True, eq=False)
class Context:
    """The cached blocks of one program, or of one session's programs, and when they matter.

    ``tokens`` is its longest prompt with output (tokens). ``calls`` are in the engine now,
    waiting or running; ``tools`` and ``humans`` are being asked. ``gap`` names what
    it waits for (a tool, or one of this module's names), None while nothing is awaited;
    ``since`` is when that began (seconds, the caller's clock). A ``shared`` context holds
    what several programs of a type use; its ``since`` is when its oldest block was used. One that
    is ``outside`` belongs to a program whose calls may not run now (`Admission`). One that
    ``branches`` had several calls at a time: some of its blocks may never be used again while it
    lives. ``oldest`` is when the free block that it would lose first was used.
    """

    key: Key
    type: str
    tenant: str = "default"
    session: bool = False
    shared: bool = False
    branches: bool = False
    oldest: float = 0.0
    programs: set[str] = field(default_factory=set)
    tokens: int = 0
    calls: int = 0
    tools: int = 0
    humans: int = 0
    gap: str | None = None
    since: float = 0.0
    dropped: bool = False
    outside: bool = False

    @property
    def phase(self) -> Phase:
        """Where its programs stand, the liveliest of them first."""
        if self.calls:
            return Phase.CALLING
        if not self.programs:
            return Phase.IDLE if self.session and not self.dropped else Phase.ENDED
        if self.humans and not self.tools:
            return Phase.IDLE
        return Phase.AWAY

    @property
    def ages(self) -> bool:
        """Whether its worth changes as time passes: not while a call of it is in the engine."""
        return self.branches or self.shared or not self.calls

    @property
    def released(self) -> bool:
        """Whether nobody will come back for its blocks, so that they go first."""
        kept = self.shared or self.calls or self.programs or (self.session and not self.dropped)
        return not kept
