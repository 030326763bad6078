"""One run of a program: its state, its DAG, and what it cost."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from agentrt.graph import ExecutionDAG, to_svg
from agentrt.journal import ProgramRecord
from agentrt.request import CallReport
from agentrt.scheduler.programs import ProgramStats


class RunState(StrEnum):
    """How a run stands. An interrupted one returned with questions to a human: it is idle,
    and what answers them is a new program in the same session. Or it is parked, and goes on as
    another run.
    """

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True)
class RunReport:
    """What a run cost; times in seconds.

    ``service_s`` and ``waiting_s`` are sums over its calls, ``critical_path_s`` the
    longest path of service through its DAG, ``interrupt_s`` the time in tools and
    humans, summed.
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
    preemptions: int
    first_step: int
    last_step: int


@dataclass(slots=True, eq=False, weakref_slot=True)
class Run:
    """A program's run. `Runtime.start` hands it out; there, await `wait` for its result.

    ``type`` is its program's name. A client program, whose code another framework or process
    runs, has no ``task``. One that is recorded in a journal has a ``record``, and the ``options``
    that are kept there; where it is cancelled since its process ends, it is ``left`` for the next
    one. Once it has ``begun``, that is on the disk. The seeds of its sampled calls are those of the
    program ``draws_as``: itself, if it is "". ``recalled`` is what an earlier run of it
    has paid of its ``row``. ``first_words`` are those of its input, for people.
    """

    id: str
    type: str
    row: ProgramStats
    dag: ExecutionDAG
    started_at: float
    state: RunState = RunState.RUNNING
    ended_at: float | None = None
    result: Any = None
    error: BaseException | None = None
    first_step: int | None = None
    last_step: int = 0
    task: asyncio.Task[None] | None = field(default=None, repr=False)
    record: ProgramRecord | None = field(default=None, repr=False)
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    left: bool = False
    draws_as: str = ""
    first_words: str = ""
    recalled: ProgramStats = field(default_factory=lambda: ProgramStats("", ""), repr=False)
    begun: asyncio.Event = field(default_factory=asyncio.Event, repr=False)

    async def wait(self) -> Any:
        """The program's result. Raises its own error, or `CancelledError` if it was cancelled."""
        assert self.task is not None
        await asyncio.wait([self.task])
        self.task.result()  # the program's errors are in `error`; what is raised here is our bug
        if self.error is not None:
            raise self.error
        if self.state is RunState.CANCELLED:
            raise asyncio.CancelledError(f"program {self.id} was cancelled")
        return self.result

    def _repr_svg_(self) -> str:
        """How a notebook shows it: its graph as it is now."""
        return to_svg(self.dag)

    @property
    def parked(self) -> bool:
        """Whether it has left memory, or is about to."""
        return self.record is not None and self.record.parked

    def park(self) -> None:
        """Stop its code, which begins anew when what it waits for has come."""
        assert self.record is not None
        self.left = self.record.parked = True
        self.cancel()

    def cancel(self) -> None:
        """Stop the program: its calls are aborted, its DAG and its row are closed."""
        if self.task is not None:
            self.task.cancel()

    def saw_steps(self, report: CallReport) -> None:
        """Widen the run's span of engine steps by one call's."""
        if report.steps:
            first = self.first_step
            self.first_step = (
                report.arrived_step if first is None else min(first, report.arrived_step)
            )
            self.last_step = max(self.last_step, report.finished_step)

    def report(self, now: float) -> RunReport:
        """The cost so far, or in all once it ended."""
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
