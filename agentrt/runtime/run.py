"""One run of a program, with its state, its DAG and its costs; and the run registry: all live runs,
with their DAGs and their rows in the process table.

The registry is synchronous and does not depend on an engine, so that integrations can report the
nodes of programs whose code runs elsewhere. Each method is a short critical section, because
programs of other frameworks call the registry from threads and event loops of their own.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from threading import RLock
from typing import Any, Literal
from weakref import WeakSet

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
    to_svg,
)
from agentrt.journal import ProgramRecord
from agentrt.request import CallReport, Identity
from agentrt.runtime.events import (
    Event,
    NodeChanged,
    NodeEnded,
    NodeStarted,
    ProgramStarted,
    RunEnded,
)
from agentrt.runtime.tokens import TokenLog
from agentrt.scheduler.programs import ProgramStats
from agentrt.scheduler.table import ProcessTable
from agentrt.tracking.scope import Scope

_AGAIN_S = 5.0
"""Seconds after which a program that has ignored a cancellation is cancelled again."""


class RunState(StrEnum):
    """The state of a run.

    A run becomes interrupted in two ways. Either its code returned while a question to a human was
    open; then the answer starts a new run in the same session. Or the run was parked; then its
    program resumes later as another `Run` with the same id.
    """

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True)
class RunReport:
    """The costs of a run. Times are in seconds.

    ``service_s`` and ``waiting_s`` are sums over the run's calls. ``critical_path_s`` is the
    service along the longest path through the run's DAG. ``interrupt_s`` is the sum of the times
    that tools, humans and events took in this process; times before a resume do not count.
    """

    id: str
    type: str
    state: str
    wall_s: float
    service_s: float
    waiting_s: float
    interrupt_s: float
    critical_path_s: float
    calls: int
    output_tokens: int
    prompt_tokens: int
    cached_tokens: int
    recomputed_tokens: int
    returned_tokens: int
    lost_tokens: int
    loaded_tokens: int
    unused_loaded_tokens: int
    preemptions: int
    first_step: int
    last_step: int


@dataclass(slots=True, eq=False, weakref_slot=True)
class Run:
    """One run of a program, as `Runtime.start` returns it. Await `wait` for its result."""

    id: str
    type: str
    """The name of the program."""
    row: ProgramStats
    """The row of the run in the process table."""
    dag: ExecutionDAG
    started_at: float
    registry: RunRegistry = field(repr=False)
    """The registry in which the run was opened."""
    state: RunState = RunState.RUNNING
    ended_at: float | None = None
    result: Any = None
    error: BaseException | None = None
    first_step: int | None = None
    last_step: int = 0
    task: asyncio.Task[None] | None = field(default=None, repr=False)
    """The task that runs the code; None for a client program, whose code runs elsewhere."""
    record: ProgramRecord | None = field(default=None, repr=False)
    """The record in the journal; None for a run that is not recorded."""
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """The options that the journal stores for the code that resumes the program."""
    left: bool = False
    """Whether the run is cancelled without recording its end, so that it can be resumed later or in
    another process.
    """
    draws_as: str = ""
    """The id of another run whose random seeds this run repeats; "" if it draws new seeds."""
    first_words: str = ""
    """The first words of the run's input, by which people recognize the run."""
    recalled: ProgramStats | None = field(default=None, repr=False)
    """The part of the costs in ``row`` that was paid before the program was resumed; None if
    nothing was.
    """
    inherited_questions: int = 0
    """The number of questions in a fork's DAG that the run asked from which the fork was made."""
    tokens: TokenLog | None = field(default=None, repr=False)
    """The tokens of the run's calls; None if the tokens are not recorded."""
    weights_version: int | None = None
    """The version of the weights with which the program began; None before its code begins."""
    stale: Literal["end", "restart"] | None = field(default=None, repr=False)
    """What happens to a program after it was cancelled because its weights are too old: it ends
    with an error, or it runs again. None for all other programs.
    """
    stale_cancels: int = field(default=0, repr=False)
    """How often updates of the weights have cancelled the code that runs now."""
    streams: WeakSet[AsyncGenerator[Any, None]] | None = field(default=None, repr=False)
    """The streams of calls that the program's code has opened; None if it has opened none. When the
    code has ended, the runtime closes the streams that are still open.
    """
    begun: asyncio.Event = field(default_factory=asyncio.Event, repr=False)
    """Set when the start of the run is on the disk, or at once if the run is not recorded. Not set
    if recording the start fails.
    """

    def opens(self, stream: AsyncGenerator[Any, None]) -> None:
        """Note a stream that the program's code has opened."""
        if self.streams is None:
            self.streams = WeakSet()
        self.streams.add(stream)

    async def wait(self) -> Any:
        """Wait for the program's end and return its result. Raises the error that the program
        raised, or `CancelledError` if the program was cancelled.
        """
        assert self.task is not None
        await asyncio.wait([self.task])
        # The program's errors are in `error`. The task itself raises only if it was cancelled
        # before its first step, if it was interrupted (`KeyboardInterrupt`), or if we have a bug.
        self.task.result()
        if self.error is not None:
            raise self.error
        if self.state is RunState.CANCELLED:
            raise asyncio.CancelledError(f"run {self.id} was cancelled")
        return self.result

    def _repr_svg_(self) -> str:
        """Draw the run's DAG in its current state, for notebooks."""
        return to_svg(self.dag)

    @property
    def parked(self) -> bool:
        """Whether the run is parked: it has been removed from memory, or is about to be removed,
        and resumes later.
        """
        return self.record is not None and self.record.parked

    def park(self) -> None:
        """Stop the code of a program that waits. The program resumes from its journal later. Must
        be called in the event loop of the run.
        """
        assert self.record is not None
        self.left = self.record.parked = True
        cancel_until_ended(self)

    def cancel(self) -> None:
        """Stop the program. Its calls are aborted, and its DAG and its row are closed. Has no
        effect on a client program.
        """
        if self.task is not None:
            self.task.cancel()

    def saw_steps(self, report: CallReport) -> None:
        """Extend the run's range of engine steps by the steps of one call."""
        if report.steps:
            first = self.first_step
            self.first_step = (
                report.arrived_step if first is None else min(first, report.arrived_step)
            )
            self.last_step = max(self.last_step, report.finished_step)

    def report(self, now: float) -> RunReport:
        """Return the costs of the run until ``now``, or until its end if it has ended."""
        row = self.row
        return RunReport(
            id=self.id,
            type=self.type,
            state=str(self.state),
            wall_s=(now if self.ended_at is None else self.ended_at) - self.started_at,
            service_s=row.service_s,
            waiting_s=row.waiting_s,
            interrupt_s=row.interrupt_s,
            critical_path_s=self.dag.critical_path().seconds,
            calls=row.finished_calls,
            first_step=self.first_step or 0,
            last_step=self.last_step,
            **asdict(row.usage),
        )


def cancel_until_ended(run: Run) -> None:
    """Cancel a run now, and again every `_AGAIN_S` seconds until it has ended. Must be called in
    the event loop of the run.
    """
    if run.task is not None and not run.task.done():
        run.cancel()
        _later(run.task, cancel_until_ended, run)


def cancel_while_stale(run: Run, version: int) -> None:
    """Cancel a run whose code began with the old ``version`` of the weights now, and again every
    `_AGAIN_S` seconds until the code has ended. Must be called in the event loop of the run.
    """
    if run.weights_version == version and run.task is not None and not run.task.done():
        run.stale_cancels += 1
        run.cancel()
        _later(run.task, cancel_while_stale, run, version)


def _later(task: asyncio.Task[None], function: Callable[..., None], *arguments: Any) -> None:
    """Call ``function`` after `_AGAIN_S` seconds, unless ``task`` has ended by then. A timer of an
    ended task would keep its run in memory.
    """
    timer = asyncio.get_running_loop().call_later(_AGAIN_S, function, *arguments)
    task.add_done_callback(lambda ended: timer.cancel())


# -- the registry --------------------------------------------------------------------------

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
