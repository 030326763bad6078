"""The HTTP routes of clients' runs and of served programs, and the background tasks behind them.

A client starts a run of a served ``@program`` function, and then waits for the run's result,
streams the run's events, or asks for the run's state.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict
from typing import Any
from urllib.parse import quote

from fastapi import APIRouter
from pydantic import Field
from sse_starlette import EventSourceResponse
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from agentrt.errors import ConfigError, text_of
from agentrt.extras import install_command
from agentrt.program import Program
from agentrt.runtime.events import Event, NodeChanged, NodeEnded, NodeStarted, RunEnded
from agentrt.runtime.run import Run, RunState, cancel_until_ended
from agentrt.scheduler.table import ProgramState, state_of
from agentrt.serving.error_responses import ApiError, OpenAIRoute, client_gone
from agentrt.serving.former import FormerPath
from agentrt.serving.keep_alive import NEVER_S
from agentrt.serving.langgraph.responses import JSON, encode, to_json
from agentrt.serving.middleware import tenant_of
from agentrt.serving.programs.bodies import Label, RunRequest, Strict
from agentrt.serving.programs.client_programs import ClientProgram
from agentrt.serving.programs.identity import Claim
from agentrt.serving.programs.left import LATE, ended_run, left_runs
from agentrt.serving.programs.parked import Parking
from agentrt.serving.programs.runs import ProgramRuns, RunAnswer, ServedRun
from agentrt.serving.questions.server_questions import QuestionView
from agentrt.serving.server import Server
from agentrt.serving.submit.limits import SubmittedProgramError

_LOG = logging.getLogger(__name__)


def add_runs(
    router: APIRouter, server: Server, runs: ProgramRuns, parking: Parking | None = None
) -> RunAnswer:
    """Add the routes of programs and runs to ``router``.

    Returns the function that answers a request which has started a run.
    """

    async def answer(request: Request, served_run: ServedRun, body: RunRequest) -> Response:
        if body.stream:
            return EventSourceResponse(
                _events(served_run, served_run.watch()), sep="\n", ping=NEVER_S
            )
        if not body.wait:
            await _begun(served_run.run)  # a run whose id the client gets must be in the journal
            return JSON(describe_run(served_run), 202)
        if await _is_gone_before(request, served_run.run):
            cancel_until_ended(served_run.run)
            return client_gone()
        return JSON(describe_run(served_run))

    @router.get("/programs", response_model=None)
    async def list_programs() -> Response:
        """List the served ``@program`` functions, of which clients can start runs."""
        served = [_describe(name, program) for name, program in server.native.items()]
        return JSONResponse({"object": "list", "data": served})

    @router.get("/programs/{name}", response_model=None)
    async def retrieve_program(name: str) -> Response:
        """Return a program's description, the schema of its input, and its routes."""
        return JSONResponse(_describe(name, _program(server, name)))

    @router.post("/programs/{name}/runs", response_model=None)
    async def start_run(request: Request, name: str, body: RunRequest) -> Response:
        """Start a run of a program, and answer with the run's result when the run has ended.

        With ``stream``, the answer is a stream of events: a ``node`` event when a node of the run
        begins, changes or ends, a ``question`` event when a question to a human opens or closes,
        and at the end a ``run`` event with the result. With ``wait`` false, the answer is the state
        of the run at its beginning. A client that disconnects while it waits or streams cancels the
        run.
        """
        program = _program(server, name)
        accepted = accept_input(program, body.input)
        body = body.model_copy(update={"input": accepted})
        tenant = tenant_of(request)
        return await answer(request, runs.start(program, tenant, body), body)

    @router.get("/programs/{name}/runs/{run_id}", response_model=None)
    async def retrieve_run(request: Request, name: str, run_id: str) -> Response:
        """Return the state of a run, and the run's result when the run has ended."""
        tenant = tenant_of(request)
        return JSON(await _describe_any(server, runs, parking, tenant, name, run_id))

    @router.post("/programs/{name}/runs/{run_id}/cancel", response_model=None)
    async def cancel_run(request: Request, name: str, run_id: str) -> Response:
        """Cancel a run, and answer when it has ended."""
        tenant = tenant_of(request)
        if parking is not None and await parking.cancel(tenant, name, run_id):
            return JSON(await _describe_any(server, runs, parking, tenant, name, run_id))
        served_run = runs.get(tenant, name, run_id)
        cancel_until_ended(served_run.run)
        await _end_of(served_run.run)
        return JSON(describe_run(served_run))

    return answer


