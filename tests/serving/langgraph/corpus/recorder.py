"""Listens to a client of LangGraph's SDK: what it asks, and the shapes of what it is answered."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.serving.langgraph.corpus.shapes import Shapes, events_of

_HEADERS = ("location", "content-location", "x-pagination-next", "x-pagination-total")

Answer = dict[str, Any]
"""One request and the shape of its answer, as a line of the record."""


@dataclass(slots=True)
class Exchange:
    """A request and its answer."""

    asked: str
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    most: int | None = None
    """Of a stream that its client leaves: how many events it has read."""

    def answer(self, shapes: Shapes) -> Answer:
        """The shape of this."""
        found: Answer = {"asked": shapes.named(self.asked), "status": self.status}
        for name in _HEADERS:
            if name in self.headers:
                found[name] = shapes.named(self.headers[name])
        kind = self.headers.get("content-type", "").partition(";")[0]
        text = self.body.decode()
        if kind == "text/event-stream":
            events = events_of(text)[: self.most]
            found["events"] = [[shapes.named(name), shapes.of(data)] for name, data in events]
        elif kind == "application/json":
            found["body"] = shapes.of(json.loads(text))
        elif text:
            found["body"] = f"<{kind}>"
        return found


class _Listened(httpx.AsyncByteStream):
    def __init__(self, inner: httpx.AsyncByteStream, exchange: Exchange) -> None:
        self._inner = inner
        self._exchange = exchange

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._inner:
            self._exchange.body += chunk
            yield chunk

    async def aclose(self) -> None:
        await self._inner.aclose()


class Recorder(httpx.AsyncBaseTransport):
    """A transport of an httpx client that keeps what goes through it."""

    def __init__(self, inner: httpx.AsyncBaseTransport) -> None:
        self._inner = inner
        self.exchanges: list[Exchange] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        exchange = Exchange(f"{request.method} {request.url.raw_path.decode()}")
        self.exchanges.append(exchange)
        request.headers["accept-encoding"] = "identity"
        response = await self._inner.handle_async_request(request)
        exchange.status, exchange.headers = response.status_code, dict(response.headers)
        assert isinstance(response.stream, httpx.AsyncByteStream)
        response.stream = _Listened(response.stream, exchange)
        return response

    def answers(self) -> list[Answer]:
        """The shapes of all that came since the last call."""
        shapes, heard = Shapes(), self.exchanges
        self.exchanges = []
        return [one.answer(shapes) for one in heard]
