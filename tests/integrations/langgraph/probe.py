"""A chat model without an engine: it only says where it is called, and yields a few times."""

from __future__ import annotations

import asyncio
import operator
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, TypedDict

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langgraph.graph import START, StateGraph
from pydantic import Field

from agentrt.graph import Node
from agentrt.integrations.langgraph import Follower, follow
from agentrt.request import CallReport
from agentrt.runtime.events import Event, ProgramStarted, RunEnded
from agentrt.runtime.run import Run
from agentrt.tracking.scope import Scope
from tests.graph.integrity import check_integrity

REPORT = CallReport(service_s=1.0, steps=1)


class Probe(BaseChatModel, arbitrary_types_allowed=True):
    """Enters each call, named after its last message, into the follower's books."""

    seed: int = 0
    lost: list[str] = Field(default_factory=list)
    meet: dict[str, threading.Barrier] = Field(default_factory=dict)
    """Synchronous calls that wait for each other, so that they overlap for certain."""

    @property
    def _llm_type(self) -> str:
        return "probe"

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        name, begun = self._begin(messages, run_manager)
        if name in self.meet:
            self.meet[name].wait(timeout=60)
        self._end(begun)
        return _said(name)

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        name, begun = self._begin(messages, run_manager)
        try:
            for _ in range(random.Random(f"{self.seed}{name}").randrange(6)):
                await asyncio.sleep(0)
        finally:
            self._end(begun)
        return _said(name)

    def _begin(self, messages: list[BaseMessage], manager: Any) -> tuple[str, Any]:
        name = str(messages[-1].content)
        scope = follow().scope(manager.parent_run_id if manager is not None else None)
        if scope is None:
            self.lost.append(name)
            return name, None
        assert isinstance(scope.owner, Run)
        node = scope.owner.registry.begin_call(scope.owner, scope, name)
        return name, (scope.owner, scope, node)

    def _end(self, begun: tuple[Run, Scope, Node] | None) -> None:
        if begun is not None:
            begun[0].registry.end_call(*begun, REPORT)


def _said(text: str) -> ChatResult:
    return ChatResult(generations=[ChatGeneration(message=AIMessage(text))])


@contextmanager
def watched() -> Iterator[list[Run]]:
    """The programs that the follower finds meanwhile; none may be left open."""
    follower, runs = follow(), list[Run]()
    open_before, rows = follower.open_runs(), len(follower.registry.table)

    def saw(event: Event) -> None:
        if isinstance(event, ProgramStarted):
            runs.append(follower.registry.runs[event.program_id])
        elif isinstance(event, RunEnded):
            assert event.program_id in {run.id for run in runs}

    follower.registry.listen(saw)
    try:
        yield runs
    finally:
        follower.registry.unlisten(saw)
    assert follower.open_runs() == open_before
    assert len(follower.registry.table) == rows
    for run in runs:
        check_integrity(run.dag)


def edges(run: Run) -> dict[str, set[str]]:
    """Each node's parents, by name; names must be unique."""
    names = [node.name for node in run.dag.nodes()]
    assert len(set(names)) == len(names), f"a name twice in {names}"
    return {n.name: {names[parent] for parent in n.parents} for n in run.dag.nodes()}


def strict(follower: Follower) -> None:
    """A bug in the follower fails the program, instead of a line in the log."""
    follower.raise_error = True


class State(TypedDict, total=False):
    """What the graphs of the tests pass on."""

    seen: Annotated[list[str], operator.add]
    count: int


def lone(node: Any, called: str = "node", **compiled: Any) -> Any:
    """A graph of one node."""
    return StateGraph(State).add_node(called, node).add_edge(START, called).compile(**compiled)


def calls(model: Probe, *names: str) -> Any:
    """A node that makes these calls, one after another."""

    async def node(state: State) -> State:
        for name in names:
            await model.ainvoke(name)
        return {"seen": list(names)}

    return node
