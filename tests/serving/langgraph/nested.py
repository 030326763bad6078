"""Graphs that ask from inside subgraphs, held in various ways: as a node, two deep, with a state
that lasts, called by a node's function, and none, which is the graph itself.

A node that is to wait does so by a function that is given, since a server in a process of its own
has other gates than one in a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt
from langgraph_sdk.client import LangGraphClient
from typing_extensions import TypedDict

Note = Callable[[str, RunnableConfig], None]
Hold = Callable[["Told", RunnableConfig], Awaitable[None]]
TURN_S = 60.0
"""The longest that a test waits for a question."""
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
        beside = {
            "beside": self._beside(inside=True),
            "beside-bare": self._beside(inside=False),
        }
        return {**held, "twice-bare": bare, **both, **beside}

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

        return _at_once({"quick": quick, "patient": patient}, inside=inside)

    def _beside(self, *, inside: bool) -> StateGraph[Any]:
        """A node that asks twice, and at once one that waits."""

        async def quick(state: Told, config: RunnableConfig) -> Told:
            return {"told": [interrupt("one"), interrupt("two")]}

        return _at_once({"quick": quick, "slow": self._pause}, inside=inside)

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


def _at_once(nodes: dict[str, Any], *, inside: bool) -> StateGraph[Any]:
    builder = StateGraph(Told)
    for name, node in nodes.items():
        inner = StateGraph(Told).add_node(name, node).add_edge(START, name)
        here: Any = inner.compile() if inside else node
        builder.add_node(f"the {name}", here).add_edge(START, f"the {name}")
    return builder


def _called(sub: Any) -> Any:
    async def call(state: Told) -> Any:
        return await sub.ainvoke(state)

    return call


# -- what the tests ask of them -----------------------------------------------------------


def questions(result: Any) -> list[str]:
    """Return the questions in a run's result."""
    return sorted(one["value"] for one in result["__interrupt__"])


def answers(result: Any, mark: str) -> dict[str, str]:
    """To each question of "a" and "b", by its id."""
    return {one["id"]: one["value"][0] + mark for one in result["__interrupt__"]}


def wrapped(graph: str, told: list[str]) -> list[str]:
    """With what a graph tells before and after its subgraph, if it has one."""
    return told if graph.endswith("-bare") else ["before", *told, "after"]


async def until_asked(client: LangGraphClient, thread: str, question: str) -> None:
    """Wait until a node of a run that continues has asked."""
    async with asyncio.timeout(TURN_S):
        while True:
            state: Any = await client.threads.get_state(thread)
            if question in [one["value"] for task in state["tasks"] for one in task["interrupts"]]:
                return
            await asyncio.sleep(0.03)


async def until_left(client: LangGraphClient, thread: str, nodes: list[str]) -> None:
    """Wait until all other nodes of a superstep have ended."""
    async with asyncio.timeout(TURN_S):
        while (await client.threads.get_state(thread))["next"] != nodes:
            await asyncio.sleep(0.03)
