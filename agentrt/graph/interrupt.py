"""Interrupts: the details of a node that is a tool, a question or an event, and its progress.

An interrupt has the state of its node: waiting (for a free worker), running, possibly with progress
reports and new attempts, and then done, failed, cancelled, or expired (its deadline has passed).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress that an interrupt reports: ``done`` of ``total`` (None if unknown), in a unit of
    its own, and a message for people.
    """

    done: float
    total: float | None = None
    message: str = ""

    def __str__(self) -> str:
        of = "" if self.total is None else f"/{self.total:g}"
        return f"{self.done:g}{of} {self.message}".rstrip()


@dataclass(slots=True)
class Interrupt:
    """The details of an interrupt: of a node that is a tool, a question or an event.

    ``transport`` names what runs the interrupt: ``thread``, ``process``, ``mcp:SERVER``, ``mqtt``,
    ``human`` or ``event``. ``arguments`` are its arguments, if they are known as a JSON object.
    ``deadline`` is a time in seconds on the clock of the program's DAG. ``key`` is the same for all
    attempts, so that a receiver recognizes a repeated attempt. ``attempt`` is the number of the
    current attempt, from 1 on.
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
