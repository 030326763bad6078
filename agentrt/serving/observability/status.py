"""The current activity of programs and nodes, and what they wait for, in words for people."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from operator import attrgetter

from agentrt.graph import Node, NodeKind
from agentrt.journal.analysis.rendering import short
from agentrt.runtime.run import Run, RunState, call_id
from agentrt.scheduler.table import ProgramState, state_of
from agentrt.serving.observability.engines import EngineCall, EnginesView


class Activity(StrEnum):
    """The activity of a program: a state of the process table or of the run.

    A program is waiting if it has open calls and none of them runs. Between calls it runs its own
    code, or waits for the next call of its client.
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
"""Seconds after which a program without open nodes and without events counts as stale."""

Name = Callable[[str], str]
"""Returns the name of a program id for the reader, who may not see other tenants' programs."""


@dataclass(frozen=True, slots=True)
class Status:
    """The current status of a program.

    ``attained_s`` is the program's service (seconds), open calls included. ``waited_s`` is the time
    (seconds) that the program's calls have waited, without the waits that have not ended.
    ``waiting_calls`` is the number of calls that wait now; on average they have waited since
    ``waiting_since``. ``level`` and ``replica`` belong to a running call, or else to the program's
    first open call.
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
"""Returns a text as a single line of at most 200 characters."""


def why(run: Run, call: EngineCall | None, view: EnginesView, name: Name) -> str:
    """Return the reason why an open call waits."""
    if call is None and not view.ready():
        return "no engine is ready"
    if call is None:
        is_outside = run.row.tenant in view.outside
        return "its tenant's share is used" if is_outside else "on its way to an engine"
    if call.preempted_by:
        return f"preempted by {name(call.preempted_by)}"
    return call.why


def status_of(run: Run, view: EnginesView, now: float, name: Name) -> Status:
    """Return the status of a program at the time ``now`` (seconds of the registry's clock)."""
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


def _in_engine(run: Run, view: EnginesView, name: Name) -> Status:
    call = [view.calls.get(call) for call in run.row.calls]
    known = [engine_call for engine_call in call if engine_call is not None]
    running = next((engine_call for engine_call in known if engine_call.running), None)
    first = running or call[0]
    waits = [
        engine_call.since
        for engine_call in known
        if not engine_call.running and engine_call.since is not None
    ]
    return Status(
        state=Activity.RUNNING if running else Activity.WAITING,
        wait="" if running else why(run, first, view, name),
        level=first.level if first else None,
        replica=first.replica if first else "",
        attained_s=run.row.service_s + sum(engine_call.served_s for engine_call in known),
        waited_s=run.row.waiting_s + sum(engine_call.waited_s for engine_call in known),
        waiting_calls=len(waits),
        waiting_since=sum(waits) / len(waits) if waits else None,
    )


def _outside(run: Run) -> str:
    """Describe the oldest open tool; without an open tool, the oldest open event; and without an
    open event, the oldest open question. Return "" if there is no such node.
    """
    event = NodeKind.EVENT if run.row.events else NodeKind.HUMAN
    wanted = NodeKind.TOOL if run.row.tools else event
    nodes = run.dag.running() + run.dag.waiting()
    node = min(
        (node for node in nodes if node.kind is wanted), key=attrgetter("created_at"), default=None
    )
    if node is None:
        return ""
    detail = node.wait or str(node.interrupt or "")
    return clipped(f"{node.name}: {detail}" if detail else node.name)


def node_state(run: Run, node: Node, view: EnginesView, name: Name) -> tuple[str, str]:
    """Return a node's state, and what it waits for."""
    if node.state.ended or node.kind is not NodeKind.CALL:
        return str(node.state), clipped(node.wait)
    call = view.calls.get(call_id(run, node))
    if call is not None and call.running:
        return "running", ""
    return str(node.state), why(run, call, view, name)
