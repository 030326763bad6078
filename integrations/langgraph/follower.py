"""Follows LangChain's run tree: one root run is one program, and each call gets its parents.

A single callback handler, attached to every run of the process, keeps a frame for each open
run (`agentrt.integrations.langgraph.frames`). It never sees a call: whoever makes one asks
`Follower.scope` where it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from threading import RLock
from typing import Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler

from agentrt import tracking
from agentrt.graph import Frontier, NodeKind
from agentrt.integrations.langgraph.ends import asks, ending
from agentrt.integrations.langgraph.frames import (
    Frame,
    Guest,
    Question,
    is_branch,
    is_node,
    namespace_of,
    thread_of,
)
from agentrt.runtime.registry import RunRegistry
from agentrt.runtime.run import Run
from agentrt.tracking.scope import Scope

_UNNAMED = "program"
_SWEEP_AT = 64
"""With so many programs more than lived last time, those that have ended are looked for."""
_NAMELESS = "LangGraph"
"""What LangGraph calls a graph that was given no name."""


class Follower(BaseCallbackHandler):
    """Finds programs in LangChain's callbacks and enters them into ``registry``.

    A root run inside one of agentrt's own programs is a part of that one. Programs, sessions
    (``thread_id``), tenants (``agentrt_tenant``) and size hints (``agentrt_size_hint``) are
    read from a run's name and its config's metadata or configurable.
    """

    run_inline = True  # in the context of the code that it is about
    ignore_llm = ignore_chat_model = ignore_retry = ignore_retriever = True
    ignore_custom_event = True

    def __init__(self, registry: RunRegistry) -> None:
        self.registry = registry
        self._frames: dict[UUID, Frame] = {}
        self._guests: dict[int, Guest] = {}
        self._sweep_at = _SWEEP_AT
        self._lock = RLock()

    def open_runs(self) -> int:
        """How many runs are open."""
        return len(self._frames)

    def scope(self, parent_run_id: UUID | None = None) -> Scope | None:
        """Where the code is that asks, or None outside any open program.

        ``parent_run_id`` is the run that it is in, for a thread that does not know.
        """
        frame = self._frames.get(parent_run_id) if parent_run_id is not None else None
        return _around(tracking.current_scope(), frame)

    # -- chains, graphs, nodes ---------------------------------------------------------

    def on_chain_start(
        self,
        serialized: dict[str, Any] | None,
        inputs: Any,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        tags: list[str] | None = None,
        metadata: dict[str, Any] | None = None,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        with self._lock:
            frame = self._begin(run_id, name, metadata or {}, parent_run_id, tags or ())
            self._add(run_id, frame)
            if frame.guest.asked and getattr(inputs, "resume", None) is not None:
                self._answer(frame)
        if frame.apart:
            tracking.enter(frame.scope)

    def on_chain_end(self, outputs: Any, *, run_id: UUID, **kwargs: Any) -> None:
        self._over(run_id, None)

    def on_chain_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        self._over(run_id, error)

    # -- tools -------------------------------------------------------------------------

    def on_tool_start(
        self,
        serialized: dict[str, Any] | None,
        input_str: str,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        metadata: dict[str, Any] | None = None,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        tool = name or (serialized or {}).get("name") or "tool"
        with self._lock:
            frame = self._begin(run_id, tool, metadata or {}, parent_run_id)
            self._add(run_id, frame)
            run = frame.guest.run
            frame.tool = self.ledger_of(run).begin_interrupt(run, frame.scope, NodeKind.TOOL, tool)
        if frame.apart:
            tracking.enter(frame.scope)

    def on_tool_end(self, output: Any, *, run_id: UUID, **kwargs: Any) -> None:
        self._over(run_id, None)

    def on_tool_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        self._over(run_id, error)

    # -- inside ------------------------------------------------------------------------

    def ledger_of(self, run: Run) -> RunRegistry:
        """The books of a program: ours, or those of the runtime that it is one of."""
        return run.registry or self.registry

    def _begin(
        self,
        run_id: UUID,
        name: str | None,
        metadata: Mapping[str, Any],
        parent_id: UUID | None,
        tags: Sequence[str] = (),
    ) -> Frame:
        parent = self._frames.get(parent_id) if parent_id is not None else None
        here = tracking.current_scope()
        around = _around(here, parent)
        if around is None:
            return self._open(name or _UNNAMED, metadata)
        frame = Frame(around, self._guest_of(around.owner), namespace_of(metadata), here)
        frame.thread = thread_of(metadata)
        with self.ledger_of(frame.guest.run).lock:
            if parent is not None and is_node(name, frame.namespace, metadata, parent):
                if parent.root:
                    self._name_after(parent, str(name), metadata)
                step = metadata["langgraph_step"]
                frame.enter(parent.supersteps(), step, frame.namespace, str(name))
            elif parent is not None and is_branch(tags):
                frame.enter(parent.supersteps(), None, str(run_id), "")
            elif not tracking.is_alone_in(around):
                frame.fork(around)
        return frame

    def _name_after(self, root: Frame, name: str, metadata: Mapping[str, Any]) -> None:
        """An entrypoint's function names its program: LangGraph has no name for its graph."""
        run = root.guest.run
        triggers = metadata.get("langgraph_triggers", ())
        if run.type == _NAMELESS and tuple(triggers) == ("__start__",):
            self.registry.rename(run, name)
            root.scope.path = name

    def _open(self, name: str, metadata: Mapping[str, Any]) -> Frame:
        hint = metadata.get("agentrt_size_hint")
        run = self.registry.open(
            name,
            tenant=str(metadata.get("agentrt_tenant", "default")),
            session=thread_of(metadata),
            size_hint=hint if isinstance(hint, int | float) else None,
        )
        guest = self._guests[id(run)] = Guest(run)
        guest.loop = _running_loop()
        if guest.loop is not None:
            tracking.install(guest.loop)
        scope = Scope(run, name, Frontier())
        return Frame(scope, guest, namespace_of(metadata), root=True)

    def _guest_of(self, owner: object) -> Guest:
        assert isinstance(owner, Run)
        guest = self._guests.get(id(owner))
        if guest is None:
            # A program of agentrt's own has no root here: it is known while it has open frames.
            guest = self._guests[id(owner)] = Guest(owner)
            if len(self._guests) > self._sweep_at:
                self._sweep()
        return guest

    def _sweep(self) -> None:
        """Drop the frames of own programs that have ended: a tool that is cancelled in one
        says nothing of its end.
        """
        for guest in list(self._guests.values()):
            if guest.run.ended_at is not None:
                self._drop(guest)
        self._sweep_at = 2 * len(self._guests) + _SWEEP_AT

    def _drop(self, guest: Guest) -> None:
        for run_id in guest.frames:
            self._frames.pop(run_id, None)
        guest.frames.clear()
        self._guests.pop(id(guest.run), None)

    def _add(self, run_id: UUID, frame: Frame) -> None:
        self._frames[run_id] = frame
        frame.guest.frames.add(run_id)

    def _over(self, run_id: UUID, error: BaseException | None) -> None:
        with self._lock:
            frame = self._frames.pop(run_id, None)
            if frame is None:
                return
            frame.guest.frames.discard(run_id)
            with self.ledger_of(frame.guest.run).lock:
                self._end(frame, error)
            if not (frame.guest.frames or frame.guest.asked):
                self._guests.pop(id(frame.guest.run), None)
            if frame.apart:
                frame.scope.leave(frame.before)

    def _end(self, frame: Frame, error: BaseException | None) -> None:
        run = frame.guest.run
        frame.settle()
        questions = () if error is None else asks(error)
        if frame.tool is not None:
            self.ledger_of(run).end_interrupt(
                run, frame.scope, frame.tool, asyncio.CancelledError() if questions else error
            )
        for key, question in questions:
            self._ask(frame, key, question)
        if frame.superstep is not None:
            frame.superstep.leave(frame.task, frame.scope)
        elif frame.waits is not None:
            frame.waits.join(frame.scope)
        elif frame.root:
            self._close(frame.guest, error)

    def _ask(self, frame: Frame, key: str, question: str) -> None:
        """A question to a human; the innermost of the runs that it passes through asks it."""
        guest = frame.guest
        if key not in guest.asked and guest.run.ended_at is None:
            books = self.ledger_of(guest.run)
            node = books.begin_interrupt(guest.run, frame.scope, NodeKind.HUMAN, question)
            guest.asked[key] = Question(node, frame.scope, frame.thread)

    def _answer(self, frame: Frame) -> None:
        """A program's own code answers a graph of its own: what comes now, comes after that."""
        guest = frame.guest
        books = self.ledger_of(guest.run)
        with books.lock:
            for key, question in list(guest.asked.items()):
                if question.thread == frame.thread:
                    del guest.asked[key]
                    books.end_interrupt(guest.run, question.scope, question.node)
                    frame.scope.frontier.include((question.node.id,))

    def _close(self, guest: Guest, error: BaseException | None) -> None:
        self._drop(guest)
        if guest.loop is not None:
            tracking.uninstall(guest.loop)
        self.registry.close(guest.run, *ending(error))


def _around(here: Scope | None, frame: Frame | None) -> Scope | None:
    """Where code is that is ``here``, as far as it knows, and in the run of ``frame``."""
    if frame is not None and (here is None or here.owner is not frame.scope.owner):
        return frame.scope
    if here is None or not isinstance(here.owner, Run) or here.owner.ended_at is not None:
        return None
    return here


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
