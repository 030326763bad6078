"""The state that all APIs of a server share: the runtime, the served programs, limits, tenants."""

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
from agentrt.serving.questions.server_questions import ServerQuestions
from agentrt.serving.tenants import SingleKey, Tenants
from agentrt.serving.webhook_rules import WebhookRules
from agentrt.steady import MachineClocks

if TYPE_CHECKING:
    from agentrt.serving.frontend.responses import Rows


@dataclass(frozen=True, slots=True)
class ServedProgram:
    """A served ``@program`` function from the file ``source``."""

    program: Program
    source: str


@dataclass(frozen=True, slots=True)
class ServedGraph:
    """A served LangGraph graph, or a factory of graphs, from the file ``source``.

    ``agentrt.integrations.langgraph.graphs.open_graph`` returns the graph of ``value``.
    """

    value: Any
    source: str


Served = ServedProgram | ServedGraph


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits of a server that protect it from a single client.

    - ``header_bytes``, ``body_bytes``: maximum size of a request's headers and body.
    - ``message_bytes``: maximum size of a WebSocket message.
    - ``request_s``: seconds within which a request must have arrived.
    - ``reader_s``: seconds after which a client that does not read its answer is disconnected.
    - ``connections``: maximum number of open connections.
    - ``idle_s``: seconds without a request after which a client program with a name ends.
    - ``silent_idle_s``: seconds without a request after which a client program without a name ends.
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
    """A source of API keys and their tenants."""

    def tenant_of(self, key: str) -> str | None:
        """Return the tenant of a key; None for an unknown key."""

    def is_operator(self, tenant: str) -> bool:
        """Return whether a tenant operates the server, and may see all other tenants."""


class ModelRoutes(Protocol):
    """An ASGI application that answers requests to the model. ``paths`` has only its paths
    without parameters.
    """

    @property
    def paths(self) -> Collection[str]: ...

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...


@dataclass(slots=True)
class Server:
    """The shared state of a server over an open runtime.

    - ``models``: the names of the served models.
    - ``served``: the served programs and graphs, by the names that clients use.
    - ``database``: the URL of the database.
    - ``draining``: True while the server finishes running work and accepts no new work.
    - ``at_drain``: functions that are called when the server starts to drain, such as a function
      that closes idle WebSockets.
    - ``under_way``: tasks outside of requests that a draining server waits for. The APIs add and
      remove them.
    - ``tenants``: the tenants' limits and current use.
    - ``keys``: the API keys. Without keys (None), requests need no key.
    - ``bounds``: limits that protect the server from a single client.
    - ``origins``: host names of the server, and origins whose pages may call it.
    - ``background``: the background tasks of the APIs.
    - ``checks``: functions that return why the server is not ready, or None, by name.
    - ``submit``: whether clients may send programs as source.
    - ``webhooks``: the rules of the webhooks that are called at the end of runs.
    - ``lifetimes``: how long threads and store items are kept.
    - ``live``: by tenant, the number of live runs that clients or events started (`ProgramRuns`).
    - ``park_s``: seconds after which a recorded run that waits only for humans or times leaves
      memory (0: never).
    - ``keep_alive_s``: maximum seconds of silence after which a stream is kept alive by a ping (0:
      never).
    - ``early_s``: seconds after which the head of an answer that is not a stream is sent early, to
      keep its connection open (0: never).
    - ``server_tools``: the names of the tools that replace Anthropic's server tools, by kind.
    - ``has_users``: whether authorization hooks separate the users of a tenant.
    - ``machine``: the clocks of the machine.
    - ``response_rows``: the stored responses of the Responses API, if a database is open.
    - ``programs``: the programs of clients.
    - ``questions``: the questions of programs and graphs to humans.
    - ``frontend``: the application that answers requests to the model, behind the middleware.
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
        """The served ``@program`` functions, by name."""
        return {
            name: served.program
            for name, served in self.served.items()
            if isinstance(served, ServedProgram)
        }

    def shows_texts(self, tenant: str | None) -> bool:
        """Return whether lists of programs show questions and error messages to a tenant (None:
        operator).

        The texts are hidden if they may belong to another user of the same tenant. They are shown
        to an operator only if operators have keys of their own.
        """
        has_operators = self.keys is not None and not isinstance(self.keys, SingleKey)
        return not self.has_users or (tenant is None and has_operators)

    def __post_init__(self) -> None:
        self.questions = ServerQuestions(self.runtime)
        self.programs = ClientPrograms(
            self.runtime,
            self.tenants.limits,
            idle_s=self.bounds.idle_s,
            silent_idle_s=self.bounds.silent_idle_s,
        )


Api = Callable[[Server], AbstractAsyncContextManager[APIRouter]]
"""Opens an API with its database and tasks, yields its routes, and closes the API at the end."""
