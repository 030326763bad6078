"""Embedded vLLM: the engine, agentrt's scheduler inside its core, and the default model.

`ProgramScheduler` is imported on first use, because its module imports vLLM.
"""

from __future__ import annotations

from typing import Any

__all__ = ["ProgramScheduler"]


def __getattr__(name: str) -> Any:
    if name != "ProgramScheduler":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from agentrt.executors.vllm.engine_core.scheduler import ProgramScheduler

    return ProgramScheduler
