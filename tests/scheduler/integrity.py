"""The invariants of queue levels."""

from __future__ import annotations

from agentrt.scheduler import SchedulerCore
from agentrt.scheduler.queues import Starvation
from agentrt.scheduler.state import CallState


def check_queues(core: SchedulerCore) -> None:
    """Fail on an inconsistent state."""
    calls = core.calls
    for call in calls.values():
        waits = call in core.queue._waiting, call in core.queue._deferred
        assert waits == (call.state is CallState.WAITING, call.state is CallState.DEFERRED), call
        assert (call.since is None) == (call.state is CallState.RUNNING), call
        assert call.program.queued.get(call.call_id) is call
    assert len(core.queue) == sum(call.queued for call in calls.values())
    if isinstance(promoter := core.promoter, Starvation):
        for watched in promoter._watched.values():
            for call in watched:
                assert call.call_id in calls
                assert call.since is not None
                assert call.level != 0, f"{call.call_id} does not starve but is watched"
        assert all(call.call_id in calls and call.promoted for call in promoter._promoted)
