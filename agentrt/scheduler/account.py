"""The account of each call's time in an engine, and of the programs that made the call wait.

The engine takes a note when a call arrives, is admitted, begins or ends a load of KV cache, starts,
has its first token, changes its level, is preempted or ends. It takes no notes in other engine
steps, so that these steps take no longer. The notes of a wait also name the programs that made the
call wait: the programs that ran when the call arrived, and the programs that started while it
waited. Another process than the engine core turns the notes into spans (`agentrt.request.spans`);
only if a call has many notes, the engine core turns these notes into spans, too. This module is
pure; all times are seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from agentrt.request.spans import (
    ADMISSION,
    DECODE,
    LOADING,
    MOST,
    PREEMPTED,
    PREFILL,
    QUEUED,
    RECOMPUTE,
    STARTING,
)
from agentrt.scheduler.state import QueuedCall

Plain = list[Any]
"""A `Cause` or a `Span` as plain values, which can be sent to another process."""


class NoteKind:
    """The kinds of notes: what happened to the call. They are plain numbers, because notes are sent
    to another process, and because looking up a member of an enumeration is slow.
    """

    ARRIVED = 0
    ADMITTED = 1
    STARTED = 2
    FIRST_TOKEN = 3
    RERANKED = 4
    """The call changed its level."""
    STOPPED = 5
    """The call was preempted."""
    ENDED = 6
    LOADS = 7
    """A load of the call's KV cache began."""
    LOADED = 8
    SPANS = 9
    """Holds earlier notes that were already turned into spans, so that a long call does not collect
    too many notes.
    """


Note = Sequence[Any]
"""A note: its kind, its time, the call's level, the attained service of the call's program, and
further details, which are the arguments of the method of `_SpanMaker` for this kind.
"""


def note(call: QueuedCall, kind: int, now: float, *details: Any) -> None:
    """Add a note of an event to a call. ``details`` are the details of this kind of `Note`."""
    notes = call.notes
    notes.append((kind, now, call.level, call.program.attained_s, *details))
    if len(notes) > MOST:
        notes[:] = [(NoteKind.SPANS, now, call.level, 0.0, _folded(notes))]


def noted(call: QueuedCall) -> list[Note]:
    """Return the notes of a call that has ended, as plain values."""
    notes: list[Note] = call.notes
    if notes and notes[0][0] == NoteKind.SPANS:
        return [(NoteKind.SPANS, 0.0, 0, 0.0, _folded(notes).spans)]
    return notes


def spans_of(notes: Iterable[Note]) -> list[Plain]:
    """Turn the notes of a call into its spans."""
    maker = _SpanMaker().take(notes)
    for span in maker.spans:
        span[1], span[3] = round(span[1], 6), round(span[3], 6)
        named = {name: [name, level, round(seconds, 6)] for name, level, seconds in span[5]}
        span[5] = list(named.values())
    return maker.spans


