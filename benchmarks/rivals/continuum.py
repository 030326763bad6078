"""A rival inside the engine: Continuum's time-to-live for contexts, with programs in the order of
their arrival.

This is an implementation of "Continuum" (later "CacheTTL"), arXiv 2511.02230, written anew from the
paper and from the published preview code (github.com/Hanchenli/vllm-continuum). Programs are
served in the order of their arrival, but programs with a pinned context go first. After a call that
ends in a tool call, the context of the call is pinned for a time-to-live. The time-to-live is the
tau with the largest P(tau) * (T * eta + prefill) - tau:

- P(tau) is the share of this tool's calls that returned within tau. If few calls of the tool are
  known, the calls of all tools count. If these are few, too, tau is `UNTIL_KNOWN_S`.
- T is the mean time for which calls without a pinned context waited for a slot. A pin avoids this
  wait.
- eta, the memoryfulness of programs, is -corr(k, N - k), where k is the number of calls that are
  done, and N - k the number of calls that are left.
- prefill is the time to compute the context again.

A pin does not end while the next call of its program waits. No other call may take pinned blocks.
If there are not enough blocks, vLLM preempts the running call of the latest program. If a call runs
alone, or cannot begin in an empty engine, the context of the latest program is unpinned for it.

The preview code served the published runs that `benchmarks.external` predicts. That code does not
choose the time-to-live by this formula (`PreviewTtl`).
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import deque
from collections.abc import Callable, Sequence
from math import sqrt
from statistics import fmean
from typing import Any, ClassVar

from typing_extensions import override

from agentrt.executors.vllm.engine_core.scheduler import ProgramScheduler
from agentrt.scheduler.config import SchedulerConfig
from agentrt.scheduler.core import SchedulerCore
from agentrt.scheduler.events import Part
from agentrt.scheduler.learned import Learned
from agentrt.scheduler.policies import Policy
from agentrt.scheduler.policies.published import ProgramFcfs
from agentrt.scheduler.queues import Priority
from agentrt.scheduler.retention import BETWEEN, HUMAN, SESSION, Place, Retention
from agentrt.scheduler.state import CachedBlocks, EngineProgram, QueuedCall

PREVIEW_S = 2.0
"""The preview code's time-to-live in seconds; the preview code has no other value."""
UNTIL_KNOWN_S = PREVIEW_S
"""The time-to-live in seconds, until enough calls of tools have been seen."""
_FEW = 5
_WINDOW = 200
_NO_TOOLS = (BETWEEN, HUMAN, SESSION)
PREFILL_TOKEN_S = 25e-6


class _Durations:
    """The last durations of a tool's calls in seconds: once in the order of the calls, and once
    sorted by length.
    """

    def __init__(self) -> None:
        self._window: deque[float] = deque()
        self.ordered: list[float] = []

    def add(self, seconds: float) -> None:
        self._window.append(seconds)
        insort(self.ordered, seconds)
        if len(self._window) > _WINDOW:
            self.ordered.remove(self._window.popleft())


