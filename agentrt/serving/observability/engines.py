"""The state of the engines, read from an executor's snapshot: which calls run, which calls wait,
and for what they wait.

Values that a snapshot does not have are unknown here. Times are seconds of the registry's clock; on
the same machine, an engine has the same clock.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from agentrt.errors import AgentrtError
from agentrt.executors.base import Executor

_TIMEOUT_S = 1.0
_PAUSE_S = 5.0
ONE_ENGINE = "engine"
"""The name of an engine that does not belong to a set of replicas."""


@dataclass(frozen=True, slots=True)
class EngineCall:
    """A call in an engine.

    ``since`` is the time when the call last began to run or to wait. ``served_s`` are the seconds
    for which the call has been served. ``waited_s`` are the seconds of its waits that have ended; a
    wait that still lasts is not included. ``level`` is the call's priority level; calls of level 0
    run first. For a waiting call, ``why`` is the reason why it waits, and after a preemption
    ``preempted_by`` is the id of the program that took its place.
    """

    call_id: str
    program_id: str
    running: bool
    replica: str
    level: int | None = None
    since: float | None = None
    served_s: float = 0.0
    waited_s: float = 0.0
    preemptions: int = 0
    why: str = ""
    preempted_by: str = ""


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """An engine: its state, its calls, the size of its KV cache (blocks; 0 if unknown), and its
    work so far.
    """

    name: str
    state: str = "ready"
    running: int = 0
    waiting: int = 0
    blocks: int = 0
    free_blocks: int = 0
    steps: int = 0
    computed_tokens: int | None = None
    deaths: int = 0
    last_error: str = ""
    weights_version: int = 0
    paused: bool = False


@dataclass(frozen=True, slots=True)
class EnginesView:
    """The state of all engines at the time ``at``.

    ``calls`` are the calls in the engines, by call id. ``up`` says whether the engines answered.
    ``outside`` are the tenants that have calls waiting for their turn.
    """

    at: float = 0.0
    calls: Mapping[str, EngineCall] = field(default_factory=dict)
    replicas: tuple[EngineStatus, ...] = ()
    up: bool = True
    outside: frozenset[str] = frozenset()

    @classmethod
    def of(cls, snapshot: Mapping[str, Any], at: float) -> EnginesView:
        """Read an executor's snapshot, which was taken at the time ``at``."""
        running = [*(snapshot.get("running") or ())]
        waiting = [*(snapshot.get("waiting") or ())]
        engines = snapshot.get("replicas") or [{"name": ONE_ENGINE, **snapshot}]
        calls: dict[str, EngineCall] = {}
        for engine in engines:
            name = engine["name"]
            runs = [call for call in running if call.get("replica", name) == name]
            waits = [call for call in waiting if call.get("replica", name) == name]
            queue = _EngineQueue(engine, runs)
            placed = [*(_engine_call(call, name, engine) for call in runs), *queue.calls(waits)]
            calls.update((call.call_id, call) for call in placed)
        shares = snapshot.get("tenants") or {}
        outside = frozenset(name for name, share in shares.items() if share.get("waiting"))
        replicas = tuple(_replica(engine, calls.values()) for engine in engines)
        return cls(at, calls, replicas, outside=outside)

    def moved(self, later: EnginesView) -> set[str]:
        """Return the ids of the programs with a call that has changed, appeared or disappeared in
        the ``later`` view.
        """
        here, there = self.calls, later.calls
        moved = {
            engine_call.program_id
            for call, engine_call in there.items()
            if here.get(call) != engine_call
        }
        moved.update(
            engine_call.program_id for call, engine_call in here.items() if call not in there
        )
        return moved

    def ready(self) -> bool:
        """Return whether at least one engine accepts calls."""
        return self.up and any(replica.state == "ready" for replica in self.replicas)


def queue_levels(
    view: EnginesView, sees: Callable[[str], bool]
) -> dict[tuple[str, int | None], tuple[int, int]]:
    """Count the running and the waiting calls, by replica and level (None: no levels).

    Only the calls of programs that the reader ``sees`` are counted.
    """
    calls = [call for call in view.calls.values() if sees(call.program_id)]
    running = Counter((call.replica, call.level) for call in calls if call.running)
    waiting = Counter((call.replica, call.level) for call in calls if not call.running)
    return {place: (running[place], waiting[place]) for place in running | waiting}


