"""The route by which clients send programs as source."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import APIRouter
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from agentrt.program import Context, Program
from agentrt.serving.error_responses import ApiError
from agentrt.serving.middleware import tenant_of
from agentrt.serving.programs.bodies import Label, RunRequest
from agentrt.serving.programs.runs import ProgramRuns, RunAnswer
from agentrt.serving.server import Server
from agentrt.serving.submit.sandbox import Sandbox
from agentrt.serving.tenants import BusyError, Limits

_MOST_SOURCE = 64 * 1024
_DEADLINE_S = 3600.0
_RETRY_S = 1.0


class SubmitRequest(RunRequest):
    """``POST /v1/programs``: a run of the program in ``source``, called ``name``."""

    source: str = Field(min_length=1, max_length=_MOST_SOURCE)
    name: Label = "submitted"


@asynccontextmanager
async def submissions(
    router: APIRouter, server: Server, runs: ProgramRuns, answer: RunAnswer
) -> AsyncIterator[None]:
    """Add the route; the programs that came by it have ended when the block has."""
    live: Counter[str] = Counter()
    async with Sandbox() as sandbox:

        @router.post("/programs", response_model=None)
        async def submit(request: Request, body: SubmitRequest) -> Response:
            """Run a program that is sent as source: its ``async def main(ctx)``, or
            ``main(ctx, input)`` where an input is given, in a sandbox.

            The answer is that of a run of a program that is served.
            """
            if body.name in server.served:
                text = f"name: a program {body.name!r} is served here; choose another"
                raise ApiError(409, text, param="name", code="name_taken")
            tenant = tenant_of(request)
            limits = server.tenants.limits(tenant)
            if live[tenant] >= limits.submitted:
                text = f"tenant {tenant!r} has {limits.submitted} live submitted programs"
                raise BusyError(f"{text}; wait for one to end", _RETRY_S)
            if body.deadline is None:
                body.deadline = _DEADLINE_S
            one = runs.start(_program(sandbox, body, limits, tenant), tenant, body)
            live[tenant] += 1
            assert one.run.task is not None
            one.run.task.add_done_callback(lambda task: _ended(live, tenant))
            return await answer(request, one, body)

        yield


def _ended(live: Counter[str], tenant: str) -> None:
    live[tenant] -= 1
    if not live[tenant]:
        del live[tenant]


def _program(sandbox: Sandbox, body: SubmitRequest, limits: Limits, tenant: str) -> Program:
    given = () if body.input is None else (body.input,)

    async def submitted(ctx: Context, input: Any = None) -> Any:
        return await sandbox.run(body.source, ctx, given, limits, tenant)

    return Program(submitted, body.name)
