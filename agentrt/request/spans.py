"""Spans: how a call's time in an engine was spent, as consecutive periods, each with a reason.

The engine core reports a span as a plain list, which can be sent and stored as JSON:
``[reason, seconds, level, attained_s, tokens, by]``. ``by`` lists the programs that caused the
span, each as ``[program, level, attained_s]``. The first span begins when the call arrives at the
engine, and each other span at the end of the previous span.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

STARTING, QUEUED, ADMISSION, PREEMPTED = "starting", "queued", "admission", "preempted"
LOADING, RECOMPUTE, PREFILL, DECODE = "loading", "recompute", "prefill", "decode"
REASONS = (STARTING, QUEUED, ADMISSION, PREEMPTED, LOADING, RECOMPUTE, PREFILL, DECODE)
"""The reasons of spans:

- ``starting``: the call waited only for the engine's next step, or for its grammar. With a cause in
  ``by``, engines died with the call, or the call waited for an engine that was down.
- ``queued``: the call waited behind the calls of the programs ``by``.
- ``admission``: the call's program was not admitted, because the programs ``by`` used the cache.
- ``preempted``: the call was preempted for the programs ``by``.
- ``loading``: the call waited for KV cache that had been evicted for the programs ``by``, and that
  was loaded from host memory (or another engine) instead of being computed again.
- ``recompute``: tokens were recomputed that had been computed before, because the programs ``by``
  took their blocks.
- ``prefill``: tokens were computed for the first time, before the next output token.
- ``decode``: the output was computed.
"""
FEW, MOST = 3, 48
"""`FEW` is the maximum number of programs that are named as causes of a span, separately for the
programs that ran when the call arrived and for the programs that started later. Once a call has
`MOST` spans, further time is added to the last span with the same reason; a new span is added only
if there is none with its reason.
"""


class Cause(NamedTuple):
    """A program that made a call wait. ``level`` is the queue level of the program's own call, and
    ``attained_s`` the program's attained service in seconds. Both were noted at the last start of
    the program's own call, or, if this call had not started, together with the wait. A program that
    keeps another program from being admitted may have the level 0 instead. A name in parentheses is
    not a program but another cause.
    """

    program: str
    level: int = 0
    attained_s: float = 0.0


class Span(NamedTuple):
    """A period of a call: ``seconds`` that were spent for one ``reason``, caused ``by`` a few
    programs.

    At the beginning of the span, the call was at queue level ``level``, and its program had
    attained ``attained_s`` seconds of service. ``tokens`` is the number of tokens that were
    computed in a ``recompute`` or ``prefill`` span (after a preemption also output tokens), of
    tokens that were loaded in a ``loading`` span, or of output tokens in a ``decode`` span.
    """

    reason: str
    seconds: float
    level: int = 0
    attained_s: float = 0.0
    tokens: int = 0
    by: tuple[Cause, ...] = ()


def read_spans(values: Iterable[Sequence[Any]]) -> list[Span]:
    """Read the ``spans`` of a report. Raises `TypeError` or `ValueError` for invalid values."""
    spans = []
    for reason, seconds, level, attained_s, tokens, by in values:
        causes = tuple(Cause(*cause) for cause in by)
        spans.append(Span(reason, seconds, level, attained_s, tokens, causes))
    return spans
