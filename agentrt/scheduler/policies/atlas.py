"""ATLAS: a call ranks by the longest path of service in its program's DAG.

Source: Agentix, §4.2.1, Eq. 2. `Atlas` is exact: the path that leads to this very call,
from its true parents. `AtlasScalar` is the paper's approximation, the longest path that
was seen anywhere in the program, which needs no edges.
"""

from __future__ import annotations

from typing import ClassVar

from agentrt.scheduler.policies.base import AttainedService
from agentrt.scheduler.table import ProgramRow


class Atlas(AttainedService):
    """Adaptive thread-level attained service by Eq. 2; the scalar where edges are unknown."""

    name: ClassVar[str] = "atlas"

    def rank(self, program: ProgramRow, path_s: float | None) -> float:
        return program.path_s if path_s is None else path_s


class AtlasScalar(AttainedService):
    """Adaptive thread-level attained service by one scalar per program."""

    name: ClassVar[str] = "atlas-scalar"

    def rank(self, program: ProgramRow, path_s: float | None) -> float:
        return program.path_s
