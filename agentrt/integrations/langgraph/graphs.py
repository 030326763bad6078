"""LangGraph graphs as agentrt programs: finds them among a file's names, and wraps them.

A wrapped graph runs on the runtime's loop inside its program's task, so that the follower puts
its nodes, tools and questions into that program's DAG.

A factory is a function that makes a graph. It takes nothing, the config, LangGraph's
``ServerRuntime``, or both. What it gives may be awaitable, or a context manager of either kind.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, Literal, get_origin, get_type_hints

from langchain_core.runnables import RunnableConfig
from langgraph.graph.state import CompiledStateGraph, StateGraph
from langgraph.pregel import Pregel
from langgraph.store.base import BaseStore

from agentrt import tracking
from agentrt.errors import ProgramLoadError
from agentrt.graph import NodeKind
from agentrt.integrations._compat.langgraph import (
    QUESTIONS,
    UNNAMED_GRAPH,
    is_server_runtime,
    server_runtime,
)
from agentrt.integrations.langgraph.follower import follow
from agentrt.integrations.langgraph.frames import terms_of
from agentrt.program import Context, Program
from agentrt.runtime.registry import registry_of
from agentrt.runtime.run import Run

Purpose = Literal["threads.create_run", "threads.update", "threads.read", "assistants.read"]
_FORMS = "one that makes a graph takes nothing, a config, a ServerRuntime, or both"


@dataclass(frozen=True, slots=True)
class Access:
    """What a graph is made for. A factory may ask for all of this; ``context`` is a run's."""

    config: RunnableConfig = field(default_factory=lambda: RunnableConfig())
    purpose: Purpose = "threads.create_run"
    context: Any = None
    user: Any = None
    store: BaseStore | None = None


class Factory:
    """A function that makes a graph. It ``varies`` if it asks what the graph is for.

    Raises `ProgramLoadError` for a function that needs anything else.
    """

    def __init__(self, make: Callable[..., Any]) -> None:
        self._make = make
        self._signature = _signature(make)
        self._takes = _takes(make, self._signature)

    @property
    def varies(self) -> bool:
        """Whether two calls may give different graphs."""
        return bool(self._takes)

    async def open(self, access: Access, stack: AsyncExitStack) -> Any:
        """What it gives; ``stack`` leaves what is a context manager. Raises what it raises."""
        bound = self._signature.bind_partial()
        for name, kind in self._takes.items():
            bound.arguments[name] = access.config if kind == "config" else _runtime(access)
        value = self._make(*bound.args, **bound.kwargs)
        if inspect.isawaitable(value):
            value = await value
        if hasattr(value, "__aenter__"):
            return await stack.enter_async_context(value)
        return stack.enter_context(value) if hasattr(value, "__enter__") else value


def _runtime(access: Access) -> Any:
    running = access.purpose == "threads.create_run"
    about = {"context": access.context} if running else {}
    return server_runtime(
        running, access_context=access.purpose, user=access.user, store=access.store, **about
    )


def _signature(make: Callable[..., Any]) -> inspect.Signature:
    try:
        return inspect.signature(make)
    except ValueError as error:  # of a function in C
        raise ProgramLoadError(f"it is a function without a signature; {_FORMS}") from error


def _takes(make: Callable[..., Any], signature: inspect.Signature) -> Mapping[str, str]:
    """Its parameters that are given something, each with what that is."""
    try:
        hints = get_type_hints(make)
    except Exception:  # names that cannot be resolved, or no function at all
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
        raise ProgramLoadError(f"it is a function that needs {', '.join(unknown)}; {_FORMS}")
    return takes


def _kind(name: str, hint: Any) -> str | None:
    """What a parameter asks for, by its type or else its name."""
    if isinstance(hint, str):  # a name that only the type checker knows
        hint = hint.partition("[")[0].rpartition(".")[2]
        return {"RunnableConfig": "config", "ServerRuntime": "runtime"}.get(hint)
    if is_server_runtime(get_origin(hint) or hint):
        return "runtime"
    if hint in (RunnableConfig, RunnableConfig | None):
        return "config"
    return name if name in ("config", "runtime") else None


