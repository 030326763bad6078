"""Who runs next: the process table, the queue levels, the policies. Pure and synchronous."""

from __future__ import annotations

from agentrt.scheduler.config import SchedulerConfig
from agentrt.scheduler.policies import Policy, make_policy, policy_names
from agentrt.scheduler.queues import LevelQueues
from agentrt.scheduler.records import ProgramRow, QueuedCall
from agentrt.scheduler.table import ProcessTable, ProgramState, ProgramTotals

__all__ = [
    "LevelQueues",
    "Policy",
    "ProcessTable",
    "ProgramRow",
    "ProgramState",
    "ProgramTotals",
    "QueuedCall",
    "SchedulerConfig",
    "make_policy",
    "policy_names",
]
