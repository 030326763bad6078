"""Starts replicas, checks their health, restarts replicas whose engine died, and drains them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from agentrt import tracking
from agentrt.errors import (
    ConfigError,
    EngineDiedError,
    EngineError,
    EngineStartError,
    NoRoomError,
    text_of,
)
from agentrt.executors.base import NO_ROOM_YET, Executor, Progress
from agentrt.executors.replicas.replica import UP, Backoff, Replica, ReplicaState

_LOOP_TURNS = 20


@dataclass(frozen=True, slots=True)
class Health:
    """The rule by which an engine that does not answer counts as dead.

    Every ``every_s`` seconds an engine is asked for a snapshot. A long step delays the answer, but
    the step uses CPU time. An engine that uses no CPU time for ``stall_s`` seconds while its answer
    is pending counts as dead: its process is suspended (for example by SIGSTOP), or is blocked
    forever. An engine whose answer is pending for ``hang_s`` seconds counts as dead in any case. A
    `Supervisor` does not apply this rule to an engine that loads weights.
    """

    every_s: float = 2.0
    stall_s: float = 3.0
    hang_s: float = 60.0

    async def check(self, name: str, engine: Executor) -> None:
        """Return when the engine has answered.

        Raises `EngineDiedError` if the engine counts as dead, or the error that the engine answers
        with.
        """
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
            # If a program kept this event loop busy, the answer may have arrived but not be read.
            for _ in range(_LOOP_TURNS):
                await asyncio.sleep(0)
            if answer.done():
                break
            owed += timeout
            try:
                async with asyncio.timeout(self.stall_s):
                    before, used = used, await engine.cpu_seconds()
            except TimeoutError:  # this says nothing about the engine: this event loop may be busy
                owed += self.stall_s
                continue
            if used is not None and used == before:
                raise EngineDiedError(
                    f"{name} has not answered for {owed:g} s and uses no CPU time: its process is "
                    "suspended (for example by SIGSTOP), or is blocked forever"
                )
        if not answer.done():
            raise EngineDiedError(f"{name} has not answered for {self.hang_s:g} s")
        return answer.result()


async def _ask(engine: Executor) -> None:
    await engine.snapshot()


class Supervisor:
    """Starts and restarts ``replicas``.

    ``ready`` is called with a replica when its engine has started, and ``lost`` when its engine is
    dead or will be replaced. When an engine that replaces another engine has started, ``prepare``
    is awaited with the replica before calls are sent to it. Then ``ready`` is called, and
    ``restarted`` is awaited while the engine already takes calls.
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
        restarted: Callable[[Replica], Awaitable[object]],
        prepare: Callable[[Replica], Awaitable[None]] | None = None,
    ) -> None:
        self.open = False
        self._replicas = replicas
        self._health = health
        self._backoff = backoff
        self._notice = notice
        self._on_ready = ready
        self._on_lost = lost
        self._on_restarted = restarted
        self._prepare = prepare
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed: asyncio.Event | None = None
        """The event of the next change, if a task waits for it."""

    # -- all replicas ------------------------------------------------------------------

    async def start(self, progress: Progress) -> None:
        """Start all replicas at the same time.

        If a start fails, close all replicas and raise the error of the start. People are notified
        of an error of the close.
        """
        self.open = True
        messages: dict[str, str] = {}

        async def start(replica: Replica) -> None:
            def report(message: str) -> None:
                messages[replica.name] = message
                joined = "; ".join(f"{name}: {text}" for name, text in sorted(messages.items()))
                progress(message if len(self._replicas) == 1 else joined)

            await replica.start(report, time.monotonic)
            self._on_ready(replica)

        try:
            async with asyncio.TaskGroup() as group:
                for replica in self._replicas:
                    group.create_task(start(replica))
        except BaseException as error:
            try:
                await self.close()
            except Exception as closing_error:
                self._notice(f"an engine could not be closed: {text_of(closing_error)}")
            if isinstance(error, BaseExceptionGroup):
                raise error.exceptions[0] from None
            raise
        for replica in self._replicas:
            self._spawn(self._watch(replica))

    async def close(self) -> None:
        """Close all engines, and stop all restarts and checks.

        All engines are closed before an error is raised: the error of the engine that could not be
        closed, or an `EngineError` that names all such engines.
        """
        self.open = False
        self.signal_change()
        tasks, self._tasks = self._tasks, set()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        closing = (replica.close() for replica in self._replicas)
        results = await asyncio.gather(*closing, return_exceptions=True)
        errors = [
            (replica.name, result)
            for replica, result in zip(self._replicas, results, strict=True)
            if isinstance(result, BaseException)
        ]
        if len(errors) == 1:
            raise errors[0][1]
        if errors:
            texts = (f"{name} could not be closed: {text_of(error)}" for name, error in errors)
            raise EngineError("; ".join(texts)) from errors[0][1]

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        with tracking.outside():
            task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def signal_change(self) -> None:
        """Wake all tasks in `wait_for_change`."""
        changed, self._changed = self._changed, None
        if changed is not None:
            changed.set()

    async def wait_for_change(self) -> None:
        """Wait until a replica starts, dies, is given up, or has no calls any more, or until
        `close`.
        """
        if self._changed is None:
            self._changed = asyncio.Event()
        await self._changed.wait()

    async def ready_among(self, able: list[Replica], timeout_s: float) -> list[Replica]:
        """Wait until replicas of ``able`` are ready, and return them.

        Raises `EngineDiedError` if none is ready within ``timeout_s`` seconds, if all are given up,
        or if the supervisor is closed.
        """
        deadline: float | None = None
        while True:
            ready = [replica for replica in able if replica.state is ReplicaState.READY]
            if ready and self.open:  # replicas of a closed set keep their state
                return ready
            if ready:
                raise EngineDiedError("no replica is left: the engines are closed")
            if not self.open or all(r.state is ReplicaState.OUT for r in able):
                raise EngineDiedError(f"no replica is left: {_faults(able)}")
            deadline = deadline or time.monotonic() + timeout_s
            try:
                async with asyncio.timeout(deadline - time.monotonic()):
                    await self.wait_for_change()
            except TimeoutError as error:
                raise EngineDiedError(
                    f"no replica came back within {timeout_s:g} s: {_faults(able)}"
                ) from error

    async def given_up(self) -> str:
        """Wait until all replicas are given up, and return the reasons as a text."""
        while any(replica.state is not ReplicaState.OUT for replica in self._replicas):
            await self.wait_for_change()
        return _faults(self._replicas)

    # -- death and restart -------------------------------------------------------------

    def lost(self, replica: Replica, engine: Executor, error: BaseException) -> None:
        """Report that an engine died. Restart its replica, unless the replica has died too often.

        If a death is reported several times, the engine is replaced once.
        """
        if not self.open or replica.executor is not engine or replica.state not in UP:
            return
        self._on_lost(replica)
        delay = replica.died(error, time.monotonic(), self._backoff)
        self.signal_change()
        if delay is None:
            self._notice(
                f"{replica.name} died {replica.deaths} times and is not started again: {error}"
            )
            return
        self._notice(f"{replica.name} died and is restarted: {error}")
        self._spawn(self._restart_after(replica, delay))

    async def _restart_after(self, replica: Replica, first_delay: float) -> None:
        delay: float | None = first_delay
        while delay is not None:
            await asyncio.sleep(delay)
            delay = await self._start_new_engine(replica)
        await self._end_start(replica)

    async def _end_start(self, replica: Replica) -> None:
        """Await ``restarted`` for a replica that has started. Then wake the tasks that wait for the
        replica, and report whether it has started or was given up.
        """
        if replica.state is not ReplicaState.OUT:
            engine = replica.executor
            try:
                await self._on_restarted(replica)
            except (Exception, asyncio.CancelledError) as error:
                _raise_own_cancellation(error)
                self.lost(replica, engine, error)
            if replica.executor is not engine or replica.state not in UP:
                return  # it died meanwhile, and `lost` has begun its next restart
        self.signal_change()
        if replica.state is ReplicaState.OUT:
            self._notice(
                f"{replica.name} could not be started, and no further start is tried: "
                f"{replica.last_error}"
            )
        else:
            self._notice(f"{replica.name} is back")

    async def _start_new_engine(self, replica: Replica) -> float | None:
        """Start a new engine. Return the seconds until the next attempt; None if the engine has
        started, or if the replica is given up.
        """
        try:
            await replica.replace_engine()
            progressed = partial(self._progressed, replica)
            await replica.start(progressed, time.monotonic, self._prepare)
            self._on_ready(replica)
        except NoRoomError as error:  # not counted as a death: the cluster may get another node
            delay = replica.found_no_room(error, self._backoff)
            self._notice(
                f"{replica.name} has not started: {error}; the next attempt is in {delay:g} s"
            )
            return delay
        except (Exception, asyncio.CancelledError) as error:  # tried again after any error
            _raise_own_cancellation(error)
            next_delay = replica.died(error, time.monotonic(), self._backoff)
            if next_delay is not None:  # else `_end_start` reports that it was the last attempt
                self._notice(f"{replica.name} has not started yet: {replica.last_error}")
            return next_delay
        return None

    def _progressed(self, replica: Replica, message: str) -> None:
        """Take a message about the progress of a restart.

        People are notified only if the engine waits for a node with room.
        """
        waits = message.startswith(NO_ROOM_YET)
        replica.waits_for = message if waits else ""
        if waits:
            self._notice(f"{replica.name}: {message}")

    async def _watch(self, replica: Replica) -> None:
        """Check a replica's engine regularly: without calls, its death would not be noticed."""
        while True:
            await asyncio.sleep(self._health.every_s)
            if replica.state in UP and not replica.loading:
                try:
                    await self.check(replica)
                except Exception as error:  # a bug must not end the checks
                    self._notice(f"the health of {replica.name} could not be checked: {error}")

    async def check(self, replica: Replica) -> None:
        """Check the health of a replica's engine, and replace the engine if it counts as dead."""
        engine = replica.executor
        try:
            await self._health.check(replica.name, engine)
        except Exception as error:
            # An engine that loads weights may not answer for longer than the check waits.
            if not replica.loading or not engine.alive():
                self.lost(replica, engine, error)

    # -- by a user ---------------------------------------------------------------------

    async def drain(self, replica: Replica) -> None:
        """Send no more calls to a replica, and return when its calls have ended."""
        if replica.state is ReplicaState.READY:
            replica.state = ReplicaState.DRAINING
            self._notice(
                f"{replica.name} takes no new calls, and finishes its calls in progress: "
                f"{replica.calls}"
            )
        while replica.calls and replica.state is ReplicaState.DRAINING:
            await self.wait_for_change()

    async def restart(self, replica: Replica) -> None:
        """Drain a replica and replace its engine. Return when a new engine is ready.

        If a new engine is starting already, this only waits for it. If the new engine does not
        start, the start is tried again as after a death. If this is cancelled while the replica's
        calls end, the replica takes calls again. Raises `ConfigError` for a replica that has failed
        too often to be started again, and `EngineStartError` if no further start is tried.
        """
        if replica.state is ReplicaState.OUT:
            raise ConfigError(
                f"{replica.name} has failed too often and is not started again "
                f"({replica.last_error}); restart the process"
            )
        await self._drain_for_restart(replica)
        replica.drained = False
        if replica.state is ReplicaState.DRAINING:
            replica.state = ReplicaState.STARTING  # at once, since two callers may restart it
            self._spawn(self._restart_now(replica))  # in a task, since the caller may be cancelled
        while replica.state in (ReplicaState.STARTING, ReplicaState.DOWN) and self.open:
            await self.wait_for_change()
        if replica.state not in UP:  # it drains again if a user has asked for that
            raise EngineStartError(
                f"{replica.name} could not be restarted: {replica.last_error or replica.state}"
            )

    async def _drain_for_restart(self, replica: Replica) -> None:
        """Drain a replica. If this is cancelled, let the replica take calls again, unless it drains
        for another reason, too.
        """
        replica.draining_restarts += 1
        try:
            await self.drain(replica)
        except asyncio.CancelledError:
            others = replica.draining_restarts > 1 or replica.drained
            if replica.state is ReplicaState.DRAINING and not others:
                replica.state = ReplicaState.READY
                self.signal_change()
                self._notice(f"{replica.name} takes calls again: its restart was cancelled")
            raise
        finally:
            replica.draining_restarts -= 1

    async def _restart_now(self, replica: Replica) -> None:
        self._on_lost(replica)
        delay = await self._start_new_engine(replica)
        if delay is None:
            await self._end_start(replica)
        else:
            self._spawn(self._restart_after(replica, delay))


def _raise_own_cancellation(error: BaseException) -> None:
    """Raise ``error`` if this task is cancelled. A cancellation may also come from something that
    an engine awaits, and then counts as the engine's error.
    """
    task = asyncio.current_task()
    if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
        raise error


def _faults(replicas: Sequence[Replica]) -> str:
    return "; ".join(f"{r.name}: {r.last_error or r.state}" for r in replicas)
