"""What the replicas' policies learn is shared.

The set learns as its replicas do, from each program that ends: from its totals in the process
table over all engines, and from where it came by, as the engines that had it say. The other
replicas are told the same, and one that starts again is taught all of it. (Those that had it
know its totals, and of where it came by what they were asked themselves.)
"""

from __future__ import annotations

import time
from collections.abc import Container, Sequence

from agentrt.executors.base import Executor, Progress
from agentrt.executors.learning import Learns
from agentrt.executors.memory import Memory
from agentrt.executors.replicas.replica import UP, Replica
from agentrt.scheduler.config import SchedulerConfig
from agentrt.scheduler.policies import make_policy
from agentrt.scheduler.totals import ProgramTotals


class Learning:
    """All that the policy of ``scheduling`` learns on ``replicas``, and its file, if any.

    It is idle under a policy that learns nothing. ``notice`` is told of a file that cannot be
    written. Raises `ConfigError` for a file that is no history.
    """

    def __init__(
        self, replicas: Sequence[Replica], scheduling: SchedulerConfig, notice: Progress
    ) -> None:
        self._replicas = replicas
        self._policy = make_policy(scheduling)
        self._memory = Memory(self._policy, scheduling.history, notice)

    def ready(self, replica: Replica) -> None:
        """The replica's engine has started: before its first program it knows what is known."""
        learned = self._memory.learned()
        if learned is not None and isinstance(replica.executor, Learns):
            replica.executor.teach(learned)

    def ended(self, totals: ProgramTotals, told: Container[Executor]) -> None:
        """A program ended; all but those who were ``told`` learn of it from here."""
        if not self._policy.learns or totals.service_s <= 0.0:
            return
        self._policy.learn(totals, time.monotonic())
        self._memory.ended()
        for replica in self._replicas:
            executor = replica.executor
            if replica.state in UP and executor not in told and isinstance(executor, Learns):
                executor.learn(totals)

    def close(self) -> None:
        """Write down what is not written yet."""
        self._memory.save()
