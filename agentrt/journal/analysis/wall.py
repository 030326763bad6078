"""Explaining where the wall time of a recorded program went. Each instant has exactly one reason.

The time is followed backwards from the program's end, along the critical path: from a node to its
parent that ended last, and so on. A call's time in the engine is divided into the spans that the
engine reported (`agentrt.request.spans`). The time of a call before its first span was spent on the
way to the engine. Between the end of a parent and the start of a node, other nodes may have ended.
The program may have waited for them, for example at a semaphore, so this time is assigned to these
nodes, the last node first. All remaining time was spent in the program's own code.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from agentrt.errors import JournalError
from agentrt.journal.analysis.reading import read_row, read_rows
from agentrt.journal.codec import UnkeptError, loads
from agentrt.journal.past import nodes_of, without_gone
from agentrt.journal.requests import RecordedRequests
from agentrt.journal.schema import (
    CANCELLED,
    DONE,
    OPEN,
    ROOT,
    EndRow,
    RecordedProgram,
    StartRow,
)
from agentrt.journal.store import Store
from agentrt.request import CallReport
from agentrt.request.spans import QUEUED, REASONS, STARTING, Cause, Span, read_spans

ENGINE, TOOL, HUMAN, EVENT, OWN, STOPPED = "engine", "tool", "human", "event", "own code", "stopped"
TURN = "turn"
ALL_REASONS = (*REASONS, ENGINE, TURN, TOOL, HUMAN, EVENT, OWN, STOPPED)
"""All reasons, in the order of reports: the reasons of spans (`REASONS`), and these:

- ``engine``: a call was in an engine that reported no spans, or that had not ended the call.
- ``turn``: a tool waited for other tools, because of a limit on concurrent tools.
- ``tool``, ``human``: the program waited for a tool, or for a human.
- ``event``: the program waited for an event, or slept.
- ``own code``: the program's own code ran.
- ``stopped``: no process ran the program.

The reason ``starting`` includes the time in which a call is sent from the program to the engine.
"""
_KINDS = {"tool": TOOL, "tools": TOOL, "human": HUMAN, "event": EVENT, "sleep": EVENT}
_WAITED_FOR = (*_KINDS, "call")


class WallInterval(NamedTuple):
    """A part of the wall time with one ``reason``, from ``since`` to ``until`` (times of day in
    seconds).

    ``node`` is the place of the node that took the time, "" if no node did. For a call, ``tokens``
    is the number of computed or loaded tokens, ``by`` are the programs that caused this time,
    ``level`` is the call's queue level, and ``attained_s`` is the service that the call's program
    had attained.
    """

    since: float
    until: float
    reason: str
    node: str = ""
    level: int = 0
    attained_s: float = 0.0
    tokens: int = 0
    by: tuple[Cause, ...] = ()

    @property
    def seconds(self) -> float:
        return self.until - self.since


@dataclass(frozen=True, slots=True)
class Stay:
    """An attempt at a node, from its start to its end. If its end was not recorded, the attempt
    lasts until the end of its process.
    """

    start: StartRow
    until: float
    end: EndRow | None

    @property
    def state(self) -> str:
        return OPEN if self.end is None else self.end.state

    @property
    def report(self) -> CallReport | None:
        """The engine's report of a call; None if no report was recorded. Raises `JournalError` if
        the report cannot be read.
        """
        account = self._account()
        return account if isinstance(account, CallReport) else None

    @property
    def asked_at(self) -> float:
        """The time at which the program called a tool, before the tool waited for its turn. For any
        other node, the start of the node. Raises `JournalError` if the node's record cannot be
        read.
        """
        account = self._account()
        turn_s = account.get("turn_s", 0.0) if isinstance(account, dict) else 0.0
        return float(self.start.started - turn_s)

    def _account(self) -> Any:
        if self.end is None or not self.end.account:
            return None
        try:
            return loads(self.end.account)
        except UnkeptError as error:
            where = f"node {self.start.node} of run {self.start.program}"
            raise JournalError(f"the record of {where} cannot be read: {error}") from error


@dataclass(frozen=True, slots=True)
class Life:
    """The time in which one process ran the program, and the state of the program at the end of
    this time.
    """

    since: float
    until: float
    state: str
    stays: list[Stay] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class RecordedTime:
    """The wall time of a recorded program, divided into its ``lives``: a life for each process that
    ran the program, in order. ``requests`` has the requests of the program's nodes.
    """

    program: RecordedProgram
    lives: list[Life]
    requests: RecordedRequests

    @property
    def since(self) -> float:
        return self.lives[0].since

    @property
    def until(self) -> float:
        """The time of the program's end, or of its last recorded row if it has not ended."""
        return self.lives[-1].until

    @property
    def state(self) -> str:
        return self.lives[-1].state

    def unended(self) -> list[Stay]:
        """Return the nodes that have not ended, in the order of their start. The time since
        `until` belongs to them. Return an empty list if the program has ended.
        """
        if self.state != OPEN:
            return []
        stays = [stay for stay in self.lives[-1].stays if stay.end is None]
        return sorted(stays, key=lambda stay: stay.start.started)

    def pieces(self) -> list[WallInterval]:
        """Return the wall time in pieces, without gaps, from the start to the end."""
        pieces: list[WallInterval] = []
        by_place = {stay.start.node: stay for life in self.lives for stay in life.stays}
        before: float | None = None
        reason = STOPPED
        for life in self.lives:
            if before is not None and life.since > before:
                pieces.append(WallInterval(before, life.since, reason))
            walk = _Walk(life, by_place)
            pieces += walk.pieces()
            before, reason = life.until, walk.goes_on_with
        return pieces


