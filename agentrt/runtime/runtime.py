"""The runtime: the one async shell around programs, the registry and the engine.

Everything that decides is pure and lives below; here programs are started and ended,
and every task has an owner.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, Self, TypeVar

from agentrt import tracking
from agentrt.errors import AgentrtError, JournalWriteError, UnrecordableError, text_of
from agentrt.executors.base import Executor, Notification, Progress
from agentrt.executors.frontend import Frontend
from agentrt.executors.vllm.frontend.models import open_frontend
from agentrt.graph import Frontier
from agentrt.interrupts import ToolTransport
from agentrt.interrupts.events import EventSource, NoEvents
from agentrt.interrupts.questions import Answerer, Questions, no_human
from agentrt.interrupts.toolbox import Toolbox
from agentrt.journal import Journal
from agentrt.program import Context, Program
from agentrt.runtime.durable import Durable, begin
from agentrt.runtime.emitter import LiveEmitter
from agentrt.runtime.events import Event, ProgramEnded, notification_of
from agentrt.runtime.first_words import first_words
from agentrt.runtime.recorded import Recorded
from agentrt.runtime.registry import Listener, RunRegistry, registry_of
from agentrt.runtime.run import Run, RunState
from agentrt.runtime.services import Services
from agentrt.scheduler.programs import ProgramStats
from agentrt.scheduler.table import ProcessTable, ProgramTotals
from agentrt.steady import SteadyClock
from agentrt.tracking.current import running_loop
from agentrt.tracking.scope import Scope

T = TypeVar("T")
_log = logging.getLogger(__name__)


def _unread(message: str) -> None:
    """Progress that nobody reads."""


class Runtime:
    """Runs programs on an executor. An async context manager; one event loop.

    ``registry`` has the runs of all programs, client programs too, whose code somebody else
    runs. ``model_names`` are what requests may call the first model; by default its own name.
    ``seed`` makes the seeds that are drawn for sampled calls repeatable. ``tools`` are
    the transports of tools beside those for functions of this process, ``events`` is where
    `Context.event` hears of what happens. ``ask_human`` answers
    `Context.human`; with None, questions wait in ``questions`` for whoever answers them there.
    ``enter`` is called before a program's code, in its context: the code finds the context
    variables that it sets. Programs are recorded in ``journal``, and go on from it; whoever opened
    it closes it. Programs sleep and wait by the clock ``steady``, which is the journal's. With
    ``reminders``, system and developer messages in the middle of a chat stay at their place, also
    where the model's chat template would refuse or move them.
    """

    def __init__(
        self,
        executor: Executor,
        *,
        ask_human: Answerer | None = no_human,
        tools: Sequence[ToolTransport] = (),
        events: EventSource | None = None,
        seed: int = 0,
        clock: Callable[[], float] = time.monotonic,
        registry: RunRegistry | None = None,
        model_names: Sequence[str] = (),
        enter: Callable[[Run], None] = lambda run: None,
        journal: Journal | None = None,
        reminders: bool = True,
    ) -> None:
        self.executor = executor
        self._reminders = reminders
        self.journal = journal
        self.registry = RunRegistry(clock) if registry is None else registry
        self._loop: asyncio.AbstractEventLoop | None = None
        self._open = False
        self._clients: dict[str, Run] = {}
        self._followed: list[RunRegistry] = []
        self._ends: set[asyncio.Task[None]] = set()
        self._enter = enter
        self._names: Sequence[str] = model_names
        self._progress: Progress = _unread
        self.has_engine = False
        self._frontend: asyncio.Task[Frontend] | None = None
        self.toolbox = Toolbox(tools)
        # A due time that outlives its process is one of its journal's clock.
        self.steady = SteadyClock.of_loop() if journal is None else journal.clock
        self.questions = Questions(self.steady, ask_human)
        self.events = NoEvents() if events is None else events
        self._services = Services(
            executor,
            self.frontend,
            self.toolbox,
            self.questions,
            self.events,
            self.steady,
            seed,
        )

    @property
    def table(self) -> ProcessTable[ProgramStats]:
        """The process table over all live programs."""
        return self.registry.table

    @property
    def runs(self) -> dict[str, Run]:
        """The live runs, by id."""
        return self.registry.runs

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def open(self, progress: Progress = _unread, *, with_engine: bool = True) -> None:
        """Start the engine; if not ``with_engine``, only when the first call needs it. Raises what
        `Executor.start` raises.
        """
        self._progress = progress
        self._loop = asyncio.get_running_loop()
        tracking.install(self._loop)
        self._open = True
        self._follow(self.registry)
        try:
            with tracking.outside():
                await self.toolbox.open()
                await self.events.open()
            if with_engine:
                await self._start_engine()
        except BaseException:
            await self.close()
            raise

    async def _start_engine(self) -> None:
        await self.executor.start(self._progress)
        self.has_engine = True

    async def close(self) -> None:
        """Cancel what still runs, then stop the engine. Idempotent."""
        if not self._open:
            return
        self._open = False
        live = [run.task for run in self.runs.values() if run.task is not None]
        live += [one.task for one in self._services.client_calls if one.task is not None]
        for task in live:
            task.cancel()
        while self._followed:
            self._followed.pop().unlisten(self._saw)
        if left := [*live, *self._ends]:
            await asyncio.wait(left)
        try:
            await self.toolbox.close()
            await self.events.close()
            await self._close_frontend()
            await self.executor.close()
        finally:
            tracking.uninstall(asyncio.get_running_loop())

    async def frontend(self) -> Frontend:
        """The front end of the engine's models. It is opened at the first call, which takes
        seconds; several callers wait for one.
        """
        if self._frontend is None:
            with tracking.outside():
                opening = self._open_frontend()
                self._frontend = asyncio.create_task(opening, name="agentrt/frontend")
        opening_task = self._frontend
        try:
            return await asyncio.shield(opening_task)
        except Exception:
            if self._frontend is opening_task:  # and no later call tries again already
                self._frontend = None
            raise

    async def _open_frontend(self) -> Frontend:
        if not self.has_engine:
            await self._start_engine()
        return await open_frontend(self.executor, self._names, reminders=self._reminders)

    @property
    def opened_frontend(self) -> Frontend | None:
        """The front end, if a call has opened it."""
        opening = self._frontend
        if opening is None or not opening.done() or opening.cancelled() or opening.exception():
            return None
        return opening.result()

    async def _close_frontend(self) -> None:
        opening, self._frontend = self._frontend, None
        if opening is None:
            return
        opening.cancel()  # nothing, if it is open
        await asyncio.wait([opening])
        if not opening.cancelled() and opening.exception() is None:
            await opening.result().close()

    def listen(self, listener: Listener) -> None:
        """Tell ``listener`` of every event from now on. It must be quick and not raise."""
        self.registry.listen(listener)

    def now(self) -> float:
        """The runtime's clock, in seconds."""
        return self.registry.clock()

    def emitter(self, run: Run) -> LiveEmitter:
        """What emits the calls of ``run``, past its journal; to be used on the runtime's loop.

        A run without a task is a client program, whose code another framework runs: the engine
        forgets it when its registry says that it ended.
        """
        if run.task is None and run.ended_at is None:
            self._clients[run.id] = run
            self._follow(registry_of(run))
        return LiveEmitter(run, self._services)

    def _follow(self, registry: RunRegistry) -> None:
        """Listen to a registry: once, however many of its programs there are."""
        if registry not in self._followed:
            self._followed.append(registry)
            registry.listen(self._saw)

    def start(
        self,
        program: Program,
        input: Any = None,
        *,
        tenant: str = "default",
        session: str | None = None,
        size_hint: float | None = None,
        durable: Durable | None = None,
    ) -> Run:
        """Start a program. It runs as a task of its own; await `Run.wait` for its result.

        ``size_hint`` is a guess of its size for a policy that learns, such as a budget of
        tokens: in any unit, the same for all programs of its type. With a journal, ``durable``
        says how it is recorded; None is not at all.
        """
        kept = durable or Durable()
        run = self.registry.open(
            program.name,
            tenant=tenant,
            session=session,
            size_hint=size_hint,
            number=kept.number,
            named=kept.id,
        )
        run.draws_as, run.options = kept.draws_as, kept.options
        run.first_words = first_words(input)
        scope = Scope(owner=run, frontier=Frontier(), path=program.name)
        work = self._run(run, program, input, durable)
        run.task = tracking.start_task(work, scope, name=run.id)
        run.task.add_done_callback(functools.partial(self._close_unbegun, run))
        return run

    def _close_unbegun(self, run: Run, task: asyncio.Task[None]) -> None:
        """A task that is cancelled before its first step runs none of its code, and uvloop runs
        timers, such as that of a deadline, before first steps.
        """
        if task.cancelled() and run.ended_at is None:
            self.registry.close(run, RunState.CANCELLED)

    async def _run(self, run: Run, program: Program, input: Any, durable: Durable | None) -> None:
        state, error = RunState.DONE, None
        self._enter(run)
        try:
            if self.journal is not None and durable is not None:
                await begin(self.journal, run, program, input, self._services.seed, durable)
            run.begun.set()
            record = run.record
            if record is not None and record.has_result:
                run.result = record.result()
            else:
                live = self.emitter(run)
                emitter = live if record is None else Recorded(live, record)
                run.result = await program(Context(run.id, run.type, emitter), input)
                if record is not None and record.diverged is not None:  # and its code caught that
                    raise record.diverged
        except asyncio.CancelledError:
            state = RunState.CANCELLED
        except KeyboardInterrupt:
            self.registry.close(run, RunState.CANCELLED)
            raise
        except Exception as raised:
            state, error = RunState.FAILED, raised
        except BaseException as raised:  # as of `sys.exit`: it ends the program, and no server
            words = f"the program raised {type(raised).__name__}: {text_of(raised)}"
            state, error = RunState.FAILED, AgentrtError(words)
            error.__cause__ = raised
        await tracking.to_its_end(self._leave_nothing(run, program, state, error))

    async def _leave_nothing(
        self, run: Run, program: Program, state: RunState, error: Exception | None
    ) -> None:
        """Nothing of a program outlives it: no task, no call, no row. Another framework's
        tasks end by themselves, or serve others too; its threads' calls are still its own.
        """
        if run.record is not None:
            run.record.stopping = lambda: True
            run.record.order.close()
            tracking.release_timers(run)
        try:
            if program.owns_tasks:
                await tracking.cancel_tasks(run, spare=run.task)
            await self._services.end_feeds(run.id)
            await self._cancel_client_calls(run.id)
            if run.parked:
                state, error = RunState.INTERRUPTED, None
            elif run.record is not None and (
                state is not RunState.CANCELLED or (self._open and not run.left)
            ):
                # One that is cancelled since its runtime ends goes on in the next one.
                assert self.journal is not None
                await run.record.end(str(state), run.result, error)
                self.journal.ended()
        except (JournalWriteError, UnrecordableError) as unwritten:
            state, error = RunState.FAILED, error or unwritten
        except Exception as raised:
            _log.exception("the end of program %s failed", run.id)
            state, error = RunState.FAILED, error or raised
        # Whatever went wrong: who waits for the run must see its end.
        self.registry.close(run, state, error)
        await self._forget(run)

    async def _cancel_client_calls(self, program_id: str) -> None:
        """Abort the calls that threads and other loops still make for the program."""
        if not (calls := self._services.client_calls):
            return
        me = asyncio.current_task()
        tasks = [one.task for one in calls if one.program_id == program_id]
        calling = [task for task in tasks if task is not None and task is not me]
        for task in calling:
            task.cancel()
        if calling:
            await asyncio.wait(calling)

    async def _forget(self, run: Run) -> None:
        await self._cancel_client_calls(run.id)
        totals = None if run.parked else ProgramTotals.of(run.row)
        if self.has_engine:
            with contextlib.suppress(AgentrtError):
                await self.executor.end_program(run.id, totals)

    def _saw(self, event: Event) -> None:
        """On any thread: tell the engine of a client program's end, and of tools and humans."""
        if isinstance(event, ProgramEnded):
            if (run := self._clients.pop(event.program_id, None)) is not None:
                self._on_loop(self._start_to_forget, run)
        elif (note := notification_of(event)) is not None:
            self._on_loop(self._notify, note)

    def _on_loop(self, do: Callable[[T], None], what: T) -> None:
        if self._loop is None or not self._open:
            return
        with tracking.outside():
            if running_loop() is self._loop:
                do(what)  # to wake a loop up costs as much as a call in a thread
            else:
                self._loop.call_soon_threadsafe(do, what)

    def _notify(self, note: Notification) -> None:
        if self._open:
            self.executor.notify(note)

    def _start_to_forget(self, run: Run) -> None:
        if self._open:
            task = asyncio.create_task(self._forget(run), name=f"{run.id}/forget")
            self._ends.add(task)
            task.add_done_callback(self._ends.discard)
