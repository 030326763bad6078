"""Executors that learn from programs, and can be told of those that others had."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from agentrt.scheduler.totals import ProgramTotals


@runtime_checkable
class Learns(Protocol):
    """An executor that wants to be told. What it is told, it learns in that order."""

    def learn(self, totals: ProgramTotals) -> None:
        """A program ended that it had no call of. It must be quick, and does not raise."""

    def teach(self, learned: Mapping[str, Any]) -> None:
        """Know this in place of what was learned (`Memory.learned`). As quick."""
