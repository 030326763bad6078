"""One engine, in whose place a new one is put when it dies."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from agentrt.errors import EngineDiedError
from agentrt.executors.base import Chunk, Executor, ForwardingExecutor, FrontSetup, Progress
from agentrt.executors.replicas.output import CallOutput
from agentrt.executors.replicas.replica import Backoff, Replica, ReplicaState
from agentrt.executors.replicas.supervisor import Health, Supervisor
from agentrt.request import Call, CallReport
from agentrt.scheduler.table import ProgramTotals

if TYPE_CHECKING:
    from prometheus_client import Metric

T = TypeVar("T")


class RestartedEngine(ForwardingExecutor):
    """Hands everything to the engine that ``make`` made last.

    A call whose engine dies runs again on the next one, and goes on where its stream stopped;
    calls that come meanwhile wait up to ``ready_timeout_s``. ``notice`` is told in words what
    happens. After too many deaths in a row there is no next one: see `given_up`.
    """

    def __init__(
        self,
        make: Callable[[], Executor],
        *,
        ready_timeout_s: float = 600.0,
        health: Health | None = None,
        backoff: Backoff | None = None,
        notice: Progress = lambda message: None,
    ) -> None:
        self.replica = Replica("the engine", make)
        super().__init__(self.replica.executor)
        self._ready_timeout_s = ready_timeout_s
        self._supervisor = Supervisor(
            [self.replica],
            health or Health(),
            backoff or Backoff(),
            notice,
            ready=self._use,
            lost=lambda replica: None,
        )

    def _use(self, replica: Replica) -> None:
        self.inner = replica.executor

    async def start(self, progress: Progress) -> None:
        await self._supervisor.start(progress)

    async def close(self) -> None:
        await self._supervisor.close()

    def alive(self) -> bool:
        return self.replica.state is ReplicaState.READY and self.inner.alive()

    async def given_up(self) -> str:
        return await self._supervisor.given_up()

    # -- calls -------------------------------------------------------------------------

    async def generate(self, call: Call, *, stream: bool) -> AsyncGenerator[Chunk, None]:
        output, replica = CallOutput(call.call_id), self.replica
        while not output.delivered:
            await self._ready()
            engine = self.inner
            try:
                async with contextlib.aclosing(engine.generate(call, stream=stream)) as chunks:
                    with replica.running(call, chunks) as reading:
                        async for chunk in reading:
                            reading.task = None
                            new = output.take(chunk)
                            if new is not None:
                                yield new
                return
            except EngineDiedError as error:
                if output.differs:
                    raise
                output.restart()
                self._supervisor.lost(replica, engine, error)
                replica.reruns += not output.delivered

    async def _ready(self) -> None:
        if self.replica.state is not ReplicaState.READY:
            await self._supervisor.ready_among([self.replica], self._ready_timeout_s)

    async def aborted(self, call_id: str) -> CallReport:
        return await self._ask(partial(self.inner.aborted, call_id), CallReport())

    async def end_program(self, program_id: str, totals: ProgramTotals | None = None) -> None:
        await self._ask(partial(self.inner.end_program, program_id, totals), None)

    async def _ask(self, work: Callable[[], Awaitable[T]], default: T) -> T:
        """What the engine answers; ``default`` where it dies before it has."""
        with contextlib.suppress(EngineDiedError):
            return await self.replica.cancel_scope.run(work)
        return default

    async def snapshot(self) -> Mapping[str, Any]:
        found = await self.replica.snapshot()
        if not found or not self.replica.deaths:
            return found
        return {**found, "deaths": self.replica.deaths, "last_error": self.replica.last_error}

    async def metrics(self) -> Sequence[Metric]:
        return await self.replica.metrics()

    # -- front ends --------------------------------------------------------------------

    async def front_setups(self) -> tuple[FrontSetup, ...]:
        await self._ready()
        return tuple(await self.inner.front_setups())

    async def add_adapter(self, model: str, adapter: Any) -> None:
        await self._ready()
        await self.replica.cancel_scope.run(partial(self.inner.add_adapter, model, adapter))
