"""Where programs find tools beside their own functions: what the command line says of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentrt.integrations.mcp import Server
    from agentrt.interrupts import ToolTransport


@dataclass(frozen=True, slots=True)
class ToolSources:
    """Who offers tools: ``mcp`` are MCP servers."""

    mcp: Sequence[Server] = ()

    def transports(self, tell: Callable[[str], None]) -> list[ToolTransport]:
        """The transports to them; ``tell`` gets a line when one is lost, or comes back."""
        if not self.mcp:
            return []
        from agentrt.integrations.mcp.transport import McpTransport

        return [McpTransport(server, tell) for server in self.mcp]


NO_TOOLS = ToolSources()


def read_tools(options: Mapping[str, Any]) -> ToolSources:
    """What the options of a command say. Raises `UsageError` for what cannot be."""
    if not options["mcp_files"]:
        return NO_TOOLS
    from agentrt.integrations.mcp import read_servers

    return ToolSources(mcp=read_servers(options["mcp_files"]))
