"""``ttl``: a context is kept for a time after its program was heard of; the oldest go first.

The time is fixed by ``retention_ttl``.
"""

from __future__ import annotations

from typing import ClassVar

from agentrt.scheduler.retention.base import Rank, Retention
from agentrt.scheduler.retention.context import Context


class Ttl(Retention):
    """First in, first out over the contexts; past ``retention_ttl`` seconds, no protection.

    A call's end, a tool's or a human's beginning and their return start the time anew.
    """

    name: ClassVar[str] = "ttl"
    expires: ClassVar[bool] = True

    def rank(self, context: Context, now: float, peers: int) -> Rank:
        return (float(context.calls > 0), context.since)

    def expired(self, context: Context, now: float) -> bool:
        return context.calls == 0 and now - context.since > self.config.retention_ttl
