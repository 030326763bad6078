"""The set of replicas: an `Executor` that runs calls on several engines and outlives each of them.

A call whose engine dies is retried on a replica that is ready. Its spec contains the seed, so the
retry has the same output, and the part that was already streamed is not streamed again. A dead
engine is restarted after a delay; an engine that dies too often is not started again.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from agentrt.errors import AgentrtError, ConfigError, EngineDiedError, EngineStartError
from agentrt.executors.base import (
    Chunk,
    Executor,
    FrontSetup,
    Notification,
    Progress,
)
from agentrt.executors.checkpoints import mark_of
from agentrt.executors.history import NONE, HistoryFile
from agentrt.executors.history_folder import common_key, history_file
from agentrt.executors.info import ExecutorInfo, not_served
from agentrt.executors.replicas.output import CallOutput
from agentrt.executors.replicas.replica import (
    UP,
    Backoff,
    ReachedEngine,
    Replica,
    ReplicaState,
    metrics_of,
    snapshot_of,
)
from agentrt.executors.replicas.routing import Routing
from agentrt.executors.replicas.supervisor import Health, Supervisor
from agentrt.executors.weights import Weights, survivors, update_engines
from agentrt.request import Call, CallReport, Reply
from agentrt.request.spans import STARTING
from agentrt.request.weights import PauseMode, check_mode
from agentrt.router import Router
from agentrt.router.dispatch import RoutedCall
from agentrt.router.policies import RoundRobinRouter
from agentrt.scheduler.config import SchedulerConfig
from agentrt.scheduler.policies import level_ends, make_policy
from agentrt.scheduler.table import ProgramTotals

if TYPE_CHECKING:
    from prometheus_client import Metric


_READY_S = 0.5
"""A call that waits longer than this, in seconds, for an engine that is ready has a span for it."""


class ReplicaSet(Executor):
    """An executor that runs calls on ``count`` engines. ``router`` chooses the engine of each call.

    ``make(index)`` creates an engine. Engines may serve different models; a call that names no
    model gets the model of the first engine, and updates of the weights are for this model, too. If
    no replica is ready, a call waits up to ``ready_timeout_s`` seconds. ``health`` says when an
    engine that does not answer counts as dead, and ``backoff`` when a dead engine is restarted.
    ``notice`` is called with a line of text when a replica fails, is back, is drained or waits for
    a node, and when the history file cannot be used. ``scheduling`` has the settings of the
    engines' schedulers; routers use its queue levels.

    The set collects the statistics that the policy learns from programs on all engines, and keeps
    them in the history file that ``scheduling`` names. Without a name, if the policy learns,
    `history_file` chooses the file: by the environment, or by the models and sizes of the engines.
    If there is a file and the policy learns, each engine starts with the statistics of the set, and
    learns more from its own programs. The engines must not write a history file
    themselves: in the `EngineOptions` of each engine, ``scheduler.history`` must be ``none``, or
    ``replicas`` must be greater than 1 and ``scheduler.history`` None. Raises `ConfigError` for a
    file that is not a history file.
    """

    NAME: ClassVar[str] = "replica-{}"
    """The format of the replicas' names, to be filled with a replica's number."""

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
        self._was_taught = False
        self._supervisor = Supervisor(
            self.replicas,
            health or Health(),
            backoff or Backoff(),
            notice,
            ready=self.routing.ready,
            lost=self.routing.lost,
            restarted=self._teach,
            prepare=self._load_latest,
        )
        self._weights = Weights()
        self._pause: PauseMode | None = None
        self._updating = asyncio.Lock()

    @property
    def info(self) -> ExecutorInfo:
        models = dict.fromkeys(r.model for r in self.replicas if r.model)
        first = self.replicas[0].executor.info
        logits = next((r.info.logits for r in self.replicas if r.info.logits), ())
        return ExecutorInfo(
            tuple(models),
            first.slots,
            len(self.replicas),
            tuple(replica.info.slots for replica in self.replicas),
            images=first.images,
            logits=logits,
            logprobs=all(replica.executor.info.logprobs for replica in self.replicas),
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
        await self._teach_all()

    async def know(self, learned: Mapping[str, Any]) -> bool:
        self._history.know(learned)
        self._was_taught = True
        return await self._teach_all()

    async def _teach_all(self) -> bool:
        """Teach all engines. Return whether an engine has learned."""
        has_learned = False
        for replica in self.replicas:
            with contextlib.suppress(AgentrtError):  # a dead engine is taught after its restart
                has_learned |= await self._teach(replica)
        return has_learned

    async def _teach(self, replica: Replica) -> bool:
        """Send what the set has learned of programs to a replica's engine. Return whether the
        engine has learned.
        """
        known = self._history.values() if self._teaches else None
        if known is None:
            return False
        return await replica.cancel_scope.run(partial(replica.executor.know, known))

    @property
    def _teaches(self) -> bool:
        """Whether the set learns, and teaches the engines that it starts."""
        return self._was_taught or self._history.path is not None

    async def close(self) -> None:
        self._history.save()
        try:
            await self.routing.close()
        finally:
            await self._supervisor.close()

    async def drain(self, name: str) -> None:
        """Send no more calls to a replica, and return when its calls have ended.

        The replica gets no calls until `restart` or `roll`. Raises `ConfigError` for an unknown
        name.
        """
        replica = self._named(name)
        replica.drained = True
        await self._supervisor.drain(replica)

    async def restart(self, name: str) -> None:
        """Drain a replica and replace its engine. Return when a new engine is ready.

        If a new engine is starting already, this only waits for it. If this is cancelled while the
        replica's calls end, the replica takes calls again. Raises `ConfigError` for an unknown name
        or a replica that has failed too often to be started again, and `EngineStartError` if the
        start of a new engine has failed too often, or the set is closed meanwhile.
        """
        await self._supervisor.restart(self._named(name))

    async def roll(self) -> None:
        """Restart all replicas one after another, except those that have failed too often.

        Raises the same errors as `restart`.
        """
        for replica in self.replicas:
            if replica.state is not ReplicaState.OUT:
                await self._supervisor.restart(replica)

    async def settled(self) -> None:
        """Wait until no replica is starting or down."""
        while any(r.state in (ReplicaState.STARTING, ReplicaState.DOWN) for r in self.replicas):
            await self._supervisor.wait_for_change()

    def _named(self, name: str) -> Replica:
        for replica in self.replicas:
            if replica.name == name:
                return replica
        names = ", ".join(replica.name for replica in self.replicas)
        raise ConfigError(f"unknown replica {name!r}; available: {names}")

    def alive(self) -> bool:
        return any(replica.state is ReplicaState.READY for replica in self.replicas)

    def waits_for(self) -> Sequence[str]:
        return [f"{each.name}: {each.waits_for}" for each in self.replicas if each.waits_for]

    async def given_up(self) -> str:
        return await self._supervisor.given_up()

    # -- calls -------------------------------------------------------------------------

    async def generate(self, call: Call, *, stream: bool) -> AsyncGenerator[Chunk, None]:
        call_id = call.call_id
        output = CallOutput(call_id)
        came, died = time.monotonic(), ""
        while not output.delivered:
            replica, routed = self._routed(call, await self._ready(call))
            sent = time.monotonic()
            engine = replica.executor
            aborted = False
            self._where[call_id] = replica
            replica.calls += 1
            replica.programs.add(call.program_id)
            try:
                try:
                    async with contextlib.aclosing(engine.generate(call, stream=stream)) as chunks:
                        with replica.cancel_scope.reading(chunks.__anext__) as reading:
                            async for chunk in reading:
                                reading.task = None
                                if chunk.reply is not None:
                                    self.routing.ended(routed, chunk.reply.report)
                                    reply = self._with_replica(chunk.reply, replica)
                                    chunk.reply = _with_delay(reply, sent - came, died)
                                new = output.take(chunk)
                                if output.delivered:
                                    self._where.pop(call_id, None)
                                if new is not None:
                                    yield new
                    return
                except (asyncio.CancelledError, GeneratorExit):
                    aborted = True  # the method `aborted` needs the call's replica
                    raise
                finally:
                    replica.calls -= 1
                    self.routing.ended(routed)
                    if not aborted:
                        self._where.pop(call_id, None)
                    if not replica.calls:
                        self._supervisor.signal_change()
            except EngineDiedError as error:
                if output.differs:
                    raise
                output.restart()
                died = f"{died}, {replica.name}" if died else replica.name
                self._supervisor.lost(replica, engine, error)
                replica.reruns += not output.delivered

    def _routed(self, call: Call, ready: list[Replica]) -> tuple[Replica, RoutedCall | None]:
        """Choose one of the ``ready`` replicas for a call. Return the replica, and the call as the
        router knows it; None if the router does not know it.
        """
        return self.routing.send(call, ready)

    def _with_replica(self, reply: Reply, replica: Replica) -> Reply:
        """Return a call's reply with the name of its replica in the report."""
        report = dataclasses.replace(reply.report, replica=replica.name)
        return dataclasses.replace(reply, report=report)

    async def _ready(self, call: Call) -> list[Replica]:
        """Wait until replicas can run a call, and return them."""
        able = self._able(call.spec.model)
        return await self._supervisor.ready_among(able, self._ready_timeout_s)

    async def _ready_of(self, able: list[Replica]) -> list[Replica]:
        return await self._supervisor.ready_among(able, self._ready_timeout_s)

    def _able(self, model: str | None) -> list[Replica]:
        """Return the replicas that serve a model. Raises `NotServedError` if there are none."""
        served = self.info
        name = served.model if model is None else model
        able = [replica for replica in self.replicas if not name or replica.serves(name)]
        if not able:
            raise not_served(name, served.models)
        return able

    async def front_setups(self) -> tuple[FrontSetup, ...]:
        setups: dict[str, FrontSetup] = {}
        for model in self.info.models or (None,):
            for setup in await self._setups_of(model):
                setups.setdefault(setup.model, setup)
        return tuple(setups.values())

    async def _setups_of(self, model: str | None) -> Sequence[FrontSetup]:
        """Return the setups of an engine that serves ``model``."""
        while True:
            replica = (await self._ready_of(self._able(model)))[0]
            engine = replica.executor
            try:
                return await replica.cancel_scope.run(engine.front_setups)
            except EngineDiedError as error:
                self._supervisor.lost(replica, engine, error)

    async def add_adapter(self, model: str, adapter: Any) -> None:
        # A replica that is down will load the adapter with the first call that uses it.
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

    # -- weights -----------------------------------------------------------------------

    @property
    def weights(self) -> Weights:
        return self._weights

    @property
    def paused(self) -> bool:
        return self._pause is not None

    async def pause_generation(self, mode: PauseMode) -> None:
        check_mode(mode)
        async with self._updating:
            self._pause = mode
            engines = self._reached(self.replicas)
            results = await asyncio.gather(
                *(engine.pause_generation(mode) for engine in engines), return_exceptions=True
            )
            for result in results:
                if result is not None and not isinstance(result, EngineDiedError):
                    self._pause = None
                    await asyncio.gather(*(each.resume_generation() for each in engines))
                    raise result

    async def resume_generation(self) -> None:
        async with self._updating:
            self._pause = None
            for engine in self._reached(self.replicas):
                with contextlib.suppress(EngineDiedError):
                    await engine.resume_generation()

    def _updated(self) -> list[Replica]:
        """Return the replicas whose weights are updated: those of the first model. A checkpoint
        belongs to one model, even if another model has tensors of the same names and shapes.
        """
        model = self.info.model
        return [replica for replica in self.replicas if replica.model == model]

    async def check_weights(self, folder: str) -> str:
        reached = self._reached(self._updated())
        marks, _ = await survivors(reached, lambda engine: engine.check_weights(folder), least=0)
        return marks[0] if marks else mark_of(folder)

    async def update_weights(
        self, folder: str, version: int, mode: PauseMode = "keep", *, clear_cache: bool = False
    ) -> None:
        updated = self._updated()
        await self._ready_of(updated)
        async with self._updating:
            engines = self._reached(updated)
            # An engine that could not go back after a failed update has blocks of that version.
            ahead = max((engine.weights.version for engine in engines), default=0)
            if version <= ahead:
                raise ConfigError(
                    f"version {version} is not newer than version {ahead}, which an engine has; "
                    f"use a version from {ahead + 1} on"
                )
            self._weights = await update_engines(
                engines, folder, version, mode, clear_cache=clear_cache
            )

    def _reached(self, replicas: list[Replica]) -> list[ReachedEngine]:
        lost = self._supervisor.lost
        return [ReachedEngine(replica, lost) for replica in replicas if replica.state in UP]

    async def _load_latest(self, replica: Replica) -> None:
        """Load the latest weights into a replica's new engine before the engine takes calls, and
        pause the engine if generation is paused. Raises `EngineStartError` if the weights cannot be
        loaded, for example because their files do not exist any more.
        """
        async with self._updating:
            if self._weights.version and replica in self._updated():
                try:
                    await replica.executor.load_weights(self._weights)
                except AgentrtError as error:
                    raise EngineStartError(
                        f"{replica.name} cannot load the latest weights: {error}"
                    ) from error
            if self._pause is not None:
                await replica.executor.pause_generation(self._pause)

    # -- programs ----------------------------------------------------------------------

    def notify(self, note: Notification) -> None:
        for replica in self._that_ran(note.program_id):
            replica.executor.notify(note)

    async def end_program(self, program_id: str, totals: ProgramTotals | None = None) -> None:
        self.routing.dispatcher.program_ended(program_id)
        # List the engines first: an engine may be replaced while another engine answers.
        engines = [(r.executor, r.cancel_scope) for r in self._that_ran(program_id)]
        for replica in self.replicas:
            replica.programs.discard(program_id)
        try:
            for engine, scope in engines:
                with contextlib.suppress(AgentrtError):
                    await scope.run(partial(engine.end_program, program_id, totals))
        finally:
            if totals is not None and self._teaches:
                self._history.learn(totals)

    def _that_ran(self, program_id: str) -> list[Replica]:
        return [r for r in self.replicas if program_id in r.programs and r.state in UP]

    async def snapshot(self) -> Mapping[str, Any]:
        router = self.routing.dispatcher.router.name
        return {**await snapshot_of(self.replicas), "router": router}

    async def metrics(self) -> Sequence[Metric]:
        return await metrics_of(self.replicas)


