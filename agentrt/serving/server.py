"""What the APIs of a server share: the runtime, what is served, bounds and tenants."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from fastapi import APIRouter
from starlette.types import Receive, Scope, Send

from agentrt.program import Program
from agentrt.runtime import Runtime
from agentrt.serving.background import Background
from agentrt.serving.lifetimes import Lifetimes
from agentrt.serving.origins import Origins
from agentrt.serving.programs.client_programs import ClientPrograms
from agentrt.serving.questions.asked import ServerQuestions
from agentrt.serving.tenants import Tenants
from agentrt.serving.webhook_rules import WebhookRules
from agentrt.steady import MachineClocks

if TYPE_CHECKING:
    from agentrt.serving.frontend.responses import Rows


@dataclass(frozen=True, slots=True)
class ServedProgram:
    """A ``@program`` function from the file ``source``."""

    program: Program
    source: str


@dataclass(frozen=True, slots=True)
class ServedGraph:
    """A LangGraph graph, or what makes one, as the file ``source`` holds it.

    ``agentrt.integrations.langgraph.graphs.open_graph`` opens ``value``.
    """

    value: Any
    source: str


Served = ServedProgram | ServedGraph


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits on what one client can use up, in bytes and seconds.

    A request has at most ``header_bytes`` and ``body_bytes``, and arrives within ``request_s``;
    a message over a WebSocket has at most ``message_bytes``. A client that reads nothing of its
    answer for ``reader_s`` is dropped. There are at most ``connections``. A client program without
    a request for ``idle_s`` is ended; one that the server detected by itself, after
    ``silent_idle_s``.
    """

    header_bytes: int = 64 * 1024
    body_bytes: int = 32 * 1024 * 1024
    message_bytes: int = 4 * 1024 * 1024
    request_s: float = 30.0
    reader_s: float = 60.0
    connections: int = 4096
    idle_s: float = 900.0
    silent_idle_s: float = 120.0


class KeyCheck(Protocol):
    """Maps API keys to tenants."""

    def tenant_of(self, key: str) -> str | None:
        """The key's tenant; None for an unknown key."""

    def is_operator(self, tenant: str) -> bool:
        """Whether this tenant operates the server, and may see all others."""


class ModelRoutes(Protocol):
    """An ASGI application that answers requests of the model, at these ``paths`` alone."""

    @property
    def paths(self) -> Collection[str]: ...

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...


@dataclass(slots=True)
class Server:
    """One server over one open runtime. ``models`` are the names of the models it serves.

    ``served`` has programs and graphs by the names that clients use. Once ``draining``, the
    server finishes what runs and takes nothing new; ``under_way`` has the tasks to wait for that
    belong to no request (an API adds and removes them), and what is ``at_drain`` ends what waits
    for more to come. ``tenants`` has each tenant's limits and
    use; with ``keys``, requests without a key are refused. ``programs`` are the clients' own.
    ``origins`` says which pages may call it, and ``background`` does what the APIs do by
    themselves; ``checks`` say what else keeps the server from being ready. ``questions`` are what
    programs and graphs ask humans. ``live`` counts the live runs of served programs by their
    tenants, whatever started them. With ``submit``, clients may send programs. ``webhooks`` says
    which hosts may be called at the ends of runs, ``lifetimes`` how long threads and items stay.
    A recorded program that has waited ``park_s`` seconds for humans or a time alone leaves memory
    (0: it never does). A stream that has been silent for ``keep_alive_s`` seconds says that it
    lives (0: it never does), and an answer in one piece begins after ``early_s`` seconds, though it
    is not known yet (0: it never does). ``server_tools`` has the names of tools that stand for
    those of Anthropic's servers, by the kinds of these. If the server ``has_users``, authorization
    hooks separate the users of a tenant. It runs on a ``machine`` with these clocks.
    ``response_rows`` keep the responses of the Responses API where a database is open. ``frontend``
    answers requests of the model that have passed the middleware.
    """

    runtime: Runtime
    models: tuple[str, ...]
    served: Mapping[str, Served] = field(default_factory=dict)
    database: str = "sqlite:agentrt.db"
    draining: bool = False
    at_drain: list[Callable[[], Awaitable[None]]] = field(default_factory=list)
    under_way: set[asyncio.Task[Any]] = field(default_factory=set)
    tenants: Tenants = field(default_factory=lambda: Tenants(time.monotonic))
    keys: KeyCheck | None = None
    bounds: Bounds = field(default_factory=Bounds)
    origins: Origins = field(default_factory=Origins)
    background: Background = field(default_factory=Background)
    checks: dict[str, Callable[[], str | None]] = field(default_factory=dict)
    submit: bool = False
    webhooks: WebhookRules = field(default_factory=WebhookRules)
    lifetimes: Lifetimes = field(default_factory=Lifetimes)
    live: Counter[str] = field(default_factory=Counter)
    park_s: float = 60.0
    keep_alive_s: float = 10.0
    early_s: float = 0.0
    server_tools: Mapping[str, str] = field(default_factory=dict)
    has_users: bool = False
    machine: MachineClocks = field(default_factory=MachineClocks)
    response_rows: Rows | None = None
    frontend: ModelRoutes | None = None
    programs: ClientPrograms = field(init=False)
    questions: ServerQuestions = field(init=False)

    @property
    def native(self) -> dict[str, Program]:
        """The programs that are served, by their names."""
        return {
            name: one.program for name, one in self.served.items() if isinstance(one, ServedProgram)
        }

    def shows_texts(self, tenant: str | None) -> bool:
        """Whether lists of programs show questions and the messages of errors to this tenant, or
        with None to whoever sees all. Not where they may be those of another user.
        """
        return not self.has_users or (tenant is None and self.keys is not None)

    def __post_init__(self) -> None:
        self.questions = ServerQuestions(self.runtime)
        self.programs = ClientPrograms(
            self.runtime,
            self.tenants.limits,
            idle_s=self.bounds.idle_s,
            silent_idle_s=self.bounds.silent_idle_s,
        )


Api = Callable[[Server], AbstractAsyncContextManager[APIRouter]]
"""Opens one API (its database, its tasks), gives its routes, and closes it afterwards."""
