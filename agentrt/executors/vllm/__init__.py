"""vLLM, embedded: the engine, our scheduler inside its core, and the default model.

`ProgramScheduler` loads on first use: it imports vLLM.
"""

from __future__ import annotations

from typing import Any

__all__ = ["ProgramScheduler"]


def __getattr__(name: str) -> Any:
    if name != "ProgramScheduler":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from agentrt.executors.vllm.scheduler import ProgramScheduler

    return ProgramScheduler
