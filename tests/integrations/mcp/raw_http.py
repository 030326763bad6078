"""A server over HTTP for tests that speaks the protocol by itself, so that it can speak it badly.

It has sessions, and answers in JSON, one request after the other on each connection.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Exchange:
    """A request of the client. ``method`` is that of MCP, or else that of HTTP."""

    method: str
    message: dict[str, Any]
    session: str | None
    writer: asyncio.StreamWriter

    def send(
        self, status: int, body: bytes = b"", *headers: str, length: int | None = None
    ) -> None:
        """Send a response, whose body may be shorter than its headers say."""
        size = len(body) if length is None else length
        lines = [f"HTTP/1.1 {status} Status", f"content-length: {size}", *headers, "", ""]
        self.writer.write("\r\n".join(lines).encode() + body)
        if size > len(body):
            self.writer.close()

    def send_json(self, value: Any, status: int = 200, *headers: str) -> None:
        self.send(status, json.dumps(value).encode(), "content-type: application/json", *headers)

    def answer(self, result: Any, *headers: str) -> None:
        self.send_json(
            {"jsonrpc": "2.0", "id": self.message["id"], "result": result}, 200, *headers
        )

    def refuse(self, code: int, message: str, status: int = 200) -> None:
        error = {"code": code, "message": message}
        self.send_json({"jsonrpc": "2.0", "id": self.message["id"], "error": error}, status)

    @property
    def tool(self) -> str:
        return str(self.message["params"]["name"])


@dataclass
class RawHttp:
    """``instead`` maps a method to what the server does in place of its usual answer."""

    url: str = ""
    tools: tuple[str, ...] = ("good", "bad")
    instead: dict[str, Callable[[Exchange], Awaitable[None]]] = field(default_factory=dict)
    heard: list[str] = field(default_factory=list)
    sessions: list[str] = field(default_factory=list)

    async def handle(self, exchange: Exchange) -> None:
        self.heard.append(exchange.method)
        if (instead := self.instead.get(exchange.method)) is not None:
            await instead(exchange)
        else:
            self.usual(exchange)

    def usual(self, exchange: Exchange) -> None:
        match exchange.method:
            case "initialize":
                self.sessions.append(f"session-{len(self.sessions)}")
                info = {"name": "raw", "version": "1"}
                version = {"protocolVersion": "2025-03-26", "capabilities": {"tools": {}}}
                exchange.answer(
                    version | {"serverInfo": info}, f"mcp-session-id: {self.sessions[-1]}"
                )
            case "tools/list":
                tools = [{"name": name, "inputSchema": {"type": "object"}} for name in self.tools]
                exchange.answer({"tools": tools})
            case "tools/call":
                exchange.answer({"content": [{"type": "text", "text": f"of {exchange.session}"}]})
            case "GET":
                exchange.send(405)
            case "server/discover":
                exchange.refuse(-32601, "unknown method", 400)
            case _:
                exchange.send(202)


async def never(exchange: Exchange) -> None:
    """Leave a request unanswered."""
    await asyncio.Event().wait()


@asynccontextmanager
async def raw_http() -> AsyncIterator[RawHttp]:
    server, tasks = RawHttp(), set[asyncio.Task[Any]]()

    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        with suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            while not writer.is_closing():
                lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                headers = {
                    name.lower(): value
                    for name, _, value in (line.partition(": ") for line in lines)
                }
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                message = json.loads(body) if body else {}
                method = message.get("method") or lines[0].split(" ")[0]
                session = headers.get("mcp-session-id")
                await server.handle(Exchange(method, message, session, writer))
                await writer.drain()
        writer.close()

    listener = await asyncio.start_server(converse, "127.0.0.1", 0)
    async with listener:
        server.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/mcp"
        yield server
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
