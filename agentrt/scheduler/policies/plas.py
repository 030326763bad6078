"""PLAS: a call ranks by the service that its program's completed calls had, summed.

Source: Agentix, §4.2.1, Eq. 1.
"""

from __future__ import annotations

from typing import ClassVar

from agentrt.scheduler.policies.base import AttainedService
from agentrt.scheduler.table import ProgramRow


class Plas(AttainedService):
    """Program-level attained service."""

    name: ClassVar[str] = "plas"

    @classmethod
    def admission_rank(cls, path_s: float | None, program_service_s: float) -> float:
        return program_service_s

    def rank(self, program: ProgramRow, path_s: float | None) -> float:
        return program.service_s
