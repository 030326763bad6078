"""Answers the requests of a batch inside this process, with the same checks as HTTP requests."""

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
from agentrt.errors import AgentrtError, JournalError, NotServedError
from agentrt.executors.identity import PREFIX
from agentrt.program import Program
from agentrt.runtime.durable import Durable
from agentrt.runtime.run import RunState, cancel_until_ended
from agentrt.serving.batches.lines import ANSWER_ID_PREFIX, LineAnswer, LineRequest, batch_id_of
from agentrt.serving.batches.slots import CallSlots, ProgramSlots, Slots
from agentrt.serving.bodies import TooLargeError, read_body, whole
from agentrt.serving.error_responses import ApiError, describe, openai_error
from agentrt.serving.frontend.exchange import NO_CONNECTION
from agentrt.serving.programs.api import accept_input, describe_run
from agentrt.serving.programs.bodies import RunRequest
from agentrt.serving.programs.left import BATCH_OPTION
from agentrt.serving.programs.runs import ProgramRuns
from agentrt.serving.server import Server

MODEL_ENDPOINTS = (
    *("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"),
    *("/v1/embeddings", "/v1/rerank", "/v1/score"),
)
"""Model endpoints that batches may use, if vLLM serves them for the server's models."""
_RETRIED_STATUSES = (429, 503)
_DEFAULT_RETRY_S = 5.0
_MAX_RETRY_S = 60.0
_MIN_DEADLINE_S = 0.001


class BatchEndpoint(Protocol):
    """An endpoint that answers requests of batches."""

    @property
    def slots(self) -> Slots:
        """The slots that limit the number of the endpoint's requests in flight."""

    async def answer(self, tenant: str, request: LineRequest, name: str) -> LineAnswer:
        """Answer a request. ``name`` is the id of the answer, and stays the same when a later
        server makes the request again.
        """


class ModelEndpoint:
    """An endpoint of the model, such as ``/v1/chat/completions``.

    A request passes the same checks as an HTTP request. Its calls belong to a program of their own,
    which ends with the request.
    """

    def __init__(self, server: Server, path: str, app: ASGIApp, slots: CallSlots) -> None:
        self._server = server
        self._path = path
        self._app = app
        self.slots = slots

    async def answer(self, tenant: str, request: LineRequest, name: str) -> LineAnswer:
        """Answer a request.

        The answer has ``retry_after_s`` if the tenant is at a limit or the engine restarts.
        """
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
            "path": self._path,
            "raw_path": self._path.encode(),
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
            receive = await read_body(
                _receive_once(body), self._path, headers, self._server.bounds.body_bytes
            )
            await self._app(scope, receive, send)
            answer = from_json(bytes(sent))
        except TooLargeError as error:
            text = openai_error(413, str(error), code="body_too_large")
            return LineAnswer(413, text, name)
        status = start["status"]
        return LineAnswer(
            status, answer, name, _retry_after_s(start) if status in _RETRIED_STATUSES else None
        )


def _receive_once(body: bytes) -> Receive:
    """Return an ASGI ``receive`` that returns the body, and then waits, because the client of a
    batch never disconnects.
    """
    messages = iter((whole(body),))

    async def receive() -> Message:
        for message in messages:
            return message
        await asyncio.get_running_loop().create_future()
        raise AssertionError

    return receive


def _retry_after_s(start: Mapping[str, Any]) -> float:
    """Return the seconds of the header Retry-After, at most `_MAX_RETRY_S`, or a default. ``start``
    is the ASGI message that has the response's headers.
    """
    value = dict(start.get("headers", ())).get(b"retry-after", b"")
    return min(_MAX_RETRY_S, float(value)) if value.isdigit() else _DEFAULT_RETRY_S


