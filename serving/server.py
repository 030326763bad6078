"""What the rooms of a server share: the runtime, what is served, and how it stands."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from agentrt.program import Program
from agentrt.runtime import Runtime
from agentrt.serving.tenants import Tenants


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
    """What any client may make the server hold, in bytes and seconds.

    A request has ``header_bytes`` and ``body_bytes`` at most, and arrives within ``request_s``;
    a client that reads nothing of its answer for ``reader_s`` is dropped. There are
    ``connections`` at most. A program that its
    client does not end is ended when it was not heard of for ``idle_s``; one that the server
    found out by itself, for ``silent_idle_s``.
    """

    header_bytes: int = 64 * 1024
    body_bytes: int = 4 * 1024 * 1024
    request_s: float = 30.0
    reader_s: float = 60.0
    connections: int = 4096
    idle_s: float = 900.0
    silent_idle_s: float = 120.0


class KeyCheck(Protocol):
    """Tells whose an API key is."""

    def tenant_of(self, key: str) -> str | None:
        """The key's tenant; None for what is no key of this server."""

    def is_operator(self, tenant: str) -> bool:
        """Whether this tenant runs the server, and may see what all others do."""


def _default_tenants() -> Tenants:
    return Tenants(time.monotonic)


@dataclass(slots=True)
class Server:
    """One server over one open runtime. ``models`` are the names of what its engines serve.

    ``served`` has programs and graphs by the names that clients call them. Once ``draining``,
    it finishes what runs and takes nothing new. ``under_way`` has the tasks that it then waits
    for though no request does: a room enters them, and takes them out at their end. ``tenants``
    has each tenant's limits and use; with ``keys``, from an API key to its tenant, requests
    without a key are refused.
    """

    runtime: Runtime
    models: tuple[str, ...]
    served: Mapping[str, Served] = field(default_factory=dict)
    database: str = "sqlite:agentrt.db"
    draining: bool = False
    under_way: set[asyncio.Task[Any]] = field(default_factory=set)
    tenants: Tenants = field(default_factory=_default_tenants)
    keys: KeyCheck | None = None
    bounds: Bounds = field(default_factory=Bounds)
