"""One engine of several: its state, what runs on it, and the engine that takes its place."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import (
    Awaitable,
    Callable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeVar

from agentrt import tracking
from agentrt.errors import AgentrtError, EngineDiedError
from agentrt.executors.base import Executor, Progress, Reading
from agentrt.executors.info import ExecutorInfo, is_model
from agentrt.router import ReplicaView

if TYPE_CHECKING:
    from prometheus_client import Metric

T = TypeVar("T")
_ANSWER_S = 5.0
_OF_EACH = (
    "steps",
    "computed_tokens",
    "blocks",
    "sizes",
    "free_blocks",
    "free_slots",
    "needs_blocks",
    "levelled",
)
"""What of an engine's snapshot is shown of each replica."""


class ReplicaState(StrEnum):
    """How a replica stands.

    One that is ``draining`` finishes its calls and takes none; one that is ``out`` failed too
    often, and is not started any more.
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
    """How long a dead replica waits before it starts again (seconds), and when it is left out.

    The first delay is ``first_s``, and each next one twice the last, up to ``longest_s``. After
    ``tries`` deaths in a row, each less than ``steady_s`` after the start before it, it is out.

    Not tenacity: it retries one call, while deaths are counted over the life of a replica, and a
    steady time in between forgives them.
    """

    first_s: float = 0.5
    longest_s: float = 30.0
    steady_s: float = 60.0
    tries: int = 5


class CancelScope:
    """Ends all waits for one engine once it is known that no answer will come.

    An engine that was killed fails its calls itself; one that hangs does not.
    """

    def __init__(self) -> None:
        self._readings: set[Reading[Any]] = set()
        self._reason: str | None = None

    def cancel(self, reason: str) -> None:
        """Every wait, now and later, raises `EngineDiedError`, with the first reason given."""
        self._reason = self._reason or reason
        readings, self._readings = self._readings, set()
        for reading in readings:
            reading.fail(EngineDiedError(self._reason))

    async def run(self, work: Callable[[], Awaitable[T]]) -> T:
        """Await ``work()`` until this scope is cancelled."""
        with self.reading(work) as reading:
            return await reading.__anext__()

    @contextlib.contextmanager
    def reading(self, following: Callable[[], Awaitable[T]]) -> Iterator[Reading[T]]:
        """Read what ``following`` gives until this scope is cancelled."""
        if self._reason is not None:
            raise EngineDiedError(self._reason)
        task = asyncio.current_task()
        before = 0 if task is None else task.cancelling()
        reading = Reading(following)
        self._readings.add(reading)
        try:
            yield reading
        except asyncio.CancelledError as error:
            task = reading.task
            if reading in self._readings or task is None or task.uncancel() > before:
                raise
            raise EngineDiedError(self._reason) from error
        finally:
            self._readings.discard(reading)


class Replica:
    """An engine with a name, made by ``make`` whenever it starts. ``view`` is for routers.

    ``calls`` are those that it has now; ``reruns`` counts the calls that it lost and that ran
    again elsewhere. A replica that is ``drained`` takes none, even after a new start. ``info`` is
    that of the engine that started last.
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
        self._make = make
        self._closing: set[asyncio.Task[None]] = set()
        self._ready_at = 0.0
        self._deaths_in_a_row = 0

    @property
    def model(self) -> str:
        """The model that it served last; "" before its first start."""
        return self.info.model

    async def start(self, progress: Progress, now: Callable[[], float]) -> None:
        """Come up, or raise what the engine's start raises."""
        self.state = ReplicaState.STARTING
        await self.executor.start(progress)
        self.info = self.executor.info
        self.waits_for = ""
        self.starts += 1
        self.state = ReplicaState.DRAINING if self.drained else ReplicaState.READY
        self._ready_at = now()

    def serves(self, model: str) -> bool:
        """Whether the replica has this model. An engine that does not say may have any."""
        return not self.model or is_model(model, self.model)

    def died(self, error: BaseException, now: float, backoff: Backoff) -> float | None:
        """The engine is gone. Returns the seconds until the next start; None if it is left out."""
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
        return min(backoff.longest_s, backoff.first_s * 2.0 ** (self._deaths_in_a_row - 1))

    def found_no_room(self, error: Exception, backoff: Backoff) -> float:
        """There is no room for the engine now. Returns the seconds until the next try."""
        self.last_error, self.state = str(error), ReplicaState.DOWN
        self.waits_for = str(error)
        return backoff.longest_s

    async def replace_engine(self) -> None:
        """Put a new engine, not started yet, in the place of the old one."""
        old, self.executor = self.executor, self._make()
        self.programs.clear()
        self.cancel_scope.cancel(f"{self.name} was replaced")
        self.cancel_scope = CancelScope()
        with tracking.outside():
            closing = asyncio.create_task(old.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)
        await asyncio.wait([closing])  # `close` waits for it if this is cancelled
        if not closing.cancelled():  # as where something that it waited for was
            with contextlib.suppress(AgentrtError, OSError):
                closing.result()

    async def close(self) -> None:
        """Stop the engine, and wait for old ones that are still closing."""
        await asyncio.gather(*self._closing, return_exceptions=True)
        await self.executor.close()

    async def snapshot(self) -> Mapping[str, Any]:
        """What the engine says; nothing while there is none, or one that does not answer."""
        return await self._answer_of(self.executor.snapshot, {})

    async def metrics(self) -> Sequence[Metric]:
        """What the engine counts itself, or nothing."""
        return await self._answer_of(self.executor.metrics, ())

    async def _answer_of(self, ask: Callable[[], Awaitable[T]], nothing: T) -> T:
        if self.state in UP:
            with contextlib.suppress(AgentrtError, TimeoutError):
                async with asyncio.timeout(_ANSWER_S):
                    return await ask()
        return nothing

    def describe(self) -> dict[str, Any]:
        """The replica, for people."""
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
        }


async def metrics_of(replicas: Sequence[Replica]) -> Sequence[Metric]:
    """What all of them count, each as the ``engine`` of its number."""
    families: dict[str, Metric] = {}
    for index, metrics in enumerate(await asyncio.gather(*(one.metrics() for one in replicas))):
        for metric in metrics:
            family = families.setdefault(metric.name, metric)
            samples = [] if family is metric else family.samples
            number = {"engine": str(index)}
            samples += [one._replace(labels=one.labels | number) for one in metric.samples]
            family.samples = samples
    return tuple(families.values())


async def snapshot_of(replicas: Sequence[Replica]) -> Mapping[str, Any]:
    """What runs and what waits on all of them, and how each stands."""
    found = await asyncio.gather(*(replica.snapshot() for replica in replicas))
    pairs = list(zip(replicas, found, strict=True))
    calls = {
        key: [
            {**entry, "replica": replica.name}
            for replica, one in pairs
            for entry in one.get(key, ())
        ]
        for key in ("running", "waiting")
    }
    return {
        **calls,
        "programs": [program for one in found for program in one.get("programs", ())],
        "steps": sum(one.get("steps") or 0 for one in found),
        "requests": sum(one.get("requests") or 0 for one in found),
        "levelled": all(one.get("levelled", True) for one in found),
        "replicas": [
            {**replica.describe(), **{key: one[key] for key in _OF_EACH if key in one}}
            for replica, one in pairs
        ],
    }
