"""LangGraph graphs as agentrt programs: find the graphs of a module, and wrap them.

A wrapped graph runs on the runtime's event loop in its program's task, so that the follower adds
its nodes, tools and questions to that program's DAG.

A factory is a function that makes a graph. Its parameters may be the config and LangGraph's
``ServerRuntime``. Its result may be awaitable, or a synchronous or asynchronous context manager.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, get_origin, get_type_hints

from langchain_core.runnables import RunnableConfig
from langgraph.graph.state import CompiledStateGraph, StateGraph
from langgraph.pregel import Pregel
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore

from agentrt import tracking
from agentrt.errors import ProgramLoadError
from agentrt.graph import NodeKind
from agentrt.integrations._compat.langgraph import (
    QUESTIONS,
    UNNAMED_GRAPH,
    in_config,
    is_server_runtime,
    server_runtime,
)
from agentrt.integrations.langgraph.follower import follow
from agentrt.integrations.langgraph.frames import terms_of
from agentrt.program import Context, Program
from agentrt.program.definition import ProgramFunction
from agentrt.runtime.run import Run

Purpose = Literal["threads.create_run", "threads.update", "threads.read", "assistants.read"]
_FORMS = "a function that makes a graph may have a config and a ServerRuntime as its parameters"


@dataclass(frozen=True, slots=True)
class Access:
    """The purpose for which a graph is made, with the values that a factory may ask for.

    ``context`` is the context of a run. ``store`` is the server's store, or an empty store in
    memory if there is no server.
    """

    config: RunnableConfig = field(default_factory=lambda: RunnableConfig())
    purpose: Purpose = "threads.create_run"
    context: Any = None
    user: Any = None
    store: BaseStore = field(default_factory=InMemoryStore)


class Factory:
    """A function that makes a graph.

    Raises `ProgramLoadError` for a function that requires other parameters than the config and the
    ``ServerRuntime``, or whose parameters cannot be read.
    """

    def __init__(self, make: Callable[..., Any]) -> None:
        self._make = make
        self._signature = _signature(make)
        self._takes = _takes(make, self._signature)

    @property
    def varies(self) -> bool:
        """Whether two calls may return different graphs, because the function has parameters."""
        return bool(self._takes)

    async def open(self, access: Access, stack: AsyncExitStack) -> Any:
        """Call the function and return its graph. If the function returns a context manager,
        ``stack`` closes it. Raises the function's own errors.

        A server's store refuses calls that would block its event loop. A function without ``async``
        that makes such a call is called again in a thread, where the store accepts such calls.
        """
        with in_config(access.config, access.store) as config:
            bound = self._signature.bind_partial()
            for name, kind in self._takes.items():
                bound.arguments[name] = config if kind == "config" else _runtime(access)
            make = partial(self._make, *bound.args, **bound.kwargs)
            try:
                value = make()
                if _is_plain_manager(value):
                    return stack.enter_context(value)
            except asyncio.InvalidStateError:
                value = await asyncio.to_thread(make)
                if _is_plain_manager(value):
                    value = _InThread(value)
            if inspect.isawaitable(value):
                value = await value
            if _is_plain_manager(value):
                return stack.enter_context(value)
            is_manager = hasattr(value, "__aenter__")
            return await stack.enter_async_context(value) if is_manager else value


def _is_plain_manager(value: object) -> bool:
    return hasattr(value, "__enter__") and not hasattr(value, "__aenter__")


class _InThread:
    """A context manager that is entered and left in threads."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    async def __aenter__(self) -> Any:
        return await asyncio.to_thread(self._inner.__enter__)

    async def __aexit__(self, *error: object) -> Any:
        return await asyncio.to_thread(self._inner.__exit__, *error)


def _runtime(access: Access) -> Any:
    running = access.purpose == "threads.create_run"
    about = {"context": access.context} if running else {}
    return server_runtime(
        running, access_context=access.purpose, user=access.user, store=access.store, **about
    )


def _signature(make: Callable[..., Any]) -> inspect.Signature:
    try:
        return inspect.signature(make)
    except ValueError as error:  # a function written in C
        raise ProgramLoadError(
            f"the parameters of the function that makes the graph cannot be read; {_FORMS}"
        ) from error


def _takes(make: Callable[..., Any], signature: inspect.Signature) -> Mapping[str, str]:
    """Return the names of the function's parameters that get a value, each with the kind of its
    value: ``config`` or ``runtime``.
    """
    try:
        hints = get_type_hints(make)
    except Exception:  # names that cannot be resolved, or not a function
        hints = {}
    takes: dict[str, str] = {}
    unknown: list[str] = []
    for name, parameter in signature.parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        kind = _kind(name, hints.get(name, parameter.annotation))
        needed = parameter.default is parameter.empty
        if kind is None and needed and _may_be_config(hints.get(name, parameter.annotation)):
            kind = "config"
        if kind is not None and kind not in takes.values():
            takes[name] = kind
        elif needed:
            unknown.append(name)
    if unknown:
        raise ProgramLoadError(
            f"it is a function with the required parameters {', '.join(unknown)}; {_FORMS}"
        )
    return takes


