"""The base classes of the LangGraph API's routes, and the answers to errors of requests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import Annotated, Any, TypeVar
from uuid import UUID

import orjson
from fastapi import APIRouter, Depends, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute

from agentrt.errors import ProgramLoadError
from agentrt.serving.langgraph.outages import refusal
from agentrt.serving.langgraph.responses import JSON, check_json, invalid, summary
from agentrt.serving.tenants import BusyError

Handler = TypeVar("Handler", bound=Callable[..., Any])
_ROUTES = "agentrt_routes"
_WRITES = ("POST", "PUT", "PATCH")


def route(
    method: str, path: str, status: int | None = None, *, writes: bool | None = None
) -> Callable[[Handler], Handler]:
    """Declare that a method of a `Routes` class handles requests to ``path``. ``status`` is the
    status code of a success; None means 200.

    ``writes`` says whether the requests need space on the database's disk. Requests that only read,
    or that end runs or delete data, need none, and so do requests whose handler checks the space
    itself. None means yes for POST, PUT and PATCH.
    """
    writes = method in _WRITES if writes is None else writes

    def declared(handler: Handler) -> Handler:
        handler.__dict__.setdefault(_ROUTES, []).append((method, path, status, writes))
        return handler

    return declared


class Routes:
    """A base class for classes whose methods handle requests. The router tries the methods in the
    order of their definitions.
    """

    def add_to(self, router: APIRouter, check_space: Callable[[], Awaitable[None]]) -> None:
        """Add all methods that were declared with `route` to ``router``. Requests that write call
        ``check_space`` first.
        """
        for name, handler in vars(type(self)).items():
            for method, path, status, writes in getattr(handler, _ROUTES, ()):
                router.add_api_route(
                    path,
                    getattr(self, name),
                    methods=[method],
                    status_code=status,
                    dependencies=[Depends(check_space)] if writes else [],
                )


async def _path_thread(request: Request) -> UUID | None:
    # Async, because FastAPI would run a plain function in another thread.
    text = request.path_params.get("thread_id")
    try:
        return None if text is None else UUID(text)
    except ValueError:
        raise invalid(f"thread_id: {text!r} is not a UUID") from None


PathThread = Annotated[UUID | None, Depends(_path_thread)]
"""The thread id in the path; None if the path has none. Handlers of several paths use this
parameter.
"""


class Route(APIRoute):
    """A route of this API. It answers errors with ``{"detail": SENTENCE}``."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handler(request: Request) -> Response:
            try:
                await _check_body(request)
                return await handle(request)
            except RequestValidationError as error:
                return JSON({"detail": summary(error.errors())}, 422)
            except ProgramLoadError as error:  # a factory failed for the config of this request
                return JSON({"detail": str(error)}, 500)
            except BusyError as error:
                headers = {"Retry-After": str(error.retry_after)}
                return JSON({"detail": str(error)}, 429, headers)
            except HTTPException as error:
                return _answer(error)
            except Exception as error:
                if (refused := refusal(error)) is None:
                    raise
                return _answer(refused)

        return handler


def _answer(error: HTTPException) -> JSON:
    return JSON({"detail": error.detail}, error.status_code, dict(error.headers or {}))


async def _check_body(request: Request) -> None:
    """Raise 422 for a body that is not valid JSON, or whose JSON cannot be stored."""
    if not (body := await request.body()):
        return
    try:
        orjson.loads(body)  # Python's own parser accepts NaN
        value = await request.json()
    except (ValueError, RecursionError) as error:
        raise invalid(f"the body is not valid JSON: {error}") from None
    try:
        check_json(value)
    except (ValueError, RecursionError) as error:
        raise invalid(f"the body cannot be stored: {error}") from None
