"""The state of the engines, read from an executor's snapshot: which calls run and wait, and why.

What a snapshot does not say is unknown here. Times are seconds on the registry's clock, which on
one machine is also the engine's.
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
"""The name of an engine that is no replica of a set."""


@dataclass(frozen=True, slots=True)
class EngineCall:
    """A call in an engine. ``since`` is when it last began to run or to wait.

    ``waited_s`` is all its waiting before that. A waiting call says ``why``; ``preempted_by`` is
    the program that took its place.
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
class Replica:
    """An engine: its state, its batch, its KV cache (blocks; 0 where unknown), its work so far."""

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


@dataclass(frozen=True, slots=True)
class EngineView:
    """The engines ``at`` a time. ``up`` says whether they answered.

    ``outside`` are the tenants with calls that are not admitted to the engines yet.
    """

    at: float = 0.0
    calls: Mapping[str, EngineCall] = field(default_factory=dict)
    replicas: tuple[Replica, ...] = ()
    up: bool = True
    outside: frozenset[str] = frozenset()

    @classmethod
    def of(cls, snapshot: Mapping[str, Any], at: float) -> EngineView:
        """Read an executor's snapshot, taken ``at`` this time."""
        running = [*(snapshot.get("running") or ())]
        waiting = [*(snapshot.get("waiting") or ())]
        engines = snapshot.get("replicas") or [{"name": ONE_ENGINE, **snapshot}]
        calls: dict[str, EngineCall] = {}
        for engine in engines:
            name = engine["name"]
            runs = [call for call in running if call.get("replica", name) == name]
            waits = [call for call in waiting if call.get("replica", name) == name]
            queue = _Queue(engine, runs)
            placed = [*(_engine_call(call, name, engine) for call in runs), *queue.calls(waits)]
            calls.update((one.call_id, one) for one in placed)
        shares = snapshot.get("tenants") or {}
        outside = frozenset(name for name, share in shares.items() if share.get("waiting"))
        replicas = tuple(_replica(engine, calls.values()) for engine in engines)
        return cls(at, calls, replicas, outside=outside)

    def moved(self, later: EngineView) -> set[str]:
        """The programs with a call that differs in the ``later`` view."""
        here, there = self.calls, later.calls
        moved = {one.program_id for call, one in there.items() if here.get(call) != one}
        moved.update(one.program_id for call, one in here.items() if call not in there)
        return moved

    def ready(self) -> bool:
        """Whether an engine takes calls."""
        return self.up and any(replica.state == "ready" for replica in self.replicas)


def queue_levels(
    view: EngineView, sees: Callable[[str], bool]
) -> dict[tuple[str, int | None], tuple[int, int]]:
    """How many calls run and wait at each level of each replica; None: there are no levels."""
    calls = [call for call in view.calls.values() if sees(call.program_id)]
    running = Counter((call.replica, call.level) for call in calls if call.running)
    waiting = Counter((call.replica, call.level) for call in calls if not call.running)
    return {place: (running[place], waiting[place]) for place in running | waiting}


class _Queue:
    """The waiting calls of one engine, in order, and what each waits for."""

    def __init__(self, engine: Mapping[str, Any], running: Iterable[Mapping[str, Any]]) -> None:
        self._engine = engine
        self._levelled = engine.get("levelled", True)
        self._lowest = max((call.get("level", 0) for call in running), default=None)
        self._has_slots = engine.get("free_slots", 0) > 0
        self._lacks_blocks = engine.get("needs_blocks", 0) > engine.get("free_blocks", 0)

    def calls(self, waiting: Iterable[Mapping[str, Any]]) -> Iterable[EngineCall]:
        before = self._lowest
        for call in waiting:
            yield _engine_call(call, self._engine["name"], self._engine, self._why(call, before))
            before = call.get("level", 0)

    def _why(self, call: Mapping[str, Any], before: int | None) -> str:
        if call.get("held"):
            return "its program is not let in"
        if call.get("gave_way_to"):
            return "preempted"
        if self._has_slots and self._lacks_blocks:
            return "preempted, no KV space" if call.get("preemptions") else "no KV space"
        if self._has_slots:
            return "next in line"
        here = _level_name(call, self._levelled)
        if not here:
            return "queued, the batch is full"
        behind = f" behind Q{before + 1}" if self._levelled and before is not None else ""
        return f"queued at {here}{behind}"


def _level_name(call: Mapping[str, Any], levelled: bool) -> str:
    if levelled:
        return f"Q{call.get('level', 0) + 1}"
    return "the lane" if call.get("promoted") else ""


def _engine_call(
    call: Mapping[str, Any], replica: str, engine: Mapping[str, Any], why: str = ""
) -> EngineCall:
    own = {
        "call_id": str(call.get("call_id")),
        "running": not why,
        "replica": replica,
        "level": call.get("level") if engine.get("levelled", True) else None,
        "why": why,
        "preempted_by": call.get("gave_way_to", "") if why else "",
    }
    return EngineCall(**_known(EngineCall, call) | own)


def _replica(engine: Mapping[str, Any], calls: Iterable[EngineCall]) -> Replica:
    here = Counter(call.running for call in calls if call.replica == engine["name"])
    return Replica(**_known(Replica, engine) | {"running": here[True], "waiting": here[False]})


def _known(kind: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a dataclass that a snapshot has."""
    names = (field.name for field in fields(kind))
    return {name: given[name] for name in names if given.get(name) is not None}


class SnapshotPoller:
    """Asks the engines for a view, only when somebody reads one and the last is too old.

    ``view`` is the last one; each new one goes to ``on_view``. ``clock`` gives seconds. An engine
    in a long step answers late: a reader waits at most ``timeout_s`` for it, and after
    a timeout the engine is not asked again for a while.
    """

    def __init__(
        self,
        executor: Executor,
        clock: Callable[[], float],
        on_view: Callable[[EngineView], None] = lambda view: None,
        *,
        timeout_s: float = _TIMEOUT_S,
    ) -> None:
        self.view = EngineView(at=float("-inf"), up=False)
        self._executor = executor
        self._clock = clock
        self._on_view = on_view
        self._timeout_s = timeout_s
        self._not_before = float("-inf")
        self._asking = asyncio.Lock()

    def up(self) -> bool:
        """Whether the engine is alive, as far as is known without asking it."""
        return self._executor.alive()

    async def fresh(self, age_s: float) -> EngineView:
        """A view not older than ``age_s`` seconds; if the engine is busy, the last one."""
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
            self.view = EngineView.of(snapshot, now)
        else:
            self.view = EngineView(at=now, up=False)
        self._on_view(self.view)