def _with_delay(reply: Reply, seconds: float, died: str) -> Reply:
    """Return a call's reply with a span for the ``seconds`` before its last engine got it, if
    engines ``died`` with the call, or if it waited for an engine. Without the span, this time would
    count as the way to the engine, and nobody would know why it took so long.
    """
    spans = reply.report.spans
    if not spans or not (died or seconds > _READY_S):
        return reply
    cause = f"({died} died)" if died else "(no engine was ready)"
    lost = [STARTING, seconds, 0, 0.0, 0, [[cause, 0, 0.0]]]
    return dataclasses.replace(
        reply, report=dataclasses.replace(reply.report, spans=[lost, *spans])
    )


class RestartedEngine(ReplicaSet):
    """A set of one engine that is restarted if it dies, for `agentrt serve`.

    The info and the snapshot are those of the engine, and not those of a set. If the engine has
    died, the snapshot also has ``deaths`` and ``last_error``.
    """

    NAME = "the engine"

    def __init__(self, make: Callable[[], Executor], **options: Any) -> None:
        # The engine keeps its own history, since it learns more than a set can know.
        scheduling = SchedulerConfig(history=NONE)
        super().__init__(
            lambda index: make(), 1, RoundRobinRouter(), scheduling=scheduling, **options
        )

    @property
    def info(self) -> ExecutorInfo:
        replica = self.replicas[0]
        return replica.info if replica.starts else replica.executor.info

    async def know(self, learned: Mapping[str, Any]) -> bool:
        return await self.replicas[0].executor.know(learned)

    def _routed(self, call: Call, ready: list[Replica]) -> tuple[Replica, RoutedCall | None]:
        return ready[0], None  # no router is needed

    def _with_replica(self, reply: Reply, replica: Replica) -> Reply:
        return reply

    async def snapshot(self) -> Mapping[str, Any]:
        replica = self.replicas[0]
        snapshot = await replica.snapshot()
        if not snapshot or not replica.deaths:
            return snapshot
        return {**snapshot, "deaths": replica.deaths, "last_error": replica.last_error}
