"""One run of a program: its state, its DAG, and its costs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Literal
from weakref import WeakSet

from agentrt.graph import ExecutionDAG, to_svg
from agentrt.journal import ProgramRecord
from agentrt.request import CallReport
from agentrt.runtime.tokens import TokenLog
from agentrt.scheduler.programs import ProgramStats

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
    registry: Any = field(default=None, repr=False)
    """The registry in which the run was opened, for `registry_of`."""
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
