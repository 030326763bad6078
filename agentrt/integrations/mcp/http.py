"""The HTTP client for MCP servers: what goes wrong below MCP becomes an answer to the one request
that it hit. Otherwise the SDK would end the connection, with all other calls that it carries.
"""

from __future__ import annotations

import json
from typing import Any

import httpx2

from agentrt import __version__
from agentrt.proxies import client_options

UNREACHABLE, FORGOTTEN, REFUSED, CUT_OFF = -32096, -32097, -32098, -32099
"""Codes of JSON-RPC errors that stand for what HTTP said. Only with the last one the server may
have run something; with `FORGOTTEN`, it knows of no session, and wants a new one.
"""
_CONNECT_S = 30.0


class HttpClient(httpx2.AsyncClient):
    """A client for the server at ``url``, which answers for it where it does not.

    Raises `ConfigError` for variables of the environment that cannot be used.
    """

    def __init__(self, url: str, headers: dict[str, str]) -> None:
        super().__init__(
            **client_options(url),
            headers={"user-agent": f"agentrt/{__version__}", **headers},
            # A tool may take its time: its call has a deadline of its own.
            timeout=httpx2.Timeout(_CONNECT_S, read=None),
        )

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        """As the base class; raises nothing for a server that cannot be reached."""
        try:
            response = await super().send(request, **options)
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            return _answer(request, 503, UNREACHABLE, str(error) or type(error).__name__)
        except httpx2.TransportError as error:
            return _answer(request, 502, CUT_OFF, str(error) or type(error).__name__)
        status = response.status_code
        if status in (401, 403):
            await response.aclose()
            text = f"the server answered {status}: check its 'headers' in the --mcp file"
            return _answer(request, status, REFUSED, text)
        if status == 404 and "mcp-session-id" in request.headers:
            await response.aclose()
            return _answer(request, status, FORGOTTEN, "the server knows this session no more")
        return response


def _answer(request: httpx2.Request, status: int, code: int, message: str) -> httpx2.Response:
    error = {"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": message}}
    headers = {"content-type": "application/json"}
    return httpx2.Response(status, headers=headers, content=json.dumps(error), request=request)
