"""The scheduler, which decides which call runs next: process table, queue, admission and policies.

The package is pure and synchronous.
"""

from __future__ import annotations

from agentrt.scheduler.config import SchedulerConfig
from agentrt.scheduler.core import SchedulerCore
from agentrt.scheduler.policies import Policy, make_policy, policy_names
from agentrt.scheduler.programs import ProgramStats
from agentrt.scheduler.state import EngineProgram, QueuedCall
from agentrt.scheduler.table import ProcessTable, ProgramState, ProgramTotals

__all__ = [
    "EngineProgram",
    "Policy",
    "ProcessTable",
    "ProgramState",
    "ProgramStats",
    "ProgramTotals",
    "QueuedCall",
    "SchedulerConfig",
    "SchedulerCore",
    "make_policy",
    "policy_names",
]
