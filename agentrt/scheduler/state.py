"""The state of an engine core: its programs, their cached blocks, and its calls.

The parts of the scheduler share these objects. `SchedulerCore` and its parts change them; policies
only read them. The engine's adapter sets the values that only it knows, such as a call's tokens in
the KV cache.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from agentrt.errors import InvariantError
from agentrt.scheduler.learned.durations import Kind
from agentrt.scheduler.learned.silences import Silence
from agentrt.scheduler.learned.turns import Turn
from agentrt.scheduler.limits import SCANNED
from agentrt.scheduler.programs import ProgramStats

Key = tuple[int, Any, int]
MANY_CALLS = 128
"""A program that has made this many calls may never end. An example is a proxy that gives all its
clients one program id. Such a program does not keep others waiting until it ends.
"""


@dataclass(slots=True, eq=False)
class EngineProgram(ProgramStats):
    """A program in one engine core: its calls in this engine, and its part of the KV cache."""

    lone: bool = False
    """Whether this row stands for a single request that belongs to no program."""
    queued: dict[str, QueuedCall] = field(default_factory=dict, repr=False)
    """The program's waiting and running calls in this engine."""
    cached: CachedBlocks | None = None
    """The program's blocks in the prefix cache."""
    attained_s: float = 0.0
    """The program's attained service: that of ended and running calls in this engine, and that of
    calls in other engines as far as the runtime has reported it (`catch_up`).
    """

    # -- admission -------------------------------------------------------------------------
    resident: bool = False
    """Whether the program's calls may run and use the KV cache."""
    was_resident: bool = False
    """Whether the program was resident before and was expelled."""
    admitted_by_age: bool = False
    """Whether the program was last admitted because it had waited longest."""
    attained_when_admitted_s: float = 0.0
    """The value of ``attained_s`` when the program was last admitted."""
    tool_wait_until: float | None = None
    """The time until which an idle engine may wait for another program's tool before it admits this
    program; None if the engine has not waited yet.
    """
    tool_wait_for: str = ""
    """The id of the program whose tool the idle engine waits for before it admits this program."""

    # -- its claim on the KV cache (admission ``memory``) -----------------------------------
    context_tokens: int = 0
    """The tokens of the program's longest context, which its next calls will need again."""
    shared_tokens: int = 0
    """The tokens at the start of this context that all programs of the type share."""
    claim: int = 0
    """The number of blocks that the program claims for its context, its calls and future calls."""
    growth: int = 0
    """The part of ``claim`` that is for future calls, in blocks."""
    ceded: int = 0
    """Blocks of the program's waiting calls that it does not claim, in favour of other programs."""
    counted: tuple[int, int, int] = (0, 0, 0)
    """The blocks that `WorkingSet` has added for this program to its sums over all residents: the
    blocks that the program needs now, the blocks that are kept for it, and its growth.
    """
    last_turn_at: float | None = None
    """The time at which the program's last call with output ended; None before the end of the first
    such call, and after the cache was emptied.
    """

    def catch_up(self, service_s: float, path_s: float = 0.0, waiting_s: float = 0.0) -> None:
        """Raise the program's values to those of the runtime, so that service in other engines
        counts, too.
        """
        self.service_s = max(self.service_s, service_s)
        self.attained_s = max(self.attained_s, service_s)
        self.path_s = max(self.path_s, path_s)
        self.waiting_s = max(self.waiting_s, waiting_s)

    def start_over(self) -> None:
        """Reset the state that depends on an engine's settings. The program must have no call."""
        self.cached = None
        self.resident = self.was_resident = self.admitted_by_age = False
        self.tool_wait_until, self.tool_wait_for = None, ""
        self.context_tokens = self.shared_tokens = self.claim = self.growth = self.ceded = 0
        self.counted = (0, 0, 0)
        self.last_turn_at = None


@dataclass(slots=True, eq=False)
class CachedBlocks:
    """The blocks of a program, of a session, or of several programs in the prefix cache."""

    type: str
    tenant: str = "default"
    rows: dict[EngineProgram, None] = field(default_factory=dict, repr=False)
    """The live programs that use the blocks. Only the blocks of a session can have several
    programs. The mapping is empty if the program has ended, the session is idle, or the blocks are
    ``shared``.
    """
    session: tuple[str, str] | None = None
    """Tenant and name of the session."""
    shared: bool = False
    """Whether several programs use the blocks. ``type`` is then the type of the program with whose
    use the blocks became shared.
    """
    branches: bool = False
    """Whether a program that uses the blocks had several calls at the same time, so that some
    blocks may never be used again.
    """
    gap: str | None = None
    """The kind of the current gap: the name of the tool or event that the program waits for, or a
    constant of `agentrt.scheduler.retention`; None if there is no gap.
    """
    since: float = 0.0
    """The time at which the current gap began."""
    silence: Silence | None = None
    """The current gap as a silence, if the engine was not told what the program waits for."""
    oldest: float = 0.0
    """The time at which the free block that would be evicted first was last used."""
    chains: deque[bytearray] = field(default_factory=lambda: deque(maxlen=SCANNED), repr=False)
    """The chains of block hashes of the last calls. A call that continues a chain replaces it."""

    @property
    def calling(self) -> bool:
        """Whether a call of one of the programs is in the engine, waiting or running."""
        return any(row.queued for row in self.rows)

    @property
    def asking(self) -> bool:
        """Whether one of the programs waits for a tool, an event or a human."""
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
        """Return the kinds of statistics to which a gap belongs: all gaps of the type, and the gaps
        of the type with the name ``gap``.
        """
        return (self.tenant, self.type, ""), (self.tenant, self.type, gap)


