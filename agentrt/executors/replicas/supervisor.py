"""Starts replicas, checks their health, restarts those whose engine died, and drains them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from agentrt import tracking
from agentrt.errors import ConfigError, EngineDiedError, EngineStartError, NoRoomError
from agentrt.executors.base import NO_ROOM_YET, Executor, Progress
from agentrt.executors.replicas.replica import UP, Backoff, Replica, ReplicaState

_LOOP_TURNS = 20


@dataclass(frozen=True, slots=True)
class Health:
    """Whether an engine is well. It is asked every ``every_s`` (seconds).

    A long step keeps an engine from answering, but costs processor time. One that uses none for
    ``stall_s`` while it owes an answer was stopped, or waits for what never comes: it counts as
    dead. So does any that owes an answer for ``hang_s``.
    """

    every_s: float = 2.0
    stall_s: float = 3.0
    hang_s: float = 60.0

    async def check(self, name: str, engine: Executor) -> None:
        """Return when the engine has answered. Raises `EngineDiedError`, or what it raises."""
        if not engine.alive():
            raise EngineDiedError(f"{name} is not alive any more")
        answer = asyncio.ensure_future(_ask(engine))
        try:
            await self._wait(name, engine, answer)
        finally:
            answer.cancel()
            await asyncio.gather(answer, return_exceptions=True)

    async def _wait(self, name: str, engine: Executor, answer: asyncio.Future[None]) -> None:
        owed, used = 0.0, None
        while owed < self.hang_s:
            timeout = min(self.stall_s, self.hang_s - owed)
            await asyncio.wait([answer], timeout=timeout)
            # A program may have kept this loop busy: the answer may be here, but not be read yet.
            for _ in range(_LOOP_TURNS):
                await asyncio.sleep(0)
            if answer.done():
                break
            owed += timeout
            try:
                async with asyncio.timeout(self.stall_s):
                    before, used = used, await engine.cpu_seconds()
            except TimeoutError:  # it says neither: this loop may be the one that is busy
                owed += self.stall_s
                continue
            if used is not None and used == before:
                raise EngineDiedError(
                    f"{name} has not answered for {owed:g} s and does not work: it was stopped, "
                    "or waits without end"
                )
        if not answer.done():
            raise EngineDiedError(f"{name} has not answered for {self.hang_s:g} s")
        return answer.result()


async def _ask(engine: Executor) -> None:
    await engine.snapshot()


class Supervisor:
    """Starts and restarts ``replicas``. ``ready`` is called with each whose engine has
    started, ``lost`` with each whose engine is gone; ``restarted`` is awaited before an engine
    that took the place of another is ready.
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
        restarted: Callable[[Replica], Awaitable[None]],
    ) -> None:
        self.open = False
        self._replicas = replicas
        self._health = health
        self._backoff = backoff
        self._notice = notice
        self._on_ready = ready
        self._on_lost = lost
        self._on_restarted = restarted
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
                all_said = "; ".join(f"{name}: {text}" for name, text in sorted(said.items()))
                progress(message if len(self._replicas) == 1 else all_said)

            await replica.start(tell, time.monotonic)
            self._on_ready(replica)

        try:
            async with asyncio.TaskGroup() as group:
                for replica in self._replicas:
                    group.create_task(start(replica))
        except BaseException as error:
            await self.close()
            if isinstance(error, BaseExceptionGroup):
                raise error.exceptions[0] from None
            raise
        for replica in self._replicas:
            self._spawn(self._watch(replica))

    async def close(self) -> None:
        """Stop all engines, and whatever is being done for them."""
        self.open = False
        self.signal_change()
        tasks, self._tasks = self._tasks, set()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await asyncio.gather(*(replica.close() for replica in self._replicas))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        with tracking.outside():
            task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def signal_change(self) -> None:
        """Wake whoever waits for a change of a replica."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def wait_for_change(self) -> None:
        """Wait until a replica comes, goes, or has no calls any more."""
        await self._changed.wait()

    async def ready_among(self, able: list[Replica], timeout_s: float) -> list[Replica]:
        """Those of ``able`` that are ready, once there is one. Raises `EngineDiedError`."""
        deadline = time.monotonic() + timeout_s
        while not (ready := [r for r in able if r.state is ReplicaState.READY]):
            if not self.open or all(r.state is ReplicaState.OUT for r in able):
                raise EngineDiedError(f"no replica is left: {_faults(able)}")
            try:
                async with asyncio.timeout(deadline - time.monotonic()):
                    await self.wait_for_change()
            except TimeoutError as error:
                raise EngineDiedError(
                    f"no replica came back within {timeout_s:g} s: {_faults(able)}"
                ) from error
        return ready

    async def given_up(self) -> str:
        """Wait until all are left out, and return why."""
        while any(replica.state is not ReplicaState.OUT for replica in self._replicas):
            await self.wait_for_change()
        return _faults(self._replicas)

    # -- death and restart -------------------------------------------------------------

    def lost(self, replica: Replica, engine: Executor, error: Exception) -> None:
        """``engine`` died. It is replaced once, whoever else reports it."""
        if not self.open or replica.executor is not engine or replica.state not in UP:
            return
        self._on_lost(replica)
        delay = replica.died(error, time.monotonic(), self._backoff)
        self.signal_change()
        if delay is None:
            self._notice(f"{replica.name} died {replica.deaths} times and is left out: {error}")
            return
        self._notice(f"{replica.name} died and starts again: {error}")
        self._spawn(self._restart_after(replica, delay))

    async def _restart_after(self, replica: Replica, first_delay: float) -> None:
        delay: float | None = first_delay
        while delay is not None:
            await asyncio.sleep(delay)
            delay = await self._start_new_engine(replica)
        self.signal_change()
        if replica.state is ReplicaState.OUT:
            why = replica.last_error
            self._notice(f"{replica.name} does not start and is left out: {why}")
        else:
            self._notice(f"{replica.name} is back")

    async def _start_new_engine(self, replica: Replica) -> float | None:
        """Returns the seconds until the next try; None: no more tries."""
        try:
            await replica.replace_engine()
            await replica.start(partial(self._progressed, replica), time.monotonic)
            await self._on_restarted(replica)
            self._on_ready(replica)
        except NoRoomError as error:  # nothing is wrong with it: a node may still come
            delay = replica.found_no_room(error, self._backoff)
            self._notice(f"{replica.name} is not back: {error}; the next try is in {delay:g} s")
            return delay
        # Whatever it is, the replica must not be forgotten; something that the engine waits for may
        # have been cancelled, too.
        except (Exception, asyncio.CancelledError) as error:
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                raise
            return replica.died(error, time.monotonic(), self._backoff)
        return None

    def _progressed(self, replica: Replica, message: str) -> None:
        """A new engine says how its start goes: only what it waits for is for people."""
        waits = message.startswith(NO_ROOM_YET)
        replica.waits_for = message if waits else ""
        if waits:
            self._notice(f"{replica.name}: {message}")

    async def _watch(self, replica: Replica) -> None:
        """An engine that dies idle, or hangs, tells nobody: ask it now and then."""
        while True:
            await asyncio.sleep(self._health.every_s)
            if replica.state in UP:
                try:
                    await self.check(replica)
                except Exception as error:  # a bug, which must not end the watch
                    self._notice(f"{replica.name} could not be looked after: {error}")

    async def check(self, replica: Replica) -> None:
        """Ask the replica's engine whether it is well; have it replaced if not."""
        engine = replica.executor
        try:
            await self._health.check(replica.name, engine)
        except Exception as error:
            self.lost(replica, engine, error)

    # -- on purpose --------------------------------------------------------------------

    async def drain(self, replica: Replica) -> None:
        """Give it nothing new, and return when its calls have ended."""
        if replica.state is ReplicaState.READY:
            replica.state = ReplicaState.DRAINING
            self._notice(f"{replica.name} takes nothing new: {replica.calls} calls to finish")
        while replica.calls and replica.state is ReplicaState.DRAINING:
            await self.wait_for_change()

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
            self._spawn(self._restart_now(replica))  # whoever asked may be cancelled
        while replica.state not in (ReplicaState.READY, ReplicaState.OUT) and self.open:
            await self.wait_for_change()
        if replica.state is not ReplicaState.READY:
            raise EngineStartError(f"{replica.name} did not come back: {replica.last_error}")

    async def _restart_now(self, replica: Replica) -> None:
        self._on_lost(replica)
        delay = await self._start_new_engine(replica)
        if replica.state is ReplicaState.DOWN and delay is not None:
            self._notice(f"{replica.name} does not start yet: {replica.last_error}")
            self._spawn(self._restart_after(replica, delay))
        else:
            self.signal_change()
            self._notice(f"{replica.name} is back")


def _faults(replicas: Sequence[Replica]) -> str:
    return "; ".join(f"{r.name}: {r.last_error or r.state}" for r in replicas)
