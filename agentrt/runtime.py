"""The runtime: the one async shell around programs, their DAGs, the table and the engine.

Everything that decides is pure and lives below; here programs are started and ended,
and every task has an owner.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from agentrt import tracking
from agentrt.emitter import AskHuman, RunEmitter, Services
from agentrt.errors import AgentrtError, UsageError
from agentrt.events import Event, ProgramEnded, ProgramStarted
from agentrt.executors.base import Executor, Progress
from agentrt.graph import ExecutionDAG, Frontier, NodeState
from agentrt.program import Context, Program
from agentrt.run import Run, RunState
from agentrt.scheduler.table import ProcessTable
from agentrt.scope import Scope

Listener = Callable[[Event], None]


async def no_human(program_id: str, question: str) -> str:
    """The default `AskHuman`: there is nobody to ask."""
    raise UsageError(
        f"program {program_id} asks a human, and there is none here: {question!r}. "
        "Run it on a terminal, or give the answer in advance"
    )


def _quiet(message: str) -> None:
    """Progress that nobody reads."""


class Runtime:
    """Runs programs on an executor. An async context manager; one event loop.

    ``table`` is the process table over all live programs. ``seed`` makes the seeds
    that are drawn for sampled calls repeatable. ``ask_human`` answers `Context.human`.
    """

    def __init__(
        self,
        executor: Executor,
        *,
        ask_human: AskHuman = no_human,
        seed: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.executor = executor
        self.table = ProcessTable()
        self.runs: dict[str, Run] = {}
        self._open = False
        self._started = 0
        self._listeners: list[Listener] = []
        self._services = Services(executor, self.table, clock, self._tell, ask_human, seed)

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def open(self, progress: Progress = _quiet) -> None:
        """Start the engine. Raises what `Executor.start` raises."""
        tracking.install(asyncio.get_running_loop())
        self._open = True
        try:
            await self.executor.start(progress)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Cancel what still runs, then stop the engine. Idempotent."""
        if not self._open:
            return
        self._open = False
        live = [run.task for run in self.runs.values() if run.task is not None]
        for task in live:
            task.cancel()
        if live:
            await asyncio.wait(live)
        try:
            await self.executor.close()
        finally:
            tracking.uninstall(asyncio.get_running_loop())

    def listen(self, listener: Listener) -> None:
        """Tell ``listener`` of every event from now on. It must be quick and not raise."""
        self._listeners.append(listener)

    def now(self) -> float:
        """The runtime's clock, in seconds."""
        return self._services.clock()

    def start(
        self,
        program: Program,
        input: Any = None,
        *,
        tenant: str = "default",
        session: str | None = None,
        size_hint: float | None = None,
    ) -> Run:
        """Start a program. It runs as a task of its own; await `Run.wait` for its result.

        ``size_hint`` is a guess of its size for a policy that learns, such as a budget of
        tokens: in any unit, the same for all programs of its type.
        """
        self._started += 1
        run_id = f"{program.name}-{self._started}"
        now = self.now()
        row = self.table.start_program(run_id, program.name, now, tenant=tenant, session=session)
        row.size_hint = size_hint
        run = Run(run_id, program, row, ExecutionDAG(run_id, program.name), started_at=now)
        self.runs[run_id] = run
        self._tell(ProgramStarted(run_id, program.name, now))
        scope = Scope(owner=run, frontier=Frontier(), path=program.name)
        run.task = tracking.start_task(self._run(run, input), scope, name=run_id)
        return run

    async def _run(self, run: Run, input: Any) -> None:
        context = Context(run.id, run.program.name, RunEmitter(run, self._services))
        try:
            run.result = await run.program(context, input)
            run.state = RunState.DONE
        except asyncio.CancelledError:
            run.state = RunState.CANCELLED
        except Exception as error:
            run.state, run.error = RunState.FAILED, error
        await self._end(run)

    async def _end(self, run: Run) -> None:
        """Nothing of a program outlives it: no task, no call, no row."""
        await tracking.cancel_tasks(run)
        run.ended_at = self.now()
        run.dag.close(run.ended_at, NodeState(str(run.state)))
        self.table.end_program(run.id)
        self.runs.pop(run.id, None)
        with contextlib.suppress(AgentrtError):
            await self.executor.end_program(run.id)
        self._tell(ProgramEnded(run.id, str(run.state), run.ended_at))

    def _tell(self, event: Event) -> None:
        for listener in self._listeners:
            listener(event)
