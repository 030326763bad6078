"""Makes the requests of a batch within this process, as those of its tenant over HTTP are made."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any, Protocol

from pydantic_core import from_json
from starlette.types import ASGIApp, Message, Receive, Scope

from agentrt.errors import NotServedError
from agentrt.executors.identity import PREFIX
from agentrt.serving.batches.lines import Outcome, Request
from agentrt.serving.batches.places import CallPlaces, Places
from agentrt.serving.bodies import TooLargeError, read_body, whole
from agentrt.serving.error_responses import describe, log_fault, openai_error
from agentrt.serving.frontend.exchange import NO_CONNECTION
from agentrt.serving.server import Server

ENDPOINTS = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings")
"""The endpoints of batches, where vLLM has them for the models that are served."""
_BUSY = (429, 503)
_BUSY_S = 5.0
_LONGEST_BUSY_S = 60.0


class Target(Protocol):
    """Answers the requests of one endpoint."""

    @property
    def places(self) -> Places:
        """Where its requests wait until they may begin."""

    async def answer(self, tenant: str, request: Request, name: str) -> Outcome:
        """Answer a request, whose name is the same after a restart of the server."""


class CallTarget:
    """An endpoint of the model. A request passes the same checks as one over HTTP, and its calls
    are those of a program of their own, which ends with it.
    """

    def __init__(self, server: Server, endpoint: str, app: ASGIApp, places: CallPlaces) -> None:
        self._server = server
        self._endpoint = endpoint
        self._app = app
        self.places = places

    async def answer(self, tenant: str, request: Request, name: str) -> Outcome:
        """Answer a request; a tenant at a limit, or an engine that starts again, is busy."""
        body = json.dumps(request.body).encode()
        headers = {
            b"content-type": b"application/json",
            b"content-length": str(len(body)).encode(),
            f"{PREFIX}program".encode(): name.encode(),
            b"x-session-final": b"true",
        }
        scope: Scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": self._endpoint,
            "raw_path": self._endpoint.encode(),
            "root_path": "",
            "query_string": b"",
            "headers": list(headers.items()),
            "client": None,
            "server": None,
            "state": {
                "tenant": tenant,
                "operator": False,
                "request_id": name,
                "headers": headers,
                NO_CONNECTION: True,
            },
        }
        start: Message = {"status": 500}
        sent = bytearray()

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                start.update(message)
            else:
                sent.extend(message.get("body", b""))

        try:
            receive, _ = await read_body(
                _receiving(body), self._endpoint, headers, self._server.bounds.body_bytes
            )
            await self._app(scope, receive, send)
            answer = from_json(bytes(sent))
        except TooLargeError as error:
            text = openai_error(413, str(error), code="body_too_large")
            return Outcome(413, text, name)
        except Exception as error:  # a bug: the log gets its traceback, the batch goes on
            status, text, _ = describe(error)
            log_fault(status, error)
            return Outcome(status, text, name)
        status = start["status"]
        return Outcome(status, answer, name, _busy_s(start) if status in _BUSY else None)


def _receiving(body: bytes) -> Receive:
    """Return what gives the body of a request whose client never goes."""
    messages = iter((whole(body),))

    async def receive() -> Message:
        for message in messages:
            return message
        await asyncio.get_running_loop().create_future()
        raise AssertionError

    return receive


def _busy_s(start: Mapping[str, Any]) -> float:
    """Return the seconds after which a request that was refused for now may come again."""
    value = dict(start.get("headers", ())).get(b"retry-after", b"")
    return min(_LONGEST_BUSY_S, float(value)) if value.isdigit() else _BUSY_S


class Targets:
    """What answers the requests of each endpoint of a server."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._calls = CallPlaces(server)

    def find(self, endpoint: str) -> Target:
        """Return what answers at an endpoint. Raises `NotServedError` if nothing does."""
        front = self._server.frontend
        paths = [] if front is None else [path for path in ENDPOINTS if path in front.paths]
        if front is not None and endpoint in paths:
            return CallTarget(self._server, endpoint, front, self._calls)
        raise NotServedError(
            f"this server has no batches for endpoint {endpoint!r}; it has them for "
            f"{', '.join(paths) or 'no endpoint'}"
        )
