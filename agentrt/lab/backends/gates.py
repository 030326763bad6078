"""What may stand before an engine and hold programs' calls back, as a proxy does.

It sees requests and their ends only.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import ClassVar


class Gate(ABC):
    """Says which programs may call the engine now."""

    every_s: ClassVar[float] = math.inf
    """How often `tick` wants to be asked, in seconds."""

    @abstractmethod
    def called(self, program_id: str, tokens: int, now: float) -> bool:
        """A program makes a call with a prompt of so many tokens: whether it may go now."""

    def answered(self, program_id: str, tokens: int, now: float) -> None:  # noqa: B027  # most count programs
        """A call ended, with so many tokens of prompt and output."""

    @abstractmethod
    def ended(self, program_id: str) -> Iterable[str]:
        """A program ended. The programs whose calls may go now."""

    def tick(self, now: float) -> Iterable[str]:
        """Time has passed. The programs whose calls may go now."""
        return ()
