"""The events of an engine. Each event that the engine reports is passed once to
`SchedulerCore.handle`, and each event of a call is passed on to the core's listeners.

Times (``now``) are seconds on the engine's own clock.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from agentrt.scheduler.state import EngineProgram, QueuedCall
    from agentrt.scheduler.table import ProgramTotals


class PreemptionReason(StrEnum):
    """The reason for which a running call was preempted."""

    SLOT = "slot"
    """A waiting call of a better level needed the slot (`SchedulerCore.plan_step`)."""
    MEMORY = "memory"
    """The engine ran out of KV-cache blocks."""
    RESET = "reset"
    """A client requested that the prefix cache be emptied."""


# -- events that the engine reports --------------------------------------------------------


class CallArrived(NamedTuple):
    """A call arrived at the engine. The core gives it a priority; then the engine puts it into the
    queue.
    """

    call: QueuedCall
    now: float


class CallLoading(NamedTuple):
    """A call that was taken from the queue waits while the KV cache of ``tokens`` of its tokens is
    loaded, from host memory or another engine. The call holds the blocks for these tokens.

    ``cached_tokens`` is the number of the call's first tokens that were in the KV cache already.
    The tokens that are loaded follow them.
    """

    call: QueuedCall
    now: float
    cached_tokens: int
    tokens: int


class CallLoaded(NamedTuple):
    """The load of a call has ended, or has ``failed``. The call waits for a slot."""

    call: QueuedCall
    now: float
    failed: bool = False


class CallStarted(NamedTuple):
    """A call that was taken from the queue starts, for the first time or after a preemption.

    ``cached_tokens`` is the number of the call's tokens that are already in the KV cache. It is
    None for an engine without a prefill, which sends no `FirstToken` events.
    """

    call: QueuedCall
    now: float
    cached_tokens: int | None = None


class FirstToken(NamedTuple):
    """A call produced its first token since it last started: its prefill has ended."""

    call: QueuedCall
    now: float


class CallPreempted(NamedTuple):
    """A running call is preempted and will wait again. ``better`` is the call that gets the
    slot; None if no call gets it.
    """

    call: QueuedCall
    now: float
    reason: PreemptionReason = PreemptionReason.SLOT
    better: QueuedCall | None = None


class CallFinished(NamedTuple):
    """A call ended or was aborted, in any state."""

    call: QueuedCall
    now: float


class StepFinished(NamedTuple):
    """The engine computed a step for the calls ``call_ids``. The step took ``seconds``.

    ``tokens`` is the total number of tokens in the step, or 0 if the engine does not report it. A
    simulator may report several ``steps`` in one event.
    """

    call_ids: Collection[str]
    seconds: float
    now: float
    tokens: int = 0
    steps: int = 1


class InterruptStarted(NamedTuple):
    """A program waits for the tool or the event ``name`` (kind ``tool``), or for a human (kind
    ``human``).
    """

    program: EngineProgram
    kind: str
    name: str
    now: float


class InterruptEnded(NamedTuple):
    """A program's tool returned, its event arrived, or a human answered."""

    program: EngineProgram
    kind: str
    now: float


class ProgramEnded(NamedTuple):
    """A program ended or was cancelled; some of its calls may end later."""

    totals: ProgramTotals
    now: float


# -- events that the core reports to its listeners -----------------------------------------


class CallAdmitted(NamedTuple):
    """A call's program was admitted. The call may run from now on, and waits for a slot."""

    call: QueuedCall
    now: float


class CallReranked(NamedTuple):
    """A call has used up its quantum and has a new priority."""

    call: QueuedCall
    now: float


CallEvent = (
    CallArrived
    | CallLoading
    | CallLoaded
    | CallStarted
    | FirstToken
    | CallPreempted
    | CallFinished
    | CallAdmitted
    | CallReranked
)
Event = CallEvent | StepFinished | InterruptStarted | InterruptEnded | ProgramEnded


class CallListener(Protocol):
    """An observer of the events of calls, which makes no decisions."""

    def hear(self, event: CallEvent) -> None:
        """Observe an event.

        A preemption is observed before the core handles the event, while the call still has its
        slot and its blocks. The end of a call is observed at such a time, too, but then the call is
        no longer in `SchedulerCore.calls`. If the call did not start after its last load, the
        tokens of this load are already in its ``unused_loaded_tokens``, even if the load is in
        flight. The process table, the statistics and the other parts have not handled the end yet.
        All other events are observed after the core has handled them.
        """


class Part:
    """A part of the scheduler, such as admission, that keeps its own state of calls and programs.

    `SchedulerCore.handle` calls the methods below for the events that they name. Subclasses
    override only the methods that they need.
    """

    def call_arrived(self, call: QueuedCall, now: float) -> None:
        """Handle the arrival of a call. The call is already in its program's ``queued`` calls."""

    def call_started(self, call: QueuedCall, now: float) -> None:
        """Handle the start of a call, for the first time or after a preemption."""

    def call_preempted(self, call: QueuedCall, now: float, reason: PreemptionReason) -> None:
        """Handle the preemption of a call, which will wait again."""

    def call_finished(self, call: QueuedCall, now: float) -> None:
        """Handle the end of a call. The call is no longer in its program's ``queued`` calls."""

    def interrupt_started(self, program: EngineProgram, kind: str, name: str, now: float) -> None:
        """Handle the start of a program's wait for the tool or event ``name``, or for a human."""

    def interrupt_ended(self, program: EngineProgram, now: float) -> None:
        """Handle the end of a program's wait for a tool, an event or a human."""

    def program_ended(self, program: EngineProgram, now: float) -> None:
        """Handle that a program has ended or has timed out. If calls of an ended program end later,
        this is called again after the last of them.
        """
