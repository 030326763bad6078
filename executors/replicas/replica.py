"""One engine of several: its life from start to death, and again."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from agentrt import tracking
from agentrt.errors import AgentrtError
from agentrt.executors.base import Executor, Progress
from agentrt.executors.info import is_model
from agentrt.executors.replicas.cancel_scope import CancelScope
from agentrt.request import Call
from agentrt.router import ReplicaView

_CHARACTERS_PER_TOKEN = 4
"""A guess, for whoever must weigh a prompt before an engine has counted it."""


class ReplicaState(StrEnum):
    """How a replica stands.

    One that is ``draining`` finishes its calls and takes none; one that is ``out`` came to
    nothing too often, and stays so.
    """

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    DOWN = "down"
    OUT = "out"


UP = frozenset({ReplicaState.READY, ReplicaState.DRAINING})
"""The states with a live engine."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long a dead replica rests before it starts again (seconds), and when it is left out.

    The first rest is ``first_s``, and each next one twice the last, up to ``longest_s``. After
    ``tries`` deaths in a row, each less than ``steady_s`` after the start before it, it is out.
    """

    first_s: float = 0.5
    longest_s: float = 30.0
    steady_s: float = 60.0
    tries: int = 5


class Replica:
    """An engine with a name, made by ``make`` whenever it starts. ``view`` is for routers.

    ``calls`` are those that it has now; ``reruns`` counts the calls that it lost, and that ran
    again. One that is ``drained`` takes none, its successors after a death neither.
    """

    def __init__(self, name: str, make: Callable[[], Executor]) -> None:
        self.name = name
        self.state = ReplicaState.STARTING
        self.executor = make()
        self.cancel_scope = CancelScope()
        self.model = ""
        self.view = ReplicaView(name)
        self.calls = 0
        self.deaths = 0
        self.starts = 0
        self.reruns = 0
        self.last_error = ""
        self.programs: set[str] = set()
        self.drained = False
        self._make = make
        self._closing: set[asyncio.Task[None]] = set()
        self._ready_at = 0.0
        self._in_a_row = 0

    async def start(self, progress: Progress, now: Callable[[], float]) -> None:
        """Come up, or raise what the engine's start raises."""
        self.state = ReplicaState.STARTING
        await self.executor.start(progress)
        self.model = self.executor.info.model
        self.starts += 1
        self.state = ReplicaState.DRAINING if self.drained else ReplicaState.READY
        self._ready_at = now()

    def serves(self, model: str) -> bool:
        """Whether the replica has this model. Of an engine that does not say, all are believed."""
        return not self.model or is_model(model, self.model)

    def died(self, error: Exception, now: float, backoff: Backoff) -> float | None:
        """The engine is gone. Returns the rest before the next start (seconds), or None: out."""
        was_steady = self.state in UP and now - self._ready_at >= backoff.steady_s
        self.deaths += 1
        self.last_error = str(error)
        self.forget()
        self.cancel_scope.cut(self.last_error)
        self._in_a_row = 1 if was_steady else self._in_a_row + 1
        if self._in_a_row > backoff.tries:
            self.state = ReplicaState.OUT
            return None
        self.state = ReplicaState.DOWN
        return min(backoff.longest_s, backoff.first_s * 2.0 ** (self._in_a_row - 1))

    def put_off(self, error: Exception, backoff: Backoff) -> float:
        """There is no room for the engine now. Returns the rest before the next try (seconds)."""
        self.last_error, self.state = str(error), ReplicaState.DOWN
        return backoff.longest_s

    def forget(self) -> None:
        """What the engine had is gone with it."""
        self.programs.clear()

    async def renew(self) -> None:
        """Put a new engine, not started yet, in the place of the dead one."""
        dead, self.executor = self.executor, self._make()
        self.cancel_scope.cut(f"{self.name} was replaced")
        self.cancel_scope = CancelScope()
        with tracking.outside():
            closing = asyncio.create_task(dead.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)
        with contextlib.suppress(AgentrtError, OSError):
            await asyncio.shield(closing)  # who gives up here leaves it to `close`

    async def close(self) -> None:
        """Stop the engine, and wait for dead ones that are still being put away."""
        await asyncio.gather(*self._closing, return_exceptions=True)
        await self.executor.close()

    @contextlib.contextmanager
    def holding(self, call: Call) -> Iterator[None]:
        """Count the call, and know its program, while the body runs."""
        self.calls += 1
        self.programs.add(call.program_id)
        try:
            yield
        finally:
            self.calls -= 1

    def describe(self) -> dict[str, Any]:
        """The replica, for people."""
        return {
            "name": self.name,
            "model": self.model,
            "state": str(self.state),
            "calls": self.calls,
            "in_flight_tokens": self.view.in_flight,
            "starts": self.starts,
            "deaths": self.deaths,
            "reruns": self.reruns,
            "last_error": self.last_error,
        }


def prompt_tokens(call: Call) -> int:
    """About how many tokens the call's prompt has."""
    spec = call.spec
    if spec.prompt_token_ids is not None:
        return len(spec.prompt_token_ids)
    texts = [spec.prompt or "", *(str(message.get("content")) for message in spec.messages or ())]
    return sum(map(len, texts)) // _CHARACTERS_PER_TOKEN
