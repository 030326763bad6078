"""Programs that a client begins and ends by hand: the paper's start_session and end_session."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from agentrt.serving.middleware import tenant_of
from agentrt.serving.openai.client_programs import ClientProgram
from agentrt.serving.openai.identity import Claim
from agentrt.serving.openai.request_handler import RequestHandler
from agentrt.serving.openai.requests import SessionRequest

_LISTED = 1000


def add_sessions(router: APIRouter, desk: RequestHandler) -> None:
    """Add the routes."""
    now = desk.server.runtime.now

    @router.post("/sessions", response_model=None, status_code=201)
    async def start_session(request: Request, body: SessionRequest | None = None) -> Response:
        """Begin a program. Its calls name its ``id`` in the header ``x-agentrt-program``."""
        asked = SessionRequest.model_validate({}) if body is None else body
        claim = Claim(type=asked.type, session=asked.session, deadline_s=asked.deadline)
        guest = desk.guests.start_session(tenant_of(request), claim)
        return JSONResponse(describe_program(guest, now()), 201)

    @router.get("/sessions", response_model=None)
    async def list_sessions(request: Request) -> Response:
        """The live programs that have a name, the first thousand."""
        named = desk.guests.named(tenant_of(request))[:_LISTED]
        data = [describe_program(guest, now()) for guest in named]
        return JSONResponse({"object": "list", "data": data})

    @router.get("/sessions/{session_id}", response_model=None)
    async def retrieve_session(request: Request, session_id: str) -> Response:
        """How a program stands."""
        guest = desk.guests.session(tenant_of(request), session_id)
        return JSONResponse(describe_program(guest, now()))

    @router.delete("/sessions/{session_id}", response_model=None)
    async def end_session(request: Request, session_id: str) -> Response:
        """The program is over. Calls that it still has are called off."""
        guest = desk.guests.end_session(tenant_of(request), session_id)
        return JSONResponse({**describe_program(guest, now()), "deleted": True})


def describe_program(guest: ClientProgram, now: float) -> dict[str, Any]:
    """A client's program, and what it cost so far; times in seconds."""
    report = guest.run.report(now)
    return {
        "id": guest.name,
        "object": "session",
        "program": guest.run.id,
        "type": report.type,
        "state": report.state,
        "open_calls": guest.open,
        "calls": report.calls,
        "service_s": round(report.service_s, 6),
        "waiting_s": round(report.waiting_s, 6),
        "critical_path_s": round(report.critical_path_s, 6),
        "prompt_tokens": report.prompt_tokens,
        "output_tokens": report.output_tokens,
        "cached_tokens": report.cached_tokens,
    }