async def _describe_any(
    server: Server,
    runs: ProgramRuns,
    parking: Parking | None,
    tenant: str,
    name: str,
    run_id: str,
) -> dict[str, Any]:
    """Describe a run of this server or an earlier server. Raises `ApiError` for an unknown run."""
    parked = None if parking is None else await parking.describe(tenant, name, run_id)
    if parked is not None:
        return parked
    if not runs.has(run_id):
        ended = await ended_run(server.runtime.journal, tenant, name, run_id)
        if ended is not None:
            return {**ended, "result": to_json(ended["result"])}
    return describe_run(runs.get(tenant, name, run_id))


def _program(server: Server, name: str) -> Program:
    programs = server.native
    if name not in programs:
        known = ", ".join(programs) or "none"
        text = f"unknown program {name!r}; served programs: {known}"
        if name in server.served:
            text = (
                f"{name!r} is a graph, not a program; run it with LangGraph's API: POST /runs/wait "
                f'with {{"assistant_id": "{name}", "input": …}}'
            )
        raise ApiError(404, text, code="program_not_found")
    return programs[name]


def accept_input(program: Program, input_value: Any) -> Any:
    """Return the input of a program, converted to the type that the program expects.

    Raises `ApiError` if the input is missing or has a wrong type, or if the program takes no input.
    """
    if program.needs_input and input_value is None:
        text = f"program {program.name!r} needs an input; send the field 'input'"
        raise ApiError(400, text, param="input")
    if input_value is not None and not program.takes_input:
        text = f"program {program.name!r} takes no input; leave the field 'input' out"
        raise ApiError(400, text, param="input")
    try:
        return program.accept_input(input_value)
    except ConfigError as error:
        raise ApiError(400, str(error), param="input") from error


def _describe(name: str, program: Program) -> dict[str, Any]:
    path = f"/v1/programs/{quote(name, safe='')}"
    return {
        "id": name,
        "object": "program",
        "takes_input": program.takes_input,
        "needs_input": program.needs_input,
        "description": (program.__doc__ or "").strip() or None,
        "input_schema": program.input_schema(),
        "links": {"self": path, "runs": f"{path}/runs"},
    }


async def _begun(run: Run) -> None:
    """Wait until the run is recorded in the journal, or has ended before that."""
    assert run.task is not None
    begun = asyncio.create_task(run.begun.wait())
    await asyncio.wait([run.task, begun], return_when=asyncio.FIRST_COMPLETED)
    begun.cancel()


async def _end_of(run: Run) -> None:
    if run.task is not None:
        await asyncio.wait([run.task])


async def _is_gone_before(request: Request, run: Run) -> bool:
    """Wait until the run ends or its client disconnects. Return whether the client disconnected
    first.
    """
    assert run.task is not None
    gone = asyncio.create_task(_gone(request))
    try:
        await asyncio.wait([run.task, gone], return_when=asyncio.FIRST_COMPLETED)
    finally:
        gone.cancel()
    return not run.task.done()


