"""The former place of `agentrt.executors.vllm.ProgramScheduler`, until version 0.4."""

from __future__ import annotations

from agentrt.executors.vllm.engine_core.scheduler import ProgramScheduler
from agentrt.former import warn_of_former_place

__all__ = ["ProgramScheduler"]

warn_of_former_place(__name__, "ProgramScheduler", now="agentrt.executors.vllm")
