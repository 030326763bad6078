"""MCP servers that are not there, die, come back, or refuse us."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import psutil
import pytest

from agentrt import Context, Runtime, program
from agentrt.errors import (
    ToolLostError,
    ToolUnavailableError,
    UnknownToolError,
)
from agentrt.graph import NodeKind, NodeState
from agentrt.integrations.mcp import Server, StdioServer
from agentrt.integrations.mcp.tools import McpTools
from tests.doubles.forked_python import forked_python
from tests.doubles.scripted import ScriptedExecutor
from tests.integrations.mcp.servers import connected, http, serving_http, stdio, until

NOBODY = "http://127.0.0.1:9/mcp"


def children() -> set[int]:
    forked_python()  # its own processes stay
    return {one.pid for one in psutil.Process(os.getpid()).children()}


def runtime(*transports: McpTools) -> Runtime:
    return Runtime(ScriptedExecutor(lambda call: "done"), tools=transports)


async def test_a_server_that_dies_in_a_call_loses_it_and_is_started_again(tmp_path: Path) -> None:
    """Two calls are in flight: both are lost. What may run twice is tried again by itself."""
    marks, before = str(tmp_path), children()

    @program
    async def dying(ctx: Context) -> object:
        tools = {tool.name: tool for tool in await ctx.mcp("stdio")}
        waiting = asyncio.create_task(ctx.tool(tools["wait"], marks=marks))
        await until((tmp_path / "began").exists)
        with pytest.raises(ToolLostError, match="mcp:stdio died during the call"):
            await ctx.tool(tools["die"], marks=marks)
        with pytest.raises(ToolLostError, match="mcp:stdio died during the call"):
            await waiting
        (tmp_path / "died").unlink()
        return await ctx.tool(tools["die_once"], marks=marks)

    said: list[str] = []
    async with runtime(McpTools(stdio(), said.append)) as running:
        run = running.start(dying)
        assert await run.wait() == {"result": "alive"}
    states = {node.name: node for node in run.dag.nodes()}
    assert states["die"].state is states["wait"].state is NodeState.FAILED
    assert states["die_once"].state is NodeState.DONE
    interrupt = states["die_once"].interrupt
    assert interrupt is not None
    assert (interrupt.transport, interrupt.attempt) == ("mcp:stdio", 2)
    assert [line.split(" ", 3)[-1].split(":")[0] for line in said] == [
        "cannot be reached",
        "is connected again",
    ] * 2
    assert children() == before


async def test_an_http_server_that_dies_in_a_call(tmp_path: Path) -> None:
    """It comes back, and has forgotten the session of an old client, which opens another."""
    with serving_http() as (process, url):
        async with connected(http(url)) as client, connected(http(url), "legacy") as old:
            with pytest.raises(ToolLostError, match="the connection broke during the call"):
                await client.call("die", marks=str(tmp_path))
            process.wait()
            with pytest.raises(ToolUnavailableError, match="mcp:http cannot be reached"):
                await client.call("add", a=1, b=2)
            with serving_http(port=int(url.split(":")[2].split("/")[0])):
                for one in (client, old):
                    assert await one.call("add", a=1, b=2) == {"total": 3}


EXITS = "import sys; sys.stderr.write('no licence\\n'); sys.exit(3)"


@pytest.mark.parametrize(
    ("server", "words"),
    [
        (StdioServer("x", "no-such-command"), "No such file .*no-such-command"),
        (StdioServer("x", sys.executable, ("-c", EXITS)), "stderr: no licence"),
        (StdioServer("x", sys.executable, cwd="/no/such/folder"), "No such file .*/no/such"),
        (http(NOBODY, "x"), "All connection attempts failed"),
    ],
)
async def test_a_server_that_is_not_there_stops_no_program(server: Server, words: str) -> None:
    @program
    async def unlucky(ctx: Context) -> str:
        with pytest.raises(ToolUnavailableError, match=f"MCP server 'x' cannot .*{words}"):
            await ctx.mcp("x")
        with pytest.raises(
            UnknownToolError, match=r"unknown transport .* 'mcp:y'; available: mcp:x"
        ):
            await ctx.mcp("y")
        assert await ctx.tools() == []
        return "went on"

    said: list[str] = []
    async with runtime(McpTools(server, said.append)) as running:
        assert await running.start(unlucky).wait() == "went on"
    assert len(said) == 1
    assert "MCP server 'x' cannot be reached" in said[0]


async def test_a_server_that_wants_other_credentials() -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\n\r\n")
        writer.close()

    refusing = await asyncio.start_server(refuse, "127.0.0.1", 0)
    async with refusing:
        port = refusing.sockets[0].getsockname()[1]
        transport = McpTools(http(f"http://127.0.0.1:{port}/mcp"), lambda line: None)
        await transport.open()
        with pytest.raises(ToolUnavailableError, match="401; check its 'headers'"):
            await transport.tools()
        await transport.close()


@pytest.mark.parametrize(
    ("name", "value"),
    [("ALL_PROXY", "socks://127.0.0.1:9/"), ("NO_PROXY", "[::1]"), ("HTTP_PROXY", NOBODY)],
)
async def test_a_server_of_this_machine_is_reached_past_proxies(
    http_url: str, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    async with connected(http(http_url)) as client:
        assert await client.call("add", a=1, b=2) == {"total": 3}


async def test_a_proxy_that_cannot_be_used_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "socks://127.0.0.1:9/")
    lines: list[str] = []
    transport = McpTools(http("http://203.0.113.7/mcp", "x"), lines.append)
    await transport.open()
    with pytest.raises(ToolUnavailableError, match=r"ALL_PROXY='socks://.*a proxy's URL must"):
        await transport.tools()
    await transport.close()
    assert len(lines) == 1


async def test_where_nobody_can_be_asked_the_server_hears_that_it_was_cancelled(
    http_url: str,
) -> None:
    @program
    async def cutting(ctx: Context) -> object:
        return await ctx.tool("cut", thing="cake")

    async with runtime(McpTools(http(http_url), lambda line: None)) as running:
        run = running.start(cutting)
        assert await run.wait() == {"result": "cake: cancel"}
    kinds = {node.kind: node for node in run.dag.nodes()}
    assert kinds[NodeKind.HUMAN].name == "How large is the cake?"
    assert "nobody can answer" in (kinds[NodeKind.HUMAN].error or "")
    assert kinds[NodeKind.TOOL].state is NodeState.DONE


async def test_closing_ends_servers_and_what_waits_for_them(tmp_path: Path) -> None:
    before = children()
    async with connected(stdio()) as client:
        assert len(children() - before) == 1
        calling = asyncio.create_task(client.call("wait", marks=str(tmp_path)))
        await until((tmp_path / "began").exists)
    with pytest.raises(ToolLostError):
        await calling
    assert children() == before
    with pytest.raises(ToolUnavailableError, match="was closed"):
        await client.call("add", a=1, b=2)
