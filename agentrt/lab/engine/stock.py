"""An embedded engine that keeps vLLM's own scheduler: what there is to compare with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from agentrt.errors import ConfigError
from agentrt.executors.boundary import Boundary
from agentrt.executors.vllm.engine import VLLMEngine
from agentrt.request import CallReport
from agentrt.scheduler.config import SchedulerConfig
from agentrt.scheduler.totals import ProgramTotals

if TYPE_CHECKING:
    from vllm.config import VllmConfig

_MODULE = "agentrt.lab.engine.own_classes"


class StockEngine(VLLMEngine):
    """vLLM without our scheduler, with options whose ``stock`` names its policy.

    It knows no programs, so it can be told of none; a call's ``priority`` is all that it
    looks at, under the policy ``priority``.
    """

    def _prepare(self, config: VllmConfig) -> None:
        # The class that vLLM chose itself, by a name that brings the probe with it.
        chosen = config.scheduler_config.get_scheduler_cls()
        config.scheduler_config.scheduler_cls = f"{_MODULE}.{chosen.__name__}"

    async def configure(self, config: SchedulerConfig) -> None:
        raise ConfigError("vLLM's own scheduler has no settings of ours")

    async def aborted(self, call_id: str) -> CallReport:
        return CallReport()

    async def end_program(self, program_id: str, totals: ProgramTotals | None = None) -> None:
        """Nothing to forget."""

    def boundary(self, note: Boundary) -> None:
        """Nobody to tell."""

    def learn(self, totals: ProgramTotals) -> None:
        """Nobody who learns."""

    def teach(self, learned: Mapping[str, Any]) -> None:
        """Nobody who learns."""

    async def snapshot(self) -> Mapping[str, Any]:
        return {}
