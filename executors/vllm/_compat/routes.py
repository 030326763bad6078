"""vLLM's routes, called without what stands before them for routes of every kind.

FastAPI looks for a request's route among some eighty, through layers of middleware, and parses its
body, which was parsed before. That is a fifth of what a call costs, and half of what a large body
holds the event loop for.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.middleware.errors import ServerErrorMiddleware
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

Answering = Coroutine[Any, Any, Response | None]
FIELDS = "agentrt.fields"
"""The key of a scope that has the body's JSON, parsed: an object."""
_ERROR = "agentrt.error"
"""The key of a scope that has what became of its request."""
_CHECK = "validate_json_request"
"""vLLM's dependency that refuses what is not JSON; where there are `FIELDS`, it was."""
_WATCHING = "with_cancellation."
_UNUSED = ("ScalingMiddleware", "CORSMiddleware")
"""Middleware that does nothing for an engine of ours, and a request without an ``Origin``."""


class ShortRoutes:
    """``app``, with a short way to its ``paths``; with middleware of the user's, to none.

    ``most`` is what a prompt may have of tokens. ``rest`` is awaited between pieces of work for a
    request.
    """

    def __init__(
        self, app: FastAPI, paths: Collection[str], most: int, rest: Callable[[], Awaitable[None]]
    ) -> None:
        self.state = app.state
        self._app = app
        self._most = most
        self._rest = rest
        self._routes: dict[str, APIRoute] = {}
        if all(getattr(one.cls, "__name__", "") in _UNUSED for one in app.user_middleware):
            routes = (route for route in app.routes if isinstance(route, APIRoute))
            self._routes = {one.path: one for one in routes if one.path in paths and _is_plain(one)}
        self._handlers = {path: _handler(route) for path, route in self._routes.items()}
        handlers = dict(app.exception_handlers)
        last = handlers.pop(Exception, None)
        self._refuse = ServerErrorMiddleware(ExceptionMiddleware(_fail, handlers), last)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_short = FIELDS in scope and scope["path"] in self._routes
        if not is_short or b"origin" in dict(scope["headers"]):
            await self._app(scope, receive, send)
            return
        scope["app"] = self._app
        try:
            response = await self._answer(Request(scope, receive, send))
        except Exception as error:  # only now: they would see every piece of an answer
            scope[_ERROR] = error
            await self._refuse(scope, receive, send)
        else:
            await self._rest()
            await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        path, fields = request.scope["path"], request.scope[FIELDS]
        route = self._routes[path]
        await self._rest()
        check_tokens(fields, self._most)
        [body] = route.dependant.body_params
        value, errors = body.validate(fields, {}, loc=("body",))
        if errors:
            raise RequestValidationError(errors, body=fields)
        await self._rest()
        named: dict[Any, Any] = {body.name: value, route.dependant.request_param_name: request}
        return await _unless_gone(self._handlers[path](**named), request)


async def _fail(scope: Scope, receive: Receive, send: Send) -> None:
    raise scope[_ERROR]


async def _unless_gone(answering: Answering, request: Request) -> Response:
    """The answer, or one of nothing when the client goes before: then ``answering`` is cancelled.

    It runs in the request's own task: what it takes of the event loop counts as the request's.
    """
    own, is_over = asyncio.current_task(), False
    assert own is not None

    async def until_gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    def cancel(waiting: asyncio.Task[None]) -> None:
        if not (is_over or waiting.cancelled()):
            own.cancel()

    waiting = asyncio.create_task(until_gone())
    waiting.add_done_callback(cancel)
    response = None
    try:
        with contextlib.suppress(asyncio.CancelledError):
            response = await answering
    finally:
        is_over = True
        waiting.cancel()
    if not own.cancelling():
        return response or JSONResponse(None)
    if not waiting.done():  # the server stops; vLLM may have answered that
        raise asyncio.CancelledError
    own.uncancel()
    return JSONResponse(None)


def _handler(route: APIRoute) -> Callable[..., Answering]:
    """A route's function, without the tasks around it by which vLLM hears that a client goes."""
    endpoint: Any = route.endpoint
    is_watched = endpoint.__code__.co_qualname.startswith(_WATCHING)
    return endpoint.__wrapped__ if is_watched else endpoint


def check_tokens(fields: Mapping[str, Any], most: int) -> None:
    """Raise vLLM's error for a prompt of token ids that is too long, before each of them is looked
    at.
    """
    prompt = fields.get("prompt")
    if not isinstance(prompt, list) or len(prompt) <= most or not isinstance(prompt[0], int):
        return
    if fields.get("truncate_prompt_tokens") is None:
        from vllm.exceptions import VLLMValidationError

        raise VLLMValidationError(
            f"This model's maximum context length is {most} tokens. However, your prompt contains "
            f"{len(prompt)} input tokens, which exceeds this limit even without any output tokens. "
            "Please reduce the length of the input prompt.",
            parameter="input_tokens",
            value=len(prompt),
        )


def _is_plain(route: APIRoute) -> bool:
    """Whether a route takes a JSON body and the request, and nothing else."""
    needs = route.dependant
    others = (needs.path_params, needs.query_params, needs.header_params, needs.cookie_params)
    return (
        len(needs.body_params) == 1
        and needs.request_param_name is not None
        and not any(others)
        and [getattr(one.call, "__name__", "") for one in needs.dependencies] == [_CHECK]
    )
