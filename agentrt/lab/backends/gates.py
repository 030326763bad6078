"""Gates in front of an engine that hold back calls of programs, as a proxy would.

A gate sees requests and their ends only.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import ClassVar


class Gate(ABC):
    """Decides which programs may call the engine."""

    every_s: ClassVar[float] = math.inf
    """Seconds between two calls of `tick`."""

    @abstractmethod
    def called(self, program_id: str, tokens: int, now: float) -> bool:
        """Return whether a call may go to the engine now. ``tokens`` is its prompt's length."""

    def answered(self, program_id: str, tokens: int, now: float) -> None:  # noqa: B027  # optional
        """Handle the end of a call. ``tokens`` is the length of its prompt and output."""

    @abstractmethod
    def ended(self, program_id: str) -> Iterable[str]:
        """Handle the end of a program, and return the programs whose calls may go now."""

    def tick(self, now: float) -> Iterable[str]:
        """Return the programs whose calls may go now, because time has passed."""
        return ()
