"""LangGraph graphs as agentrt programs: finds them among a file's names, and wraps them.

A wrapped graph runs on the runtime's loop inside its program's task, so that the follower puts
its nodes, tools and questions into that program's DAG.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from typing import Any, Literal

from langchain_core.runnables import RunnableConfig
from langgraph.graph.state import CompiledStateGraph, StateGraph
from langgraph.pregel import Pregel

from agentrt import tracking
from agentrt.errors import ProgramLoadError
from agentrt.graph import NodeKind
from agentrt.integrations._compat.langgraph import QUESTIONS, UNNAMED_GRAPH
from agentrt.integrations.langgraph.factories import Access, Factory
from agentrt.integrations.langgraph.follower import follow
from agentrt.integrations.langgraph.frames import terms_of
from agentrt.program import Context, Program
from agentrt.runtime.registry import registry_of
from agentrt.runtime.run import Run

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
