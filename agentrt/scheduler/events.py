"""What happens in an engine, as every part of its scheduler hears it: one interface of events.

`LevelQueues` takes each event once and passes it on to the parts that its settings need. Pure and
synchronous: time comes with the event, in seconds of the caller's clock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentrt.scheduler.records import ProgramRow, QueuedCall


class Events:
    """A part of the scheduler. It overrides what it wants to know; the rest is nothing to it."""

    def call_arrived(self, call: QueuedCall, now: float) -> None:
        """A call came; it is among its program's ``queued`` calls already."""

    def call_began(self, call: QueuedCall, now: float) -> None:
        """It began to run, for the first time or after a preemption."""

    def call_preempted(self, call: QueuedCall, now: float, *, for_memory: bool) -> None:
        """It runs no more and waits again: for a better call, or since no memory was left."""

    def call_ended(self, call: QueuedCall, now: float) -> None:
        """It finished or was aborted; it is not among its program's ``queued`` calls any more."""

    def interrupt_began(self, row: ProgramRow, kind: str, name: str, now: float) -> None:
        """A program waits for a ``tool`` of this name, or for a ``human``."""

    def interrupt_ended(self, row: ProgramRow, now: float) -> None:
        """It was answered."""

    def program_ended(self, row: ProgramRow, now: float) -> None:
        """A program ended, was cancelled, or was not heard of for long. Its calls may end later."""
