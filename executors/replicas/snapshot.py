"""The snapshots of all replicas as one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from agentrt.errors import AgentrtError
from agentrt.executors.replicas.replica import UP, Replica

_SNAPSHOT_S = 5.0
_OF_EACH = (
    "steps",
    "computed_tokens",
    "blocks",
    "free_blocks",
    "free_slots",
    "needs_blocks",
    "levelled",
)
"""What of an engine's snapshot is told of each replica."""


async def snapshot_of(replicas: Sequence[Replica]) -> Mapping[str, Any]:
    """What runs and what waits on all of them, and how each stands."""
    found = await asyncio.gather(*map(_snapshot, replicas))
    whole: dict[str, Any] = {
        key: [
            {**entry, "replica": replica.name}
            for replica, one in zip(replicas, found, strict=True)
            for entry in one.get(key, ())
        ]
        for key in ("running", "waiting")
    }
    whole["programs"] = [program for one in found for program in one.get("programs", ())]
    whole["steps"] = sum(one.get("steps") or 0 for one in found)
    whole["requests"] = sum(one.get("requests") or 0 for one in found)
    whole["levelled"] = all(one.get("levelled", True) for one in found)
    whole["replicas"] = [
        {**replica.describe(), **{key: one[key] for key in _OF_EACH if key in one}}
        for replica, one in zip(replicas, found, strict=True)
    ]
    return whole


async def _snapshot(replica: Replica) -> Mapping[str, Any]:
    """What its engine says; nothing while it has none, or has one that does not answer."""
    if replica.state in UP:
        with contextlib.suppress(AgentrtError, TimeoutError):
            async with asyncio.timeout(_SNAPSHOT_S):
                return await replica.executor.snapshot()
    return {}
