"""The graphs of the server, opened: each with the server's checkpointer, and its tenant's store."""

from __future__ import annotations

import warnings
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.pregel.protocol import PregelProtocol

from agentrt.errors import AgentrtError, ProgramLoadError
from agentrt.integrations.langgraph.graphs import Graph, open_graph
from agentrt.runtime import Runtime
from agentrt.serving.langgraph.keepers import Storage
from agentrt.serving.langgraph.natives import as_graph
from agentrt.serving.langgraph.tenantstore import TenantStore
from agentrt.serving.server import Served, ServedProgram, Server


class Graphs:
    """By the names that clients call them: their ``graph_id``."""

    def __init__(self, graphs: Mapping[str, Graph], native: frozenset[str], store: Storage) -> None:
        self._graphs = graphs
        self._native = native
        self._storage = store

    def __contains__(self, name: object) -> bool:
        return name in self._graphs

    def names(self) -> list[str]:
        """All names, in the order of the server."""
        return list(self._graphs)

    def of(self, name: str, tenant: str) -> Graph:
        """The graph ``name`` for a run or a question of ``tenant``."""
        return self._graphs[name].copy(update={"store": self.store_of(tenant)})

    def store_of(self, tenant: str) -> TenantStore:
        """What ``tenant`` has in the store."""
        return TenantStore(self._storage.store, tenant)

    def is_native(self, name: str) -> bool:
        """Whether it is a ``@program`` function."""
        return name in self._native


@asynccontextmanager
async def open_graphs(server: Server, storage: Storage) -> AsyncIterator[Graphs]:
    """Every graph and program that ``server`` serves. Raises `ProgramLoadError`."""
    async with AsyncExitStack() as stack:
        graphs = {
            name: await _opened(name, served, server.runtime, stack)
            for name, served in server.served.items()
        }
        native = frozenset(n for n, one in server.served.items() if isinstance(one, ServedProgram))
        with_saver = {
            name: graph.copy(update={"checkpointer": storage.saver})
            for name, graph in graphs.items()
        }
        yield Graphs(with_saver, native, storage)


async def _opened(name: str, served: Served, runtime: Runtime, stack: AsyncExitStack) -> Graph:
    if isinstance(served, ServedProgram):
        return as_graph(served.program, runtime)
    config: RunnableConfig = {}
    try:
        return await open_graph(served.value, stack, config)
    except ProgramLoadError as error:
        raise ProgramLoadError(f"{served.source}: {name!r} is no graph: {error}") from None
    except AgentrtError as error:
        raise ProgramLoadError(f"{served.source}: {error}") from error
    except Exception as error:
        raise ProgramLoadError(
            f"{served.source}: the function that makes {name!r} raised "
            f"{type(error).__name__}: {error}"
        ) from error


def schemas_of(graph: PregelProtocol[Any, Any, Any, Any], name: str) -> dict[str, Any]:
    """The JSON schemas of a graph; None for what has none."""
    return {
        "graph_id": name,
        "input_schema": _schema(graph, "get_input_jsonschema"),
        "output_schema": _schema(graph, "get_output_jsonschema"),
        "state_schema": _schema(graph, "get_output_jsonschema"),
        "config_schema": _schema(graph, "get_config_jsonschema"),
        "context_schema": _schema(graph, "get_context_jsonschema"),
    }


def _schema(graph: Any, method: str) -> dict[str, Any] | None:
    """A schema, or None if pydantic cannot say it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the API has a config schema, deprecated or not
            schema: dict[str, Any] | None = getattr(graph, method)()
    except Exception:  # whatever a type of the user's makes pydantic raise
        return None
    return schema


def subgraphs_of(graph: Graph, namespace: str | None, recurse: bool) -> dict[str, Any]:
    """The schemas of the graphs inside a graph, by their namespaces."""
    found = graph.get_subgraphs(namespace=namespace, recurse=recurse)
    return {name: schemas_of(inner, inner.get_name()) for name, inner in found}
