"""agentrt: run agent programs on embedded vLLM engines, and schedule all calls of a program
together.

Importing this package is fast: most public names are imported on first use, because the engine core
imports `agentrt.scheduler` and the command line must answer at once.
"""

from __future__ import annotations

import sys

try:
    from importlib import import_module
    from typing import TYPE_CHECKING, Any

    # Import these names now. Importing the module agentrt.program later, as the runtime does, would
    # bind the name `program` to the module; the decorator must replace it.
    from agentrt.program import Context, node, program
except KeyboardInterrupt:
    # The agentrt command imports this module before its own code, so Ctrl+C during the import must
    # end the command without a traceback. "-m" stands for `python -m agentrt.cli`.
    if sys.argv[0] == "-m" or sys.argv[0].endswith("/agentrt"):
        raise SystemExit(130) from None
    raise
except ModuleNotFoundError as error:
    if error.name != "agentrt.program":  # agentrt-scheduler does not contain it
        raise

__version__ = "0.2.0"

if TYPE_CHECKING:
    from agentrt.batch import score
    from agentrt.errors import AgentrtError, ProgramError
    from agentrt.interrupts import Event, Progress, Tool, ToolContext, tool
    from agentrt.request import Reply, ToolCall
    from agentrt.runtime import Runtime
    from agentrt.scheduler.config import SchedulerConfig

_NOT_IN_SCHEDULER = (
    "agentrt.batch",
    "agentrt.interrupts",
    "agentrt.program",
    "agentrt.runtime",
)
"""Packages with public names that the distribution agentrt-scheduler does not contain."""
_HOMES = {
    "AgentrtError": "agentrt.errors",
    "Context": "agentrt.program",
    "ProgramError": "agentrt.errors",
    "Event": "agentrt.interrupts",
    "Progress": "agentrt.interrupts",
    "Reply": "agentrt.request",
    "Runtime": "agentrt.runtime",
    "SchedulerConfig": "agentrt.scheduler.config",
    "Tool": "agentrt.interrupts",
    "ToolCall": "agentrt.request",
    "ToolContext": "agentrt.interrupts",
    "node": "agentrt.program",
    "program": "agentrt.program",
    "score": "agentrt.batch",
    "tool": "agentrt.interrupts",
}

__all__ = [
    "AgentrtError",
    "Context",
    "Event",
    "ProgramError",
    "Progress",
    "Reply",
    "Runtime",
    "SchedulerConfig",
    "Tool",
    "ToolCall",
    "ToolContext",
    "__version__",
    "node",
    "program",
    "score",
    "tool",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'agentrt' has no attribute {name!r}")
    try:
        value = getattr(import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        if error.name not in _NOT_IN_SCHEDULER:
            raise
        raise ImportError(
            f"agentrt.{name} is not part of agentrt-scheduler, which is for 'vllm serve' only; "
            "run: pip uninstall agentrt-scheduler; pip install . in a checkout of agentrt"
        ) from error
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
