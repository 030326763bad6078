"""One engine of several: its life from start to death, and again."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from enum import StrEnum

from agentrt.errors import AgentrtError, EngineDiedError
from agentrt.executors.base import Executor, Progress
from agentrt.request import Call
from agentrt.router import ReplicaView

_CHARACTERS_PER_TOKEN = 4
"""A guess, for whoever must weigh a prompt before an engine has counted it."""


class ReplicaState(StrEnum):
    """How a replica stands. One that is out came to nothing too often, and stays so."""

    STARTING = "starting"
    READY = "ready"
    DOWN = "down"
    OUT = "out"


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
    """An engine with a name, made by ``make`` whenever it starts. ``view`` is for routers."""

    def __init__(self, name: str, make: Callable[[], Executor]) -> None:
        self.name = name
        self.state = ReplicaState.STARTING
        self.executor = make()
        self.view = ReplicaView(name)
        self.deaths = 0
        self.last_error = ""
        self.programs: set[str] = set()
        self._make = make
        self._ready_at = 0.0
        self._in_a_row = 0

    async def start(self, progress: Progress, now: Callable[[], float]) -> None:
        """Come up, or raise what the engine's start raises."""
        self.state = ReplicaState.STARTING
        await self.executor.start(progress)
        self.state, self._ready_at = ReplicaState.READY, now()

    def died(self, error: Exception, now: float, backoff: Backoff) -> float | None:
        """The engine is gone. Returns the rest before the next start (seconds), or None: out."""
        self.deaths += 1
        self.last_error = str(error)
        self.programs.clear()
        self._in_a_row = 1 if now - self._ready_at >= backoff.steady_s else self._in_a_row + 1
        if self._in_a_row > backoff.tries:
            self.state = ReplicaState.OUT
            return None
        self.state = ReplicaState.DOWN
        return min(backoff.longest_s, backoff.first_s * 2.0 ** (self._in_a_row - 1))

    async def renew(self) -> None:
        """Put a new engine, not started yet, in the place of the dead one."""
        dead, self.executor = self.executor, self._make()
        with contextlib.suppress(AgentrtError, OSError):
            await dead.close()

    @contextlib.asynccontextmanager
    async def within(self, seconds: float) -> AsyncIterator[None]:
        """Run the body, a question to the engine; no answer in time means that it hangs."""
        try:
            async with asyncio.timeout(seconds):
                yield
        except TimeoutError as error:
            raise EngineDiedError(f"{self.name} has not answered for {seconds:g} s") from error


def prompt_tokens(call: Call) -> int:
    """About how many tokens the call's prompt has."""
    spec = call.spec
    if spec.prompt_token_ids is not None:
        return len(spec.prompt_token_ids)
    texts = [spec.prompt or "", *(str(message.get("content")) for message in spec.messages or ())]
    return sum(map(len, texts)) // _CHARACTERS_PER_TOKEN