def read_program(store: Store, program_id: str) -> RecordedTime:
    """Return the wall time of a program. Raises `JournalError` if the program is missing, is
    damaged or has not started yet.
    """
    program, (starts, ends) = read_row(store, program_id), read_rows(store, program_id)
    if ROOT not in nodes_of(store.name, starts, ends):  # also checks the rows for damage
        raise JournalError(f"journal {store.name}: run {program_id} has not started yet")
    requests = RecordedRequests(starts, ends)
    return RecordedTime(program, _lives(*without_gone(starts, ends)), requests)


def _lives(starts: Sequence[StartRow], ends: Sequence[EndRow]) -> list[Life]:
    ended = {(end.node, end.attempt): end for end in ends}
    roots = sorted((row for row in starts if row.node == ROOT), key=lambda row: row.started)
    begun = [root.started for root in roots]
    times = sorted([*(row.started for row in starts), *(row.ended for row in ends)])
    lives = []
    for root, until in zip(roots, [*begun[1:], float("inf")], strict=True):
        end = ended.get((ROOT, root.attempt))
        last = times[bisect_left(times, until) - 1]
        over = max(last if end is None else end.ended, root.started)
        lives.append(Life(root.started, over, OPEN if end is None else end.state))
    for start in starts:
        if start.node == ROOT or start.attempt == 0:
            continue
        life = lives[max(0, bisect_right(begun, start.started) - 1)]
        end = ended.get((start.node, start.attempt))
        over = life.until if end is None else min(end.ended, life.until)
        life.stays.append(Stay(start, max(over, start.started), end))
    return lives


