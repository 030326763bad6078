"""The run registry: all live runs, with their DAGs and the process table, kept in step.

It is synchronous and knows no engine, so that whoever watches a program, wherever its code
runs, can tell it of a node. Each method is one short critical section: programs of other
frameworks call from threads and event loops of their own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from threading import RLock
from weakref import WeakKeyDictionary

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
    ProgramEnded,
    ProgramStarted,
)
from agentrt.runtime.run import Run, RunState
from agentrt.scheduler.programs import ProgramStats
from agentrt.scheduler.table import ProcessTable
from agentrt.tracking.scope import Scope

Listener = Callable[[Event], None]
_REGISTRIES: WeakKeyDictionary[Run, RunRegistry] = WeakKeyDictionary()


class RunRegistry:
    """Runs by id, and the process ``table`` over the live ones. ``clock`` gives seconds.

    Each method takes ``lock``; code that forks or joins scopes of these programs takes it, too.
    ``mark`` stands between a program's type and its number: the programs of two registries may
    meet in one engine. ``opened`` is the last number that was given.
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
        """Tell ``listener`` of every event from now on. It must be quick and not raise.

        Events of a program come from the thread that its code runs in.
        """
        self._listeners.append(listener)

    def unlisten(self, listener: Listener) -> None:
        """Tell ``listener`` no more."""
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
        """A program of this type began; ``number`` is that of one which began before this process
        did, and goes on. One that is not counted is ``named``.
        """
        with self.lock:
            if number is None and named is None:
                number = self.opened = self.opened + 1
            run_id, now = named or f"{type}{self._mark}{number}", self.clock()
            row = self.table.start_program(run_id, type, now, tenant=tenant, session=session)
            row.size_hint = size_hint
            dag = ExecutionDAG(run_id, type)
            run = Run(run_id, type, row, dag, started_at=now)
            self.runs[run_id] = run
            _REGISTRIES[run] = self
            self._tell(ProgramStarted(run_id, type, now))
            return run

    def rename(self, run: Run, type: str) -> None:
        """A program's type became known only after its beginning, but before its first node."""
        with self.lock:
            run.type = run.row.type = run.dag.program_type = type

    def close(self, run: Run, state: RunState, error: BaseException | None = None) -> None:
        """A program ended, with ``error`` where it failed. Its open nodes are cancelled.

        One that is done, but has a question that nobody has answered, is interrupted.
        """
        with self.lock:
            if state is RunState.DONE and run.row.humans:
                state = RunState.INTERRUPTED
            run.state, run.error = state, error
            run.ended_at = self.clock()
            run.dag.close(run.ended_at, NodeState(str(state)))
            self.table.end_program(run.id)
            self.runs.pop(run.id, None)
            self._tell(ProgramEnded(run.id, str(state), run.ended_at))

    # -- calls -------------------------------------------------------------------------

    def begin_call(self, run: Run, scope: Scope, name: str, after: Iterable[int] = ()) -> Node:
        """The code in ``scope`` emitted a call, which also comes after the nodes ``after``."""
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
        """The call that is ``node`` is over; ``report`` is what it used."""
        with self.lock:
            now, dag = self.clock(), run.dag
            # A client program may end before its calls do.
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
            self._leave(run, scope, node, now)

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
        """The code in ``scope`` went to a tool or to a human, or waits for an event."""
        with self.lock:
            node = self._begin(run, scope, kind, name, after)
            node.interrupt = interrupt
            run.dag.start(node.id, node.created_at)
            self.table.interrupt_started(run.row, node.created_at, kind)
            self._tell(NodeStarted(run.id, node, node.created_at))
            return node

    def interrupt_waits(self, run: Run, node: Node, why: str) -> None:
        """Nobody works on it now."""
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
        """An attempt began, which may take ``timeout`` seconds."""
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
            if changed:  # the first attempt of most tools changes nothing
                self._tell(NodeChanged(run.id, node, now))

    def interrupt_progress(self, run: Run, node: Node, progress: Progress) -> None:
        """It says how far it is. What comes after its end is ignored."""
        with self.lock:
            if node.interrupt is not None and not node.state.ended:
                node.interrupt.progress = progress
                self._tell(NodeChanged(run.id, node, self.clock()))

    def end_interrupt(
        self, run: Run, scope: Scope, node: Node, error: BaseException | None = None
    ) -> None:
        """The interrupt is over: an `Exception` failed it, any other error cancelled it.

        `InterruptExpiredError` says that it was not over by its deadline.
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
            self._leave(run, scope, node, now)

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
        """A node of an earlier run of the program, whose outcome is known. Nobody is told: nothing
        happens. What it had cost counts as the program's.
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
                run.recalled.finished_calls += 1
                run.recalled.service_s += service_s
                run.recalled.waiting_s += waiting_s
                run.recalled.usage += report
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

    def _leave(self, run: Run, scope: Scope, node: Node, now: float) -> None:
        scope.frontier.advance(node.id, node.parents)
        self._tell(NodeEnded(run.id, node, now))

    def _tell(self, event: Event) -> None:
        for listener in tuple(self._listeners):
            listener(event)


def identity_of(run: Run, scope: Scope, node: Node) -> Identity:
    """Whose call it is that the code in ``scope`` emitted, for engines and servers elsewhere."""
    return Identity(
        call_id=call_id(run, node),
        program_id=run.id,
        program_type=run.type,
        tenant=run.row.tenant,
        session=run.row.session,
        # The innermost node function of the scope; none in the program's own function.
        node=scope.path.rpartition("/")[2] if "/" in scope.path else "",
        parents=calls_before(node.parents, run.dag),
        path_s=node.path_s,
        service_s=run.row.service_s,
        program_path_s=run.row.path_s,
        waiting_s=run.row.waiting_s,
        size_hint=run.row.size_hint,
    )


def call_id(run: Run, node: Node) -> str:
    """The name of a call, for engines and people: its program and its node."""
    return f"{run.id}/{node.id}"


def registry_of(run: Run) -> RunRegistry:
    """The registry that ``run`` was opened in."""
    return _REGISTRIES[run]
