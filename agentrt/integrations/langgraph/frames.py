"""Frames: the position of each open run of LangChain's run tree in its program.

The order between frames comes from the tree and from LangGraph's supersteps: a superstep begins
when all nodes of the previous superstep have ended. The order within a frame comes from asyncio, as
in every agentrt program (`agentrt.tracking`).
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
    """A program that the follower has found: its run, its open frames, and its open questions.

    ``loop`` is the event loop on which its root run started; None if the root run started outside
    any event loop, and for an agentrt program, which has no root run.
    """

    run: Run
    frames: set[UUID] = field(default_factory=set)
    questions: dict[str, PendingQuestion] = field(default_factory=dict)
    loop: AbstractEventLoop | None = None


@dataclass(frozen=True, slots=True)
class PendingQuestion:
    """An open question to a human: its node, its scope, and its LangGraph thread."""

    node: Node
    scope: Scope
    thread: str | None


@dataclass(slots=True, eq=False)
class Frame:
    """An open run. ``scope`` is the position of its code, and ``before`` the scope of the code
    around it.

    A run that is ``apart`` has a scope of its own, which is joined at its end: to the scope
    ``waits``, for a run inside another run's code, or to ``superstep``, for a node of a graph or a
    branch of a `RunnableParallel`. Every other run is a ``root``, or shares the scope of the code
    around it. ``namespace`` is LangGraph's checkpoint namespace; for a node it identifies the task.
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
        """Whether this run has a scope of its own."""
        return self.waits is not None or self.superstep is not None

    def fork(self, around: Scope) -> None:
        """Give this run a scope forked from ``around``, whose code waits for the run."""
        self.scope, self.waits = around.fork(), around

    def enter(self, graph: Superstep, step: Any, task: str, name: str) -> None:
        """Make this run the node ``name`` of a graph, as ``task`` of the superstep ``step``."""
        self.scope, self.superstep, self.task = graph.enter(step, task, name), graph, task

    def supersteps(self) -> Superstep:
        """Return the supersteps of this run's nodes. The object is created when the first node
        starts.
        """
        if self.graph is None:
            self.graph = Superstep(self.scope)
        return self.graph

    def settle(self) -> None:
        """End the run's last superstep. Called when the run ends, after all its nodes."""
        if self.graph is not None:
            self.graph.settle()


class Superstep:
    """The current superstep of a graph. All its nodes start from the same frontier.

    At the end of a superstep, its nodes are joined to ``scope``, which is the graph's own.
    """

    __slots__ = ("_ended", "_scope", "_step")

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._step: Any = None
        self._ended: dict[str, Scope] = {}

    def enter(self, step: Any, task: str, name: str) -> Scope:
        """Return the scope of the node ``name``, which starts as ``task`` of superstep ``step``.

        The scope of a retried task continues from the end of its last attempt.
        """
        if step != self._step:
            self.settle()
            self._step = step
        scope = self._ended.pop(task, self._scope).fork()
        scope.path = f"{self._scope.path}/{name}" if name else self._scope.path
        return scope

    def leave(self, task: str, scope: Scope) -> None:
        """Record the end of the node that ran as ``task``."""
        self._ended[task] = scope

    def settle(self) -> None:
        """End the superstep: join its nodes to the graph's scope."""
        for scope in self._ended.values():
            self._scope.join(scope)
        self._ended.clear()


def terms_of(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tenant and the size hint in a run's metadata, as arguments for opening a
    program.
    """
    hint = metadata.get("agentrt_size_hint")
    return {
        "tenant": str(metadata.get("agentrt_tenant", "default")),
        "size_hint": hint if isinstance(hint, int | float) else None,
    }
