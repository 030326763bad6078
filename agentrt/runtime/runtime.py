"""The runtime, which starts and ends programs, and connects them with the registry and the engine.

The scheduler, the router and the registry make all decisions; they are synchronous. Every task that
the runtime starts has an owner, which ends the task.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import time
from collections.abc import Callable, Sequence
from typing import Any, Self, TypeVar

from agentrt import tracking
from agentrt.errors import (
    AgentrtError,
    ConfigError,
    JournalWriteError,
    StaleWeightsError,
    UnrecordableError,
    text_of,
)
from agentrt.executors.base import Executor, Notification, Progress
from agentrt.executors.chat_api import Frontend
from agentrt.executors.vllm.entrypoints.models import open_frontend
from agentrt.graph import Frontier
from agentrt.interrupts import ToolTransport
from agentrt.interrupts.events import EventSource, NoEvents
from agentrt.interrupts.questions import Answerer, Questions, no_human
from agentrt.interrupts.toolbox import Toolbox
from agentrt.journal import Journal
from agentrt.program import Context, Program
from agentrt.request.weights import PauseMode
from agentrt.runtime.durable import Durable, begin
from agentrt.runtime.emitter import LiveEmitter
from agentrt.runtime.events import Event, RunEnded, notification_of
from agentrt.runtime.first_words import first_words
from agentrt.runtime.recorded import Recorded, restore_tokens
from agentrt.runtime.run import Listener, Run, RunRegistry, RunState, cancel_until_ended
from agentrt.runtime.services import Services
from agentrt.runtime.tokens import TokenLog
from agentrt.runtime.updates import OnStale, WeightUpdates
from agentrt.scheduler.programs import ProgramStats
from agentrt.scheduler.table import ProcessTable, ProgramTotals
from agentrt.steady import SteadyClock
from agentrt.tracking.current import running_loop
from agentrt.tracking.scope import Scope

T = TypeVar("T")
_log = logging.getLogger(__name__)


def _unread(message: str) -> None:
    """Ignore a message about the progress of the engine's start."""


