"""The set of replicas: an `Executor` over several, that outlives each of them.

A call whose engine dies is retried on another replica: its seed is recorded in its spec, so the
same text comes again, and what a stream has given already is not given twice. A dead engine is
restarted after a while; one that dies too often is left out.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from agentrt.errors import AgentrtError, ConfigError, EngineDiedError
from agentrt.executors.base import (
    Chunk,
    Executor,
    FrontSetup,
    Notification,
    Progress,
    Reading,
)
from agentrt.executors.history import NONE, HistoryFile
from agentrt.executors.history_folder import common_key, history_file
from agentrt.executors.info import ExecutorInfo, not_served
from agentrt.executors.replicas.output import CallOutput
from agentrt.executors.replicas.replica import (
    UP,
    Backoff,
    Replica,
    ReplicaState,
    metrics_of,
    snapshot_of,
)
from agentrt.executors.replicas.routing import Routing
from agentrt.executors.replicas.supervisor import Health, Supervisor
from agentrt.request import Call, CallReport, Reply
from agentrt.router import RoutedCall, Router
from agentrt.router.policies import RoundRobin
from agentrt.scheduler.config import SchedulerConfig
from agentrt.scheduler.policies import level_ends, make_policy
from agentrt.scheduler.table import ProgramTotals

if TYPE_CHECKING:
    from prometheus_client import Metric


class ReplicaSet(Executor):
    """Runs calls on ``count`` engines that ``make`` makes, where ``router`` says.

    Engines may serve different models: a call that names none gets the first one's. With no
    replica left, a call waits up to ``ready_timeout_s`` for one to come back. ``health`` says when
    an engine that does not answer counts as dead. ``notice`` gets a line when a replica fails
    or comes back. ``scheduling`` are the engines' settings; routers look at its queue levels.

    The set keeps what the policy learns of the programs of all engines, in the ``history`` of
    ``scheduling``; None is a file for the engines' models and sizes. Each engine knows from its
    start on what the set knows, and learns from the programs that it serves. The engines
    themselves keep nothing: their own ``history`` is ``none``, or their `EngineOptions` say that
    there are several ``replicas``. Raises `ConfigError` for a file that is not a history file.
    """

    NAME: ClassVar[str] = "replica-{}"
    """What each replica is called, with its number."""

    def __init__(
        self,
        make: Callable[[int], Executor],
        count: int,
        router: Router,
        *,
        ready_timeout_s: float = 600.0,
        health: Health | None = None,
        backoff: Backoff | None = None,
        notice: Progress = lambda message: None,
        scheduling: SchedulerConfig | None = None,
    ) -> None:
        self.replicas = [
            Replica(self.NAME.format(index), partial(make, index)) for index in range(count)
        ]
        settings = scheduling or SchedulerConfig()
        self.routing = Routing(router, level_ends(settings))
        for replica in self.replicas:
            self.routing.join(replica)
        self._ready_timeout_s = ready_timeout_s
        self._where: dict[str, Replica] = {}
        policy = make_policy(settings)
        self._settings, self._notice = settings, notice
        file, self._learns = settings.history_file, policy.learns
        self._history = HistoryFile(policy, file, learns=policy.learns, warn=notice)
        self._supervisor = Supervisor(
            self.replicas,
            health or Health(),
            backoff or Backoff(),
            notice,
            ready=self.routing.ready,
            lost=self.routing.lost,
            restarted=self._teach,
        )

    @property
    def info(self) -> ExecutorInfo:
        models = dict.fromkeys(r.model for r in self.replicas if r.model)
        first = self.replicas[0].executor.info
        logits = next((r.info.logits for r in self.replicas if r.info.logits), ())
        return ExecutorInfo(
            tuple(models),
            first.slots,
            len(self.replicas),
            images=first.images,
            logits=logits,
            history_key=common_key(replica.info.history_key for replica in self.replicas),
            history=str(self._history.path or ""),
        )

    # -- life --------------------------------------------------------------------------

    async def start(self, progress: Progress) -> None:
        await self._supervisor.start(progress)
        if self._learns and self._settings.history is None and self._history.path is None:
            file = history_file(None, self.info.history_key, self._notice)
            if file is not None:
                self._history.open(file)
        for replica in self.replicas:
            with contextlib.suppress(AgentrtError):  # an engine that has died is taught again
                await self._teach(replica)

    async def _teach(self, replica: Replica) -> None:
        """Have the replica's engine know what the set knows of programs."""
        if self._history.path is not None and (known := self._history.values()) is not None:
            await replica.cancel_scope.run(partial(replica.executor.know, known))

    async def close(self) -> None:
        self._history.save()
        try:
            await self.routing.close()
        finally:
            await self._supervisor.close()

    async def drain(self, name: str) -> None:
        """Give the replica nothing new, and return when its calls have ended.

        It stays so until `restart`. Raises `ConfigError` for a name that there is not.
        """
        replica = self._named(name)
        replica.drained = True
        await self._supervisor.drain(replica)

    async def restart(self, name: str) -> None:
        """Drain the replica, and put a new engine in its place.

        Raises `ConfigError` for a name that there is not or a replica that is left out, and
        `EngineStartError` if the new engine does not come up.
        """
        await self._supervisor.restart(self._named(name))

    async def roll(self) -> None:
        """Restart all replicas that are not left out, one after another. Raises as `restart`."""
        for replica in self.replicas:
            if replica.state is not ReplicaState.OUT:
                await self._supervisor.restart(replica)

    async def settled(self) -> None:
        """Wait until every replica is up, drained or left out."""
        while any(r.state in (ReplicaState.STARTING, ReplicaState.DOWN) for r in self.replicas):
            await self._supervisor.wait_for_change()

    def _named(self, name: str) -> Replica:
        for replica in self.replicas:
            if replica.name == name:
                return replica
        names = ", ".join(replica.name for replica in self.replicas)
        raise ConfigError(f"there is no replica {name!r}; there is {names}")

    def alive(self) -> bool:
        return any(replica.state is ReplicaState.READY for replica in self.replicas)

    def waits_for(self) -> Sequence[str]:
        return [f"{each.name}: {each.waits_for}" for each in self.replicas if each.waits_for]

    async def given_up(self) -> str:
        return await self._supervisor.given_up()

    # -- calls -------------------------------------------------------------------------

    async def generate(self, call: Call, *, stream: bool) -> AsyncGenerator[Chunk, None]:
        output = CallOutput(call.call_id)
        while not output.delivered:
            replica, routed = self.routing.send(call, await self._ready(call))
            engine = replica.executor
            try:
                async with contextlib.aclosing(engine.generate(call, stream=stream)) as chunks:
                    with self._running(call, replica, routed, chunks) as reading:
                        async for chunk in reading:
                            reading.task = None
                            if chunk.reply is not None:
                                self.routing.ended(routed, chunk.reply.report)
                                chunk.reply = self._signed(chunk.reply, replica)
                            new = output.take(chunk)
                            if output.delivered:
                                self._where.pop(call.call_id, None)
                            if new is not None:
                                yield new
                return
            except EngineDiedError as error:
                if output.differs:
                    raise
                output.restart()
                self._supervisor.lost(replica, engine, error)
                replica.reruns += not output.delivered

    @contextlib.contextmanager
    def _running(
        self, call: Call, replica: Replica, routed: RoutedCall, chunks: AsyncGenerator[Chunk, None]
    ) -> Iterator[Reading[Chunk]]:
        """Read the call's chunks, as long as the engine of now lives; it is counted meanwhile."""
        self._where[call.call_id] = replica
        replica.calls += 1
        replica.programs.add(call.program_id)
        aborted = False
        try:
            with replica.cancel_scope.reading(chunks.__anext__) as reading:
                yield reading
        except (asyncio.CancelledError, GeneratorExit):
            aborted = True  # `aborted` will ask where it was
            raise
        finally:
            replica.calls -= 1
            self.routing.ended(routed)
            if not aborted:
                self._where.pop(call.call_id, None)
            if not replica.calls:
                self._supervisor.signal_change()

    def _signed(self, reply: Reply, replica: Replica) -> Reply:
        """A call's reply with the name of the replica that it is from."""
        report = dataclasses.replace(reply.report, replica=replica.name)
        return dataclasses.replace(reply, report=report)

    async def _ready(self, call: Call) -> list[Replica]:
        """The replicas that can run the call now, once there is one."""
        return await self._ready_of(self._able(call.spec.model))

    async def _ready_of(self, able: list[Replica]) -> list[Replica]:
        return await self._supervisor.ready_among(able, self._ready_timeout_s)

    def _able(self, model: str | None) -> list[Replica]:
        """The replicas that serve the model. Raises `NotServedError` where none does."""
        served = self.info
        asked = served.model if model is None else model
        able = [replica for replica in self.replicas if not asked or replica.serves(asked)]
        if not able:
            raise not_served(asked, served.models)
        return able

    async def front_setups(self) -> tuple[FrontSetup, ...]:
        found: dict[str, FrontSetup] = {}
        for model in self.info.models or (None,):
            replica = (await self._ready_of(self._able(model)))[0]
            for setup in await replica.executor.front_setups():
                found.setdefault(setup.model, setup)
        return tuple(found.values())

    async def add_adapter(self, model: str, adapter: Any) -> None:
        # A replica that is not up loads it with the first call that uses it.
        for replica in self._able(model):
            engine, add = replica.executor, partial(replica.executor.add_adapter, model, adapter)
            if replica.state in UP:
                try:
                    await replica.cancel_scope.run(add)
                except EngineDiedError as error:
                    self._supervisor.lost(replica, engine, error)

    async def aborted(self, call_id: str) -> CallReport:
        replica = self._where.pop(call_id, None)
        if replica is None or replica.state not in UP:
            return CallReport()
        engine = replica.executor
        try:
            return await replica.cancel_scope.run(lambda: engine.aborted(call_id))
        except EngineDiedError:
            return CallReport()

    # -- programs ----------------------------------------------------------------------

    def notify(self, note: Notification) -> None:
        for replica in self._that_ran(note.program_id):
            replica.executor.notify(note)

    async def end_program(self, program_id: str, totals: ProgramTotals | None = None) -> None:
        self.routing.dispatcher.program_ended(program_id)
        # The engines of now: one may have a successor by the time that another has answered.
        engines = [(one.executor, one.cancel_scope) for one in self._that_ran(program_id)]
        for replica in self.replicas:
            replica.programs.discard(program_id)
        try:
            for engine, scope in engines:
                with contextlib.suppress(AgentrtError):
                    await scope.run(partial(engine.end_program, program_id, totals))
        finally:
            if totals is not None:
                self._history.learn(totals)

    def _that_ran(self, program_id: str) -> list[Replica]:
        return [r for r in self.replicas if program_id in r.programs and r.state in UP]

    async def snapshot(self) -> Mapping[str, Any]:
        router = self.routing.dispatcher.router.name
        return {**await snapshot_of(self.replicas), "router": router}

    async def metrics(self) -> Sequence[Metric]:
        return await metrics_of(self.replicas)


class RestartedEngine(ReplicaSet):
    """A set of one engine, which `agentrt serve` runs: it is known by its own info and snapshot."""

    NAME = "the engine"

    def __init__(self, make: Callable[[], Executor], **options: Any) -> None:
        # Its engine keeps itself what it learns, with more than a set hears of.
        scheduling = SchedulerConfig(history=NONE)
        super().__init__(lambda index: make(), 1, RoundRobin(), scheduling=scheduling, **options)

    @property
    def info(self) -> ExecutorInfo:
        replica = self.replicas[0]
        return replica.info if replica.starts else replica.executor.info

    def _signed(self, reply: Reply, replica: Replica) -> Reply:
        return reply

    async def snapshot(self) -> Mapping[str, Any]:
        replica = self.replicas[0]
        found = await replica.snapshot()
        if not found or not replica.deaths:
            return found
        return {**found, "deaths": replica.deaths, "last_error": replica.last_error}
