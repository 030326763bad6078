"""FCFS: calls run in the order of their arrival, as stock vLLM does."""

from __future__ import annotations

from typing import ClassVar

from agentrt.scheduler.table import ProgramRow


class Fcfs:
    """First come, first served. No levels, no preemption for a batch slot."""

    name: ClassVar[str] = "fcfs"
    levelled: ClassVar[bool] = False

    def rank(self, program: ProgramRow, path_s: float | None) -> float:
        return 0.0
