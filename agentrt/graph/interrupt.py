"""What an interrupt asks for and how far it has come: the details of a node that is no call.

Its states are those of its node: waiting (for a free worker), running, with progress or a new
attempt in between, then one end: done, failed, cancelled, or expired (past its deadline).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Progress:
    """How far an interrupt says that it is: ``done`` of ``total`` (None: unknown), in its own
    unit, and a few words for people.
    """

    done: float
    total: float | None = None
    message: str = ""

    def __str__(self) -> str:
        of = "" if self.total is None else f"/{self.total:g}"
        return f"{self.done:g}{of} {self.message}".rstrip()


@dataclass(slots=True)
class Interrupt:
    """What was asked, and of whom.

    ``transport`` says who does the work: ``thread``, ``process``, ``mcp:SERVER``, ``mqtt``,
    ``human``, ``event``. ``arguments`` is a JSON object, where it is known to be one.
    ``deadline`` is seconds on the clock of the DAG. ``key`` is the same for all attempts, so that
    whoever gets two of them can tell that they are one. ``attempt`` counts from 1: the one that
    runs, or waits.
    """

    transport: str
    arguments: Mapping[str, Any] | None = None
    deadline: float | None = None
    key: str = ""
    attempt: int = 0
    progress: Progress | None = None

    def __str__(self) -> str:
        """How far it is, for people: nothing in a first attempt that tells nothing."""
        attempt = f"attempt {self.attempt}" if self.attempt > 1 else ""
        return ", ".join(part for part in (attempt, str(self.progress or "")) if part)
