"""A connection after a request that failed: it stays open, or its answer says that it closes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator
from typing import Self

import pytest
from fastapi import APIRouter, Depends
from starlette.background import BackgroundTask
from starlette.responses import JSONResponse, Response, StreamingResponse

from agentrt.serving.server import Server
from tests.serving.local import LocalServer, open_server

pytestmark = [pytest.mark.engine, pytest.mark.asyncio]


def broken() -> None:
    raise RuntimeError("a secret of the server's")


async def in_handler() -> None:
    broken()


def in_thread() -> None:
    broken()


async def in_result() -> Response:
    return JSONResponse({"not": object()})


async def afterwards() -> Response:
    return JSONResponse({}, background=BackgroundTask(broken))


async def in_stream() -> Response:
    async def pieces() -> AsyncIterator[str]:
        yield "first"
        broken()

    return StreamingResponse(pieces())


async def in_group() -> None:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(asyncio.to_thread(broken))


async def works() -> dict[str, str]:
    return {"it": "works"}


@contextlib.asynccontextmanager
async def broken_routes(server: Server) -> AsyncIterator[APIRouter]:
    """Routes that fail, each in a way of its own, and one that works."""
    router = APIRouter()
    for path, handler in (
        ("/fails/handler", in_handler),
        ("/v1/fails", in_handler),
        ("/fails/thread", in_thread),
        ("/fails/result", in_result),
        ("/fails/afterwards", afterwards),
        ("/fails/stream", in_stream),
        ("/fails/group", in_group),
        ("/works", works),
    ):
        router.add_api_route(path, handler, methods=["GET", "POST"])
    router.add_api_route("/fails/dependency", works, dependencies=[Depends(broken)])
    yield router


class Connection:
    """One connection to a server, on which requests follow each other."""

    def __init__(self, server: LocalServer) -> None:
        self._port = server.listener.port

    async def __aenter__(self) -> Self:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        return self

    async def __aexit__(self, *error: object) -> None:
        self._writer.close()

    async def ask(
        self, method: str, path: str, body: bytes = b"", *headers: str
    ) -> tuple[int, bytes, bytes]:
        """Send a request; return its answer's status, head and body."""
        head = f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {len(body)}"
        head = "\r\n".join([head, *headers])
        self._writer.write(f"{head}\r\n\r\n".encode() + body)
        async with asyncio.timeout(60):
            told = (await self._reader.readuntil(b"\r\n\r\n")).lower()
            length = told.partition(b"content-length: ")[2].partition(b"\r\n")[0]
            content = await self._reader.readexactly(int(length))
        return int(told.split()[1]), told, content

    async def rest(self, method: str, path: str) -> bytes:
        """Send a request; return all that comes until the server closes the connection."""
        self._writer.write(f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n".encode())
        async with asyncio.timeout(60):
            return await self._reader.read()


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/fails/handler", 500),
        ("POST", "/fails/handler", 500),
        ("GET", "/fails/thread", 500),
        ("GET", "/fails/dependency", 500),
        ("GET", "/fails/result", 500),
        ("GET", "/fails/group", 500),
        ("POST", "/v1/fails", 500),
        ("GET", "/fails/afterwards", 200),
    ],
)
async def test_the_next_request_on_a_connection_is_answered_after_an_error(
    method: str, path: str, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_server(apis=(broken_routes,)) as server, Connection(server) as connection:
        for body in (b"", b'{"a": 1}'):
            caplog.clear()
            got, head, content = await connection.ask(method, path, body)
            assert got == status
            assert b"connection: close" not in head
            assert b"secret" not in content
            assert (await connection.ask("GET", "/works"))[2] == b'{"it":"works"}'
            await server.until(lambda: errors(caplog))
            assert [error.exc_info is not None for error in errors(caplog)] == [True]


def errors(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_an_error_before_any_route_keeps_the_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with open_server(apis=(broken_routes,)) as server, Connection(server) as connection:
        with monkeypatch.context() as patch:
            patch.setattr(server.server.tenants, "arrive", lambda tenant: broken())
            assert (await connection.ask("POST", "/works", b"{}"))[0] == 500
        assert (await connection.ask("GET", "/works"))[0] == 200


async def echoes(body: dict[str, int]) -> dict[str, int]:
    return body


@contextlib.asynccontextmanager
async def echoing(server: Server) -> AsyncIterator[APIRouter]:
    router = APIRouter()
    router.add_api_route("/echo", echoes, methods=["POST"])
    router.add_api_route("/works", works, methods=["GET"])
    yield router


@pytest.mark.parametrize(
    "name", ["Upgrade: h2c", "upgrade:h2c", "UPGRADE: TLS/1.0, HTTP/2.0", "UpGrade: h2c"]
)
async def test_a_body_is_read_when_its_client_offers_another_protocol(name: str) -> None:
    """Java's client offers HTTP/2 so, and continues with HTTP/1.1. A body keeps such words."""
    async with open_server(apis=(echoing,)) as server, Connection(server) as connection:
        option = name.partition(":")[0]
        offer = [name, f"Connection: {option}, HTTP2-Settings", "HTTP2-Settings: AAMAAABk"]
        offer.append("content-type: application/json")
        for body in (b'{"a": 1}', b'{"\\r\\nupgrade: h2c": 2}'):
            got, _, content = await connection.ask("POST", "/echo", body, *offer)
            assert (got, json.loads(content)) == (200, json.loads(body))
        assert (await connection.ask("GET", "/works"))[0] == 200


@pytest.mark.parametrize("url", ["http://", "http://host:99999/works", f"/{'a' * 70_000}"])
async def test_a_url_that_cannot_be_read_is_refused_without_a_traceback(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_server(apis=(broken_routes,)) as server:
        async with Connection(server) as connection:
            assert (await connection.rest("GET", url)).startswith(b"HTTP/1.1 400")
        assert (await server.client.get("/works")).status_code == 200
    assert not errors(caplog)


async def test_a_stream_that_fails_has_no_end() -> None:
    """The client detects the missing end; the next request uses a new connection."""
    async with open_server(apis=(broken_routes,)) as server:
        async with Connection(server) as connection:
            answer = await connection.rest("GET", "/fails/stream")
            assert answer.startswith(b"HTTP/1.1 200")
            assert b"first" in answer
            assert not answer.endswith(b"0\r\n\r\n")
        async with Connection(server) as connection:
            assert (await connection.ask("GET", "/works"))[0] == 200


async def test_a_client_library_continues_after_an_error() -> None:
    async with open_server(apis=(broken_routes,)) as server:
        for _ in range(3):
            assert (await server.client.post("/v1/fails", json={})).status_code == 500
            assert (await server.client.get("/works")).status_code == 200
