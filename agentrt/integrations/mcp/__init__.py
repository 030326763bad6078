"""Tools of MCP servers. `config` reads the file of servers, `tools` runs their tools, and
`connection` keeps a connection to a server open in a task of its own.
"""

from __future__ import annotations

from agentrt.integrations.mcp.config import HttpServer, Server, StdioServer, read_servers

__all__ = ["HttpServer", "Server", "StdioServer", "read_servers"]
