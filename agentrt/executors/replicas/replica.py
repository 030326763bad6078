"""A replica: one of several engines, its state and its calls. A new engine replaces a dead one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import (
    Awaitable,
    Callable,
    Mapping,
    Sequence,
)
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from agentrt import tracking
from agentrt.errors import AgentrtError, EngineDiedError
from agentrt.executors.base import Executor, ForwardingExecutor, Progress, StreamReading
from agentrt.executors.info import ExecutorInfo, is_model
from agentrt.executors.weights import Weights
from agentrt.request.weights import PauseMode
from agentrt.router import ReplicaView
from agentrt.steady import backoff_s

if TYPE_CHECKING:
    from prometheus_client import Metric

T = TypeVar("T")
_ANSWER_S = 5.0
"""Seconds to wait for an engine's snapshot or metrics."""
_SOON_S = 0.7
"""Seconds to wait for an engine's snapshot if those of other engines wait for it, and the reader
reads regularly. Such a reader, for example the dashboard, gives up after a second.
"""
_REGULAR_S = 90.0
"""Two reads within this time, in seconds, count as regular."""
_PAUSE_S = 5.0
"""Seconds before an engine is asked again that did not answer in time."""
_OF_EACH = (
    "steps",
    "computed_tokens",
    "blocks",
    "sizes",
    "free_blocks",
    "free_slots",
    "needs_blocks",
    "named_levels",
    "weights_version",
    "paused",
)
"""The values of an engine's snapshot that are shown for each replica."""


class ReplicaState(StrEnum):
    """The state of a replica.

    A replica that is ``draining`` finishes its calls and takes no new ones. A replica that is
    ``out`` has failed too often, and is not started again.
    """

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    DOWN = "down"
    OUT = "out"