class ToolTtl(Retention):
    """A time-to-live for each context, learned from the durations of the calls of the context's
    tool.
    """

    name: ClassVar[str] = "continuum"
    expires: ClassVar[bool] = True

    def __init__(self, config: SchedulerConfig, learned: Learned) -> None:
        super().__init__(config, learned)
        self.waits: deque[float] = deque(maxlen=_WINDOW)
        self._tools: dict[str, _Durations] = {}
        self._all_tools = _Durations()
        self._turns: deque[int] = deque(maxlen=_WINDOW)
        self._eta = 1.0
        self.block_size = 16
        self._until: dict[CachedBlocks, tuple[float, float]] = {}

    @override
    def place(self, blocks: CachedBlocks) -> Place:
        return (float(blocks.calling), self._ends(blocks))

    @override
    def expired(self, blocks: CachedBlocks, now: float) -> bool:
        return not blocks.calling and now >= self._ends(blocks)

    def tool_returned(self, tool: str, seconds: float) -> None:
        """Learn that a call of this tool took ``seconds``."""
        self._tools.setdefault(tool, _Durations()).add(seconds)
        self._all_tools.add(seconds)

    def program_ended(self, turns: int) -> None:
        """Learn that a program ended after ``turns`` calls."""
        self._turns.append(turns)
        self._eta = memoryfulness(self._turns)

    def _ends(self, blocks: CachedBlocks) -> float:
        """Return the time at which a context's pin ends. The time is decided once for each gap."""
        since, until = self._until.get(blocks, (-1.0, 0.0))
        if since != blocks.since:
            until = blocks.since + self._ttl(blocks)
            self._until[blocks] = (blocks.since, until)
        return until

    def _ttl(self, blocks: CachedBlocks) -> float:
        if blocks.shared or blocks.gap in _NO_TOOLS:
            return 0.0
        if blocks.gap is None:  # its next call is on its way
            return UNTIL_KNOWN_S
        return self._tool_ttl(blocks, blocks.gap)

    def _tool_ttl(self, blocks: CachedBlocks, tool: str) -> float:
        """Return the number of seconds for which a context is pinned while its program waits for a
        tool.
        """
        durations = self._tools.get(tool, self._all_tools)
        if len(durations.ordered) < _FEW:
            durations = self._all_tools
        ordered = durations.ordered
        if len(ordered) < _FEW:
            return UNTIL_KNOWN_S
        waited = sum(self.waits) / len(self.waits) if self.waits else 0.0
        tokens = len(max(blocks.chains, key=len, default=b"")) // 8 * self.block_size
        saved = waited * self._eta + tokens * PREFILL_TOKEN_S

        def gain(ttl: float) -> float:
            return bisect_right(ordered, ttl) / len(ordered) * saved - ttl

        return max((0.0, *ordered), key=gain)


class PreviewTtl(ToolTtl):
    """The preview code's rule: a context is pinned for two seconds if the mean time of its tool is
    unknown or at most two seconds.
    """

    @override
    def _tool_ttl(self, blocks: CachedBlocks, tool: str) -> float:
        known = self._tools.get(tool)
        mean_s = 0.0 if known is None else fmean(known.ordered)
        return PREVIEW_S if mean_s <= PREVIEW_S else 0.0


def memoryfulness(turns: Sequence[int]) -> float:
    """Return -corr(k, N - k) over all calls k of programs with N calls, limited to the range from 0
    to 1. Return 1 if the correlation is not defined.
    """
    pairs = [(k, n - k) for n in turns for k in range(1, n + 1)]
    count = len(pairs)
    mean_done, mean_left = (sum(pair[i] for pair in pairs) / count for i in (0, 1))
    both = sum((k - mean_done) * (left - mean_left) for k, left in pairs)
    spread_done = sum((k - mean_done) ** 2 for k, _ in pairs)
    spread_left = sum((left - mean_left) ** 2 for _, left in pairs)
    if not spread_done * spread_left:
        return 1.0
    return min(max(-both / sqrt(spread_done * spread_left), 0.0), 1.0)


class PinnedFirst(ProgramFcfs):
    """The policy that serves programs first come, first served, except that calls with a pinned
    context go first.
    """

    name: ClassVar[str] = "continuum"

    def __init__(self, config: SchedulerConfig) -> None:
        super().__init__(config)
        self.is_pinned: Callable[[EngineProgram], bool] = lambda program: False

    @override
    def priority(self, call: QueuedCall, now: float) -> Priority:
        return Priority(0, order=(not self.is_pinned(call.program), call.program.started_at))


