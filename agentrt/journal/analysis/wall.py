"""Where a recorded program's wall time went: each instant has exactly one reason.

The time is followed backwards from the end, along the critical path: from a node to the one of its
recorded parents that ended last, and so on. A call's time in the engine is split as its engine said
(`agentrt.request.spans`); what is left of it came before. Between a parent's end and the node's
beginning other nodes count that ended then, the last of them first: a program waits there for a
place of its own, such as a semaphore. The rest is its own code.
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
from agentrt.journal.questions import QuestionRows
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
"""``starting`` is also what lies between the program and the engine. ``engine``: in one that does
not say more, or has not ended the call. ``turn``: a tool waited for others, by a limit of how many
run at once. ``event``: an event or a sleep. ``stopped``: its process was gone."""
_KINDS = {"tool": TOOL, "tools": TOOL, "human": HUMAN, "event": EVENT, "sleep": EVENT}
_WAITED_FOR = (*_KINDS, "call")


class Piece(NamedTuple):
    """The wall time from ``since`` to ``until`` (time of day, seconds) has one ``reason``.

    It was spent in a ``node``, "" for none, whose call had ``tokens`` computed and came after those
    of ``by``; it was at ``level`` then, its program had attained ``attained_s``.
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
    """An attempt at a node: from its beginning to its end, or to that of its process' life."""

    start: StartRow
    until: float
    end: EndRow | None

    @property
    def state(self) -> str:
        return OPEN if self.end is None else self.end.state

    @property
    def report(self) -> CallReport | None:
        """What the engine said of a call. Raises `JournalError` for what cannot be read."""
        found = self._account()
        return found if isinstance(found, CallReport) else None

    @property
    def asked(self) -> float:
        """When a tool was to begin, before it waited for its turn. Raises `JournalError`."""
        found = self._account()
        return self.start.started - (found.get("turn_s", 0.0) if isinstance(found, dict) else 0.0)

    def _account(self) -> Any:
        if self.end is None or not self.end.account:
            return None
        try:
            return loads(self.end.account)
        except UnkeptError as error:
            where = f"node {self.start.node} of program {self.start.program}"
            raise JournalError(f"the account of {where} cannot be read: {error}") from error


@dataclass(frozen=True, slots=True)
class Life:
    """The time in which a process ran the program, and how the program ended then."""

    since: float
    until: float
    state: str
    stays: list[Stay] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Recorded:
    """A program with its ``lives``, the first one first, and what its ``questions`` were."""

    program: RecordedProgram
    lives: list[Life]
    questions: QuestionRows

    @property
    def since(self) -> float:
        return self.lives[0].since

    @property
    def until(self) -> float:
        """Its end, or its last row if it has none."""
        return self.lives[-1].until

    @property
    def state(self) -> str:
        return self.lives[-1].state

    def pieces(self) -> list[Piece]:
        """Its wall time in pieces, without gaps, from its start to its end."""
        pieces: list[Piece] = []
        by_place = {stay.start.node: stay for life in self.lives for stay in life.stays}
        before: float | None = None
        reason = STOPPED
        for life in self.lives:
            if before is not None and life.since > before:
                pieces.append(Piece(before, life.since, reason))
            walk = _Walk(life, by_place)
            pieces += walk.pieces()
            before, reason = life.until, walk.goes_on_with
        return pieces


def read_program(store: Store, program_id: str) -> Recorded:
    """What a journal has of a program. Raises `JournalError` if it is not there, or damaged."""
    program, (starts, ends) = read_row(store, program_id), read_rows(store, program_id)
    if ROOT not in nodes_of(store.name, starts, ends):  # which checks them
        raise JournalError(f"journal {store.name}: program {program_id} has not begun")
    questions = QuestionRows(starts, ends)
    return Recorded(program, _lives(*without_gone(starts, ends)), questions)


