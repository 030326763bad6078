"""Whose cached blocks stay in memory while programs are away: policies by name.

``lru`` is vLLM's own order, and no policy here: nothing of vLLM's is replaced under it.
"""

from __future__ import annotations

from agentrt.scheduler.config import RETENTIONS, SchedulerConfig
from agentrt.scheduler.retention.base import Rank, Retention
from agentrt.scheduler.retention.book import ContextBook
from agentrt.scheduler.retention.context import Context, Phase
from agentrt.scheduler.retention.cost import Cost
from agentrt.scheduler.retention.order import Ranking
from agentrt.scheduler.retention.ttl import Ttl

_BY_NAME: dict[str, type[Retention]] = {policy.name: policy for policy in (Ttl, Cost)}


def make_retention(config: SchedulerConfig) -> Retention | None:
    """A fresh retention policy, None for ``lru``."""
    return None if config.retention == "lru" else _BY_NAME[config.retention](config)


__all__ = [
    "RETENTIONS",
    "Context",
    "ContextBook",
    "Phase",
    "Rank",
    "Ranking",
    "Retention",
    "make_retention",
]
