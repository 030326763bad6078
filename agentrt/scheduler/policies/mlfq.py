"""MLFQ: every call starts in Q_1 and sinks as it is served, whatever its program did.

Source: the call-level multi-level feedback queue that Agentix compares with (§3.1, §6).
"""

from __future__ import annotations

from typing import ClassVar

from agentrt.scheduler.policies.base import AttainedService
from agentrt.scheduler.table import ProgramRow


class Mlfq(AttainedService):
    """Call-level multi-level feedback queue: blind to programs."""

    name: ClassVar[str] = "mlfq"

    def rank(self, program: ProgramRow, path_s: float | None) -> float:
        return 0.0
