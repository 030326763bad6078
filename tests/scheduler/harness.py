"""An engine of a few one-line events, for tests of decisions: real queues, a real table."""

from __future__ import annotations

from typing import Any

from agentrt.scheduler import Policy, ProgramTotals, QueuedCall, SchedulerConfig, SchedulerCore
from agentrt.scheduler.events import (
    CallArrived,
    CallFinished,
    CallPreempted,
    CallStarted,
    ProgramEnded,
    StepFinished,
)
from agentrt.scheduler.policies.adaptive import AgeingShare
from agentrt.scheduler.state import DEFERRED
from tests.scheduler.integrity import check_queues


class Harness:
    """Calls are named after their programs: 'a/0' is the first of program 'a'."""

    def __init__(
        self, policy: str, *, slots: int = 0, given: Policy | None = None, **settings: Any
    ) -> None:
        values: dict[str, Any] = {"min_running_steps": 0, "max_preemptions_per_step": 99}
        config = SchedulerConfig(policy, **{**values, **settings})
        self.core = SchedulerCore(config, given, slots=slots)
        self.table = self.core.table
        self.now = 0.0
        self.running: list[QueuedCall] = []
        self._named = 0

    def call(self, program: str, tokens: int = 0, type: str = "t", node: str = "") -> QueuedCall:
        """A call of a new or a known program arrives and waits."""
        row = self.table.get(program) or self.table.start_program(program, type, self.now)
        call_id = f"{program}/{self._named}"
        self._named += 1
        call = QueuedCall(call_id, row, None, row.path_s, self.now, node=node, prompt_tokens=tokens)
        self.core.handle(CallArrived(call, self.now))
        self.core.queue.put(call)
        return call

    def start(self) -> QueuedCall:
        """The best waiting call starts."""
        call = self.core.queue.take()
        self.core.handle(CallStarted(call, self.now))
        self.running.append(call)
        return call

    def serve(self, call: QueuedCall, seconds: float) -> None:
        """A running call is served, and time passes."""
        self.now += seconds
        self.core.handle(StepFinished([call.call_id], seconds, self.now))

    def preempt(self, call: QueuedCall, *, hold: bool = False) -> None:
        """A running call waits again."""
        self.running.remove(call)
        self.core.handle(CallPreempted(call, self.now))
        self.core.queue.put(call, deferred=hold)

    def end(self, call: QueuedCall, *, program: bool = False) -> None:
        """End a call in any state and, if requested, its program."""
        if call in self.running:
            self.running.remove(call)
        self.core.handle(CallFinished(call, self.now))
        if program:
            self.core.handle(ProgramEnded(ProgramTotals.of(call.program), self.now))

    def victims(self) -> list[QueuedCall]:
        """Return the running calls that are preempted for waiting calls in a full batch."""
        running = sorted(self.running, key=lambda call: call.key)
        return [victim for victim, _ in self.core.victims(running, 0)]

    def order(self) -> list[str]:
        """Return the programs of the waiting calls, best first."""
        return [call.program.program_id for call in self.core.in_order()]

    @property
    def lane(self) -> AgeingShare:
        """The lane of a policy with a lane."""
        lane = self.core.promoter
        assert isinstance(lane, AgeingShare)
        return lane

    def live(self, program: str, seconds: float, type: str = "t") -> None:
        """Run a program of a single call. No other call may wait."""
        self.call(program, type=type)
        call = self.start()
        self.serve(call, seconds)
        self.end(call, program=True)

    def check_integrity(self) -> None:
        """Check the invariants between two events."""
        check_queues(self.core)
        self.table.check_integrity()
        if not isinstance(self.core.promoter, AgeingShare):
            return
        lane = self.lane
        assert lane._inside == sum(call.promoted for call in self.core.calls.values())
        waiting = {
            call
            for call in self.core.calls.values()
            if call.since is not None and call.state is not DEFERRED and not call.promoted
        }
        assert set(lane._line) == waiting