class Runtime:
    """A runtime, which runs programs on an executor. It is an async context manager, and belongs to
    one event loop.

    - ``ask_human`` answers the questions of `Context.human`. With None, questions wait in
      ``questions`` until `Questions.answer` is called.
    - ``tools`` are transports of tools, in addition to the transport for functions of this process.
    - ``events`` is the source of the events that `Context.event` waits for.
    - ``seed`` makes the random seeds of sampled calls repeatable.
    - ``clock`` returns the current time in seconds, for the times of nodes and events. It is not
      used if ``registry`` is passed, because a registry has its own clock.
    - ``registry`` holds the runs of all programs, including client programs, whose code runs
      elsewhere.
    - ``model_names`` are the names by which requests may call the first model; by default the
      model's own name.
    - ``enter`` is called before the code of a program, in the same context, so that the code sees
      the context variables that ``enter`` sets.
    - ``journal`` records programs and resumes them. The runtime does not close it. Programs then
      sleep and wait by the journal's clock.
    - With ``reminders``, system and developer messages in the middle of a chat keep their place,
      even if the model's chat template would refuse or move them.
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
        self._process = 0
        self._open = False
        self._clients: dict[str, Run] = {}
        self._followed: list[RunRegistry] = []
        self._ends: set[asyncio.Task[None]] = set()
        self._enter = enter
        self._names: Sequence[str] = model_names
        self._progress: Progress = _unread
        self.has_engine = False
        self._starting = asyncio.Lock()
        self._frontend: asyncio.Task[Frontend] | None = None
        self.toolbox = Toolbox(tools)
        # A deadline may outlive this process, so it must be a time of the journal's clock.
        self.steady = SteadyClock.of_loop() if journal is None else journal.clock
        self.questions = Questions(self.steady, ask_human)
        self.events = NoEvents() if events is None else events
        self._updates = WeightUpdates(executor, self.registry.runs)
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

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The event loop on which the runtime runs; None if the runtime is not open in this
        process.
        """
        # A process that was forked from this one has a copy of the loop, which does not run.
        return self._loop if self._open and self._process == os.getpid() else None

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def open(self, progress: Progress = _unread, *, with_engine: bool = True) -> None:
        """Open the runtime and start its engine. Without ``with_engine``, the first call starts the
        engine.

        ``progress`` is called with messages about the start. Raises the errors of `Executor.start`.
        """
        self._progress = progress
        self._loop = asyncio.get_running_loop()
        self._process = os.getpid()
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
        """Start the engine if it has not been started. Concurrent callers wait for the same
        start.
        """
        async with self._starting:
            if not self.has_engine:
                await self.executor.start(self._progress)
                self.has_engine = True

    async def close(self) -> None:
        """Cancel all programs and calls, then stop the engine. Idempotent.

        The engine is also stopped if a part of the runtime, such as a transport of tools, cannot be
        closed, or if the calling task is cancelled meanwhile. The error is raised at the end.
        """
        if not self._open:
            return
        self._open = False
        async with contextlib.AsyncExitStack() as parts:  # closed from the last to the first
            parts.callback(tracking.uninstall, asyncio.get_running_loop())
            parts.callback(self._updates.close)
            parts.push_async_callback(self._close_engine)
            parts.push_async_callback(self._close_frontend)
            parts.push_async_callback(self.events.close)
            parts.push_async_callback(self.toolbox.close)
            await self._end_programs()

    async def _end_programs(self) -> None:
        """Cancel all programs and calls, and wait until they have ended."""
        live = [run.task for run in self.runs.values() if run.task is not None]
        for run in list(self.runs.values()):
            cancel_until_ended(run)
        calls = [call.task for call in self._services.client_calls if call.task is not None]
        for task in calls:
            task.cancel()
        while self._followed:
            self._followed.pop().unlisten(self._on_event)
        if left := [*live, *calls, *self._ends]:
            await asyncio.wait(left)

    async def _close_engine(self) -> None:
        await self.executor.close()
        self.has_engine = False

    async def frontend(self) -> Frontend:
        """Return the front end of the engine's models. The first call of this method opens the
        front end, which takes seconds. Concurrent callers wait for the same opening.
        """
        if self._frontend is None:
            with tracking.outside():
                opening = self._open_frontend()
                self._frontend = asyncio.create_task(opening, name="agentrt/frontend")
        opening_task = self._frontend
        try:
            return await asyncio.shield(opening_task)
        except Exception:
            if self._frontend is opening_task:  # no other caller has already tried again
                self._frontend = None
            raise

    async def _open_frontend(self) -> Frontend:
        await self._start_engine()
        return await open_frontend(self.executor, self._names, reminders=self._reminders)

    @property
    def opened_frontend(self) -> Frontend | None:
        """The front end; None if it is not open, because no call has opened it yet, or because it
        could not be opened.
        """
        opening = self._frontend
        if opening is None or not opening.done() or opening.cancelled() or opening.exception():
            return None
        return opening.result()

    async def _close_frontend(self) -> None:
        opening, self._frontend = self._frontend, None
        if opening is None:
            return
        opening.cancel()  # has no effect if the front end is open
        await asyncio.wait([opening])
        if not opening.cancelled() and opening.exception() is None:
            await opening.result().close()

    # -- weights -----------------------------------------------------------------------

    @property
    def weights_version(self) -> int:
        """The version of the weights that the engines have; 0 before the first update."""
        return self.executor.weights.version

    async def update_weights(
        self,
        weights: Any,
        *,
        version: int | None = None,
        mode: PauseMode = "keep",
        clear_cache: bool = False,
        max_staleness: int | None = None,
        on_stale: OnStale = "wait",
    ) -> int:
        """Replace the weights of all engines while programs run, and return the new version.

        ``weights`` is the path of a folder of safetensors, or tensors: a mapping of the names in
        the model's checkpoint to torch tensors, or an iterable of (name, tensor) pairs. ``version``
        is the number of the new weights, by default the next number. ``mode`` says what happens to
        calls in the engines: ``keep`` lets them continue with the new weights, ``wait`` lets them
        end with the old weights first, and ``abort`` begins them again, except calls whose output
        was read in part, which continue. With ``clear_cache``, the prefix cache is emptied, and
        calls that continue first compute the keys and values of their earlier tokens again with the
        new weights.

        ``max_staleness`` is the maximum number of versions between the weights with which a program
        began and the new weights; None means no limit. ``on_stale`` says what happens to older
        programs: with ``wait`` the update waits until these programs have ended, with ``end`` they
        are ended with `StaleWeightsError`, and with ``restart`` they run again from their
        beginning. The bound does not apply to client programs and to the calling program.

        All engines get the weights, or none. If there are engines of several models, the engines of
        the first model get the weights, and the others keep theirs. Raises `WeightsError` for
        weights that are missing, incomplete or of another shape, `EngineError` if an engine could
        not load them, and `ConfigError` for other invalid arguments, and for ``restart`` if a
        program that is too old is recorded for a resume. If the calling task is cancelled while the
        engines load the weights, they load them to the end, and `CancelledError` is raised then.
        """
        await self._start_engine()
        try:
            return await self._updates.update(
                weights,
                version=version,
                mode=mode,
                clear_cache=clear_cache,
                max_staleness=max_staleness,
                on_stale=on_stale,
            )
        finally:
            # Raises `CancelledError` if the task was cancelled while engines loaded the weights.
            await asyncio.sleep(0)

    async def pause_generation(self, mode: PauseMode = "keep") -> None:
        """Pause all engines, and return when no call runs. New calls wait until
        `resume_generation`. ``mode`` says what happens to calls in the engines: with ``keep`` they
        stop until generation is resumed, with ``wait`` they end before the pause, and with
        ``abort`` they begin again after the pause, except calls whose output was read in part,
        which stop and continue as with ``keep``. A pause first waits while an update loads weights.
        """
        await self._updates.pause(mode)

    async def resume_generation(self) -> None:
        """Resume all engines. Wait first while an update loads weights, or while a pause waits for
        calls.
        """
        await self._updates.resume()

    def listen(self, listener: Listener) -> None:
        """Call ``listener`` with every event from now on. The listener must be quick and must not
        raise errors.
        """
        self.registry.listen(listener)

    def now(self) -> float:
        """Return the time of the runtime's clock, in seconds."""
        return self.registry.clock()

    def emitter(self, run: Run) -> LiveEmitter:
        """Return an emitter for ``run`` that does not record the run's nodes. Use the emitter on
        the runtime's event loop.

        A run without a task is a client program, whose code another framework runs. When the
        program's registry reports the end of the program, the engine drops the program's state.
        """
        if run.task is None and run.ended_at is None:
            self._clients[run.id] = run
            self._follow(run.registry)
        return LiveEmitter(run, self._services)

    def _follow(self, registry: RunRegistry) -> None:
        """Start listening to a registry, unless the runtime already listens to it."""
        if registry not in self._followed:
            self._followed.append(registry)
            registry.listen(self._on_event)

    def start(
        self,
        program: Program,
        input: Any = None,
        *,
        tenant: str = "default",
        session: str | None = None,
        size_hint: float | None = None,
        durable: Durable | None = None,
        tokens: bool = False,
    ) -> Run:
        """Start a program in a new task. Await `Run.wait` for its result.

        ``size_hint`` is an estimate of the program's size, such as a budget of tokens, for a policy
        that learns. It may be in any unit, but in the same unit for all programs of one type. With
        a journal, ``durable`` has the settings of the record; with None, the program is not
        recorded. With ``tokens``, the tokens of the program's calls are recorded in `Run.tokens`.
        Raises `ConfigError` for anything else than a program, and `RuntimeError` if no event loop
        is running.
        """
        if not isinstance(program, Program):
            raise ConfigError(
                f"{program!r:.80} is not a program; decorate an async function with @program"
            )
        # Without a running loop, asyncio would make a task that might never run.
        loop = asyncio.get_running_loop()
        record = durable or Durable()
        run = self.registry.open(
            program.name,
            tenant=tenant,
            session=session,
            size_hint=size_hint,
            number=record.number,
            named=record.id,
        )
        run.draws_as, run.options = record.draws_as, record.options
        run.tokens = TokenLog() if tokens else None
        run.first_words = first_words(input)
        scope = Scope(owner=run, frontier=Frontier(), path=program.name)
        work = self._run(run, program, input, durable)
        run.task = tracking.TrackedTask(work, scope=scope, loop=loop, name=run.id)
        run.task.add_done_callback(functools.partial(self._close_unbegun, run))
        return run

    def _close_unbegun(self, run: Run, task: asyncio.Task[None]) -> None:
        """Close a run whose task was cancelled before its first step.

        Such a task runs none of its code, so it cannot close the run itself. This happens because
        uvloop runs timers, such as the timer of a deadline, before the first steps of tasks.
        """
        if task.cancelled() and run.ended_at is None:
            self.registry.close(run, RunState.CANCELLED)

    async def _run(self, run: Run, program: Program, input: Any, durable: Durable | None) -> None:
        state = RunState.DONE
        error: Exception | None = None
        self._enter(run)
        try:
            if self.journal is not None and durable is not None:
                await begin(self.journal, run, program, input, self._services.seed, durable)
            run.begun.set()
            record = run.record
            if record is not None and run.tokens is not None:
                restore_tokens(run.tokens, record)
            if record is not None and record.has_result:
                run.result = record.result()
            else:
                await self._updates.begin(run)
                while not await self._run_code(run, program, input):
                    await self._updates.begin(run)
        except asyncio.CancelledError:
            state = RunState.CANCELLED
            if run.stale == "end":
                state, error = RunState.FAILED, self._stale_error(run)
        except KeyboardInterrupt:
            self.registry.close(run, RunState.CANCELLED)
            raise
        except Exception as raised:
            state, error = RunState.FAILED, raised
        except BaseException as raised:  # `sys.exit` ends the program, but must not end a server
            message = f"the program raised {type(raised).__name__}: {text_of(raised)}"
            state, error = RunState.FAILED, AgentrtError(message)
            error.__cause__ = raised
        await tracking.to_its_end(self._clean_up(run, program, state, error), ends_task=True)

    async def _run_code(self, run: Run, program: Program, input: Any) -> bool:
        """Run the program's code. Return False if it has to run again from its beginning, because
        it was cancelled when its weights were too old.
        """
        record, live = run.record, self.emitter(run)
        emitter = live if record is None else Recorded(live, record)
        try:
            arguments = program.arguments(Context(run.id, run.type, emitter), input)
            run.result = await program.function(*arguments)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if run.stale != "restart" or task is None:
                raise
            for _ in range(run.stale_cancels):
                task.uncancel()
            if task.cancelling():
                raise  # it was also cancelled for another reason
            # From here on, no update waits for this program or cancels it, until it begins again.
            run.stale, run.stale_cancels, run.weights_version = None, 0, None
            await self._end_work(run, program)
            if run.tokens is not None:
                run.tokens.clear()
            return False
        # The program's code may have caught the error of a divergence, so raise it again.
        if record is not None and record.diverged is not None:
            raise record.diverged
        return True

    def _stale_error(self, run: Run) -> StaleWeightsError:
        return StaleWeightsError(
            f"run {run.id} began with version {run.weights_version} of the weights, which is "
            f"too old: the engines have version {self.weights_version}"
        )

    async def _clean_up(
        self, run: Run, program: Program, state: RunState, error: Exception | None
    ) -> None:
        """End all tasks and calls of a program, record its end, and close its run.

        If another framework runs the program's tasks, they are not cancelled, because they may
        serve other programs, too. Calls that the program's threads make are aborted.
        """
        # A stream that the code has dropped is recorded as closed, not as stopped.
        await tracking.generators_closed(run)
        if run.record is not None:
            run.record.stopping = lambda: True
            run.record.order.close()
            tracking.release_timers(run)
        try:
            await self._end_work(run, program)
            if run.parked:
                state, error = RunState.INTERRUPTED, None
            elif run.record is not None and (
                state is not RunState.CANCELLED or (self._open and not run.left)
            ):
                # If a program is cancelled because the runtime closes, its end is not recorded, so
                # that the next runtime resumes the program.
                assert self.journal is not None
                await run.record.end(str(state), run.result, error)
                self.journal.ended()
        except (JournalWriteError, UnrecordableError) as unwritten:
            state, error = RunState.FAILED, error or unwritten
        except Exception as raised:
            _log.exception("the end of run %s failed", run.id)
            state, error = RunState.FAILED, error or raised
        # Close the run even after an error, because callers wait for its end.
        self.registry.close(run, state, error)
        await self._forget(run)

    async def _end_work(self, run: Run, program: Program) -> None:
        """End what the code of a program has left open: its tasks, streams and subscriptions, and
        the calls that its threads make. Streams may be left open by the variables of code that has
        raised an error.
        """
        if program.owns_tasks:
            await tracking.cancel_tasks(run, spare=run.task)
        with tracking.outside():
            for stream in [*(run.streams or ())]:
                with contextlib.suppress(RuntimeError):  # it is being closed already
                    await stream.aclose()
        await self._services.end_feeds(run.id)
        await self._cancel_client_calls(run.id)

    async def _cancel_client_calls(self, program_id: str) -> None:
        """Abort the calls that threads and other event loops still make for the program."""
        if not (calls := self._services.client_calls):
            return
        me = asyncio.current_task()
        tasks = [call.task for call in calls if call.program_id == program_id]
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

    def _on_event(self, event: Event) -> None:
        """Tell the engine about the ends of client programs, and about the starts and ends of
        interrupts. May be called in any thread.
        """
        if isinstance(event, RunEnded):
            if (run := self._clients.pop(event.program_id, None)) is not None:
                self._on_loop(self._start_to_forget, run)
        elif (note := notification_of(event)) is not None:
            self._on_loop(self._notify, note)

    def _on_loop(self, do: Callable[[T], None], argument: T) -> None:
        if self._loop is None or not self._open:
            return
        with tracking.outside():
            if running_loop() is self._loop:
                do(argument)  # without the cost of waking the loop up
            else:
                self._loop.call_soon_threadsafe(do, argument)

    def _notify(self, note: Notification) -> None:
        if self._open:
            self.executor.notify(note)

    def _start_to_forget(self, run: Run) -> None:
        if self._open:
            task = asyncio.create_task(self._forget(run), name=f"{run.id}/forget")
            self._ends.add(task)
            task.add_done_callback(self._ends.discard)
