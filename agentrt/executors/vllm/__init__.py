"""Embedded vLLM: the engine, agentrt's scheduler inside its core, and the default model.

- In the user's process: `engine`, `options`, `calls` and the modules beside them, and `entrypoints`
  (vLLM's front end on our engines).
- In the process of vLLM's engine core: `engine_core`, which has the scheduler, and `compiling`
  (grammars).
- In both: `processes`, `turns`, `logprobs`, and `reports` (the core writes what the client reads).
- `_compat` has all uses of vLLM's internals.

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
