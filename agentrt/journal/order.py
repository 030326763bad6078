"""The order in which a program gets the answers of its nodes. A resumed program gets the answers in
the recorded order.

The order matters to code that takes the first answer (`asyncio.as_completed`, `asyncio.wait`,
workers on a queue, races with a timeout). So the journal records the order. Answers that are
written in one batch form a *group*. Each node has the number of the last group that was delivered
before the code reached the node.

A resumed program gets its answers group by group. A group is delivered when three conditions hold:
the code has reached all nodes that it had reached before the group; it has cancelled all nodes that
it had cancelled before the group; and the program is *quiet*, which means that none of its tasks
can run. If a program has several tasks, the first process also delivers groups only when the
program is quiet, so that the code that waits for an answer has run before the next answer.

The program's own timers are held, too. While recorded answers are outstanding, a timer that is due
fires only when the program is quiet. By then, all recorded answers that do not depend on the timer
were delivered. The next timer fires when the program is quiet again. Without this, a timeout could
fire on a busy machine before an answer that had arrived in time.

A program whose code has changed does not hang: if the code does not reach a node any more, all
other answers are delivered after a while without it.
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
"""Number of turns of the event loop without a change after which a program is quiet. asyncio needs
fewer turns from an answer until the code that awaits the answer runs.
"""
TIMER_TURNS = QUIET_TURNS + 2
"""Number of quiet turns of the event loop before a timer fires. This number is higher than
`QUIET_TURNS`, which applies to answers, so that answers are delivered before timers fire.
"""
BUSY_TURNS = 200
"""Number of turns after which a program counts as quiet although a task can run, for example a task
that only yields in a loop.
"""
SLACK_S = 0.25
"""Seconds added to each wait for a node that the code may not reach any more."""
LONGEST_S = 60.0
"""Maximum wait, in seconds, for a node that the code may not reach any more, before `SLACK_S` is
added.
"""
_SIZE = 1 << 20


def place_of(group: int, index: int) -> int:
    """Return the place of a node's end in the order of all ends of the program. Ends are ordered by
    their ``group``, and the ends of a group by their ``index``.
    """
    return group * _SIZE + index % _SIZE


def group_of(place: int) -> int:
    """Return the group of an end. In older journals, each end is a separate group."""
    return place // _SIZE if place >= _SIZE else place


class Due(Protocol):
    """A timer that is due."""

    @property
    def is_cancelled(self) -> bool: ...

    def go_off(self) -> None: ...


class Begun(NamedTuple):
    """A record that the code reached a ``node``, cancelled it, or closed its stream. ``after`` is
    the number of the last group that had been delivered before.
    """

    node: str
    after: int


class Ended(NamedTuple):
    """A record that the answer of a ``node`` was delivered with its ``group``, when the program had
    run for ``at`` seconds.
    """

    node: str
    place: int
    at: float

    @property
    def group(self) -> int:
        return group_of(self.place)


class Order:
    """The order of one program's answers: each answer waits for its turn. An `Order` belongs to one
    event loop.

    The runtime sets three functions. ``is_alone`` returns whether the program has a single task.
    ``waits`` returns whether all tasks of the program wait. ``caught_up`` is called when all
    recorded answers were delivered. ``now`` is the number of the last group that was delivered.
    """

    def __init__(
        self,
        begun: Iterable[Begun] = (),
        ended_by_code: Iterable[Begun] = (),
        ended: Iterable[Ended] = (),
    ) -> None:
        self.is_alone: Callable[[], bool] = lambda: False
        self.waits: Callable[[], bool] = lambda: True
        self.now = 0
        # The events that must happen before later groups. Each has the group after which it had
        # happened.
        before = [(begin.after, ("begun", begin.node)) for begin in begun]
        before += [(begin.after, ("ended by code", begin.node)) for begin in ended_by_code]
        self._before = sorted(before, reverse=True)
        self._open = {key for _, key in before}
        self._groups: dict[int, dict[str, Ended]] = {}
        self._group_of: dict[str, int] = {}
        for end in sorted(ended, key=lambda end: end.place):
            self._groups.setdefault(end.group, {})[end.node] = end
            self._group_of[end.node] = end.group
        self._left = sorted(self._groups, reverse=True)
        self.last = max([*self._groups, *(after for after, _ in before)], default=0)
        self._arrived: dict[str, asyncio.Future[None]] = {}
        self._running: set[str] = set()
        self._new: list[tuple[int, int, asyncio.Future[None]]] = []
        self._count = 0
        self._changes = 0  # grows with every event
        self._quiet = True
        self._listening = False
        self._turns = self._quiet_turns = self._seen = 0
        self.watch: asyncio.TimerHandle | None = None
        self._began: float | None = None
        self._impatient = False
        self.caught_up: Callable[[], None] = _nothing
        self._due: deque[Due] = deque()
        self._due_turns = self._due_quiet = self._due_seen = 0

    # -- events of the code ------------------------------------------------------------

    def entered(self, node: str) -> None:
        """Note that the code reached a node."""
        if self._left:
            self._on_event(("begun", node))

    def ended_by_code(self, node: str) -> None:
        """Note that the code cancelled a node, or closed the stream of a call."""
        if self._left:
            self._on_event(("ended by code", node))

    def drop(self, node: str) -> None:
        """Stop waiting for a node, because the code does not reach the node, or does not get its
        recorded answer.
        """
        self._open.discard(("ended by code", node))
        self._leave(node)
        self._on_event(("begun", node))

    def runs_again(self, node: str) -> None:
        """Note that a node runs again. Later answers wait for the answer of this node, however long
        it takes.
        """
        self._running.add(node)

    # -- answers -----------------------------------------------------------------------

    async def answer(self, node: str) -> None:
        """Wait until the recorded answer of a node may be delivered. Return at once for a node
        without a recorded answer.
        """
        if node not in self._group_of:
            return
        turn = self._arrived[node] = asyncio.get_running_loop().create_future()
        self._running.discard(node)
        self._on_change()
        try:
            await turn
        except asyncio.CancelledError:
            self._leave(node)
            self._on_change()
            raise

    async def deliver(self, group: int) -> None:
        """Wait until a new answer, which belongs to ``group``, may be delivered."""
        if not self._left:
            if group == self.now:  # another answer of this group was delivered in this turn
                return
            if self.is_alone():
                self.now, self._quiet = group, True
                return
            if not self._new and self._quiet:
                self._on_delivered(group)
                return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._count += 1
        heappush(self._new, (group, self._count, turn))
        self._advance()
        await turn

    def close(self) -> None:
        """Drop the held timers, and stop waiting for missing nodes, because the program ended."""
        self._stop_watching()
        self._due.clear()

    # -- timers ------------------------------------------------------------------------

    @property
    def holds(self) -> bool:
        """Whether recorded answers are still outstanding, so that timers must be held."""
        return bool(self._left)

    def timer_is_due(self, timer: Due) -> None:
        """Hold a timer that is due. It fires when the program is quiet, after all timers that were
        due earlier.
        """
        self._due.append(timer)
        if len(self._due) == 1:
            self._due_turns = self._due_quiet = 0
            asyncio.get_running_loop().call_soon(self._due_turn)

    def _due_turn(self) -> None:
        """Count a turn of the event loop, and fire the first held timer if the program is quiet."""
        while self._due and self._due[0].is_cancelled:
            self._due.popleft()
        if not self._due:
            return
        self._due_turns += 1
        if self._due_seen != self._changes:
            self._due_seen, self._due_turns, self._due_quiet = self._changes, 0, 0
        elif self._due_turns > BUSY_TURNS or self.waits():
            self._due_quiet += 1
        else:
            self._due_quiet = 0
        if self._due_quiet >= TIMER_TURNS:
            self._due_quiet, timer = 0, self._due.popleft()
            if not isinstance(timer, _Watch):
                self._changes += 1
            timer.go_off()
        if self._due:
            asyncio.get_running_loop().call_soon(self._due_turn)

    # -- the next group ----------------------------------------------------------------

    def _on_event(self, key: tuple[str, str]) -> None:
        self._open.discard(key)
        self._on_change()

    def _on_change(self) -> None:
        self._changes += 1
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
        """Deliver all groups that may be delivered now."""
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
            self._on_delivered(group)
            _release(turns)
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
            self._on_delivered(group)
            _release(turns)

    def _is_blocked(self, group: int) -> bool:
        """Return whether the group must wait, because an event that had happened before it in an
        earlier process has not happened yet in this process.
        """
        while self._before and self._before[-1][1] not in self._open:
            self._before.pop()
        return bool(self._before) and self._before[-1][0] < group

    def _on_delivered(self, group: int) -> None:
        self.now = max(self.now, group)
        self._quiet = False
        self._changes += 1
        if not self._left:
            self._listen()

    # -- whether the program is quiet --------------------------------------------------

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
        """Count a turn of the event loop, and advance if the program is quiet."""
        self._turns += 1
        if self._seen != self._changes:
            self._seen, self._quiet_turns = self._changes, 0
        elif not self._left or self._turns > BUSY_TURNS or self.waits():
            self._quiet_turns += 1
        else:
            self._quiet_turns = 0
        if self._quiet_turns < QUIET_TURNS:
            asyncio.get_running_loop().call_soon(self._turn)
            return
        self._listening, self._quiet = False, True
        self._advance()

    # -- nodes that the code does not reach any more -------------------------------------

    def _watch(self) -> None:
        """Set a timer after which missing nodes and answers are given up."""
        if self.watch is not None:
            return
        loop = asyncio.get_running_loop()
        if self._began is None:
            self._began = loop.time()
        at = min(end.at for end in self._groups[self._left[-1]].values())
        left = 0.0 if self._impatient else self._began + 1.5 * at - loop.time()
        seconds = SLACK_S + min(max(0.0, left), LONGEST_S)
        # Use an empty context, so that this timer does not count as a timer of the program. When
        # it is due, it is queued after the program's timers that are due, so that these fire first.
        self.watch = loop.call_later(
            seconds, self._watch_is_over, self._changes, context=contextvars.Context()
        )

    def _watch_is_over(self, changes: int) -> None:
        self.timer_is_due(_Watch(self, changes, self.watch))

    def _stop_watching(self) -> None:
        if self.watch is not None:
            self.watch.cancel()
            self.watch = None

    def stalled(self, changes: int) -> None:
        """Stop waiting for missing nodes and answers, unless something has happened since the timer
        was set, or a node of the next group still runs. ``changes`` is the number of changes at the
        time at which the timer was set.
        """
        self.watch = None
        group = self._left[-1] if self._left else None
        if group is None:
            return
        members = self._groups[group]
        if changes == self._changes and not self._running & members.keys():
            self._impatient = True
            for _, key in self._before[bisect_right(self._before, -group, key=_latest_first) :]:
                self._open.discard(key)
            for node in members.keys() - self._arrived.keys():
                self._leave(node)
            self._changes += 1
        self._advance()


class _Watch(NamedTuple):
    """The timer after which missing nodes and answers are given up."""

    order: Order
    changes: int
    timer: asyncio.TimerHandle | None

    @property
    def is_cancelled(self) -> bool:
        return self.order.watch is not self.timer

    def go_off(self) -> None:
        self.order.stalled(self.changes)


def _nothing() -> None:
    """Do nothing. This is the default of `Order.caught_up`, which the runtime sets."""


def _latest_first(before: tuple[int, tuple[str, str]]) -> int:
    return -before[0]


def _release(turns: Iterable[asyncio.Future[None]]) -> None:
    for turn in turns:
        if not turn.done():
            turn.set_result(None)


def lived_seconds(lives: Iterable[float], times: Iterable[float]) -> Mapping[float, float]:
    """Return for each of ``times`` how many seconds the program had run at that time.

    ``lives`` are the times at which processes started to run the program. The pause between the
    last event of a process and the start of the next process does not count.
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
