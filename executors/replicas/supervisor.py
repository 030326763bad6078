"""Keeps replicas alive: starts them, notices their deaths, starts them again, drains them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from agentrt import tracking
from agentrt.errors import ConfigError, EngineStartError, NoRoomError
from agentrt.executors.base import Executor, Progress
from agentrt.executors.replicas.health import Health
from agentrt.executors.replicas.replica import UP, Backoff, Replica, ReplicaState


class Supervisor:
    """The lives of ``replicas``. ``ready`` is told of each whose engine has started, ``lost`` of
    each whose engine is gone.
    """

    def __init__(
        self,
        replicas: Sequence[Replica],
        health: Health,
        backoff: Backoff,
        notice: Progress,
        *,
        ready: Callable[[Replica], None],
        lost: Callable[[Replica], None],
    ) -> None:
        self.open = False
        self._replicas = replicas
        self._health = health
        self._backoff = backoff
        self._notice = notice
        self._tell_ready = ready
        self._tell_lost = lost
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()

    # -- all of them -------------------------------------------------------------------

    async def start(self, progress: Progress) -> None:
        """Start all at once. Raises the first fault, with nothing left running."""
        self.open = True
        said: dict[str, str] = {}

        async def start(replica: Replica) -> None:
            def tell(message: str) -> None:
                said[replica.name] = message
                progress("; ".join(f"{name}: {text}" for name, text in sorted(said.items())))

            await replica.start(tell, time.monotonic)
            self._tell_ready(replica)

        try:
            async with asyncio.TaskGroup() as group:
                for replica in self._replicas:
                    group.create_task(start(replica))
        except BaseExceptionGroup as several:
            await self.close()
            raise several.exceptions[0] from None
        except BaseException:
            await self.close()
            raise
        for replica in self._replicas:
            self._keep(self._watch(replica))

    async def close(self) -> None:
        """Stop all engines, and whatever is being done for them."""
        self.open = False
        self.tell()
        tasks, self._tasks = self._tasks, set()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await asyncio.gather(*(replica.close() for replica in self._replicas))

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        with tracking.outside():
            task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def tell(self) -> None:
        """Wake up whoever waits for a change of a replica."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def change(self) -> None:
        """Wait until a replica comes, goes, or has no calls any more."""
        await self._changed.wait()

    # -- death and return --------------------------------------------------------------

    def lost(self, replica: Replica, engine: Executor, error: Exception) -> None:
        """``engine`` died. The first of its calls that says so has it replaced."""
        if not self.open or replica.executor is not engine or replica.state not in UP:
            return
        self._tell_lost(replica)
        rest = replica.died(error, time.monotonic(), self._backoff)
        self.tell()
        if rest is None:
            self._notice(f"{replica.name} died {replica.deaths} times and is left out: {error}")
            return
        self._notice(f"{replica.name} died and starts again: {error}")
        self._keep(self._revive(replica, rest))

    async def _revive(self, replica: Replica, rest: float) -> None:
        again: float | None = rest
        while again is not None:
            await asyncio.sleep(again)
            again = await self._bring_up(replica)
        self.tell()
        if replica.state is ReplicaState.OUT:
            why = replica.last_error
            self._notice(f"{replica.name} does not start and is left out: {why}")
        else:
            self._notice(f"{replica.name} is back")

    async def _bring_up(self, replica: Replica) -> float | None:
        """Start a new engine. Returns the rest before the next try; None: no more tries."""
        await replica.renew()
        try:
            await replica.start(lambda message: None, time.monotonic)
            self._tell_ready(replica)
        except NoRoomError as error:  # nothing is wrong with it: a node may still come
            return replica.put_off(error, self._backoff)
        except Exception as error:  # whatever it is, the replica must not be forgotten
            return replica.died(error, time.monotonic(), self._backoff)
        return None

    async def _watch(self, replica: Replica) -> None:
        """An engine that dies idle, or hangs, tells nobody: ask it now and then."""
        while True:
            await asyncio.sleep(self._health.every_s)
            if replica.state in UP:
                await self.check(replica)

    async def check(self, replica: Replica) -> None:
        """Ask the replica's engine whether it is well; have it replaced if not."""
        engine = replica.executor
        try:
            await self._health.ask(replica.name, engine)
        except Exception as error:
            self.lost(replica, engine, error)

    # -- on purpose --------------------------------------------------------------------

    async def drain(self, replica: Replica) -> None:
        """Give it nothing new, and return when its calls have ended."""
        if replica.state is ReplicaState.READY:
            replica.state = ReplicaState.DRAINING
            self._notice(f"{replica.name} takes nothing new: {replica.calls} calls to finish")
        while replica.calls and replica.state is ReplicaState.DRAINING:
            await self.change()

    async def restart(self, replica: Replica) -> None:
        """Drain it, and put a new engine in its place.

        Raises `ConfigError` for one that is left out, and `EngineStartError` if the new
        engine does not come up; that is tried again as after a death.
        """
        if replica.state is ReplicaState.OUT:
            raise ConfigError(f"{replica.name} is left out: {replica.last_error}")
        await self.drain(replica)
        replica.drained = False
        if replica.state is ReplicaState.DRAINING:
            replica.state = ReplicaState.STARTING  # at once: two may ask for it
            self._keep(self._restart_now(replica))  # whoever asked may give up waiting
        while replica.state not in (ReplicaState.READY, ReplicaState.OUT) and self.open:
            await self.change()
        if replica.state is not ReplicaState.READY:
            raise EngineStartError(f"{replica.name} did not come back: {replica.last_error}")

    async def _restart_now(self, replica: Replica) -> None:
        self._tell_lost(replica)
        replica.forget()
        rest = await self._bring_up(replica)
        if replica.state is ReplicaState.DOWN and rest is not None:
            self._notice(f"{replica.name} does not start yet: {replica.last_error}")
            self._keep(self._revive(replica, rest))
        else:
            self.tell()
            self._notice(f"{replica.name} is back")
