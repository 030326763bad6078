"""The event loop is everybody's: how much of it each tenant's requests take, and who waits.

Use is CPU time of the steps that requests are made of, forgotten within a fraction of a second.
While the loop is much used, a tenant that uses it more than another that asks as well has its next
requests wait, one after the other, and a large one wherever it comes to a `pause`. Who is alone
never waits.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections.abc import Awaitable, Callable, Generator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from agentrt.executors.frontend import ON_BUSY

_MEMORY_S = 0.1
"""Use is forgotten within some of these."""
BUSY = 0.4
"""The part of the loop that may be used before anybody waits."""
FREE = 0.1
"""So much more of it than another a tenant may use."""
_RECENT_S = 1.0
"""For so long after a request its tenant counts as one that asks."""
_BYTE_S = 1e-8
"""What a byte of a body takes at most, before more is known."""
_OLD = 8
"""A tenant's mean request is of so many."""
_MOST_NAMES = 1024
_LEAST_S = 0.001
LONG = 64 * 1024
"""Bytes of a body from which on a request lets others go on between the pieces of its work."""


@dataclass(slots=True)
class _Use:
    """One tenant's: ``used`` (seconds) at the time ``at``, and what a request takes on average."""

    used: float = 0.0
    at: float = -math.inf
    asked_at: float = -math.inf
    mean: float = 0.0
    turns: asyncio.Lock = field(default_factory=asyncio.Lock)

    def share(self, now: float) -> float:
        """The part of the loop that it used lately."""
        self.used *= math.exp((self.at - now) / _MEMORY_S)
        self.at = now
        return self.used / _MEMORY_S


class LoopShares:
    """Who has used how much of one event loop. ``clock`` is in seconds."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.clock = clock
        self._sleep = sleep
        self._uses: dict[str, _Use] = {}

    async def run(self, tenant: str, request: Callable[[], Awaitable[None]], size: int = 0) -> None:
        """Run a request of ``tenant`` with a body of ``size`` bytes in its turn."""
        use = self._uses.pop(tenant) if tenant in self._uses else _Use()
        self._uses[tenant] = use  # the latest comes last
        use.asked_at = self.clock()
        self._forget_old()
        if size < LONG and not use.turns.locked() and self._is_alone(use):
            await request()
            return
        await use.turns.acquire()  # until the first step is done: the body is parsed in it
        turn = _Turn(self, use, size)
        _TURN.set(turn)
        ON_BUSY.set(turn.stepped)
        try:
            await self.wait(use)
            turn.begin()
            await Stepped(request(), turn.stepped)
        finally:
            turn.end()

    async def wait(self, own: _Use) -> None:
        """Wait until its tenant may go on."""
        while wait_s := self._wait_s(own):
            await self._sleep(wait_s)

    def _wait_s(self, own: _Use) -> float:
        """Seconds until its tenant may go on."""
        now = self.clock()
        recent = itertools.takewhile(
            lambda use: use.asked_at > now - _RECENT_S, reversed(self._uses.values())
        )
        others = [use.share(now) for use in recent if use is not own]
        if not others:
            return 0.0
        share = own.share(now)
        over = min((share + sum(others)) / BUSY, share / (min(others) + FREE))
        return max(_LEAST_S, _MEMORY_S * math.log(over)) if over > 1 else 0.0

    def _is_alone(self, own: _Use) -> bool:
        """Whether no other tenant asked lately: what its requests take is not measured then."""
        others = (use for use in reversed(self._uses.values()) if use is not own)
        last = next(others, None)
        return last is None or last.asked_at <= own.asked_at - _RECENT_S

    def _forget_old(self) -> None:
        while len(self._uses) > _MOST_NAMES:
            del self._uses[next(iter(self._uses))]


class _Turn:
    """One request: what it is expected to take is its tenant's use before it has taken it."""

    def __init__(self, shares: LoopShares, use: _Use, size: int) -> None:
        self._shares, self._use, self._size = shares, use, size
        self._expected = self._total = 0.0
        self._is_first, self._is_pausing = True, False

    def begin(self) -> None:
        self._expected = max(self._use.mean, self._size * _BYTE_S)
        self._add(self._expected)

    async def pause(self) -> None:
        """Let others go on. The next request of the tenant waits for this one's work meanwhile."""
        if self._size < LONG:
            return
        self._is_pausing = True
        await asyncio.sleep(0)
        self._add(-self._expected)  # what it has not taken yet is no reason to wait
        await self._shares.wait(self._use)
        self._add(self._expected)
        self._is_pausing = False

    def stepped(self, took_s: float) -> None:
        """A step is over, or work beside the loop that held the interpreter."""
        self._total += took_s
        known = min(self._expected, took_s)
        self._expected -= known
        self._add(took_s - known)
        if not self._is_pausing:
            self._release()

    def end(self) -> None:
        self._release()
        self._use.mean += (self._total - self._use.mean) / _OLD

    def _add(self, seconds: float) -> None:
        self._use.share(self._shares.clock())
        self._use.used += seconds

    def _release(self) -> None:
        if self._is_first:
            self._is_first = False
            self._use.turns.release()


_TURN: ContextVar[_Turn | None] = ContextVar("agentrt_turn", default=None)


async def pause() -> None:
    """Between pieces of work for the request under way: where it is a large one, others go on.

    Those of one tenant go in step: to do the same piece for each that came takes much less of the
    processor, whose caches have its code, than to do one request's pieces after another.
    """
    turn = _TURN.get()
    await (asyncio.sleep(0) if turn is None else turn.pause())


class Stepped:
    """Awaits what is given, and tells what each of its steps took, by ``clock`` (seconds).

    Tasks that it starts are not seen.
    """

    def __init__(
        self,
        awaited: Awaitable[None],
        told: Callable[[float], None],
        clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self._steps, self._told, self._clock = awaited.__await__(), told, clock

    def __await__(self) -> Generator[Any, Any, None]:
        step, given = self._steps.send, None
        while True:
            began = self._clock()
            try:
                awaited = step(given)
            except StopIteration:
                return
            finally:
                self._told(self._clock() - began)
            step, given = self._steps.send, None
            try:
                given = yield awaited
            except BaseException as error:
                step, given = self._steps.throw, error
