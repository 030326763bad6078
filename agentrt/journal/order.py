"""In which order answers come to a program, and how far apart: the same in each of its lives.

Code that takes what comes first (`asyncio.as_completed`, `asyncio.wait`, workers on a queue, races
with a timeout) goes one way or the other by what it has been told so far. So a journal has the
order: answers that came in one turn of the event loop are a group, and each node knows after which
group its code came to it. A program that goes on gets its answers group by group. A group comes
once all is there that was there before it: the code has come to each node that it had come to, and
has called off what it had called off, and nothing moves any more. In a program of several tasks,
groups are a few turns of the loop apart in the first life, too: the code behind an answer has then
seen that one, and not yet the next.

The program's own timers wait for that, too: while it goes on, one that is due goes off only once
nothing moves, so after all recorded answers that can come without it; and the next one once nothing
moves again. Else a machine that is busy would let a time limit pass before an answer that had come
in time.

None of this is a condition of being right: where code does not come to a node any more, the others
go on without it.
"""

from __future__ import annotations

import asyncio
import contextvars
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from heapq import heappop, heappush
from typing import NamedTuple, Protocol

QUIET_TURNS = 8
"""Groups are so many turns apart: more than asyncio needs from an answer to the code behind it."""
TIMER_TURNS = QUIET_TURNS + 2
"""Timers go off so many turns after all else: later than an answer whose turn it is."""
BUSY_TURNS = 200
"""A program in which something always moves, such as a task that only yields, is quiet then."""
SLACK_S = 0.25
LONGEST_S = 60.0
"""Code that comes to a node by a clock of its own is waited for until it was there in the first
life, for at most so long."""
_SIZE = 1 << 20


def place_of(group: int, index: int) -> int:
    """The place of an end in the order of a program's ends."""
    return group * _SIZE + index % _SIZE


def group_of(place: int) -> int:
    """The group of an end; older journals have each end by itself."""
    return place // _SIZE if place >= _SIZE else place


class Due(Protocol):
    """A timer of the program that is due."""

    @property
    def is_cancelled(self) -> bool: ...

    def go_off(self) -> None: ...


class Begun(NamedTuple):
    """The code came to a ``node``, or ended it by itself, after the answers of the group ``after``
    had come.
    """

    node: str
    after: int


class Ended(NamedTuple):
    """The answer of a ``node`` came with others of its ``group``, ``at`` so many seconds of the
    program's life.
    """

    node: str
    place: int
    at: float

    @property
    def group(self) -> int:
        return group_of(self.place)


