"""The records of one engine: a program, a call with the table of its states, and cached blocks."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from agentrt.errors import InvariantError
from agentrt.request import Usage
from agentrt.scheduler.learned import SCANNED, Kind, Silence

Key = tuple[int, Any, int]


@dataclass(slots=True, eq=False)
class ProgramRow:
    """The one record of a program: what it had, what it does, and its part of the KV cache.

    ``service_s`` is the sum of its completed calls' service (PLAS), ``attained_s`` that of its
    running calls too, as far as this engine charged them; ``path_s`` the longest path of service
    seen (ATLAS' scalar); ``waiting_s`` its completed calls' time in the engine's queue. ``calls``
    are its active calls, each with its arrival time. ``size_hint`` is somebody's guess of its size,
    in a unit that is the same for all programs of its type.

    The rest is known in an engine core only. A ``lone`` one is a request without a program.
    ``queued`` are its calls in this engine, ``cached`` its blocks in the prefix cache. Under
    admission ``memory`` it claims ``claim`` blocks: for ``context_tokens``, the longest context
    that it comes back for, of which all programs of its type share the first ``shared_tokens``, and
    for its calls; ``growth`` of these blocks are for calls that it has not made yet. A ``member``
    may use the cache; without calls, all of its claim is ``held`` and its growth is
    ``growing_absent``, and with calls its growth is ``growing``. While the engine is idle it waits
    for the tool of program ``idle_for`` until ``idle_until`` at the most (None before it had to).
    It had attained ``attained_before_s`` when it last came in, perhaps ``by_age`` alone. Its last
    call ended at ``turned_at``.
    """

    program_id: str
    type: str
    tenant: str = "default"
    session: str | None = None
    started_at: float = 0.0
    service_s: float = 0.0
    attained_s: float = 0.0
    path_s: float = 0.0
    waiting_s: float = 0.0
    interrupt_s: float = 0.0
    calls: dict[str, float] = field(default_factory=dict)
    tools: int = 0
    humans: int = 0
    events: int = 0
    size_hint: float | None = None
    last_arrival: float = 0.0
    last_completion: float = 0.0
    finished_calls: int = 0
    usage: Usage = field(default_factory=Usage)
    ended: bool = False

    lone: bool = False
    queued: dict[str, QueuedCall] = field(default_factory=dict, repr=False)
    cached: CachedBlocks | None = None
    context_tokens: int = 0
    shared_tokens: int = 0
    claim: int = 0
    growth: int = 0
    held: int = 0
    growing: int = 0
    growing_absent: int = 0
    member: bool = False
    idle_until: float | None = None
    idle_for: str = ""
    was_member: bool = False
    by_age: bool = False
    attained_before_s: float = 0.0
    turned_at: float | None = None

    @property
    def kind(self) -> tuple[str, str]:
        """Its tenant and type: what is learned of others like it."""
        return self.tenant, self.type

    def start_over(self) -> None:
        """Forget what one engine's settings made of it; it has no call there."""
        self.cached = None
        self.context_tokens = self.shared_tokens = 0
        self.claim = self.growth = self.held = self.growing = self.growing_absent = 0
        self.idle_until, self.idle_for = None, ""
        self.member = self.was_member = self.by_age = False
        self.turned_at = None


@dataclass(slots=True, eq=False)
class CachedBlocks:
    """What a program, or what all programs of a type share, has in the prefix cache.

    ``rows`` are its live programs: none between two programs of a session, and where it is
    ``shared``; more than one only of a session. ``gap`` names what its program waits for outside
    the engine since ``since``: a tool, or a name that `retention` has; where nobody has said,
    ``silence`` counts it. One that ``branches`` had several calls at a time: some of its blocks may
    never be used again. ``oldest`` is when the free block that it would lose first was used,
    ``chains`` the hashes of blocks that its last calls had computed.
    """

    type: str
    tenant: str = "default"
    rows: dict[ProgramRow, None] = field(default_factory=dict, repr=False)
    session: tuple[str, str] | None = None
    shared: bool = False
    branches: bool = False
    gap: str | None = None
    since: float = 0.0
    silence: Silence | None = None
    oldest: float = 0.0
    chains: deque[bytearray] = field(default_factory=lambda: deque(maxlen=SCANNED), repr=False)

    @property
    def calling(self) -> bool:
        """Whether a call of its programs is in the engine, waiting or running."""
        return any(row.queued for row in self.rows)

    @property
    def asking(self) -> bool:
        """Whether one of its programs waits for a tool or a human."""
        return any(row.tools or row.humans for row in self.rows)

    @property
    def member(self) -> bool:
        """Whether one of its programs may use the cache now."""
        return any(row.member for row in self.rows)

    @property
    def released(self) -> bool:
        """Whether nobody will come back for its blocks, so that they go first."""
        return not (self.shared or self.rows or self.session is not None)

    def kinds(self, gap: str) -> tuple[Kind, Kind]:
        """What a gap of its program is one of: any gap of its type, and this one."""
        return (self.tenant, self.type, ""), (self.tenant, self.type, gap)


class CallState(StrEnum):
    """Where a call is. Only a `WAITING` one may be taken to run."""

    ASIDE = "aside"
    """The engine has it and no queue of ours: it just arrived, was taken, or was preempted."""
    WAITING = "waiting"
    OUTSIDE = "outside"
    """It waits until its program may use the KV cache (admission)."""
    DEFERRED = "deferred"
    """It cannot start yet: an output from before its preemption is in flight, or its grammar is
    being compiled."""
    RUNNING = "running"
    ENDED = "ended"


# By these names a state is found at once: an enumeration looks its members up in Python.
ASIDE, WAITING, OUTSIDE, DEFERRED, RUNNING, ENDED = CallState
TRANSITIONS: Mapping[CallState, frozenset[CallState]] = {
    ASIDE: frozenset({WAITING, OUTSIDE, DEFERRED, RUNNING, ENDED}),
    WAITING: frozenset({ASIDE}),
    OUTSIDE: frozenset({ASIDE, WAITING}),
    DEFERRED: frozenset({ASIDE}),
    RUNNING: frozenset({ASIDE, ENDED}),
    ENDED: frozenset(),
}
"""From each state, the states that may follow. A queued call that ends is set aside before."""
QUEUED = frozenset({WAITING, OUTSIDE, DEFERRED})
"""The states of calls that count as waiting in the engine's queue."""


@dataclass(slots=True, eq=False)
class QueuedCall:
    """One call, from its arrival at the engine to its end.

    ``item`` is the engine's own request, ``node`` the call's name in its program's graph,
    ``path_s`` its p(c) of Eq. 2 (None where its parents are unknown), ``prompt_tokens`` what of
    its prompt the engine has to compute as far as it knows at arrival, ``max_tokens`` its limit of
    output tokens (0: unknown). Times are seconds of the
    caller's clock: ``since`` is when its present wait began (None while it runs), ``began_at``
    when it last began to run. ``waited_s``, ``served_s`` and ``steps`` cover its whole life.
    Of its prompt, the program's own calls had computed ``known_tokens`` before it came, another
    call of the program that was there has ``beside_tokens`` in common with it, and
    ``cached_tokens`` were found when it first began; ``computed_tokens`` are those of prompt and
    output when it last stopped. ``adds`` and ``holds`` are its claim on the KV cache in tokens:
    what it adds to its program's context, and all that it holds beside other calls.
    """

    call_id: str
    program: ProgramRow
    item: Any
    path_s: float | None
    arrived_at: float
    node: str = ""
    prompt_tokens: int = 0
    max_tokens: int = 0
    state: CallState = ASIDE
    level: int = 0
    key: Key = (0, 0.0, 0)
    """Its level, its order there, and a new number with each priority: a smaller key runs first."""
    quantum_ends_s: float = math.inf
    """``served_s`` at which its quantum is used up."""
    since: float | None = None
    began_at: float = 0.0
    gave_way_to: str = ""
    """The program that it was preempted for last, while it waits."""
    waited_s: float = 0.0
    served_s: float = 0.0
    steps: int = 0
    began_at_step: int = 0
    """``steps`` when it last began to run."""
    began_served_s: float = 0.0
    """``served_s`` when it last began to run."""
    settled_at_s: float = 0.0
    """``served_s`` from which it may be preempted again; infinite until its first token since it
    last began to run (`LevelQueues.first_token`)."""
    lost_tokens: int = 0
    """Tokens that it computed again when it last began to run."""
    stuck: bool = False
    """Whether the engine could not start it when it last looked at it, though there was a slot: its
    LoRA adapter does not fit, or its KV cache is on its way."""
    resumable: bool = False
    """Whether it is a streaming session, which may wait for its client between two turns."""
    promoted: bool = False
    """Whether it goes before its policy's order, for its program's age or waiting."""
    preemptions: int = 0
    demotions: int = 0
    promotions: int = 0
    known_tokens: int = 0
    beside_tokens: int = 0
    cached_tokens: int | None = None
    computed_tokens: int = 0
    recomputed_tokens: int = 0
    adds: int = 0
    holds: int = 0
    identity: Any = None
    """What its client said of it, as the engine knows it."""
    notes: list[Any] = field(default_factory=list, repr=False)  # `agentrt.scheduler.account`
    cause: list[Any] | None = field(default=None, repr=False)  # it, as one others wait for
    arrived_step: int = 0

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

    def go(self, state: CallState) -> None:
        """Change its state. Raises `InvariantError` for a change that `TRANSITIONS` has not."""
        if state not in TRANSITIONS[self.state]:
            raise InvariantError(f"call {self.call_id}: {self.state.value} to {state.value}")
        self.state = state
