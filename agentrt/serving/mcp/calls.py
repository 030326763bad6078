"""The SDK's own MCP server, with the offers as its tools, and the calls that its clients make.

One call of a tool is one run. It reports its progress, and takes its questions to the client.

A client of the protocol of 2026-07-28 cannot be asked in the middle of a call: the call ends with
the question, and goes on with the request that has the answer. Its run waits meanwhile.
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
from agentrt.errors import QuestionClosedError, ToolArgumentsError
from agentrt.graph import Node
from agentrt.runtime.events import Event, NodeChanged, NodeEnded, NodeStarted, ProgramEnded
from agentrt.runtime.run import RunState
from agentrt.serving.langgraph.responses import to_json
from agentrt.serving.mcp.offers import Offer
from agentrt.serving.middleware import tenant_of
from agentrt.serving.programs.bodies import RunRequest
from agentrt.serving.programs.runs import ProgramRuns, ServedRun
from agentrt.serving.questions.server_questions import QuestionView
from agentrt.serving.server import Server
from agentrt.serving.tenants import BusyError

Request = ServerRequestContext[Any, Any]
_RUN = "io.agentrt/run"
_ANSWER = "answer"
_SIMPLE = ("string", "number", "integer", "boolean")


@dataclass(slots=True, eq=False)
class ServedCall:
    """A run, and what happens in it: its ``events``, and its questions as they open and close.

    ``nodes`` are those that run or wait now, and ``ended`` counts those that are over. Since the
    last of these, the client was told ``beats`` times that the call goes on.
    """

    one: ServedRun
    events: asyncio.Queue[Event | QuestionView]
    nodes: dict[int, Node] = field(default_factory=dict)
    ended: int = 0
    beats: int = 0
    asking: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    expiry: asyncio.TimerHandle | None = None
    is_declined: bool = False


class Calls:
    """The calls under way, and those that wait for the client's next request."""

    def __init__(self, server: Server, offers: Mapping[str, Offer], runs: ProgramRuns) -> None:
        self._server = server
        self._offers = offers
        self._runs = runs
        self._waiting: dict[str, ServedCall] = {}
        self._questions = server.runtime.questions

    def close(self) -> None:
        """Wait for no more requests."""
        for call in self._waiting.values():
            if call.expiry is not None:
                call.expiry.cancel()

    async def call(
        self, request: Request, params: CallToolRequestParams
    ) -> CallToolResult | InputRequiredResult:
        """Carry one through; or on, where it had a question."""
        assert request.request is not None  # it came over HTTP
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

    def _started(self, tenant: str, params: CallToolRequestParams) -> ServedCall:
        if (offer := self._offers.get(params.name)) is None:
            known = ", ".join(self._offers) or "there is none"
            raise MCPError(INVALID_PARAMS, f"there is no tool {params.name!r} ({known})")
        if self._server.draining:
            raise BusyError("the server is stopping: it finishes what runs and takes no more", 5.0)
        program, given = offer.begin(params.arguments or {})
        self._runs.sweep()
        one = self._runs.start(program, tenant, RunRequest(input=given, deadline=None))
        return ServedCall(one, one.watch())

    def _resumed(self, tenant: str, params: CallToolRequestParams) -> ServedCall:
        """The call that waited for this request, with the answers in it."""
        state = params.request_state or ""
        call = self._waiting.get(state)
        if call is None or call.one.tenant != tenant or call.one.run.type != params.name:
            raise MCPError(INVALID_PARAMS, "no call waits for this answer (any more)")
        del self._waiting[state]
        if call.expiry is not None:
            call.expiry.cancel()
        for question_id, response in (params.input_responses or {}).items():
            if isinstance(response, ElicitResult):
                self._answer(call, question_id, response)
        if not call.is_declined:
            for asked in call.one.questions.values():  # still open: it is asked again
                call.one.publish(asked)
        return call

    async def _followed(
        self, request: Request, call: ServedCall
    ) -> CallToolResult | InputRequiredResult:
        """Until its end, or until the client is to be asked."""
        asks = _can_be_asked(request.session.client_capabilities)
        progress = request.session.report_progress
        while not isinstance(event := await self._next(request, call), ProgramEnded):
            if isinstance(event, NodeStarted | NodeChanged):
                call.nodes[event.node.id] = event.node
            elif isinstance(event, NodeEnded):
                call.nodes.pop(event.node.id, None)
                call.ended += 1
                call.beats = 0
                await progress(call.ended, None, _about(event.node))
            elif isinstance(event, QuestionView) and asks:
                if event.id not in call.one.open:
                    self._ask_no_more(call, event)
                elif request.session.can_send_request:
                    self._ask(request, call, event)
                else:
                    return self._held(call, event)
        return _result(call.one)

    async def _next(self, request: Request, call: ServedCall) -> Event | QuestionView:
        """The next event. While there is none, the client is told again and again that the call
        goes on: clients give up on a call that says nothing for a while.
        """
        while True:
            try:
                async with asyncio.timeout(self._server.keep_alive_s or None):
                    return await call.events.get()
            except TimeoutError:
                call.beats += 1
                # The protocol wants each progress to be more than the last.
                done = call.ended + call.beats / (call.beats + 1)
                about = _about(next(reversed(call.nodes.values()))) if call.nodes else "running"
                await request.session.report_progress(done, None, about)

    async def _left(self, call: ServedCall, *, goes_on: bool) -> None:
        """The request is over. The run goes on only if another request will."""
        if goes_on:
            return
        run = call.one.run
        call.one.watchers.discard(call.events)
        run.cancel()
        with anyio.CancelScope(shield=True):
            for asking in call.asking.values():
                asking.cancel()
            await asyncio.gather(*call.asking.values(), return_exceptions=True)
            if run.task is not None:
                await asyncio.wait([run.task])

    # -- asking ------------------------------------------------------------------------

    def _held(self, call: ServedCall, question: QuestionView) -> InputRequiredResult:
        """The answer that asks; the client's next request has the ``request_state`` again."""
        state = secrets.token_urlsafe(24)
        self._waiting[state] = call
        loop, idle_s = asyncio.get_running_loop(), self._server.bounds.idle_s
        call.expiry = loop.call_later(idle_s, self._expire, state)
        asking: InputRequests = {question.id: ElicitRequest(params=_params_of(question))}
        return InputRequiredResult(input_requests=asking, request_state=state)

    def _expire(self, state: str) -> None:
        self._waiting.pop(state).one.run.cancel()

    def _ask(self, request: Request, call: ServedCall, question: QuestionView) -> None:
        asking = asyncio.create_task(self._elicit(request, call, question))
        call.asking[question.id] = asking

    def _ask_no_more(self, call: ServedCall, question: QuestionView) -> None:
        """Somebody else answered, or nobody will."""
        if (asking := call.asking.get(question.id)) is not None:
            asking.cancel()

    async def _elicit(self, request: Request, call: ServedCall, question: QuestionView) -> None:
        """Ask until the answer fits. A client that cannot be asked leaves it to others."""
        params = _params_of(question)
        while question.id in call.one.open and not call.is_declined:
            try:
                result = await request.session.elicit_form(
                    params.message, params.requested_schema, request.request_id
                )
            except MCPError:
                return
            self._answer(call, question.id, result)

    def _answer(self, call: ServedCall, question_id: str, result: ElicitResult) -> None:
        """Answer, if it fits. A question that is declined ends its run."""
        question = call.one.questions.get(question_id)
        if question is None:
            return
        if result.action != "accept":
            call.is_declined = True
            call.one.run.cancel()
            return
        try:
            self._questions.answer(question_id, _answer_in(question, result))
        except (ToolArgumentsError, QuestionClosedError):
            return  # it is asked again, if it is still open


