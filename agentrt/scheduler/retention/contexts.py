"""The contexts of one engine: what happens to them, and the order in which they lose blocks.

Pure and synchronous. Events may be missing or late, since a bare client of the engine
sends none and messages travel beside the calls: a call's arrival counts as a return.
"""

from __future__ import annotations

import heapq
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from itertools import islice

from agentrt.scheduler.retention.context import BETWEEN, HUMAN, RETURNED, SESSION, Context, Key
from agentrt.scheduler.retention.policies import Rank, Retention
from agentrt.scheduler.table import ProgramRow

_SESSIONS = 4096
"""Idle sessions whose contexts are told apart; the longest idle are given up."""
_REFRESHED = 16
"""Contexts that age and that `Ranking` ranks anew with every new moment."""
_SLACK = 64


class Contexts:
    """Contexts by program and session. Each event returns the context that it changed."""

    def __init__(self, retention: Retention) -> None:
        self._retention = retention
        self._contexts: dict[Key, Context] = {}
        self._of: dict[str, Context] = {}
        self._idle: OrderedDict[Key, None] = OrderedDict()
        self._live: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._contexts)

    def rank(self, context: Context, now: float) -> Rank:
        """The policy's rank of a context."""
        return self._retention.rank(context, now, self._live[context.type])

    def expected_s(self, context: Context, now: float) -> float | None:
        """In how many seconds its program is expected back; None where nothing is learned."""
        return self._retention.expected_s(context, now)

    def get(self, program_id: str) -> Context | None:
        """The context of a program that has called and has not ended."""
        return self._of.get(program_id)

    def shared(self, type: str) -> Context:
        """The context of what several programs use, the first of them of this type."""
        key = ("shared", type)
        if key not in self._contexts:
            self._contexts[key] = Context(key, type, shared=True)
        return self._contexts[key]

    # -- calls -------------------------------------------------------------------------

    def call_arrived(self, row: ProgramRow, now: float) -> Context:
        """A call of the program came to the engine."""
        context = self._open(row)
        if not context.tools:
            self._close_gap(context, now, returned=True)
        context.branches |= context.calls > 0
        context.calls += 1
        return context

    def call_ended(self, context: Context, now: float) -> None:
        """A call of the context's left the engine."""
        context.calls -= 1
        if context.calls or context.tools or context.humans:
            return
        self._open_gap(context, BETWEEN if context.programs else SESSION, now)

    # -- tools and humans --------------------------------------------------------------

    def tool_started(self, program_id: str, tool: str, now: float) -> Context | None:
        """The program called a tool."""
        context = self._of.get(program_id)
        if context is not None:
            context.tools += 1
            self._open_gap(context, tool, now)
        return context

    def tool_ended(self, program_id: str, now: float) -> Context | None:
        """A tool of the program returned; None where it was not known to run."""
        context = self._of.get(program_id)
        if context is None or not context.tools:
            return None
        context.tools -= 1
        if not context.tools:
            self._back(context, now)
        return context

    def human_asked(self, program_id: str, now: float) -> Context | None:
        """The program asked a human."""
        context = self._of.get(program_id)
        if context is not None:
            context.humans += 1
            self._open_gap(context, HUMAN, now)
        return context

    def human_answered(self, program_id: str, now: float) -> Context | None:
        """The human answered; None where no question was known."""
        context = self._of.get(program_id)
        if context is None or not context.humans:
            return None
        context.humans -= 1
        if not (context.tools or context.humans):
            self._back(context, now)
        return context

    # -- ends --------------------------------------------------------------------------

    def program_ended(self, program_id: str, now: float) -> list[Context]:
        """The program ended, or is lost. The contexts that changed, often by their release."""
        context = self._of.pop(program_id, None)
        if context is None:
            return []
        context.programs.discard(program_id)
        if context.programs:
            return [context]
        context.tools = context.humans = 0
        self._live[context.type] -= 1
        if context.gap not in (None, RETURNED):
            self._close_gap(context, now, returned=False)
        if not context.session:
            del self._contexts[context.key]
            return [context]
        if not context.calls:
            self._open_gap(context, SESSION, now)
        return [context, *self._note_idle(context, now)]

    def _note_idle(self, context: Context, now: float) -> list[Context]:
        self._idle[context.key] = None
        self._idle.move_to_end(context.key)
        if len(self._idle) <= _SESSIONS:
            return []
        key, _ = self._idle.popitem(last=False)
        lost = self._contexts.pop(key)
        self._close_gap(lost, now, returned=False)
        lost.dropped = True
        return [lost]

    # -- both --------------------------------------------------------------------------

    def _open(self, row: ProgramRow) -> Context:
        """The context of a program, which is live from now on."""
        key = key_of(row)
        context = self._contexts.get(key)
        if context is None:
            session = row.session is not None
            context = Context(key, row.type, row.tenant, session=session)
            self._contexts[key] = context
        self._idle.pop(key, None)
        if not context.programs:
            self._live[context.type] += 1
        context.programs.add(row.program_id)
        self._of[row.program_id] = context
        return context

    def _back(self, context: Context, now: float) -> None:
        self._close_gap(context, now, returned=True)
        if not context.calls:
            self._open_gap(context, RETURNED, now)

    def _open_gap(self, context: Context, gap: str, now: float) -> None:
        context.gap, context.since = gap, now

    def _close_gap(self, context: Context, now: float, *, returned: bool) -> None:
        if context.gap is not None:
            self._retention.gap_ended(context, now - context.since, returned=returned)
            context.gap, context.since = None, now


