"""The run registry: all live runs, with their DAGs and their rows in the process table.

The registry is synchronous and does not depend on an engine, so that integrations can report the
nodes of programs whose code runs elsewhere. Each method is a short critical section, because
programs of other frameworks call the registry from threads and event loops of their own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from threading import RLock

from agentrt import tracking
from agentrt.errors import InterruptExpiredError, text_of
from agentrt.graph import (
    ExecutionDAG,
    Interrupt,
    Node,
    NodeKind,
    NodeState,
    Progress,
    calls_before,
)
from agentrt.request import CallReport, Identity
from agentrt.runtime.events import (
    Event,
    NodeChanged,
    NodeEnded,
    NodeStarted,
    ProgramStarted,
    RunEnded,
)
from agentrt.runtime.run import Run, RunState
from agentrt.scheduler.programs import ProgramStats
from agentrt.scheduler.table import ProcessTable
from agentrt.tracking.scope import Scope

Listener = Callable[[Event], None]


class RunRegistry:
    """All live runs by id, and their process ``table``. ``clock`` returns seconds.

    Each method that changes runs acquires ``lock``; code that forks or joins scopes that several
    threads use must acquire ``lock``, too. A run's id consists of the program's type, ``mark`` and
    a number. Registries that share an engine need different marks. ``opened`` is the last number
    that was used, apart from numbers that were passed to `open`.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, mark: str = "-") -> None:
        self.clock = clock
        self._mark = mark
        self.table = ProcessTable(ProgramStats)
        self.runs: dict[str, Run] = {}
        self.opened = 0
        self.lock = RLock()
        self._listeners: list[Listener] = []

    def listen(self, listener: Listener) -> None:
        """Call ``listener`` with every event from now on. The listener must be quick and must not
        raise errors.

        The listener may be called in any thread: the thread of a runtime, or a thread that runs
        code of a program.
        """
        self._listeners.append(listener)

    def unlisten(self, listener: Listener) -> None:
        """Stop calling ``listener``."""
        self._listeners.remove(listener)

    # -- programs ----------------------------------------------------------------------

    def open(
        self,
        type: str,
        *,
        tenant: str = "default",
        session: str | None = None,
        size_hint: float | None = None,
        number: int | None = None,
        named: str | None = None,
    ) -> Run:
        """Add the run of a program that starts.

        By default, the run gets the next number. ``number`` sets the number, for example that of a
        run that resumes. ``named`` is the whole id of the run; other ids consist of the type, the
        registry's mark and the number.
        """
        with self.lock:
            if number is None and named is None:
                number = self.opened = self.opened + 1
            run_id, now = named or f"{type}{self._mark}{number}", self.clock()
            row = self.table.start_program(run_id, type, now, tenant=tenant, session=session)
            row.size_hint = size_hint
            dag = ExecutionDAG(run_id, type)
            run = Run(run_id, type, row, dag, started_at=now, registry=self)
            self.runs[run_id] = run
            self._tell(ProgramStarted(run_id, type, now))
            return run

    def rename(self, run: Run, type: str) -> None:
        """Set the type of a program whose type was unknown when the run started. Must be called
        before the run's first node.
        """
        with self.lock:
            run.type = run.row.type = run.dag.program_type = type

    def close(self, run: Run, state: RunState, error: BaseException | None = None) -> None:
        """End a run, with ``error`` if the run failed. Open nodes of the run are cancelled.

        If the state is done, but a question to a human is unanswered, the run becomes interrupted.
        The open questions of an interrupted run become interrupted, too, and are not cancelled.
        """
        with self.lock:
            if state is RunState.DONE and run.row.humans:
                state = RunState.INTERRUPTED
            run.state, run.error = state, error
            run.ended_at = self.clock()
            run.dag.close(run.ended_at, NodeState(str(state)))
            self.table.end_program(run.id)
            self.runs.pop(run.id, None)
            self._tell(RunEnded(run.id, str(state), run.ended_at))

    # -- calls -------------------------------------------------------------------------

    def begin_call(self, run: Run, scope: Scope, name: str, after: Iterable[int] = ()) -> Node:
        """Add a call that the code in ``scope`` makes. ``after`` are the ids of nodes that are
        further parents of the call.
        """
        with self.lock:
            node = self._begin(run, scope, NodeKind.CALL, name, after)
            self.table.call_arrived(run.row, call_id(run, node), node.created_at)
            self._tell(NodeStarted(run.id, node, node.created_at))
            return node

    def end_call(
        self,
        run: Run,
        scope: Scope,
        node: Node,
        report: CallReport,
        *,
        cancelled: bool = False,
        error: BaseException | None = None,
    ) -> None:
        """End the call of ``node``. ``report`` says which resources the call used. Without an
        ``error``, the call has succeeded, unless it was ``cancelled``.
        """
        with self.lock:
            now, dag = self.clock(), run.dag
            # A client program may end before its calls. Its end has closed the nodes of the calls.
            if not node.state.ended:
                if report.steps:
                    dag.start(node.id, min(now, node.created_at + report.waiting_s))
                if cancelled:
                    dag.cancel(node.id, now, report)
                elif error is not None:
                    dag.fail(node.id, now, f"{type(error).__name__}: {text_of(error)}", report)
                else:
                    dag.finish(node.id, now, report)
            service_s, waiting_s = report.service_s, report.waiting_s
            name = call_id(run, node)
            self.table.call_ended(run.row, name, now, node.path_s, service_s, waiting_s, report)
            run.saw_steps(report)
            self._node_ended(run, scope, node, now)

    # -- interrupts --------------------------------------------------------------------

    def begin_interrupt(
        self,
        run: Run,
        scope: Scope,
        kind: NodeKind,
        name: str,
        after: Iterable[int] = (),
        interrupt: Interrupt | None = None,
    ) -> Node:
        """Add a tool call, a question to a human or a wait for an event by the code in
        ``scope``.
        """
        with self.lock:
            node = self._begin(run, scope, kind, name, after)
            node.interrupt = interrupt
            run.dag.start(node.id, node.created_at)
            self.table.interrupt_started(run.row, node.created_at, kind)
            self._tell(NodeStarted(run.id, node, node.created_at))
            return node

    def interrupt_waits(self, run: Run, node: Node, why: str) -> None:
        """Mark an interrupt as waiting, for the reason ``why``."""
        with self.lock:
            if node.state.ended:
                return
            if node.state is NodeState.RUNNING:
                run.dag.requeue(node.id, why)
            node.wait = why
            self._tell(NodeChanged(run.id, node, self.clock()))

    def interrupt_starts(
        self, run: Run, node: Node, attempt: int, timeout: float | None = None
    ) -> None:
        """Mark an interrupt as running its ``attempt``, which may take ``timeout`` seconds."""
        with self.lock:
            if node.state.ended:
                return
            now, interrupt = self.clock(), node.interrupt
            changed = node.state is NodeState.WAITING
            if interrupt is not None:
                before = interrupt.attempt, interrupt.progress, interrupt.deadline
                interrupt.attempt, interrupt.progress = attempt, None
                interrupt.deadline = None if timeout is None else now + timeout
                changed |= before != (attempt, None, interrupt.deadline)
            if node.state is NodeState.WAITING:
                run.dag.start(node.id, now)
            if changed:  # usually the first attempt changes nothing, and listeners cost time
                self._tell(NodeChanged(run.id, node, now))

    def interrupt_progress(self, run: Run, node: Node, progress: Progress) -> None:
        """Set the progress of an interrupt. After the end of the interrupt, this has no effect."""
        with self.lock:
            if node.interrupt is not None and not node.state.ended:
                node.interrupt.progress = progress
                self._tell(NodeChanged(run.id, node, self.clock()))

    def end_interrupt(
        self, run: Run, scope: Scope, node: Node, error: BaseException | None = None
    ) -> None:
        """End an interrupt. Without an ``error``, the interrupt has succeeded.

        After an `InterruptExpiredError` it has expired, after any other `Exception` it has failed,
        and after a `BaseException` that is not an `Exception` it was cancelled.
        """
        with self.lock:
            now = self.clock()
            if not node.state.ended:
                if error is None:
                    run.dag.finish(node.id, now)
                elif isinstance(error, InterruptExpiredError):
                    run.dag.expire(node.id, now, str(error))
                elif isinstance(error, Exception):
                    run.dag.fail(node.id, now, f"{type(error).__name__}: {text_of(error)}")
                else:
                    run.dag.cancel(node.id, now)
            seconds = now - node.created_at
            self.table.interrupt_ended(run.row, now, node.kind, seconds=seconds)
            self._node_ended(run, scope, node, now)

    # -- both --------------------------------------------------------------------------

    def recall(
        self,
        run: Run,
        scope: Scope,
        kind: NodeKind,
        name: str,
        after: Iterable[int],
        report: CallReport | None,
        error: str | None,
    ) -> Node:
        """Add a node that had ended before its program was resumed, and add the node's costs to the
        costs of the run.

        Listeners are not called, because nothing happens now.
        """
        with self.lock:
            node, now = self._begin(run, scope, kind, name, after), self.clock()
            if error is not None:
                run.dag.fail(node.id, now, error, report)
            else:
                run.dag.finish(node.id, now, report)
            if report is not None:
                service_s, waiting_s = report.service_s, report.waiting_s
                name = call_id(run, node)
                self.table.call_ended(run.row, name, now, node.path_s, service_s, waiting_s, report)
                recalled = run.recalled = run.recalled or ProgramStats("", "")
                recalled.finished_calls += 1
                recalled.service_s += service_s
                recalled.waiting_s += waiting_s
                recalled.usage += report
            scope.frontier.advance(node.id, node.parents)
            return node

    def _begin(
        self, run: Run, scope: Scope, kind: NodeKind, name: str, after: Iterable[int]
    ) -> Node:
        parents = tracking.emission_parents(scope, run.dag, after)
        node = run.dag.add(kind, name, scope.path, parents, self.clock())
        if scope.place is not None:
            scope.place.last = node.id
        return node

    def _node_ended(self, run: Run, scope: Scope, node: Node, now: float) -> None:
        scope.frontier.advance(node.id, node.parents)
        self._tell(NodeEnded(run.id, node, now))

    def _tell(self, event: Event) -> None:
        for listener in tuple(self._listeners):
            listener(event)


def identity_of(run: Run, scope: Scope, node: Node) -> Identity:
    """Return the identity of a call, which tells engines and other servers to which program the
    call belongs.
    """
    return Identity(
        call_id=call_id(run, node),
        program_id=run.id,
        program_type=run.type,
        tenant=run.row.tenant,
        session=run.row.session,
        # The innermost node function of the scope; "" in the program's own function.
        node=scope.path.rpartition("/")[2] if "/" in scope.path else "",
        parents=calls_before(node.parents, run.dag),
        path_s=node.path_s,
        service_s=run.row.service_s,
        program_path_s=run.row.path_s,
        waiting_s=run.row.waiting_s,
        size_hint=run.row.size_hint,
    )


def call_id(run: Run, node: Node) -> str:
    """Return the id of a call: the id of its program and the number of its node."""
    return f"{run.id}/{node.id}"
