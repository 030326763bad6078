"""One call in the engine: its record, and the table of its states."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from agentrt.errors import InvariantError
from agentrt.scheduler.table import ProgramRow

Key = tuple[int, Any, int]


class CallState(Enum):
    """Where a call is. Only a `WAITING` one may be taken to run."""

    ASIDE = "aside"
    """The engine has it and no queue of ours: it just arrived, was taken, or was preempted."""
    WAITING = "waiting"
    OUTSIDE = "outside"
    """It waits until its program may use the KV cache (admission)."""
    DEFERRED = "deferred"
    """It was preempted with an output in flight, and waits until that has come."""
    RUNNING = "running"
    ENDED = "ended"


_S = CallState
TRANSITIONS: Mapping[CallState, frozenset[CallState]] = {
    _S.ASIDE: frozenset({_S.WAITING, _S.OUTSIDE, _S.DEFERRED, _S.RUNNING, _S.ENDED}),
    _S.WAITING: frozenset({_S.ASIDE, _S.DEFERRED, _S.ENDED}),
    _S.OUTSIDE: frozenset({_S.ASIDE, _S.WAITING, _S.ENDED}),
    _S.DEFERRED: frozenset({_S.ASIDE, _S.WAITING, _S.OUTSIDE, _S.ENDED}),
    _S.RUNNING: frozenset({_S.ASIDE, _S.ENDED}),
    _S.ENDED: frozenset(),
}
"""From each state, the states that may follow."""
QUEUED = frozenset({_S.WAITING, _S.OUTSIDE, _S.DEFERRED})
"""The states of calls that count as waiting in the engine's queue."""


@dataclass(slots=True, eq=False)
class QueuedCall:
    """One call, from its arrival at the engine to its end.

    ``item`` is the engine's own request, ``node`` the call's name in its program's graph,
    ``path_s`` its p(c) of Eq. 2 (None where its parents are unknown), ``prompt_tokens`` what of
    its prompt the engine has to compute as far as it knows at arrival. Times are seconds of the
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
    state: CallState = CallState.ASIDE
    level: int = 0
    key: Key = (0, 0.0, 0)
    """Its level, its order there, and a number for its turn: a smaller key runs first."""
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
    promoted: bool = False
    """Whether its program waited so long that the call goes before its policy's order."""
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
    arrived_step: int = 0

    @property
    def order(self) -> Any:
        """Its place within its level; a smaller one runs first."""
        return self.key[1]

    @property
    def seq(self) -> int:
        """A number that it gets anew with each priority."""
        return self.key[2]

    @property
    def queued(self) -> bool:
        """Whether it stands in a queue."""
        return self.state in QUEUED

    @property
    def quantum_left(self) -> float:
        """Seconds of service until its priority is asked for again."""
        return self.quantum_ends_s - self.served_s

    @property
    def residency_steps(self) -> int:
        """Engine steps since it last began to run."""
        return self.steps - self.began_at_step

    def go(self, state: CallState) -> None:
        """Change its state. Raises `InvariantError` for a change that `TRANSITIONS` has not."""
        if state not in TRANSITIONS[self.state]:
            raise InvariantError(f"call {self.call_id}: {self.state.value} to {state.value}")
        self.state = state

    def __lt__(self, other: QueuedCall) -> bool:
        return self.key < other.key
