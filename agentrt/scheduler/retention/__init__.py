"""Whose cached blocks stay in memory while programs are away: policies by name.

``lru`` is vLLM's own order, and no policy here: nothing of vLLM's is replaced under it.
"""

from __future__ import annotations

from agentrt.scheduler.config import SchedulerConfig
from agentrt.scheduler.retention.context import Context, Phase
from agentrt.scheduler.retention.contexts import Contexts, Ranking, key_of
from agentrt.scheduler.retention.policies import Cost, Retention, Ttl

_BY_NAME: dict[str, type[Retention]] = {policy.name: policy for policy in (Ttl, Cost)}


def make_retention(config: SchedulerConfig) -> Retention | None:
    """A fresh retention policy, None for ``lru``."""
    return None if config.retention == "lru" else _BY_NAME[config.retention](config)


__all__ = ["Context", "Contexts", "Phase", "Ranking", "Retention", "key_of", "make_retention"]
