"""Answers a client's control messages to the scheduler in the engine core.

Messages arrive at `EngineCore.agentrt`, which `_compat.core.install_control` installs. Arguments
and results are plain values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from agentrt.errors import ConfigError
from agentrt.executors.history import HistoryFile
from agentrt.executors.vllm._compat.grammars import prepare
from agentrt.executors.vllm._compat.pool import all_blocks, blocks_needed, free_blocks
from agentrt.executors.vllm._compat.scheduling import free_slots, paused, sizes
from agentrt.executors.vllm.engine_core.block_retention import BlockRetention
from agentrt.executors.vllm.engine_core.kv_events import KVEventLog
from agentrt.executors.vllm.engine_core.weights import WeightVersions
from agentrt.executors.vllm.reports import RecentReports
from agentrt.scheduler.config import SchedulerConfig
from agentrt.scheduler.core import SchedulerCore
from agentrt.scheduler.events import InterruptEnded, InterruptStarted
from agentrt.scheduler.policies import AttainedService
from agentrt.scheduler.state import CallState, EngineProgram, QueuedCall
from agentrt.scheduler.table import ProcessTable, ProgramTotals


class Controlled(Protocol):
    """The attributes of the scheduler that the operations use. Functions of `_compat`, to which
    operations pass the scheduler, use further attributes of vLLM's class.
    """

    requests: dict[str, Any]
    waiting: Any
    clock: Callable[[], float]
    config: SchedulerConfig
    core: SchedulerCore
    table: ProcessTable[EngineProgram]
    history: HistoryFile
    retention: BlockRetention
    kv_events: KVEventLog | None
    weights: WeightVersions
    recent_reports: RecentReports
    steps: int
    computed_tokens: int

    def use(self, config: SchedulerConfig) -> None: ...

    def end_program(self, totals: ProgramTotals, now: float) -> None: ...

    def use_weights(self, version: int) -> None: ...


def answer(scheduler: Controlled, op: str, argument: Any) -> Any:
    """Answer a client's message. Raises `ConfigError` for an unknown operation."""
    operation = _OPERATIONS.get(op)
    if operation is None:
        raise ConfigError(f"unknown control operation {op!r}")
    return operation(scheduler, argument)


def _ends(scheduler: Controlled, programs: Sequence[Any]) -> None:
    """Remove the rows of programs that have ended.

    ``programs`` has the id of each program, or the fields of its `ProgramTotals` if they are known.
    """
    for program in programs:
        totals = ProgramTotals(program, "") if isinstance(program, str) else ProgramTotals(*program)
        scheduler.end_program(totals, scheduler.clock())


_NOTES = {
    "tool": ("tool", True),
    "returned": ("tool", False),
    "human": ("human", True),
    "answered": ("human", False),
    "dropped": ("", False),
}


def _boundary(scheduler: Controlled, notes: Sequence[Sequence[Any]]) -> None:
    """Note that programs began or stopped waiting for tools or humans, or dropped a context.

    A note is (program id, kind, name). The kind is ``tool``, ``returned``, ``human``, ``answered``
    or ``dropped``. A wait for an event is noted like a tool. For ``dropped``, the name is a
    call's id, and a fourth value may say how many of the call's first tokens are kept.
    """
    now = scheduler.clock()
    scheduler.retention.at(now)
    for program_id, kind, name, *kept in notes:
        if kind not in _NOTES:
            kinds = ", ".join(_NOTES)
            raise ConfigError(
                f"unknown notification {kind!r} of program {program_id}; available: {kinds}"
            )
        row = scheduler.table.get(program_id)
        if row is None or row.cached is None:
            continue
        if kind == "dropped":
            scheduler.retention.drop(row, name, *kept)
        else:
            _interrupt(scheduler, row, *_NOTES[kind], name, now)


def _interrupt(
    scheduler: Controlled, row: EngineProgram, kind: str, begins: bool, name: str, now: float
) -> None:
    if begins:
        scheduler.core.handle(InterruptStarted(row, kind, name, now))
    elif row.humans if kind == "human" else row.tools:  # else the wait has already ended
        scheduler.core.handle(InterruptEnded(row, kind, now))