class _EngineQueue:
    """The queue of one engine, with the reason why each waiting call waits."""

    def __init__(self, engine: Mapping[str, Any], running: Iterable[Mapping[str, Any]]) -> None:
        self._engine = engine
        self._named_levels = engine.get("named_levels", True)
        self._lowest = max((call.get("level", 0) for call in running), default=None)
        self._has_slots = engine.get("free_slots", 0) > 0
        self._lacks_blocks = engine.get("needs_blocks", 0) > engine.get("free_blocks", 0)

    def calls(self, waiting: Iterable[Mapping[str, Any]]) -> Iterable[EngineCall]:
        before = self._lowest
        for call in waiting:
            yield _engine_call(call, self._engine["name"], self._engine, self._why(call, before))
            before = call.get("level", 0)

    def _why(self, call: Mapping[str, Any], before: int | None) -> str:
        if self._engine.get("paused"):
            return "generation is paused"
        if call.get("not_admitted"):
            return "its program is not admitted"
        if call.get("loading"):
            return "loading from host memory"
        if call.get("gave_way_to"):
            return "preempted"
        if self._has_slots and self._lacks_blocks:
            return "preempted, no KV space" if call.get("preemptions") else "no KV space"
        if self._has_slots:
            return "next in line"
        here = _level_name(call, self._named_levels)
        if not here:
            return "queued, the batch is full"
        behind = f" behind Q{before + 1}" if self._named_levels and before is not None else ""
        return f"queued at {here}{behind}"


def _level_name(call: Mapping[str, Any], named_levels: bool) -> str:
    if named_levels:
        return f"Q{call.get('level', 0) + 1}"
    return "the lane" if call.get("promoted") else ""


def _engine_call(
    call: Mapping[str, Any], replica: str, engine: Mapping[str, Any], why: str = ""
) -> EngineCall:
    own = {
        "call_id": str(call.get("call_id")),
        "running": not why,
        "replica": replica,
        "level": call.get("level") if engine.get("named_levels", True) else None,
        "why": why,
        "preempted_by": call.get("gave_way_to", "") if why else "",
    }
    return EngineCall(**_known(EngineCall, call) | own)


def _replica(engine: Mapping[str, Any], calls: Iterable[EngineCall]) -> EngineStatus:
    here = Counter(call.running for call in calls if call.replica == engine["name"])
    return EngineStatus(
        **_known(EngineStatus, engine) | {"running": here[True], "waiting": here[False]}
    )


def _known(kind: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a snapshot that are fields of the dataclass ``kind``."""
    names = (field.name for field in fields(kind))
    return {name: values[name] for name in names if values.get(name) is not None}


class SnapshotPoller:
    """A cache of the engines' state, which asks the engines only if the last view is too old.

    ``view`` is the last view, and ``on_view`` is called with each new view. ``clock`` returns
    seconds. An engine in a long step answers late, so a reader waits at most ``timeout_s`` seconds.
    After a timeout, the engines are not asked again for a while.
    """

    def __init__(
        self,
        executor: Executor,
        clock: Callable[[], float],
        on_view: Callable[[EnginesView], None] = lambda view: None,
        *,
        timeout_s: float = _TIMEOUT_S,
    ) -> None:
        self.view = EnginesView(at=float("-inf"), up=False)
        self._executor = executor
        self._clock = clock
        self._on_view = on_view
        self._timeout_s = timeout_s
        self._not_before = float("-inf")
        self._asking = asyncio.Lock()

    def up(self) -> bool:
        """Return whether an engine is alive, as far as is known without sending it a request."""
        return self._executor.alive()

    async def fresh(self, age_s: float) -> EnginesView:
        """Return a view at most ``age_s`` seconds old, or the last view if the engine is busy."""
        async with self._asking:
            now = self._clock()
            if now - self.view.at >= age_s and now >= self._not_before:
                await self._poll()
            return self.view

    async def _poll(self) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                snapshot = await self._executor.snapshot()
        except TimeoutError:
            self._not_before = self._clock() + _PAUSE_S
            return
        except AgentrtError:
            snapshot = {}
        now = self._clock()
        if snapshot and self.up():
            self.view = EnginesView.of(snapshot, now)
        else:
            self.view = EnginesView(at=now, up=False)
        self._on_view(self.view)
