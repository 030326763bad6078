"""Makes the requests of a batch within this process, as those of its tenant over HTTP are made."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from pydantic_core import from_json
from starlette.types import ASGIApp, Message, Receive, Scope

from agentrt.batch.runner import fatal_in
from agentrt.errors import AgentrtError, NotServedError
from agentrt.executors.identity import PREFIX
from agentrt.program import Program
from agentrt.runtime.durable import Durable
from agentrt.runtime.run import RunState
from agentrt.serving.batches.lines import ANSWER, Outcome, Request, batch_of
from agentrt.serving.batches.places import CallPlaces, Places, ProgramPlaces
from agentrt.serving.bodies import TooLargeError, read_body, whole
from agentrt.serving.error_responses import ApiError, describe, log_fault, openai_error
from agentrt.serving.frontend.exchange import NO_CONNECTION
from agentrt.serving.programs.api import check_input, describe_run
from agentrt.serving.programs.bodies import RunRequest
from agentrt.serving.programs.left import BATCH
from agentrt.serving.programs.runs import ProgramRuns
from agentrt.serving.server import Server

ENDPOINTS = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings")
"""The endpoints of batches, where vLLM has them for the models that are served."""
_BUSY = (429, 503)
_BUSY_S = 5.0
_LONGEST_BUSY_S = 60.0
_SHORTEST_S = 0.001


class Target(Protocol):
    """Answers the requests of one endpoint."""

    @property
    def places(self) -> Places:
        """Where its requests wait until they may begin."""

    async def answer(self, tenant: str, request: Request, name: str) -> Outcome:
        """Answer a request, whose name is the same after a restart of the server."""


class CallTarget:
    """An endpoint of the model. A request passes the same checks as one over HTTP, and its calls
    are those of a program of their own, which ends with it.
    """

    def __init__(self, server: Server, endpoint: str, app: ASGIApp, places: CallPlaces) -> None:
        self._server = server
        self._endpoint = endpoint
        self._app = app
        self.places = places

    async def answer(self, tenant: str, request: Request, name: str) -> Outcome:
        """Answer a request; a tenant at a limit, or an engine that starts again, is busy."""
        body = json.dumps(request.body).encode()
        headers = {
            b"content-type": b"application/json",
            b"content-length": str(len(body)).encode(),
            f"{PREFIX}program".encode(): name.encode(),
            b"x-session-final": b"true",
        }
        scope: Scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": self._endpoint,
            "raw_path": self._endpoint.encode(),
            "root_path": "",
            "query_string": b"",
            "headers": list(headers.items()),
            "client": None,
            "server": None,
            "state": {
                "tenant": tenant,
                "operator": False,
                "request_id": name,
                "headers": headers,
                NO_CONNECTION: True,
            },
        }
        start: Message = {"status": 500}
        sent = bytearray()

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                start.update(message)
            else:
                sent.extend(message.get("body", b""))

        try:
            receive, _ = await read_body(
                _receiving(body), self._endpoint, headers, self._server.bounds.body_bytes
            )
            await self._app(scope, receive, send)
            answer = from_json(bytes(sent))
        except TooLargeError as error:
            text = openai_error(413, str(error), code="body_too_large")
            return Outcome(413, text, name)
        except Exception as error:  # a bug: the log gets its traceback, the batch goes on
            status, text, _ = describe(error)
            log_fault(status, error)
            return Outcome(status, text, name)
        status = start["status"]
        return Outcome(status, answer, name, _busy_s(start) if status in _BUSY else None)


def _receiving(body: bytes) -> Receive:
    """Return what gives the body of a request whose client never goes."""
    messages = iter((whole(body),))

    async def receive() -> Message:
        for message in messages:
            return message
        await asyncio.get_running_loop().create_future()
        raise AssertionError

    return receive


def _busy_s(start: Mapping[str, Any]) -> float:
    """Return the seconds after which a request that was refused for now may come again."""
    value = dict(start.get("headers", ())).get(b"retry-after", b"")
    return min(_LONGEST_BUSY_S, float(value)) if value.isdigit() else _BUSY_S


class ProgramTarget:
    """A served program. With a journal, a run that a kill has cut off is resumed from there."""

    def __init__(
        self, server: Server, runs: ProgramRuns, program: Program, places: ProgramPlaces
    ) -> None:
        self._journal = server.runtime.journal
        self._steady = server.runtime.steady
        self._runs = runs
        self._program = program
        self.places = places

    async def answer(self, tenant: str, request: Request, name: str) -> Outcome:
        """Run the program. What fails because the engine died is made again."""
        run_id = f"{self._program.name}-{name.removeprefix(ANSWER).replace('_', '.')}-1"
        try:
            body = RunRequest.model_validate(request.body)
            check_input(self._program, body.input)
            durable = await self._durable(run_id, name, body)
            if durable is not None and durable.options["until"] is not None:
                left_s = max(_SHORTEST_S, durable.options["until"] - self._steady.now())
                body = body.model_copy(update={"deadline": left_s})
            served = self._runs.start(self._program, tenant, body, durable=durable)
        except ValidationError as error:
            status, text, _ = describe(RequestValidationError(error.errors()))
            return Outcome(status, text, name)
        except (AgentrtError, ApiError) as error:
            status, text, headers = describe(error)
            busy_s = float(headers.get("retry-after", _BUSY_S)) if status in _BUSY else None
            return Outcome(status, text, name, busy_s)
        run = served.run
        assert run.task is not None
        try:
            await asyncio.wait([run.task])
        finally:
            if not run.task.done():
                # The batch says later whether the run goes on in the next server.
                run.left = True
                run.cancel()
                await asyncio.wait([run.task])
            self._runs.forget(served)
        described = describe_run(served)
        if fatal_in(run.error) is not None:
            return Outcome(503, described, name, _BUSY_S)
        return Outcome(200, described, name, fault=_fault(described))

    async def _durable(self, run_id: str, name: str, body: RunRequest) -> Durable | None:
        """Return how a run is recorded: its deadline stays that of its first start. None without a
        journal, and with one from which no run can be resumed.
        """
        journal = self._journal
        if journal is None or journal.content != "full":
            return None
        until = None
        if body.deadline is not None:
            rows = await journal.programs("id = ?", (run_id,))
            until = json.loads(rows[0].options)["until"] if rows else None
            until = self._steady.now() + body.deadline if until is None else until
        options = {BATCH: batch_of(name), "waits": True, "until": until}
        return Durable(options=options, id=run_id, skips=True)


def _fault(described: Mapping[str, Any]) -> Mapping[str, str] | None:
    """Return why a run has no result, or None."""
    state, error = described["state"], described["error"]
    if state == RunState.DONE:
        return None
    words = f"{error['type']}: {error['message']}" if error else f"the run was {state}"
    return {"code": f"program_{state}", "message": words}


async def abandon_runs(server: Server, is_over: Callable[[str], bool]) -> None:
    """Close the open runs in the journal whose batches are over: they will not go on."""
    journal = server.runtime.journal
    for row in () if journal is None else await journal.open_programs():
        batch = json.loads(row.options).get(BATCH)
        if journal is not None and batch is not None and is_over(batch):
            await journal.abandon(row.id)


class Targets:
    """What answers the requests of each endpoint of a server."""

    def __init__(self, server: Server, runs: ProgramRuns) -> None:
        self._server = server
        self._runs = runs
        self._calls, self._programs = CallPlaces(server), ProgramPlaces(server)

    def find(self, endpoint: str) -> Target:
        """Return what answers at an endpoint. Raises `NotServedError` if nothing does."""
        server, front, programs = self._server, self._server.frontend, self._server.native
        calls = [] if front is None else [path for path in ENDPOINTS if path in front.paths]
        if front is not None and endpoint in calls:
            return CallTarget(server, endpoint, front, self._calls)
        runs = {f"/v1/programs/{name}/runs": program for name, program in programs.items()}
        if endpoint in runs:
            return ProgramTarget(server, self._runs, runs[endpoint], self._programs)
        raise NotServedError(
            f"this server has no batches for endpoint {endpoint!r}; it has them for "
            f"{', '.join([*calls, *runs]) or 'no endpoint'}"
        )
