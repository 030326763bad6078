"""Where the time of each call in an engine goes, and because of whom: `agentrt.request.spans`.

An `Account` is told when a call arrives, comes in, begins, has its first token, stops and ends, and
of nothing in between: a step costs the same with and without it. Who made a call wait is noted at
these moments: who ran when it came, and who began while it waited. Pure; times are seconds.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from agentrt.request.spans import (
    ADMISSION,
    DECODE,
    PREEMPTED,
    PREFILL,
    QUEUED,
    RECOMPUTE,
    STARTING,
)
from agentrt.scheduler.records import CallState, QueuedCall

FEW = 3
"""So many programs are named of those that ran as a call came, and of those that began since."""
MOST = 48
"""So many spans of a call are kept; what comes after that is added to the last of its reason."""

Plain = list[Any]
"""A `Cause` or a `Span` as it travels."""


@dataclass(slots=True, eq=False)
class CallAccount:
    """The closed ``spans`` of one call, and the one that is open ``since`` then, for a ``reason``.

    ``cause`` is it itself as others name it, since it last began. Where nobody ran as it came,
    ``holders`` were those that might keep it out. A call that runs began with so many
    ``cached`` tokens and ``outputs``. Before its next output so many are ``missing``; the first
    ``lost`` of them were computed before, and ``lost_by`` took them.
    """

    since: float
    level: int
    attained_s: float
    by: list[Plain]
    cause: Plain | None = None
    reason: str = QUEUED
    holders: list[Plain] = field(default_factory=list)
    spans: list[Plain] = field(default_factory=list)
    cached: int = 0
    outputs: int = 0
    missing: int = 0
    lost: int = 0
    lost_by: list[Plain] = field(default_factory=list)

    def close(self, call: QueuedCall, now: float, tokens: int = 0) -> None:
        """The open span ends, and the next one begins; its reason is the same until it is set."""
        if now > self.since:
            self._add(self.reason, now - self.since, tokens, self.by)
        self.since, self.level, self.attained_s = now, call.level, call.program.attained_s

    def close_prefill(self, call: QueuedCall, now: float, computed: int) -> None:
        """The same for one in which tokens were ``computed``: in their order, the lost first."""
        if again := min(self.lost, computed):
            until = now if again == computed else self.since + (now - self.since) * again / computed
            if until > self.since:
                self._add(RECOMPUTE, until - self.since, again, self.lost_by)
            self.since = until
        self.reason, self.by = PREFILL, []
        self.close(call, now, computed - again)

    def _add(self, reason: str, seconds: float, tokens: int, by: list[Plain]) -> None:
        if len(self.spans) >= MOST:
            for last in reversed(self.spans):
                if last[0] == reason:
                    last[1] += seconds
                    last[4] += tokens
                    return
        self.spans.append([reason, seconds, self.level, self.attained_s, tokens, by])


class Account(ABC):
    """Keeps the accounts of one engine's calls, each in its call's ``account``.

    ``prefilling`` are the calls that run and have put out nothing since they began.
    """

    def __init__(self) -> None:
        self.prefilling: dict[QueuedCall, None] = {}
        self._begun: deque[tuple[float, Plain]] = deque(maxlen=FEW)

    @abstractmethod
    def counts(self, call: QueuedCall) -> tuple[int, int, int]:
        """How many of a call's tokens are computed now, how many it has, and has put out."""

    @abstractmethod
    def ahead(self) -> list[Plain]:
        """A few of the programs that run now, by their causes."""

    @abstractmethod
    def holders(self) -> list[Plain]:
        """A few of the programs that keep others out."""

    @abstractmethod
    def took(self, call: QueuedCall, cached: int, known: int) -> list[Plain]:
        """Who took the blocks of a call's tokens between these two numbers."""

    def arrived(self, call: QueuedCall, now: float) -> None:
        """A call waits from now on."""
        one = CallAccount(now, call.level, call.program.attained_s, self.ahead())
        if not one.by:
            one.holders = self.holders()
        call.account = one

    def let_in(self, call: QueuedCall, now: float) -> None:
        """It was kept out until now, and still waits."""
        one: CallAccount = call.account
        self._close_admission(call, one, now)
        one.reason, one.by = QUEUED, self.ahead()

    def began(self, call: QueuedCall, now: float, cached: int) -> None:
        """It runs from now on, with so many tokens in place, and is still what it was before."""
        one: CallAccount = call.account
        self._close_wait(call, one, now)
        _, tokens, one.outputs = self.counts(call)
        known = call.computed_tokens if call.preemptions else call.known_tokens
        one.cached, one.missing, one.lost = cached, tokens - cached, max(known - cached, 0)
        if one.lost:
            one.lost_by = self.took(call, cached, known) or one.lost_by
        one.cause = cause_of(call)
        self._begun.append((now, one.cause))
        self.prefilling[call] = None

    def first_tokens(self, now: float) -> None:
        """An engine's step has ended: those calls decode from now on that have put out more."""
        for call in list(self.prefilling):
            one: CallAccount = call.account
            if self.counts(call)[2] > one.outputs:
                del self.prefilling[call]
                one.close_prefill(call, now, one.missing)
                one.reason, one.by = DECODE, []

    def moved(self, call: QueuedCall, now: float) -> None:
        """It may have another level now."""
        one: CallAccount = call.account
        if one.level != call.level and one.reason == DECODE and call.state is CallState.RUNNING:
            self._stop(call, one, now)

    def preempted(self, call: QueuedCall, now: float, by: list[Plain]) -> None:
        """It stopped for ``by``, and waits."""
        one: CallAccount = call.account
        self._stop(call, one, now)
        one.reason, one.by = PREEMPTED, by
        one.lost_by = by  # part of a block is lost by stopping alone

    def ended(self, call: QueuedCall, now: float) -> None:
        """It ends, in whatever state; it is not out of it yet."""
        one: CallAccount = call.account
        if call.state is CallState.RUNNING:
            self._stop(call, one, now)
            return
        if call.state is CallState.OUTSIDE:
            self._close_admission(call, one, now)
        else:
            self._close_wait(call, one, now)

    def _close_admission(self, call: QueuedCall, one: CallAccount, now: float) -> None:
        one.reason, one.by = ADMISSION, self._with_begun(one)
        if not one.by:
            own = call.program.program_id
            one.by = [cause for cause in one.holders or self.holders() if cause[0] != own][:FEW]
        if not one.by:
            one.reason = STARTING
        one.close(call, now)

    def _close_wait(self, call: QueuedCall, one: CallAccount, now: float) -> None:
        if one.reason == QUEUED:
            one.by = self._with_begun(one)
            if not one.by:
                one.reason = STARTING
        one.close(call, now)

    def _stop(self, call: QueuedCall, one: CallAccount, now: float) -> None:
        computed, _, outputs = self.counts(call)
        if call in self.prefilling:
            del self.prefilling[call]
            one.close_prefill(call, now, min(max(computed - one.cached, 0), one.missing))
        else:
            one.close(call, now, outputs - one.outputs)
        one.outputs = outputs

    def _with_begun(self, one: CallAccount) -> list[Plain]:
        """Those it waited for: who was ahead of it as it came, and the last who began since."""
        if not self._begun or self._begun[-1][0] < one.since:
            return one.by
        named = {cause[0]: cause for cause in one.by}
        for at, cause in reversed(self._begun):
            if at < one.since:
                break
            named.setdefault(cause[0], cause)
        return list(named.values())


def cause_of(call: QueuedCall) -> Plain:
    """A call's program, as what makes others wait."""
    return [call.program.program_id, call.level, round(call.program.attained_s, 6)]


def spans_of(call: QueuedCall) -> list[Plain]:
    """The spans of a call that ended, to be reported."""
    one: CallAccount | None = call.account
    spans = [] if one is None else one.spans
    for span in spans:
        span[1], span[3] = round(span[1], 6), round(span[3], 6)
    return spans
