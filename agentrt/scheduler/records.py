"""The records of one engine: a program, its cached blocks, and a call with its states."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from agentrt.errors import InvariantError
from agentrt.scheduler.learned import SCANNED, Kind, Silence
from agentrt.scheduler.programs import ProgramStats

Key = tuple[int, Any, int]


@dataclass(slots=True, eq=False)
class EngineProgram(ProgramStats):
    """A program as one engine core knows it: its calls there, and its part of the KV cache."""

    lone: bool = False
    """Whether it stands for one request without a program."""
    queued: dict[str, QueuedCall] = field(default_factory=dict, repr=False)
    """Its calls in this engine, waiting and running."""
    cached: CachedBlocks | None = None
    """Its blocks in the prefix cache."""

    # -- admission -------------------------------------------------------------------------
    resident: bool = False
    """Whether its calls may run and use the KV cache."""
    was_resident: bool = False
    """Whether it was resident before, and had to leave."""
    admitted_by_age: bool = False
    """Whether it was last admitted as the one that had waited the longest."""
    attained_when_admitted_s: float = 0.0
    """``attained_s`` when it was last admitted."""
    tool_wait_until: float | None = None
    """How long an idle engine may keep it out for another program's tool; None before it had to."""
    tool_wait_for: str = ""
    """The program whose tool the idle engine waits for instead."""

    # -- its claim on the KV cache (admission ``memory``) -----------------------------------
    context_tokens: int = 0
    """The longest context that it comes back for."""
    shared_tokens: int = 0
    """The first tokens of this context, which all programs of its type share."""
    claim: int = 0
    """Blocks for its context, for its calls, and for calls that it has not made yet."""
    growth: int = 0
    """Blocks of its claim for calls that it has not made yet."""
    counted: tuple[int, int] = (0, 0)
    """What the residents' sums hold of it: blocks that its calls need, and its growth."""
    last_turn_at: float | None = None
    """When its last call ended."""

    def start_over(self) -> None:
        """Forget what one engine's settings made of it. It must have no call there."""
        self.cached = None
        self.resident = self.was_resident = self.admitted_by_age = False
        self.tool_wait_until, self.tool_wait_for = None, ""
        self.context_tokens = self.shared_tokens = self.claim = self.growth = 0
        self.counted = (0, 0)
        self.last_turn_at = None


@dataclass(slots=True, eq=False)
class CachedBlocks:
    """What a program, a session, or all programs of a type have in the prefix cache."""

    type: str
    tenant: str = "default"
    rows: dict[EngineProgram, None] = field(default_factory=dict, repr=False)
    """The live programs that use them: several of a session only; none between two programs of a
    session, and where the blocks are ``shared``."""
    session: tuple[str, str] | None = None
    """Tenant and name of the session."""
    shared: bool = False
    """Whether all programs of the type use them."""
    branches: bool = False
    """Whether a program of them had several calls at a time: some blocks may never be used again.
    """
    gap: str | None = None
    """What their program waits for outside the engine: a tool's name, or one of
    `agentrt.scheduler.retention`."""
    since: float = 0.0
    """When this wait began."""
    silence: Silence | None = None
    """The count of this wait, where nobody has said what the program waits for."""
    oldest: float = 0.0
    """When the free block that they would lose first was last used."""
    chains: deque[bytearray] = field(default_factory=lambda: deque(maxlen=SCANNED), repr=False)
    """Hashes of the blocks that their last calls had computed."""

    @property
    def calling(self) -> bool:
        """Whether a call of its programs is in the engine, waiting or running."""
        return any(row.queued for row in self.rows)

    @property
    def asking(self) -> bool:
        """Whether one of its programs waits for a tool or a human."""
        return any(row.tools or row.humans for row in self.rows)

    @property
    def resident(self) -> bool:
        """Whether one of its programs may use the cache now."""
        return any(row.resident for row in self.rows)

    @property
    def released(self) -> bool:
        """Whether nobody will come back for the blocks, so that they are evicted first."""
        return not (self.shared or self.rows or self.session is not None)

    def kinds(self, gap: str) -> tuple[Kind, Kind]:
        """What is learned from a gap of its program: of any gap of its type, and of this one."""
        return (self.tenant, self.type, ""), (self.tenant, self.type, gap)


class CallState(StrEnum):
    """Where a call is. Only a `WAITING` call may be taken from the queue to run."""

    UNQUEUED = "unqueued"
    """The engine has the call and the queue has not: it just arrived, was taken or preempted."""
    WAITING = "waiting"
    NOT_ADMITTED = "not admitted"
    """The call waits until its program may use the KV cache (admission)."""
    DEFERRED = "deferred"
    """The call cannot start yet: an output from before its preemption is in flight, or its grammar
    is being compiled."""
    RUNNING = "running"
    ENDED = "ended"


