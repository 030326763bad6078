"""Interrupts: what a program does outside the engine, and who does it for it.

`tool` has `Tool`, the `@tool` decorator, and `ToolTransport`, the seam behind which tools run
(`local`: in a thread; `process`: in a process; MCP and MQTT are in `agentrt.integrations`).
`toolbox` has all tools that a runtime can reach. `attempts` carries one call of a tool through:
checks, time, retries. `questions` has what humans are asked, `answers` what they may answer,
`events` what programs wait for. What the DAG keeps of an interrupt is in `agentrt.graph.interrupt`.
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
