"""Whose cached blocks go first when memory is short: what a retention policy answers, and two.

``ttl`` keeps a context for a fixed time. ``cost`` lets the context go first whose loss is expected
to cost the least per second kept: the chance of its return, times the seconds of prefill that a
block of it takes, over the seconds until it returns; chance and time are learned online
(`Gaps`). Those that wait for a human go before all others. While even the least of them is
expected back within ``retention_patience`` seconds, and something runs, a new call waits for
other memory.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from agentrt.scheduler.config import SchedulerConfig
from agentrt.scheduler.retention.context import BETWEEN, RETURNED, Context, Phase
from agentrt.scheduler.retention.gaps import PRIOR_S, SHORTEST_S, Forecast, Gaps

Rank = tuple[float, ...]
_TOKEN_S = 25e-6
"""Prefill of a token: that of the made-up step-time model, an 8B model on a large GPU."""
_CONTEXT_TOKEN_S = 8e-10
"""Its attention to each token before it: at 30,000 tokens as much again."""
_LIKELY = 0.5
_UNUSED_CHANCE = 0.5
"""That a shared prefix is used again of which no user is left."""


class Retention(ABC):
    """Ranks contexts. It gets plain values, cannot change them, and reads no clock."""

    name: ClassVar[str]
    expires: ClassVar[bool] = False
    """Whether `expired` is ever true, of the context of least rank first."""

    def __init__(self, config: SchedulerConfig) -> None:
        self.config = config

    @property
    def gaps(self) -> Gaps | None:
        """What it learned of gaps; None for a policy that learns nothing."""
        return None

    @abstractmethod
    def rank(self, context: Context, now: float, peers: int) -> Rank:
        """The least rank loses its blocks first. Ranks of one policy have one length.

        ``peers`` are the live contexts of the same type.
        """

    def expired(self, context: Context, now: float) -> bool:
        """Whether the context is no longer protected, and as good as any other block."""
        return False

    def expects(self, context: Context, now: float) -> bool:
        """Whether a new call should rather wait than take this context's blocks."""
        return False

    def expected_s(self, context: Context, now: float) -> float | None:
        """In how many seconds its program is expected back; None where nothing is learned."""
        return None

    def gap_ended(self, context: Context, seconds: float, *, returned: bool) -> None:
        """What the context waited for is over, or its program is: ``seconds`` after it began."""
        return


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
        idle = not context.calls and context.phase is Phase.IDLE
        tier = 0.0 if idle else 1.0 if context.outside else 2.0
        # Of equals the one that came last is served last.
        return (tier, self._value(context, now, peers), -context.since)

    def expects(self, context: Context, now: float) -> bool:
        if context.phase is Phase.IDLE and not context.shared:
            return False
        if context.calls or context.shared:
            return True
        forecast = self._forecast(context, now)
        likely = forecast.chance >= _LIKELY
        return likely and forecast.seconds <= self.config.retention_patience

    def expected_s(self, context: Context, now: float) -> float | None:
        forecast = self._forecast(context, now)
        return forecast.seconds / max(forecast.chance, 0.01)

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
        if context.branches:
            # Branches that ended are never gone on from, and look like those that will be: what
            # was not used for long is as likely as not to be used no sooner.
            return token_s / max(now - context.oldest, SHORTEST_S)
        if context.calls:
            return token_s / SHORTEST_S
        forecast = self._forecast(context, now)
        return token_s * forecast.chance / max(forecast.seconds, SHORTEST_S)

    def _forecast(self, context: Context, now: float) -> Forecast:
        gap = context.gap or BETWEEN
        prior_s = SHORTEST_S if gap == RETURNED else PRIOR_S
        elapsed = max(now - context.since, 0.0)
        return self.gaps.expect(context.tenant, context.type, gap, elapsed, prior_s)
