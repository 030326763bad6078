"""The interrupts of threads that wait for an answer, as the database has them, and a timer for the
nearest time at which one is over.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

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


def deadline_of(interrupt: Mapping[str, Any]) -> float | None:
    """Until when a program waits for the answer (seconds since 1970), if not for ever."""
    value = interrupt["value"]
    until = value.get("expires_at") if isinstance(value, dict) else None
    return until if isinstance(until, int | float) else None


class Deadlines:
    """The nearest deadline that is known. Each question that is stored is noted."""

    def __init__(self) -> None:
        self._nearest = math.inf
        self._nearer = asyncio.Event()

    def note(self, until: float | None) -> None:
        """A question may be answered until then (seconds since 1970)."""
        if until is not None and until < self._nearest:
            self._nearest = until
            self._nearer.set()

    def forget(self) -> None:
        """From now on only what is noted counts."""
        self._nearest = math.inf
        self._nearer.clear()

    async def wait(self, most_s: float) -> None:
        """Wait for the nearest deadline, until a nearer one is noted, or for ``most_s`` seconds:
        the clock that deadlines are told by may be set meanwhile.
        """
        left = min(self._nearest - time.time(), most_s)
        self._nearer.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, left)):
                await self._nearer.wait()