async def _gone(request: Request) -> None:
    """Wait until the client has disconnected."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def describe_run(served_run: ServedRun) -> dict[str, Any]:
    """Describe a run for its client: its state, and its result or error when it has ended."""
    run = served_run.run
    described: dict[str, Any] = {
        "id": run.id,
        "object": "program.run",
        "program": run.type,
        "state": _state(run),
        "parked": False,
        "questions": [question.to_json() for question in served_run.questions.values()],
        "calls": run.row.finished_calls,
        "output_tokens": run.row.usage.output_tokens,
        "result": to_json(run.result) if run.state is RunState.DONE else None,
        "error": None,
    }
    if run.error is not None:
        described["error"] = {"type": type(run.error).__name__, "message": text_of(run.error)}
        if isinstance(run.error, SubmittedProgramError):
            described["error"] |= {"line": run.error.line, "traceback": run.error.traceback}
    elif served_run.is_late and run.state is RunState.CANCELLED:
        described["error"] = LATE
    return described


def _state(run: Run) -> str:
    """Return the state of a run: "waiting for a human" if the run is running, but does nothing
    except wait for a human, and else the name of its `RunState`.
    """
    doing = state_of(run.row, 0.0, math.inf) if run.state is RunState.RUNNING else None
    return str(doing if doing is ProgramState.WAITING_FOR_HUMAN else run.state)


async def _events(
    served_run: ServedRun, box: asyncio.Queue[Event | QuestionView]
) -> AsyncGenerator[dict[str, str], None]:
    """Yield server-sent events: nodes and questions as they change, and the run at its end. If the
    stream is closed before this end, cancel the run.
    """
    try:
        while not isinstance(event := await box.get(), RunEnded):
            if isinstance(event, QuestionView):
                yield {"event": "question", "data": encode(event.to_json()).decode()}
            elif isinstance(event, NodeStarted | NodeChanged | NodeEnded):
                yield {"event": "node", "data": encode(_node(event)).decode()}
        yield {"event": "run", "data": encode(describe_run(served_run)).decode()}
    finally:
        served_run.watchers.discard(box)
        cancel_until_ended(served_run.run)


def _node(event: NodeStarted | NodeChanged | NodeEnded) -> dict[str, Any]:
    node, interrupt = event.node, event.node.interrupt
    described = {
        "id": node.id,
        "kind": str(node.kind),
        "name": node.name,
        "state": str(node.state),
        "parents": list(node.parents),
    }
    if interrupt is not None:
        progress = interrupt.progress
        described["wait"] = node.wait
        described["attempt"] = interrupt.attempt
        described["progress"] = None if progress is None else asdict(progress)
    return described


# -- all routes ---------------------------------------------------------------------------


_LONGEST_PAUSE_S = 1.0
_LISTED = 1000


@asynccontextmanager
async def api(server: Server) -> AsyncIterator[APIRouter]:
    """Yield the router of clients' runs and of served programs. At the end, park the runs that can
    be parked, and cancel or end all other runs.
    """
    runs = ProgramRuns(server)
    router = APIRouter(prefix="/v1", route_class=OpenAIRoute)
    _add_client_runs(router, server)
    journal = server.runtime.journal
    parking = None if journal is None else Parking(server, runs, journal)
    answer = add_runs(router, server, runs, parking)
    pause_s = min(_LONGEST_PAUSE_S, server.bounds.idle_s / 4, server.bounds.silent_idle_s / 4)

    async def sweep() -> None:
        """End client programs without recent requests, or all idle programs on a draining server.

        Also forget old runs, and park or resume runs.
        """
        server.programs.sweep(all_idle=server.draining)
        runs.sweep()
        if parking is not None:
            await parking.sweep()

    async with AsyncExitStack() as stack:
        if server.submit:
            await stack.enter_async_context(_submissions()(router, server, runs, answer))
        await go_on(server, runs)
        if parking is not None:
            parking.open_source()
        whole = APIRouter(route_class=OpenAIRoute)
        whole.include_router(router)
        _add_release(whole, server)
        try:
            async with server.background.doing("sweep of programs", sweep, pause_s):
                yield whole
        finally:
            if parking is not None:
                parking.close()
            await runs.close()
            server.programs.end_all()


async def go_on(server: Server, runs: ProgramRuns) -> None:
    """Resume the runs that the previous server left in the journal."""
    journal, native = server.runtime.journal, server.native
    if journal is None:
        return
    server.checks["journal"] = journal.fault
    registry = server.runtime.registry
    registry.opened = max(registry.opened, await journal.last_number())
    programs = {program.name: program for program in native.values()}
    for left in await left_runs(journal, programs):
        runs.go_on(programs[left.type], left)


def _submissions() -> Any:
    try:
        from agentrt.serving.submit.sandbox import submissions
    except ImportError as error:
        text = f"--submit needs further packages ({error}); run: {install_command('submit')}"
        raise ConfigError(text) from error
    return submissions


# -- runs of clients' programs: start_session and end_session of the Agentix paper -----------


_PATH, _FORMER_PATH = "/client-runs", "/sessions"


class ClientRunRequest(Strict):
    """The body of ``POST /v1/client-runs``. ``deadline`` is in seconds from now."""

    type: Label | None = None
    session: Label | None = None
    deadline: float | None = Field(None, gt=0, le=7 * 24 * 3600)


def _add_client_runs(router: APIRouter, server: Server) -> None:
    """Add the routes by which a client explicitly begins and ends a run of its own program.

    The former path ``/v1/sessions`` works until version 0.4.
    """
    now, sessions = server.runtime.now, FormerPath(f"/v1{_FORMER_PATH}", f"/v1{_PATH}")

    def answer(request: Request, content: dict[str, Any], status: int = 200) -> Response:
        return JSONResponse(content, status, sessions.headers(request))

    def describe(request: Request, program: ClientProgram) -> dict[str, Any]:
        kind = "session" if sessions.is_used(request) else "client_run"
        return {"id": program.name, "object": kind, **_describe_program(program, now())}

    def get(request: Request, name: str) -> ClientProgram:
        program = server.programs.get(tenant_of(request), name)
        if program is None:
            kind = "session" if sessions.is_used(request) else "run"
            raise ApiError(404, f"unknown {kind} {name!r}", code=f"{kind}_not_found")
        return program

    @router.post(_PATH, response_model=None, status_code=201)
    @router.post(_FORMER_PATH, response_model=None, status_code=201, deprecated=True)
    async def begin_client_run(request: Request, body: ClientRunRequest | None = None) -> Response:
        """Begin a run. Send its ``id`` in the header ``x-agentrt-run`` of its calls."""
        options = ClientRunRequest.model_validate({}) if body is None else body
        claim = Claim(type=options.type, session=options.session, deadline_s=options.deadline)
        program = server.programs.begin(tenant_of(request), claim)
        return answer(request, describe(request, program), 201)

    @router.get(_PATH, response_model=None)
    @router.get(_FORMER_PATH, response_model=None, deprecated=True)
    async def list_client_runs(request: Request) -> Response:
        """List the live runs of clients' programs that have a name, at most a thousand, oldest
        first.
        """
        named = server.programs.named(tenant_of(request))[:_LISTED]
        data = [describe(request, program) for program in named]
        return answer(request, {"object": "list", "data": data})

    @router.get(_PATH + "/{run_id}", response_model=None)
    @router.get(_FORMER_PATH + "/{run_id}", response_model=None, deprecated=True)
    async def retrieve_client_run(request: Request, run_id: str) -> Response:
        """Return the state of a run, and the seconds and tokens that it has used so far."""
        return answer(request, describe(request, get(request, run_id)))

    @router.delete(_PATH + "/{run_id}", response_model=None)
    @router.delete(_FORMER_PATH + "/{run_id}", response_model=None, deprecated=True)
    async def end_client_run(request: Request, run_id: str) -> Response:
        """End a run. Its open calls are cancelled."""
        program = get(request, run_id)
        server.programs.end(program)
        return answer(request, {**describe(request, program), "deleted": True})


class ReleaseRequest(Strict):
    """The body of ``POST /programs/release``, by which clients of ThunderAgent end a program."""

    program_id: str = Field(min_length=1)


def _add_release(router: APIRouter, server: Server) -> None:
    @router.post("/programs/release", response_model=None)
    async def release_program(request: Request, body: ReleaseRequest) -> Response:
        """End the program ``program_id``, the name that a client sends with its calls. The answer
        has ``released`` false if that program has ended already or is unknown.
        """
        program = server.programs.get(tenant_of(request), body.program_id)
        if program is not None:
            server.programs.end(program)
        return JSONResponse({"program_id": body.program_id, "released": program is not None})


def _describe_program(program: ClientProgram, now: float) -> dict[str, Any]:
    """Describe a client's program, and the seconds and tokens that it has used so far."""
    report = program.run.report(now)
    return {
        "run": program.run.id,
        "program": program.run.id,  # its former name, which works until 0.4
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
