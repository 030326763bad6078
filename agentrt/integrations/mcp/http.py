"""The HTTP client for MCP servers. A network error, or a status with which the server rejects
the client or its session, becomes the answer to the request in which it occurred.

Otherwise the SDK would end the connection, and with it all other calls.
"""

from __future__ import annotations

import json
from typing import Any

import httpx2

from agentrt import __version__
from agentrt.proxies import client_options

UNREACHABLE, FORGOTTEN, REFUSED, CUT_OFF = -32096, -32097, -32098, -32099
"""JSON-RPC error codes that stand for errors of HTTP. With `CUT_OFF`, the server may have run the
call; with the other codes, it has not. With `FORGOTTEN`, the server has dropped the session, and
the client must open a new session.
"""
_CONNECT_S = 30.0


class HttpClient(httpx2.AsyncClient):
    """An HTTP client for the server at ``url``. If the server does not answer a request, the client
    itself answers the request with an error.

    Raises `ConfigError` for invalid proxy variables in the environment.
    """

    def __init__(self, url: str, headers: dict[str, str]) -> None:
        super().__init__(
            **client_options(url),
            headers={"user-agent": f"agentrt/{__version__}", **headers},
            # No limit on reading, because a tool's call has its own deadline.
            timeout=httpx2.Timeout(_CONNECT_S, read=None),
        )

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        """Send a request like the base class. Return an error response if the server cannot be
        reached, if the connection breaks, if the server rejects the client (status 401 or 403), or
        if it has dropped the session (status 404).
        """
        try:
            response = await super().send(request, **options)
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            return _answer(request, 503, UNREACHABLE, str(error) or type(error).__name__)
        except httpx2.TransportError as error:
            return _answer(request, 502, CUT_OFF, str(error) or type(error).__name__)
        status = response.status_code
        if status in (401, 403):
            await response.aclose()
            text = (
                f"the server answered with status {status}; check its 'headers' in the --mcp file"
            )
            return _answer(request, status, REFUSED, text)
        if status == 404 and "mcp-session-id" in request.headers:
            await response.aclose()
            return _answer(request, status, FORGOTTEN, "the server has dropped this session")
        return response


def _answer(request: httpx2.Request, status: int, code: int, message: str) -> httpx2.Response:
    error = {"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": message}}
    headers = {"content-type": "application/json"}
    return httpx2.Response(status, headers=headers, content=json.dumps(error), request=request)
