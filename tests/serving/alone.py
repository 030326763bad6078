"""A server in a process of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import uvicorn

from agentrt.serving.app import opened_app
from agentrt.serving.server import Api, Server


async def serve_alone(server: Server, apis: Sequence[Api], port: int, rest: Any = None) -> None:
    """Serve until a signal comes."""
    async with opened_app(server, apis, rest) as app:
        config = uvicorn.Config(app, port=port, log_level="warning", lifespan="off")
        await uvicorn.Server(config).serve()
