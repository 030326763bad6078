"""The HTTP route by which clients send programs as source."""

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
    """The body of ``POST /v1/programs``: a run of the program in ``source``, called ``name``."""

    source: str = Field(min_length=1, max_length=_MOST_SOURCE)
    name: Label = "submitted"


@asynccontextmanager
async def submissions(
    router: APIRouter, server: Server, runs: ProgramRuns, answer: RunAnswer
) -> AsyncIterator[None]:
    """Add the route to ``router``. At the end of the ``with`` block, end all submitted programs."""
    live: Counter[str] = Counter()
    async with Sandbox() as sandbox:

        @router.post("/programs", response_model=None)
        async def submit(request: Request, body: SubmitRequest) -> Response:
            """Run a program that is sent as source, in a sandbox.

            The source defines ``async def main(ctx)``, or ``async def main(ctx, input)`` if the
            request has an input. The answer is the same as for a run of a served program.
            """
            if body.name in server.served:
                text = f"name: this server already serves {body.name!r}; choose another name"
                raise ApiError(409, text, param="name", code="name_taken")
            tenant = tenant_of(request)
            limits = server.tenants.limits(tenant)
            if live[tenant] >= limits.submitted:
                text = f"tenant {tenant!r} has {limits.submitted} live submitted programs"
                raise BusyError(f"{text}, the most that it may have; try again later", _RETRY_S)
            if body.deadline is None:
                body.deadline = _DEADLINE_S
            served_run = runs.start(_program(sandbox, body, limits, tenant), tenant, body)
            live[tenant] += 1
            assert served_run.run.task is not None
            served_run.run.task.add_done_callback(lambda task: _ended(live, tenant))
            return await answer(request, served_run, body)

        yield


def _ended(live: Counter[str], tenant: str) -> None:
    live[tenant] -= 1
    if not live[tenant]:
        del live[tenant]


def _program(sandbox: Sandbox, body: SubmitRequest, limits: Limits, tenant: str) -> Program:
    inputs = () if body.input is None else (body.input,)

    async def submitted(ctx: Context, input: Any = None) -> Any:
        return await sandbox.run(body.source, ctx, inputs, limits, tenant)

    return Program(submitted, body.name)