class _SpanMaker:
    """A converter of a call's notes into spans.

    ``since``, ``reason`` and ``level`` are the start time of the current span, its reason, and the
    call's level in it. A running call had ``cached`` tokens in the cache when it started, and
    ``outputs`` output tokens when it started or when its level last changed. ``missing`` tokens
    must be computed before the call's next output token; the first ``lost`` of these tokens had
    been computed before, but their KV cache was lost. A call that loads KV cache loads ``loads``
    tokens.
    """

    def __init__(self) -> None:
        self.spans: list[Plain] = []
        self.since = self.attained_s = 0.0
        self.level = self.cached = self.missing = self.lost = self.outputs = self.loads = 0
        self.reason, self.in_prefill = QUEUED, False
        self.by: list[Plain] = []
        self.kept_out_by: list[Plain] = []
        self.lost_by: list[Plain] = []

    def take(self, notes: Iterable[Note]) -> _SpanMaker:
        """Add notes."""
        for kind, now, level, attained_s, *details in notes:
            if kind == NoteKind.SPANS:
                self.spans = details[0]
                continue
            _TAKEN[kind](self, now, *details)
            self.since, self.level, self.attained_s = now, level, attained_s
        return self

    # -- a method for each kind of note ------------------------------------------------

    def _arrived(self, now: float, ahead: list[Plain], kept_out_by: list[Plain]) -> None:
        self.by, self.kept_out_by = ahead, kept_out_by

    def _admitted(
        self, now: float, started: Sequence[Any], kept_out_by: list[Plain], ahead: list[Plain]
    ) -> None:
        self._close_wait(now, started, ADMISSION, kept_out_by)
        self.reason, self.by = QUEUED, ahead

    def _loads(self, now: float, started: Sequence[Any], tokens: int, lost_to: list[Plain]) -> None:
        self._close_wait(now, started, self.reason, [])
        self.reason, self.by, self.loads = LOADING, lost_to, tokens

    def _loaded(self, now: float, failed: bool, ahead: list[Plain]) -> None:
        self._close(now, LOADING, 0 if failed else self.loads, self.by)
        self.reason, self.by = QUEUED, ahead

    def _started(self, now: float, started: Sequence[Any], *counts: Any) -> None:
        self._close_wait(now, started, self.reason, [])
        self.cached, tokens, self.outputs, known, lost_to = counts
        self.missing, self.lost = tokens - self.cached, max(known - self.cached, 0)
        self.lost_by = lost_to or self.lost_by
        self.in_prefill = True

    def _first_token(self, now: float) -> None:
        self._close_prefill(now, self.missing)

    def _reranked(self, now: float, outputs: int) -> None:
        self._close(now, DECODE, outputs - self.outputs)
        self.outputs = outputs

    def _stopped(self, now: float, computed: int, outputs: int, by: list[Plain]) -> None:
        self._close_run(now, computed, outputs)
        self.reason, self.by = PREEMPTED, by
        self.lost_by = by  # a preemption alone loses the tokens of an incomplete block

    def _ended(
        self,
        now: float,
        computed: int,
        outputs: int,
        started: Sequence[Any] | None = None,
        not_admitted: bool = False,
        kept_out_by: Sequence[Plain] = (),
    ) -> None:
        if started is None:
            self._close_run(now, computed, outputs)
        elif self.reason == LOADING:  # the loaded blocks are not used
            self._close(now, LOADING, 0, self.by)
        else:
            self._close_wait(now, started, ADMISSION if not_admitted else self.reason, kept_out_by)

    # -- spans -------------------------------------------------------------------------

    def _close_wait(
        self, now: float, started: Sequence[Any], reason: str, kept_out_by: Sequence[Plain]
    ) -> None:
        """Close a span of waiting. Except after a preemption, the causes of the span include the
        programs that have started since the span began, according to ``started``.
        """
        by = self.by
        if reason != PREEMPTED:
            named = {cause[0]: cause for cause in by}
            named |= {cause[0]: cause for at, cause in started if at >= self.since}
            by = list(named.values())
        if reason == ADMISSION:
            by = by or self.kept_out_by or list(kept_out_by)
        self._close(now, reason if by or reason == PREEMPTED else STARTING, 0, by)

    def _close_run(self, now: float, computed: int, outputs: int) -> None:
        if self.in_prefill:
            self._close_prefill(now, min(max(computed - self.cached, 0), self.missing))
        else:
            self._close(now, DECODE, outputs - self.outputs)
        self.outputs = outputs

    def _close_prefill(self, now: float, computed: int) -> None:
        """Close a prefill of ``computed`` tokens. Tokens that had been lost are computed first, so
        they become a separate span with the reason ``recompute``.
        """
        self.in_prefill = False
        if again := min(self.lost, computed):
            until = now if again == computed else self.since + (now - self.since) * again / computed
            self._close(until, RECOMPUTE, again, self.lost_by)
            self.since = until
        self._close(now, PREFILL, computed - again)

    def _close(self, now: float, reason: str, tokens: int = 0, by: Sequence[Plain] = ()) -> None:
        seconds = now - self.since
        if seconds <= 0.0:
            return
        if len(self.spans) >= MOST:
            for last in reversed(self.spans):
                if last[0] == reason:
                    last[1] += seconds
                    last[4] += tokens
                    return
        self.spans.append([reason, seconds, self.level, self.attained_s, tokens, by])


def _folded(notes: Sequence[Note]) -> _SpanMaker:
    """Convert notes into spans, and return the converter, which has the spans. The first note may
    have the converter of earlier notes; then that converter takes the other notes.
    """
    if notes[0][0] == NoteKind.SPANS:
        maker: _SpanMaker = notes[0][4]
        return maker.take(notes[1:])
    return _SpanMaker().take(notes)


_TAKEN: Mapping[int, Callable[..., None]] = {
    NoteKind.ARRIVED: _SpanMaker._arrived,
    NoteKind.ADMITTED: _SpanMaker._admitted,
    NoteKind.STARTED: _SpanMaker._started,
    NoteKind.FIRST_TOKEN: _SpanMaker._first_token,
    NoteKind.RERANKED: _SpanMaker._reranked,
    NoteKind.STOPPED: _SpanMaker._stopped,
    NoteKind.ENDED: _SpanMaker._ended,
    NoteKind.LOADS: _SpanMaker._loads,
    NoteKind.LOADED: _SpanMaker._loaded,
}
"""The method for each kind of note except `NoteKind.SPANS`."""
