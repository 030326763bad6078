"""The books of a router: what is under way where, what replicas hold, how long calls take.

A `Dispatcher` stands between a router's one question and whoever sends calls to replicas,
real or simulated, so that both are routed by the same code from the same knowledge.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

from agentrt.request import CallReport
from agentrt.router.base import LEVELS, ReplicaView, Router, RouterCall
from agentrt.router.held import HeldNote
from agentrt.router.holdings import Holdings
from agentrt.router.speed import Speed

_FIRST_OUTPUT = 128.0
_LEARN = 0.05
_KINDS = 4096
"""Kinds of calls whose outputs are remembered; the longest unseen are forgotten."""


@dataclass(slots=True, eq=False)
class Trip:
    """A call that was sent to a replica, and what it was counted as there."""

    call: RouterCall
    replica: ReplicaView
    tokens: int
    missing: int
    beside: int
    guessed: Sequence[int] = ()
    over: bool = False


@dataclass(slots=True)
class _Home:
    """Where a program's last call went, and how many tokens of context it left there."""

    replica: int
    name: str
    tokens: int


class Dispatcher:
    """Routes calls, and keeps what routers see up to date.

    ``level_ends`` are the scheduler's levels, in seconds of attained service; without them all
    calls are of one level. ``speed`` is where learning begins.
    """

    def __init__(
        self, router: Router, level_ends: Sequence[float] = (), speed: Speed | None = None
    ) -> None:
        self.router = router
        self.speed = Speed() if speed is None else speed
        self.holdings = Holdings()
        self._ends = list(level_ends[: LEVELS - 1])
        self._ahead: dict[str, _Ahead] = {}
        self._homes: dict[str, _Home] = {}
        self._outputs: OrderedDict[str, float] = OrderedDict()

    def join(self, name: str, slots: int = 0) -> ReplicaView:
        """A new replica, which holds nothing and has nothing to do."""
        view = ReplicaView(name, index=self.holdings.join(), slots=slots, speed=self.speed)
        self._ahead[name] = _Ahead()
        return view

    # -- calls -------------------------------------------------------------------------

    def send(self, call: RouterCall, replicas: Sequence[ReplicaView]) -> Trip:
        """Ask the router where the call goes, and count it there until `ended`."""
        home = self._homes.get(call.program_id)
        call.home = None if home is None else home.name
        call.level = bisect_right(self._ends, call.attained_s)
        call.output_tokens = min(self._outputs.get(call.kind, _FIRST_OUTPUT), call.output_limit)
        if self.router.reads_blocks:
            call.match = partial(self._match, call, home)
        chosen = self.router.choose(call, replicas)
        return self._begin(call, chosen)

    def _match(self, call: RouterCall, home: _Home | None) -> Sequence[int]:
        most = call.prompt_tokens - 1
        blocks = call.blocks()
        if blocks:
            size = call.block_size
            return [min(count * size, most) for count in self.holdings.match(blocks)]
        held = [0] * len(self._ahead)
        if home is not None and not call.block_size:
            # Nobody tells: its program's context is where it was left, as far as we know.
            held[home.replica] = max(0, min(home.tokens, most))
        return held

    def _begin(self, call: RouterCall, view: ReplicaView) -> Trip:
        held = call.held(view)
        tokens = call.prompt_tokens + int(call.output_tokens)
        trip = Trip(call, view, tokens, call.prompt_tokens - held, view.calls)
        blocks = call.blocks() if self.router.reads_blocks else ()
        if blocks:
            trip.guessed = blocks[held // call.block_size :]
            self.holdings.guess(view.index, trip.guessed)
        view.in_flight += tokens
        view.calls += 1
        self._ahead[view.name].add(call.level, 1, trip.missing, view)
        self._homes[call.program_id] = _Home(view.index, view.name, tokens)
        return trip

    def ended(self, trip: Trip, report: CallReport | None = None) -> None:
        """The call is over; ``report`` is its engine's account of it, if it has one."""
        if trip.over:
            return
        trip.over = True
        view = trip.replica
        self.holdings.unguess(view.index, trip.guessed)
        view.in_flight -= trip.tokens
        view.calls -= 1
        if report is not None and report.steps:
            beside = (trip.beside + view.calls) / 2
            if report.service_s > 0:
                view.pace.learn(report.service_s / self.speed.expected_s(report, beside))
            self.speed.learn(report, beside)
            self._learn(trip.call.kind, report.output_tokens)
        self._ahead[view.name].add(trip.call.level, -1, -trip.missing, view)

    def _learn(self, kind: str, tokens: int) -> None:
        before = self._outputs.pop(kind, None)
        mean = tokens if before is None else before + _LEARN * (tokens - before)
        self._outputs[kind] = mean
        if len(self._outputs) > _KINDS:
            self._outputs.popitem(last=False)

    def program_ended(self, program_id: str) -> None:
        """The program makes no more calls."""
        self._homes.pop(program_id, None)
        self.router.program_ended(program_id)

    # -- replicas ----------------------------------------------------------------------

    def heard(self, view: ReplicaView, note: HeldNote) -> None:
        """A replica told what it stored and removed; the notes come in order (`HeldStream`)."""
        if note.whole:
            self.holdings.replace(view.index, note.stored)
            return
        self.holdings.remove(view.index, note.removed)
        self.holdings.store(view.index, note.stored)

    def lost(self, view: ReplicaView) -> None:
        """A replica died: its memory is empty, and its calls are about to end."""
        self.holdings.clear(view.index)
        self._homes = {pid: home for pid, home in self._homes.items() if home.name != view.name}
        self.router.replica_lost(view.name)


class _Ahead:
    """Calls and uncomputed prompt tokens in flight on a replica, by level and better ones."""

    __slots__ = ("_calls", "_tokens")

    def __init__(self) -> None:
        self._calls = [0] * LEVELS
        self._tokens = [0] * LEVELS

    def add(self, level: int, calls: int, tokens: int, view: ReplicaView) -> None:
        """Count them in (or out), and say how long calls of each level wait now."""
        for i in range(level, LEVELS):
            self._calls[i] += calls
            self._tokens[i] += tokens
        slots, pace, prefill_s = view.slots, view.pace.value, view.speed.prefill_s
        turn_s = view.speed.service_s / slots if slots else 0.0
        for i in range(level, LEVELS):
            count = self._calls[i]
            turns = turns_to_wait(count, slots) if slots else 0.0
            view.waits_s[i] = pace * (self._tokens[i] * prefill_s + turns * turn_s)


@lru_cache(4096)
def turns_to_wait(calls: int, slots: int) -> float:
    """How many of the ``calls`` ahead have to end before another of ``slots`` is free.

    Where a slot is free it is less than one, and more the fewer are left: by the time that a
    program makes its next call, others have come. The exponent is that of Sakasegawa's
    approximation of waiting in a queue with several servers (1977).
    """
    crowding = math.pow(min(1.0, calls / slots), math.sqrt(2 * (slots + 1)) - 1)
    return max(0, calls - slots) + crowding
