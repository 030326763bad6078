"""Following LangChain's run tree: each root run outside an agentrt program is a program of its own,
and each call gets its parents.

A single callback handler, attached to every run of the process, keeps a frame for each open run
(`agentrt.integrations.langgraph.frames`). The handler does not see calls: the code that makes a
call asks `Follower.scope` for the call's position in its program.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import cache
from threading import Lock, RLock
from typing import Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler, BaseRunManager

from agentrt import tracking
from agentrt.errors import EngineDiedError
from agentrt.graph import Frontier, NodeKind
from agentrt.integrations._compat import langgraph
from agentrt.integrations.langgraph.frames import Followed, Frame, PendingQuestion, terms_of
from agentrt.runtime.run import Run, RunRegistry, RunState
from agentrt.tracking import frameworks
from agentrt.tracking.current import running_loop
from agentrt.tracking.scope import Scope

RunFields = Mapping[str, Any]
"""LangChain's fields of a run that starts: its parent, its tags, its metadata."""
_UNNAMED = "program"
_SWEEP_AT = 64
"""A sweep drops the programs that have ended. It begins when the number of programs exceeds twice
the number after the previous sweep by more than this value.
"""


class Follower(BaseCallbackHandler):
    """A callback handler that finds programs in LangChain's runs and adds them to ``registry``.

    A root run inside an agentrt program belongs to that program. Any other root run is a program of
    its own, whose name is the run's name. The program's session (``thread_id``), tenant
    (``agentrt_tenant``) and size hint (``agentrt_size_hint``) come from the metadata of the run's
    config. LangGraph copies the ``thread_id`` there from the configurable.
    """

    run_inline = True  # run the callbacks in the context of the code that they are about
    ignore_llm = ignore_chat_model = ignore_retry = ignore_retriever = True
    ignore_custom_event = True

    def __init__(self, registry: RunRegistry) -> None:
        self.registry = registry
        self._frames: dict[UUID, Frame] = {}
        self._programs: dict[int, Followed] = {}  # by the identity of their runs
        self._sweep_at = _SWEEP_AT
        self._lock = RLock()

    def open_runs(self) -> int:
        """Return the number of open runs."""
        return len(self._frames)

    def scope(self, parent_run_id: UUID | None = None) -> Scope | None:
        """Return the position of the calling code in its program; None outside any open program.

        ``parent_run_id`` is the id of the LangChain run to which the code belongs. If the
        context variables have no position in the program of this run, as can happen in a thread,
        the position of the run is returned.
        """
        frame = self._frames.get(parent_run_id) if parent_run_id is not None else None
        return _around(tracking.current_scope(), frame)

    # -- chains, graphs, nodes ---------------------------------------------------------

    def on_chain_start(
        self, serialized: dict[str, Any] | None, inputs: Any, *, run_id: UUID, **fields: Any
    ) -> None:
        with self._lock:
            frame = self._begin(run_id, fields.get("name"), fields)
            if frame.program.questions and getattr(inputs, "resume", None) is not None:
                self._answer(frame)
        if frame.apart:
            tracking.enter(frame.scope)

    def on_chain_end(self, outputs: Any, *, run_id: UUID, **kwargs: Any) -> None:
        self._over(run_id, None)

    def on_chain_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        self._over(run_id, error)

    # -- tools -------------------------------------------------------------------------

    def on_tool_start(
        self, serialized: dict[str, Any] | None, input_str: str, *, run_id: UUID, **fields: Any
    ) -> None:
        tool = fields.get("name") or (serialized or {}).get("name") or "tool"
        with self._lock:
            frame = self._begin(run_id, tool, fields)
            run = frame.program.run
            frame.tool = run.registry.begin_interrupt(run, frame.scope, NodeKind.TOOL, tool)
        if frame.apart:
            tracking.enter(frame.scope)

    def on_tool_end(self, output: Any, *, run_id: UUID, **kwargs: Any) -> None:
        self._over(run_id, None)

    def on_tool_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        self._over(run_id, error)

    # -- inside ------------------------------------------------------------------------

    def _begin(self, run_id: UUID, name: str | None, fields: RunFields) -> Frame:
        """Make the frame of a run that starts."""
        metadata: Mapping[str, Any] = fields.get("metadata") or {}
        parent = self._frames.get(fields["parent_run_id"]) if fields.get("parent_run_id") else None
        here = tracking.current_scope()
        around = _around(here, parent)
        if around is None:
            frame = self._open(name or _UNNAMED, metadata)
        else:
            program, namespace = self._program_of(around.owner), langgraph.namespace_of(metadata)
            frame = Frame(around, program, namespace, here, langgraph.thread_of(metadata))
            with program.run.registry.lock:
                self._join(frame, run_id, name, fields, parent)
        self._frames[run_id] = frame
        frame.program.frames.add(run_id)
        return frame

    def _join(
        self, frame: Frame, run_id: UUID, name: str | None, fields: RunFields, parent: Frame | None
    ) -> None:
        """Give a frame the scope of a node or of a branch, a scope of its own, or its parent's
        scope.
        """
        metadata = fields.get("metadata") or {}
        if parent is not None and langgraph.is_node(name, metadata, parent.namespace):
            if parent.root:
                self._name_after(parent, str(name), metadata)
            step = langgraph.step_of(metadata)
            frame.enter(parent.supersteps(), step, frame.namespace, str(name))
        elif parent is not None and langgraph.is_branch(fields.get("tags") or ()):
            frame.enter(parent.supersteps(), None, str(run_id), "")
        elif not tracking.is_alone_in(frame.scope):
            frame.fork(frame.scope)

    def _name_after(self, root: Frame, name: str, metadata: Mapping[str, Any]) -> None:
        """Name an entrypoint's program after its function, because LangGraph does not name the
        graph.
        """
        run = root.program.run
        if run.type == langgraph.UNNAMED_GRAPH and langgraph.is_entrypoint(metadata):
            self.registry.rename(run, name)
            root.scope.path = name

    def _open(self, name: str, metadata: Mapping[str, Any]) -> Frame:
        session = langgraph.thread_of(metadata)
        run = self.registry.open(name, session=session, **terms_of(metadata))
        program = self._programs[id(run)] = Followed(run)
        program.loop = running_loop()
        if program.loop is not None:
            tracking.install(program.loop)
        scope = Scope(run, name, Frontier())
        return Frame(scope, program, langgraph.namespace_of(metadata), root=True)

    def _program_of(self, owner: object) -> Followed:
        assert isinstance(owner, Run)
        program = self._programs.get(id(owner))
        if program is None:
            # An agentrt program has no root run here, so keep it only while it has open frames or
            # open questions.
            program = self._programs[id(owner)] = Followed(owner)
            if len(self._programs) > self._sweep_at:
                self._sweep()
        return program

    def _sweep(self) -> None:
        """Drop the frames of agentrt programs that have ended.

        LangChain does not report the end of a tool that was cancelled, so its frame would stay.
        """
        for program in list(self._programs.values()):
            if program.run.ended_at is not None:
                self._drop(program)
        self._sweep_at = 2 * len(self._programs) + _SWEEP_AT

    def _drop(self, program: Followed) -> None:
        for run_id in program.frames:
            self._frames.pop(run_id, None)
        program.frames.clear()
        self._programs.pop(id(program.run), None)

    def _over(self, run_id: UUID, error: BaseException | None) -> None:
        with self._lock:
            frame = self._frames.pop(run_id, None)
            if frame is None:
                return
            frame.program.frames.discard(run_id)
            with frame.program.run.registry.lock:
                self._end(frame, error)
            if not (frame.program.frames or frame.program.questions):
                self._programs.pop(id(frame.program.run), None)
            if frame.apart:
                frame.scope.leave(frame.before)

    def _end(self, frame: Frame, error: BaseException | None) -> None:
        run = frame.program.run
        frame.settle()
        questions = () if error is None else langgraph.asks(error)
        if frame.tool is not None:
            run.registry.end_interrupt(
                run, frame.scope, frame.tool, asyncio.CancelledError() if questions else error
            )
        for key, question in questions:
            self._ask(frame, key, question)
        if frame.superstep is not None:
            frame.superstep.leave(frame.task, frame.scope)
        elif frame.waits is not None:
            frame.waits.join(frame.scope)
        elif frame.root:
            self._close(frame.program, error)

    def _ask(self, frame: Frame, key: str, question: str) -> None:
        """Add a question to a human, once: the error of an interrupt passes through several runs,
        and the innermost run asks the question.
        """
        program = frame.program
        if key not in program.questions and program.run.ended_at is None:
            registry = program.run.registry
            node = registry.begin_interrupt(program.run, frame.scope, NodeKind.HUMAN, question)
            program.questions[key] = PendingQuestion(node, frame.scope, frame.thread)

    def _answer(self, frame: Frame) -> None:
        """End the open questions of a graph's thread, because the program's own code resumes the
        thread.

        The nodes that follow depend on the questions.
        """
        program = frame.program
        registry = program.run.registry
        with registry.lock:
            for key, question in list(program.questions.items()):
                if question.thread == frame.thread:
                    del program.questions[key]
                    registry.end_interrupt(program.run, question.scope, question.node)
                    frame.scope.frontier.include((question.node.id,))

    def _close(self, program: Followed, error: BaseException | None) -> None:
        self._drop(program)
        if program.loop is not None:
            tracking.uninstall(program.loop)
        self.registry.close(program.run, *_ending(error))