def key_of(row: ProgramRow) -> Key:
    """What a program's context is known by: its session, so that a resume finds it."""
    if row.session is not None:
        return ("session", row.tenant, row.session)
    return ("program", row.program_id)


_Entry = tuple[Rank, int, Context]


class Ranking:
    """The contexts that have blocks to lose. ``rank(context, now)`` tells whose go first.

    A context is ranked when it is asked who is first, not at each of its changes before. The
    ranks of those that `age` change as time passes, so those in the heap are estimates: the
    head is ranked anew before it is believed, and a few others with every new moment, in turn. An
    operation costs O(log n); up to `_REFRESHED` contexts that age the order is exact.
    """

    def __init__(self, rank: Callable[[Context, float], Rank]) -> None:
        self._rank = rank
        self._heap: list[_Entry] = []
        self._valid: dict[Context, _Entry | None] = {}
        """Their entries in the heap; None for those that changed since."""
        self._changed: dict[Context, None] = {}
        self._aging: dict[Context, None] = {}
        self._serial = 0
        self._refreshed_at = -1.0

    def __len__(self) -> int:
        return len(self._valid)

    def __contains__(self, context: Context) -> bool:
        return context in self._valid

    def put(self, context: Context) -> None:
        """Have a context, or have it ranked anew: it changed."""
        self._changed.pop(context, None)
        self._valid[context] = self._changed[context] = None

    def discard(self, context: Context) -> None:
        """Forget a context, known or not."""
        for known in (self._valid, self._changed, self._aging):
            known.pop(context, None)

    def first(self, now: float) -> Context | None:
        """The context that loses its blocks first; None where there is none."""
        for context in self._changed:
            self._file(context, now)
        self._changed.clear()
        self._refresh(now)
        while self._heap:
            rank, _, context = entry = self._heap[0]
            if self._valid.get(context) is not entry:
                heapq.heappop(self._heap)
                continue
            if self._rank(context, now) <= rank:
                return context
            heapq.heappop(self._heap)
            self._file(context, now)
        return None

    def in_order(self, now: float) -> Iterator[Context]:
        """All contexts, the first to lose its blocks first: O(n log n)."""
        return iter(sorted(self._valid, key=lambda context: self._rank(context, now)))

    def _refresh(self, now: float) -> None:
        if now == self._refreshed_at:
            return
        self._refreshed_at = now
        for context in list(islice(self._aging, _REFRESHED)):
            self._file(context, now)

    def _file(self, context: Context, now: float) -> None:
        """Put a context into the heap by its rank of ``now``."""
        self._serial += 1
        self._valid[context] = entry = (self._rank(context, now), self._serial, context)
        # Out and in again, so that the contexts ranked longest ago are at the front.
        self._aging.pop(context, None)
        if context.ages:
            self._aging[context] = None
        heapq.heappush(self._heap, entry)
        if len(self._heap) > _SLACK + 2 * len(self._valid):
            self._heap = [entry for entry in self._valid.values() if entry is not None]
            heapq.heapify(self._heap)
