"""The HTTP routes that update the weights of the engines, and pause and resume generation.

The routes have the names and query parameters of vLLM's own server. Only operators may use them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse
from pydantic import Field

from agentrt.errors import AgentrtError, UsageError
from agentrt.request.weights import PauseMode
from agentrt.runtime.updates import OnStale
from agentrt.serving.error_responses import ApiError, OpenAIRoute
from agentrt.serving.programs.bodies import Strict
from agentrt.serving.server import Server


class UpdateRequest(Strict):
    """The body of ``POST /update_weights``: the arguments of `Runtime.update_weights`. ``path`` is
    a folder of safetensors on the machines of the engines.
    """

    path: Annotated[str, Field(min_length=1, max_length=4096, pattern=r"^[^\x00]*$")]
    version: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    mode: PauseMode = "keep"
    clear_cache: bool = False
    max_staleness: Annotated[int, Field(ge=0)] | None = None
    on_stale: OnStale = "wait"


async def _operator(request: Request) -> None:
    if not request.state.operator:
        raise ApiError(
            403, "only operators may control the engines; use the API key of an operator"
        )


@asynccontextmanager
async def api(server: Server) -> AsyncIterator[APIRouter]:
    """Yield the router. Each route exists under its name in vLLM's server, and below ``/v1``."""
    router = APIRouter(route_class=OpenAIRoute, tags=["weights"], dependencies=[Depends(_operator)])
    runtime = server.runtime

    def state() -> dict[str, Any]:
        weights = runtime.executor.weights
        return {
            "weight_version": str(weights.version),
            "version": weights.version,
            "path": weights.folder or None,
            "is_paused": runtime.executor.paused,
        }

    async def update_weights(body: UpdateRequest) -> JSONResponse:
        """Replace the weights of all engines, and answer when all engines have the new weights. By
        default, calls and programs continue. After an error, all engines have their old weights.
        """
        options = body.model_dump(exclude={"path"})
        with _as_answers():
            await runtime.update_weights(body.path, **options)
        return JSONResponse(state())

    async def pause(mode: PauseMode = "abort", clear_cache: bool = True) -> JSONResponse:
        """Pause generation, and answer when no call runs. ``clear_cache`` has no effect, because no
        call gets cached blocks of other weights.
        """
        with _as_answers():
            await runtime.pause_generation(mode)
        return JSONResponse({"status": "paused"})

    async def resume() -> JSONResponse:
        """Resume generation."""
        with _as_answers():
            await runtime.resume_generation()
        return JSONResponse({"status": "resumed"})

    async def weight_info() -> JSONResponse:
        """Return the version of the weights, their folder, and whether generation is paused."""
        return JSONResponse(state())

    for prefix in ("", "/v1"):
        router.post(f"{prefix}/update_weights", response_model=None)(update_weights)
        router.post(f"{prefix}/pause", response_model=None)(pause)
        router.post(f"{prefix}/resume", response_model=None)(resume)
        router.get(f"{prefix}/weight_info", response_model=None)(weight_info)
        router.get(f"{prefix}/is_paused", response_model=None)(weight_info)
    yield router


@contextmanager
def _as_answers() -> Iterator[None]:
    """Convert errors to answers: 400 for a mistake of the client, 503 for an engine that failed."""
    try:
        yield
    except AgentrtError as error:
        raise ApiError(400 if isinstance(error, UsageError) else 503, str(error)) from error
