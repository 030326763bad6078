"""The registry of client programs, from their beginning to after their end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from itertools import count
from typing import Any, ClassVar, cast

import pytest

from agentrt import Runtime
from agentrt.errors import InvariantError
from agentrt.graph import NodeKind, NodeState
from agentrt.request import CallReport, CallSpec
from agentrt.runtime.events import Event, NodeEnded, ProgramStarted, RunEnded
from agentrt.runtime.run import Run, RunRegistry, RunState, call_id
from agentrt.tracking.scope import Scope
from tests.doubles.scripted import ScriptedExecutor
from tests.graph.integrity import check_integrity

REPORT = CallReport(service_s=2.0, waiting_s=0.5, steps=4, prompt_tokens=3, output_tokens=4)


@pytest.fixture
def registry() -> RunRegistry:
    ticks = count()
    return RunRegistry(clock=lambda: float(next(ticks)))


def test_a_programs_row_and_dag_agree(registry: RunRegistry) -> None:
    events: list[Event] = []
    registry.listen(events.append)
    run = registry.open("agent", tenant="ann", session="t1", size_hint=3.0)
    scope = Scope(run, "agent")
    first = registry.begin_call(run, scope, "llm")
    assert list(run.row.calls) == [call_id(run, first)] == ["agent-1/0"]
    registry.end_call(run, scope, first, REPORT)
    second = registry.begin_call(run, scope, "llm")
    assert (second.parents, second.path_s) == ((0,), 2.0)
    registry.end_call(run, scope, second, REPORT, error=ValueError("x"))
    assert (second.state, second.error) == (NodeState.FAILED, "ValueError: x")
    assert (run.row.service_s, run.row.path_s, run.row.usage.output_tokens) == (4.0, 4.0, 8)
    registry.close(run, RunState.DONE)
    assert (len(registry.table), registry.runs) == (0, {})
    assert [type(event) for event in events[:1] + events[-1:]] == [ProgramStarted, RunEnded]
    check_integrity(run.dag)


def test_a_call_may_end_after_its_program(registry: RunRegistry) -> None:
    """The program's end cancels it in the DAG; what it used still counts in the row."""
    run = registry.open("agent")
    scope = Scope(run, "agent")
    node = registry.begin_call(run, scope, "llm")
    registry.close(run, RunState.CANCELLED)
    assert node.state is NodeState.CANCELLED
    registry.end_call(run, scope, node, REPORT)
    assert (node.state, run.row.service_s) == (NodeState.CANCELLED, 2.0)
    with pytest.raises(InvariantError, match="has ended"):
        registry.begin_call(run, scope, "llm")


def test_an_open_question_interrupts_a_program_that_is_done(registry: RunRegistry) -> None:
    run = registry.open("agent")
    scope = Scope(run, "agent")
    tool = registry.begin_interrupt(run, scope, NodeKind.TOOL, "search")
    question = registry.begin_interrupt(run, scope, NodeKind.HUMAN, "May I?")
    registry.close(run, RunState.DONE)
    assert run.state is RunState.INTERRUPTED
    assert (tool.state, question.state) == (NodeState.CANCELLED, NodeState.INTERRUPTED)
    check_integrity(run.dag)


def test_a_program_that_failed_is_not_interrupted(registry: RunRegistry) -> None:
    run = registry.open("agent")
    registry.begin_interrupt(run, Scope(run, "agent"), NodeKind.HUMAN, "May I?")
    registry.close(run, RunState.FAILED, ValueError("x"))
    assert run.state is RunState.FAILED


def test_an_answered_question_interrupts_no_program(registry: RunRegistry) -> None:
    run = registry.open("agent")
    scope = Scope(run, "agent")
    registry.end_interrupt(
        run, scope, registry.begin_interrupt(run, scope, NodeKind.HUMAN, "May I?")
    )
    registry.close(run, RunState.DONE)
    assert run.state is RunState.DONE
    assert run.row.interrupt_s == 1.0


def test_threads_write_into_one_dag(registry: RunRegistry) -> None:
    """Eight threads fork from the root call and are joined; the books still add up."""
    run = registry.open("agent")
    scope = Scope(run, "agent")
    registry.end_call(run, scope, registry.begin_call(run, scope, "root"), REPORT)
    gate = threading.Barrier(8)

    def work() -> None:
        with registry.lock:
            mine = scope.fork()
        gate.wait()
        for _ in range(50):
            registry.end_call(run, mine, registry.begin_call(run, mine, "llm"), REPORT)
        with registry.lock:
            scope.join(mine)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    last = registry.begin_call(run, scope, "last")
    assert (len(last.parents), last.depth, len(run.dag)) == (8, 51, 402)
    registry.end_call(run, scope, last, REPORT)
    registry.close(run, RunState.DONE)
    check_integrity(run.dag)


async def test_the_engine_is_notified_of_a_client_programs_end() -> None:
    """The end comes from another thread, and from another registry than the runtime's own."""
    executor, registry = ScriptedExecutor(), RunRegistry()
    async with Runtime(executor) as runtime:
        run = registry.open("client")
        who = runtime.emitter(run).caller(Scope(run, "client"))
        chunks = who.chunks(CallSpec(), stream=False)
        replies = [chunk.reply async for chunk in chunks]
        assert replies[-1] is not None
        assert (replies[-1].run_id, replies[-1].node) == ("client-1", 0)
        await asyncio.to_thread(registry.close, run, RunState.DONE)
    assert executor.ended == ["client-1"]


class _CountedLock:
    """A lock that knows whether it is held."""

    def __init__(self) -> None:
        self.lock, self.held = threading.RLock(), 0

    def __enter__(self) -> None:
        self.lock.acquire()
        self.held += 1

    def __exit__(self, *error: object) -> None:
        self.held -= 1
        self.lock.release()


class _LockedScope(Scope):
    """A scope that notes whether its registry's lock is held when it is forked and joined."""

    held: ClassVar[list[bool]]

    def _note(self) -> None:
        lock: Any = cast("Run", self.owner).registry.lock  # the test's lock, which counts holders
        self.held.append(lock.held > 0)

    def fork(self, coro: object = None, beside: Sequence[object] = ()) -> Scope:
        self._note()
        return super().fork(coro, beside)

    def join(self, ended: Scope) -> None:
        self._note()
        super().join(ended)


async def test_callers_for_several_choices_hold_the_lock_to_fork_and_join_the_scope(
    registry: RunRegistry,
) -> None:
    """Other threads of the program may use the scope meanwhile."""
    registry.lock = _CountedLock()  # type: ignore[assignment]
    _LockedScope.held = []
    async with Runtime(ScriptedExecutor()) as runtime:
        run = registry.open("client")
        with runtime.emitter(run).caller(_LockedScope(run, "client")).siblings(2):
            assert registry.lock.held == 0  # type: ignore[attr-defined]
        registry.close(run, RunState.DONE)
    assert _LockedScope.held == [True] * 4


async def test_a_closed_runtime_gets_no_events() -> None:
    executor, registry = ScriptedExecutor(), RunRegistry()
    async with Runtime(executor) as runtime:
        run = registry.open("client")
        runtime.emitter(run)
        assert len(registry._listeners) == 1
    assert registry._listeners == []
    registry.close(run, RunState.DONE)
    assert executor.ended == []


def test_listeners_can_unsubscribe(registry: RunRegistry) -> None:
    events: list[Event] = []
    registry.listen(events.append)
    registry.unlisten(events.append)
    registry.close(registry.open("agent"), RunState.DONE)
    assert not any(isinstance(event, NodeEnded | RunEnded) for event in events)
    assert events == []
