"""Routes of the LangGraph API: how they are declared, and what is answered where one fails."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
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


def route(method: str, path: str, status: int | None = None) -> Callable[[Handler], Handler]:
    """Declare that a method of `Routes` answers requests to ``path``."""

    def declared(handler: Handler) -> Handler:
        handler.__dict__.setdefault(_ROUTES, []).append((method, path, status))
        return handler

    return declared


class Routes:
    """A class whose methods answer requests. A path is matched in the order of the methods."""

    def add_to(self, router: APIRouter) -> None:
        """Add all methods that were declared with `route`."""
        for name, handler in vars(type(self)).items():
            for method, path, status in getattr(handler, _ROUTES, ()):
                router.add_api_route(
                    path, getattr(self, name), methods=[method], status_code=status
                )


def _path_thread(request: Request) -> UUID | None:
    given = request.path_params.get("thread_id")
    try:
        return None if given is None else UUID(given)
    except ValueError:
        raise invalid(f"thread_id: {given!r} is no UUID") from None


PathThread = Annotated[UUID | None, Depends(_path_thread)]
"""The thread in the path, for a handler of several paths, some of which have none."""


class Route(APIRoute):
    """A route of this API: a bad request is answered with one sentence."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handler(request: Request) -> Response:
            try:
                await _check_body(request)
                return await handle(request)
            except RequestValidationError as error:
                return JSON({"detail": summary(error.errors())}, 422)
            except ProgramLoadError as error:  # a factory that cannot make its graph for this
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
    """Raise 422 for a body that is not JSON, or JSON that cannot be stored."""
    if not (body := await request.body()):
        return
    try:
        orjson.loads(body)  # Python's own parser takes NaN
        check_json(await request.json())
    except (ValueError, RecursionError) as error:
        raise invalid(f"the body is no JSON: {error}") from None