def _about(node: Node) -> str:
    """A node and its state, for the client's user."""
    return f"{node.name}: {node.state}"


# -- results ------------------------------------------------------------------------------


def _result(one: ServedRun) -> CallToolResult:
    """What came of a run, with its id for whoever looks for it in the dashboard."""
    run = one.run
    if run.state is not RunState.DONE:
        return _error(_why(one), {_RUN: run.id})
    value = to_json(run.result)
    data = value if isinstance(value, dict) else {"result": value}
    text = TextContent(type="text", text=_text_of(value))
    return CallToolResult(content=[text], structured_content=data, _meta={_RUN: run.id})


def _why(one: ServedRun) -> str:
    run = one.run
    if run.error is not None:
        return f"{type(run.error).__name__}: {run.error}"
    if run.state is RunState.INTERRUPTED:
        return "it stopped at a breakpoint, where no tool can go on; run it in a thread"
    return "it was cancelled, or its question was declined"


def _text_of(value: Any) -> str:
    """A result in words: its last message, where it has messages."""
    messages = value.get("messages") if isinstance(value, dict) else None
    if isinstance(messages, list) and messages and isinstance(messages[-1], dict):
        value = messages[-1].get("content", value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _error(text: str, meta: dict[str, Any] | None = None) -> CallToolResult:
    return CallToolResult(content=[TextContent(type="text", text=text)], is_error=True, _meta=meta)


# -- questions ----------------------------------------------------------------------------
# A form of MCP is an object of texts, numbers and choices. What is no such object is asked for
# as one field, `_ANSWER`.


def _can_be_asked(client: ClientCapabilities | None) -> bool:
    """Whether the client takes forms. One that names no mode does."""
    elicitation = None if client is None else client.elicitation
    return elicitation is not None and (elicitation.form is not None or elicitation.url is None)


def _params_of(question: QuestionView) -> ElicitRequestFormParams:
    """The question for the client."""
    form = _form_of(question.form.schema)
    return ElicitRequestFormParams(message=question.text, requested_schema=form)


def _answer_in(question: QuestionView, result: ElicitResult) -> Any:
    """The answer to the question, as JSON."""
    content = result.content or {}
    if _is_form(question.form.schema):
        return content
    given = content.get(_ANSWER)
    return question.form.parse(given) if isinstance(given, str) else given


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


def _is_field(schema: Mapping[str, Any]) -> bool:
    texts = schema.get("enum", [""])
    is_choice = "enum" in schema and all(isinstance(one, str) for one in texts)
    return is_choice or ("enum" not in schema and schema.get("type") in _SIMPLE)


# -- the SDK's own server, with the offers as its tools ----------------------------------------


class Sessions:
    """What is known of the clients. Calls that wait for an answer outlast a fault of the SDK's."""

    def __init__(self, server: Server, offers: Mapping[str, Offer], runs: ProgramRuns) -> None:
        self._calls = Calls(server, offers, runs)
        self._sdk = _sdk_server(offers, self._calls)
        self._body_bytes = server.bounds.body_bytes

    @asynccontextmanager
    async def open(self) -> AsyncIterator[ASGIApp]:
        """The application that answers requests; all sessions end with the block."""
        manager = StreamableHTTPSessionManager(self._sdk, max_request_body_size=self._body_bytes)

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            # In the SDK's own terms, so that a session serves nobody but who began it.
            token = AccessToken(token="", client_id=tenant_of(HttpRequest(scope)), scopes=[])
            scope["user"] = AuthenticatedUser(token)
            await manager.handle_request(scope, receive, send)

        async with manager.run():
            yield answer

    def close(self) -> None:
        """Wait for no client any more."""
        self._calls.close()


def _sdk_server(offers: Mapping[str, Offer], made: Calls) -> mcp.server.Server:
    tools = [
        Tool(name=one.name, description=one.description, input_schema=dict(one.schema))
        for one in offers.values()
    ]

    async def list_tools(
        request: Request, params: PaginatedRequestParams | None
    ) -> ListToolsResult:
        return ListToolsResult(tools=tools)

    async def call_tool(
        request: Request, params: CallToolRequestParams
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
