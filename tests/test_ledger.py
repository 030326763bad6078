"""The ledger: programs whose code somebody else runs, from their beginning to after their end."""

from __future__ import annotations

import asyncio
import threading
from itertools import count

import pytest

from agentrt import Runtime
from agentrt.errors import InvariantError
from agentrt.events import Event, NodeEnded, ProgramEnded, ProgramStarted
from agentrt.graph import NodeKind, NodeState
from agentrt.ledger import Ledger, call_id
from agentrt.request import CallReport, CallSpec
from agentrt.run import RunState
from agentrt.scope import Scope
from agentrt.testing.scripted import ScriptedExecutor

REPORT = CallReport(service_s=2.0, waiting_s=0.5, steps=4, prompt_tokens=3, output_tokens=4)


@pytest.fixture
def ledger() -> Ledger:
    ticks = count()
    return Ledger(clock=lambda: float(next(ticks)))


def test_a_programs_row_and_dag_are_kept_in_step(ledger: Ledger) -> None:
    events: list[Event] = []
    ledger.listen(events.append)
    run = ledger.open("agent", tenant="ann", session="t1", size_hint=3.0)
    scope = Scope(run, "agent")
    first = ledger.begin_call(run, scope, "llm")
    assert list(run.row.calls) == [call_id(run, first)] == ["agent-1/0"]
    ledger.end_call(run, scope, first, REPORT)
    second = ledger.begin_call(run, scope, "llm")
    assert (second.parents, second.path_s) == ((0,), 2.0)
    ledger.end_call(run, scope, second, REPORT, error=ValueError("x"))
    assert (second.state, second.error) == (NodeState.FAILED, "ValueError: x")
    assert (run.row.service_s, run.row.path_s, run.row.output_tokens) == (4.0, 4.0, 8)
    ledger.close(run, RunState.DONE)
    assert (len(ledger.table), ledger.runs) == (0, {})
    assert [type(event) for event in events[:1] + events[-1:]] == [ProgramStarted, ProgramEnded]
    run.dag.check_integrity()


def test_a_call_may_end_after_its_program(ledger: Ledger) -> None:
    """The program's end cancels it in the DAG; what it used still counts in the row."""
    run = ledger.open("agent")
    scope = Scope(run, "agent")
    node = ledger.begin_call(run, scope, "llm")
    ledger.close(run, RunState.CANCELLED)
    assert node.state is NodeState.CANCELLED
    ledger.end_call(run, scope, node, REPORT)
    assert (node.state, run.row.service_s) == (NodeState.CANCELLED, 2.0)
    with pytest.raises(InvariantError, match="closed"):
        ledger.begin_call(run, scope, "llm")


def test_an_open_question_interrupts_a_program_that_is_done(ledger: Ledger) -> None:
    run = ledger.open("agent")
    scope = Scope(run, "agent")
    tool = ledger.begin_interrupt(run, scope, NodeKind.TOOL, "search")
    question = ledger.begin_interrupt(run, scope, NodeKind.HUMAN, "May I?")
    ledger.close(run, RunState.DONE)
    assert run.state is RunState.INTERRUPTED
    assert (tool.state, question.state) == (NodeState.CANCELLED, NodeState.INTERRUPTED)
    assert run.dag.totals.interrupted == 1
    run.dag.check_integrity()


def test_a_program_that_failed_is_not_interrupted(ledger: Ledger) -> None:
    run = ledger.open("agent")
    ledger.begin_interrupt(run, Scope(run, "agent"), NodeKind.HUMAN, "May I?")
    ledger.close(run, RunState.FAILED, ValueError("x"))
    assert run.state is RunState.FAILED


def test_a_question_that_is_answered_is_over(ledger: Ledger) -> None:
    run = ledger.open("agent")
    scope = Scope(run, "agent")
    ledger.end_interrupt(run, scope, ledger.begin_interrupt(run, scope, NodeKind.HUMAN, "May I?"))
    ledger.close(run, RunState.DONE)
    assert run.state is RunState.DONE
    assert run.row.interrupt_s == 1.0


def test_threads_write_into_one_dag(ledger: Ledger) -> None:
    """Eight threads fork from the root call and are joined; the books still add up."""
    run = ledger.open("agent")
    scope = Scope(run, "agent")
    ledger.end_call(run, scope, ledger.begin_call(run, scope, "root"), REPORT)
    gate = threading.Barrier(8)

    def work() -> None:
        with ledger.lock:
            mine = scope.fork()
        gate.wait()
        for _ in range(50):
            ledger.end_call(run, mine, ledger.begin_call(run, mine, "llm"), REPORT)
        with ledger.lock:
            scope.join(mine)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    last = ledger.begin_call(run, scope, "last")
    assert (len(last.parents), last.depth, len(run.dag)) == (8, 51, 402)
    ledger.end_call(run, scope, last, REPORT)
    ledger.close(run, RunState.DONE)
    run.dag.check_integrity()


async def test_the_engine_is_told_of_a_guests_end() -> None:
    """From another thread, and of another ledger than the runtime's own."""
    executor, ledger = ScriptedExecutor(), Ledger()
    async with Runtime(executor) as runtime:
        run = ledger.open("guest")
        chunks = runtime.emitter(run).chunks(
            CallSpec(prompt="hello"), Scope(run, "guest"), stream=False
        )
        replies = [chunk.reply async for chunk in chunks]
        assert replies[-1] is not None
        assert (replies[-1].program_id, replies[-1].node) == ("guest-1", 0)
        await asyncio.to_thread(ledger.close, run, RunState.DONE)
    assert executor.ended == ["guest-1"]


async def test_a_closed_runtime_hears_no_more() -> None:
    executor, ledger = ScriptedExecutor(), Ledger()
    async with Runtime(executor) as runtime:
        run = ledger.open("guest")
        runtime.emitter(run)
        assert len(ledger._listeners) == 1
    assert ledger._listeners == []
    ledger.close(run, RunState.DONE)
    assert executor.ended == []


def test_listeners_can_leave(ledger: Ledger) -> None:
    events: list[Event] = []
    ledger.listen(events.append)
    ledger.unlisten(events.append)
    ledger.close(ledger.open("agent"), RunState.DONE)
    assert not any(isinstance(event, NodeEnded | ProgramEnded) for event in events)
    assert events == []
