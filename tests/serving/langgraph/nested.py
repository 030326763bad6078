"""Graphs that ask from inside subgraphs, held in various ways: as a node, two deep, with a state
that lasts, called by a node's function, and none, which is the graph itself.

A node that is to wait does so by a function that is given, since a server in a process of its own
has other gates than one in a thread.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt
from typing_extensions import TypedDict

Note = Callable[[str, RunnableConfig], None]
Hold = Callable[["Told", RunnableConfig], Awaitable[None]]
KINDS = ("node", "deep", "lasting", "called")
"""The ways in which a graph holds its subgraph."""


def joined(before: list[str], new: list[str]) -> list[str]:
    """A subgraph hands back what it was given, too."""
    return before + [one for one in new if one not in before]


class Told(TypedDict, total=False):
    go: Annotated[str, lambda before, new: new]
    told: Annotated[list[str], joined]


class Nested:
    """Makes the graphs. ``note`` is told of each node that starts, and ``hold`` waits."""

    def __init__(self, note: Note, hold: Hold) -> None:
        self._note = note
        self._hold = hold

    def all(self) -> dict[str, StateGraph[Any]]:
        """By name: what is asked, and how the graph that asks is held."""
        asking = {"pair": self._pair, "twice": self._twice}
        held = {
            f"{name}-{kind}": self._held(make(), kind)
            for name, make in asking.items()
            for kind in KINDS
        }
        bare = self._twice().add_edge(START, "ready")
        both = {"both": self._both(inside=True), "both-bare": self._both(inside=False)}
        return {**held, "twice-bare": bare, **both}

    def _pair(self) -> StateGraph[Any]:
        """Two questions, in nodes of their own, and one between them that waits."""
        return StateGraph(Told).add_sequence(
            [
                ("ready", self._step("ready")),
                ("first", self._asker("first", "one")),
                ("pause", self._pause),
                ("second", self._asker("second", "two")),
            ]
        )

    def _twice(self) -> StateGraph[Any]:
        """Two questions of one node, which waits between them."""

        async def twice(state: Told, config: RunnableConfig) -> Told:
            self._note("twice", config)
            answer = interrupt("one")
            await self._hold(state, config)
            return {"told": [answer, interrupt("two")]}

        return StateGraph(Told).add_sequence([("ready", self._step("ready")), ("twice", twice)])

    def _both(self, *, inside: bool) -> StateGraph[Any]:
        """Two nodes at once: one asks twice, and the other waits after its answer. ``inside``
        subgraphs of their own, or not.
        """

        async def patient(state: Told, config: RunnableConfig) -> Told:
            answer = interrupt("b one")
            await self._hold(state, config)
            return {"told": [answer, interrupt("b two")]}

        async def quick(state: Told, config: RunnableConfig) -> Told:
            return {"told": [interrupt("a one"), interrupt("a two")]}

        builder = StateGraph(Told)
        for name, node in (("quick", quick), ("patient", patient)):
            inner = StateGraph(Told).add_node(name, node).add_edge(START, name)
            here: Any = inner.compile() if inside else node
            builder.add_node(f"the {name}", here).add_edge(START, f"the {name}")
        return builder

    def _held(self, inner: StateGraph[Any], kind: str) -> StateGraph[Any]:
        inner.add_edge(START, "ready")
        sub: Any = inner.compile(checkpointer=True if kind == "lasting" else None)
        if kind == "deep":
            sub = StateGraph(Told).add_node("inner", sub).add_edge(START, "inner").compile()
        elif kind == "called":
            sub = _called(sub)
        nodes = [("before", self._step("before")), ("sub", sub), ("after", self._step("after"))]
        return StateGraph(Told).add_sequence(nodes).add_edge(START, "before")

    def _step(self, name: str) -> Any:
        async def step(state: Told, config: RunnableConfig) -> Told:
            self._note(name, config)
            return {"told": [name]}

        return step

    def _asker(self, name: str, question: str) -> Any:
        async def ask(state: Told, config: RunnableConfig) -> Told:
            self._note(name, config)
            return {"told": [interrupt(question)]}

        return ask

    async def _pause(self, state: Told, config: RunnableConfig) -> Told:
        self._note("pause", config)
        await self._hold(state, config)
        return {"told": ["pause"]}


def _called(sub: Any) -> Any:
    async def call(state: Told) -> Any:
        return await sub.ainvoke(state)

    return call
