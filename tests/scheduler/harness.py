"""An engine of a few one-line events, for tests of decisions: real queues, a real table."""

from __future__ import annotations

from typing import Any

from agentrt.scheduler import LevelQueues, Policy, ProcessTable, QueuedCall, SchedulerConfig
from agentrt.scheduler.policies.adaptive import Lane
from agentrt.scheduler.records import DEFERRED
from tests.scheduler.integrity import check_queues


class Harness:
    """Calls are named after their programs: 'a/0' is the first of program 'a'."""

    def __init__(
        self, policy: str, *, slots: int = 0, given: Policy | None = None, **settings: Any
    ) -> None:
        values: dict[str, Any] = {"min_residency_steps": 0, "max_preemptions_per_step": 99}
        config = SchedulerConfig(policy, **{**values, **settings})
        self.table = ProcessTable()
        self.queues = LevelQueues(config, given, slots=slots)
        self.now = 0.0
        self.running: list[QueuedCall] = []
        self._named = 0

    def call(self, program: str, tokens: int = 0, type: str = "t", node: str = "") -> QueuedCall:
        """A call arrives and waits, the first of its program or another one."""
        row = self.table.get(program) or self.table.start_program(program, type, self.now)
        call_id = f"{program}/{self._named}"
        self._named += 1
        self.table.call_arrived(row, call_id, self.now)
        call = QueuedCall(call_id, row, None, row.path_s, self.now, node=node, prompt_tokens=tokens)
        self.queues.put(self.queues.call_arrived(call, self.now))
        return call

    def start(self) -> QueuedCall:
        """The best waiting call starts."""
        call = self.queues.take()
        self.queues.call_began(call, self.now)
        self.running.append(call)
        return call

    def serve(self, call: QueuedCall, seconds: float) -> None:
        """A running call is served, and time passes."""
        self.now += seconds
        self.queues.charge_step([call.call_id], seconds, self.now)

    def preempt(self, call: QueuedCall, *, hold: bool = False) -> None:
        """A running call waits again."""
        self.running.remove(call)
        self.queues.call_preempted(call, self.now)
        self.queues.put(call, deferred=hold)

    def end(self, call: QueuedCall, *, program: bool = False) -> None:
        """A call ends in whatever state, and its program with it if so wanted."""
        if call in self.running:
            self.running.remove(call)
        self.queues.remove(call, self.now)
        times = call.served_s, call.waited_s
        self.table.call_ended(call.program, call.call_id, self.now, call.path_s, *times)
        self.queues.call_ended(call, self.now)
        if program:
            self.table.end_program(call.program.program_id)
            self.queues.program_ended(call.program, self.now)

    def victims(self) -> list[QueuedCall]:
        """Whom to preempt for those that wait, in a full batch."""
        running = sorted(self.running, key=lambda call: call.key)
        return [victim for victim, _ in self.queues.victims(running, 0)]

    def order(self) -> list[str]:
        """The programs of the waiting calls, best first."""
        return [call.program.program_id for call in self.queues.in_order()]

    @property
    def lane(self) -> Lane:
        """The lane of a policy that keeps one."""
        lane = self.queues._promoter
        assert isinstance(lane, Lane)
        return lane

    def live(self, program: str, seconds: float, type: str = "t") -> None:
        """A program of one call comes, is served and ends. Nothing else may wait."""
        self.call(program, type=type)
        call = self.start()
        self.serve(call, seconds)
        self.end(call, program=True)

    def check_integrity(self) -> None:
        """Whatever must hold between two events."""
        check_queues(self.queues)
        self.table.check_integrity()
        if not isinstance(self.queues._promoter, Lane):
            return
        lane = self.lane
        assert lane._inside == sum(call.promoted for call in self.queues.calls.values())
        waiting = {
            call
            for call in self.queues.calls.values()
            if call.since is not None and call.state is not DEFERRED and not call.promoted
        }
        assert set(lane._line) == waiting
