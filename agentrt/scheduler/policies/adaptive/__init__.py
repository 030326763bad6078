"""``adaptive``: expected remaining service, learned from the past, with a lane for the oldest."""

from __future__ import annotations

from agentrt.scheduler.policies.adaptive.estimate import History
from agentrt.scheduler.policies.adaptive.policy import Adaptive

__all__ = ["Adaptive", "History"]