class ContinuumScheduler(ProgramScheduler):
    """agentrt's scheduler, with Continuum's order, time-to-live and pins in place of agentrt's own
    rules.
    """

    rule: ClassVar[type[ToolTtl]] = ToolTtl
    ttl: ToolTtl

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        manager = self.kv_cache_manager
        self._allocate = manager.allocate_slots
        self._count_free = manager.block_pool.get_num_free_blocks
        self._allocating_for: CachedBlocks | None = None
        manager.allocate_slots = self._allocate_unpinned
        manager.block_pool.get_num_free_blocks = self._unpinned_blocks

    @override
    def use(self, config: SchedulerConfig, policy: Policy | None = None) -> None:
        order = PinnedFirst(config)
        super().use(config, order)
        order.is_pinned = self._is_pinned
        self.core.parts.append(_Observer(self.ttl, self))

    @override
    def retention_policy(self, core: SchedulerCore) -> Retention:
        self.ttl = self.rule(core.config, core.learned)
        self.ttl.block_size = self.block_size
        return self.ttl

    # -- pins ------------------------------------------------------------------------------

    def _is_pinned(self, program: EngineProgram) -> bool:
        queue = self.retention.queue
        if queue is None:
            return False
        self._end_pins()
        return queue.protected_of(program.cached) > 0

    def _end_pins(self) -> None:
        """Release the contexts whose time-to-live is over."""
        queue = self.retention.queue
        assert queue is not None
        while (owner := queue.order.first(queue.now)) is not None:
            if not queue.order.retention.expired(owner, queue.now):
                return
            queue.release(owner)

    def _unpinned_blocks(self) -> int:
        """Return the number of free blocks that may be taken by the call for which blocks are being
        allocated.
        """
        queue = self.retention.queue
        if queue is None:
            return int(self._count_free())
        return queue.unprotected + queue.protected_of(self._allocating_for)

    def _allocate_unpinned(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        """Allocate blocks for a call, except blocks that are pinned for other programs. If the call
        is alone in the engine, unpin other programs until the blocks suffice. Return None if the
        blocks do not suffice.
        """
        if self.retention.queue is None:
            return self._allocate(request, *args, **kwargs)
        self._end_pins()
        self._allocating_for = self.core.calls[request.request_id].program.cached
        blocks = self._allocate(request, *args, **kwargs)
        while blocks is None and self._is_alone(request) and self._unpin_latest():
            blocks = self._allocate(request, *args, **kwargs)
        self._allocating_for = None
        return blocks

    def _is_alone(self, request: Any) -> bool:
        return all(other is request for other in self.running)

    def _unpin_latest(self) -> bool:
        """Unpin the context of the program that arrived last. The program that is being given
        blocks keeps its context. Return False if no other program has a pinned context.
        """
        queue = self.retention.queue
        assert queue is not None
        pinned = queue.order.in_order(queue.now)
        others = [owner for owner in pinned if owner is not self._allocating_for]
        if not others:
            return False
        queue.release(max(others, key=_came_at))
        return True


class PreviewScheduler(ContinuumScheduler):
    """Continuum's scheduler with the time-to-live of its preview code."""

    rule: ClassVar[type[ToolTtl]] = PreviewTtl


def _came_at(owner: CachedBlocks) -> float:
    return max((row.started_at for row in owner.rows), default=0.0)


class _Observer(Part):
    """An observer that tells the rule how long calls without a pin wait, how long tools take, and
    how many turns programs have.
    """

    def __init__(self, ttl: ToolTtl, scheduler: ContinuumScheduler) -> None:
        self._ttl, self._scheduler = ttl, scheduler
        self._waited_s: dict[QueuedCall, float] = {}
        self._tools: dict[EngineProgram, tuple[str, float]] = {}

    @override
    def call_started(self, call: QueuedCall, now: float) -> None:
        _, (unpinned, _), _ = call.key
        if unpinned:
            self._ttl.waits.append(call.waited_s - self._waited_s.get(call, 0.0))
        self._waited_s[call] = call.waited_s
        # From now on, only the program's arrival decides when the call is preempted and resumed.
        self._scheduler.core.queue.set_priority(
            call, Priority(0, order=(False, call.program.started_at))
        )

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
