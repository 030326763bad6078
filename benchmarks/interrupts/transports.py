"""The transports of `benchmarks interrupts`. Each transport has a round trip in a program, and a
round trip of the bare library, to the same function in the same kind of thread or process.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import multiprocessing
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from agentrt.errors import ConfigError
from agentrt.interrupts import Tool, ToolTransport
from agentrt.interrupts.process import ProcessTransport
from benchmarks.interrupts import echo
from benchmarks.interrupts.echo import NO_DELAY, TOPIC
from tests.doubles.ports import reserved_port

Call = Callable[[int], Awaitable[Any]]
Pair = tuple[Call, Tool | str, list[ToolTransport]]
"""The call of the bare library, the tool for `Context.tool`, and the transports that this tool
needs.
"""
_ECHO = (sys.executable, "-m", "benchmarks.interrupts.echo")
_START_S = 30.0


@asynccontextmanager
async def in_thread() -> AsyncIterator[Pair]:
    """Yield the `Pair` for functions in threads. The bare library is `asyncio.to_thread`."""
    yield (lambda x: asyncio.to_thread(echo.echo, x)), echo.in_a_thread, []


@asynccontextmanager
async def in_process() -> AsyncIterator[Pair]:
    """Yield the `Pair` for worker processes. The bare library is a pool of concurrent.futures
    with as many processes as agentrt's transport.
    """
    loop, spawn = asyncio.get_running_loop(), multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(ProcessTransport().concurrency, spawn) as pool:
        yield (lambda x: loop.run_in_executor(pool, echo.echo, x)), echo.in_a_process, []


@asynccontextmanager
async def by_mcp_stdio() -> AsyncIterator[Pair]:
    """Yield the `Pair` for an MCP server that is a command. The bare library is the client of the
    MCP SDK.
    """
    from mcp.client import Client
    from mcp.client.stdio import StdioServerParameters, stdio_client

    from agentrt.integrations.mcp import StdioServer
    from agentrt.integrations.mcp.tools import McpTools

    command, *args = (*_ECHO, "mcp-stdio")
    parameters = StdioServerParameters(command=command, args=args)
    async with Client(stdio_client(parameters)) as client:
        ours = McpTools(StdioServer("bench", command, tuple(args)), _quiet)
        yield (lambda x: client.call_tool("echo", {"x": x})), "echo", [ours]


@asynccontextmanager
async def by_mcp_http() -> AsyncIterator[Pair]:
    """Yield the `Pair` for an MCP server with streamable HTTP. The bare library is the client of
    the MCP SDK.
    """
    from mcp.client import Client

    from agentrt.integrations.mcp import HttpServer
    from agentrt.integrations.mcp.tools import McpTools

    async with running(*_ECHO, "mcp-http") as port:
        url = f"http://127.0.0.1:{port}/mcp"
        async with Client(url) as client:
            ours = McpTools(HttpServer("bench", url), _quiet)
            yield (lambda x: client.call_tool("echo", {"x": x})), "echo", [ours]


@asynccontextmanager
async def by_mqtt() -> AsyncIterator[Pair]:
    """Yield the `Pair` for MQTT workers. The bare library is aiomqtt, which calls a responder
    with a response topic and correlation data, at QoS 1.
    """
    from agentrt.integrations.mqtt import MqttTools, read_broker

    async with AsyncExitStack() as stack:
        port = await stack.enter_async_context(mosquitto())
        await stack.enter_async_context(running(*_ECHO, "mqtt", str(port)))
        url = f"mqtt://127.0.0.1:{port}"
        tools = f"{Path(echo.__file__)}:echo"
        worker = (sys.executable, "-m", "agentrt.cli", "worker", tools, "--broker", url)
        await stack.enter_async_context(running(*worker, "--concurrency", "1000", stderr=True))
        bare = await stack.enter_async_context(bare_mqtt(port))
        yield bare, "echo", [MqttTools(read_broker(url))]


@asynccontextmanager
async def bare_mqtt(port: int) -> AsyncIterator[Call]:
    """Yield a function that sends a request to the echo's topic and returns the answer to it."""
    import aiomqtt
    from paho.mqtt.packettypes import PacketTypes
    from paho.mqtt.properties import Properties

    open_calls: dict[bytes, asyncio.Future[Any]] = {}
    numbers = itertools.count()

    async def read(client: aiomqtt.Client) -> None:
        async for message in client.messages:
            answered: Any = message.properties
            open_calls.pop(answered.CorrelationData).set_result(json.loads(bytes(message.payload)))

    protocol = aiomqtt.ProtocolVersion.V5
    async with aiomqtt.Client(
        "127.0.0.1", port, protocol=protocol, socket_options=NO_DELAY
    ) as client:
        client.pending_calls_threshold = 10_000
        await client.subscribe("echo/answers", qos=1)
        reading = asyncio.create_task(read(client))

        async def call(x: int) -> Any:
            request: Any = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
            request.ResponseTopic = "echo/answers"
            request.CorrelationData = key = str(next(numbers)).encode()
            answer = open_calls[key] = asyncio.get_running_loop().create_future()
            await client.publish(TOPIC, json.dumps(x), 1, properties=request)
            return await answer

        try:
            yield call
        finally:
            reading.cancel()
            await asyncio.wait([reading])


@asynccontextmanager
async def mosquitto() -> AsyncIterator[int]:
    """Start a broker, and yield its port. Raises `ConfigError` if Mosquitto is not installed."""
    program = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin")
    if program is None:
        raise ConfigError(
            "the transport mqtt needs the broker Mosquitto, which is not installed; install the "
            "package mosquitto, or name other transports with --transport"
        )
    port = reserved_port()
    with tempfile.NamedTemporaryFile("w", suffix=".conf") as config:
        config.write(f"listener {port} 127.0.0.1\nallow_anonymous true\nset_tcp_nodelay true\n")
        config.write("max_inflight_messages 0\nmax_queued_messages 0\nlog_type none\n")
        config.flush()
        process = await asyncio.create_subprocess_exec(program, "-c", config.name)
        try:
            async with asyncio.timeout(_START_S):
                while not await _listens(port):  # noqa: ASYNC110 - polls another process
                    await asyncio.sleep(0.05)
            yield port
        finally:
            process.kill()
            await process.wait()


async def _listens(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True


@asynccontextmanager
async def running(*command: str, stderr: bool = False) -> AsyncIterator[str]:
    """Start a process that prints a line when it is ready, and yield the line."""
    pipe = asyncio.subprocess.PIPE
    streams = {"stderr" if stderr else "stdout": pipe}
    process = await asyncio.create_subprocess_exec(*command, **streams)  # type: ignore[arg-type]
    try:
        out = process.stderr if stderr else process.stdout
        assert out is not None
        async with asyncio.timeout(_START_S):
            line = (await out.readline()).decode().strip()
        if not line:
            raise RuntimeError(f"the process ended before it was ready: {' '.join(command)}")
        yield line
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


def _quiet(line: str) -> None:
    """Ignore a message about the state of a connection."""


TRANSPORTS: dict[str, Callable[[], AbstractAsyncContextManager[Pair]]] = {
    "thread": in_thread,
    "process": in_process,
    "mcp-stdio": by_mcp_stdio,
    "mcp-http": by_mcp_http,
    "mqtt": by_mqtt,
}
