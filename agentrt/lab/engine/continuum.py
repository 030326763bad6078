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
from typing import ClassVar

from typing_extensions import override

from agentrt.executors.vllm._compat.pool import blocks_needed
from agentrt.executors.vllm.queue import LevelRequestQueue
from agentrt.executors.vllm.retention import BlockRetention
from agentrt.executors.vllm.scheduler import ProgramScheduler
from agentrt.scheduler.config import SchedulerConfig
from agentrt.scheduler.events import Part
from agentrt.scheduler.learned import Learned
from agentrt.scheduler.policies import Policy
from agentrt.scheduler.records import CachedBlocks, EngineProgram, QueuedCall
from agentrt.scheduler.retention import BETWEEN, HUMAN, SESSION, Place, Retention

_UNTIL_KNOWN_S = 5.0
"""Ours: the time-to-live of a tool that was seen too seldom."""
_FEW = 5
_WINDOW = 200
_NO_TOOLS = (BETWEEN, HUMAN, SESSION)
PREFILL_TOKEN_S = 25e-6


class ToolTtl(Retention):
    """A time-to-live of its own for each tool, learned from how long its calls took.

    A pin ends by its time also where the next call is there and waits: else contexts that wait for
    a few blocks each would hold all blocks.
    """

    name: ClassVar[str] = "continuum"
    expires: ClassVar[bool] = True

    def __init__(self, config: SchedulerConfig, learned: Learned) -> None:
        super().__init__(config, learned)
        self.waits: deque[float] = deque(maxlen=_WINDOW)
        self._times: dict[str, tuple[deque[float], list[float]]] = {}
        self._turns: deque[int] = deque(maxlen=_WINDOW)
        self._eta = 1.0
        self.block_size = 16
        self._until: dict[CachedBlocks, tuple[float, float]] = {}

    def place(self, blocks: CachedBlocks) -> Place:
        return (float(blocks.calling), self._ends(blocks))

    def expired(self, blocks: CachedBlocks, now: float) -> bool:
        return now >= self._ends(blocks)

    def tool_returned(self, tool: str, seconds: float) -> None:
        """A tool took so long."""
        window, ordered = self._times.setdefault(tool, (deque(), []))
        window.append(seconds)
        insort(ordered, seconds)
        if len(window) > _WINDOW:
            ordered.remove(window.popleft())

    def program_ended(self, turns: int) -> None:
        """A program ended that made so many calls."""
        self._turns.append(turns)
        self._eta = memoryfulness(self._turns)

    def _ends(self, blocks: CachedBlocks) -> float:
        """When a context's pin ends; it is decided as its gap begins."""
        since, until = self._until.get(blocks, (-1.0, 0.0))
        if since != blocks.since:
            until = blocks.since + self._ttl(blocks)
            self._until[blocks] = (blocks.since, until)
        return until

    def _ttl(self, blocks: CachedBlocks) -> float:
        if blocks.shared or blocks.gap in _NO_TOOLS:
            return 0.0
        if blocks.gap is None:  # its call is on its way
            return _UNTIL_KNOWN_S
        ordered = self._times.get(blocks.gap, ((), []))[1]
        if len(ordered) < _FEW:
            return _UNTIL_KNOWN_S
        waited = sum(self.waits) / len(self.waits) if self.waits else 0.0
        tokens = len(max(blocks.chains, key=len, default=b"")) // 8 * self.block_size
        saved = waited * self._eta + tokens * PREFILL_TOKEN_S

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


class _PinnedQueue(LevelRequestQueue):
    """Pinned is pinned: no new call begins that would evict another program's pinned block, while
    another runs. What its own program has pinned is there for it.
    """

    scheduler: ContinuumScheduler

    def __bool__(self) -> bool:
        head, free = self._queue.head(), self.scheduler.retention.queue
        if head is None or free is None or not self.scheduler.running:
            return head is not None
        room = free.unprotected + free.protected_of(head.program.cached)
        return blocks_needed(self.scheduler, head.item, room) <= room


class ContinuumScheduler(ProgramScheduler):
    """Our scheduler with that retention in place of its own."""

    def use(self, config: SchedulerConfig, policy: Policy | None = None) -> None:
        super().use(config, policy)
        self.retention.close()
        ttl = ToolTtl(config, self.core.learned)
        ttl.block_size = self.block_size
        self.retention = BlockRetention(self, self.core.owners, ttl)
        self.core.listeners = [self.retention, self.notes, self]
        self.core.parts.append(_Observer(ttl))
        self.waiting = _PinnedQueue(self.core)
        self.waiting.scheduler = self


class _Observer(Part):
    """Tells the rule how long calls wait, how long tools take, and how many turns programs have."""

    def __init__(self, ttl: ToolTtl) -> None:
        self._ttl = ttl
        self._waited_s: dict[QueuedCall, float] = {}
        self._tools: dict[EngineProgram, tuple[str, float]] = {}

    @override
    def call_started(self, call: QueuedCall, now: float) -> None:
        self._ttl.waits.append(call.waited_s - self._waited_s.get(call, 0.0))
        self._waited_s[call] = call.waited_s

    @override
    def call_finished(self, call: QueuedCall, now: float) -> None:
        self._waited_s.pop(call, None)

    @override
    def interrupt_started(self, program: EngineProgram, kind: str, name: str, now: float) -> None:
        if kind == "tool":
            self._tools[program] = name, now

    @override
    def interrupt_ended(self, program: EngineProgram, now: float) -> None:
        if (tool := self._tools.pop(program, None)) is not None:
            name, began = tool
            self._ttl.tool_returned(name, now - began)

    @override
    def program_ended(self, program: EngineProgram, now: float) -> None:
        self._tools.pop(program, None)
        if program.finished_calls:
            self._ttl.program_ended(program.finished_calls)
