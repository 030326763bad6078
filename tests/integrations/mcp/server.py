"""A server of the official SDK for tests: ``stdio`` or ``http PORT``.

Over HTTP it says its port on stdout (0 is any). It speaks both generations of the protocol.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Annotated, Any

from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.elicitation import AcceptedElicitation, ElicitationResult
from mcp.server.mcpserver import Context, Image, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.resolve import Elicit, Resolve
from mcp.types import CallToolResult, ResourceLink, TextContent, ToolAnnotations
from pydantic import BaseModel

SAFE = ToolAnnotations(idempotent_hint=True)
server = MCPServer("things", log_level="ERROR")


def mark(folder: str, what: str) -> None:
    Path(folder, what).touch()


def has(folder: str, what: str) -> bool:
    return Path(folder, what).exists()


class Sum(BaseModel):
    total: int


class Size(BaseModel):
    centimetres: int


@server.tool()
def add(a: int, b: int) -> Sum:
    """Add two numbers."""
    return Sum(total=a + b)


@server.tool()
def hold(timeout: int, after: str) -> str:
    """Hold for so many seconds after a time of day."""
    return f"{timeout} s after {after}"


@server.tool(structured_output=False)
def say(words: list[str]) -> list[str]:
    """Say words, each as a part of its own."""
    return words


@server.tool(name="draw.dot", structured_output=False)
def draw() -> list[Any]:
    """A picture and its title."""
    return ["a dot", Image(data=b"dot", format="png")]


@server.tool()
async def climb(steps: int, ctx: Context[Any, Any]) -> str:
    """Tell of each step."""
    for step in range(1, steps + 1):
        await ctx.report_progress(step, steps, f"step {step}")
    return "up"


@server.tool()
def fail() -> str:
    """Fail."""
    raise ToolError("the drawer is stuck")


@server.tool()
def large(size: int) -> str:
    """So many letters."""
    return "x" * size


@server.tool()
async def wait(marks: str) -> str:
    """Wait until cancelled; ``marks`` is a folder that hears of it."""
    mark(marks, "began")
    try:
        await asyncio.Event().wait()
    finally:
        mark(marks, "cancelled")
    return ""


@server.tool()
async def die(marks: str) -> str:
    """Kill the server."""
    mark(marks, "died")
    os.kill(os.getpid(), signal.SIGKILL)
    return ""


@server.tool(annotations=SAFE)
async def die_once(marks: str) -> str:
    """Kill the server, the first time."""
    return "alive" if has(marks, "died") else await die(marks)


async def ask_size(thing: str) -> Elicit[Size]:
    return Elicit(f"How large is the {thing}?", Size)


@server.tool()
async def cut(thing: str, size: Annotated[ElicitationResult[Size], Resolve(ask_size)]) -> str:
    """Cut a thing to the size that a human says."""
    if isinstance(size, AcceptedElicitation):
        return f"{thing}: {size.data.centimetres} cm"
    return f"{thing}: {size.action}"


@server.tool()
def hide() -> str:
    """Offer ``hidden`` no more."""
    server.remove_tool("hidden")
    return "gone"


@server.tool()
def hidden() -> str:
    """Seen until it is hidden."""
    return "here"


@server.tool()
def lie() -> Sum:
    """Give what its schema does not have: see `lying`."""
    return Sum(total=0)


@server.tool()
def tabulate(size: int) -> CallToolResult:
    """A table of so many characters, and a short text beside it."""
    text = TextContent(type="text", text="ok")
    return CallToolResult(content=[text], structured_content={"cells": "x" * size})


@server.tool()
def link(size: int) -> CallToolResult:
    """A link with a description of so many characters."""
    about = ResourceLink(
        type="resource_link", name="page", uri="https://example.org", description="x" * size
    )
    return CallToolResult(content=[about])


async def lying(ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
    result = await call_next(ctx)
    if ctx.method == "tools/call" and (ctx.params or {}).get("name") == "lie":
        return CallToolResult(content=[], structured_content={"total": "many"})
    return result


server.middleware.append(lying)


def serve_http(port: int) -> None:
    import uvicorn  # not for stdio, where the start is waited for

    listener = socket.create_server(("127.0.0.1", port))
    sys.stdout.write(f"{listener.getsockname()[1]}\n")
    sys.stdout.flush()
    config = uvicorn.Config(server.streamable_http_app(), log_level="error")
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    if sys.argv[1] == "http":
        serve_http(int(sys.argv[2]))
    else:
        sys.stderr.write("server of things\n")
        server.run("stdio")
