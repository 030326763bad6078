"""What the rooms of a server share: the runtime, what is served, and how it stands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agentrt.program import Program
from agentrt.runtime import Runtime


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


@dataclass(slots=True)
class Server:
    """One server over one open runtime. ``models`` are the names of what its engines serve.

    ``served`` has programs and graphs by the names that clients call them. Once ``draining``,
    it finishes what runs and takes nothing new.
    """

    runtime: Runtime
    models: tuple[str, ...]
    served: Mapping[str, Served] = field(default_factory=dict)
    database: str = "sqlite:agentrt.db"
    draining: bool = False