# By these names a state is found at once: an enumeration looks its members up in Python.
UNQUEUED, WAITING, NOT_ADMITTED, DEFERRED, RUNNING, ENDED = CallState
TRANSITIONS: Mapping[CallState, frozenset[CallState]] = {
    UNQUEUED: frozenset({WAITING, NOT_ADMITTED, DEFERRED, RUNNING, ENDED}),
    WAITING: frozenset({UNQUEUED}),
    NOT_ADMITTED: frozenset({UNQUEUED, WAITING}),
    DEFERRED: frozenset({UNQUEUED}),
    RUNNING: frozenset({UNQUEUED, ENDED}),
    ENDED: frozenset(),
}
"""From each state, the states that may follow. A queued call that ends leaves the queue first."""
QUEUED = frozenset({WAITING, NOT_ADMITTED, DEFERRED})
"""The states of calls that count as waiting in the engine's queue."""


@dataclass(slots=True, eq=False)
class QueuedCall:
    """One call of a program, from its arrival at the engine to its end.

    Times are seconds of the engine's clock; ``waited_s``, ``served_s`` and ``steps`` cover the
    call's whole life.
    """

    call_id: str
    program: EngineProgram
    item: Any
    """The engine's own request."""
    path_s: float | None
    """p(c) of Agentix, Eq. 2; None where the call's parents are unknown."""
    arrived_at: float
    node: str = ""
    """The call's name in its program's graph."""
    prompt_tokens: int = 0
    """Prompt tokens that the engine has to compute, as far as it knows at arrival."""
    max_tokens: int = 0
    """The call's limit of output tokens; 0 where it is unknown."""
    resumable: bool = False
    """Whether it is a streaming session, which may wait for its client between two turns."""
    identity: Any = None
    """What its client said of it, as the engine knows it."""
    arrived_step: int = 0

    # -- its place in the queue ------------------------------------------------------------
    state: CallState = UNQUEUED
    level: int = 0
    key: Key = (0, 0.0, 0)
    """Its level, its order there, and a new number with each priority: a smaller key runs first."""
    quantum_ends_s: float = math.inf
    """``served_s`` at which its quantum is used up."""
    promoted: bool = False
    """Whether it goes before its policy's order, for its program's age or waiting."""
    stuck: bool = False
    """Whether the engine could not start it when it last looked at it, though there was a slot: its
    LoRA adapter does not fit, or its KV cache is on its way."""

    # -- waiting and running ---------------------------------------------------------------
    since: float | None = None
    """When its present wait began; None while it runs."""
    waited_s: float = 0.0
    began_at: float = 0.0
    """When it last began to run."""
    served_s: float = 0.0
    steps: int = 0
    began_at_step: int = 0
    """``steps`` when it last began to run."""
    began_served_s: float = 0.0
    """``served_s`` when it last began to run."""
    settled_at_s: float = 0.0
    """``served_s`` from which it may be preempted again; infinite until its first token since it
    last began to run (`agentrt.scheduler.core`)."""
    gave_way_to: str = ""
    """The program that it was last preempted for, while it waits."""

    # -- counts ----------------------------------------------------------------------------
    preemptions: int = 0
    demotions: int = 0
    promotions: int = 0

    # -- its tokens in the KV cache --------------------------------------------------------
    known_tokens: int = 0
    """Prompt tokens that its program's own calls had computed before it came."""
    beside_tokens: int = 0
    """Prompt tokens that it has in common with another call of its program that was there."""
    cached_tokens: int | None = None
    """Prompt tokens that were in the cache when it first began."""
    computed_tokens: int = 0
    """Tokens of prompt and output that were computed when it last stopped."""
    lost_tokens: int = 0
    """Tokens that it computed again when it last began to run."""
    recomputed_tokens: int = 0
    """All tokens that it has computed again."""
    adds: int = 0
    """Tokens that it adds to its program's context (admission ``memory``)."""
    holds: int = 0
    """Tokens that it holds beside other calls of its program (admission ``memory``)."""

    # -- its story, for people -------------------------------------------------------------
    notes: list[Any] = field(default_factory=list, repr=False)
    """What `agentrt.scheduler.account` makes its spans of."""
    cause: list[Any] | None = field(default=None, repr=False)
    """The call as one that others wait for, in these notes."""
    events: deque[tuple[str, float]] = field(default_factory=lambda: deque(maxlen=16), repr=False)
    """Its last events: their names and times."""

    @property
    def queued(self) -> bool:
        """Whether it stands in a queue."""
        return self.state in QUEUED

    @property
    def residency_steps(self) -> int:
        """Engine steps since it last began to run."""
        return self.steps - self.began_at_step

    @property
    def settled(self) -> bool:
        """Whether a preemption would leave it with progress that is kept."""
        return self.served_s >= self.settled_at_s

    def change_state(self, state: CallState) -> None:
        """Enter a state. Raises `InvariantError` for a change that `TRANSITIONS` does not have."""
        if state not in TRANSITIONS[self.state]:
            events = ", ".join(f"{name} at {at:.6g} s" for name, at in self.events) or "none"
            raise InvariantError(
                f"call {self.call_id} cannot go from {self.state.value!r} to {state.value!r}; "
                f"its last events: {events}"
            )
        self.state = state
