"""An MCP server built with the SDK, and the tool calls of the server's clients. The server's tools
are the served programs and graphs.

Each tool call starts a run. The call reports the run's progress, and asks the client the run's
questions.

In the protocol of 2026-07-28, the server cannot send a question in the middle of a call. So the
call ends with the question, and the client's next request has the answer and continues the call.
The run waits in between.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import mcp.server
from mcp import MCPError
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.context import ServerRequestContext
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.types import (
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    ClientCapabilities,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitResult,
    InputRequests,
    InputRequiredResult,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
    Tool,
)
from starlette.requests import Request as HttpRequest
from starlette.types import ASGIApp, Receive, Scope, Send

from agentrt import __version__
from agentrt.errors import QuestionClosedError, ToolArgumentsError, text_of
from agentrt.graph import Node
from agentrt.runtime.events import Event, NodeChanged, NodeEnded, NodeStarted, RunEnded
from agentrt.runtime.run import RunState, cancel_until_ended
from agentrt.serving.langgraph.responses import to_json
from agentrt.serving.mcp.offers import Offer
from agentrt.serving.middleware import tenant_of
from agentrt.serving.programs.bodies import RunRequest
from agentrt.serving.programs.runs import ProgramRuns, ServedRun
from agentrt.serving.questions.server_questions import QuestionView
from agentrt.serving.server import Server
from agentrt.serving.tenants import BusyError

McpRequest = ServerRequestContext[Any, Any]
_RUN = "io.agentrt/run"
_ANSWER = "answer"
_SIMPLE = ("string", "number", "integer", "boolean")


@dataclass(slots=True, eq=False)
class ToolRun:
    """A tool call: its run, and the state of its reports and questions to the client.

    ``events`` are the run's events, and the run's questions as they open and close. ``nodes`` are
    the nodes that run or wait now, and ``ended`` counts the nodes that have ended. ``beats`` counts
    the progress reports since the last node ended, and ``due`` is the time of the next of these
    reports on the event loop's clock (None: never). ``asking`` are the tasks that ask the client,
    by question id. ``expiry`` is the timer that ends the call if the client does not continue it.
    ``is_declined`` says that the client declined a question, which ends the run.
    """

    served_run: ServedRun
    events: asyncio.Queue[Event | QuestionView]
    nodes: dict[int, Node] = field(default_factory=dict)
    ended: int = 0
    beats: int = 0
    due: float | None = None
    asking: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    expiry: asyncio.TimerHandle | None = None
    is_declined: bool = False


class Calls:
    """The tool calls in progress, and the calls that wait for the client's next request."""

    def __init__(self, server: Server, offers: Mapping[str, Offer], runs: ProgramRuns) -> None:
        self._server = server
        self._offers = offers
        self._runs = runs
        self._waiting: dict[str, ToolRun] = {}
        self._questions = server.runtime.questions

    def close(self) -> None:
        """Stop waiting for clients' next requests."""
        for call in self._waiting.values():
            if call.expiry is not None:
                call.expiry.cancel()

    async def call(
        self, request: McpRequest, params: CallToolRequestParams
    ) -> CallToolResult | InputRequiredResult:
        """Run a tool call, or continue a call with the client's answer to its question."""
        assert request.request is not None  # all requests come over HTTP
        tenant = tenant_of(request.request)
        if params.request_state is not None:
            call = self._resumed(tenant, params)
        else:
            try:
                call = self._started(tenant, params)
            except (BusyError, ToolArgumentsError) as error:
                return _error(str(error))
        result: CallToolResult | InputRequiredResult | None = None
        try:
            result = await self._followed(request, call)
        finally:
            await self._left(call, goes_on=isinstance(result, InputRequiredResult))
        return result

    def _started(self, tenant: str, params: CallToolRequestParams) -> ToolRun:
        if (offer := self._offers.get(params.name)) is None:
            known = ", ".join(self._offers) or "none"
            raise MCPError(INVALID_PARAMS, f"unknown tool {params.name!r}; available: {known}")
        if self._server.draining:
            raise BusyError(
                "the server is stopping: it finishes running calls and accepts no new calls", 5.0
            )
        program, input_value = offer.begin(params.arguments or {})
        self._runs.sweep()
        served_run = self._runs.start(program, tenant, RunRequest(input=input_value, deadline=None))
        return ToolRun(served_run, served_run.watch())

    def _resumed(self, tenant: str, params: CallToolRequestParams) -> ToolRun:
        """Give a request's answers to the waiting call that the request continues, and return the
        call.

        Raises `MCPError` if no such call waits.
        """
        state = params.request_state or ""
        call = self._waiting.get(state)
        if (
            call is None
            or call.served_run.tenant != tenant
            or call.served_run.run.type != params.name
        ):
            text = "no call waits for this answer: the call is unknown, has ended or has expired"
            raise MCPError(INVALID_PARAMS, text)
        del self._waiting[state]
        if call.expiry is not None:
            call.expiry.cancel()
        for question_id, response in (params.input_responses or {}).items():
            if isinstance(response, ElicitResult):
                self._answer(call, question_id, response)
        if not call.is_declined:
            for question in call.served_run.questions.values():  # ask open questions again
                call.served_run.publish(question)
        return call

    async def _followed(
        self, request: McpRequest, call: ToolRun
    ) -> CallToolResult | InputRequiredResult:
        """Follow a run until it ends, or until the call has to end with a question. Return the
        result of the call.
        """
        asks = _can_be_asked(request.session.client_capabilities)
        progress = request.session.report_progress
        self._set_due(call)
        while not isinstance(event := await self._next(request, call), RunEnded):
            if isinstance(event, NodeStarted | NodeChanged):
                call.nodes[event.node.id] = event.node
            elif isinstance(event, NodeEnded):
                call.nodes.pop(event.node.id, None)
                call.ended += 1
                call.beats = 0
                await progress(call.ended, None, _about(event.node))
                self._set_due(call)
            elif isinstance(event, QuestionView) and asks:
                if event.id not in call.served_run.open:
                    self._ask_no_more(call, event)
                elif request.session.can_send_request:
                    self._ask(request, call, event)
                else:
                    return self._held(call, event)
        return _result(call.served_run)

    async def _next(self, request: McpRequest, call: ToolRun) -> Event | QuestionView:
        """Return the next event. Report progress whenever a report is due before the event.

        Clients give up a call that reports nothing for a while.
        """
        while True:
            try:
                # Events that the client does not see, such as a tool's progress, delay no report.
                async with asyncio.timeout_at(call.due):
                    return await call.events.get()
            except TimeoutError:
                call.beats += 1
                # The protocol requires that each reported progress is higher than the last.
                done = call.ended + call.beats / (call.beats + 1)
                about = _about(next(reversed(call.nodes.values()))) if call.nodes else "running"
                await request.session.report_progress(done, None, about)
                self._set_due(call)

    def _set_due(self, call: ToolRun) -> None:
        """Let the next progress report be due after the server's keep-alive time."""
        pause_s = self._server.keep_alive_s
        call.due = asyncio.get_running_loop().time() + pause_s if pause_s else None

    async def _left(self, call: ToolRun, *, goes_on: bool) -> None:
        """End a request. Cancel the run, unless another request will continue the run."""
        if goes_on:
            return
        run = call.served_run.run
        call.served_run.watchers.discard(call.events)
        cancel_until_ended(run)
        with anyio.CancelScope(shield=True):
            for asking in call.asking.values():
                asking.cancel()
            await asyncio.gather(*call.asking.values(), return_exceptions=True)
            if run.task is not None:
                await asyncio.wait([run.task])

    # -- asking ------------------------------------------------------------------------

    def _held(self, call: ToolRun, question: QuestionView) -> InputRequiredResult:
        """Return the result that asks a question, and let the call wait for the next request.

        The client's next request repeats the ``request_state``.
        """
        state = secrets.token_urlsafe(24)
        self._waiting[state] = call
        loop, idle_s = asyncio.get_running_loop(), self._server.bounds.idle_s
        call.expiry = loop.call_later(idle_s, self._expire, state)
        asking: InputRequests = {question.id: ElicitRequest(params=_params_of(question))}
        return InputRequiredResult(input_requests=asking, request_state=state)

    def _expire(self, state: str) -> None:
        cancel_until_ended(self._waiting.pop(state).served_run.run)

    def _ask(self, request: McpRequest, call: ToolRun, question: QuestionView) -> None:
        asking = asyncio.create_task(self._elicit(request, call, question))
        call.asking[question.id] = asking

    def _ask_no_more(self, call: ToolRun, question: QuestionView) -> None:
        """Stop asking the client, because the question was answered elsewhere or was closed."""
        if (asking := call.asking.get(question.id)) is not None:
            asking.cancel()

    async def _elicit(self, request: McpRequest, call: ToolRun, question: QuestionView) -> None:
        """Ask the client until its answer matches the question's schema.

        If the client cannot be asked, the question stays open for other people.
        """
        params = _params_of(question)
        while question.id in call.served_run.open and not call.is_declined:
            try:
                result = await request.session.elicit_form(
                    params.message, params.requested_schema, request.request_id
                )
            except MCPError:
                return
            self._answer(call, question.id, result)

    def _answer(self, call: ToolRun, question_id: str, result: ElicitResult) -> None:
        """Answer a question if the answer matches its schema. A declined question ends the run."""
        question = call.served_run.questions.get(question_id)
        if question is None:
            return
        if result.action != "accept":
            call.is_declined = True
            cancel_until_ended(call.served_run.run)
            return
        try:
            self._questions.answer(question_id, _answer_in(question, result))
        except (ToolArgumentsError, QuestionClosedError):
            return  # `_elicit` asks again if the question is still open


