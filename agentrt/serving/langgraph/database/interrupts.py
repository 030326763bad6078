"""The interrupts of threads that wait for an answer, as the database has them, and a timer for the
nearest time at which one is over.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from agentrt.steady import SteadyClock

INTERRUPT_ID = re.compile("[0-9a-f]{32}")
"""By such keys LangGraph knows a map from interrupts to answers."""
EXPIRED = {"agentrt": "expired"}
"""What a program's question is answered with when its time is over."""


def is_answer_map(resume: Any) -> bool:
    """Whether a command's ``resume`` has answers by the ids of interrupts."""
    return isinstance(resume, dict) and all(map(INTERRUPT_ID.fullmatch, resume))


def interrupts_in(by_task: Mapping[str, Any] | None) -> Iterator[Mapping[str, Any]]:
    """The interrupts of a thread's row, which has them by their tasks."""
    for interrupts in (by_task or {}).values():
        yield from interrupts


def is_open(
    interrupt_id: str, by_task: Mapping[str, Any] | None, active: Iterable[Mapping[str, Any]]
) -> bool:
    """Whether an interrupt of a thread's row still waits for an answer.

    ``active`` has the kwargs of the thread's runs that have not ended: one of them may answer
    it, or begin anew without an answer.
    """
    if all(one["id"] != interrupt_id for one in interrupts_in(by_task)):
        return False
    return not any(_closes(kwargs, interrupt_id) for kwargs in active)


def _closes(kwargs: Mapping[str, Any], interrupt_id: str) -> bool:
    resume = (kwargs.get("command") or {}).get("resume")
    return resume is None or not is_answer_map(resume) or interrupt_id in resume


# -- when questions are over their time ----------------------------------------------------


def deadline_for(seconds: float, clock: SteadyClock) -> dict[str, float]:
    """What a program's question says to its client that expires in so many seconds: when that is,
    by the time of day as it is set now; and how far that is ahead of the ``clock``, if it is.
    """
    until = {"expires_at": clock.time_of_day(clock.now() + seconds)}
    return {**until, "clock_shift": clock.shift} if clock.shift else until


def deadline_of(interrupt: Mapping[str, Any]) -> float | None:
    """Until when a program waits for the answer (seconds of the database's clock), if not for
    ever.
    """
    value = interrupt["value"]
    said = value if isinstance(value, dict) else {}
    until, shift = said.get("expires_at"), said.get("clock_shift", 0.0)
    if isinstance(until, int | float) and isinstance(shift, int | float):
        return until - shift
    return None


class Deadlines:
    """The nearest deadline that is known, by a ``clock``. Each question that is stored is noted."""

    def __init__(self, clock: SteadyClock | None = None) -> None:
        self._clock = SteadyClock.of_loop() if clock is None else clock
        self._nearest = math.inf
        self._nearer = asyncio.Event()

    def note(self, until: float | None) -> None:
        """A question may be answered until then."""
        if until is not None and until < self._nearest:
            self._nearest = until
            self._nearer.set()

    def forget(self) -> None:
        """From now on only what is noted counts."""
        self._nearest = math.inf
        self._nearer.clear()

    async def wait(self, most_s: float) -> None:
        """Wait for the nearest deadline, until a nearer one is noted, or for ``most_s`` seconds at
        the most.
        """
        clock, until = self._clock, self._clock.now() + most_s
        self._nearer.clear()
        while (left := min(self._nearest, until) - clock.now()) > 0 and not self._nearer.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(left, clock.look_s)):
                    await self._nearer.wait()