def _kind(name: str, hint: Any) -> str | None:
    """Return ``config`` or ``runtime`` if a parameter gets the config or the runtime, else None.

    The type of the parameter decides. If it is neither of the two types, or is missing, the
    parameter's name decides. If the type is only known as text, the name does not count.
    """
    if isinstance(hint, str):  # a type that is imported for type checking only
        hint = hint.partition("[")[0].rpartition(".")[2]
        return {"RunnableConfig": "config", "ServerRuntime": "runtime"}.get(hint)
    if is_server_runtime(get_origin(hint) or hint):
        return "runtime"
    if hint in (RunnableConfig, RunnableConfig | None):
        return "config"
    return name if name in ("config", "runtime") else None


def _may_be_config(hint: Any) -> bool:
    """Return whether a parameter of any name may take the config: it has no type, or a mapping's
    type.
    """
    return (get_origin(hint) or hint) in (inspect.Parameter.empty, Any, dict, Mapping)


# -- graphs --------------------------------------------------------------------------------


Graph = Pregel[Any, Any, Any, Any]
Durability = Literal["sync", "async", "exit"] | None


def is_graph(value: object) -> bool:
    """Return whether a value is a graph, compiled or not."""
    return isinstance(value, Pregel | StateGraph)


def graphs_among(names: Mapping[str, Any]) -> dict[str, Any]:
    """Return the graphs among a module's names, compiled or not.

    Leaves out builders whose compiled graph is among them, and graphs that are nodes of another
    graph, because users want to run the outer graph.
    """
    graphs = {name: value for name, value in names.items() if is_graph(value)}
    parts = {id(part) for value in graphs.values() for part in _parts(value)}
    return {name: value for name, value in graphs.items() if id(value) not in parts}


def _parts(value: Any) -> list[object]:
    if not isinstance(value, Pregel):
        return []
    inner: list[object] = [value.builder] if isinstance(value, CompiledStateGraph) else []
    return inner + [graph for _, graph in value.get_subgraphs()]


def graph_name(value: Any, variable: str) -> str:
    """Return the type of a graph's programs: the name of the graph, its function or its
    variable.
    """
    if not isinstance(value, Pregel):
        return variable
    if value.name != UNNAMED_GRAPH:
        return value.name
    # For an entrypoint, LangGraph names only its single node.
    return variable if isinstance(value, CompiledStateGraph) else next(iter(value.nodes), variable)


async def open_graph(value: Any, stack: AsyncExitStack, access: Access) -> Graph:
    """Return ``value`` as a compiled graph. A factory is called, and a builder is compiled.

    ``stack`` closes the context managers of a factory. If a factory's graph has no store of its
    own, the graph gets the store of ``access``. Raises `ProgramLoadError` if the result is not a
    graph, and the errors of the factory and of the builder.
    """
    by_factory = is_factory(value)
    if by_factory:
        value = await Factory(value).open(access, stack)
    if isinstance(value, StateGraph):
        value = value.compile()
    if not isinstance(value, Pregel):
        raise ProgramLoadError(
            f"it is {_described(value)}; use a StateGraph, compiled or not, an @entrypoint, or a "
            "function that returns a graph"
        )
    if by_factory and value.store is None:
        return value.copy(update={"store": access.store})
    return value


def is_factory(value: object) -> bool:
    """Return whether a value is callable, and not a graph itself."""
    return callable(value) and not is_graph(value)


def _described(value: object) -> str:
    return "None" if value is None else f"of type {type(value).__name__}"


def graph_program(
    graph: Graph,
    name: str,
    config: RunnableConfig,
    durability: Durability = None,
) -> Program:
    """Make a program that runs ``graph`` on its input, with ``config``. The result of the program
    is the value of `program_result`.
    """

    async def run(ctx: Context, input: Any) -> Any:
        values = await graph.ainvoke(input, config, durability=durability)
        return await program_result(graph, config, values)

    return program_of_graph(run, name)


def program_of_graph(function: ProgramFunction, name: str) -> Program:
    """Make a program of a function that runs a graph and returns its `program_result`."""
    follow()
    # LangGraph ends its own tasks. Other tasks that a node starts may serve other programs, too.
    return Program(function, name, owns_tasks=False)


async def program_result(graph: Graph, config: RunnableConfig, values: Any) -> Any:
    """Return the result of a program whose graph stopped with ``values``: None if the graph waits
    for a human, else the values.
    """
    if isinstance(values, dict) and values.pop(QUESTIONS, None):
        return None
    return None if graph.checkpointer and await _paused(graph, config) else values


async def _paused(graph: Graph, config: RunnableConfig) -> bool:
    """Return whether the graph stopped at a breakpoint. If so, add a question to the program's
    DAG, because a breakpoint waits for a human without asking.
    """
    state = await graph.aget_state(config)
    if not state.next:
        return False
    scope = tracking.current_scope()
    assert scope is not None
    run = scope.owner
    assert isinstance(run, Run)
    question = f"continue with {', '.join(state.next)}?"
    run.registry.begin_interrupt(run, scope, NodeKind.HUMAN, question)
    return True


def program_terms(graph: Graph) -> dict[str, Any]:
    """Return the tenant and the size hint in a graph's own config, for `Runtime.start`."""
    return terms_of((graph.config or {}).get("metadata") or {})