class _Walk:
    """A walk through one `Life` of a program, the time in which one process ran it. The walk goes
    backwards, from the end of this time to its start.
    """

    def __init__(self, life: Life, by_place: Mapping[str, Stay]) -> None:
        self._life, self._by_place = life, by_place
        counts = [stay for stay in life.stays if stay.start.kind in _WAITED_FOR]
        # Nodes that were still open when the program was done did not delay it.
        kept = [stay for stay in counts if life.state != DONE or stay.end is not None]
        self._stays = sorted(kept, key=lambda stay: (stay.until, stay.start.started))
        self._ends = [stay.until for stay in self._stays]
        self._inner: dict[str, list[Stay]] = {}
        for stay in self._stays:
            if (around := _around(stay.start.node)) is not None:
                self._inner.setdefault(around, []).append(stay)

    @property
    def goes_on_with(self) -> str:
        """The reason for the time until the next process runs the program. If the program waited
        for a human or an event, the reason is this wait, because a wait needs no process; otherwise
        the reason is `STOPPED`.
        """
        last = self._last()
        reason = None if last is None or last.end else _KINDS.get(last.start.kind)
        return reason if reason in (HUMAN, EVENT) else STOPPED

    def pieces(self) -> list[WallInterval]:
        pieces = [piece for piece in self._back() if piece.until > piece.since]
        return pieces[::-1]

    def _back(self) -> Iterator[WallInterval]:
        """Yield the pieces of the wall time, from the last piece to the first."""
        life, at = self._life, self._life.until
        stay, later = self._last(), None
        while stay is not None and stay.until > life.since:
            yield from self._before(later, stay.until, at)
            since = max(stay.start.started, life.since)
            yield from self._of(stay, since, stay.until)
            at, stay, later = since, self._parent(stay), stay
        yield from self._before(later, life.since, at)

    def _before(self, stay: Stay | None, since: float, until: float) -> Iterator[WallInterval]:
        """Yield the pieces from ``since``, the end of a parent, to ``until``, the start of the node
        ``stay`` (or the program's end if ``stay`` is None). The last piece comes first.
        """
        place, at = "", until
        if stay is not None:
            place, at = stay.start.node, min(max(stay.asked_at, since), until)
        yield from self._cover(self._ended_in(at, until), at, until, TURN, place)
        yield from self._cover(self._ended_in(since, at), since, at, OWN)

    def _last(self) -> Stay | None:
        """Return the node that ended last before the program did; None if there is no such node.

        Nodes that were open or cancelled at the end of the program count only if the program itself
        is open or was cancelled.
        """
        if self._life.state in (OPEN, CANCELLED):
            return self._stays[-1] if self._stays else None
        ended = (stay for stay in reversed(self._stays) if stay.state not in (OPEN, CANCELLED))
        return next(ended, None)

    def _parent(self, stay: Stay) -> Stay | None:
        """Return the recorded parent that ended last, among the parents that had ended when the
        node began; None if there is no such parent.
        """
        places = [] if stay.end is None else stay.end.parents.split()
        known = [self._by_place[place] for place in places if place in self._by_place]
        before = [parent for parent in known if parent.until <= stay.start.started]
        return max(before, key=lambda parent: parent.until, default=None)

    def _ended_in(self, since: float, until: float) -> Sequence[Stay]:
        """Return the nodes that ended after ``since`` and not after ``until``."""
        return self._stays[bisect_right(self._ends, since) : bisect_right(self._ends, until)]

    def _cover(
        self, stays: Sequence[Stay], since: float, until: float, rest: str, node: str = ""
    ) -> Iterator[WallInterval]:
        """Yield the intervals from ``since`` to ``until``, the last interval first. Time in which
        none of the nodes ``stays`` runs becomes intervals of ``node`` with the reason ``rest``.

        ``stays`` is in the order of the nodes' ends. If nodes overlap, the node that ends last
        counts, and the others are left out.
        """
        at = until
        for stay in reversed(stays):
            if at <= since or stay.until <= since:
                break
            if stay.until > at or stay.start.started >= stay.until:
                continue
            yield WallInterval(stay.until, at, rest, node)
            began = max(stay.start.started, since)
            yield from self._of(stay, began, stay.until)
            at = began
        if at > since:
            yield WallInterval(since, at, rest, node)

    def _of(self, stay: Stay, since: float, until: float) -> Iterator[WallInterval]:
        """Yield a node's intervals from ``since`` to ``until``, the last interval first."""
        place, reason = stay.start.node, _KINDS.get(stay.start.kind)
        if reason is not None:
            inner = self._inner.get(place, ())
            yield from self._cover(inner, since, until, reason, place)
            return
        at = stay.until
        for span in reversed(_spans(stay)):
            began = max(at - span.seconds, stay.start.started)
            piece = WallInterval(max(began, since), min(at, until), span.reason, place, *span[2:])
            if piece.until > piece.since:
                yield piece
            at = began
        if at > since:
            yield WallInterval(since, min(at, until), STARTING, place)


def _around(place: str) -> str | None:
    """Return the place of the node that contains a node: ``0#2`` for ``0#2.1#0``. Return None for a
    node that no other node contains.
    """
    path = place.rpartition("#")[0]
    before, mark, after = path.rpartition("#")
    return f"{before}#{after.partition('.')[0]}" if mark else None


def _spans(stay: Stay) -> Sequence[Span]:
    """Return the spans of a call in its engine. A call without a report has a single span."""
    report = stay.report
    if report is None:
        return [Span(ENGINE, stay.until - stay.start.started)]
    return engine_spans(report, f"node {stay.start.node} of run {stay.start.program}")


def engine_spans(report: CallReport, where: str) -> Sequence[Span]:
    """Return the spans of a call in its engine. If the report has no spans, return two spans with
    the call's whole waiting time and service. Raises `JournalError` if the report cannot be read.
    """
    waited = Span(QUEUED, report.waiting_s, report.level)
    sums = [waited, Span(ENGINE, report.service_s, report.level)]
    try:
        return read_spans(report.spans) or sums
    except (TypeError, ValueError) as error:
        raise JournalError(f"the record of {where} cannot be read: {error}") from error
