"""The set of replicas: an `Executor` over several, that outlives each of them.

A call whose engine dies runs again on another replica: its seed is recorded in its spec, so
the same text comes again, and what a stream has given already is not given twice. A dead
engine starts again after a rest; one that dies again and again is left out.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from agentrt import tracking
from agentrt.errors import AgentrtError, EngineDiedError
from agentrt.executors.base import Chunk, Executor, Progress
from agentrt.executors.replicas.replica import Backoff, Replica, ReplicaState
from agentrt.executors.replicas.routing import Routing
from agentrt.request import Call, CallReport
from agentrt.router import Router

_CHECK_S = 2.0


class ReplicaSet:
    """Runs calls on ``count`` engines that ``make`` makes, where ``router`` says.

    With no replica left, a call waits up to ``patience_s`` for one to come back. A replica
    that does not answer for ``hang_s`` counts as dead. ``notice`` is told in words what
    happens to replicas. ``level_ends`` are the engines' queue levels (`Dispatcher`).
    """

    def __init__(
        self,
        make: Callable[[int], Executor],
        count: int,
        router: Router,
        *,
        patience_s: float = 120.0,
        hang_s: float = 60.0,
        backoff: Backoff | None = None,
        notice: Progress = lambda message: None,
        level_ends: Sequence[float] = (),
    ) -> None:
        self.replicas = [
            Replica(f"replica-{index}", partial(make, index)) for index in range(count)
        ]
        self.routing = Routing(router, level_ends)
        for replica in self.replicas:
            self.routing.join(replica)
        self._patience_s = patience_s
        self._hang_s = hang_s
        self._backoff = Backoff() if backoff is None else backoff
        self._notice = notice
        self._where: dict[str, Replica] = {}
        self._changed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._open = False

    @property
    def model(self) -> str:
        """The name of the model that is served."""
        return str(getattr(self.replicas[0].executor, "model", ""))

    @property
    def max_num_seqs(self) -> int | None:
        """The size of each replica's batch (calls)."""
        size: int | None = getattr(self.replicas[0].executor, "max_num_seqs", None)
        return size

    # -- life --------------------------------------------------------------------------

    async def start(self, progress: Progress) -> None:
        self._open = True
        said: dict[str, str] = {}

        async def start(replica: Replica) -> None:
            def tell(message: str) -> None:
                said[replica.name] = message
                progress("; ".join(f"{name}: {text}" for name, text in sorted(said.items())))

            await replica.start(tell, time.monotonic)
            self.routing.ready(replica)

        try:
            async with asyncio.TaskGroup() as group:
                for replica in self.replicas:
                    group.create_task(start(replica))
        except BaseExceptionGroup as several:
            await self.close()
            raise several.exceptions[0] from None
        except BaseException:
            await self.close()
            raise
        self._keep(self._watch())

    async def close(self) -> None:
        self._open = False
        tasks, self._tasks = self._tasks, set()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await self.routing.close()
        await asyncio.gather(*(replica.executor.close() for replica in self.replicas))

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        with tracking.outside():
            task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- calls -------------------------------------------------------------------------

    async def generate(self, call: Call, *, stream: bool) -> AsyncGenerator[Chunk, None]:
        given = ""
        while True:
            ready = await self._ready()
            call = self.routing.counted(call, ready)
            replica, trip = self.routing.send(call, ready)
            engine = replica.executor
            again = _Again(given, call.call_id)
            try:
                with self._running(call, replica), self.routing.counting(trip):
                    chunks = engine.generate(call, stream=stream)
                    async with contextlib.aclosing(chunks):
                        async for chunk in chunks:
                            if chunk.reply is not None:
                                self.routing.ended(trip, chunk.reply.report)
                            text = again.rest(chunk.text, last=chunk.reply is not None)
                            given += text
                            if text or chunk.reply is not None:
                                yield Chunk(text, chunk.reply)
                return
            except EngineDiedError as error:
                if again.differs:
                    raise
                self._lost(replica, engine, error)

    @contextlib.contextmanager
    def _running(self, call: Call, replica: Replica) -> Iterator[None]:
        self._where[call.call_id] = replica
        replica.programs.add(call.program_id)
        try:
            yield
        except (asyncio.CancelledError, GeneratorExit):
            raise  # `aborted` will ask where it was
        except BaseException:
            self._where.pop(call.call_id, None)
            raise
        else:
            self._where.pop(call.call_id, None)

    async def _ready(self) -> list[Replica]:
        deadline = time.monotonic() + self._patience_s
        while not (ready := [r for r in self.replicas if r.state is ReplicaState.READY]):
            if not self._open or all(r.state is ReplicaState.OUT for r in self.replicas):
                raise EngineDiedError(f"no replica is left: {self._faults()}")
            self._changed.clear()
            try:
                async with asyncio.timeout(deadline - time.monotonic()):
                    await self._changed.wait()
            except TimeoutError as error:
                raise EngineDiedError(
                    f"no replica came back within {self._patience_s:g} s: {self._faults()}"
                ) from error
        return ready

    def _faults(self) -> str:
        return "; ".join(f"{r.name}: {r.last_error or r.state}" for r in self.replicas)

    async def aborted(self, call_id: str) -> CallReport:
        replica = self._where.pop(call_id, None)
        if replica is None or replica.state is not ReplicaState.READY:
            return CallReport()
        return await replica.executor.aborted(call_id)

    async def end_program(self, program_id: str) -> None:
        self.routing.dispatcher.program_ended(program_id)
        for replica in self.replicas:
            if program_id in replica.programs:
                replica.programs.discard(program_id)
                with contextlib.suppress(AgentrtError):
                    await replica.executor.end_program(program_id)

    async def snapshot(self) -> Mapping[str, Any]:
        found = [await self._snapshot_of(replica) for replica in self.replicas]
        whole: dict[str, Any] = {
            key: [entry for one in found for entry in one.get(key, ())]
            for key in ("running", "waiting", "programs")
        }
        whole["steps"] = sum(one.get("steps") or 0 for one in found)
        whole["requests"] = sum(one.get("requests") or 0 for one in found)
        whole["levelled"] = all(one.get("levelled", True) for one in found)
        whole["replicas"] = [self._describe(replica) for replica in self.replicas]
        return whole

    async def _snapshot_of(self, replica: Replica) -> Mapping[str, Any]:
        if replica.state is ReplicaState.READY:
            with contextlib.suppress(AgentrtError):
                return await replica.executor.snapshot()
        return {}

    def _describe(self, replica: Replica) -> dict[str, Any]:
        return {
            "name": replica.name,
            "state": str(replica.state),
            "in_flight_tokens": replica.view.in_flight,
            "deaths": replica.deaths,
            "last_error": replica.last_error,
        }

    # -- death and return --------------------------------------------------------------

    def _lost(self, replica: Replica, engine: Executor, error: Exception) -> None:
        """``engine`` died. The first of its calls that says so has it replaced."""
        if not self._open or replica.executor is not engine:
            return
        if replica.state is not ReplicaState.READY:
            return
        self.routing.lost(replica)
        rest = replica.died(error, time.monotonic(), self._backoff)
        if rest is None:
            self._notice(f"{replica.name} died {replica.deaths} times and is left out: {error}")
            self._changed.set()
            return
        self._notice(f"{replica.name} died and starts again: {error}")
        self._keep(self._revive(replica, rest))

    async def _revive(self, replica: Replica, rest: float) -> None:
        while True:
            await asyncio.sleep(rest)
            await replica.renew()
            try:
                await replica.start(lambda message: None, time.monotonic)
                self.routing.ready(replica)
            except Exception as error:  # whatever it is, the replica must not be forgotten
                next_rest = replica.died(error, time.monotonic(), self._backoff)
                if next_rest is None:
                    self._notice(f"{replica.name} does not start and is left out: {error}")
                    break
                rest = next_rest
            else:
                self._notice(f"{replica.name} is back")
                break
        self._changed.set()

    async def _watch(self) -> None:
        """An engine that dies idle, or hangs, tells nobody: ask each now and then."""
        while True:
            await asyncio.sleep(_CHECK_S)
            ready = [r for r in self.replicas if r.state is ReplicaState.READY]
            await asyncio.gather(*(self._check(replica) for replica in ready))

    async def _check(self, replica: Replica) -> None:
        engine = replica.executor
        try:
            async with replica.within(self._hang_s):
                alive = getattr(engine, "alive", None)
                if alive is not None and not alive():
                    raise EngineDiedError(f"{replica.name} is not alive any more")
                await engine.snapshot()
        except Exception as error:
            self._lost(replica, engine, error)


class _Again:
    """Takes from a call that runs again what its reader has been given already."""

    def __init__(self, given: str, call_id: str) -> None:
        self.differs = False
        self._left = given
        self._call_id = call_id

    def rest(self, text: str, *, last: bool) -> str:
        """What of ``text`` is new. Raises `EngineDiedError` if it is not what came before."""
        known, new = text[: len(self._left)], text[len(self._left) :]
        if not self._left.startswith(known) or (last and len(known) < len(self._left)):
            self.differs = True
            raise EngineDiedError(
                f"the engine died in the middle of call {self._call_id}, and another gave a "
                "different text for what had been streamed already"
            )
        self._left = self._left[len(known) :]
        return new
