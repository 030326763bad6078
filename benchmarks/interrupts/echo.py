"""A tool that returns its argument, for each transport of `benchmarks interrupts`.

``python -m benchmarks.interrupts.echo HOW`` serves the tool. HOW is ``mcp-stdio``, ``mcp-http``
(prints its port), or ``mqtt PORT`` (answers at the request's response topic, with the request's
correlation data, as any MQTT 5 client does).
"""

from __future__ import annotations

import asyncio
import socket
import sys
from typing import Any

from agentrt.interrupts import tool

TOPIC = "echo"
NO_DELAY = ((socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),)
"""Options of an MQTT client's socket, which send each message at once. Without them, a round trip
takes 88 ms.
"""


def echo(x: int) -> int:
    """Return ``x``."""
    return x


in_a_thread = tool(echo)
in_a_process = tool(isolation="process")(echo)


def serve_mcp(how: str) -> None:
    """Serve the tool with the SDK's own server."""
    from mcp.server.mcpserver import MCPServer

    server = MCPServer("echo", log_level="ERROR")
    server.tool()(echo)
    if how == "mcp-stdio":
        server.run("stdio")
        return
    import uvicorn

    with socket.create_server(("127.0.0.1", 0)) as listener:
        sys.stdout.write(f"{listener.getsockname()[1]}\n")
        sys.stdout.flush()
        config = uvicorn.Config(server.streamable_http_app(), log_level="error")
        uvicorn.Server(config).run(sockets=[listener])


async def answer_mqtt(port: int) -> None:
    """Answer each request at `TOPIC`."""
    import aiomqtt
    from paho.mqtt.packettypes import PacketTypes
    from paho.mqtt.properties import Properties

    protocol = aiomqtt.ProtocolVersion.V5
    async with aiomqtt.Client(
        "127.0.0.1", port, protocol=protocol, socket_options=NO_DELAY
    ) as client:
        await client.subscribe(TOPIC, qos=1)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        async for message in client.messages:
            request: Any = message.properties
            answer: Any = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
            answer.CorrelationData = request.CorrelationData
            await client.publish(request.ResponseTopic, message.payload, 1, properties=answer)


if __name__ == "__main__":
    if sys.argv[1] == "mqtt":
        asyncio.run(answer_mqtt(int(sys.argv[2])))
    else:
        serve_mcp(sys.argv[1])
