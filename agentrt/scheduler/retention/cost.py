"""``cost``: the context goes first whose loss is expected to cost the least, per second kept.

That is the chance of its return, times the seconds of prefill that a block of it takes,
over the seconds until it returns; chance and time are learned online per program type and
tool. Those that wait for a human go before all others. While even the least of them is
expected back within ``retention_patience`` seconds, and something runs, a new call waits for
other memory.
"""

from __future__ import annotations

from typing import ClassVar

from agentrt.scheduler.config import SchedulerConfig
from agentrt.scheduler.retention.base import Rank, Retention
from agentrt.scheduler.retention.context import BETWEEN, RETURNED, Context, Phase
from agentrt.scheduler.retention.gaps import PRIOR_S, SHORTEST_S, Gaps, Outlook

_TOKEN_S = 25e-6
"""Prefill of a token: that of the made-up step-time model, an 8B model on a large GPU."""
_CONTEXT_TOKEN_S = 8e-10
"""Its attention to each token before it: at 30,000 tokens as much again."""
_LIKELY = 0.5
_UNUSED_CHANCE = 0.5
"""That a shared prefix is used again of which no user is left."""


class Cost(Retention):
    """Learns gaps, and ranks by what a block's loss is expected to cost."""

    name: ClassVar[str] = "cost"

    def __init__(self, config: SchedulerConfig) -> None:
        super().__init__(config)
        self._gaps = Gaps()

    @property
    def gaps(self) -> Gaps:
        return self._gaps

    def rank(self, context: Context, now: float, peers: int) -> Rank:
        tier = 0.0 if context.phase is Phase.IDLE else 1.0
        # Of equals the one that came last is served last.
        return (tier, self._value(context, now, peers), -context.since)

    def expects(self, context: Context, now: float) -> bool:
        if context.phase is Phase.IDLE and not context.shared:
            return False
        if context.calls or context.shared:
            return True
        outlook = self._outlook(context, now)
        likely = outlook.chance >= _LIKELY
        return likely and outlook.seconds <= self.config.retention_patience

    def gap_ended(self, context: Context, seconds: float, *, returned: bool) -> None:
        if context.gap is not None:
            self.gaps.learn(context.tenant, context.type, context.gap, seconds, returned=returned)

    def _value(self, context: Context, now: float, peers: int) -> float:
        """Seconds of prefill saved per token and second of keeping it."""
        token_s = _TOKEN_S + _CONTEXT_TOKEN_S * context.tokens
        elapsed = max(now - context.since, 0.0)
        if context.shared:
            # Each of its users comes back for it, about as often as it was used.
            return token_s * (peers or _UNUSED_CHANCE) / max(elapsed, SHORTEST_S)
        if context.calls:
            return token_s / SHORTEST_S
        outlook = self._outlook(context, now)
        return token_s * outlook.chance / max(outlook.seconds, SHORTEST_S)

    def _outlook(self, context: Context, now: float) -> Outlook:
        gap = context.gap or BETWEEN
        prior_s = SHORTEST_S if gap == RETURNED else PRIOR_S
        elapsed = max(now - context.since, 0.0)
        return self.gaps.expect(context.tenant, context.type, gap, elapsed, prior_s)
