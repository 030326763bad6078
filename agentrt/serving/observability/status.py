"""What a program or a node does now, and what it waits for, in words for people."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from operator import attrgetter

from agentrt.graph import Node, NodeKind
from agentrt.journal.analysis.rendering import short
from agentrt.runtime.registry import call_id
from agentrt.runtime.run import Run, RunState
from agentrt.scheduler.table import ProgramState, state_of
from agentrt.serving.observability.engines import EngineCall, EngineView


class Activity(StrEnum):
    """What a program does, in words for people: its states in the process table and as a run.

    It is waiting while all calls that it has open wait in queues. Between calls it runs code
    of its own, or is kept for a client that makes its calls.
    """

    RUNNING = ProgramState.RUNNING
    WAITING = "waiting"
    IN_TOOL = ProgramState.IN_TOOL
    WAITING_FOR_EVENT = ProgramState.WAITING_FOR_EVENT
    WAITING_FOR_HUMAN = ProgramState.WAITING_FOR_HUMAN
    BETWEEN_CALLS = "between calls"
    STALE = ProgramState.STALE
    DONE = RunState.DONE
    FAILED = RunState.FAILED
    CANCELLED = RunState.CANCELLED
    INTERRUPTED = RunState.INTERRUPTED


STALE_AFTER_S = 600.0
"""A program with nothing open, and no event for so long, counts as stale."""

Name = Callable[[str], str]
"""How to name a program to whoever asks: another tenant's has no name."""


@dataclass(frozen=True, slots=True)
class Status:
    """A program now. ``attained_s`` is its service with that of its open calls (seconds), and
    ``waited_s`` its waiting with theirs, but for the waits that last: those of
    ``waiting_calls`` calls, which began at ``waiting_since`` on average.

    ``level`` and ``replica`` are those of the call that got furthest.
    """

    state: Activity
    wait: str = ""
    level: int | None = None
    replica: str = ""
    attained_s: float = 0.0
    waited_s: float = 0.0
    waiting_calls: int = 0
    waiting_since: float | None = None


clipped = partial(short, most=200)
"""A text in one line, and not too long."""


def why(run: Run, call: EngineCall | None, view: EngineView, name: Name) -> str:
    """What a call that is open, and does not run, waits for."""
    if call is None and not view.ready():
        return "no engine is ready"
    if call is None:
        is_outside = run.row.tenant in view.outside
        return "its tenant's share is used" if is_outside else "on its way to an engine"
    if call.preempted_by:
        return f"preempted by {name(call.preempted_by)}"
    return call.why


def status_of(run: Run, view: EngineView, now: float, name: Name) -> Status:
    """What the program does at ``now`` (the registry's clock)."""
    row = run.row
    if run.state is not RunState.RUNNING:
        return _idle(run, Activity(run.state))
    if row.calls:
        return _in_engine(run, view, name)
    state = state_of(row, now, STALE_AFTER_S)
    if state is ProgramState.RUNNING:
        return _idle(run, Activity.BETWEEN_CALLS)
    return _idle(run, Activity(state), _outside(run))


def _idle(run: Run, state: Activity, wait: str = "") -> Status:
    return Status(state, wait, attained_s=run.row.service_s, waited_s=run.row.waiting_s)


def _in_engine(run: Run, view: EngineView, name: Name) -> Status:
    call = [view.calls.get(call) for call in run.row.calls]
    known = [one for one in call if one is not None]
    running = next((one for one in known if one.running), None)
    first = running or call[0]
    waits = [one.since for one in known if not one.running and one.since is not None]
    return Status(
        state=Activity.RUNNING if running else Activity.WAITING,
        wait="" if running else why(run, first, view, name),
        level=first.level if first else None,
        replica=first.replica if first else "",
        attained_s=run.row.service_s + sum(one.served_s for one in known),
        waited_s=run.row.waiting_s + sum(one.waited_s for one in known),
        waiting_calls=len(waits),
        waiting_since=sum(waits) / len(waits) if waits else None,
    )


def _outside(run: Run) -> str:
    """The tool, the event or the question that is open for the longest."""
    event = NodeKind.EVENT if run.row.events else NodeKind.HUMAN
    wanted = NodeKind.TOOL if run.row.tools else event
    nodes = run.dag.running() + run.dag.waiting()
    node = min(
        (one for one in nodes if one.kind is wanted), key=attrgetter("created_at"), default=None
    )
    if node is None:
        return ""
    more = node.wait or str(node.interrupt or "")
    return clipped(f"{node.name}: {more}" if more else node.name)


def node_state(run: Run, node: Node, view: EngineView, name: Name) -> tuple[str, str]:
    """A node's state, and what it waits for."""
    if node.state.ended or node.kind is not NodeKind.CALL:
        return str(node.state), clipped(node.wait)
    call = view.calls.get(call_id(run, node))
    if call is not None and call.running:
        return "running", ""
    return str(node.state), why(run, call, view, name)
