"""Tools of MCP servers: `config` reads the file that names the servers, `transport` runs their
tools, over a `connection` that is kept open by a task of its own.
"""

from __future__ import annotations

from agentrt.integrations.mcp.config import HttpServer, Server, StdioServer, read_servers

__all__ = ["HttpServer", "Server", "StdioServer", "read_servers"]