UP = frozenset({ReplicaState.READY, ReplicaState.DRAINING})
"""The states with a live engine."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """The delays before a dead replica is started again, and the number of deaths after which it is
    not started again.

    The first delay is ``first_s`` seconds; each next delay is twice as long, up to ``longest_s``.
    A replica that dies more than ``tries`` times in a row is not started again. A failed start
    counts as a death, unless the cluster has no room for the engine (`NoRoomError`). A death that
    comes ``steady_s`` seconds or more after the engine was ready begins a new row.

    The library tenacity is not used, because it only retries a single call. Here, deaths are
    counted over the life of a replica.
    """

    first_s: float = 0.5
    longest_s: float = 30.0
    steady_s: float = 60.0
    tries: int = 5


class CancelScope:
    """Ends all waits for an engine when it is known that no answer will come.

    The calls of an engine that was killed fail by themselves, but the calls of an engine that hangs
    do not.
    """

    def __init__(self) -> None:
        self._readings: set[StreamReading[Any]] = set()
        self._reason: str | None = None

    def cancel(self, reason: str) -> None:
        """Make all waits, now and later, raise `EngineDiedError` with the first ``reason``."""
        self._reason = self._reason or reason
        readings = tuple(self._readings)
        self._readings.clear()
        for reading in readings:
            reading.fail(EngineDiedError(self._reason))

    async def run(self, work: Callable[[], Awaitable[T]]) -> T:
        """Return the result of ``work()``. Raises `EngineDiedError` when this scope is
        cancelled.
        """
        with self.reading(work) as reading:
            return await reading.__anext__()

    def reading(self, following: Callable[[], Awaitable[T]]) -> StreamReading[T]:
        """Return a `StreamReading` of ``following`` that fails when this scope is cancelled.

        ``following`` returns the next item of a stream each time that it is called.
        """
        if self._reason is not None:
            raise EngineDiedError(self._reason)
        return StreamReading(following, self._readings)


class Replica:
    """A named engine, which ``make`` creates for each start.

    ``calls`` is the number of its current calls. ``reruns`` is the number of calls that were lost
    when its engine died, and that were run again. A ``drained`` replica takes no calls, even after
    a new start. ``draining_restarts`` is the number of restarts that wait until its calls have
    ended. ``loading`` is True while the engine loads other weights. ``info`` describes the
    engine that started last. ``waits_for`` says what a restart waits for, such as a free node; ""
    if nothing. ``view`` is the replica as routers see it.
    """

    def __init__(self, name: str, make: Callable[[], Executor]) -> None:
        self.name = name
        self.state = ReplicaState.STARTING
        self.executor = make()
        self.cancel_scope = CancelScope()
        self.info = ExecutorInfo()
        self.view = ReplicaView(name)
        self.calls = 0
        self.deaths = 0
        self.starts = 0
        self.reruns = 0
        self.last_error = ""
        self.waits_for = ""
        self.programs: set[str] = set()
        self.drained = False
        self.draining_restarts = 0
        self.loading = False
        self._make = make
        self._closing: set[asyncio.Task[None]] = set()
        self._snapshot: Mapping[str, Any] = {}
        self._read_at = float("-inf")
        """The time on the event loop's clock of the last `recent_snapshot`."""
        self._ask_from = float("-inf")
        """The time on the event loop's clock from which the engine is asked for a snapshot."""
        self._ready_at = 0.0
        self._deaths_in_a_row = 0

    @property
    def model(self) -> str:
        """The model of the replica's last engine; "" before the first start."""
        return self.info.model

    async def start(
        self,
        progress: Progress,
        now: Callable[[], float],
        prepare: Callable[[Replica], Awaitable[None]] | None = None,
    ) -> None:
        """Start the engine, and await ``prepare`` before the engine counts as ready. Raises the
        errors of `Executor.start` and of ``prepare``.
        """
        self.state = ReplicaState.STARTING
        await self.executor.start(progress)
        if prepare is not None:
            await prepare(self)
        self.info = self.executor.info
        self.waits_for = ""
        self.starts += 1
        self.state = ReplicaState.DRAINING if self.drained else ReplicaState.READY
        self._ready_at = now()

    def serves(self, model: str) -> bool:
        """Return whether the replica serves ``model``. As long as its model is unknown, it counts
        as serving any model.
        """
        return not self.model or is_model(model, self.model)

    def died(self, error: BaseException, now: float, backoff: Backoff) -> float | None:
        """Note that the engine died, or could not be started, because of ``error``.

        Returns the seconds until the next start, or None if the replica is not started again.
        """
        was_steady = self.state in UP and now - self._ready_at >= backoff.steady_s
        self.deaths += 1
        self.last_error = str(error) or type(error).__name__
        self.waits_for = ""
        self.programs.clear()
        self.cancel_scope.cancel(self.last_error)
        self._deaths_in_a_row = 1 if was_steady else self._deaths_in_a_row + 1
        if self._deaths_in_a_row > backoff.tries:
            self.state = ReplicaState.OUT
            return None
        self.state = ReplicaState.DOWN
        return backoff_s(backoff.first_s, self._deaths_in_a_row, backoff.longest_s)

    def found_no_room(self, error: Exception, backoff: Backoff) -> float:
        """Note that no node has room for the engine. Returns the seconds until the next attempt."""
        self.last_error, self.state = str(error), ReplicaState.DOWN
        self.waits_for = str(error)
        return backoff.longest_s

    async def replace_engine(self) -> None:
        """Replace the engine by a new one, which is not started yet, and close the old one."""
        old, self.executor = self.executor, self._make()
        self._snapshot, self._ask_from = {}, float("-inf")
        self.programs.clear()
        self.cancel_scope.cancel(f"{self.name} was replaced")
        self.cancel_scope = CancelScope()
        with tracking.outside():
            closing = asyncio.create_task(old.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)
        await asyncio.wait([closing])  # if this wait is cancelled, `close` waits for the task
        if not closing.cancelled():  # the task is cancelled if something that it awaits is
            with contextlib.suppress(AgentrtError, OSError):
                closing.result()

    async def close(self) -> None:
        """Close the engine, and wait for old engines that are still closing."""
        await asyncio.gather(*self._closing, return_exceptions=True)
        await self.executor.close()

    async def snapshot(self) -> Mapping[str, Any]:
        """Return the engine's snapshot; empty if the engine is down or does not answer."""
        return await self._answer_of(self.executor.snapshot, {})

    async def recent_snapshot(self) -> Mapping[str, Any]:
        """Return the engine's snapshot, or its last one if the engine does not answer soon, for
        example because it is in a long step; empty if the engine is down.

        Wait longer for the first read, and for a read long after the last: such a reader, for
        example the journal's description of the engines, reads only once.
        """
        if self.state not in UP:
            return {}
        engine, now = self.executor, asyncio.get_running_loop().time()
        seconds = _SOON_S if now - self._read_at < _REGULAR_S else _ANSWER_S
        self._read_at = now
        if now < self._ask_from:
            return self._snapshot
        try:
            async with asyncio.timeout(seconds):
                snapshot = await engine.snapshot()
        except TimeoutError:
            self._ask_from = now + _PAUSE_S
            return self._snapshot
        except AgentrtError:
            return {}
        if self.executor is engine:
            self._snapshot = snapshot
        return snapshot

    async def metrics(self) -> Sequence[Metric]:
        """Return the engine's own metrics; empty if the engine is down or does not answer."""
        return await self._answer_of(self.executor.metrics, ())

    async def _answer_of(self, ask: Callable[[], Awaitable[T]], nothing: T) -> T:
        if self.state in UP:
            with contextlib.suppress(AgentrtError, TimeoutError):
                async with asyncio.timeout(_ANSWER_S):
                    return await ask()
        return nothing

    def describe(self) -> dict[str, Any]:
        """Return the replica's state and counts by name, for people."""
        return {
            "name": self.name,
            "model": self.model,
            "state": str(self.state),
            "calls": self.calls,
            "in_flight_tokens": self.view.in_flight,
            "starts": self.starts,
            "deaths": self.deaths,
            "reruns": self.reruns,
            "last_error": self.last_error,
            "waits_for": self.waits_for,
            "weights_version": self.executor.weights.version,
            "paused": self.executor.paused,
        }


