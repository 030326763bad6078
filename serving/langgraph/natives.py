"""Native ``@program`` functions behind the LangGraph API: each as a graph of one node.

`Context.human` becomes an interrupt of LangGraph: the run ends with the question, and the one
that answers it runs the function again from its top, as it does a node.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextvars import ContextVar
from typing import Any, TypeVar

from langgraph.func import entrypoint
from langgraph.types import interrupt

from agentrt.integrations.langgraph.graphs import Graph
from agentrt.program import Context, Emitter, Program
from agentrt.request import CallSpec, Reply
from agentrt.runtime import Runtime

T = TypeVar("T")
_PROGRAM: ContextVar[Context] = ContextVar("agentrt_native_program")
_INPUT = "input"


def as_graph(program: Program, runtime: Runtime) -> Graph:
    """``program`` as a graph of LangGraph's functional API."""

    async def run(given: dict[str, Any]) -> Any:
        outer = _PROGRAM.get()
        emitter = runtime.emitter(runtime.runs[outer.program_id])
        context = Context(outer.program_id, outer.program_type, _Asking(emitter))
        return await program(context, given[_INPUT])

    run.__name__ = run.__qualname__ = program.name
    return entrypoint()(run)


def enter(context: Context) -> None:
    """What runs from here on is the program of ``context``."""
    _PROGRAM.set(context)


def native_input(given: Any) -> dict[str, Any]:
    """A program's input as its graph takes it: None is an input, too."""
    return {_INPUT: given}


class _Asking:
    """An `Emitter` that asks humans by LangGraph's interrupts."""

    def __init__(self, inner: Emitter) -> None:
        self._inner = inner

    async def call(self, spec: CallSpec, after: Iterable[Reply]) -> Reply:
        return await self._inner.call(spec, after)

    def stream(self, spec: CallSpec, after: Iterable[Reply]) -> AsyncIterator[str]:
        return self._inner.stream(spec, after)

    async def tool(self, name: str, work: Callable[[], Awaitable[T]], after: Iterable[Reply]) -> T:
        return await self._inner.tool(name, work, after)

    async def human(self, question: str, after: Iterable[Reply]) -> str:
        answer: str = interrupt(question)
        return answer
