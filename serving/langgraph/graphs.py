"""The graphs of the server, each with the server's checkpointer and its tenant's store.

A native ``@program`` function is a graph of one node. Its `Context.human` becomes an interrupt of
LangGraph: the run ends with the question, and the run that answers it starts the function again
from its top, as LangGraph does with a node.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from contextvars import ContextVar
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.func import entrypoint
from langgraph.pregel.protocol import PregelProtocol
from langgraph.store.base import BaseStore
from langgraph.types import interrupt

from agentrt.errors import AgentrtError, InterruptExpiredError, ProgramLoadError
from agentrt.integrations.langgraph.graphs import Graph, open_graph
from agentrt.interrupts import Tool
from agentrt.interrupts.answers import AnswerForm
from agentrt.interrupts.events import Event, Feed
from agentrt.program import Context, Emitter, Program
from agentrt.request import Reply
from agentrt.runtime import Runtime
from agentrt.serving.langgraph.interrupts import EXPIRED
from agentrt.serving.langgraph.responses import not_found
from agentrt.serving.langgraph.storage import Storage
from agentrt.serving.langgraph.store import TenantStore
from agentrt.serving.server import Served, ServedProgram, Server

_PROGRAM: ContextVar[Context] = ContextVar("agentrt_native_program")
_INPUT = "input"


class Graphs:
    """The graphs by their ``graph_id``, the name that clients use; some are ``native``."""

    def __init__(
        self, graphs: Mapping[str, Graph], native: frozenset[str], store: BaseStore
    ) -> None:
        self._graphs = graphs
        self._native = native
        self._store = store

    def __contains__(self, name: object) -> bool:
        return name in self._graphs

    def names(self) -> list[str]:
        """All names, in the order of the server."""
        return list(self._graphs)

    def of(self, name: str, tenant: str) -> Graph:
        """The graph ``name`` with the store of ``tenant``. Raises 404 if it is not served."""
        if name not in self._graphs:
            raise not_found("graph", name)
        return self._graphs[name].copy(update={"store": TenantStore(self._store, tenant)})

    def is_native(self, name: str) -> bool:
        """Whether it is a ``@program`` function."""
        return name in self._native


@asynccontextmanager
async def open_graphs(server: Server, storage: Storage) -> AsyncIterator[Graphs]:
    """Every graph and program that ``server`` serves. Raises `ProgramLoadError`."""
    async with AsyncExitStack() as stack:
        graphs = {
            name: await opened_graph(name, served, server.runtime, stack)
            for name, served in server.served.items()
        }
        native = frozenset(n for n, one in server.served.items() if isinstance(one, ServedProgram))
        with_saver = {
            name: graph.copy(update={"checkpointer": storage.saver})
            for name, graph in graphs.items()
        }
        yield Graphs(with_saver, native, storage.store)


async def opened_graph(name: str, served: Served, runtime: Runtime, stack: AsyncExitStack) -> Graph:
    """What is served under ``name``, as a graph. Raises `ProgramLoadError`."""
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


# -- native programs ----------------------------------------------------------------------


def as_graph(program: Program, runtime: Runtime) -> Graph:
    """``program`` as a graph of LangGraph's functional API."""

    async def run(given: dict[str, Any]) -> Any:
        outer = _PROGRAM.get()
        emitter = runtime.emitter(runtime.runs[outer.program_id])
        context = Context(outer.program_id, outer.program_type, _InterruptingEmitter(emitter))
        return await program(context, given[_INPUT])

    run.__name__ = run.__qualname__ = program.name
    return entrypoint()(run)


def enter_program(context: Context) -> None:
    """Make ``context`` the program that the calling task runs."""
    _PROGRAM.set(context)


def native_input(given: Any) -> dict[str, Any]:
    """A program's input as its graph takes it; None is an input too."""
    return {_INPUT: given}


class _InterruptingEmitter:
    """An `Emitter` that asks humans through LangGraph's interrupts."""

    def __init__(self, inner: Emitter) -> None:
        self._inner = inner

    async def call(self, request: Mapping[str, Any], after: Iterable[Reply]) -> Reply:
        return await self._inner.call(request, after)

    def stream(
        self, request: Mapping[str, Any], after: Iterable[Reply], put: Callable[[Reply], None]
    ) -> AsyncIterator[Mapping[str, Any]]:
        return self._inner.stream(request, after, put)

    async def tool(
        self,
        tool: Tool,
        positional: tuple[Any, ...],
        arguments: Mapping[str, Any],
        after: Iterable[Reply],
    ) -> Any:
        return await self._inner.tool(tool, positional, arguments, after)

    async def find_tool(self, name: str) -> Tool:
        return await self._inner.find_tool(name)

    async def tools(self, *transports: str) -> list[Tool]:
        return await self._inner.tools(*transports)

    async def event(self, feed: Feed, timeout: float | None, after: Iterable[Reply]) -> Event:
        return await self._inner.event(feed, timeout, after)

    async def human(
        self,
        text: str,
        form: AnswerForm,
        timeout: float | None,
        after: Iterable[Reply],
    ) -> Any:
        asked: dict[str, Any] = {"question": text}
        if form.schema is not None:
            asked["schema"] = form.schema
        if timeout is not None:
            asked["expires_at"] = time.time() + timeout
        answer = interrupt(asked if len(asked) > 1 else text)
        if answer == EXPIRED:
            raise InterruptExpiredError(f"nobody answered within {timeout:g} s: {text!r}")
        # Without a schema, clients of LangGraph may answer with any JSON.
        return answer if form.schema is None else form.accept(answer)
