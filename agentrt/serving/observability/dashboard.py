"""The dashboard of a command such as ``agentrt run``: a server with the APIs of observability and
of questions only.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from agentrt.errors import ConfigError
from agentrt.runtime import Runtime
from agentrt.serving.app import opened_app
from agentrt.serving.listen import Listener
from agentrt.serving.observability import api
from agentrt.serving.origins import LOOPBACK
from agentrt.serving.questions.api import api as questions
from agentrt.serving.server import Server


@contextlib.asynccontextmanager
async def dashboard(runtime: Runtime, port: int = 0) -> AsyncIterator[str]:
    """Serve the dashboard of ``runtime`` on the loopback address, and yield the page's URL.

    ``port`` 0 stands for any free port. Raises `ConfigError` if the port is in use.
    """
    try:
        listener = Listener(LOOPBACK, port)
    except ConfigError as error:
        raise ConfigError(
            f"--dashboard {port}: {error.__cause__}; use another port, or 0 for any free port"
        ) from error
    server = Server(runtime, models=(runtime.executor.info.model,))
    with contextlib.closing(listener):
        async with (
            opened_app(server, [questions, api]) as app,
            listener.serving(app, server.bounds),
        ):
            try:
                yield f"{listener.url}/dashboard"
            finally:
                server.draining = True
