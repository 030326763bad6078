"""The routes of sessions and of programs that are served, and the tasks behind them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from fastapi import APIRouter
from pydantic import Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from agentrt.errors import ConfigError
from agentrt.serving.middleware import tenant_of
from agentrt.serving.programs.bodies import Label, Strict
from agentrt.serving.programs.client_programs import ClientProgram
from agentrt.serving.programs.errors import OpenAIRoute
from agentrt.serving.programs.identity import Claim
from agentrt.serving.programs.left import left_runs, programs_of
from agentrt.serving.programs.run_routes import add_runs
from agentrt.serving.programs.runs import ProgramRuns
from agentrt.serving.server import Server

_LONGEST_PAUSE_S = 1.0
_LISTED = 1000


@asynccontextmanager
async def api(server: Server) -> AsyncIterator[APIRouter]:
    """Sessions and program runs over ``server``. At its end all clients' programs end."""
    runs = ProgramRuns(server)
    router = APIRouter(prefix="/v1", route_class=OpenAIRoute)
    _add_sessions(router, server)
    answer = add_runs(router, server, runs)
    pause_s = min(_LONGEST_PAUSE_S, server.bounds.idle_s / 4, server.bounds.silent_idle_s / 4)

    async def sweep() -> None:
        """End programs without a request for long; while the server drains, all idle ones."""
        server.programs.sweep(all_idle=server.draining)
        runs.sweep()

    async with AsyncExitStack() as stack:
        if server.submit:
            await stack.enter_async_context(_submissions()(router, server, runs, answer))
        await _go_on(server, runs)
        try:
            async with server.background.doing("sweep of programs", sweep, pause_s):
                yield router
        finally:
            await runs.close()
            server.programs.end_all()


async def _go_on(server: Server, runs: ProgramRuns) -> None:
    """Go on with the runs that the last server left in the journal."""
    journal, native = server.runtime.journal, server.native
    if journal is None:
        return
    server.checks["journal"] = journal.fault
    registry = server.runtime.registry
    registry.opened = max(registry.opened, await journal.last_number())
    for program, left in programs_of(native, await left_runs(journal, native)):
        runs.go_on(program, left)


def _submissions() -> Any:
    try:
        from agentrt.serving.submit.api import submissions
    except ImportError as error:
        text = f"--submit needs agentrt[submit] ({error}): pip install 'agentrt[submit]'"
        raise ConfigError(text) from error
    return submissions


# -- sessions: the paper's start_session and end_session ----------------------------------


class SessionRequest(Strict):
    """``POST /v1/sessions``: ``deadline`` is in seconds from now."""

    type: Label | None = None
    session: Label | None = None
    deadline: float | None = Field(None, gt=0, le=7 * 24 * 3600)


def _add_sessions(router: APIRouter, server: Server) -> None:
    """Add the routes of programs that a client begins and ends by hand."""
    now = server.runtime.now

    @router.post("/sessions", response_model=None, status_code=201)
    async def start_session(request: Request, body: SessionRequest | None = None) -> Response:
        """Begin a program. Its calls name its ``id`` in the header ``x-agentrt-program``."""
        asked = SessionRequest.model_validate({}) if body is None else body
        claim = Claim(type=asked.type, session=asked.session, deadline_s=asked.deadline)
        program = server.programs.start_session(tenant_of(request), claim)
        return JSONResponse(_describe(program, now()), 201)

    @router.get("/sessions", response_model=None)
    async def list_sessions(request: Request) -> Response:
        """The live programs that have a name, the first thousand."""
        named = server.programs.named(tenant_of(request))[:_LISTED]
        data = [_describe(program, now()) for program in named]
        return JSONResponse({"object": "list", "data": data})

    @router.get("/sessions/{session_id}", response_model=None)
    async def retrieve_session(request: Request, session_id: str) -> Response:
        """How a program stands."""
        program = server.programs.session(tenant_of(request), session_id)
        return JSONResponse(_describe(program, now()))

    @router.delete("/sessions/{session_id}", response_model=None)
    async def end_session(request: Request, session_id: str) -> Response:
        """The program is over. Calls that it still has are called off."""
        program = server.programs.end_session(tenant_of(request), session_id)
        return JSONResponse({**_describe(program, now()), "deleted": True})


def _describe(program: ClientProgram, now: float) -> dict[str, Any]:
    """A client's program, and what it cost so far; times in seconds."""
    report = program.run.report(now)
    return {
        "id": program.name,
        "object": "session",
        "program": program.run.id,
        "type": report.type,
        "state": report.state,
        "open_calls": program.open,
        "calls": report.calls,
        "service_s": round(report.service_s, 6),
        "waiting_s": round(report.waiting_s, 6),
        "critical_path_s": round(report.critical_path_s, 6),
        "prompt_tokens": report.prompt_tokens,
        "output_tokens": report.output_tokens,
        "cached_tokens": report.cached_tokens,
    }
