"""Which waiting call starves first, found without looking at the others.

A call starves when its program's waiting over service, (W_p + W_c) / (T_p + T_c),
reaches beta (Agentix, §4.2.2). While a call waits, all but W_c stand still, so the
moment at which it will starve is known: ``born + beta·T_p - W_p``, where
``born = (start of its wait) - W_c + beta·T_c`` is the call's own and the rest its
program's. Hence a heap of ``born`` per program, and one heap of programs by moment.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from agentrt.errors import InvariantError
from agentrt.scheduler.table import ProgramRow

if TYPE_CHECKING:
    from agentrt.scheduler.call import QueuedCall


@dataclass(slots=True, eq=False)
class _Watch:
    """A program's waiting calls by ``born``; ``stamp`` marks its newest entry above."""

    program: ProgramRow
    calls: list[tuple[float, int, QueuedCall]] = field(default_factory=list)
    stamp: int = 0


class Starvation:
    """Deadlines of waiting calls below Q_1. Every step is O(log n), amortised."""

    def __init__(self, beta: float) -> None:
        self._beta = beta
        self._watches: dict[str, _Watch] = {}
        self._moments: list[tuple[float, int, _Watch]] = []
        self._stamps = 0

    def watch(self, call: QueuedCall) -> None:
        """A call began to wait below Q_1."""
        if math.isinf(self._beta):
            return
        watch = self._watches.get(call.program.program_id)
        if watch is None:
            watch = self._watches[call.program.program_id] = _Watch(call.program)
        self._stamps += 1
        first = watch.calls[0][0] if watch.calls else math.inf
        born = self._born(call)
        heapq.heappush(watch.calls, (born, self._stamps, call))
        if born < first:
            self._file(watch)

    def refresh(self, program: ProgramRow) -> None:
        """A program's own service or waiting changed."""
        watch = self._watches.get(program.program_id)
        if watch is not None:
            self._file(watch)

    def forget(self, call: QueuedCall) -> None:
        """A call is gone. Its entries fall out when they come up."""
        watch = self._watches.get(call.program.program_id)
        if watch is not None:
            self._prune(watch)

    def pop_starved(self, now: float) -> QueuedCall | None:
        """Take out the call that has starved longest at ``now``, or None."""
        moments = self._moments
        while moments and (moments[0][0] <= now or moments[0][1] != moments[0][2].stamp):
            moment, stamp, watch = heapq.heappop(moments)
            if stamp != watch.stamp:
                continue
            self._prune(watch)
            if not watch.calls:
                continue
            if self._moment(watch) > moment:
                # The call that the moment was filed for runs or is gone: look at the next one.
                self._file(watch)
                continue
            call = heapq.heappop(watch.calls)[2]
            self._prune(watch)
            if watch.calls:
                self._file(watch)
            return call
        return None

    def next_moment(self) -> float | None:
        """When the first waiting call starves if nothing happens till then, or None."""
        moments = self._moments
        while moments and moments[0][1] != moments[0][2].stamp:
            heapq.heappop(moments)
        return moments[0][0] if moments else None

    def check_integrity(self, calls: Mapping[str, QueuedCall]) -> None:
        """For tests: every watched entry that counts belongs to a live call's program."""
        for program_id, watch in self._watches.items():
            for born, _, call in watch.calls:
                if self._counts(born, call) and call.call_id not in calls:
                    raise InvariantError(f"call {call.call_id} of {program_id} is gone but watched")

    def _born(self, call: QueuedCall) -> float:
        return call.debt_since - call.debt_waited_s + self._beta * call.debt_served_s

    def _moment(self, watch: _Watch) -> float:
        program = watch.program
        return watch.calls[0][0] + self._beta * program.service_s - program.waiting_s

    def _file(self, watch: _Watch) -> None:
        self._prune(watch)
        if watch.calls:
            self._stamps += 1
            watch.stamp = self._stamps
            heapq.heappush(self._moments, (self._moment(watch), watch.stamp, watch))

    def _prune(self, watch: _Watch) -> None:
        while watch.calls and not self._counts(watch.calls[0][0], watch.calls[0][2]):
            heapq.heappop(watch.calls)
        if not watch.calls:
            watch.stamp = 0
            self._watches.pop(watch.program.program_id, None)

    def _counts(self, born: float, call: QueuedCall) -> bool:
        # An entry is out of date once its call runs, rose to Q_1, or waits anew.
        return call.since is not None and call.level > 0 and self._born(call) == born
