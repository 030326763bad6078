"""The server's APIs as one ASGI application."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING

from fastapi import FastAPI
from fastapi.exception_handlers import http_exception_handler
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from agentrt import __version__
from agentrt.errors import ConfigError
from agentrt.serving.error_responses import error_response, is_openai
from agentrt.serving.middleware import Middleware, server_failed
from agentrt.serving.origins import OriginCheck
from agentrt.serving.server import Api, Server

if TYPE_CHECKING:
    from langgraph_sdk import Auth

    from agentrt.serving.frontend.dispatch import FrontendApp

_CHAT_PAGE = "/chat/"


def load_apis(projects: Sequence[Path] = ()) -> list[Api]:
    """Return the server's APIs, without the MCP API if its packages are not installed. ``projects``
    are the ``langgraph.json`` files that are served.

    Raises `ConfigError` if more than one of these files has authentication hooks, and
    `ProgramLoadError` for hooks that cannot be loaded.
    """
    from agentrt.serving import chat, langgraph, mcp, observability
    from agentrt.serving.batches.api import api as batches
    from agentrt.serving.programs.api import api as programs
    from agentrt.serving.questions.api import api as questions
    from agentrt.serving.weights import api as weights

    auth = _auth_of(projects)
    apis = [programs, questions, langgraph.api_with(auth), batches, observability.api, chat.api]
    apis.append(weights)
    return [*apis, mcp.api_with(graphs=auth is None)] if mcp.is_installed() else apis


def _auth_of(projects: Sequence[Path]) -> Auth | None:
    if not projects:
        return None
    from agentrt.serving.langgraph.auth.hooks import load_auth

    hooks = {path: auth for path in projects if (auth := load_auth(path)) is not None}
    if len(hooks) > 1:
        names = ", ".join(map(str, hooks))
        raise ConfigError(
            f"several projects have authentication hooks ({names}), and a server can use "
            "the hooks of one project only; serve the projects on separate servers"
        )
    return next(iter(hooks.values()), None)


@asynccontextmanager
async def opened_app(
    server: Server, apis: Sequence[Api], rest: FrontendApp | None = None
) -> AsyncIterator[ASGIApp]:
    """Open the ``apis``, and yield the application; at the end, close the APIs and their tasks.

    Requests to paths that no API has go to ``rest``.
    """
    app = FastAPI(title="agentrt", version=__version__, docs_url=None, redoc_url=None)
    app.add_exception_handler(HTTPException, partial(_http_error, rest))
    app.add_exception_handler(Exception, _internal_error)
    server.frontend = rest
    async with AsyncExitStack() as stack:
        for api in apis:
            app.include_router(await stack.enter_async_context(api(server)))
        if rest is not None:
            app.router.default = rest
        direct = {} if rest is None else dict.fromkeys(rest.paths, rest)
        origins = OriginCheck(server.origins, has_keys=server.keys is not None)
        yield Middleware(app, server, origins, direct)


async def _internal_error(request: Request, error: Exception) -> Response:
    return server_failed(request.url.path)


async def _http_error(rest: FrontendApp | None, request: Request, error: Exception) -> Response:
    """Answer an HTTP error, such as an unknown path, in the format of the API at the path."""
    assert isinstance(error, HTTPException)
    path = request.url.path
    # Clients whose base URL lacks /v1 call /chat/completions, and the page has the paths there.
    is_of_page = error.status_code == 405 and path.startswith(_CHAT_PAGE)
    if is_of_page and rest and (refusal := rest.wrong_url(request.method, path)) is not None:
        return refusal
    if not is_openai(path):
        return await http_exception_handler(request, error)
    detail = str(error.detail)
    if detail == HTTPStatus(error.status_code).phrase:
        detail = detail.lower()
    message = f"{request.method} {path}: {detail}"
    return error_response(path, error.status_code, message, headers=error.headers)
