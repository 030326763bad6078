"""The gate before the engine: calls of all doors pass it in the order of `FairQueue`.

It stands before the engine and not in its scheduler: what it needs to know, a tenant's share
over all replicas, no engine core knows. The engine always holds more calls than its batch has
room for, so its own policy still chooses, and preempts, among the calls that are in.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from dataclasses import replace
from typing import Any

from agentrt.executors.base import Chunk, Executor, Progress
from agentrt.executors.boundary import Boundary, HearsBoundaries
from agentrt.executors.replicas.replica import prompt_tokens
from agentrt.request import Call, CallReport
from agentrt.scheduler.totals import ProgramTotals, Visits
from agentrt.serving.tenants.fair import FairQueue, Ticket
from agentrt.serving.tenants.quota import Tenants

_BATCHES = 2
"""The engine holds so many batches of calls: one that runs, and others to choose from."""
_BATCH = 16
_OUTPUT_WEIGHT = 2.0
"""An output token costs so much more than a prompt's (as in VTC's evaluation)."""
_EXPECTED_OUTPUT = 128
_BY_ARRIVAL = ("fcfs",)
_BY_PROGRAM_SERVICE = ("plas", "program-fcfs", "round-robin")


class Gate:
    """An `Executor` in front of another. What it does not know of it asks the other.

    With ``is_shared`` off there is one tenant, and the gate is open. ``isolate`` salts the
    prefix cache with the tenant's name.
    """

    def __init__(
        self,
        inner: Executor,
        tenants: Tenants,
        *,
        policy: str = "atlas",
        is_shared: bool = False,
        isolate: bool = False,
        replicas: int = 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.inner = inner
        self._tenants = tenants
        self._policy = policy
        self._is_shared = is_shared
        self._isolate = isolate
        self._replicas = replicas
        self._clock = clock
        self._queue = FairQueue(None, tenants.limits)
        self._waiting: dict[int, asyncio.Future[None]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def start(self, progress: Progress) -> None:
        await self.inner.start(progress)
        if self._is_shared:
            batch = getattr(self.inner, "max_num_seqs", None) or _BATCH
            self._queue.slots = _BATCHES * batch * self._replicas

    async def generate(self, call: Call, *, stream: bool) -> AsyncGenerator[Chunk, None]:
        if self._isolate:
            call = replace(call, spec=replace(call.spec, cache_salt=call.tenant))
        async with (
            self._turn(call) as turn,
            contextlib.aclosing(self.inner.generate(call, stream=stream)) as chunks,
        ):
            async for chunk in chunks:
                turn.tokens += 1  # for one that will be broken off
                yield chunk if chunk.reply is None else turn.end(chunk)

    @contextlib.asynccontextmanager
    async def _turn(self, call: Call) -> AsyncIterator[_Turn]:
        cost = prompt_tokens(call) + _OUTPUT_WEIGHT * min(call.spec.max_tokens, _EXPECTED_OUTPUT)
        ticket = self._queue.push(call.tenant, self._rank(call), cost, self._clock())
        entered = self._waiting[ticket.number] = asyncio.get_running_loop().create_future()
        self._let_in()
        try:
            await entered
        except asyncio.CancelledError:
            self._give_up(ticket)
            raise
        turn = _Turn(self._clock() - ticket.since, prompt_tokens(call))
        try:
            yield turn
        finally:
            self._queue.settle(ticket, cost if turn.used is None else turn.used)
            self._tenants.charge(call.tenant, turn.tokens)
            self._let_in()

    def _give_up(self, ticket: Ticket) -> None:
        if self._waiting.pop(ticket.number, None) is not None:
            self._queue.drop(ticket)
        else:  # it was let in at the same moment
            self._queue.settle(ticket, 0.0)
        self._let_in()

    def _let_in(self) -> None:
        while (ticket := self._queue.pop(self._clock())) is not None:
            entered = self._waiting.pop(ticket.number)
            if not entered.done():
                entered.set_result(None)

    def _rank(self, call: Call) -> float:
        """Among its tenant's calls the one goes in first that the policy would let run first."""
        if self._policy in _BY_ARRIVAL:
            return 0.0
        if self._policy in _BY_PROGRAM_SERVICE or call.path_s is None:
            return call.program_service_s
        return call.path_s

    async def aborted(self, call_id: str) -> CallReport:
        return await self.inner.aborted(call_id)

    async def end_program(
        self, program_id: str, totals: ProgramTotals | None = None
    ) -> Visits | None:
        return await self.inner.end_program(program_id, totals)

    def boundary(self, note: Boundary) -> None:
        """Hand a note on, if the engine hears them."""
        if isinstance(self.inner, HearsBoundaries):
            self.inner.boundary(note)

    async def snapshot(self) -> Mapping[str, Any]:
        return {**await self.inner.snapshot(), "tenants": self._queue.counts()}

    async def close(self) -> None:
        await self.inner.close()


class _Turn:
    """One call's time inside: what it used, and how long it had waited at the gate (seconds)."""

    def __init__(self, waited_s: float, prompt_tokens: int) -> None:
        self.used: float | None = None
        self.tokens = prompt_tokens
        self._waited_s = waited_s

    def end(self, chunk: Chunk) -> Chunk:
        """The last chunk, with the wait at the gate in its report."""
        assert chunk.reply is not None
        report = chunk.reply.report
        computed = max(0, report.prompt_tokens - report.cached_tokens)
        self.used = computed + _OUTPUT_WEIGHT * report.output_tokens
        self.tokens = computed + report.output_tokens
        report = replace(report, waiting_s=report.waiting_s + self._waited_s)
        return replace(chunk, reply=replace(chunk.reply, report=report))
