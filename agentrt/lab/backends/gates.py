"""Gates, which hold back calls of programs before they reach an engine, as a proxy would.

A gate only knows the requests and their ends, and not the state of the engine.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import ClassVar


class Gate(ABC):
    """A gate, which decides which programs may call the engine."""

    every_s: ClassVar[float] = math.inf
    """Seconds between two calls of `tick`."""

    @abstractmethod
    def called(self, program_id: str, tokens: int, now: float) -> bool:
        """Return whether a call with a prompt of ``tokens`` tokens may go to the engine now."""

    def answered(self, program_id: str, tokens: int, now: float) -> None:  # noqa: B027  # optional
        """Handle the end of a call. ``tokens`` is the length of the prompt and the output."""

    @abstractmethod
    def ended(self, program_id: str) -> Iterable[str]:
        """Handle the end of a program, and return the programs whose calls may run from now on."""

    def tick(self, now: float) -> Iterable[str]:
        """Return the programs whose calls may run from now on. Called every ``every_s`` seconds."""
        return ()
