"""The set of replicas: an `Executor` over several, that outlives each of them.

A call whose engine dies runs again on another replica: its seed is recorded in its spec, so
the same text comes again, and what a stream has given already is not given twice. A dead
engine starts again after a rest; one that dies again and again is left out.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Mapping
from functools import partial
from typing import Any

from agentrt import tracking
from agentrt.errors import AgentrtError, EngineDiedError
from agentrt.executors.base import Chunk, Executor, Progress
from agentrt.executors.replicas.replica import Backoff, Replica, ReplicaState, prompt_tokens
from agentrt.request import Call, CallReport, Reply
from agentrt.router import Router, RouterCall

_CHECK_S = 2.0
_OF_EACH = (
    "steps",
    "computed_tokens",
    "blocks",
    "free_blocks",
    "free_slots",
    "needs_blocks",
    "levelled",
)
"""What of an engine's snapshot is told of each replica."""


class ReplicaSet:
    """Runs calls on ``count`` engines that ``make`` makes, where ``router`` says.

    With no replica left, a call waits up to ``patience_s`` for one to come back. A replica
    that does not answer for ``hang_s`` counts as dead. ``notice`` is told in words what
    happens to replicas.
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
    ) -> None:
        self.replicas = [
            Replica(f"replica-{index}", partial(make, index)) for index in range(count)
        ]
        self.router = router
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
        await asyncio.gather(*(replica.executor.close() for replica in self.replicas))

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        with tracking.outside():
            task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def alive(self) -> bool:
        """Whether a replica is there to run calls."""
        return any(replica.state is ReplicaState.READY for replica in self.replicas)

    # -- calls -------------------------------------------------------------------------

    async def generate(self, call: Call, *, stream: bool) -> AsyncGenerator[Chunk, None]:
        given = ""
        while True:
            replica = await self._choose(call)
            engine = replica.executor
            again = _Again(given, call.call_id)
            try:
                with self._running(call, replica):
                    chunks = engine.generate(call, stream=stream)
                    async with contextlib.aclosing(chunks):
                        async for chunk in chunks:
                            text = again.rest(chunk.text, last=chunk.reply is not None)
                            given += text
                            if text or chunk.reply is not None:
                                yield Chunk(text, _signed(chunk.reply, replica))
                return
            except EngineDiedError as error:
                if again.differs:
                    raise
                self._lost(replica, engine, error)

    @contextlib.contextmanager
    def _running(self, call: Call, replica: Replica) -> Iterator[None]:
        self._where[call.call_id] = replica
        try:
            with replica.holding(call):
                yield
        except (asyncio.CancelledError, GeneratorExit):
            raise  # `aborted` will ask where it was
        except BaseException:
            self._where.pop(call.call_id, None)
            raise
        else:
            self._where.pop(call.call_id, None)

    async def _choose(self, call: Call) -> Replica:
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
        question = RouterCall(call.program_id, prompt_tokens(call))
        chosen = self.router.choose(question, [replica.view for replica in ready])
        return next(replica for replica in ready if replica.view is chosen)

    def _faults(self) -> str:
        return "; ".join(f"{r.name}: {r.last_error or r.state}" for r in self.replicas)

    async def aborted(self, call_id: str) -> CallReport:
        replica = self._where.pop(call_id, None)
        if replica is None or replica.state is not ReplicaState.READY:
            return CallReport()
        return await replica.executor.aborted(call_id)

    async def end_program(self, program_id: str) -> None:
        self.router.program_ended(program_id)
        for replica in self.replicas:
            if program_id in replica.programs:
                replica.programs.discard(program_id)
                with contextlib.suppress(AgentrtError):
                    await replica.executor.end_program(program_id)

    async def snapshot(self) -> Mapping[str, Any]:
        found = [await self._snapshot_of(replica) for replica in self.replicas]
        whole: dict[str, Any] = {
            key: [
                {**entry, "replica": replica.name}
                for replica, one in zip(self.replicas, found, strict=True)
                for entry in one.get(key, ())
            ]
            for key in ("running", "waiting")
        }
        whole["programs"] = [program for one in found for program in one.get("programs", ())]
        whole["steps"] = sum(one.get("steps") or 0 for one in found)
        whole["requests"] = sum(one.get("requests") or 0 for one in found)
        whole["levelled"] = all(one.get("levelled", True) for one in found)
        whole["replicas"] = [
            {**self._describe(replica), **{key: one[key] for key in _OF_EACH if key in one}}
            for replica, one in zip(self.replicas, found, strict=True)
        ]
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
        self.router.replica_lost(replica.name)
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


def _signed(reply: Reply | None, replica: Replica) -> Reply | None:
    """The reply with the name of the replica that it is from."""
    if reply is None:
        return None
    return dataclasses.replace(
        reply, report=dataclasses.replace(reply.report, replica=replica.name)
    )


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
