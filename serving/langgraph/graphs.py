"""The graphs of the server, each with the server's checkpointer and its tenant's store.

What a factory makes depends on the run's config: it is called for each run, and whenever a
graph's form or a thread's state is asked for. All other graphs are made once.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from pydantic import create_model

from agentrt.errors import AgentrtError, ProgramLoadError
from agentrt.integrations.langgraph.factories import Access, Factory
from agentrt.integrations.langgraph.graphs import Graph, is_factory, open_graph
from agentrt.runtime import Runtime
from agentrt.serving.langgraph.native import as_graph
from agentrt.serving.langgraph.responses import not_found
from agentrt.serving.langgraph.storage import Storage
from agentrt.serving.langgraph.store import TenantStore
from agentrt.serving.server import Served, ServedGraph, ServedProgram, Server


@dataclass(frozen=True, slots=True)
class Graphs:
    """The graphs by their ``graph_id``, the name that clients use.

    ``fixed`` are made; ``factories`` make one whenever it is needed; ``native`` are programs.
    """

    fixed: Mapping[str, Graph]
    factories: Mapping[str, ServedGraph]
    native: frozenset[str]
    storage: Storage

    def __contains__(self, name: object) -> bool:
        return name in self.fixed or name in self.factories

    def names(self) -> list[str]:
        """All names."""
        return [*self.fixed, *self.factories]

    @asynccontextmanager
    async def opened(self, name: str, tenant: str, access: Access) -> AsyncIterator[Graph]:
        """The graph ``name`` with the store of ``tenant``, as long as the block lasts.

        Raises 404 if it is not served, and `ProgramLoadError` if it cannot be made.
        """
        if name not in self:
            raise not_found("graph", name)
        store = TenantStore(self.storage.store, tenant)
        async with AsyncExitStack() as stack:
            if (graph := self.fixed.get(name)) is None:
                access = replace(access, store=store)
                graph = await made(name, self.factories[name], stack, access)
            yield graph.copy(update={"checkpointer": self.storage.saver, "store": store})

    def varies(self, name: str) -> bool:
        """Whether what the graph is made for changes it."""
        return name in self.factories

    def is_native(self, name: str) -> bool:
        """Whether it is a ``@program`` function."""
        return name in self.native


@asynccontextmanager
async def open_graphs(server: Server, storage: Storage) -> AsyncIterator[Graphs]:
    """Every graph and program that ``server`` serves. Raises `ProgramLoadError`."""
    fixed: dict[str, Graph] = {}
    factories: dict[str, ServedGraph] = {}
    async with AsyncExitStack() as stack:
        for name, served in server.served.items():
            if isinstance(served, ServedGraph) and varies(name, served):
                factories[name] = served
            else:
                fixed[name] = await opened_graph(name, served, server.runtime, stack)
        native = frozenset(n for n, one in server.served.items() if isinstance(one, ServedProgram))
        yield Graphs(fixed, factories, native, storage)


async def opened_graph(name: str, served: Served, runtime: Runtime, stack: AsyncExitStack) -> Graph:
    """What is served under ``name``, as a graph for any run. Raises `ProgramLoadError`."""
    if isinstance(served, ServedProgram):
        return as_graph(served.program, runtime)
    return await made(name, served, stack, Access())


def varies(name: str, served: ServedGraph) -> bool:
    """Whether it is a factory that takes what a graph is for. Raises `ProgramLoadError`."""
    try:
        return is_factory(served.value) and Factory(served.value).varies
    except ProgramLoadError as error:
        raise ProgramLoadError(f"{served.source}: {name!r} is no graph: {error}") from None


async def made(name: str, served: ServedGraph, stack: AsyncExitStack, access: Access) -> Graph:
    """The graph that is served under ``name``. Raises `ProgramLoadError`."""
    try:
        return await open_graph(served.value, stack, access)
    except ProgramLoadError as error:
        raise ProgramLoadError(f"{served.source}: {name!r} is no graph: {error}") from None
    except AgentrtError as error:
        raise ProgramLoadError(f"{served.source}: {error}") from error
    except Exception as error:
        raise ProgramLoadError(
            f"{served.source}: the function that makes {name!r} raised "
            f"{type(error).__name__}: {error}"
        ) from error


def schemas_of(graph: Any, name: str | None = None) -> dict[str, Any]:
    """The JSON schemas of a graph; None for what has none. What a config may have as configurable
    is what a context may have.
    """
    context = _schema(lambda: graph.get_context_jsonschema())
    return {
        "input_schema": _schema(lambda: graph.get_input_jsonschema()),
        "output_schema": _schema(lambda: graph.get_output_jsonschema()),
        "state_schema": _schema(lambda: _state_schema(graph, name)),
        "config_schema": context or {},
        "context_schema": context,
    }


def _schema(asked: Callable[[], dict[str, Any] | None]) -> dict[str, Any] | None:
    """A schema, or None if pydantic cannot say it."""
    try:
        return asked()
    except Exception:  # whatever a type of the user's makes pydantic raise
        return None


def _state_schema(graph: Any, name: str | None) -> dict[str, Any]:
    """All values of a state, which may be more than a graph gives at its end."""
    values: Any = {key: (graph.channels[key].ValueType, None) for key in graph.stream_channels_list}
    model = create_model(graph.get_name("state", name=name), **values)
    schema: dict[str, Any] = model.model_json_schema()
    return schema


def subgraphs_of(graph: Graph, namespace: str | None, recurse: bool) -> dict[str, Any]:
    """The schemas of the graphs inside a graph, by their namespaces."""
    found = graph.get_subgraphs(namespace=namespace, recurse=recurse)
    return {name: schemas_of(inner) for name, inner in found}
