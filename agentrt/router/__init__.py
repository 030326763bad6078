"""Which replica runs a call: one question, answered by a policy."""

from __future__ import annotations

from agentrt.errors import ConfigError
from agentrt.router.base import ReplicaView, Router, RouterCall
from agentrt.router.policies.agentix import Agentix
from agentrt.router.policies.least_used import LeastUsed
from agentrt.router.policies.round_robin import RoundRobin

ROUTERS: dict[str, type[Router]] = {r.name: r for r in (Agentix, LeastUsed, RoundRobin)}

__all__ = ["ROUTERS", "ReplicaView", "Router", "RouterCall", "make_router"]


def make_router(name: str) -> Router:
    """A new router of that name. Raises `ConfigError` for a name that there is not."""
    if name not in ROUTERS:
        raise ConfigError(f"there is no router {name!r}; there is {', '.join(sorted(ROUTERS))}")
    return ROUTERS[name]()
