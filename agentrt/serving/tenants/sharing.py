"""Fair sharing between tenants: calls are dispatched to the engines in the order of `FairQueue`.

This queue is in front of the engines and not in their schedulers, because it needs a tenant's share
over all replicas, which no engine core knows. It dispatches more calls than fit into a batch, so
the engine's own policy still chooses among the dispatched calls, and preempts them. Which programs
may use the KV cache is decided later, by the admission of each engine (`agentrt.scheduler`).
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

from agentrt.executors.base import Chunk, Executor, ForwardingExecutor, Progress
from agentrt.executors.replicas.routing import prompt_tokens
from agentrt.request import Call, Reply
from agentrt.scheduler.policies import Policy, policy_class
from agentrt.serving.tenants.fair import BATCHES, RECENT_S, FairQueue, Ticket
from agentrt.serving.tenants.limits import Tenants
from agentrt.steady import EARLY_S

IS_BATCH: ContextVar[bool] = ContextVar("agentrt_is_batch", default=False)
"""Whether the current task makes calls for a batch of OpenAI's API. Such calls are dispatched
after all other waiting calls of the same tenant, unless they have waited for `fair.STARVATION_S`
seconds.
"""
_BATCH = 16
_OUTPUT_WEIGHT = 2.0
"""The cost of an output token in prompt tokens (as in the evaluation of the VTC paper)."""
_EXPECTED_OUTPUT = 128


class FairSharing(ForwardingExecutor):
    """An `Executor` that dispatches calls to another executor by their tenants' shares.

    With ``is_shared`` off, calls are queued only if their tenant has a limit of concurrency or of
    tokens per minute. With ``isolate``, the prefix cache is salted with the tenant's name, so that
    tenants do not share cached prefixes. The scheduler's ``policy`` orders the calls of one tenant.
    """

    def __init__(
        self,
        inner: Executor,
        tenants: Tenants,
        *,
        policy: type[Policy] | None = None,
        is_shared: bool = False,
        isolate: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(inner)
        self._tenants = tenants
        self._policy = policy_class("atlas") if policy is None else policy
        self._is_shared = is_shared
        self._isolate = isolate
        self._clock = clock
        self._queue = FairQueue(None, tenants.limits)
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._again: asyncio.TimerHandle | None = None

    async def start(self, progress: Progress) -> None:
        await self.inner.start(progress)
        if self._is_shared:
            self._queue.slots = BATCHES * self.inner.info.all_slots(_BATCH)

    def generate(self, call: Call, *, stream: bool) -> AsyncGenerator[Chunk, None]:
        if self._isolate:
            # A client's own salt separates calls further within the tenant.
            salts = filter(None, (call.identity.tenant, call.spec.cache_salt))
            call = replace(call, spec=replace(call.spec, cache_salt="/".join(salts)))
        limits = self._tenants.limits(call.identity.tenant)
        if self._is_shared or not (limits.concurrency is limits.tokens_per_minute is None):
            return self._in_turn(call, stream=stream)
        return self.inner.generate(call, stream=stream)

    async def _in_turn(self, call: Call, *, stream: bool) -> AsyncGenerator[Chunk, None]:
        tokens = prompt_tokens(call)
        ticket, waited_s = await self._entered(call, tokens)
        used = ticket.cost
        try:
            async with contextlib.aclosing(self.inner.generate(call, stream=stream)) as chunks:
                async for chunk in chunks:
                    tokens += 1  # the charge for a call that is cancelled before its report
                    if chunk.reply is not None:
                        report = chunk.reply.report
                        used = report.uncached_tokens + _OUTPUT_WEIGHT * report.output_tokens
                        tokens = report.uncached_tokens + report.output_tokens
                        chunk.reply = _delayed(chunk.reply, waited_s)
                    yield chunk
        finally:
            self._queue.settle(ticket, used)
            self._tenants.charge(ticket.tenant, tokens)
            self._dispatch()

    async def snapshot(self) -> Mapping[str, Any]:
        return {**await self.inner.snapshot(), "tenants": self._queue.counts()}

    async def _entered(self, call: Call, prompt: int) -> tuple[Ticket, float]:
        """Wait until a call may be dispatched. Return the call's ticket, and the seconds that it
        waited.
        """
        cost = prompt + _OUTPUT_WEIGHT * min(call.spec.max_tokens, _EXPECTED_OUTPUT)
        rank = self._policy.tenant_queue_rank(call.identity.path_s, call.identity.service_s)
        if IS_BATCH.get():
            rank = math.inf
        ticket = self._queue.push(call.identity.tenant, rank, cost, self._clock())
        entered = self._waiting[ticket.number] = asyncio.get_running_loop().create_future()
        self._dispatch()
        if entered.done():
            return ticket, 0.0
        try:
            await entered
        except asyncio.CancelledError:
            self._give_up(ticket)
            raise
        return ticket, self._clock() - ticket.since

    def _give_up(self, ticket: Ticket) -> None:
        if self._waiting.pop(ticket.number, None) is not None:
            self._queue.drop(ticket)
        else:  # the call was dispatched in the same moment as it was cancelled
            self._queue.settle(ticket, 0.0)
        self._dispatch()

    def _dispatch(self) -> None:
        """Dispatch the calls for which there is room now."""
        while self._waiting and (ticket := self._queue.pop(self._clock())) is not None:
            entered = self._waiting.pop(ticket.number)
            if not entered.done():
                entered.set_result(None)
        # Calls may wait only because another tenant made a call a short time ago.
        if self._waiting and self._again is None:
            later = asyncio.get_running_loop().call_later
            self._again = later(RECENT_S + EARLY_S, self._dispatch_again)

    def _dispatch_again(self) -> None:
        self._again = None
        self._dispatch()


def _delayed(reply: Reply, waited_s: float) -> Reply:
    """Return a call's reply with the wait for the tenant's turn added to its report."""
    if not waited_s:
        return reply
    report = replace(reply.report, waiting_s=reply.report.waiting_s + waited_s)
    return replace(reply, report=report)
