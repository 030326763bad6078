"""The open interrupts of threads, as they are stored in the database, and a timer for the nearest
deadline of an answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeGuard

from agentrt.steady import SteadyClock

INTERRUPT_ID = re.compile("[0-9a-f]{32}")
"""The form of an interrupt's id. If all keys of a dict have this form, LangGraph treats the dict as
a map from interrupts to answers.
"""
EXPIRED = {"agentrt": "expired"}
"""The answer that a program's question gets when its deadline passes."""


def is_answer_map(resume: Any) -> TypeGuard[dict[str, Any]]:
    """Return whether a command's ``resume`` maps ids of interrupts to answers."""
    return isinstance(resume, dict) and all(map(INTERRUPT_ID.fullmatch, resume))


def interrupts_in(by_task: Mapping[str, Any] | None) -> Iterator[Mapping[str, Any]]:
    """Yield the interrupts of a thread's row, which stores them by task."""
    for interrupts in (by_task or {}).values():
        yield from interrupts


def is_open(
    interrupt_id: str, by_task: Mapping[str, Any] | None, active: Iterable[Mapping[str, Any]]
) -> bool:
    """Return whether an interrupt still waits for an answer.

    ``by_task`` is the column ``interrupts`` of the thread's row. ``active`` has the kwargs of the
    thread's unfinished runs: such a run may answer the interrupt, or start the graph anew.
    """
    if all(interrupt["id"] != interrupt_id for interrupt in interrupts_in(by_task)):
        return False
    return not any(_closes(kwargs, interrupt_id) for kwargs in active)


def _closes(kwargs: Mapping[str, Any], interrupt_id: str) -> bool:
    resume = (kwargs.get("command") or {}).get("resume")
    return resume is None or not is_answer_map(resume) or interrupt_id in resume


# -- deadlines of questions ----------------------------------------------------------------


def deadline_for(seconds: float, clock: SteadyClock) -> dict[str, float]:
    """Return the fields of a question that expires ``seconds`` from now.

    ``expires_at`` is the deadline in seconds since 1970, as the system clock is set now.
    ``clock_shift`` says how many seconds the system clock is ahead of ``clock``; the field is left
    out if the two agree.
    """
    fields = {"expires_at": clock.time_of_day(clock.now() + seconds)}
    return {**fields, "clock_shift": clock.shift} if clock.shift else fields


def deadline_of(interrupt: Mapping[str, Any]) -> float | None:
    """Return the deadline of an interrupt's answer, in seconds of the database's clock; None if the
    program waits without a limit.
    """
    value = interrupt["value"]
    fields = value if isinstance(value, dict) else {}
    expires_at, shift = fields.get("expires_at"), fields.get("clock_shift", 0.0)
    if isinstance(expires_at, int | float) and isinstance(shift, int | float):
        return expires_at - shift
    return None


class Deadlines:
    """A timer for the nearest deadline of a question, in seconds of ``clock``. The deadline of each
    question is noted when the question is stored.
    """

    def __init__(self, clock: SteadyClock | None = None) -> None:
        self._clock = SteadyClock.of_loop() if clock is None else clock
        self._nearest = math.inf
        self._nearer = asyncio.Event()

    def note(self, until: float | None) -> None:
        """Note the deadline of a question; None means no deadline."""
        if until is not None and until < self._nearest:
            self._nearest = until
            self._nearer.set()

    def forget(self) -> None:
        """Forget all deadlines that were noted so far."""
        self._nearest = math.inf
        self._nearer.clear()

    async def wait(self, limit_s: float) -> None:
        """Wait until the nearest deadline, until a nearer deadline is noted, or for ``limit_s``
        seconds, whichever comes first.
        """
        clock, until = self._clock, self._clock.now() + limit_s
        self._nearer.clear()
        while (left := min(self._nearest, until) - clock.now()) > 0 and not self._nearer.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(left, clock.look_s)):
                    await self._nearer.wait()
