"""Interrupts: calls of tools, questions to humans, and waits for events, during which a program is
outside the engine.

- `tool` has `Tool`, the decorator `@tool`, and `ToolTransport`, the interface of code that runs
  tools.
- `local` runs tools in threads, and `process` in worker processes. `agentrt.integrations` has the
  transports for MCP and MQTT.
- `toolbox` has all tools that a runtime can reach.
- `attempts` runs a call of a tool, with checks, timeouts and retries.
- `questions` has the questions to humans, and `answers` the form of their answers.
- `events` has the events that programs wait for.

`agentrt.graph.interrupt` has the values that the DAG keeps of an interrupt.
"""

from __future__ import annotations

from agentrt.graph import Progress
from agentrt.interrupts.context import ToolContext
from agentrt.interrupts.events import Event
from agentrt.interrupts.tool import Tool, ToolOptions, ToolRequest, ToolTransport, tool

__all__ = [
    "Event",
    "Progress",
    "Tool",
    "ToolContext",
    "ToolOptions",
    "ToolRequest",
    "ToolTransport",
    "tool",
]
