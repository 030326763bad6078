"""Interrupts: the details and the progress of a node that is a tool, a question or an event.

The state of an interrupt is the state of its node. An interrupt may wait for a free worker. Then it
runs, possibly with progress reports and new attempts. At its end, it is done, failed, cancelled,
expired (its deadline has passed), or interrupted. Only a question to a human can be interrupted: by
its program, which is parked or returns while the question is open.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress that an interrupt reports: ``done`` of ``total`` (None if unknown), in any unit,
    and a message for people.
    """

    done: float
    total: float | None = None
    message: str = ""

    def __str__(self) -> str:
        of = "" if self.total is None else f"/{self.total:g}"
        return f"{self.done:g}{of} {self.message}".rstrip()


@dataclass(slots=True)
class Interrupt:
    """The details of an interrupt, which is a node that is a tool, a question or an event.

    ``transport`` is the name of the transport or source of the interrupt: ``thread``, ``process``,
    ``mcp:SERVER``, ``mqtt``, ``human``, ``event`` or ``clock``. ``arguments`` are the arguments of
    a tool if it takes them by name. ``deadline`` is a time in seconds on the clock of the program's
    DAG. ``key`` is the same for all attempts, so that a receiver recognizes a repeated attempt.
    ``attempt`` is the number of the current attempt, from 1 on.
    """

    transport: str
    arguments: Mapping[str, Any] | None = None
    deadline: float | None = None
    key: str = ""
    attempt: int = 0
    progress: Progress | None = None

    def __str__(self) -> str:
        """Return the attempt and the progress for people; "" for a first attempt without
        progress.
        """
        attempt = f"attempt {self.attempt}" if self.attempt > 1 else ""
        return ", ".join(part for part in (attempt, str(self.progress or "")) if part)