class CallState(StrEnum):
    """The state of a call. Only a `WAITING` call may be taken from the queue to run."""

    UNQUEUED = "unqueued"
    """The call is in the engine but not in the queue: it has just arrived, was taken from the
    queue, or was preempted, or its load has failed.
    """
    WAITING = "waiting"
    NOT_ADMITTED = "not admitted"
    """The call waits for the admission of its program to the KV cache."""
    DEFERRED = "deferred"
    """The call cannot start yet, because an engine step from before its preemption is in flight,
    because its grammar is being compiled, or because its LoRA adapter does not fit.
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
"""The states of the calls in the engine's queue, which count as waiting."""


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
    """The name of the node function that made the call; "" for the program's own function."""
    prompt_tokens: int = 0
    """The number of tokens of the call's prompt; 0 if the engine does not know it."""
    max_tokens: int = 0
    """The maximum number of output tokens; 0 if unknown."""
    resumable: bool = False
    """Whether the call is a streaming session, which may wait for its client between two turns."""
    identity: Any = None
    """The identity that the client sent with the call, as the engine stores it."""
    arrived_step: int = 0

    # -- its place in the queue ------------------------------------------------------------
    state: CallState = UNQUEUED
    level: int = 0
    key: Key = (0, 0.0, 0)
    """The call's level, its order within the level, and a sequence number that is new with each
    priority. The call with the smallest key runs first.
    """
    quantum_ends_s: float = math.inf
    """The value of ``served_s`` at which the call's quantum is used up."""
    promoted: bool = False
    """Whether the call was promoted, and has kept its promotion (`Promoter`)."""
    stuck: bool = False
    """Whether the engine's last attempt to start the call failed although a slot was free, for
    example because the call's LoRA adapter did not fit, or because its KV cache was still being
    transferred.
    """

    # -- waiting and running ---------------------------------------------------------------
    since: float | None = None
    """The time at which the call's current wait began; None while the call runs."""
    waited_s: float = 0.0
    began_at: float = 0.0
    """The time at which the call last started."""
    turn: Turn | None = None
    """The program's turn, while this call runs and is the program's only call in the engine; None
    for a program's first call.
    """
    served_s: float = 0.0
    steps: int = 0
    began_at_step: int = 0
    """The value of ``steps`` when the call last started."""
    began_served_s: float = 0.0
    """The value of ``served_s`` when the call last started."""
    settled_at_s: float = 0.0
    """The value of ``served_s`` from which on the call may be preempted again. It is infinite from
    each start of the call to its next token (`agentrt.scheduler.core`).
    """
    gave_way_to: str = ""
    """The id of the program for whose call this call was last preempted; "" if no call got its
    slot, and after this call has started again.
    """

    # -- counts ----------------------------------------------------------------------------
    preemptions: int = 0
    demotions: int = 0
    promotions: int = 0

    # -- its tokens in the KV cache --------------------------------------------------------
    known_tokens: int = 0
    """The prompt tokens that earlier calls of the program had computed when the call arrived, and
    that the call may read from the cache.
    """
    beside_tokens: int = 0
    """The prompt tokens that the call shared, when it arrived, with another call of its program in
    the engine.
    """
    cached_tokens: int | None = None
    """The prompt tokens that were in the cache when the call first started."""
    computed_tokens: int = 0
    """The prompt and output tokens that had been computed when the call last stopped."""
    last_recomputed_tokens: int = 0
    """The tokens that the call had computed before its last preemption, and had to compute again
    after it.
    """
    recomputed_tokens: int = 0
    """The sum of ``last_recomputed_tokens`` over all preemptions of the call."""
    loading_tokens: int = 0
    """The tokens of a load that is in flight, or that has ended before the call has started."""
    load_due: float = -math.inf
    """The time by which computing the tokens of the call's last load would have ended."""
    loaded_tokens: int = 0
    """The tokens that were loaded in place of being computed, before the starts of the call."""
    unused_loaded_tokens: int = 0
    """The tokens of loads that failed, and of a load after which the call ended without having
    started.
    """
    adds: int = 0
    """The tokens that the call adds to its program's context (admission ``memory``)."""
    holds: int = 0
    """The tokens that the call needs in the cache in addition to the tokens that it shares with
    other calls (admission ``memory``).
    """

    # -- the weights -----------------------------------------------------------------------
    salt: str | None = None
    """The cache salt that the client sent with the call."""
    salted_for: int = 0
    """The version of the weights that the hashes of the call's blocks cover."""
    versions: list[list[int]] = field(default_factory=list)
    """The versions of the weights that wrote the output (`agentrt.request.weights.Versions`)."""

    # -- its history, for displays ---------------------------------------------------------
    notes: list[Any] = field(default_factory=list, repr=False)
    """The notes from which `agentrt.scheduler.account` makes the call's spans."""
    cause: list[Any] | None = field(default=None, repr=False)
    """The call as a cause in the notes of other calls that wait for it."""
    events: deque[tuple[str, float]] = field(default_factory=lambda: deque(maxlen=16), repr=False)
    """The names and times of the call's last events."""

    @property
    def queued(self) -> bool:
        """Whether the call is in the queue."""
        return self.state in QUEUED

    @property
    def blocked(self) -> bool:
        """Whether the call cannot start because its grammar is being compiled, or because its LoRA
        adapter does not fit. A call that is deferred only because it was preempted can start after
        a step or two, and does not count as blocked.
        """
        return self.state is DEFERRED and (self.stuck or not self.preemptions)

    @property
    def steps_since_start(self) -> int:
        """The number of engine steps since the call last started."""
        return self.steps - self.began_at_step

    @property
    def settled(self) -> bool:
        """Whether the call has been served for long enough since its last start to be preempted."""
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