class ProgramEndpoint:
    """The endpoint of a served program.

    If the server has a journal with the full content of runs, a run that was open when an earlier
    server was killed is resumed from the journal.
    """

    def __init__(
        self, server: Server, runs: ProgramRuns, program: Program, slots: ProgramSlots
    ) -> None:
        self._journal = server.runtime.journal
        self._steady = server.runtime.steady
        self._runs = runs
        self._program = program
        self.slots = slots

    async def answer(self, tenant: str, request: LineRequest, name: str) -> LineAnswer:
        """Run the program, and return the description of the run as the body of the answer. If the
        run cannot start, the body is the error.

        The answer has ``retry_after_s`` if the tenant is at a limit, the engine has died, or the
        journal fails.
        """
        run_id = f"{self._program.name}-{name.removeprefix(ANSWER_ID_PREFIX).replace('_', '.')}-1"
        try:
            body = RunRequest.model_validate(request.body)
            accepted = accept_input(self._program, body.input)
            body = body.model_copy(update={"input": accepted})
            durable = await self._durable(run_id, name, body)
            if durable is not None and durable.options["until"] is not None:
                left_s = max(_MIN_DEADLINE_S, durable.options["until"] - self._steady.now())
                body = body.model_copy(update={"deadline": left_s})
            served = self._runs.start(self._program, tenant, body, durable=durable)
        except ValidationError as error:
            status, text, _ = describe(RequestValidationError(error.errors()))
            return LineAnswer(status, text, name)
        except (AgentrtError, ApiError) as error:
            status, text, headers = describe(error)
            is_outage = isinstance(error, JournalError) or fatal_in(error) is not None
            if status not in _RETRIED_STATUSES and not is_outage:
                return LineAnswer(status, text, name)
            return LineAnswer(
                status, text, name, float(headers.get("retry-after", _DEFAULT_RETRY_S))
            )
        run = served.run
        assert run.task is not None
        try:
            await asyncio.wait([run.task])
        finally:
            if not run.task.done():
                # The run stays open in the journal. If its batch is still live after a restart, the
                # next server resumes the run.
                run.left = True
                cancel_until_ended(run)
                await asyncio.wait([run.task])
            self._runs.forget(served)
        described = describe_run(served)
        if fatal_in(run.error) is not None:
            return LineAnswer(503, described, name, _DEFAULT_RETRY_S)
        return LineAnswer(200, described, name, error=_error(described))

    async def _durable(self, run_id: str, name: str, body: RunRequest) -> Durable | None:
        """Return how the run is recorded in the journal, so that it can be resumed.

        The deadline of a resumed run counts from its first start. Returns None if there is no
        journal, or if the journal does not record the full content of runs.
        """
        journal = self._journal
        if journal is None or journal.content != "full":
            return None
        until = None
        if body.deadline is not None:
            rows = await journal.programs("id = ?", (run_id,))
            until = json.loads(rows[0].options)["until"] if rows else None
            until = self._steady.now() + body.deadline if until is None else until
        options = {BATCH_OPTION: batch_id_of(name), "waits": True, "until": until}
        return Durable(options=options, id=run_id, skips=True)


def _error(described: Mapping[str, Any]) -> Mapping[str, str] | None:
    """Return the reason why a run has no result; None if it has a result."""
    state, error = described["state"], described["error"]
    if state == RunState.DONE:
        return None
    text = f"{error['type']}: {error['message']}" if error else f"the run was {state}"
    return {"code": f"program_{state}", "message": text}


async def abandon_runs(server: Server, has_ended: Callable[[str], bool]) -> None:
    """Mark the unfinished runs of ended batches in the journal as ended, so that no server resumes
    them. ``has_ended`` says for the id of a batch whether the batch has ended.
    """
    journal = server.runtime.journal
    for row in () if journal is None else await journal.open_programs():
        batch_id = json.loads(row.options).get(BATCH_OPTION)
        if journal is not None and batch_id is not None and has_ended(batch_id):
            await journal.abandon(row.id)


class Endpoints:
    """The endpoints of a server that answer requests of batches."""

    def __init__(self, server: Server, runs: ProgramRuns) -> None:
        self._server = server
        self._runs = runs
        self._call_slots, self._program_slots = CallSlots(server), ProgramSlots(server)

    def find(self, path: str) -> BatchEndpoint:
        """Return the endpoint at a path. Raises `NotServedError` if batches cannot use the path."""
        server, front, programs = self._server, self._server.frontend, self._server.native
        models = [] if front is None else [url for url in MODEL_ENDPOINTS if url in front.paths]
        if front is not None and path in models:
            return ModelEndpoint(server, path, front, self._call_slots)
        runs = {f"/v1/programs/{name}/runs": program for name, program in programs.items()}
        if path in runs:
            return ProgramEndpoint(server, self._runs, runs[path], self._program_slots)
        raise NotServedError(
            f"batches on this server cannot use the endpoint {path!r}; available endpoints: "
            f"{', '.join([*models, *runs]) or 'none'}"
        )
