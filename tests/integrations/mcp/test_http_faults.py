"""MCP servers over HTTP that answer in a wrong form, not at all, or have lost the session."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from agentrt.errors import (
    ToolArgumentsError,
    ToolFailedError,
    ToolLostError,
    ToolResultError,
    ToolUnavailableError,
    UnknownToolError,
)
from agentrt.integrations.mcp.tools import McpTools
from tests.integrations.mcp.raw_http import Exchange, RawHttp, never, raw_http
from tests.integrations.mcp.servers import LARGEST, WAIT_S, Client, connected, http, until

JSON = "content-type: application/json"


@asynccontextmanager
async def raw() -> AsyncIterator[tuple[RawHttp, Client]]:
    async with raw_http() as server, connected(http(server.url)) as client:
        yield server, client


@pytest.mark.parametrize(
    ("body", "status", "headers", "length", "error"),
    [
        (b'{"jsonrpc"', 200, (JSON,), 1000, (ToolLostError, "peer closed connection")),
        (b'{"jsonrpc"', 500, (JSON,), 1000, (ToolLostError, "peer closed connection")),
        (b"no gzip", 200, (JSON, "content-encoding: gzip"), None, (ToolLostError, "header check")),
        (b"nothing", 200, (JSON,), None, (ToolResultError, "the answer is not JSON")),
        (b"[" * 100_000, 200, (JSON,), None, (ToolResultError, "the answer is not JSON")),
        (
            b'{"jsonrpc": "2.0", "method": "notifications/message"}',
            200,
            (JSON,),
            None,
            (ToolResultError, "neither a result nor an error"),
        ),
        (
            b'{"jsonrpc": "2.0", "id": null, "error": {"code": -32000, "message": "not so fast"}}',
            200,
            (JSON,),
            None,
            (ToolFailedError, "tool bad failed: not so fast"),
        ),
        (b"<p>busy", 503, ("content-type: text/html",), None, (ToolFailedError, "status 503,")),
        (b'{"error": "slowly"}', 429, (JSON,), None, (ToolFailedError, "status 429,")),
        (b" " * (5 * LARGEST), 200, (JSON,), None, (ToolResultError, "result too large")),
        (
            gzip.compress(b" " * (5 * LARGEST)),
            200,
            (JSON, "content-encoding: gzip"),
            None,
            (ToolResultError, "result too large"),
        ),
        (
            b'{"jsonrpc": "2.0", "id": "other", "result": {"content": []}}',
            200,
            (JSON,),
            None,
            None,
        ),
    ],
)
async def test_an_answer_that_cannot_be_read_fails_its_call_and_no_other(
    body: bytes,
    status: int,
    headers: tuple[str, ...],
    length: int | None,
    error: tuple[type[Exception], str] | None,
) -> None:
    """The other call was lost with the connection, or this call waited for ever."""
    other_came, go_on = asyncio.Event(), asyncio.Event()

    async def call(exchange: Exchange) -> None:
        if exchange.tool == "bad":
            exchange.send(status, body, *headers, length=length)
        else:
            other_came.set()
            await go_on.wait()
            server.usual(exchange)

    async with raw() as (server, client):
        server.instead["tools/call"] = call
        other = asyncio.create_task(client.call("good"))
        await other_came.wait()
        async with asyncio.timeout(WAIT_S):
            if error is None:
                assert await client.call("bad") == ""
            else:
                with pytest.raises(error[0], match=error[1]):
                    await client.call("bad")
        go_on.set()
        assert await other == "of session-0"


async def test_a_notification_that_is_not_answered_delays_no_calls_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The server does not answer that a call is cancelled, and then not that the session ends."""
    came = asyncio.Event()

    async def call(exchange: Exchange) -> None:
        if exchange.tool == "good":
            server.usual(exchange)
        else:
            came.set()
            await never(exchange)

    async with raw_http() as server:
        transport = McpTools(http(server.url), lambda line: None)
        await transport.open()
        client = Client(transport, [])
        try:
            client.tools = {tool.name: tool for tool in await transport.tools()}
            server.instead |= {"tools/call": call, "notifications/cancelled": never}
            calling = asyncio.create_task(client.call("bad"))
            await came.wait()
            calling.cancel()
            await until(lambda: "notifications/cancelled" in server.heard)
            async with asyncio.timeout(WAIT_S):
                assert await client.call("good") == "of session-0"

            server.instead |= {"tools/list": never, "DELETE": never}
            monkeypatch.setattr(transport, "_listed_within", 0.05)
            del server.instead["notifications/cancelled"]
            with pytest.raises(ToolUnavailableError, match="did not list its tools"):
                await transport.tools()
            del server.instead["tools/list"]
            async with asyncio.timeout(WAIT_S):
                assert await client.call("good") == "of session-1"
        finally:
            await transport.close()