def _about(node: Node) -> str:
    """Return a node's name and state, for the user of the client."""
    return _sendable(f"{node.name}: {node.state}")


def _sendable(text: str) -> str:
    """Return a text without lone surrogates. The SDK cannot encode them, and would send nothing."""
    return text.encode("utf-8", "replace").decode()


# -- results ------------------------------------------------------------------------------


def _result(served_run: ServedRun) -> CallToolResult:
    """Return the result of a run, with the run's id, by which a user finds the run in the
    dashboard.
    """
    run = served_run.run
    if run.state is not RunState.DONE:
        return _error(_why(served_run), {_RUN: run.id})
    value = to_json(run.result)
    data = value if isinstance(value, dict) else {"result": value}
    text = TextContent(type="text", text=_text_of(value))
    return CallToolResult(content=[text], structured_content=data, _meta={_RUN: run.id})


def _why(served_run: ServedRun) -> str:
    run = served_run.run
    if run.error is not None:
        return f"{type(run.error).__name__}: {text_of(run.error)}"
    if run.state is RunState.INTERRUPTED:
        return (
            "the run stopped at a breakpoint, which a tool call cannot resume; use a thread of "
            "the LangGraph API"
        )
    return "the run was cancelled, or its question was declined"


def _text_of(value: Any) -> str:
    """Return a result as text: the content of its last message, or else the whole result. Anything
    that is not a text becomes JSON.
    """
    messages = value.get("messages") if isinstance(value, dict) else None
    if isinstance(messages, list) and messages and isinstance(messages[-1], dict):
        value = messages[-1].get("content", value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _error(text: str, meta: dict[str, Any] | None = None) -> CallToolResult:
    content = [TextContent(type="text", text=_sendable(text))]
    return CallToolResult(content=[*content], is_error=True, _meta=meta)


# -- questions ----------------------------------------------------------------------------
# A form of MCP is an object of texts, numbers and choices. An answer with another schema becomes a
# form with the single field `_ANSWER`.


def _can_be_asked(client: ClientCapabilities | None) -> bool:
    """Return whether the client accepts forms. A client that names no mode of elicitation accepts
    forms.
    """
    elicitation = None if client is None else client.elicitation
    return elicitation is not None and (elicitation.form is not None or elicitation.url is None)


def _params_of(question: QuestionView) -> ElicitRequestFormParams:
    """Return the form that asks the client a question."""
    form = to_json(_form_of(question.form.schema))
    return ElicitRequestFormParams(message=_sendable(question.text), requested_schema=form)


def _answer_in(question: QuestionView, result: ElicitResult) -> Any:
    """Return the answer to a question from the form that the client filled in."""
    content = result.content or {}
    if _is_form(question.form.schema):
        return content
    answer = content.get(_ANSWER)
    return question.form.parse(answer) if isinstance(answer, str) else answer


def _form_of(schema: Mapping[str, Any] | None) -> dict[str, Any]:
    if schema is not None and _is_form(schema):
        known = ("type", "properties", "required")
        return {key: schema[key] for key in known if key in schema}
    field: Mapping[str, Any] = schema if schema is not None and _is_field(schema) else {}
    described = {"type": "string"} if not field else {"type": "string", **field}
    return {"type": "object", "properties": {_ANSWER: described}, "required": [_ANSWER]}


def _is_form(schema: Mapping[str, Any] | None) -> bool:
    if schema is None or schema.get("type") != "object":
        return False
    fields = schema.get("properties", {})
    return bool(fields) and all(map(_is_field, fields.values()))


def _is_field(schema: Any) -> bool:
    if not isinstance(schema, Mapping):  # true or false, which allow every value or none
        return False
    texts = schema.get("enum", [""])
    is_choice = "enum" in schema and all(isinstance(text, str) for text in texts)
    return is_choice or ("enum" not in schema and schema.get("type") in _SIMPLE)


# -- the SDK's own server, with the offers as its tools ----------------------------------------


class Sessions:
    """The clients' sessions. Calls that wait for an answer survive an error of the SDK's server."""

    def __init__(self, server: Server, offers: Mapping[str, Offer], runs: ProgramRuns) -> None:
        self._calls = Calls(server, offers, runs)
        self._sdk = _sdk_server(offers, self._calls)
        self._body_bytes = server.bounds.body_bytes

    @asynccontextmanager
    async def open(self) -> AsyncIterator[ASGIApp]:
        """Yield the ASGI application that answers requests. When the ``with`` block ends, all
        sessions end.
        """
        manager = StreamableHTTPSessionManager(self._sdk, max_request_body_size=self._body_bytes)

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            # With this token, the SDK refuses requests of other tenants to a session.
            token = AccessToken(token="", client_id=tenant_of(HttpRequest(scope)), scopes=[])
            scope["user"] = AuthenticatedUser(token)
            await manager.handle_request(scope, receive, send)

        async with manager.run():
            yield answer

    def close(self) -> None:
        """Stop waiting for clients' answers to questions."""
        self._calls.close()


def _sdk_server(offers: Mapping[str, Offer], made: Calls) -> mcp.server.Server:
    tools = [
        Tool(name=offer.name, description=offer.description, input_schema=dict(offer.schema))
        for offer in offers.values()
    ]

    async def list_tools(
        request: McpRequest, params: PaginatedRequestParams | None
    ) -> ListToolsResult:
        return ListToolsResult(tools=tools)

    async def call_tool(
        request: McpRequest, params: CallToolRequestParams
    ) -> CallToolResult | InputRequiredResult:
        return await made.call(request, params)

    return mcp.server.Server(
        "agentrt",
        version=__version__,
        instructions="Each tool runs an agent program on this server.",
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        get_tool_input_schema=lambda name: offers[name].schema if name in offers else None,
    )
