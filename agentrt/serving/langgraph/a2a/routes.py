"""The routes of the Agent2Agent protocol (A2A): each assistant is an agent with a card.

The SDK is imported at the first request, in a thread, so that other requests do not wait for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from importlib.util import find_spec
from typing import TYPE_CHECKING

from fastapi import HTTPException, Request, Response
from fastapi.responses import StreamingResponse

from agentrt import __version__
from agentrt.serving.langgraph.auth.hooks import CallerDep
from agentrt.serving.langgraph.responses import JSON, invalid
from agentrt.serving.langgraph.routes import Routes, route
from agentrt.serving.langgraph.runs.queue import RunQueue
from agentrt.serving.langgraph.runs.routes import RunRoutes
from agentrt.serving.langgraph.runs.starts import StartRoutes
from agentrt.serving.langgraph.tenant_state import TenantState

if TYPE_CHECKING:
    from a2a.server.routes.jsonrpc_dispatcher import JsonRpcDispatcher
    from a2a.types import AgentCard

_AGENT = "/a2a/{assistant_id}"
_CARD = "/.well-known/agent-card.json"
_TEXT, _JSON = "text/plain", "application/json"
_WHOLE = frozenset({"SendMessage", "message/send", "CancelTask", "tasks/cancel"})
"""The methods that may wait for a run's end, in versions 1.0 and 0.3 of the protocol."""
_MODES = [_JSON, _TEXT]


def is_installed() -> bool:
    """Return whether the A2A SDK, an optional dependency, is installed."""
    return find_spec("a2a") is not None


class AgentRoutes(Routes):
    """The routes of a server's agents."""

    def __init__(
        self, state: TenantState, queue: RunQueue, starts: StartRoutes, runs: RunRoutes
    ) -> None:
        self._state = state
        self._parts = state, queue, starts, runs
        self._opened: JsonRpcDispatcher | None = None
        self._opening = asyncio.Lock()

    @route("POST", _AGENT, writes=False)
    async def request(self, assistant_id: str, request: Request) -> Response:
        """Handle a JSON-RPC request.

        If the answer to a message or a cancellation takes long, the response begins early, and a
        newline every few seconds keeps the connection open: JSON may begin with newlines. All
        responses of the SDK have status 200, also for errors.
        """
        dispatcher = await self._dispatcher()
        interval_s = self._state.server.keep_alive_s
        if not interval_s or not await _is_whole(request):
            response: Response = await dispatcher.handle_requests(request)
            return response
        answering = asyncio.ensure_future(dispatcher.handle_requests(request))
        try:
            await asyncio.wait([answering], timeout=interval_s)
        except asyncio.CancelledError:
            answering.cancel()
            raise
        if answering.done():
            return answering.result()
        return StreamingResponse(_kept_alive(answering, interval_s), media_type=_JSON)

    @route("GET", _AGENT)
    @route("GET", f"{_AGENT}{_CARD}")
    @route("GET", _CARD)
    async def card(
        self, request: Request, caller: CallerDep, assistant_id: str | None = None
    ) -> JSON:
        """Return an agent's card. The path need not name the agent if the server has a single graph
        or program.
        """
        await self._dispatcher()  # imports the SDK
        from a2a.server.request_handlers.response_helpers import agent_card_to_dict

        served = self._state.server.served
        if assistant_id is None and not served:
            raise HTTPException(
                404,
                "this server serves no graphs and no programs, so it has no agent card; start it "
                "with a file that has one: agentrt serve FILE",
            )
        if assistant_id is None and len(served) != 1:
            raise invalid(
                f"the server has {len(served)} graphs and programs, so the path must name one of "
                f"them, as in /a2a/NAME{_CARD}; the names are {', '.join(served)}"
            )
        name = assistant_id or next(iter(served))
        assistant = await self._state.assistants.runnable(caller, name)
        fields = await self._state.assistants.inputs(caller, name)
        url = f"{str(request.base_url).rstrip('/')}/a2a/{assistant['assistant_id']}"
        description = assistant["description"] or f"takes {', '.join(fields) or 'any input'}"
        card = _card_of(assistant["name"], description, url)
        if self._state.server.keys is not None:
            _require_key(card)
        return JSON(agent_card_to_dict(card))

    async def _dispatcher(self) -> JsonRpcDispatcher:
        async with self._opening:
            if self._opened is None:
                self._opened = await asyncio.to_thread(self._open)
        return self._opened

    def _open(self) -> JsonRpcDispatcher:
        from a2a.server.routes.jsonrpc_dispatcher import JsonRpcDispatcher

        from agentrt.serving.langgraph.a2a.messages import CallerContext
        from agentrt.serving.langgraph.a2a.tasks import Tasks

        # The SDK would log each invalid request, in part with a traceback.
        logging.getLogger("a2a").setLevel(logging.CRITICAL)
        return JsonRpcDispatcher(
            Tasks(*self._parts), context_builder=CallerContext(), enable_v0_3_compat=True
        )


async def _is_whole(request: Request) -> bool:
    """Return whether a request calls one of the methods that may wait for a run's end
    (`_WHOLE`).
    """
    try:
        body = await request.json()
    except ValueError:  # a body that is not JSON, which the SDK reports
        return False
    method = body.get("method") if isinstance(body, dict) else None
    return isinstance(method, str) and method in _WHOLE


async def _kept_alive(
    answering: asyncio.Future[Response], interval_s: float
) -> AsyncIterator[bytes]:
    """Yield newlines until the answer is ready, and then yield the answer's body."""
    try:
        while not answering.done():
            yield b"\n"
            await asyncio.wait([answering], timeout=interval_s)
        yield bytes(answering.result().body)
    finally:  # the client may have disconnected; the A2A task goes on without the client
        answering.cancel()


def _require_key(card: AgentCard) -> None:
    """Add to a card that requests need an API key as a bearer token."""
    from a2a.types import HTTPAuthSecurityScheme, StringList

    scheme = HTTPAuthSecurityScheme(scheme="bearer")
    card.security_schemes["bearer"].http_auth_security_scheme.CopyFrom(scheme)
    card.security_requirements.add().schemes["bearer"].CopyFrom(StringList())


def _card_of(name: str, description: str, url: str) -> AgentCard:
    from a2a.types import AgentCapabilities, AgentCard, AgentInterface, AgentSkill

    return AgentCard(
        name=name,
        description=description,
        version=__version__,
        supported_interfaces=[
            AgentInterface(url=url, protocol_binding="JSONRPC", protocol_version=version)
            for version in ("1.0", "0.3")
        ],
        capabilities=AgentCapabilities(streaming=True),
        default_input_modes=_MODES,
        default_output_modes=_MODES,
        skills=[AgentSkill(id=name, name=name, description=description, tags=["langgraph"])],
    )
