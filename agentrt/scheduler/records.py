"""The records of an engine: programs, their cached blocks, and calls with their states."""

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
    """A program in one engine core: its calls in this engine, and its part of the KV cache."""

    lone: bool = False
    """Whether this stands for a single request outside any program."""
    queued: dict[str, QueuedCall] = field(default_factory=dict, repr=False)
    """Its calls in this engine, waiting and running."""
    cached: CachedBlocks | None = None
    """Its blocks in the prefix cache."""

    # -- admission -------------------------------------------------------------------------
    resident: bool = False
    """Whether its calls may run and use the KV cache."""
    was_resident: bool = False
    """Whether it was resident before and was expelled."""
    admitted_by_age: bool = False
    """Whether it was last admitted because it had waited longest."""
    attained_when_admitted_s: float = 0.0
    """``attained_s`` when it was last admitted."""
    tool_wait_until: float | None = None
    """Until when an idle engine may wait for another program's tool before it admits this program;
    None if it has not waited yet.
    """
    tool_wait_for: str = ""
    """The id of the program whose tool the idle engine waits for instead."""

    # -- its claim on the KV cache (admission ``memory``) -----------------------------------
    context_tokens: int = 0
    """The tokens of its longest context, which its next calls will need again."""
    shared_tokens: int = 0
    """The tokens at the start of this context that all programs of its type share."""
    claim: int = 0
    """Blocks for its context, for its calls, and for future calls."""
    growth: int = 0
    """Blocks of its claim that are for future calls."""
    counted: tuple[int, int] = (0, 0)
    """Its part of the sums over residents: blocks that its calls need, and its growth."""
    last_turn_at: float | None = None
    """When its last call ended."""

    def start_over(self) -> None:
        """Reset the state that depends on an engine's settings. The program must have no call."""
        self.cached = None
        self.resident = self.was_resident = self.admitted_by_age = False
        self.tool_wait_until, self.tool_wait_for = None, ""
        self.context_tokens = self.shared_tokens = self.claim = self.growth = 0
        self.counted = (0, 0)
        self.last_turn_at = None


@dataclass(slots=True, eq=False)
class CachedBlocks:
    """The blocks of a program, of a session, or of all programs of a type in the prefix cache."""

    type: str
    tenant: str = "default"
    rows: dict[EngineProgram, None] = field(default_factory=dict, repr=False)
    """The live programs that use the blocks. Only a session has several; there is none between two
    programs of a session, and none if the blocks are ``shared``.
    """
    session: tuple[str, str] | None = None
    """Tenant and name of the session."""
    shared: bool = False
    """Whether all programs of the type use the blocks."""
    branches: bool = False
    """Whether one of its programs had several calls at the same time, so that some blocks may never
    be used again.
    """
    gap: str | None = None
    """What the program waits for outside the engine: a tool's name, or a constant of
    `agentrt.scheduler.retention`.
    """
    since: float = 0.0
    """When this wait began."""
    silence: Silence | None = None
    """This wait as a silence, if the engine was not told what the program waits for."""
    oldest: float = 0.0
    """When the free block that would be evicted first was last used."""
    chains: deque[bytearray] = field(default_factory=lambda: deque(maxlen=SCANNED), repr=False)
    """Hashes of the blocks that the last calls had computed."""

    @property
    def calling(self) -> bool:
        """Whether a call of one of the programs is in the engine, waiting or running."""
        return any(row.queued for row in self.rows)

    @property
    def asking(self) -> bool:
        """Whether one of the programs waits for a tool or a human."""
        return any(row.tools or row.humans for row in self.rows)

    @property
    def resident(self) -> bool:
        """Whether one of the programs is resident."""
        return any(row.resident for row in self.rows)

    @property
    def released(self) -> bool:
        """Whether no program will use the blocks again, so that they are evicted first."""
        return not (self.shared or self.rows or self.session is not None)

    def kinds(self, gap: str) -> tuple[Kind, Kind]:
        """Return the kinds to which a gap of the program belongs: all gaps of its type, and gaps of
        this name.
        """
        return (self.tenant, self.type, ""), (self.tenant, self.type, gap)


class CallState(StrEnum):
    """The state of a call. Only a `WAITING` call may be taken from the queue to run."""

    UNQUEUED = "unqueued"
    """The call is in the engine but not in the queue: it has just arrived, was taken, or was
    preempted.
    """
    WAITING = "waiting"
    NOT_ADMITTED = "not admitted"
    """The call waits until its program may use the KV cache (admission)."""
    DEFERRED = "deferred"
    """The call cannot start yet, because an output from before its preemption is in flight, or
    because its grammar is being compiled.
    """
    LOADING = "loading"
    """KV cache of the call is being loaded from host memory or another engine, or was loaded, and
    the call waits for a slot. It holds blocks.
    """
    RUNNING = "running"
    ENDED = "ended"