def _may_be_config(hint: Any) -> bool:
    """Whether a parameter of any name takes the config: it has no type, or that of an object."""
    return (get_origin(hint) or hint) in (inspect.Parameter.empty, Any, dict, Mapping)


# -- graphs --------------------------------------------------------------------------------


Graph = Pregel[Any, Any, Any, Any]
Durability = Literal["sync", "async", "exit"] | None
Drive = Callable[[Context, Any], Awaitable[Any]]


def is_graph(value: object) -> bool:
    """Whether it is a graph, compiled or not."""
    return isinstance(value, Pregel | StateGraph)


def graphs_among(names: Mapping[str, Any]) -> dict[str, Any]:
    """The graphs among a module's names, compiled or not.

    A builder whose graph is there, too, is left out, and so is a graph that is a node of
    another one: it is that one which is to be run.
    """
    found = {name: value for name, value in names.items() if is_graph(value)}
    parts = {id(part) for value in found.values() for part in _parts(value)}
    return {name: value for name, value in found.items() if id(value) not in parts}


def _parts(value: Any) -> list[object]:
    if not isinstance(value, Pregel):
        return []
    inner: list[object] = [value.builder] if isinstance(value, CompiledStateGraph) else []
    return inner + [graph for _, graph in value.get_subgraphs()]


def graph_name(value: Any, variable: str) -> str:
    """The type of a graph's programs: its own name, or that of its function or variable."""
    if not isinstance(value, Pregel):
        return variable
    if value.name != UNNAMED_GRAPH:
        return value.name
    # LangGraph has no name for an entrypoint but that of its one node.
    return variable if isinstance(value, CompiledStateGraph) else next(iter(value.nodes), variable)


async def open_graph(value: Any, stack: AsyncExitStack, access: Access) -> Graph:
    """``value`` as a graph that can be run: compiled, and made if it is a factory.

    ``stack`` leaves the context managers of a factory. Raises `ProgramLoadError` if no graph
    comes of it.
    """
    if is_factory(value):
        value = await Factory(value).open(access, stack)
    if isinstance(value, StateGraph):
        value = value.compile()
    if not isinstance(value, Pregel):
        raise ProgramLoadError(
            f"it is {_described(value)}; a graph is a StateGraph, compiled or not, an "
            "@entrypoint, or a function that returns one"
        )
    return value


def is_factory(value: object) -> bool:
    """Whether it makes graphs, and is none itself."""
    return callable(value) and not is_graph(value)


def _described(value: object) -> str:
    return "None" if value is None else f"of type {type(value).__name__}"


def graph_program(
    graph: Graph,
    name: str,
    config: RunnableConfig,
    durability: Durability = None,
    *,
    drive: Drive | None = None,
) -> Program:
    """A program that runs ``graph`` on its input, under ``config``.

    Its result is what the graph returns, or None where the graph waits for a human. With
    ``drive``, that is what runs the graph; it returns the last of the graph's values.
    """
    follow()

    async def run(ctx: Context, given: Any) -> Any:
        if drive is None:
            result = await graph.ainvoke(given, config, durability=durability)
        else:
            result = await drive(ctx, given)
        if isinstance(result, dict) and result.pop(QUESTIONS, None):
            return None
        return None if graph.checkpointer and await _paused(graph, config) else result

    # LangGraph ends its own tasks; what else a node starts may serve other programs, too.
    return Program(run, name, owns_tasks=False)


async def _paused(graph: Graph, config: RunnableConfig) -> bool:
    """Whether the graph stopped at a breakpoint, where it waits for a human without a question."""
    state = await graph.aget_state(config)
    if not state.next:
        return False
    scope = tracking.current_scope()
    assert scope is not None
    run = scope.owner
    assert isinstance(run, Run)
    question = f"go on with {', '.join(state.next)}?"
    registry_of(run).begin_interrupt(run, scope, NodeKind.HUMAN, question)
    return True


def program_terms(graph: Graph) -> dict[str, Any]:
    """The tenant and the size hint that a graph's own config names, for `Runtime.start`."""
    return terms_of((graph.config or {}).get("metadata") or {})
