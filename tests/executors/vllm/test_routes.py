"""A request whose body is parsed goes to vLLM's route straight, where nothing stands before it."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request as Asked
from starlette.responses import JSONResponse, Response

pytest.importorskip("vllm")

from vllm.entrypoints.serve.utils.api_utils import with_cancellation

from agentrt.executors.vllm._compat.routes import FIELDS, ShortRoutes

pytestmark = pytest.mark.engine


class Body(BaseModel):
    count: int


async def validate_json_request(raw_request: Request) -> None:
    raw_request.state.checked = True


def application() -> FastAPI:
    """Two routes as vLLM's, which tell whether FastAPI called them."""
    app = FastAPI()
    app.add_middleware(CORSMiddleware, allow_origins=["*"])

    @app.post("/short", dependencies=[Depends(validate_json_request)])
    async def short(request: Body, raw_request: Request) -> Response:
        if request.count < 0:
            raise ValueError("negative")
        if not request.count:
            raise RuntimeError("a bug")
        by_fastapi = hasattr(raw_request.state, "checked")
        return JSONResponse({"count": request.count, "by_fastapi": by_fastapi})

    @app.post("/other")
    async def other(request: Body, raw_request: Request, more: int = 1) -> Response:
        return JSONResponse({"count": request.count, "by_fastapi": True})

    @app.exception_handler(RequestValidationError)
    @app.exception_handler(ValueError)
    async def refused(request: Asked, error: Exception) -> Response:
        return JSONResponse({"error": type(error).__name__}, 400)

    @app.exception_handler(Exception)
    async def failed(request: Asked, error: Exception) -> Response:
        return JSONResponse({"error": type(error).__name__}, 500)

    return app


rested: list[int] = []
"""The pauses of the last request."""


def asked(app: FastAPI, path: str, fields: Any, headers: Any = None) -> httpx.Response:
    """The answer to a request whose body is broken, and was parsed by somebody else."""
    rested.clear()

    async def rest() -> None:
        rested.append(1)

    routes = ShortRoutes(app, ("/short", "/other"), 10, rest)

    async def parsed(scope: Any, receive: Any, send: Any) -> None:
        await routes({**scope, FIELDS: fields}, receive, send)

    async def post() -> httpx.Response:
        transport = httpx.ASGITransport(parsed, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            kind = {"content-type": "application/json"}
            return await client.post(path, content=b"{", headers={**kind, **(headers or {})})

    return asyncio.run(post())


@pytest.mark.parametrize(
    ("fields", "status", "says"),
    [
        ({"count": 2}, 200, {"count": 2, "by_fastapi": False}),
        ({"count": "x"}, 400, {"error": "RequestValidationError"}),
        ({"count": -1}, 400, {"error": "ValueError"}),
        ({"count": 0}, 500, {"error": "RuntimeError"}),
    ],
)
def test_a_parsed_body_is_not_parsed_again(fields: Any, status: int, says: Any) -> None:
    answer = asked(application(), "/short", fields)
    assert (answer.status_code, answer.json()) == (status, says)


def test_others_go_on_between_checking_making_and_sending() -> None:
    asked(application(), "/short", {"count": 2})
    assert len(rested) == 3


@pytest.mark.parametrize("swallows", [False, True])
async def test_who_goes_before_the_answer_ends_its_work(swallows: bool) -> None:
    """The work is cancelled, also if it makes an answer of that; nothing of it is left."""
    app, ended = FastAPI(), list[str]()

    @app.post("/short", dependencies=[Depends(validate_json_request)])
    @with_cancellation
    async def short(request: Body, raw_request: Request) -> Response:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append("cancelled")
            if not swallows:
                raise
        return JSONResponse("gone")

    own = asyncio.current_task()
    assert own is not None
    sent = await exchanged(app, {"type": "http.disconnect"})
    assert (ended, sent, own.cancelling()) == (["cancelled"], b"null", 0)


@pytest.mark.parametrize("swallows", [False, True])
async def test_a_server_that_stops_cancels_the_request(swallows: bool) -> None:
    app, began = FastAPI(), asyncio.Event()

    @app.post("/short", dependencies=[Depends(validate_json_request)])
    @with_cancellation
    async def short(request: Body, raw_request: Request) -> Response:
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if not swallows:
                raise
        return JSONResponse("stopped")

    asking = asyncio.create_task(exchanged(app, {}))
    await began.wait()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking


async def exchanged(app: FastAPI, then: Any) -> bytes:
    """What a client is sent that, after its request, does ``then``, or waits."""
    sent: list[bytes] = []
    coming = iter([{"type": "http.request", "body": b"{}"}, then])

    async def receive() -> Any:
        return next(coming) or await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message.get("body", b""))

    async def rest() -> None: ...

    scope = {"type": "http", "path": "/short", "headers": [], FIELDS: {"count": 1}}
    await ShortRoutes(app, ("/short",), 10, rest)(scope, receive, send)
    return b"".join(sent)


def test_what_needs_more_goes_the_long_way() -> None:
    """A route that takes more than a body, a browser's request, middleware of the user's own."""
    own = application()
    own.add_middleware(Own)
    for app, path, headers in (
        (application(), "/other", {}),
        (application(), "/short", {"origin": "http://page"}),
        (own, "/short", {}),
    ):
        answer = asked(app, path, {"count": 2}, headers)
        assert answer.status_code == 400, answer.text  # of the body, which is no JSON


class Own:
    """Middleware that somebody gave by `--middleware`."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, *args: Any) -> None:
        await self._app(*args)