def _around(here: Scope | None, frame: Frame | None) -> Scope | None:
    """Return the scope in which code runs; None outside any program.

    ``here`` is the scope in the code's own context variables, and ``frame`` the frame of its
    LangGraph run. If the two belong to different programs, the frame's scope is returned.
    """
    if frame is not None and (here is None or here.owner is not frame.scope.owner):
        return frame.scope
    if here is None or not isinstance(here.owner, Run) or here.owner.ended_at is not None:
        return None
    return here


def _ending(error: BaseException | None) -> tuple[RunState, BaseException | None]:
    """Return the end state of a program whose root run ended with ``error``, and its error."""
    if error is None or langgraph.asks(error):
        return RunState.DONE, None
    if isinstance(error, Exception) and not langgraph.was_drained(error):
        return RunState.FAILED, error
    return RunState.CANCELLED, None


_STARTING = Lock()


def follow() -> Follower:
    """Follow all LangChain and LangGraph runs of this process from now on. Idempotent.

    Returns the process's follower. Its ``registry`` holds the programs' DAGs and states.
    """
    with _STARTING:
        return _follower()


@cache
def _follower() -> Follower:
    follower = Follower(RunRegistry(mark="~"))
    for module in langgraph.INTERNAL_MODULES:
        frameworks.add_internal(module)
    frameworks.add_awaiting(langgraph.AWAITING_MODULE, langgraph.IN_THREAD)
    langgraph.attach(follower)
    return follower


def scope_of_call(run_manager: BaseRunManager | None) -> Scope | None:
    """Return the position of the code that calls a chat model; None outside any program.

    ``run_manager`` is the run manager of the model; LangChain does not pass it on all paths. Raises
    `EngineDiedError` if the program was cancelled, because a thread of the program may still be
    running.
    """
    here = tracking.current_scope()
    if here is not None and isinstance(here.owner, Run) and here.owner.state is RunState.CANCELLED:
        raise EngineDiedError(f"run {here.owner.id} was cancelled and can make no calls")
    if run_manager is not None:
        return follow().scope(run_manager.parent_run_id)
    return follow().scope(langgraph.enclosing_run())
