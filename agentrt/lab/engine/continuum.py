"""A rival inside the engine: Continuum's time-to-live for contexts, with programs in order.

After "Continuum" (later "CacheTTL"), arXiv 2511.02230, written anew from the paper: calls are
served by their program's arrival, and after a call that ends in a tool call its context is pinned
for a time-to-live. That time tau is the one that gains most: P(tau), the chance that this tool has
returned by then, times what a return in time saves, less tau itself. What it saves is the wait for
a slot that a call pays (its mean, T) times the program's memoryfulness eta = -corr(k, N - k) of
calls done with calls left, and the prefill of its context.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import deque
from collections.abc import Sequence
from math import sqrt
from typing import Any, ClassVar

from agentrt.executors.vllm.retention import Retainer
from agentrt.executors.vllm.scheduler import ProgramScheduler
from agentrt.scheduler.config import SchedulerConfig
from agentrt.scheduler.policies import Policy
from agentrt.scheduler.retention import Context
from agentrt.scheduler.retention.context import BETWEEN, HUMAN, RETURNED, SESSION, Key
from agentrt.scheduler.retention.policies import Rank, Retention
from agentrt.scheduler.table import ProgramTotals

_UNTIL_KNOWN_S = 5.0
"""Ours: the time-to-live of a tool that was seen too seldom."""
_FEW = 5
_WINDOW = 200
_NO_TOOLS = (BETWEEN, HUMAN, SESSION)
PREFILL_TOKEN_S = 25e-6


class ToolTtl(Retention):
    """A time-to-live of its own for each tool, learned from how long its calls took."""

    name: ClassVar[str] = "continuum"
    expires: ClassVar[bool] = True

    def __init__(self, config: SchedulerConfig) -> None:
        super().__init__(config)
        self.waits: deque[float] = deque(maxlen=_WINDOW)
        self._times: dict[str, tuple[deque[float], list[float]]] = {}
        self._turns: deque[int] = deque(maxlen=_WINDOW)
        self._eta = 1.0
        self._until: dict[Key, tuple[float, float]] = {}

    def rank(self, context: Context, now: float, peers: int) -> Rank:
        return (float(context.calls > 0), self._ends(context))

    def expired(self, context: Context, now: float) -> bool:
        return context.calls == 0 and now >= self._ends(context)

    def expects(self, context: Context, now: float) -> bool:
        return True  # pinned is pinned, as long as another call runs

    def gap_ended(self, context: Context, seconds: float, *, returned: bool) -> None:
        if context.gap is None or context.gap in (*_NO_TOOLS, RETURNED):
            return
        window, ordered = self._times.setdefault(context.gap, (deque(), []))
        window.append(seconds)
        insort(ordered, seconds)
        if len(window) > _WINDOW:
            ordered.remove(window.popleft())

    def program_ended(self, turns: int) -> None:
        """A program ended that made so many calls."""
        self._turns.append(turns)
        self._eta = memoryfulness(self._turns)

    def _ends(self, context: Context) -> float:
        """When a context's pin ends; it is decided as its gap begins."""
        since, until = self._until.get(context.key, (-1.0, 0.0))
        if since != context.since:
            until = context.since + self._ttl(context)
            self._until[context.key] = (context.since, until)
        return until

    def _ttl(self, context: Context) -> float:
        if context.shared or context.gap is None or context.gap in _NO_TOOLS:
            return 0.0
        if context.gap == RETURNED:  # its call is on its way
            return _UNTIL_KNOWN_S
        ordered = self._times.get(context.gap, ((), []))[1]
        if len(ordered) < _FEW:
            return _UNTIL_KNOWN_S
        waited = sum(self.waits) / len(self.waits) if self.waits else 0.0
        saved = waited * self._eta + context.tokens * PREFILL_TOKEN_S

        def gain(ttl: float) -> float:
            return bisect_right(ordered, ttl) / len(ordered) * saved - ttl

        return max((0.0, *ordered), key=gain)


def memoryfulness(turns: Sequence[int]) -> float:
    """-corr(k, N - k) over all calls k of programs with N calls, from 0 to 1."""
    pairs = [(k, n - k) for n in turns for k in range(1, n + 1)]
    count = len(pairs)
    mean_done, mean_left = (sum(pair[i] for pair in pairs) / count for i in (0, 1))
    both = sum((k - mean_done) * (left - mean_left) for k, left in pairs)
    spread_done = sum((k - mean_done) ** 2 for k, _ in pairs)
    spread_left = sum((left - mean_left) ** 2 for _, left in pairs)
    if not spread_done * spread_left:
        return 1.0
    return min(max(-both / sqrt(spread_done * spread_left), 0.0), 1.0)


class ContinuumScheduler(ProgramScheduler):
    """Our scheduler with that retention in place of its own."""

    def use(self, config: SchedulerConfig, policy: Policy | None = None) -> None:
        super().use(config, policy)
        self.retainer.close()
        self._ttl = ToolTtl(config)
        self.retainer = Retainer(self, config, self._ttl)

    def _begin(self, request_id: str, scheduled: int, now: float) -> None:
        call = self.queues.calls.get(request_id)
        if call is not None and call.since is not None:
            self._ttl.waits.append(now - call.since)
        super()._begin(request_id, scheduled, now)

    def end_program(self, totals: ProgramTotals, now: float) -> None:
        row: Any = self.table.get(totals.program_id)
        if row is not None:
            self._ttl.program_ended(row.finished_calls)
        super().end_program(totals, now)
