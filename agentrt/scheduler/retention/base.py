"""What a retention policy answers: whose cached blocks go first when memory is short."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from agentrt.scheduler.config import SchedulerConfig
from agentrt.scheduler.retention.context import Context
from agentrt.scheduler.retention.gaps import Gaps

Rank = tuple[float, ...]


class Retention(ABC):
    """Ranks contexts. It gets plain values, cannot change them, and reads no clock."""

    name: ClassVar[str]
    expires: ClassVar[bool] = False
    """Whether `expired` is ever true, of the context of least rank first."""

    def __init__(self, config: SchedulerConfig) -> None:
        self.config = config

    @property
    def gaps(self) -> Gaps | None:
        """What it learned of gaps; None for a policy that learns nothing."""
        return None

    @abstractmethod
    def rank(self, context: Context, now: float, peers: int) -> Rank:
        """The least rank loses its blocks first. Ranks of one policy have one length.

        ``peers`` are the live contexts of the same type.
        """

    def expired(self, context: Context, now: float) -> bool:
        """Whether the context is no longer protected, and as good as any other block."""
        return False

    def expects(self, context: Context, now: float) -> bool:
        """Whether a new call should rather wait than take this context's blocks."""
        return False

    def gap_ended(self, context: Context, seconds: float, *, returned: bool) -> None:
        """What the context waited for is over, or its program is: ``seconds`` after it began."""
        return
