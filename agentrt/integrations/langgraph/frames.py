"""One frame for each open run of LangChain's run tree: where its code is in its program.

Between frames, order comes from the tree and from LangGraph's supersteps: a superstep begins
when all nodes of the one before have ended. Inside a frame it comes from asyncio, as in every
agentrt program (`agentrt.tracking`).
"""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from agentrt.graph import Node
from agentrt.runtime.run import Run
from agentrt.tracking.scope import Scope


@dataclass(slots=True, eq=False)
class Followed:
    """A program that the follower found: its run, its open frames, what it asked humans.

    ``loop`` is the event loop that its root runs on, None for a synchronous one.
    """

    run: Run
    frames: set[UUID] = field(default_factory=set)
    asked: dict[str, Question] = field(default_factory=dict)
    loop: AbstractEventLoop | None = None


@dataclass(frozen=True, slots=True)
class Question:
    """A question to a human: its node, where it was asked, and in which thread of LangGraph."""

    node: Node
    scope: Scope
    thread: str | None


@dataclass(slots=True, eq=False)
class Frame:
    """One open run: ``scope`` is where its code is, ``before`` where the code around it was.

    A run that is ``apart`` has a scope of its own. At its end, ``waits`` (a scope, for a run
    inside another's code) or ``superstep`` (for a node of a graph) gets what it saw end.
    Others are a ``root``, or a part of the code around them. ``namespace`` is LangGraph's
    checkpoint namespace, which for a node names its task.
    """

    scope: Scope
    program: Followed
    namespace: str = ""
    before: Scope | None = None
    thread: str | None = None
    waits: Scope | None = None
    superstep: Superstep | None = None
    task: str = ""
    tool: Node | None = None
    graph: Superstep | None = None
    root: bool = False

    @property
    def apart(self) -> bool:
        """Whether this run's scope is its own inside that of the code around it."""
        return self.waits is not None or self.superstep is not None

    def fork(self, around: Scope) -> None:
        """This run starts from where the code around it is, which waits for it."""
        self.scope, self.waits = around.fork(), around

    def enter(self, graph: Superstep, step: Any, task: str, name: str) -> None:
        """This run is the node ``name`` of a graph, as ``task`` of the superstep ``step``."""
        self.scope, self.superstep, self.task = graph.enter(step, task, name), graph, task

    def supersteps(self) -> Superstep:
        """What this run's nodes go through; made for the first of them."""
        if self.graph is None:
            self.graph = Superstep(self.scope)
        return self.graph

    def settle(self) -> None:
        """The run is over: it has waited for all nodes of its last superstep."""
        if self.graph is not None:
            self.graph.settle()


class Superstep:
    """The superstep that a graph is in. All its nodes start from the same frontier.

    ``scope`` is the graph's own, to which a superstep's nodes are joined at its end.
    """

    __slots__ = ("_ended", "_scope", "_step")

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._step: Any = None
        self._ended: dict[str, Scope] = {}

    def enter(self, step: Any, task: str, name: str) -> Scope:
        """The scope of the node ``name``, which starts now as ``task`` in superstep ``step``.

        A task that is tried again goes on where its last attempt ended.
        """
        if step != self._step:
            self.settle()
            self._step = step
        scope = self._ended.pop(task, self._scope).fork()
        scope.path = f"{self._scope.path}/{name}" if name else self._scope.path
        return scope

    def leave(self, task: str, scope: Scope) -> None:
        """The node that runs as ``task`` has ended."""
        self._ended[task] = scope

    def settle(self) -> None:
        """The superstep is over."""
        for scope in self._ended.values():
            self._scope.join(scope)
        self._ended.clear()


def terms_of(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The tenant and the size hint that a run's metadata name, for who opens its program."""
    hint = metadata.get("agentrt_size_hint")
    return {
        "tenant": str(metadata.get("agentrt_tenant", "default")),
        "size_hint": hint if isinstance(hint, int | float) else None,
    }
