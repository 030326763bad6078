"""What happens in an engine, as values. `SchedulerCore.handle` takes each event once.

Times (``now``) are seconds of the engine's own clock.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from agentrt.scheduler.records import EngineProgram, QueuedCall
    from agentrt.scheduler.table import ProgramTotals


class PreemptionReason(StrEnum):
    """Why a running call was preempted."""

    SLOT = "slot"
    """For a waiting call of a better level (`SchedulerCore.plan_step`)."""
    MEMORY = "memory"
    """The engine ran out of KV-cache blocks."""
    RESET = "reset"
    """The prefix cache was emptied on a client's wish."""


# -- what the engine reports ---------------------------------------------------------------


class CallArrived(NamedTuple):
    """A call came to the engine. It gets its priority; the queue receives it next."""

    call: QueuedCall
    now: float


class CallStarted(NamedTuple):
    """A call that was taken from the queue runs, for the first time or again.

    ``cached_tokens`` of its tokens are in the KV cache already. They are None in an engine that
    has no prefill: such an engine sends no `FirstToken`.
    """

    call: QueuedCall
    now: float
    cached_tokens: int | None = None


class FirstToken(NamedTuple):
    """A call has put out its first token since it last started: its prefill is over."""

    call: QueuedCall
    now: float


class CallPreempted(NamedTuple):
    """A running call stops and will wait again; ``better`` is the call that needs its slot."""

    call: QueuedCall
    now: float
    reason: PreemptionReason = PreemptionReason.SLOT
    better: QueuedCall | None = None


class CallFinished(NamedTuple):
    """A call ended or was aborted, in whatever state it was."""

    call: QueuedCall
    now: float


class StepFinished(NamedTuple):
    """The engine computed a step for these calls, in so many seconds.

    The step had ``tokens`` tokens in all, 0 where the engine does not say. A simulator reports
    several ``steps`` at once.
    """

    call_ids: Collection[str]
    seconds: float
    now: float
    tokens: int = 0
    steps: int = 1


class InterruptStarted(NamedTuple):
    """A program waits for a tool of this ``name`` (kind ``tool``), or for a person (``human``)."""

    program: EngineProgram
    kind: str
    name: str
    now: float


class InterruptEnded(NamedTuple):
    """A program's tool returned, or a person answered."""

    program: EngineProgram
    kind: str
    now: float


class ProgramEnded(NamedTuple):
    """A program ended or was cancelled; some of its calls may end later."""

    totals: ProgramTotals
    now: float


# -- what the core reports to its listeners ------------------------------------------------


class CallAdmitted(NamedTuple):
    """A call whose program was not admitted may run from now on, and waits for a slot."""

    call: QueuedCall
    now: float


class CallReranked(NamedTuple):
    """A running call has used up its quantum and has another priority."""

    call: QueuedCall
    now: float


CallEvent = (
    CallArrived
    | CallStarted
    | FirstToken
    | CallPreempted
    | CallFinished
    | CallAdmitted
    | CallReranked
)
Event = CallEvent | StepFinished | InterruptStarted | InterruptEnded | ProgramEnded


class Listener(Protocol):
    """Somebody who watches the events of calls and decides nothing."""

    def hear(self, event: CallEvent) -> None:
        """Take note of an event.

        A listener hears of a preemption and of an end before the core takes them in, while the
        call still has its slot and its blocks, and of all other events afterwards.
        """


class Part:
    """A part of the scheduler that keeps its own account of calls and programs.

    It overrides what it needs to know. `SchedulerCore.handle` calls the parts.
    """

    def call_arrived(self, call: QueuedCall, now: float) -> None:
        """Take in a call that is among its program's ``queued`` calls by now."""

    def call_started(self, call: QueuedCall, now: float) -> None:
        """Take in that a call runs, for the first time or after a preemption."""

    def call_preempted(self, call: QueuedCall, now: float, reason: PreemptionReason) -> None:
        """Take in that a call runs no more and will wait again."""

    def call_finished(self, call: QueuedCall, now: float) -> None:
        """Take in the end of a call that is not among its program's ``queued`` calls any more."""

    def interrupt_started(self, program: EngineProgram, kind: str, name: str, now: float) -> None:
        """Take in that a program waits for a tool of this name, or for a person."""

    def interrupt_ended(self, program: EngineProgram, now: float) -> None:
        """Take in that the tool returned, or the person answered."""

    def program_ended(self, program: EngineProgram, now: float) -> None:
        """Take in that a program ended, or was not heard of for long."""