# Module constants, because looking up a member of an enumeration is slow.
UNQUEUED, WAITING, NOT_ADMITTED, DEFERRED, LOADING, RUNNING, ENDED = CallState
TRANSITIONS: Mapping[CallState, frozenset[CallState]] = {
    UNQUEUED: frozenset({WAITING, NOT_ADMITTED, DEFERRED, LOADING, RUNNING, ENDED}),
    WAITING: frozenset({UNQUEUED}),
    NOT_ADMITTED: frozenset({UNQUEUED, WAITING}),
    DEFERRED: frozenset({UNQUEUED}),
    LOADING: frozenset({UNQUEUED, RUNNING, ENDED}),
    RUNNING: frozenset({UNQUEUED, ENDED}),
    ENDED: frozenset(),
}
"""The states that may follow each state. A queued call that ends is removed from the queue
first.
"""
QUEUED = frozenset({WAITING, NOT_ADMITTED, DEFERRED})
"""The states of calls that count as waiting in the engine's queue."""


@dataclass(slots=True, eq=False)
class QueuedCall:
    """A call of a program, from its arrival at the engine to its end.

    Times are seconds on the engine's clock. ``waited_s``, ``served_s`` and ``steps`` cover the
    whole life of the call.
    """

    call_id: str
    program: EngineProgram
    item: Any
    """The engine's own request."""
    path_s: float | None
    """p(c) of Agentix, Eq. 2; None if the call's parents are unknown."""
    arrived_at: float
    node: str = ""
    """The call's name in its program's graph."""
    prompt_tokens: int = 0
    """Prompt tokens that the engine must compute, as far as is known at the arrival."""
    max_tokens: int = 0
    """The maximum number of output tokens; 0 if unknown."""
    resumable: bool = False
    """Whether it is a streaming session, which may wait for its client between two turns."""
    identity: Any = None
    """The identity that the client sent with the call, as the engine stores it."""
    arrived_step: int = 0

    # -- its place in the queue ------------------------------------------------------------
    state: CallState = UNQUEUED
    level: int = 0
    key: Key = (0, 0.0, 0)
    """Its level, its order within the level, and a number that is new with each priority. A smaller
    key runs first.
    """
    quantum_ends_s: float = math.inf
    """The value of ``served_s`` at which its quantum is used up."""
    promoted: bool = False
    """Whether it was promoted, and precedes the policy's order."""
    stuck: bool = False
    """Whether the engine could not start it at the last attempt although there was a free slot: its
    LoRA adapter does not fit, or its KV cache is still being transferred.
    """

    # -- waiting and running ---------------------------------------------------------------
    since: float | None = None
    """When its current wait began; None while it runs."""
    waited_s: float = 0.0
    began_at: float = 0.0
    """When it last started."""
    served_s: float = 0.0
    steps: int = 0
    began_at_step: int = 0
    """The value of ``steps`` when it last started."""
    began_served_s: float = 0.0
    """The value of ``served_s`` when it last started."""
    settled_at_s: float = 0.0
    """The value of ``served_s`` from which on it may be preempted again; infinite until the first
    token after its last start (`agentrt.scheduler.core`).
    """
    gave_way_to: str = ""
    """The id of the program for which it was last preempted, while it waits."""

    # -- counts ----------------------------------------------------------------------------
    preemptions: int = 0
    demotions: int = 0
    promotions: int = 0

    # -- its tokens in the KV cache --------------------------------------------------------
    known_tokens: int = 0
    """Prompt tokens that earlier calls of its program had computed when it arrived."""
    beside_tokens: int = 0
    """Prompt tokens that it shared with another call of its program in the engine at its
    arrival.
    """
    cached_tokens: int | None = None
    """Prompt tokens that were in the cache when it first started."""
    computed_tokens: int = 0
    """Tokens of prompt and output that had been computed when it last stopped."""
    lost_tokens: int = 0
    """Tokens that had to be recomputed after its last start."""
    recomputed_tokens: int = 0
    """All tokens that were recomputed."""
    loading_tokens: int = 0
    """Tokens of a load that is in flight, or that has ended before the call has started."""
    loaded_tokens: int = 0
    """Tokens that were loaded in place of being computed, before its starts."""
    unused_loaded_tokens: int = 0
    """Tokens of loads that failed, or after which the call ended without starting."""
    adds: int = 0
    """Tokens that it adds to its program's context (admission ``memory``)."""
    holds: int = 0
    """Tokens that it holds in addition to other calls of its program (admission ``memory``)."""

    # -- its history, for displays ---------------------------------------------------------
    notes: list[Any] = field(default_factory=list, repr=False)
    """The notes from which `agentrt.scheduler.account` makes its spans."""
    cause: list[Any] | None = field(default=None, repr=False)
    """The call as a cause in the notes of other calls that wait for it."""
    events: deque[tuple[str, float]] = field(default_factory=lambda: deque(maxlen=16), repr=False)
    """Its last events: their names and times."""

    @property
    def queued(self) -> bool:
        """Whether the call is in the queue."""
        return self.state in QUEUED

    @property
    def residency_steps(self) -> int:
        """The number of engine steps since the call last started."""
        return self.steps - self.began_at_step

    @property
    def settled(self) -> bool:
        """Whether the call may be preempted, because it would keep some of its progress."""
        return self.served_s >= self.settled_at_s

    def change_state(self, state: CallState) -> None:
        """Enter a state. Raises `InvariantError` for a transition that is not in `TRANSITIONS`."""
        if state not in TRANSITIONS[self.state]:
            events = ", ".join(f"{name} at {at:.6g} s" for name, at in self.events) or "none"
            raise InvariantError(
                f"call {self.call_id} cannot go from {self.state.value!r} to {state.value!r}; "
                f"its last events: {events}"
            )
        self.state = state
