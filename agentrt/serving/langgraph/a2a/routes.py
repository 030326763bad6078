"""Each assistant as an agent of the Agent2Agent protocol (A2A): its requests, and its card.

The SDK is imported at the first request, in a thread, so that nobody else waits for it.
"""

from __future__ import annotations

import asyncio
import logging
from importlib.util import find_spec
from typing import TYPE_CHECKING

from fastapi import Request, Response

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
_MODES = [_JSON, _TEXT]


def is_installed() -> bool:
    """Whether the SDK is there: it is an extra."""
    return find_spec("a2a") is not None


class AgentRoutes(Routes):
    """The agents of a server."""

    def __init__(
        self, state: TenantState, queue: RunQueue, starts: StartRoutes, runs: RunRoutes
    ) -> None:
        self._state = state
        self._made_of = state, queue, starts, runs
        self._made: JsonRpcDispatcher | None = None
        self._making = asyncio.Lock()

    @route("POST", _AGENT)
    async def request(self, assistant_id: str, request: Request) -> Response:
        """A request by JSON-RPC."""
        dispatcher = await self._dispatcher()
        response: Response = await dispatcher.handle_requests(request)
        return response

    @route("GET", _AGENT)
    @route("GET", f"{_AGENT}{_CARD}")
    @route("GET", _CARD)
    async def card(
        self, request: Request, caller: CallerDep, assistant_id: str | None = None
    ) -> JSON:
        """What an agent can do. Where one graph is served, no name is needed."""
        await self._dispatcher()  # the SDK is there now
        from a2a.server.request_handlers.response_helpers import agent_card_to_dict

        served = self._state.server.served
        if assistant_id is None and len(served) != 1:
            raise invalid(f"assistant_id: name one, as {', '.join(served) or 'none is served'}")
        name = assistant_id or next(iter(served))
        assistant = await self._state.assistants.runnable(caller, name)
        fields = await self._state.assistants.inputs(caller, name)
        url = f"{str(request.base_url).rstrip('/')}/a2a/{assistant['assistant_id']}"
        what = assistant["description"] or f"takes {', '.join(fields) or 'any input'}"
        card = _card_of(assistant["name"], what, url)
        if self._state.server.keys is not None:
            _ask_for_key(card)
        return JSON(agent_card_to_dict(card))

    async def _dispatcher(self) -> JsonRpcDispatcher:
        async with self._making:
            if self._made is None:
                self._made = await asyncio.to_thread(self._make)
        return self._made

    def _make(self) -> JsonRpcDispatcher:
        from a2a.server.routes.jsonrpc_dispatcher import JsonRpcDispatcher

        from agentrt.serving.langgraph.a2a.messages import CallerContext
        from agentrt.serving.langgraph.a2a.tasks import Tasks

        # It logs each request that is wrong, some with a traceback.
        logging.getLogger("a2a").setLevel(logging.CRITICAL)
        return JsonRpcDispatcher(
            Tasks(*self._made_of), context_builder=CallerContext(), enable_v0_3_compat=True
        )


def _ask_for_key(card: AgentCard) -> None:
    """Say that requests have a key, and how."""
    from a2a.types import HTTPAuthSecurityScheme, StringList

    scheme = HTTPAuthSecurityScheme(scheme="bearer")
    card.security_schemes["bearer"].http_auth_security_scheme.CopyFrom(scheme)
    card.security_requirements.add().schemes["bearer"].CopyFrom(StringList())


def _card_of(name: str, what: str, url: str) -> AgentCard:
    from a2a.types import AgentCapabilities, AgentCard, AgentInterface, AgentSkill

    return AgentCard(
        name=name,
        description=what,
        version=__version__,
        supported_interfaces=[
            AgentInterface(url=url, protocol_binding="JSONRPC", protocol_version=version)
            for version in ("1.0", "0.3")
        ],
        capabilities=AgentCapabilities(streaming=True),
        default_input_modes=_MODES,
        default_output_modes=_MODES,
        skills=[AgentSkill(id=name, name=name, description=what, tags=["langgraph"])],
    )