def _report(scheduler: Controlled, call_id: Any) -> dict[str, Any] | None:
    """Return the report of a call that ended recently, and forget it; None if there is none."""
    return scheduler.recent_reports.take(str(call_id))


def _prepare_grammars(scheduler: Controlled, _: Any) -> None:
    prepare(scheduler)


def _configure(scheduler: Controlled, settings: Any) -> dict[str, Any]:
    """Change the settings. Raises `ConfigError` if calls are unfinished or the settings are not
    valid.
    """
    if scheduler.requests:
        raise ConfigError(
            f"{len(scheduler.requests)} calls are unfinished; change the settings when these calls "
            "have ended"
        )
    scheduler.history.save()
    scheduler.use(SchedulerConfig.from_dict(settings))
    return scheduler.config.to_dict()


def _cached_blocks(scheduler: Controlled, argument: Any) -> dict[str, Any] | None:
    """Return all blocks in the prefix cache; None if the engine makes no KV events."""
    return None if scheduler.kv_events is None else scheduler.kv_events.snapshot()


def _snapshot(scheduler: Controlled, argument: Any) -> dict[str, Any]:
    """Return the scheduler's state: running calls, waiting calls in order, blocks and slots.

    A call's ``since`` is the time when its current run or wait began (seconds on the machine's
    monotonic clock), and ``waited_s`` are the seconds of its earlier waits. ``not_admitted`` says
    that its program is not admitted, and ``loading`` that its KV cache is being loaded.
    ``named_levels`` says whether the levels have the names Q1, Q2 and so on of Agentix.
    ``free_slots`` is the number of free slots in the batch, and ``needs_blocks`` the number of
    KV-cache blocks that the first waiting call needs (0 if no call waits). ``sizes`` are the
    engine's sizes on which the scheduler's decisions depend.
    """
    calls = scheduler.core.calls
    waiting = [calls[request.request_id] for request in scheduler.waiting]
    free = free_blocks(scheduler)
    return {
        "policy": scheduler.config.policy,
        "retention": str(scheduler.config.retention),
        "admission": str(scheduler.config.admission),
        "named_levels": isinstance(scheduler.core.policy, AttainedService),
        "steps": scheduler.steps,
        "programs": [row.program_id for row in scheduler.table],
        "running": [_describe(c) for c in calls.values() if c.since is None],
        # vLLM starts the calls that load, which hold blocks, before all others.
        "waiting": [
            {**_describe(c), "ahead": i} for i, c in enumerate([*scheduler.core.loading, *waiting])
        ],
        "free_blocks": free,
        "protected_blocks": scheduler.retention.protected,
        "needs_blocks": blocks_needed(scheduler, waiting[0].item, free) if waiting else 0,
        "blocks": all_blocks(scheduler),
        "sizes": sizes(scheduler),
        "free_slots": free_slots(scheduler),
        "computed_tokens": scheduler.computed_tokens,
        "requests": len(scheduler.requests),
        "weights_version": scheduler.weights.version,
        "paused": paused(scheduler),
    }


def _describe(call: QueuedCall) -> dict[str, Any]:
    return {
        "call_id": call.identity.call_id or None,
        "program_id": call.program.program_id,
        "level": call.level,
        "promoted": call.promoted,
        "preemptions": call.preemptions,
        "gave_way_to": call.gave_way_to,
        "not_admitted": call.state is CallState.NOT_ADMITTED,
        "loading": call.state is CallState.LOADING,
        "since": call.began_at if call.since is None else call.since,
        "served_s": call.served_s,
        "waited_s": call.waited_s,
    }


def _use_weights(scheduler: Controlled, version: Any) -> None:
    """Note that the workers have loaded the weights of another version."""
    scheduler.use_weights(int(version))


_OPERATIONS: dict[str, Callable[[Controlled, Any], Any]] = {
    "ends": _ends,
    "prepare_grammars": _prepare_grammars,
    "boundary": _boundary,
    "report": _report,
    "configure": _configure,
    # The content of a history file replaces what was learned here.
    "know": lambda scheduler, learned: scheduler.history.know(learned),
    "save": lambda scheduler, _: scheduler.history.save(),
    "cached_blocks": _cached_blocks,
    "snapshot": _snapshot,
    "use_weights": _use_weights,
}
