"""Interrupts: what a program does outside the engine, such as calls of tools and questions to
humans.

`tool` has `Tool`, the `@tool` decorator, and `ToolTransport`, the interface by which tools are run
(`local`: in a thread; `process`: in a process; MCP and MQTT are in `agentrt.integrations`).
`toolbox` has all tools that a runtime can reach. `attempts` runs a call of a tool, with checks,
timeouts and retries. `questions` has the questions to humans, `answers` the form of their answers,
and `events` the events that programs wait for. `agentrt.graph.interrupt` has the values that the
DAG keeps of an interrupt.
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