async def test_more_than_a_hundred_calls_run_at_once() -> None:
    """The server answers none of them before the last has come."""
    calls: list[Exchange] = []
    all_came = asyncio.Event()

    async def call(exchange: Exchange) -> None:
        calls.append(exchange)
        if len(calls) == 120:
            all_came.set()
        await all_came.wait()
        server.usual(exchange)

    async with raw() as (server, client):
        server.instead["tools/call"] = call
        results = await asyncio.gather(*(client.call("good") for _ in range(120)))
    assert results == ["of session-0"] * 120


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (404, b"", "text/plain"),
        (400, b"Bad Request: No valid session ID provided", "text/plain"),
        (
            400,
            b'{"error": {"code": -32000, "message": "Bad Request: No valid session ID provided"}}',
            "application/json",
        ),
        (
            400,
            b'{"error": {"code": -32000, "message": "Session s1 not found"}}',
            "application/json",
        ),
        (400, b'{"detail": "Bad Request: Server not initialized"}', "application/json"),
    ],
)
async def test_a_call_is_sent_in_a_new_session_if_the_server_has_lost_the_session(
    status: int, body: bytes, kind: str
) -> None:
    """The official SDKs for Python and TypeScript had servers that answer with status 400."""

    async def call(exchange: Exchange) -> None:
        if exchange.session == "session-0":
            exchange.send(status, body, f"content-type: {kind}")
        else:
            server.usual(exchange)

    async with raw() as (server, client):
        server.instead |= {"tools/call": call, "tools/list": call}
        async with asyncio.timeout(WAIT_S):
            assert await client.call("good") == "of session-1"


@pytest.mark.parametrize(
    ("code", "text", "error"),
    [
        (-32000, "the field session_id is missing", ToolFailedError),
        (-32602, "Browser session 42 not found", ToolArgumentsError),
        (-32603, "Invalid session type", ToolFailedError),
    ],
)
async def test_a_refusal_that_is_not_of_the_session_is_the_result_of_the_call(
    code: int, text: str, error: type[Exception]
) -> None:
    """The tool runs once, and no new session is opened."""

    async def call(exchange: Exchange) -> None:
        exchange.refuse(code, text, 400)

    async with raw() as (server, client):
        server.instead["tools/call"] = call
        with pytest.raises(error, match=text):
            await client.call("good")
        assert server.sessions == ["session-0"]
        assert server.heard.count("tools/call") == 1


@pytest.mark.parametrize("kind", ["text/plain", "application/json"])
async def test_redirects_are_followed(kind: str) -> None:
    """A Starlette application that is mounted at /mcp redirects to /mcp/."""
    moved: set[str] = set()

    async def redirect_once(exchange: Exchange) -> None:
        if exchange.method in moved:
            server.usual(exchange)
        else:
            moved.add(exchange.method)
            exchange.send(307, b"", "location: /mcp/", f"content-type: {kind}")

    async with raw_http() as server:
        server.instead |= dict.fromkeys(("initialize", "tools/list", "tools/call"), redirect_once)
        async with connected(http(server.url)) as client, asyncio.timeout(WAIT_S):
            assert await client.call("good") == "of session-0"
        assert moved == {"initialize", "tools/list", "tools/call"}


async def test_a_server_may_take_its_time_to_note_that_a_session_is_initialized(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No server is as fast as the limit for other messages is here."""
    monkeypatch.setattr("agentrt.integrations.mcp.http._ACKNOWLEDGED_S", 1e-9)
    async with raw() as (server, client):
        assert await client.call("good") == "of session-0"
        assert "notifications/initialized" in server.heard


@pytest.mark.parametrize("code", [-32000, -32601, -32602])
async def test_a_tool_that_is_gone_is_named_with_each_code(code: int) -> None:
    async def call(exchange: Exchange) -> None:
        exchange.refuse(code, f"Unknown tool: {exchange.tool}")

    async with raw() as (server, client):
        server.instead["tools/call"] = call
        server.tools = ("good",)
        with pytest.raises(UnknownToolError, match="no longer has a tool 'bad'; available: good"):
            await client.call("bad")


async def test_a_call_fails_although_the_server_lists_no_tools_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An error that names the tool is compared with the list of the tools."""

    async def call(exchange: Exchange) -> None:
        exchange.refuse(-32603, "bad is out of order")

    async with raw_http() as server:
        transport = McpTools(http(server.url), lambda line: None)
        await transport.open()
        try:
            tools: Any = {tool.name: tool for tool in await transport.tools()}
            server.instead |= {"tools/call": call, "tools/list": never}
            monkeypatch.setattr(transport, "_listed_within", 0.05)
            async with asyncio.timeout(WAIT_S):
                with pytest.raises(ToolFailedError, match="bad is out of order"):
                    await Client(transport, [], tools).call("bad")
        finally:
            await transport.close()


@pytest.mark.parametrize("pattern", [r"^\p{L}+$", "^.{0,9007199254740991}$"])
async def test_patterns_of_javascript_refuse_no_result(pattern: str) -> None:
    """The SDK checks results, after the tool has run, with Python's regular expressions."""
    name = {"type": "string", "pattern": pattern, "maxLength": 3}
    schema = {"type": "object", "properties": {"name": name}}

    async def listed(exchange: Exchange) -> None:
        tool = {"name": "good", "inputSchema": {"type": "object"}, "outputSchema": schema}
        exchange.answer({"tools": [tool]})

    async def call(exchange: Exchange) -> None:
        said = exchange.message["params"]["arguments"]["who"]
        exchange.answer({"content": [], "structuredContent": {"name": said}})

    async with raw_http() as server:
        server.instead |= {"tools/list": listed, "tools/call": call}
        async with connected(http(server.url)) as client:
            assert await client.call("good", who="Zoë") == {"name": "Zoë"}
            with pytest.raises(ToolResultError, match="'long' is too long"):
                await client.call("good", who="long")