class Order:
    """Lets answers through to one program. Belongs to one event loop.

    ``is_alone`` tells whether the program has one task alone, and ``waits`` whether all of them
    wait for something; they are set by whoever knows tasks, as is ``caught_up``, which is called
    once all recorded answers have come. ``now`` is the last group that came.
    """

    def __init__(
        self,
        begun: Iterable[Begun] = (),
        caused: Iterable[Begun] = (),
        ended: Iterable[Ended] = (),
    ) -> None:
        self.is_alone: Callable[[], bool] = lambda: False
        self.waits: Callable[[], bool] = lambda: True
        self.now = 0
        # What has to happen before a group, by the group after which it had happened.
        before = [(one.after, ("begun", one.node)) for one in begun]
        before += [(one.after, ("caused", one.node)) for one in caused]
        self._before = sorted(before, reverse=True)
        self._open = {key for _, key in before}
        self._groups: dict[int, dict[str, Ended]] = {}
        self._group_of: dict[str, int] = {}
        for end in sorted(ended, key=lambda one: one.place):
            self._groups.setdefault(end.group, {})[end.node] = end
            self._group_of[end.node] = end.group
        self._left = sorted(self._groups, reverse=True)
        self.last = max([*self._groups, *(after for after, _ in before)], default=0)
        self._arrived: dict[str, asyncio.Future[None]] = {}
        self._running: set[str] = set()
        self._new: list[tuple[int, int, asyncio.Future[None]]] = []
        self._count = 0
        self._moves = 0  # grows with whatever happens
        self._quiet = True
        self._listening = False
        self._turns = self._quiet_turns = self._seen = 0
        self.watch: asyncio.TimerHandle | None = None
        self._began: float | None = None
        self._impatient = False
        self.caught_up: Callable[[], None] = _nothing
        self._due: deque[Due] = deque()
        self._due_turns = self._due_quiet = self._due_seen = 0

    # -- what the code does ------------------------------------------------------------

    def entered(self, node: str) -> None:
        """The code has come to a node."""
        if self._left:
            self._happened(("begun", node))

    def caused(self, node: str) -> None:
        """The code has ended a node by itself."""
        if self._left:
            self._happened(("caused", node))

    def drop(self, node: str) -> None:
        """The code will not come to a node any more, or does not get its recorded answer."""
        self._open.discard(("caused", node))
        self._leave(node)
        self._happened(("begun", node))

    def runs(self, node: str) -> None:
        """The answer of a node is made again: it comes in its turn, however long that takes."""
        self._running.add(node)

    # -- answers -----------------------------------------------------------------------

    async def answer(self, node: str) -> None:
        """Wait for the turn of a node that had its answer in an earlier life."""
        if node not in self._group_of:
            return
        turn = self._arrived[node] = asyncio.get_running_loop().create_future()
        self._running.discard(node)
        self._moved()
        try:
            await turn
        except asyncio.CancelledError:
            self._leave(node)
            self._moved()
            raise

    async def deliver(self, group: int) -> None:
        """Wait for the turn of an answer of this group, which is a new one."""
        if not self._left:
            if group == self.now:  # others of its group came in this turn
                return
            if self.is_alone():
                self.now, self._quiet = group, True
                return
            if not self._new and self._quiet:
                self._came(group)
                return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._count += 1
        heappush(self._new, (group, self._count, turn))
        self._advance()
        await turn

    def close(self) -> None:
        """The program is over."""
        self._stop_watching()
        self._due.clear()

    # -- timers ------------------------------------------------------------------------

    @property
    def holds(self) -> bool:
        """Whether recorded answers are still to come."""
        return bool(self._left)

    def timer_is_due(self, timer: Due) -> None:
        """A timer goes off once nothing moves, and before those that are due after it."""
        self._due.append(timer)
        if len(self._due) == 1:
            self._due_turns = self._due_quiet = 0
            asyncio.get_running_loop().call_soon(self._due_turn)

    def _due_turn(self) -> None:
        """A turn of the event loop has passed while a timer is due."""
        while self._due and self._due[0].is_cancelled:
            self._due.popleft()
        if not self._due:
            return
        self._due_turns += 1
        if self._due_seen != self._moves:
            self._due_seen, self._due_turns, self._due_quiet = self._moves, 0, 0
        elif self._due_turns > BUSY_TURNS or self.waits():
            self._due_quiet += 1
        else:
            self._due_quiet = 0
        if self._due_quiet >= TIMER_TURNS:
            self._due_quiet, timer = 0, self._due.popleft()
            if not isinstance(timer, _Watch):
                self._moves += 1
            timer.go_off()
        if self._due:
            asyncio.get_running_loop().call_soon(self._due_turn)

    # -- whose turn it is --------------------------------------------------------------

    def _happened(self, key: tuple[str, str]) -> None:
        self._open.discard(key)
        self._moved()

    def _moved(self) -> None:
        self._moves += 1
        if self._left:
            self._quiet = False
        self._advance()

    def _leave(self, node: str) -> None:
        group = self._group_of.pop(node, None)
        self._arrived.pop(node, None)
        self._running.discard(node)
        if group is not None:
            del self._groups[group][node]

    def _advance(self) -> None:
        """Let through what can be."""
        while self._left:
            members = self._groups[self._left[-1]]
            if not members:
                self._left.pop()
                continue
            if self._is_blocked(self._left[-1]) or not self._arrived.keys() >= members.keys():
                self._watch()
                return
            if not self._is_quiet():
                self._listen()
                return
            group = self._left.pop()
            turns = [self._arrived.pop(node) for node in members]
            for node in members:
                del self._group_of[node]
            members.clear()
            self._came(group)
            _let_through(turns)
        self._stop_watching()
        caught_up, self.caught_up = self.caught_up, _nothing
        caught_up()
        while self._new:
            if not self._is_quiet():
                self._listen()
                return
            group, turns = self._new[0][0], []
            while self._new and self._new[0][0] == group:
                turns.append(heappop(self._new)[2])
            self._came(group)
            _let_through(turns)

    def _is_blocked(self, group: int) -> bool:
        """Whether something has not happened that had happened before this group."""
        while self._before and self._before[-1][1] not in self._open:
            self._before.pop()
        return bool(self._before) and self._before[-1][0] < group

    def _came(self, group: int) -> None:
        self.now = max(self.now, group)
        self._quiet = False
        self._moves += 1
        if not self._left:
            self._listen()

    # -- whether anything moves --------------------------------------------------------

    def _is_quiet(self) -> bool:
        if not self._quiet and self.is_alone():
            self._quiet = True
        return self._quiet

    def _listen(self) -> None:
        if not self._listening:
            self._listening = True
            self._turns = self._quiet_turns = 0
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        """A turn of the event loop has passed."""
        self._turns += 1
        if self._seen != self._moves:
            self._seen, self._quiet_turns = self._moves, 0
        elif not self._left or self._turns > BUSY_TURNS or self.waits():
            self._quiet_turns += 1
        else:
            self._quiet_turns = 0
        if self._quiet_turns < QUIET_TURNS:
            asyncio.get_running_loop().call_soon(self._turn)
            return
        self._listening, self._quiet = False, True
        self._advance()

    # -- where the code does not come ----------------------------------------------------

    def _watch(self) -> None:
        """Wait for what is missing, but not for ever."""
        if self.watch is not None:
            return
        loop = asyncio.get_running_loop()
        if self._began is None:
            self._began = loop.time()
        at = min(end.at for end in self._groups[self._left[-1]].values())
        left = 0.0 if self._impatient else self._began + 1.5 * at - loop.time()
        seconds = SLACK_S + min(max(0.0, left), LONGEST_S)
        # A context of its own: it is no timer of the program. But those that are due go off before.
        self.watch = loop.call_later(
            seconds, self._watch_is_over, self._moves, context=contextvars.Context()
        )

    def _watch_is_over(self, moves: int) -> None:
        self.timer_is_due(_Watch(self, moves, self.watch))

    def _stop_watching(self) -> None:
        if self.watch is not None:
            self.watch.cancel()
            self.watch = None

    def stalled(self, moves: int) -> None:
        """Nothing comes any more, if there were no moves beyond so many."""
        self.watch = None
        group = self._left[-1] if self._left else None
        if group is None:
            return
        members = self._groups[group]
        if moves == self._moves and not self._running & members.keys():
            self._impatient = True
            for _, key in self._before[bisect_right(self._before, -group, key=_latest_first) :]:
                self._open.discard(key)
            for node in members.keys() - self._arrived.keys():
                self._leave(node)
            self._moves += 1
        self._advance()


class _Watch(NamedTuple):
    """The end of a wait for what is missing, after which it is given up."""

    order: Order
    moves: int
    timer: asyncio.TimerHandle | None

    @property
    def is_cancelled(self) -> bool:
        return self.order.watch is not self.timer

    def go_off(self) -> None:
        self.order.stalled(self.moves)


def _nothing() -> None:
    """Nobody is to be told."""


def _latest_first(before: tuple[int, tuple[str, str]]) -> int:
    return -before[0]


def _let_through(turns: Iterable[asyncio.Future[None]]) -> None:
    for turn in turns:
        if not turn.done():
            turn.set_result(None)


def active(lives: Iterable[float], times: Iterable[float]) -> Mapping[float, float]:
    """The seconds that a program had lived at each of these times of day, without the pauses
    between its ``lives``, of which the beginnings are given.
    """
    begins, known = sorted(lives), dict[float, float]()
    lived, last = 0.0, begins[0] if begins else 0.0
    for time in sorted(times):
        while len(begins) > 1 and begins[1] <= time:
            begins.pop(0)
            last = begins[0]
        lived += max(0.0, time - last)
        last = max(last, time)
        known[time] = lived
    return known
