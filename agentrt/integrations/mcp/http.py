"""The HTTP client for MCP servers. A network error, a status with which the server rejects the
client or its session, or a body that is not an answer becomes the answer to the request in which it
occurred.

Otherwise the SDK would end the connection, and with it all other calls, or the request would wait
for ever.
"""

from __future__ import annotations

import json
import re
from typing import Any

import httpx2
from mcp.types import INTERNAL_ERROR, PARSE_ERROR
from pydantic_core import from_json

from agentrt import __version__
from agentrt.proxies import client_options

UNREACHABLE, FORGOTTEN, REFUSED, CUT_OFF = -32096, -32097, -32098, -32099
"""JSON-RPC error codes that stand for errors of HTTP. With `CUT_OFF`, the server may have run the
call; with the other codes, it has not. With `FORGOTTEN`, the server has dropped the session, and
the client must open a new session.
"""
_CONNECT_S = 30.0
_ACKNOWLEDGED_S = 5.0
"""Time limit of each part of an exchange in which the server only acknowledges a message, in
seconds. While the SDK sends such a message, it sends no calls, so a server that does not answer the
message must not delay the calls for ever. The limit also holds for the request that ends a session,
because a new session is only opened after it. It does not hold for `_INITIALIZED`: the deadline for
the list of tools limits how long a session may take to open.
"""
_INITIALIZED = "notifications/initialized"


class HttpClient(httpx2.AsyncClient):
    """An HTTP client for the server at ``url``. If the server does not answer a request, the client
    itself answers the request with an error. An answer may have at most ``largest`` bytes.

    Raises `ConfigError` for invalid proxy variables in the environment.
    """

    def __init__(self, url: str, headers: dict[str, str], *, largest: int) -> None:
        super().__init__(
            **client_options(url),
            headers={"user-agent": f"agentrt/{__version__}", **headers},
            # No limit on reading, because a tool's call has its own deadline.
            timeout=httpx2.Timeout(_CONNECT_S, read=None),
            # A call has a connection until it ends. With httpx's limit of 100, further calls, and
            # answers to questions of calls, would wait for calls to end.
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=20),
        )
        self._largest = largest

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        """Send a request like the base class. Return a response with an MCP error in these cases:

        - The server cannot be reached, or the connection breaks.
        - The server rejects the client (status 401 or 403).
        - The server has dropped the session (status 404, or 400 with words of `_NO_SESSION`).
        - The server answers an MCP request with another status of 400 or above.
        - The JSON that the server returns is too large, or is not an answer.
        """
        await request.aread()  # the SDK follows redirects with requests that have not been read
        message = _message_of(request)
        number = message.get("id") if "method" in message else None
        if number is None and request.method != "GET" and message.get("method") != _INITIALIZED:
            request.extensions["timeout"] = httpx2.Timeout(_ACKNOWLEDGED_S).as_dict()
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
        has_session = "mcp-session-id" in request.headers
        if status == 404 and has_session:
            await response.aclose()
            return _answer(request, status, FORGOTTEN, "the server has dropped this session")
        if response.has_redirect_location:  # the SDK follows it
            return response
        if number is not None and (_is_json(response) or (status == 400 and has_session)):
            return await self._checked(request, number, response)
        if number is not None and status >= 400:
            await response.aclose()
            return _answer(request, status, INTERNAL_ERROR, _of_status(status))
        return response

    async def _checked(
        self, request: httpx2.Request, number: Any, response: httpx2.Response
    ) -> httpx2.Response:
        """Read the body of a response to the request with the id ``number``, and return a response
        that the SDK can read: with an answer to this request, or with a status of an error.
        """
        status = response.status_code
        try:
            body = await self._body(response)
        except httpx2.RequestError as error:  # the connection broke, or the encoding is wrong
            return _answer(request, 502, CUT_OFF, str(error) or type(error).__name__)
        if body is None:
            why = f"result too large: the answer has more than {self._largest} bytes"
            return _answer(request, 502, PARSE_ERROR, why)
        try:
            value = from_json(body)
        except ValueError as error:  # also for JSON that is nested too deeply
            if status < 400:
                return _answer(request, 502, PARSE_ERROR, f"the answer is not JSON: {error}")
            value = None
        has_session = "mcp-session-id" in request.headers
        if status == 400 and has_session and _names_lost_session(value, body):
            return _answer(request, status, FORGOTTEN, "the server has dropped this session")
        is_answer = isinstance(value, dict) and bool(value.keys() & _OUTCOMES)
        if status < 400 and not is_answer:
            why = "the answer is not an MCP message: it has neither a result nor an error"
            return _answer(request, 502, PARSE_ERROR, why)
        if not is_answer or (status >= 400 and not isinstance(value.get("error"), dict)):
            return _answer(request, status, INTERNAL_ERROR, _of_status(status))
        if value.get("id") != number:  # such as null, before the server read the id
            body = json.dumps(value | {"id": number}).encode()
        headers = [
            item for item in response.headers.multi_items() if item[0].lower() not in _OF_THE_BODY
        ]
        return httpx2.Response(status, headers=headers, content=body, request=request)

    async def _body(self, response: httpx2.Response) -> bytes | None:
        """Return the body of a response; None if it is too large."""
        body = bytearray()
        try:
            async for piece in response.aiter_bytes():
                body += piece
                if len(body) > self._largest:
                    return None
        finally:
            await response.aclose()
        return bytes(body)


_NO_SESSION = re.compile(
    rb"(?i)(no valid|invalid|unknown|expired) session|server not initialized"
    rb"|session\b[^.]{0,60}\b(not found|invalid|unknown|expired)"
)
"""Words with which some servers reject a session that they have dropped, with status 400. The
protocol's status is 404.
"""
_OUTCOMES = {"result", "error"}
_OF_THE_BODY = ("content-encoding", "content-length", "transfer-encoding")
"""Headers that describe how a body was sent."""


_SESSION_CODES = (None, -32000, -32001, -32600)
"""Error codes with which servers reject a session; None stands for a body without a code. Errors
with other codes are answers to calls, and their texts may name sessions of a tool.
"""


def _names_lost_session(value: Any, body: bytes) -> bool:
    """Return whether a body, ``value`` as JSON, says that the server does not have the session."""
    error = value.get("error") if isinstance(value, dict) else None
    code = error.get("code") if isinstance(error, dict) else None
    return code in _SESSION_CODES and _NO_SESSION.search(body) is not None


def _message_of(request: httpx2.Request) -> dict[str, Any]:
    """Return the MCP message in the body of an HTTP request; empty if it has none."""
    message = from_json(request.content) if request.method == "POST" else None
    return message if isinstance(message, dict) else {}


def _of_status(status: int) -> str:
    return f"the server answered with status {status}, and not with an MCP message"


def _is_json(response: httpx2.Response) -> bool:
    return str(response.headers.get("content-type", "")).lower().startswith("application/json")


def _answer(request: httpx2.Request, status: int, code: int, message: str) -> httpx2.Response:
    error = {"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": message}}
    headers = {"content-type": "application/json"}
    return httpx2.Response(status, headers=headers, content=json.dumps(error), request=request)