class ReachedEngine(ForwardingExecutor):
    """The engine of a replica, for pauses and updates of the weights. ``lost`` is called if the
    engine dies.
    """

    def __init__(
        self, replica: Replica, lost: Callable[[Replica, Executor, Exception], None]
    ) -> None:
        super().__init__(replica.executor)
        self._replica, self._lost = replica, lost
        self._scope = replica.cancel_scope

    async def pause_generation(self, mode: PauseMode) -> None:
        await self._reach(partial(self.inner.pause_generation, mode))

    async def resume_generation(self) -> None:
        await self._reach(self.inner.resume_generation)

    async def check_weights(self, folder: str) -> str:
        return await self._reach(partial(self.inner.check_weights, folder))

    async def load_weights(self, weights: Weights, *, clear_cache: bool = False) -> None:
        self._replica.loading = True
        try:
            await self._reach(partial(self.inner.load_weights, weights, clear_cache=clear_cache))
        finally:
            self._replica.loading = False

    async def _reach(self, work: Callable[[], Awaitable[T]]) -> T:
        try:
            return await self._scope.run(work)
        except EngineDiedError as error:
            self._lost(self._replica, self.inner, error)
            raise


async def metrics_of(replicas: Sequence[Replica]) -> Sequence[Metric]:
    """Return the metrics of all replicas, with the replica's number as the label ``engine``."""
    families: dict[str, Metric] = {}
    answers = await asyncio.gather(*(replica.metrics() for replica in replicas))
    for index, metrics in enumerate(answers):
        for metric in metrics:
            family = families.setdefault(metric.name, metric)
            samples = [] if family is metric else family.samples
            number = {"engine": str(index)}
            samples += [sample._replace(labels=sample.labels | number) for sample in metric.samples]
            family.samples = samples
    return tuple(families.values())


async def snapshot_of(replicas: Sequence[Replica]) -> Mapping[str, Any]:
    """Return the running and waiting calls of all replicas, and the state of each replica. For a
    regular reader, a replica that does not answer soon does not keep the others waiting.
    """
    snapshots = await asyncio.gather(*(replica.recent_snapshot() for replica in replicas))
    pairs = list(zip(replicas, snapshots, strict=True))
    calls = {
        key: [
            {**entry, "replica": replica.name}
            for replica, snapshot in pairs
            for entry in snapshot.get(key, ())
        ]
        for key in ("running", "waiting")
    }
    return {
        **calls,
        "programs": [name for snapshot in snapshots for name in snapshot.get("programs", ())],
        "steps": sum(snapshot.get("steps") or 0 for snapshot in snapshots),
        "requests": sum(snapshot.get("requests") or 0 for snapshot in snapshots),
        "named_levels": all(snapshot.get("named_levels", True) for snapshot in snapshots),
        "replicas": [
            {**replica.describe(), **{key: snapshot[key] for key in _OF_EACH if key in snapshot}}
            for replica, snapshot in pairs
        ],
    }
