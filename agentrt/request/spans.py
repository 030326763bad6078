"""Where a call's time in an engine went: spans, one after the other, each with its reason.

The engine core reports a span as a plain list, so that it travels and is kept as JSON:
``[reason, seconds, level, attained_s, tokens, by]``, and of each in ``by``
``[program, level, attained_s]``. The first span begins when the call came to the engine, each
other one at the end of that before it, so that a span's beginning is the sum of those before.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

STARTING, QUEUED, ADMISSION, PREEMPTED = "starting", "queued", "admission", "preempted"
RECOMPUTE, PREFILL, DECODE = "recompute", "prefill", "decode"
REASONS = (STARTING, QUEUED, ADMISSION, PREEMPTED, RECOMPUTE, PREFILL, DECODE)
"""``starting``: it waited for nobody, only for the engine's next step or for its grammar.
``queued``: behind the calls of ``by``. ``admission``: it was kept out, while ``by`` used the cache.
``preempted``: it had to stop for ``by``. ``recompute``: tokens that its program had computed
before, whose blocks ``by`` took. ``prefill``: other tokens before its next output. ``decode``: its
output."""
FEW, MOST = 3, 48
"""So many programs are named of those that ran as a call came, and of those that began since; so
many spans of a call are kept, and what comes after that is added to the last of its reason."""


class Cause(NamedTuple):
    """A program that made a call wait, and how it stood then: its call's queue ``level``, and the
    service that it had attained (seconds). A ``program`` in parentheses is none, but what happened.
    """

    program: str
    level: int = 0
    attained_s: float = 0.0


class Span(NamedTuple):
    """``seconds`` of a call, for one ``reason``, caused ``by`` a few programs. The call was at
    ``level`` of the queue as it began, and its program had attained ``attained_s`` then. In a
    ``recompute`` or a ``prefill`` so many prompt ``tokens`` were computed, in a ``decode`` those of
    the output.
    """

    reason: str
    seconds: float
    level: int = 0
    attained_s: float = 0.0
    tokens: int = 0
    by: tuple[Cause, ...] = ()


def read_spans(values: Iterable[Sequence[Any]]) -> list[Span]:
    """A report's ``spans``. Raises `TypeError` or `ValueError` for what is no list of them."""
    spans = []
    for reason, seconds, level, attained_s, tokens, by in values:
        causes = tuple(Cause(*cause) for cause in by)
        spans.append(Span(reason, seconds, level, attained_s, tokens, causes))
    return spans