def _lives(starts: Sequence[StartRow], ends: Sequence[EndRow]) -> list[Life]:
    ended = {(one.node, one.attempt): one for one in ends}
    roots = sorted((one for one in starts if one.node == ROOT), key=lambda one: one.started)
    begun = [root.started for root in roots]
    times = sorted([*(one.started for one in starts), *(one.ended for one in ends)])
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
    """One life of a program, from its end back to its beginning."""

    def __init__(self, life: Life, by_place: Mapping[str, Stay]) -> None:
        self._life, self._by_place = life, by_place
        counts = [stay for stay in life.stays if stay.start.kind in _WAITED_FOR]
        # What was left open by a program that is done, nobody waited for.
        kept = [stay for stay in counts if life.state != DONE or stay.end is not None]
        self._stays = sorted(kept, key=lambda stay: (stay.until, stay.start.started))
        self._ends = [stay.until for stay in self._stays]
        self._inner: dict[str, list[Stay]] = {}
        for stay in self._stays:
            if (around := _around(stay.start.node)) is not None:
                self._inner.setdefault(around, []).append(stay)

    @property
    def goes_on_with(self) -> str:
        """What the program waits for while its process is gone: what needs none, if it can."""
        last = self._last()
        reason = None if last is None or last.end else _KINDS.get(last.start.kind)
        return reason if reason in (HUMAN, EVENT) else STOPPED

    def pieces(self) -> list[Piece]:
        found = [piece for piece in self._back() if piece.until > piece.since]
        return found[::-1]

    def _back(self) -> Iterator[Piece]:
        """The pieces, the last first."""
        life, at = self._life, self._life.until
        stay, later = self._last(), None
        while stay is not None and stay.until > life.since:
            yield from self._before(later, stay.until, at)
            since = max(stay.start.started, life.since)
            yield from self._of(stay, since, stay.until)
            at, stay, later = since, self._parent(stay), stay
        yield from self._before(later, life.since, at)

    def _before(self, stay: Stay | None, since: float, until: float) -> Iterator[Piece]:
        """What lies before a node, the last first; None is the program's end."""
        place, at = "", until
        if stay is not None:
            place, at = stay.start.node, min(max(stay.asked, since), until)
        yield from self._cover(self._ended_in(at, until), at, until, TURN, place)
        yield from self._cover(self._ended_in(since, at), since, at, OWN)

    def _last(self) -> Stay | None:
        """The node that the program ended with."""
        if self._life.state in (OPEN, CANCELLED):
            return self._stays[-1] if self._stays else None
        ended = (stay for stay in reversed(self._stays) if stay.state not in (OPEN, CANCELLED))
        return next(ended, None)

    def _parent(self, stay: Stay) -> Stay | None:
        """The node before that ended last, as far as it is recorded."""
        places = [] if stay.end is None else stay.end.parents.split()
        known = [self._by_place[place] for place in places if place in self._by_place]
        before = [one for one in known if one.until <= stay.start.started]
        return max(before, key=lambda one: one.until, default=None)

    def _ended_in(self, since: float, until: float) -> Sequence[Stay]:
        """The nodes that ended after ``since``, and not after ``until``."""
        return self._stays[bisect_right(self._ends, since) : bisect_right(self._ends, until)]

    def _cover(
        self, stays: Sequence[Stay], since: float, until: float, rest: str, node: str = ""
    ) -> Iterator[Piece]:
        """Of this time, what the nodes account for that ended in it; the ``rest`` is between."""
        at = until
        for stay in reversed(stays):
            if at <= since or stay.until <= since:
                break
            if stay.until > at or stay.start.started >= stay.until:
                continue
            yield Piece(stay.until, at, rest, node)
            began = max(stay.start.started, since)
            yield from self._of(stay, began, stay.until)
            at = began
        if at > since:
            yield Piece(since, at, rest, node)

    def _of(self, stay: Stay, since: float, until: float) -> Iterator[Piece]:
        """A node's time between these, the last first."""
        place, reason = stay.start.node, _KINDS.get(stay.start.kind)
        if reason is not None:
            inner = self._inner.get(place, ())
            yield from self._cover(inner, since, until, reason, place)
            return
        at = stay.until
        for span in reversed(_spans(stay)):
            began = max(at - span.seconds, stay.start.started)
            piece = Piece(max(began, since), min(at, until), span.reason, place, *span[2:])
            if piece.until > piece.since:
                yield piece
            at = began
        if at > since:
            yield Piece(since, min(at, until), STARTING, place)


def _around(place: str) -> str | None:
    """The node that a node is inside of: ``0#2`` of ``0#2.1#0``."""
    path = place.rpartition("#")[0]
    before, mark, after = path.rpartition("#")
    return f"{before}#{after.partition('.')[0]}" if mark else None


def _spans(stay: Stay) -> Sequence[Span]:
    """A call's time in its engine; of one that has not ended, or does not tell, what is known."""
    report = stay.report
    if report is None:
        return [Span(ENGINE, stay.until - stay.start.started)]
    return engine_spans(report, f"node {stay.start.node} of program {stay.start.program}")


def engine_spans(report: CallReport, where: str) -> Sequence[Span]:
    """A call's time in its engine: in its spans, or two sums. Raises `JournalError`."""
    waited = Span(QUEUED, report.waiting_s, report.level)
    sums = [waited, Span(ENGINE, report.service_s, report.level)]
    try:
        return read_spans(report.spans) or sums
    except (TypeError, ValueError) as error:
        raise JournalError(f"the account of {where} cannot be read: {error}") from error
